// SPDX-License-Identifier: Apache-2.0
// pool: requests and callers of which nothing was said.
#include "pool/request.hpp"

#include <gtest/gtest.h>

namespace vpmm::pool {
namespace {

TEST(Request, of_bytes_alone_is_plain_and_of_anything_else_is_not) {
  EXPECT_TRUE((Request{100, 256, driver::kLegacyStream}.is_plain()));
  Request changed;
  changed.tag = 1;
  EXPECT_FALSE(changed.is_plain());
  changed = {};
  changed.library = 1;
  EXPECT_FALSE(changed.is_plain());
  changed = {};
  changed.one_chunk = true;
  EXPECT_FALSE(changed.is_plain());
  changed = {};
  changed.arena = ArenaId{1};
  EXPECT_FALSE(changed.is_plain());
}

TEST(Request, names_nothing_by_default) {
  const Request request;
  EXPECT_EQ(request.bytes, 0u);
  EXPECT_EQ(request.alignment, 0u) << "the default";
  EXPECT_FALSE(request.stream.has_value());
  EXPECT_EQ(request.tag + request.library + request.stack + request.guard_stack, 0u);
  EXPECT_FALSE(request.is_guarded);
}

TEST(Caller, without_a_stream_owns_nothing_and_cannot_queue) {
  Caller caller;
  EXPECT_FALSE(caller.own().has_value());
  EXPECT_FALSE(caller.may_queue());
  EXPECT_EQ(caller.capture, 0u) << "in none";
  EXPECT_EQ(caller.guard_stack, 0u) << "not known";
  time::Timeline timeline;
  timeline.id = time::TimelineId{7};
  caller.timeline = &timeline;
  caller.stream = driver::kLegacyStream;
  EXPECT_EQ(caller.own(), timeline.id);
  EXPECT_TRUE(caller.may_queue());
  for (const Standing standing : {Standing::capturing, Standing::blocked}) {
    caller.standing = standing;
    EXPECT_FALSE(caller.own().has_value()) << "no more";
    EXPECT_FALSE(caller.may_queue());
  }
}

}  // namespace
}  // namespace vpmm::pool
