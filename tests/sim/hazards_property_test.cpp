// SPDX-License-Identifier: Apache-2.0
// tests/sim: the hazard checker against a model that compares every pair of accesses.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "sim/sim_fixture.hpp"

namespace vpmm::driver::sim {
namespace {

constexpr std::size_t kStreams = 5;  // 0: the legacy stream; 1 and 2 block; 3 and 4 do not
constexpr Bytes kMemory = 4 * kMiB;

// Everything as sets of accesses: slow, and hard to get wrong.
class Model {
 public:
  // True when an earlier access conflicts and is not ordered before this one.
  bool access(std::size_t stream, Bytes begin, Bytes end, MemoryAccess::Kind kind) {
    merge(known_[stream], host_);
    take_implicit_order(stream);
    bool is_hazard = false;
    for (std::size_t i = 0; i < accesses_.size(); ++i) {
      const Access& other = accesses_[i];
      const bool both_read =
          kind == MemoryAccess::Kind::read && other.kind == MemoryAccess::Kind::read;
      if (both_read || other.end <= begin || end <= other.begin) continue;
      if (known_[stream].count(i) == 0) is_hazard = true;
    }
    known_[stream].insert(accesses_.size());
    accesses_.push_back({begin, end, kind});
    return is_hazard;
  }
  void wait(std::size_t first, std::size_t waiting) {
    merge(known_[first], host_);
    take_implicit_order(first);
    merge(known_[waiting], host_);
    take_implicit_order(waiting);
    merge(known_[waiting], known_[first]);
  }
  void synchronise(std::size_t stream) {
    merge(host_, known_[stream]);
    if (stream == 0) {
      merge(host_, known_[1]);
      merge(host_, known_[2]);
    }
  }

 private:
  struct Access {
    Bytes begin;
    Bytes end;
    MemoryAccess::Kind kind;
  };
  using Known = std::set<std::size_t>;
  static void merge(Known& into, const Known& from) { into.insert(from.begin(), from.end()); }
  void take_implicit_order(std::size_t stream) {
    if (stream == 0) {
      merge(known_[0], known_[1]);
      merge(known_[0], known_[2]);
    } else if (stream <= 2) {
      merge(known_[stream], known_[0]);
    }
  }

  std::vector<Access> accesses_;
  Known known_[kStreams];  // accesses ordered before the stream's next operation
  Known host_;
};

class Program {
 public:
  explicit Program(std::uint64_t seed)
      : random_(seed),
        sim_(Sim::with_schedule(Schedule::random, seed)),
        memory_(sim_.memory(kMemory)) {
    streams_ = {kLegacyStream, sim_.stream(StreamFlags::blocking),
                sim_.stream(StreamFlags::blocking), sim_.stream(), sim_.stream()};
  }
  // Runs until the model sees the first hazard; the checker must see exactly that one.
  void run() {
    for (int i = 0; i < 300; ++i) {
      const std::uint64_t what = draw(100);
      if (what < 45) {
        if (access()) return;
      } else if (what < 55) {
        if (burst()) return;
      } else if (what < 90) {
        wait();
      } else {
        synchronise();
      }
      ASSERT_EQ(sim_.driver.hazard_count(), 0U) << "step " << i << ": " << sim_.hazards();
    }
  }

 private:
  std::uint64_t draw(std::uint64_t below) { return random_() % below; }
  std::size_t draw_stream() { return draw(kStreams); }
  bool access() {
    const std::size_t stream = draw_stream();
    // Mostly small and in few places, so that accesses meet; now and then across pages.
    const Bytes place = draw(2) == 0 ? 0 : 32 * 1024;
    const Bytes begin =
        draw(4) == 0 ? draw(kMemory - 64) : draw(8) * kMiB / 2 + place + draw(16) * 32;
    const Bytes size = std::min(kMemory - begin, draw(20) == 0 ? 1 + draw(kMemory) : 1 + draw(64));
    const auto kind = draw(3) == 0 ? MemoryAccess::Kind::write : MemoryAccess::Kind::read;
    return access(stream, begin, size, kind);
  }
  // True when this was the first hazard.
  bool access(std::size_t stream, Bytes begin, Bytes size, MemoryAccess::Kind kind) {
    const bool expected = model_.access(stream, begin, begin + size, kind);
    ok(sim_.driver.launch({"k", 0, {{{memory_.begin + begin, size}, kind}}, {}}, streams_[stream]));
    if (!expected) return false;
    EXPECT_EQ(sim_.driver.hazard_count() == 0, false) << "the checker missed a hazard";
    return true;
  }
  // Many writes where no other stream bursts: pages with many segments.
  bool burst() {
    const std::size_t stream = draw_stream();
    const Bytes step = kMemory / 64;
    for (Bytes i = 0; i < 64; ++i) {
      const Bytes begin = i * step + 32 * 1024 + (stream * 16 + draw(16)) * 8;
      if (access(stream, begin, 8, MemoryAccess::Kind::write)) return true;
    }
    return false;
  }
  void wait() {
    const std::size_t first = draw_stream();
    const std::size_t waiting = draw_stream();
    if (first == waiting) return;
    model_.wait(first, waiting);
    sim_.order(streams_[first], streams_[waiting]);
  }
  void synchronise() {
    const std::size_t stream = draw_stream();
    if (draw(2) == 0) {
      ok(sim_.driver.stream_synchronize(streams_[stream]));
      model_.synchronise(stream);
    } else if (sim_.driver.stream_query(streams_[stream]) == CuResult::success) {
      model_.synchronise(stream);
    }
  }

  std::mt19937_64 random_;
  Sim sim_;
  AddressRange memory_;
  std::vector<StreamHandle> streams_;
  Model model_;
};

TEST(HazardsProperty, the_checker_agrees_with_comparing_every_pair) {
  const char* const fixed = std::getenv("VPMM_TEST_SEED");
  const std::uint64_t first = fixed != nullptr ? std::stoull(fixed) : 1;
  const std::uint64_t last = fixed != nullptr ? first : 400;
  for (std::uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("replay with: VPMM_TEST_SEED=" + std::to_string(seed) +
                 " vpmm_test_sim --gtest_filter='HazardsProperty.*'");
    Program(seed).run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace vpmm::driver::sim
