// context: memory of captures with a driver that cannot tell of the end of their graphs.
#include <gtest/gtest.h>

#include <string>

#include "driver/forwarding.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using driver::Call;
using driver::CuResult;

class WithoutUserObjects final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  bool has(Call call) const override {
    return call != Call::user_object_create && ForwardingDriver::has(call);
  }
};

TEST(CaptureWithoutUserObjects, keeps_its_memory_until_it_is_released) {
  driver::sim::SimDriver sim;
  WithoutUserObjects old(sim);
  driver::ContextHandle context{};
  ASSERT_EQ(sim.init(), CuResult::success);
  ASSERT_EQ(sim.device_primary_ctx_retain(0, context), CuResult::success);
  ASSERT_EQ(sim.ctx_set_current(context), CuResult::success);
  const auto created = context::Context::create(old, 0, page_world().config);
  ASSERT_TRUE(created.ok()) << message_of(created);
  context::Context& pool = *created.value();
  StreamHandle stream{};
  ASSERT_EQ(sim.stream_create(StreamFlags::non_blocking, stream), CuResult::success);
  ASSERT_EQ(sim.stream_begin_capture(stream, driver::CaptureMode::relaxed), CuResult::success);
  driver::CaptureInfo info;
  ASSERT_EQ(sim.stream_get_capture_info(stream, info), CuResult::success);
  const auto made = pool.allocate({4 * kPage, 0, stream});
  ASSERT_TRUE(made.ok()) << message_of(made);
  ASSERT_TRUE(pool.deallocate(made.value(), stream).ok());
  driver::GraphHandle graph{};
  ASSERT_EQ(sim.stream_end_capture(stream, graph), CuResult::success);
  ASSERT_EQ(sim.graph_destroy(graph), CuResult::success);
  const auto next_on = [&](pool::Stream on) {
    EXPECT_TRUE(pool.streams().synchronize().ok());
    const auto next = pool.allocate({4 * kPage, 0, on});
    EXPECT_TRUE(next.ok()) << message_of(next);
    EXPECT_TRUE(pool.deallocate(next.value(), on).ok());
    return next.value();
  };
  ASSERT_TRUE(pool.allocate({kPage, 0, stream}).ok());  // sees that the capture is over
  EXPECT_NE(next_on(stream), made.value());
  EXPECT_NE(next_on(std::nullopt), made.value());
  const auto mapped_after_trim = [&] {
    EXPECT_TRUE(pool.limits().trim(0).ok());
    return pool.reports().statistics().mapped_bytes;
  };
  EXPECT_EQ(mapped_after_trim(), 5 * kPage);
  const auto released = pool.streams().capture_release(info.id);
  EXPECT_TRUE(released.ok()) << message_of(released);
  EXPECT_TRUE(pool.streams().synchronize().ok());
  EXPECT_EQ(mapped_after_trim(), kPage);
  expect_error(
      pool.streams().capture_release(info.id), ErrorCode::invalid_argument,
      {"no memory is kept for capture " + std::to_string(static_cast<std::uint64_t>(info.id))});
  EXPECT_EQ(pool.reports().validate(), "");
  EXPECT_EQ(sim.hazard_count(), 0u);
}

}  // namespace
}  // namespace vpmm::test
