// SPDX-License-Identifier: Apache-2.0
// ipc tests: the exporter's thread finishes later what host memory did not suffice for, and says so
// once.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/host_memory.hpp"
#include "ipc/memory.hpp"
#include "ipc/process.hpp"
#include "observe/log.hpp"

namespace vpmm::ipc_test::retry_test {
namespace {

constexpr std::uint64_t kSeed = 3;
constexpr std::uint64_t kLarge = kMiB;  // more than an exchange of messages takes

// Nothing is promised to any call of the library from here on.
std::array<std::optional<HostPromise>, 64> promises_of_actor;

void exhaust_host_memory(Parcel& parcel) {
  fail_large_allocations(kLarge);
  for (std::optional<HostPromise>& promise : promises_of_actor)
    if (promise.emplace(); !promise->is_kept()) return;
  parcel.status = VPMM_ERROR_DRIVER_FAILED;
}

void end_exhaustion(Parcel&) {
  for (std::optional<HostPromise>& promise : promises_of_actor) promise.reset();
  fail_large_allocations(0);
}

std::atomic<std::uint64_t> failures_in_actor{0};

TEST(IpcRetry, a_lease_that_cannot_end_for_want_of_host_memory_ends_later_by_itself) {
  Process exporter;
  Process importer;
  const Shared kept = exporter.allocate_shared(kMiB, kSeed);
  const Shared shared = exporter.allocate_shared(3 * kMiB, kSeed);
  const Address open = importer.open(kept.handle);  // so that no connection ends
  const Address opened = importer.open(shared.handle);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_ok(exporter.call([](Parcel& parcel) {
    observe::set_log_sink([](observe::LogLevel level, std::string_view message) {
      const bool is_it = message.find("sharing memory with other processes failed") == 0;
      if (is_it && level == observe::LogLevel::error) ++failures_in_actor;
    });
    exhaust_host_memory(parcel);
  }));
  const auto failures = [&] {
    return exporter.call([](Parcel& parcel) { parcel.words[0] = failures_in_actor; }).words[0];
  };
  importer.close(opened);
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (failures() == 0) ASSERT_LT(std::chrono::steady_clock::now(), give_up);
  EXPECT_LT(exporter.share_of_a_core(), 0.125) << "while it tries again and again";
  EXPECT_EQ(failures(), 1U);
  exporter.call(end_exhaustion);
  expect_leases_to_end(exporter);
  EXPECT_LT(exporter.share_of_a_core(), 0.125) << "with nothing left to do";
  importer.close(open);
}

}  // namespace
}  // namespace vpmm::ipc_test::retry_test
