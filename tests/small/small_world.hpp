// SPDX-License-Identifier: Apache-2.0
// tests: a world whose requests below a page are cut from the pool's own pages, and what tests of
// it say.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "small/size_class.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {

using driver::Call;
using driver::CuResult;

// A size for each way to be served: a block of the first class, of the last, a span, the longest
// span, whole pages.
constexpr std::array<Bytes, 7> kSizes{100, 5000, 100 * kKiB, 200 * kKiB, kMiB, kPage, 4 * kPage};

// Figures that are not the same, as "name before -> after"; mistakes, and streams that became known
// by one, aside.
inline std::string changes(const observe::Statistics& before, const observe::Statistics& after) {
  const std::vector<std::string> aside{"caller_mistakes", "timelines"};
  std::string text;
  const auto compare = [&](const std::string& name, std::uint64_t was, std::uint64_t is) {
    if (was != is && std::find(aside.begin(), aside.end(), name) == aside.end())
      text += name + " " + std::to_string(was) + " -> " + std::to_string(is) + "; ";
  };
#define VPMM_STATISTIC(name, kind, meaning) compare(#name, before.name, after.name);
#include "observe/statistics.def"
#undef VPMM_STATISTIC
  return text;
}

// The policies of chunks there are; requests below a page are served alike under both.
inline WorldOptions options_of(bool has_page_chunks) {
  return has_page_chunks ? page_world() : page_by_page_world();
}
inline std::string name_of_policy(const ::testing::TestParamInfo<bool>& each) {
  return each.param ? "pages" : "adaptive";
}

// `then` spans behind what is queued on `first`, as by an event of the program's own.
inline void order(PoolWorld& world, StreamHandle first, StreamHandle then) {
  driver::EventHandle event{};
  ASSERT_EQ(world.sim().event_create(event), CuResult::success);
  ASSERT_EQ(world.sim().event_record(event, first), CuResult::success);
  ASSERT_EQ(world.sim().stream_wait_event(then, event), CuResult::success);
  ASSERT_EQ(world.sim().event_destroy(event), CuResult::success);
}

// After a reset by others: the context is alive again and current.
inline void enter_again(PoolWorld& world) {
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().device_primary_ctx_retain(0, context), CuResult::success);
  ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
}

class SmallTest : public ::testing::TestWithParam<bool> {
 protected:
  PoolWorld world{options_of(GetParam())};
  StreamHandle a = world.stream();
  StreamHandle b = world.stream();

  // Leaves one allocation of the size in the cache of the stream, so that the next call is warm.
  void warm(Bytes bytes, StreamHandle stream) {
    world.deallocate(world.allocate(bytes, stream), stream);
    world.deallocate(world.allocate(bytes, stream), stream);
  }
  std::uint64_t events() {
    return world.calls().count(Call::event_record) + world.calls().count(Call::ctx_record_event);
  }
};

}  // namespace vpmm::test
