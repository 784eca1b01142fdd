// SPDX-License-Identifier: Apache-2.0
// tests: a pool on a driver that cannot tell of the end of graphs.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "driver/forwarding.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {

class WithoutUserObjects final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  bool has(driver::Call call) const override {
    return call != driver::Call::user_object_create && ForwardingDriver::has(call);
  }
};

// With one chunk per page, and a stream.
struct WorldWithoutUserObjects {
  WorldWithoutUserObjects() {
    EXPECT_EQ(sim.init(), driver::CuResult::success);
    enter();
    auto created = context::Context::create(old, 0, page_world().config);
    EXPECT_TRUE(created.ok()) << message_of(created);
    pool = std::move(created.value());
    EXPECT_EQ(sim.stream_create(StreamFlags::non_blocking, stream), driver::CuResult::success);
  }
  // Makes the primary context current, anew after a reset.
  void enter() {
    EXPECT_EQ(sim.device_primary_ctx_retain(0, context), driver::CuResult::success);
    EXPECT_EQ(sim.ctx_set_current(context), driver::CuResult::success);
  }

  driver::sim::SimDriver sim;
  WithoutUserObjects old{sim};
  driver::ContextHandle context{};
  std::unique_ptr<context::Context> pool;
  StreamHandle stream{};
};

}  // namespace vpmm::test
