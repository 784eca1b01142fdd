// SPDX-License-Identifier: Apache-2.0
// region tests: random and exhaustive sequences of operations, the index compared with the naive
// model after each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "region/region_operation.hpp"

namespace vpmm::region {
namespace {

// Draws operations that the state of the model allows.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}

  std::uint64_t below(std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_);
  }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

  // One to three reservations; some touch, some lie apart, added in any order.
  Vector<PageSpan> reservations() {
    Vector<PageSpan> all;
    std::uint64_t first = below(4);
    const std::uint64_t count = 1 + below(3);
    while (all.size() < count) {
      all.push_back({first, 1 + below(14)});
      first += all.back().count + (one_in(2) ? 0 : below(5));
    }
    std::shuffle(all.begin(), all.end(), random_);
    return all;
  }

  Operation operation(const ReferenceModel& model) {
    if (one_in(8)) return Advance{timeline(), advance_to()};
    const Vector<ModelRegion> regions = model.regions();
    if (one_in(16)) return reserve(regions);
    const std::size_t at = below(regions.size());
    const ModelRegion& region = regions[at];
    const bool is_idle = region.state == RegionState::hole ||
                         (region.state == RegionState::free && region.parts.empty());
    if (is_idle && regions.size() > 1 && model.is_reservation(region.span) && one_in(2))
      return Unreserve{region.span};
    switch (region.state) {
      case RegionState::hole:
      case RegionState::zombie: return Detach{part(region.span)};
      case RegionState::allocated: return Release{page_of(region.span), stamp()};
      case RegionState::free:
        if (one_in(3)) return Detach{part(region.span)};
        return Allocate{part(region.span), 1 + below(region.span.count * kPage)};
      case RegionState::in_flight: break;
    }
    const bool has_front =
        at > 0 && regions[at - 1].state == RegionState::in_flight &&
        regions[at - 1].span.first + regions[at - 1].span.count == region.span.first &&
        model.one_reservation(region.span.first - 1, region.span.first);
    return landing(region.span, has_front);
  }

  Twins::Question question() {
    Twins::Question fit{1 + below(10), std::uint64_t{1} << below(4), std::nullopt};
    if (!one_in(4)) fit.own = timeline();
    return fit;
  }

 private:
  // In a gap between two reservations, or behind the last.
  Operation reserve(const Vector<ModelRegion>& regions) {
    std::uint64_t first = regions.back().span.first + regions.back().span.count;
    std::uint64_t count = 1 + below(6);
    for (std::size_t i = 0; i + 1 < regions.size(); ++i) {
      const std::uint64_t end = regions[i].span.first + regions[i].span.count;
      if (end == regions[i + 1].span.first || one_in(2)) continue;
      first = end;
      count = 1 + below(regions[i + 1].span.first - end);
    }
    return Reserve{{first, count}};
  }

  Operation landing(PageSpan span, bool has_front) {
    switch (below(8)) {
      case 0: return AttachHole{page_of(span)};
      case 1: return AttachZombie{page_of(span), stamp()};
      case 2: return AttachAllocated{page_of(span), 1 + below(span.count * kPage)};
      case 3: return TakeBack{page_of(span)};
      case 4:
        if (span.count > 1) return Split{span.first + 1 + below(span.count - 1)};
        break;
      case 5:
        if (has_front) return Join{span.first};
        break;
      default: break;
    }
    return AttachFree{page_of(span), stamp()};
  }

  std::uint64_t page_of(PageSpan span) { return span.first + below(span.count); }
  PageSpan part(PageSpan span) {
    if (one_in(3)) return span;
    const std::uint64_t skipped = one_in(2) ? 0 : below(span.count);
    return {span.first + skipped, 1 + below(span.count - skipped)};
  }
  time::TimelineId timeline() { return time::TimelineId{1 + below(3)}; }
  // Mostly numbers that grow, as a pool's do, now and then an old one.
  std::uint64_t number() { return one_in(10) ? 1 + below(now_) : ++now_; }
  std::uint64_t advance_to() { return now_ - below(std::min<std::uint64_t>(now_, 12)); }
  time::Stamp stamp() {
    if (one_in(4)) return complete();
    const time::StampPart first{timeline(), number()};
    if (!one_in(3)) return time::Stamp(first);
    return {first, time::StampPart{timeline(), number()}};
  }

  std::mt19937_64 random_;
  std::uint64_t now_ = 1;
};

// Runs one seed; a failure tells the difference, the command that replays it, and the operations as
// code.
testing::AssertionResult agrees_with_the_model(std::uint64_t seed, int operations) {
  Dice dice(seed);
  // So that the same numbers of pages stand in small and in large structures.
  const Bytes units[] = {kPage, kPage / 512, kPage / 2048};
  Twins twins(dice.reservations(), units[seed % 3]);
  for (int i = 0; i < operations; ++i) {
    twins.run(dice.operation(twins.model()));
    const std::string difference = twins.difference(dice.question());
    if (difference.empty()) continue;
    return testing::AssertionFailure()
           << difference << "\nReplay: VPMM_SEED=" << seed << " " << program_invocation_name
           << " --gtest_filter="
           << testing::UnitTest::GetInstance()->current_test_info()->test_suite_name() << ".*\n"
           << twins.history();
  }
  return testing::AssertionSuccess();
}

TEST(RegionIndexProperty, random_operations_leave_the_index_as_the_naive_model_says) {
  constexpr int kOperations = 250;
  if (const char* const seed = std::getenv("VPMM_SEED")) {
    EXPECT_TRUE(agrees_with_the_model(std::strtoull(seed, nullptr, 10), kOperations));
    return;
  }
  for (std::uint64_t seed = 1; seed <= 1000; ++seed)
    ASSERT_TRUE(agrees_with_the_model(seed, kOperations));
}

// All operations that a state of the model allows, with a handful of stamps.
Vector<Operation> all_operations(const ReferenceModel& model) {
  const time::Stamp stamps[] = {complete(), on(A, 1), on(A, 2), on(B, 1), on(A, 1, B, 1)};
  Vector<Operation> all{Advance{A, 1}, Advance{A, 2}, Advance{B, 1}};
  const Vector<ModelRegion> regions = model.regions();
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const auto [first, count] = regions[i].span;
    const RegionState state = regions[i].state;
    if (state == RegionState::allocated)
      for (const time::Stamp& stamp : stamps) all.emplace_back(Release{first, stamp});
    if (state == RegionState::in_flight) {
      all.insert(all.end(), {AttachHole{first}, AttachAllocated{first, count}, TakeBack{first}});
      for (const time::Stamp& stamp : stamps) all.emplace_back(AttachFree{first, stamp});
      for (const time::Stamp& stamp : stamps) all.emplace_back(AttachZombie{first, stamp});
      for (std::uint64_t at = first + 1; at < first + count; ++at) all.emplace_back(Split{at});
      if (i > 0 && regions[i - 1].state == RegionState::in_flight) all.emplace_back(Join{first});
    }
    if (state == RegionState::allocated || state == RegionState::in_flight) continue;
    for (std::uint64_t from = first; from < first + count; ++from) {
      for (std::uint64_t to = from + 1; to <= first + count; ++to) {
        all.emplace_back(Detach{{from, to - from}});
        if (state == RegionState::free) all.emplace_back(Allocate{{from, to - from}, to - from});
      }
    }
  }
  return all;
}

// The state without what cannot matter later: of ages only the order.
std::string canonical(const ReferenceModel& model) {
  std::set<std::uint64_t> ages;
  for (const ModelRegion& region : model.regions()) ages.insert(region.age);
  std::string text;
  for (const ModelRegion& region : model.regions()) {
    text += std::to_string(region.span.count) + "/" +
            std::to_string(static_cast<int>(region.state)) + "/" +
            std::to_string(std::distance(ages.begin(), ages.find(region.age)));
    for (const auto& [timeline, sequence] : region.parts)
      text += "/" + std::to_string(static_cast<std::uint64_t>(timeline)) + ":" +
              std::to_string(sequence);
    text += ";";
  }
  return text;
}

using Path = Vector<Operation>;

// Runs `path` and every operation possible after it; adds the paths to states not seen before to
// `next`.
testing::AssertionResult extend(const Path& path, std::uint64_t page_count,
                                std::set<std::string>& seen, Vector<Path>& next) {
  const auto walk = [&] {
    auto twins = std::make_unique<Twins>(Vector<PageSpan>{{0, page_count}});
    for (const Operation& operation : path) twins->run(operation);
    return twins;
  };
  for (const Operation& operation : all_operations(walk()->model())) {
    const auto twins = walk();
    twins->run(operation);
    for (std::uint64_t count = 1; count <= page_count; ++count) {
      const std::string difference = twins->difference({count, count, A});
      if (!difference.empty())
        return testing::AssertionFailure() << difference << "\n" << twins->history();
    }
    if (!seen.insert(canonical(twins->model())).second) continue;
    next.push_back(path);
    next.back().push_back(operation);
  }
  return testing::AssertionSuccess();
}

// Every sequence of at most `depth` operations, those that lead to the same state taken as one.
void try_every_sequence(std::uint64_t page_count, int depth) {
  std::set<std::string> seen;
  Vector<Path> paths{{}};
  for (int length = 1; length <= depth; ++length) {
    Vector<Path> next;
    for (const Path& path : paths) ASSERT_TRUE(extend(path, page_count, seen, next));
    paths = std::move(next);
  }
  EXPECT_GT(seen.size(), 500U);
}

TEST(RegionIndexExhaustive, every_short_sequence_on_two_pages_agrees_with_the_model) {
  try_every_sequence(2, 9);
}
TEST(RegionIndexExhaustive, every_short_sequence_on_four_pages_agrees_with_the_model) {
  try_every_sequence(4, 5);
}

}  // namespace
}  // namespace vpmm::region
