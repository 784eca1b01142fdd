// SPDX-License-Identifier: Apache-2.0
// tests/driver: a decorator without hooks changes nothing.
#include "driver/forwarding.hpp"

#include <gtest/gtest.h>

#include "driver/fake_driver.hpp"

namespace vpmm::driver {
namespace {

TEST(ForwardingDriver, every_call_reaches_the_same_call_of_the_inner_driver_once) {
  FakeDriver fake;
  ForwardingDriver driver(fake);
  for (const Call call : every_call()) {
    fake.calls.clear();
    fake.answer = CuResult{static_cast<int>(call) + 1};
    EXPECT_EQ(invoke(driver, call), fake.answer) << to_string(call);
    ASSERT_EQ(fake.calls.size(), 1u) << to_string(call);
    EXPECT_EQ(fake.calls.front(), call) << "forwarded as " << to_string(fake.calls.front());
  }
}

TEST(ForwardingDriver, what_is_no_cuda_call_comes_from_the_inner_driver) {
  FakeDriver fake;
  ForwardingDriver driver(fake);
  fake.clock_ns = 42;
  EXPECT_STREQ(driver.name(), "fake");
  EXPECT_EQ(driver.now_ns(), 42u);
  EXPECT_FALSE(driver.has(fake.missing));
  EXPECT_TRUE(driver.has(Call::mem_map));
  EXPECT_EQ(driver.memory_observer(), nullptr);
}

}  // namespace
}  // namespace vpmm::driver
