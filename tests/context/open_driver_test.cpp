// SPDX-License-Identifier: Apache-2.0
// context: which driver is opened for which setting.
#include "context/open_driver.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "process/process_gate.hpp"

namespace vpmm::context {
namespace {

bool cuda_is_usable() { return open_driver(settings::DriverKind::cuda).ok(); }

TEST(OpenDriver, sim_is_the_simulator) {
  const auto driver = open_driver(settings::DriverKind::sim);
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  EXPECT_STREQ(driver.value()->name(), "sim");
}

TEST(OpenDriver, automatic_is_cuda_or_its_error_never_silently_the_simulator) {
  const auto automatic = open_driver(settings::DriverKind::automatic);
  const auto cuda = open_driver(settings::DriverKind::cuda);
  ASSERT_EQ(automatic.ok(), cuda.ok());
  if (cuda.ok()) {
    EXPECT_STREQ(automatic.value()->name(), "cuda");
  } else {
    EXPECT_EQ(automatic.error().message, cuda.error().message);
  }
}

TEST(OpenDriver, the_error_without_a_gpu_names_the_way_to_the_simulator) {
  if (cuda_is_usable()) GTEST_SKIP() << "this machine has a GPU, so there is no error";
  const auto driver = open_driver(settings::DriverKind::cuda);
  EXPECT_NE(driver.error().message.find("VPMM_DRIVER=sim"), std::string::npos)
      << driver.error().message;
}

TEST(OpenDriver, automatic_simulates_without_a_gpu_only_when_asked_to) {
  const auto driver = open_driver(settings::DriverKind::automatic, OnMissingCuda::simulate);
  ASSERT_TRUE(driver.ok()) << driver.error().message;
  EXPECT_STREQ(driver.value()->name(), cuda_is_usable() ? "cuda" : "sim");
}

// In another process, where CUDA has not looked for GPUs yet.
TEST(OpenDriver, automatic_with_all_gpus_hidden_simulates_only_when_asked_to) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
        using settings::DriverKind;
        const auto asked = open_driver(DriverKind::automatic, OnMissingCuda::simulate);
        const bool is_simulated = asked && std::string(asked.value()->name()) == "sim";
        const bool is_refused = !open_driver(DriverKind::automatic) &&
                                !open_driver(DriverKind::cuda) &&
                                !open_driver(DriverKind::cuda, OnMissingCuda::simulate);
        std::_Exit((is_simulated ? 0 : 1) + (is_refused ? 0 : 2));
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(OpenDriver, cuda_never_becomes_the_simulator) {
  const auto driver = open_driver(settings::DriverKind::cuda, OnMissingCuda::simulate);
  EXPECT_EQ(driver.ok(), cuda_is_usable());
}

TEST(ProcessDriver, is_opened_once) {
  const auto first = process_driver(settings::DriverKind::sim);
  const auto second = process_driver(settings::DriverKind::sim);
  ASSERT_TRUE(first.ok()) << first.error().message;
  ASSERT_TRUE(second.ok()) << second.error().message;
  EXPECT_EQ(first.value(), second.value());
}

TEST(ProcessDriver, a_failure_is_not_kept_as_if_it_were_a_driver) {
  if (cuda_is_usable()) GTEST_SKIP() << "this machine has a GPU, so there is no failure";
  EXPECT_FALSE(process_driver(settings::DriverKind::cuda).ok());
  EXPECT_FALSE(process_driver(settings::DriverKind::cuda).ok());
}

TEST(ProcessDriver, finds_the_gate_closed_in_handlers_of_exit_that_were_there_before) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atexit([] { std::_Exit(process::is_ending() ? 0 : 1); });
        static_cast<void>(process_driver(settings::DriverKind::sim));
        std::exit(2);
      },
      ::testing::ExitedWithCode(0), "");
}

// A later call registers none that would run before.
TEST(ProcessDriver, leaves_the_gate_open_for_handlers_of_exit_that_came_after_its_first_call) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        static_cast<void>(process_driver(settings::DriverKind::sim));
        std::atexit([] { std::_Exit(process::is_ending() ? 1 : 0); });
        static_cast<void>(process_driver(settings::DriverKind::sim));
        std::exit(2);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(ProcessDriver, of_cuda_is_never_the_simulator_that_was_opened_before) {
  const auto sim = process_driver(settings::DriverKind::sim);
  ASSERT_TRUE(sim.ok()) << sim.error().message;
  for (const settings::DriverKind kind :
       {settings::DriverKind::cuda, settings::DriverKind::automatic}) {
    const auto cuda = process_driver(kind);
    EXPECT_EQ(cuda.ok(), cuda_is_usable());
    if (cuda.ok()) {
      EXPECT_STREQ(cuda.value()->name(), "cuda");
    }
  }
  EXPECT_EQ(process_driver(settings::DriverKind::sim).value(), sim.value());
}

}  // namespace
}  // namespace vpmm::context
