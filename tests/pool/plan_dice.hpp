// SPDX-License-Identifier: Apache-2.0
// pool tests: random states of a pool and random requests, which print themselves as code.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/message.hpp"
#include "pool/plan_world.hpp"

namespace vpmm::pool {

// Draws a state, which it prints as the calls that make it, and asks.
class Dice {
 public:
  Dice(std::uint64_t seed, PlanWorld& world) : random_(seed), world_(world) {}

  void draw_state() {
    Bytes first = below(4);
    for (std::uint64_t regions = 1 + below(8); regions > 0; --regions) {
      if (one_in(3)) first += one_in(3) ? 60 : below(5);  // a hole
      const Vector<Bytes> sizes = draw_chunks();
      Bytes pages = 0;
      std::string text;
      for (const Bytes size : sizes) {
        pages += size;
        text += (text.empty() ? "" : ", ") + std::to_string(size);
      }
      if (first + pages > 450) break;  // 450 stay a hole, so no address space is short
      const auto [stamp, stamp_text] = draw_stamp();
      world_.map_free(first, sizes, stamp);
      say("map_free({}, {{{}}}{});", first, text, stamp_text);
      mapped_.push_back(PlanWorld::pages(first, pages));
      if (one_in(8)) move_from(first);
      first += pages;
    }
    for (const AddressRange& range : mapped_)
      if (!one_in(3)) draw_use(range);
  }

  Ask draw_ask() {
    static constexpr Bytes kAlignments[] = {1, 1, 2, 4, 8};
    const Bytes grain = world_.tuning.grain;
    const bool has_grains = grain < kPage;
    Ask ask = world_.ask(log_uniform(one_in(2) ? 250 : 20));
    if (has_grains && one_in(2)) ask.size += below(kPage / grain) * grain;
    ask.alignment = one_in(3) ? kAlignments[below(5)] * kPage : kAlignments[below(5)] * grain;
    if (one_in(4)) ask.own.reset();
    ask.takes_waiting = ask.own && one_in(3);
    ask.own_first = ask.own && one_in(4);
    if (one_in(3)) ask.growth_room = below(200) * kPage;
    if (one_in(2)) ask.early_growth = below(100) * kPage;
    if (has_grains) ask.chunk = kPage << below(7);
    ask.goes_low = one_in(5);
    ask.spares_chunks = one_in(3);
    if (one_in(2)) return ask;
    ask.chunks = one_in(3) ? Chunks::one : Chunks::own;
    ask.size = round_up(ask.size, kPage);
    if (ask.chunks == Chunks::one) ask.chunk = ask.size;
    return ask;
  }
  const std::string& code() const { return code_; }

 private:
  std::uint64_t below(std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_);
  }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  Bytes log_uniform(Bytes most) {
    const double exponent =
        std::uniform_real_distribution<double>(0, std::log2(static_cast<double>(most)))(random_);
    return static_cast<Bytes>(std::exp2(exponent));
  }
  template <typename... T>
  void say(fmt::format_string<const T&...> format, const T&... values) {
    code_ += "  " + fmt::format(format, values...) + "\n";
  }

  Vector<Bytes> draw_chunks() {
    Vector<Bytes> sizes(1 + below(4), 1);
    if (world_.tuning.chunk_max == kPage) return sizes;
    const Bytes most = one_in(3) ? 64 : 8;
    for (Bytes& size : sizes) size = log_uniform(most);
    return sizes;
  }
  std::pair<time::Stamp, std::string> draw_stamp() {
    using Closed = PlanWorld::Closed;
    switch (below(6)) {
      case 0:
      case 1: return {world_.pending(world_.own), ", pending(own)"};
      case 2: return {world_.pending(world_.other), ", pending(other)"};
      case 3:
        if (one_in(2)) return {world_.pending(world_.third), ", pending(third)"};
        return {world_.pending(world_.third, Closed::no), ", pending(third, Closed::no)"};
      default: return {{}, ""};
    }
  }
  void move_from(Bytes first) {
    const Bytes old = 900 + moved_;
    const Bytes pages = world_.chunks.around(PlanWorld::page(first)).chunk->size / kPage;
    if (old + pages > 1000) return;
    world_.moved_from(old, first);
    say("moved_from({}, {});", old, first);
    moved_ += pages;
  }
  // Allocations that begin and end anywhere, of which some are free again.
  void draw_use(AddressRange range) {
    const Bytes grain = world_.tuning.grain;
    const Bytes base = (range.begin - PlanWorld::kStart) / grain;
    const Bytes all = range.size / grain;
    for (Bytes first = one_in(2) ? 0 : below(all), count = 0; first < all; first += count) {
      count = std::min(all - first, one_in(2) ? kPage / grain * (1 + below(8)) : 1 + below(200));
      if (one_in(3)) continue;  // free as it was
      const AddressRange part = world_.grains(base + first, count);
      if (!world_.around(part.begin)->range.contains(part)) continue;
      world_.used(part);
      say("used(grains({}, {}));", base + first, count);
      if (!one_in(3)) continue;
      const auto [stamp, stamp_text] = draw_stamp();
      world_.freed(part.begin, stamp);
      say("freed(grains({}, {}).begin{});", base + first, count, stamp_text);
    }
  }

  std::mt19937_64 random_;
  PlanWorld& world_;
  std::string code_;
  std::vector<AddressRange> mapped_;
  Bytes moved_ = 0;
};

inline std::string text_of(const Ask& ask, Bytes grain) {
  static constexpr const char* kChunks[] = {"", "own chunks, ", "one chunk, "};
  return message_of(
      "size {}, alignment {} grains, {}{}{}{}{}growth_room {}, early_growth {}, chunk {}",
      ask.size / grain, ask.alignment / grain, kChunks[static_cast<int>(ask.chunks)],
      ask.own ? "own stream, " : "any stream, ", ask.takes_waiting ? "takes waiting, " : "",
      ask.own_first ? "own first, " : "", ask.goes_low ? "goes low, " : "", ask.growth_room / kPage,
      ask.early_growth / kPage, ask.chunk / kPage);
}

}  // namespace vpmm::pool
