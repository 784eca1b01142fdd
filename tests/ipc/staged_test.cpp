// SPDX-License-Identifier: Apache-2.0
// ipc tests: openings and copies where a process has several devices, by peer access and through
// the host, and each driver call of a copy that fails.
#include "ipc/staged.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "driver/faulting.hpp"
#include "driver/sim/sim_driver.hpp"
#include "ipc/exporter.hpp"
#include "ipc/raw.hpp"
#include "settings/config.hpp"

namespace vpmm::ipc_test::staged_test {
namespace {

using driver::Call;
using driver::CuResult;

constexpr std::uint64_t kSeed = 17;
constexpr driver::DeviceOrdinal kTarget = 1;
constexpr Bytes kBounced = 16 * kMiB;  // at a time through the host

void must(bool holds) {
  if (!holds) std::abort();
}

// In a process with three devices, and a pool on the second one.
struct Staging {
  driver::sim::SimDriver sim;
  driver::FaultingDriver faults{sim};
  driver::ContextHandle context{};
  std::unique_ptr<context::Context> pool;

  explicit Staging(bool has_peer_access) : sim(options(has_peer_access)) {
    must(sim.init() == CuResult::success);
    must(sim.device_primary_ctx_retain(kTarget, context) == CuResult::success);
    must(sim.ctx_set_current(context) == CuResult::success);
    settings::Config config = settings::config_from_environment().value();
    config.chunk_max = 2 * kMiB;
    auto made = context::Context::create(faults, kTarget, config);
    must(made.ok());
    pool = std::move(made).value();
  }
  static driver::sim::SimOptions options(bool has_peer_access) {
    driver::sim::SimOptions three;
    three.device_count = 3;
    three.peer_access_supported = has_peer_access;
    return three;
  }
};

Staging& staging_of_actor(bool has_peer_access = true) {
  static auto* const staging = new Staging(has_peer_access);
  return *staging;
}

// All that a copy could leave behind. The pool keeps its chunks and events.
std::array<std::uint64_t, 7> left_in_actor() {
  Staging& staging = staging_of_actor();
  must(staging.pool->streams().synchronize().ok());
  must(staging.pool->limits().trim(0).ok());
  const driver::sim::Census census = staging.sim.census();
  bool is_home_open = true;
  must(staging.sim.device_primary_ctx_get_state(0, is_home_open) == CuResult::success);
  driver::ContextHandle current{};
  must(staging.sim.ctx_get_current(current) == CuResult::success);
  return {census.mappings,
          census.imports,
          census.streams,
          census.pinned,
          is_home_open ? 1U : 0U,
          current == staging.context ? 0U : 1U,
          staging.pool->reports().statistics().live_allocations};
}

// In: words[0], [1]: the call that fails, and which of them.
// Out: words[0]: the address; words[1]: how many failed; words[2]: how many there were.
void copy_here(Parcel& parcel) {
  Staging& staging = staging_of_actor();
  ipc::IpcHandle handle;
  handle.token = token_in(parcel.handle);
  std::copy_n(parcel.handle.device_uuid, handle.device.size(), handle.device.begin());
  driver::FaultPlan plan;
  plan.calls = {static_cast<Call>(parcel.words[0])};
  plan.nth = parcel.words[1];
  plan.result = CuResult::invalid_value;
  staging.faults.set_plan(plan);
  const Result<DevicePtr> copy = ipc::open_staged(*staging.pool, handle);
  staging.faults.clear_plan();
  staging.sim.ctx_set_current(staging.context);  // which a failed call may have left in place
  parcel.words = {copy ? to_integer(copy.value()) : 0, staging.faults.fired(),
                  staging.faults.counted()};
  if (copy) return;
  parcel.status = static_cast<vpmm_status>(copy.error().code);
  parcel.say(copy.error().message);
}

// In: words[0]: the device; -1: that of the memory. Out: words[0]: the address.
void open_here(Parcel& parcel) {
  ipc::IpcHandle handle;
  handle.token = token_in(parcel.handle);
  const auto device = static_cast<driver::DeviceOrdinal>(parcel.words[0]);
  const Result<DevicePtr> opened = ipc::Importer::of_process().open(
      staging_of_actor().faults, handle, device < 0 ? std::nullopt : std::optional(device));
  parcel.words[0] = opened ? to_integer(opened.value()) : 0;
  if (opened) return;
  parcel.status = static_cast<vpmm_status>(opened.error().code);
  parcel.say(opened.error().message);
}

class IpcStaged : public testing::TestWithParam<bool> {
 protected:
  IpcStaged() {
    Parcel parcel;
    parcel.words[0] = GetParam() ? 1 : 0;
    importer_.call([](Parcel& asked) { staging_of_actor(asked.words[0] != 0); }, parcel);
  }
  Parcel copy(const vpmm_ipc_handle& handle, Call failing = Call::mem_unmap,
              std::uint64_t nth = 1'000'000) {
    Parcel parcel;
    parcel.handle = handle;
    parcel.words = {static_cast<std::uint64_t>(failing), nth};
    return importer_.call(copy_here, parcel);
  }
  // The bytes of `ptr`, as the exporter's are, and gives it back.
  void expect_and_free(Address ptr, const Shared& shared, Bytes size) {
    for (Bytes at = 0; at < size; at += kMiB) {
      Parcel parcel;
      parcel.words = {ptr + at, std::min(kMiB, size - at)};
      const auto sum = [](driver::Driver& driver, Parcel& asked) {
        std::vector<unsigned char> bytes(asked.words[1]);
        must(driver.memcpy_device_to_host(bytes.data(), DevicePtr{asked.words[0]}, bytes.size()) ==
             CuResult::success);
        std::uint64_t hash = 0;
        for (const unsigned char byte : bytes) hash = hash * 31 + byte;
        asked.words[2] = hash;
      };
      static constexpr auto kSum = sum;
      const Parcel here =
          importer_.call([](Parcel& asked) { kSum(staging_of_actor().sim, asked); }, parcel);
      parcel.words[0] = shared.address + at;
      const Parcel there =
          exporter_.call([](Parcel& asked) { kSum(driver_of_actor(), asked); }, parcel);
      ASSERT_EQ(here.words[2], there.words[2]) << at;
    }
    Parcel parcel;
    parcel.words[0] = ptr;
    expect_ok(importer_.call(
        [](Parcel& asked) {
          must(staging_of_actor().pool->deallocate(DevicePtr{asked.words[0]}, std::nullopt).ok());
        },
        parcel));
  }
  std::array<std::uint64_t, 7> left() {
    const Parcel answer = importer_.call([](Parcel& parcel) {
      const auto all = left_in_actor();
      std::copy(all.begin(), all.end(), parcel.words.begin());
    });
    std::array<std::uint64_t, 7> all{};
    std::copy_n(answer.words.begin(), all.size(), all.begin());
    return all;
  }

  Parcel try_to_open(const vpmm_ipc_handle& handle, int device) {
    Parcel parcel;
    parcel.handle = handle;
    parcel.words[0] = static_cast<std::uint64_t>(device);
    return importer_.call(open_here, parcel);
  }
  bool is_context_active(int device) {
    Parcel parcel;
    parcel.words[0] = static_cast<std::uint64_t>(device);
    return importer_
               .call(
                   [](Parcel& asked) {
                     bool is_active = false;
                     must(staging_of_actor().sim.device_primary_ctx_get_state(
                              static_cast<int>(asked.words[0]), is_active) == CuResult::success);
                     asked.words[0] = is_active ? 1 : 0;
                   },
                   parcel)
               .words[0] != 0;
  }

  Process exporter_;
  Process importer_;
};

TEST_P(IpcStaged, memory_is_open_for_each_device_by_itself_and_its_context_is_let_go) {
  const Shared shared = exporter_.allocate_shared(3 * kMiB, kSeed);
  const Parcel at_home = try_to_open(shared.handle, 0);
  expect_ok(at_home);
  const Parcel elsewhere = try_to_open(shared.handle, 2);
  if (GetParam()) {
    expect_ok(elsewhere);
    EXPECT_NE(elsewhere.words[0], at_home.words[0]);
    EXPECT_EQ(try_to_open(shared.handle, 2).words[0], elsewhere.words[0]);
    importer_.close(elsewhere.words[0]);
    EXPECT_TRUE(is_context_active(2));
    importer_.close(elsewhere.words[0]);
  } else {
    expect_refused(elsewhere, VPMM_ERROR_UNSUPPORTED, "open a staged copy");
  }
  EXPECT_FALSE(is_context_active(2));
  importer_.close(at_home.words[0]);
  EXPECT_FALSE(is_context_active(0));
}

TEST_P(IpcStaged, memory_of_another_device_than_the_first_opens_there) {
  Process other;
  const Parcel shared = other.call([](Parcel& parcel) {
    Staging& staging = staging_of_actor();
    const DevicePtr memory = staging.pool->allocate({3 * kMiB, 0, std::nullopt}).value();
    const Result<ipc::IpcHandle> handle =
        ipc::Exporter::of_process().share(*staging.pool, {memory, 3 * kMiB});
    must(handle.ok());
    parcel.handle = handle_of(ipc::decode(handle.value().token).value());
  });
  const Parcel opened = try_to_open(shared.handle, -1);
  expect_ok(opened);
  EXPECT_EQ(try_to_open(shared.handle, -1).words[0], opened.words[0]);
  EXPECT_EQ(try_to_open(shared.handle, kTarget).words[0], opened.words[0]);
  for (int i = 0; i < 3; ++i) importer_.close(opened.words[0]);
  expect_refused(importer_.try_to_close(opened.words[0]), VPMM_ERROR_INVALID_POINTER, "not open");
}

TEST_P(IpcStaged, copies_need_the_name_of_the_device) {
  Shared shared = exporter_.allocate_shared(kMiB, kSeed);
  std::fill(std::begin(shared.handle.device_uuid), std::end(shared.handle.device_uuid),
            static_cast<unsigned char>(0));
  expect_refused(copy(shared.handle), VPMM_ERROR_INVALID_ARGUMENT, "must name the device");
}

TEST_P(IpcStaged, copies_have_all_bytes_and_hold_nothing_of_the_exporter) {
  for (const Bytes size : {Bytes{1000}, kBounced, 2 * kBounced + kMiB}) {
    SCOPED_TRACE(size);
    const Shared shared = exporter_.allocate_shared(size, kSeed);
    const Parcel copied = copy(shared.handle);
    expect_ok(copied);
    EXPECT_EQ(left().back(), 1U) << "the copy lives";
    expect_and_free(copied.words[0], shared, size);
    EXPECT_EQ(left(), (std::array<std::uint64_t, 7>{}));
    exporter_.free(shared.address);
    exporter_.end(shared.handle);
    expect_leases_to_end(exporter_);
  }
}

// Each piece into the host before it goes on, and its end, too.
TEST_P(IpcStaged, copies_are_waited_for) {
  const Shared shared = exporter_.allocate_shared(2 * kBounced, kSeed);
  const Parcel copied = copy(shared.handle, Call::stream_synchronize);
  expect_ok(copied);
  EXPECT_EQ(copied.words[2], GetParam() ? 1U : 4U);
  expect_and_free(copied.words[0], shared, 2 * kBounced);
}

TEST_P(IpcStaged, copies_of_which_a_driver_call_fails_leave_nothing) {
  const Shared shared = exporter_.allocate_shared(2 * kBounced, kSeed);
  struct Calls {
    Call call;
    std::optional<std::uint64_t> by_peer_access = {};    // nullopt: not for the copy alone
    std::optional<std::uint64_t> through_the_host = {};  // in two pieces
  };
  for (const auto& [call, by_peer_access, through_the_host] :
       std::initializer_list<Calls>{{Call::device_can_access_peer},
                                    {Call::device_primary_ctx_retain},
                                    {Call::stream_create, 1, 4},
                                    {Call::mem_host_alloc, 0, 1},
                                    {Call::memcpy_device_to_device_async, 1, 0},
                                    {Call::memcpy_device_to_host_async, 0, 2},
                                    {Call::memcpy_host_to_device_async, 0, 2}}) {
    const std::optional<std::uint64_t> calls = GetParam() ? by_peer_access : through_the_host;
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(std::string(driver::to_string(call)) + " " + std::to_string(nth));
      const Parcel copied = copy(shared.handle, call, nth);
      const bool has_failed = copied.words[1] != 0;
      if (copied.status == VPMM_OK) {
        expect_and_free(copied.words[0], shared, 2 * kBounced);
        if (has_failed) continue;  // the source is closed by the next copy
      }
      EXPECT_EQ(left(), (std::array<std::uint64_t, 7>{}));
      if (!has_failed) {
        EXPECT_EQ(nth, calls.value_or(nth - 1) + 1);
        break;
      }
      EXPECT_NE(copied.said().find(driver::to_string(call)), std::string::npos) << copied.said();
    }
  }
  exporter_.free(shared.address);
  exporter_.end(shared.handle);
  expect_leases_to_end(exporter_);
}

INSTANTIATE_TEST_SUITE_P(, IpcStaged, testing::Bool(), [](const auto& tested) {
  return tested.param ? "by_peer_access" : "through_the_host";
});

}  // namespace
}  // namespace vpmm::ipc_test::staged_test
