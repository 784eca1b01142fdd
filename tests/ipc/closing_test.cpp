// SPDX-License-Identifier: Apache-2.0
// ipc tests: who closes last unmaps when nothing on the GPU can use the memory any more; ends of
// exports are counted.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "driver/forwarding.hpp"
#include "driver/sim/sim_driver.hpp"
#include "ipc/importer.hpp"
#include "ipc/raw.hpp"

namespace vpmm::ipc_test::closing_test {
namespace {

using driver::sim::Kernel;
using driver::sim::MemoryAccess;
using driver::sim::SimDriver;

constexpr std::uint64_t kSeed = 10;
constexpr Bytes kSize = 3 * kMiB;

SimDriver& sim_of_actor() { return dynamic_cast<SimDriver&>(driver_of_actor()); }

void must(driver::CuResult result) {
  if (result != driver::CuResult::success) std::abort();
}

// Takes a second of the simulator's time, so that it is queued when the memory is closed.
void use_on_the_gpu(SimDriver& sim, DevicePtr begin, driver::StreamHandle stream) {
  const Kernel kernel{"use", 1'000'000'000, {{{begin, kSize}, MemoryAccess::Kind::read}}, {}};
  must(sim.launch(kernel, stream));
}

std::string hazards_of(const SimDriver& sim) {
  std::string all;
  for (const auto& hazard : sim.hazards()) all += hazard.describe() + "\n";
  return all;
}

ipc::IpcHandle handle_in(const Parcel& parcel) {
  ipc::IpcHandle handle;
  handle.token = token_in(parcel.handle);
  return handle;
}

// What others do while the last close waits: nothing, once it has waited again.
struct Meanwhile {
  ipc::IpcHandle handle;
  std::uint64_t waits = 0;
  bool uses_it = false;
  DevicePtr opened{};
  bool is_at_the_same_place = false;
};
Meanwhile& meanwhile_of_actor() {
  static Meanwhile meanwhile;
  return meanwhile;
}

Result<void> wait_while_others_come(driver::Driver& driver, driver::DeviceOrdinal device) {
  VPMM_TRY(ipc::wait_for_primary(driver, device));
  Meanwhile& meanwhile = meanwhile_of_actor();
  if (++meanwhile.waits != 1) return {};
  ipc::Importer& importer = ipc::Importer::of_process();
  VPMM_TRY_ASSIGN(ipc::Token part, ipc::decode(meanwhile.handle.token));
  for (int i = 0; i < 2; ++i) {  // other memory comes and goes
    part.size /= 2;
    ipc::IpcHandle handle;
    handle.token = ipc::encode(part);
    VPMM_TRY_ASSIGN(const DevicePtr other, importer.open(driver, handle, std::nullopt));
    VPMM_TRY(importer.close(other, ipc::wait_for_primary));
  }
  VPMM_TRY_ASSIGN(const DevicePtr opened, importer.open(driver, meanwhile.handle, std::nullopt));
  if (meanwhile.uses_it) use_on_the_gpu(sim_of_actor(), opened, driver::kLegacyStream);
  return importer.close(opened, wait_while_others_come);
}

// Out: words[0]: waits; words[1]: hazards.
void close_while_others_come(Parcel& parcel) {
  SimDriver& sim = sim_of_actor();
  meanwhile_of_actor() = {handle_in(parcel), 0, parcel.words[0] != 0, {}, false};
  ipc::Importer& importer = ipc::Importer::of_process();
  const Result<DevicePtr> opened = importer.open(sim, handle_in(parcel), std::nullopt);
  const Result<void> closed =
      opened ? importer.close(opened.value(), wait_while_others_come) : opened.error();
  if (!closed) {
    parcel.status = static_cast<vpmm_status>(closed.error().code);
    return parcel.say(closed.error().message);
  }
  parcel.words[2] = importer.close(opened.value()).ok() ? 1 : 0;
  sim.run_until_idle();
  parcel.words[0] = meanwhile_of_actor().waits;
  parcel.words[1] = sim.hazard_count();
  parcel.say(hazards_of(sim));
}

TEST(IpcClosing, the_last_close_waits_again_for_whoever_came_while_it_waited) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  for (const bool uses_it : {false, true}) {
    SCOPED_TRACE(uses_it ? "to use it" : "to open and close it");
    Process importer;
    importer.close(importer.open(shared.handle));
    importer.belongings();
    const Belongings before = importer.belongings();
    Parcel parcel;
    parcel.handle = shared.handle;
    parcel.words[0] = uses_it ? 1 : 0;
    const Parcel closed = importer.call(close_while_others_come, parcel);
    expect_ok(closed);
    EXPECT_EQ(closed.words[0], 2U) << "waits";
    EXPECT_EQ(closed.words[1], 0U) << closed.said();
    EXPECT_EQ(closed.words[2], 0U) << "it is closed";
    EXPECT_EQ(importer.belongings(), before);
  }
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

// --- a close by mistake, and closes that are late

// Reserves where the memory was before, if it was open.
class SamePlaceDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult mem_address_reserve(Bytes size, Bytes alignment, DevicePtr,
                                       DevicePtr& begin) override {
    return ForwardingDriver::mem_address_reserve(size, alignment, meanwhile_of_actor().opened,
                                                 begin);
  }
};

// Of the program's first close, which ends what a second one has begun to wait for.
Result<void> wait_while_it_is_closed_and_opened(driver::Driver& driver,
                                                driver::DeviceOrdinal device) {
  VPMM_TRY(ipc::wait_for_primary(driver, device));
  Meanwhile& meanwhile = meanwhile_of_actor();
  if (++meanwhile.waits != 1) return {};
  ipc::Importer& importer = ipc::Importer::of_process();
  VPMM_TRY(importer.close(meanwhile.opened));
  VPMM_TRY_ASSIGN(const DevicePtr again, importer.open(driver, meanwhile.handle, std::nullopt));
  use_on_the_gpu(sim_of_actor(), again, driver::kLegacyStream);
  meanwhile.is_at_the_same_place = again == meanwhile.opened;
  return {};
}

// Out: words[0]: waits; words[1]: hazards; words[2]: the memory came to the same address.
void close_twice_at_once(Parcel& parcel) {
  SimDriver& sim = sim_of_actor();
  ipc::Importer& importer = ipc::Importer::of_process();
  static SamePlaceDriver driver(sim);
  const DevicePtr opened = importer.open(driver, handle_in(parcel), std::nullopt).value();
  meanwhile_of_actor() = {handle_in(parcel), 0, false, opened, false};
  static_cast<void>(importer.close(opened, wait_while_it_is_closed_and_opened));
  sim.run_until_idle();
  parcel.words = {meanwhile_of_actor().waits, sim.hazard_count(),
                  meanwhile_of_actor().is_at_the_same_place ? 1U : 0U};
  parcel.say(hazards_of(sim));
}

TEST(IpcClosing, a_close_too_many_waits_for_what_was_opened_at_the_address_meanwhile) {
  Process exporter;
  Process importer;
  Parcel parcel;
  parcel.handle = exporter.allocate_shared(kSize, kSeed).handle;
  const Parcel closed = importer.call(close_twice_at_once, parcel);
  ASSERT_EQ(closed.words[2], 1U) << "or the close finds nothing there";
  EXPECT_EQ(closed.words[0], 2U) << "waits";
  EXPECT_EQ(closed.words[1], 0U) << closed.said();
}

std::atomic<int> late_waits_in_actor{0};
std::atomic<bool> is_late_in_actor{true};

Result<void> wait_or_be_late(driver::Driver& driver, driver::DeviceOrdinal device) {
  ++late_waits_in_actor;
  if (is_late_in_actor) return Error{ErrorCode::capture_active, "later"};
  return ipc::wait_for_primary(driver, device);
}

// Out: words: waits of late closings after each of the steps.
void close_late(Parcel& parcel) {
  driver::Driver& driver = driver_of_actor();
  ipc::Importer& importer = ipc::Importer::of_process();
  const ipc::Token whole = parts_of(parcel.handle);
  std::array<DevicePtr, 5> opened{};
  for (std::size_t i = 0; i < opened.size(); ++i) {
    ipc::Token part = whole;
    part.offset = i * 4096;
    part.size = 4096;
    ipc::IpcHandle handle;
    handle.token = ipc::encode(part);
    opened[i] = importer.open(driver, handle, std::nullopt).value();
  }
  std::size_t step = 0;
  const auto note = [&] {
    parcel.words[step++] = static_cast<std::uint64_t>(late_waits_in_actor.exchange(0));
  };
  importer.close_some_time(opened[0], wait_or_be_late);
  note();
  importer.close_some_time(opened[1], wait_or_be_late);
  note();
  importer.close_some_time(opened[2]);  // in time, so that the late ones are tried
  note();
  importer.close_some_time(DevicePtr{4096});  // nothing is open there, so as well
  note();
  is_late_in_actor = false;
  importer.close_some_time(opened[3]);
  note();
  if (!importer.close(opened[4]).ok()) parcel.status = VPMM_ERROR_DRIVER_FAILED;
  note();
  for (const DevicePtr each : opened) parcel.words[step] += importer.close(each).ok() ? 1 : 0;
}

TEST(IpcClosing, that_is_late_is_tried_once_by_each_call_that_closes_other_memory) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  Parcel parcel;
  parcel.handle = shared.handle;
  importer.belongings();
  const Belongings before = importer.belongings();
  const Parcel closed = importer.call(close_late, parcel);
  expect_ok(closed);
  EXPECT_EQ(closed.words, (std::array<std::uint64_t, 16>{1, 1, 2, 2, 2, 0, 0}));
  EXPECT_EQ(importer.belongings(), before);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

// So that others come before it is looked again.
Result<void> wait_and_linger(driver::Driver& driver, driver::DeviceOrdinal device) {
  VPMM_TRY(ipc::wait_for_primary(driver, device));
  std::this_thread::sleep_for(std::chrono::microseconds(100));
  return {};
}

// Each on a stream of its own, which only the closing waits for. Out: words[0]: failures; words[1]:
// hazards.
void open_use_and_close_in_threads(Parcel& parcel) {
  SimDriver& sim = sim_of_actor();
  ipc::Importer& importer = ipc::Importer::of_process();
  driver::ContextHandle context{};
  must(sim.ctx_get_current(context));
  std::atomic<std::uint64_t> failures{0};
  const auto loop = [&] {
    must(sim.ctx_set_current(context));
    driver::StreamHandle stream{};
    must(sim.stream_create(driver::StreamFlags::non_blocking, stream));
    for (int i = 0; i < 100; ++i) {
      const Result<DevicePtr> opened = importer.open(sim, handle_in(parcel), std::nullopt);
      if (opened) use_on_the_gpu(sim, opened.value(), stream);
      if (!opened || !importer.close(opened.value(), wait_and_linger)) ++failures;
    }
    must(sim.stream_destroy(stream));
  };
  std::array<std::thread, 4> threads;
  for (std::thread& thread : threads) thread = std::thread(loop);
  for (std::thread& thread : threads) thread.join();
  parcel.words[0] = failures;
  parcel.words[1] = sim.hazard_count();
  parcel.say(hazards_of(sim));
}

TEST(IpcClosing, threads_that_share_an_opening_never_unmap_under_each_others_kernels) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  importer.close(importer.open(shared.handle));
  importer.belongings();
  const Belongings before = importer.belongings();
  Parcel parcel;
  parcel.handle = shared.handle;
  const Parcel done = importer.call(open_use_and_close_in_threads, parcel);
  EXPECT_EQ(done.words[0], 0U) << "failures";
  EXPECT_EQ(done.words[1], 0U) << done.said();
  Belongings after = importer.belongings();
  after.threads -= kFirstThread - 1;  // a sanitizer's own, from a process's first thread on
  EXPECT_EQ(after, before);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

// The reset ended all retains of the context, also the one of the open memory.
TEST(IpcClosing, after_a_reset_takes_no_retain_of_the_context_from_others) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const Address opened = importer.open(shared.handle);
  expect_ok(importer.call([](Parcel&) {
    driver::Driver& driver = driver_of_actor();
    must(driver.device_primary_ctx_reset(0));
    driver::ContextHandle of_program{};
    must(driver.device_primary_ctx_retain(0, of_program));
    must(driver.ctx_set_current(of_program));
  }));
  importer.close(opened);
  const Parcel answer = importer.call([](Parcel& parcel) {
    bool is_active = false;
    must(driver_of_actor().device_primary_ctx_get_state(0, is_active));
    parcel.words[0] = is_active ? 1 : 0;
  });
  EXPECT_EQ(answer.words[0], 1U);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

// Mappings survive a reset, so they are given back under a context of their own.
TEST(IpcClosing, after_a_reset_gives_everything_back_though_nobody_has_the_context) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const Address opened = importer.open(shared.handle);
  Parcel parcel;
  parcel.words[0] = opened;
  const Parcel closed = importer.call(
      [](Parcel& asked) {
        SimDriver& sim = sim_of_actor();
        must(sim.device_primary_ctx_reset(0));
        must(sim.ctx_set_current({}));
        asked.take(vpmm_ipc_close(reinterpret_cast<void*>(asked.words[0])));
        bool is_active = true;
        must(sim.device_primary_ctx_get_state(0, is_active));
        asked.words = {is_active ? 1U : 0U, sim.census().mappings, sim.census().reservations};
      },
      parcel);
  expect_ok(closed);
  EXPECT_EQ(closed.words[0], 0U) << "and lets go of the context";
  EXPECT_EQ(closed.words[1], 0U);
  EXPECT_EQ(closed.words[2], 0U);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

// Its mapping survives, unlike what CUDA's own IPC has open.
TEST(IpcClosing, memory_of_a_pool_is_as_open_as_before_a_reset) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  importer.belongings();
  const Address opened = importer.open(shared.handle);
  const Belongings with_it = importer.belongings();
  expect_ok(importer.call([](Parcel&) {
    SimDriver& sim = sim_of_actor();
    must(sim.device_primary_ctx_reset(0));
    must(sim.ctx_set_current({}));
  }));
  EXPECT_EQ(importer.open(shared.handle), opened);
  EXPECT_EQ(importer.belongings().mappings, with_it.mappings);
  importer.close(opened);
  importer.close(opened);
  expect_refused(importer.try_to_close(opened), VPMM_ERROR_INVALID_POINTER, "not open");
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

// --- a driver of before CUDA 12, where contexts have no numbers

class OldDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  bool has(driver::Call call) const override { return call != driver::Call::ctx_get_id; }
  driver::CuResult ctx_get_id(driver::ContextHandle, driver::ContextId&) override {
    return driver::CuResult::not_supported;
  }
};

TEST(IpcClosing, works_where_contexts_have_no_numbers) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  importer.belongings();
  const Belongings before = importer.belongings();
  Parcel parcel;
  parcel.handle = shared.handle;
  const Parcel closed = importer.call(
      [](Parcel& asked) {
        static OldDriver driver(driver_of_actor());
        ipc::Importer& ours = ipc::Importer::of_process();
        const auto opened = ours.open(driver, handle_in(asked), std::nullopt);
        if (!opened) return asked.say(opened.error().message);
        const auto again = ours.open(driver, handle_in(asked), std::nullopt);
        asked.words[0] = again && again.value() == opened.value() ? 1 : 0;
        meanwhile_of_actor() = {};
        const auto wait = [](driver::Driver& waited, driver::DeviceOrdinal device) {
          ++meanwhile_of_actor().waits;
          return ipc::wait_for_primary(waited, device);
        };
        for (int i = 0; i < 2; ++i) asked.words[1] += ours.close(opened.value(), wait) ? 1 : 0;
        asked.words[2] = meanwhile_of_actor().waits;
      },
      parcel);
  EXPECT_EQ(closed.said(), "");
  EXPECT_EQ(closed.words[0], 1U) << "it stays open";
  EXPECT_EQ(closed.words[1], 2U);
  EXPECT_EQ(closed.words[2], 1U) << "the last close waits";
  EXPECT_EQ(importer.belongings(), before);
}

// --- ends of exports

TEST(IpcExports, of_one_allocation_end_each_for_itself) {
  Process exporter;
  Process importer;
  const Address address = exporter.allocate(4 * kMiB);
  exporter.fill(address, 4 * kMiB, kSeed);
  const vpmm_ipc_handle whole = exporter.share(address, 4 * kMiB);
  const vpmm_ipc_handle part = exporter.share(address + kMiB, kMiB);
  exporter.free(address);
  exporter.end(whole);
  expect_refused(exporter.try_to_end(whole), VPMM_ERROR_INVALID_ARGUMENT, "ended already");
  EXPECT_GE(exporter.leased(), 4 * kMiB) << "for the other export";
  exporter.trim();
  importer.close(importer.open(part));
  EXPECT_GE(exporter.leased(), 4 * kMiB);
  exporter.end(part);
  expect_refused(exporter.try_to_end(part), VPMM_ERROR_INVALID_ARGUMENT, "ended already");
  expect_leases_to_end(exporter);
}

TEST(IpcExports, of_one_range_end_as_often_as_they_were_made) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const vpmm_ipc_handle again = exporter.share(shared.address, kSize);
  exporter.free(shared.address);
  exporter.end(again);
  EXPECT_GE(exporter.leased(), kSize);
  exporter.end(again);
  EXPECT_EQ(exporter.leased(), 0U);
  expect_refused(exporter.try_to_end(shared.handle), VPMM_ERROR_INVALID_ARGUMENT, "ended already");
}

}  // namespace
}  // namespace vpmm::ipc_test::closing_test
