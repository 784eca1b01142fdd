// SPDX-License-Identifier: Apache-2.0
// arena tests: random sequences of operations, compared after each with a model that knows every
// grain by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "arena/arena.hpp"

namespace vpmm::arena {
namespace {

using time::Stamp;
using time::StampPart;
using time::TimelineId;

constexpr Bytes kSmallPage = 8 * kGrain;

struct Grain {
  bool is_live = false;
  bool is_waiting = false;
  StreamKey key{};
  Stamp stamp;
};

// Timelines and streams have the same numbers.
class Model {
 public:
  explicit Model(std::uint64_t seed) : random_(seed) {}

  // What is wrong; empty: nothing.
  std::string step() {
    switch (below(11)) {
      case 10: return divide();
      case 0: return add();
      case 1: return give_back();
      case 2: return complete();
      case 3: return below(40) == 0 ? rename() : take_at();
      case 4:
      case 5:
      case 6: return end();
      default: return take();
    }
  }
  void pin() { arena_.pin(); }
  std::string picture() const { return arena_.picture(kGrain); }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  StreamKey key() { return StreamKey{below(4)}; }  // 0: everybody

  std::string check(const std::string& what) {
    if (const std::string broken = arena_.validate(); !broken.empty()) return what + ": " + broken;
    for (const auto& [begin, grain] : grains_) {
      const ArenaBlock* const block = arena_.block_around(begin);
      if (block == nullptr || block->is_live != grain.is_live)
        return what + ": a grain is live that should not be";
      if (grain.is_live) continue;
      if (block->key != grain.key || block->is_waiting != grain.is_waiting)
        return what + ": a grain is another's";
      if (block->stamp.is_complete() && !grain.stamp.is_complete())
        return what + ": work of a grain was forgotten";
    }
    return {};
  }

  std::string add() {
    if (stretches_.size() > 5) return {};
    const AddressRange range{DevicePtr{0x10000 + 0x10000 * ++added_}, (1 + below(3)) * kSmallPage};
    const StreamKey owner = key();
    arena_.add(range, owner);
    stretches_.push_back(range);
    for (Bytes at = 0; at < range.size; at += kGrain)
      grains_[range.begin + at] = {false, false, owner, {}};
    return check("add");
  }

  std::string give_back() {
    for (std::size_t i = 0; i < stretches_.size(); ++i) {
      const Stretch* const stretch = arena_.stretch_around(stretches_[i].begin);
      if (stretch->live != 0 || below(2) == 0) continue;
      for (Bytes at = 0; at < stretches_[i].size; at += kGrain)
        grains_.erase(stretches_[i].begin + at);
      arena_.remove(*stretch);
      stretches_.erase(stretches_.begin() + static_cast<std::ptrdiff_t>(i));
      return check("remove");
    }
    return {};
  }

  // The first run of free grains behind an address, in a stretch with live ones.
  std::string divide() {
    if (stretches_.empty()) return {};
    const AddressRange somewhere = stretches_[below(stretches_.size())];
    const DevicePtr from = somewhere.begin + below(somewhere.size / kGrain) * kGrain;
    const AddressRange run = arena_.free_run(from);
    if (run != run_behind(from)) return "another run was found";
    if (run.empty()) return {};
    const DevicePtr at = run.begin + below(1 + run.size / kGrain) * kGrain;
    for (AddressRange& stretch : stretches_) {
      if (!stretch.contains(at) || stretch.begin == at) continue;
      arena_.divide(at);
      const AddressRange back{at, stretch.end() - at};
      stretch.size -= back.size;
      stretches_.push_back(back);
      if (arena_.stretch_around(at)->range != back) return "it begins elsewhere";
      break;
    }
    return check("divide");
  }

  AddressRange run_behind(DevicePtr from) const {
    std::vector<AddressRange> by_address = stretches_;
    std::sort(by_address.begin(), by_address.end(),
              [](const AddressRange& a, const AddressRange& b) { return a.begin < b.begin; });
    for (const AddressRange& stretch : by_address) {
      AddressRange run;
      bool has_live = false;
      AddressRange first;
      for (Bytes offset = 0; offset < stretch.size; offset += kGrain) {
        const DevicePtr at = stretch.begin + offset;
        const bool is_live = grains_.at(at).is_live;
        has_live = has_live || is_live;
        if (is_live)
          run = {};
        else
          run = run.empty() ? AddressRange{at, kGrain} : AddressRange{run.begin, run.size + kGrain};
        const bool is_it =
            !run.empty() && run.end() > from && (first.empty() || first.begin == run.begin);
        if (is_it) first = run;
      }
      if (has_live && !first.empty()) return first;
    }
    return {};
  }

  std::string complete() {
    const TimelineId timeline{1 + below(3)};
    const std::uint64_t sequence = sequence_ - std::min(sequence_, below(4));
    const auto reduce = [&](const Stamp& stamp) { return stamp.without(timeline, sequence); };
    arena_.refresh(reduce);
    for (auto& [begin, grain] : grains_) {
      grain.stamp = reduce(grain.stamp);
      grain.is_waiting = grain.is_waiting && !grain.stamp.is_complete();
    }
    return check("refresh");
  }

  std::string rename() {
    const StreamKey from{1 + below(3)}, to{1 + below(3)};
    arena_.rename(from, to);
    for (auto& [begin, grain] : grains_)
      if (grain.key == from) grain.key = to;
    return check("rename");
  }

  void begin(AddressRange part, StreamKey owner) {
    arena_.take(part, {part.size, owner, std::nullopt});
    for (Bytes at = 0; at < part.size; at += kGrain)
      grains_[part.begin + at] = {true, false, owner, {}};
    live_.push_back(part);
  }

  bool is_usable(const Grain& grain, StreamKey owner) const {
    return !grain.is_live && !grain.is_waiting && (grain.key == owner || grain.key == kEverybody);
  }
  // Whether the stream's own grains would do.
  bool has_own_run(const Wish& wish) const {
    for (const AddressRange& stretch : stretches_)
      for (DevicePtr at = align_up(stretch.begin, wish.alignment); at + wish.size <= stretch.end();
           at = at + wish.alignment) {
        bool is_own = true;
        for (Bytes offset = 0; offset < wish.size && is_own; offset += kGrain)
          is_own = is_usable(grains_.at(at + offset), wish.key);
        if (is_own) return true;
      }
    return false;
  }

  std::string take() {
    const Wish wish{(1 + below(below(3) == 0 ? 20 : 5)) * kGrain, kGrain << below(3), key()};
    const auto room = below(2) == 0 ? Reach::everywhere : Reach::by_size;
    const auto part = arena_.find(wish, room);
    if (!part)
      return room == Reach::everywhere && has_own_run(wish) ? "what fits was not found" : "";
    if (part->size != wish.size || !is_aligned(part->begin, wish.alignment))
      return "not what was wished for";
    for (Bytes at = 0; at < part->size; at += kGrain) {
      const Grain& grain = grains_.at(part->begin + at);
      const bool is_anybodys =
          !arena_.is_pinned() && !grain.is_live && !grain.is_waiting && grain.stamp.is_complete();
      if (!is_usable(grain, wish.key) && !is_anybodys) return "another's memory was found";
    }
    begin(*part, wish.key);
    return check("take");
  }

  std::string take_at() {
    if (stretches_.empty()) return {};
    const AddressRange stretch = stretches_[below(stretches_.size())];
    const AddressRange part{stretch.begin + below(stretch.size / kGrain) * kGrain,
                            (1 + below(6)) * kGrain};
    bool is_free = stretch.contains(part);
    for (Bytes at = 0; at < part.size && is_free; at += kGrain)
      is_free = !grains_.at(part.begin + at).is_live;
    if (arena_.is_free(part) != is_free) return "is_free is wrong";
    if (is_free) begin(part, key());
    return check("take at");
  }

  std::string end() {
    if (live_.empty()) return {};
    const std::size_t i = below(live_.size());
    const AddressRange part = live_[i];
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
    Arena::End end{key(), {}, below(4) == 0};
    const auto number = [&] { return StampPart{TimelineId{1 + below(3)}, ++sequence_}; };
    if (end.key != kEverybody && !end.is_waiting)
      end.stamp = Stamp({TimelineId{static_cast<std::uint64_t>(end.key)}, ++sequence_});
    if (end.is_waiting) end.stamp = below(2) == 0 ? Stamp(number()) : Stamp(number(), number());
    arena_.end(part.begin, end);
    for (Bytes at = 0; at < part.size; at += kGrain)
      grains_[part.begin + at] = {false, end.is_waiting, end.key, end.stamp};
    return check("end");
  }

  std::mt19937_64 random_;
  Arena arena_{kSmallPage, Splitting::yes};
  std::map<DevicePtr, Grain> grains_;
  std::vector<AddressRange> stretches_;
  std::vector<AddressRange> live_;
  std::uint64_t added_ = 0;
  std::uint64_t sequence_ = 0;
};

std::uint64_t first_seed() {
  const char* const seed = std::getenv("VPMM_SEED");
  return seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10);
}

TEST(ArenaProperty, random_operations_agree_with_a_model_of_single_grains) {
  const std::uint64_t first = first_seed();
  for (std::uint64_t seed = first; seed < first + 40; ++seed) {
    Model model(seed);
    for (int i = 0; i < 1500; ++i) {
      if (seed % 3 == 0 && i == 700) model.pin();
      const std::string wrong = model.step();
      ASSERT_EQ(wrong, "") << "step " << i << " of VPMM_SEED=" << seed
                           << " vpmm_test_arena: " << model.picture();
    }
  }
}

}  // namespace
}  // namespace vpmm::arena
