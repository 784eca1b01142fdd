// SPDX-License-Identifier: Apache-2.0
// tests/sim: memory that goes from one process to another by handle, and what happens when either
// lets go of it.
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "sim/other_process.hpp"
#include "sim/sim_fixture.hpp"
#include "support/page_size.hpp"

namespace vpmm::driver::sim {
namespace {

constexpr Bytes kLarge = 2 * kPage;

DevicePtr allocate(Sim& sim, Bytes size) {
  DevicePtr ptr{};
  ok(sim.driver.mem_alloc(size, ptr));
  return ptr;
}

IpcMemHandle handle_of(Sim& sim, DevicePtr ptr) {
  IpcMemHandle handle{};
  ok(sim.driver.ipc_get_mem_handle(ptr, handle));
  return handle;
}

DevicePtr open(Sim& sim, const IpcMemHandle& handle) {
  DevicePtr ptr{};
  ok(sim.driver.ipc_open_mem_handle(handle, ptr));
  return ptr;
}

CuResult try_to_open(Sim& sim, const IpcMemHandle& handle) {
  DevicePtr ptr{};
  const CuResult result = sim.driver.ipc_open_mem_handle(handle, ptr);
  EXPECT_EQ(ptr, DevicePtr{});
  return result;
}

// Exports `size` bytes of 7, expects 9 in all of them after a signal, and ends after another one.
void lend(Sim& sim, Channel& channel, AddressRange range) {
  fill(sim, range, 7);
  channel.send(handle_of(sim, range.begin));
  channel.wait();
  EXPECT_TRUE(all_are(sim, range, 9));
}

void expect_lent(Exporter& exporter, Bytes size) {
  Sim sim;
  const AddressRange range{open(sim, exporter.channel().receive()), size};
  EXPECT_TRUE(all_are(sim, range, 7));
  fill(sim, range, 9);
  exporter.channel().signal();
  ok(sim.driver.ipc_close_mem_handle(range.begin));
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimSharing, two_processes_use_one_allocation) {
  for (const Bytes size : {Bytes{100}, 700 * kKiB, kPage, kLarge}) {
    SCOPED_TRACE(size);
    Exporter exporter([size](Sim& sim, Channel& channel) {
      allocate(sim, 1000);  // so that a small one does not begin its page
      lend(sim, channel, {allocate(sim, size), size});
    });
    expect_lent(exporter, size);
  }
}

// The two pages of such an allocation lie apart in the memory file.
TEST(SimSharing, a_small_allocation_may_lie_on_two_pages) {
  constexpr Bytes kSize = 700 * kKiB;
  Exporter exporter([](Sim& sim, Channel& channel) {
    const DevicePtr first = allocate(sim, kSize);
    allocate(sim, kSize);
    allocate(sim, kLarge);
    const DevicePtr third = allocate(sim, kSize);
    EXPECT_LT(third, first + kPage);
    EXPECT_GT(third + kSize, first + kPage);
    lend(sim, channel, {third, kSize});
  });
  expect_lent(exporter, kSize);
}

// Lends memory until a signal.
Exporter::Life lender(Bytes size = kLarge) {
  return [size](Sim& sim, Channel& channel) {
    channel.send(handle_of(sim, allocate(sim, size)));
    channel.wait();
  };
}

TEST(SimSharing, the_importer_pays_nothing_and_finds_the_allocation_by_address) {
  Exporter exporter(lender());
  Sim sim;
  const IpcMemHandle handle = exporter.channel().receive();
  MemInfo before;
  MemInfo during;
  ok(sim.driver.mem_get_info(before));
  const DevicePtr ptr = open(sim, handle);
  ok(sim.driver.mem_get_info(during));
  EXPECT_EQ(during.free, before.free);
  EXPECT_EQ(sim.driver.census().physical_bytes, 0U);
  EXPECT_EQ(sim.driver.census().chunks, 0U);
  EXPECT_EQ(sim.driver.census().imports, 1U);
  AddressRange range;
  ok(sim.driver.mem_get_address_range(ptr + kLarge - 1, range));
  EXPECT_EQ(range, (AddressRange{ptr, kLarge}));
  ok(sim.driver.ipc_close_mem_handle(ptr));
  ok(sim.driver.mem_get_info(during));
  EXPECT_EQ(during.free, before.free);
  EXPECT_EQ(sim.driver.census().imports, 0U);
  exporter.channel().signal();
}

TEST(SimSharing, the_last_close_unmaps) {
  Exporter exporter(lender());
  Sim sim;
  const IpcMemHandle handle = exporter.channel().receive();
  const DevicePtr ptr = open(sim, handle);
  EXPECT_EQ(open(sim, handle), ptr);
  ok(sim.driver.ipc_close_mem_handle(ptr));
  fill(sim, {ptr, kLarge}, 1);
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
  ok(sim.driver.ipc_close_mem_handle(ptr));
  EXPECT_EQ(sim.driver.ipc_close_mem_handle(ptr), CuResult::invalid_value);
  fill(sim, {ptr, 1}, 1);
  EXPECT_EQ(sim.kinds(), std::vector{Hazard::Kind::unmapped_access});
  exporter.channel().signal();
}

TEST(SimSharing, closing_while_work_may_still_use_the_memory_is_a_hazard) {
  Exporter exporter(lender());
  Sim sim;
  const DevicePtr ptr = open(sim, exporter.channel().receive());
  sim.write({ptr, kLarge}, sim.stream());
  ok(sim.driver.ipc_close_mem_handle(ptr));
  EXPECT_EQ(sim.kinds(), std::vector{Hazard::Kind::unmapped_too_early});
  exporter.channel().signal();
}

TEST(SimSharing, opened_memory_is_closed_and_not_freed_nor_exported_again) {
  Exporter exporter(lender());
  Sim sim;
  const DevicePtr ptr = open(sim, exporter.channel().receive());
  IpcMemHandle handle{};
  EXPECT_EQ(sim.driver.mem_free(ptr), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.ipc_get_mem_handle(ptr, handle), CuResult::invalid_value);
  ok(sim.driver.ipc_close_mem_handle(ptr));
  exporter.channel().signal();
}

TEST(SimSharing, freed_memory_is_not_opened_and_its_successor_has_another_handle) {
  Exporter exporter([](Sim& sim, Channel& channel) {
    const DevicePtr first = allocate(sim, 1000);
    channel.send(handle_of(sim, first));
    ok(sim.driver.mem_free(first));
    channel.signal();
    channel.wait();
    const DevicePtr second = allocate(sim, 1000);
    EXPECT_EQ(second, first);
    fill(sim, {second, 1000}, 5);
    channel.send(handle_of(sim, second));
    channel.wait();
  });
  Sim sim;
  const IpcMemHandle first = exporter.channel().receive();
  exporter.channel().wait();
  EXPECT_EQ(try_to_open(sim, first), CuResult::invalid_handle);
  exporter.channel().signal();
  const IpcMemHandle second = exporter.channel().receive();
  EXPECT_EQ(try_to_open(sim, first), CuResult::invalid_handle);
  EXPECT_TRUE(all_are(sim, {open(sim, second), 1000}, 5));
  exporter.channel().signal();
}

TEST(SimSharing, a_process_that_is_gone_lends_nothing) {
  Exporter exporter(lender());
  const IpcMemHandle handle = exporter.channel().receive();
  exporter.channel().signal();
  exporter.end();
  Sim sim;
  EXPECT_EQ(try_to_open(sim, handle), CuResult::invalid_handle);
}

// CUDA promises nothing then; here nobody crashes.
TEST(SimSharing, opened_memory_stays_readable_when_it_is_freed_and_when_its_process_ends) {
  Exporter exporter([](Sim& sim, Channel& channel) {
    const DevicePtr ptr = allocate(sim, kLarge);
    channel.send(handle_of(sim, ptr));
    channel.wait();
    ok(sim.driver.mem_free(ptr));
    channel.signal();
    channel.wait();
  });
  Sim sim;
  const AddressRange range{open(sim, exporter.channel().receive()), kLarge};
  exporter.channel().signal();
  exporter.channel().wait();
  EXPECT_EQ(sim.read_back(range).size(), kLarge);
  exporter.channel().signal();
  exporter.end();
  fill(sim, range, 3);
  EXPECT_TRUE(all_are(sim, range, 3));
  ok(sim.driver.ipc_close_mem_handle(range.begin));
}

TEST(SimSharing, only_the_begin_of_what_mem_alloc_gave_has_a_handle) {
  Sim sim;
  DevicePtr managed{};
  DevicePtr pooled{};
  MemPoolHandle pool{};
  void* host = nullptr;
  ok(sim.driver.mem_alloc_managed(kPage, kManagedAttachGlobal, managed));
  ok(sim.driver.mem_pool_create(0, pool));
  ok(sim.driver.mem_alloc_from_pool_async(kPage, pool, sim.stream(), pooled));
  ok(sim.driver.mem_host_alloc(100, 0, host));
  const DevicePtr plain = allocate(sim, kLarge);
  IpcMemHandle handle{};
  for (const DevicePtr ptr : {managed, pooled, DevicePtr{reinterpret_cast<std::uint64_t>(host)},
                              sim.memory().begin, plain + 512, plain + kPage, DevicePtr{}}) {
    EXPECT_EQ(sim.driver.ipc_get_mem_handle(ptr, handle), CuResult::invalid_value);
  }
  EXPECT_EQ(handle, IpcMemHandle{});
}

TEST(SimSharing, a_handle_is_the_same_until_the_memory_is_freed) {
  Sim sim;
  const DevicePtr ptr = allocate(sim, kLarge);
  const DevicePtr other = allocate(sim, kLarge);
  EXPECT_EQ(handle_of(sim, ptr), handle_of(sim, ptr));
  EXPECT_NE(handle_of(sim, ptr), handle_of(sim, other));
}

TEST(SimSharing, handles_of_this_process_and_arbitrary_bytes_are_refused) {
  Sim exporting;
  Sim sim;
  EXPECT_EQ(try_to_open(sim, handle_of(exporting, allocate(exporting, kLarge))),
            CuResult::invalid_context);
  EXPECT_EQ(try_to_open(sim, IpcMemHandle{}), CuResult::invalid_value);
  Exporter exporter(lender());
  const IpcMemHandle good = exporter.channel().receive();
  for (std::size_t byte = 12; byte < 40; ++byte) {  // file, inode, place and cookie
    IpcMemHandle bad = good;
    bad[byte] ^= std::byte{0x55};
    EXPECT_EQ(try_to_open(sim, bad), CuResult::invalid_handle) << byte;
  }
  ok(sim.driver.ipc_close_mem_handle(open(sim, good)));
  exporter.channel().signal();
}

TEST(SimSharing, machines_of_different_granularity_share_nothing) {
  Exporter exporter(lender(kPage));
  SimOptions options = Sim::manual();
  options.granularity = 4 * kMiB;
  Sim sim(options);
  EXPECT_EQ(try_to_open(sim, exporter.channel().receive()), CuResult::map_failed);
  EXPECT_EQ(sim.driver.census().imports, 0U);
  exporter.channel().signal();
}

TEST(SimSharing, a_reset_closes_what_was_opened_and_withdraws_what_was_lent) {
  Exporter exporter([](Sim& sim, Channel& channel) {
    channel.send(handle_of(sim, allocate(sim, kLarge)));
    channel.wait();
    ok(sim.driver.device_primary_ctx_reset(0));
    channel.signal();
    channel.wait();
  });
  Sim sim;
  const IpcMemHandle handle = exporter.channel().receive();
  open(sim, handle);
  ok(sim.driver.device_primary_ctx_reset(0));
  EXPECT_EQ(sim.driver.census().imports, 0U);
  sim.use_device(0);
  const DevicePtr ptr = open(sim, handle);
  ok(sim.driver.ipc_close_mem_handle(ptr));
  exporter.channel().signal();
  exporter.channel().wait();
  EXPECT_EQ(try_to_open(sim, handle), CuResult::invalid_handle);
  exporter.channel().signal();
}

TEST(SimSharing, sharing_breaks_a_strict_capture) {
  Sim sim;
  const DevicePtr ptr = allocate(sim, kLarge);
  const IpcMemHandle handle = handle_of(sim, ptr);
  const auto in_a_capture = [&](const std::function<CuResult()>& call) {
    const StreamHandle stream = sim.stream();
    GraphHandle graph{};
    ok(sim.driver.stream_begin_capture(stream, CaptureMode::global));
    EXPECT_EQ(call(), CuResult::stream_capture_unsupported);
    EXPECT_EQ(sim.driver.stream_end_capture(stream, graph), CuResult::stream_capture_invalidated);
  };
  IpcMemHandle unused{};
  DevicePtr nowhere{};
  in_a_capture([&] { return sim.driver.ipc_get_mem_handle(ptr, unused); });
  in_a_capture([&] { return sim.driver.ipc_open_mem_handle(handle, nowhere); });
  in_a_capture([&] { return sim.driver.ipc_close_mem_handle(ptr); });
}

}  // namespace
}  // namespace vpmm::driver::sim
