// SPDX-License-Identifier: Apache-2.0
// capi: memory in other processes: every field of a handle, every error, and closings that wait.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "capi/gpu_pool.hpp"
#include "ipc/process.hpp"

namespace vpmm::capi_test {
namespace {

using ipc_test::Address;
using ipc_test::driver_of_actor;
using ipc_test::expect_ok;
using ipc_test::expect_refused;
using ipc_test::Parcel;
using ipc_test::pool_of_actor;
using ipc_test::Process;
using ipc_test::Shared;

constexpr std::uint64_t kSeed = 5;

void* to_pointer(Address address) { return reinterpret_cast<void*>(address); }

Parcel with_address(Address address) {
  Parcel parcel;
  parcel.words[0] = address;
  return parcel;
}

// --- exports and tokens, in this process

class IpcExport : public GpuPool {
 protected:
  vpmm_ipc_handle share(void* ptr, std::size_t bytes) {
    vpmm_ipc_handle handle{};
    EXPECT_EQ(vpmm_ipc_export(ptr, bytes, &handle), VPMM_OK) << vpmm_last_error();
    return handle;
  }
  void* allocate_plain(std::size_t bytes) {
    DevicePtr ptr{};
    must(gpu_->mem_alloc(bytes, ptr));
    return to_pointer(to_integer(ptr));
  }
  driver::Uuid identity() {
    driver::Uuid uuid{};
    must(gpu_->device_get_uuid(0, uuid));
    return uuid;
  }
};

TEST_F(IpcExport, of_pool_memory_fills_every_field_of_the_handle) {
  void* const ptr = allocate(4 * kMiB);
  const vpmm_ipc_handle handle = share(plus(ptr, kMiB), 1000);
  EXPECT_EQ(handle.kind, static_cast<std::uint32_t>(VPMM_IPC_POOL));
  EXPECT_EQ(handle.reserved, 0U);
  EXPECT_EQ(handle.bytes, 1000U);
  EXPECT_EQ(handle.offset, kMiB);
  const driver::Uuid uuid = identity();
  EXPECT_NE(uuid, driver::Uuid{});
  EXPECT_TRUE(std::equal(uuid.begin(), uuid.end(), handle.device_uuid));
  vpmm_ipc_handle read{};
  ASSERT_EQ(vpmm_ipc_read_token(handle.token, &read), VPMM_OK) << vpmm_last_error();
  vpmm_ipc_handle expected = handle;
  std::memset(expected.device_uuid, 0, sizeof expected.device_uuid);
  EXPECT_EQ(std::memcmp(&read, &expected, sizeof read), 0) << "all but the device";
  EXPECT_EQ(vpmm_ipc_export_end(&handle), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_ipc_export_end(&handle), VPMM_ERROR_INVALID_ARGUMENT) << "each ends once";
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

TEST_F(IpcExport, keeps_memory_until_it_ends) {
  void* const ptr = allocate(4 * kMiB);
  const vpmm_ipc_handle handle = share(ptr, 4 * kMiB);
  ASSERT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
  EXPECT_GE(statistics_of(pool_).leased_bytes, 4 * kMiB);
  EXPECT_EQ(vpmm_ipc_export_end(&handle), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(statistics_of(pool_).leased_bytes, 0U);
}

TEST_F(IpcExport, finds_the_pool_of_the_memory_among_several) {
  vpmm_pool* other = nullptr;
  ASSERT_EQ(vpmm_pool_create(0, nullptr, &other), VPMM_OK) << vpmm_last_error();
  for (vpmm_pool* const pool : {pool_, other}) {
    void* ptr = nullptr;
    ASSERT_EQ(vpmm_allocate(pool, 2 * kMiB, nullptr, &ptr), VPMM_OK);
    const vpmm_ipc_handle handle = share(ptr, 2 * kMiB);
    EXPECT_EQ(handle.kind, static_cast<std::uint32_t>(VPMM_IPC_POOL));
    ASSERT_EQ(vpmm_deallocate(pool, ptr, nullptr), VPMM_OK);
    EXPECT_EQ(statistics_of(pool_).leased_bytes != 0, pool == pool_);
    EXPECT_EQ(statistics_of(other).leased_bytes != 0, pool == other);
    EXPECT_EQ(vpmm_ipc_export_end(&handle), VPMM_OK) << vpmm_last_error();
  }
  EXPECT_EQ(vpmm_pool_destroy(other), VPMM_OK);
}

TEST_F(IpcExport, of_plain_memory_needs_no_end_and_stays_inside_its_allocation) {
  void* const ptr = allocate_plain(2 * kMiB);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{256}, kMiB}) {
    for (const std::size_t bytes : {std::size_t{1}, 2 * kMiB - offset}) {
      const vpmm_ipc_handle handle = share(plus(ptr, offset), bytes);
      EXPECT_EQ(handle.kind, static_cast<std::uint32_t>(VPMM_IPC_LEGACY));
      EXPECT_EQ(handle.offset, offset);
      EXPECT_EQ(handle.bytes, bytes);
      const driver::Uuid uuid = identity();
      EXPECT_TRUE(std::equal(uuid.begin(), uuid.end(), handle.device_uuid));
      for (int i = 0; i < 2; ++i) EXPECT_EQ(vpmm_ipc_export_end(&handle), VPMM_OK);
      vpmm_ipc_handle read{};
      EXPECT_EQ(vpmm_ipc_read_token(handle.token, &read), VPMM_ERROR_INVALID_ARGUMENT);
    }
    for (const std::size_t bytes : {std::size_t{0}, 2 * kMiB - offset + 1, SIZE_MAX}) {
      vpmm_ipc_handle handle{};
      EXPECT_EQ(vpmm_ipc_export(plus(ptr, offset), bytes, &handle), VPMM_ERROR_INVALID_ARGUMENT);
      const auto begin = reinterpret_cast<std::uintptr_t>(ptr);
      EXPECT_EQ(
          vpmm_last_error(),
          fmt::format("{} bytes at {:#x} are not inside the allocation of 2097152 bytes at {:#x}",
                      bytes, begin + offset, begin));
      EXPECT_EQ(handle.kind, 0U) << "written on success only";
    }
  }
  must(gpu_->mem_free(address_of(ptr)));
}

TEST_F(IpcExport, of_plain_memory_works_under_any_context_and_leaves_it_current) {
  void* const ptr = allocate_plain(2 * kMiB);
  const vpmm_ipc_handle expected = share(ptr, 2 * kMiB);
  driver::ContextHandle own{};
  must(gpu_->ctx_get_current(own));
  for (const driver::ContextHandle context : {driver::ContextHandle{}, own}) {
    must(gpu_->ctx_set_current(context));
    const vpmm_ipc_handle handle = share(ptr, 2 * kMiB);
    EXPECT_EQ(std::memcmp(&handle, &expected, sizeof handle), 0);
    driver::ContextHandle current{};
    must(gpu_->ctx_get_current(current));
    EXPECT_EQ(current, context);
  }
  must(gpu_->mem_free(address_of(ptr)));
}

TEST_F(IpcExport, of_other_memory_says_why_not) {
  const auto not_plain = [](DevicePtr ptr, const char* why) {
    return fmt::format(
        "{:#x} is neither memory of a pool nor plain memory of the driver, which alone can be "
        "shared: {}",
        to_integer(ptr), why);
  };
  int on_the_stack = 0;
  vpmm_ipc_handle handle{};
  EXPECT_EQ(vpmm_ipc_export(&on_the_stack, 1, &handle), VPMM_ERROR_INVALID_POINTER);
  EXPECT_TRUE(last_error_names("is neither memory of a pool nor of the driver: "))
      << vpmm_last_error();
  EXPECT_TRUE(last_error_names(fmt::format("{}", fmt::ptr(&on_the_stack)).c_str()));
  driver::MemPoolHandle driver_pool{};
  DevicePtr ordered{};
  must(gpu_->mem_pool_create(0, driver_pool));
  must(gpu_->mem_alloc_from_pool_async(4096, driver_pool, {}, ordered));
  EXPECT_EQ(vpmm_ipc_export(to_pointer(to_integer(ordered)), 1, &handle),
            VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(vpmm_last_error(), not_plain(ordered,
                                         "ipc_get_mem_handle failed: "
                                         "CUDA_ERROR_INVALID_VALUE (1)"));
  must(gpu_->mem_free_async(ordered, {}));
  must(gpu_->mem_pool_destroy(driver_pool));
  void* const beside = allocate_plain(5000);  // keeps their page
  void* const freed = allocate_plain(5000);
  must(gpu_->mem_free(address_of(freed)));
  EXPECT_EQ(vpmm_ipc_export(freed, 1, &handle), VPMM_ERROR_INVALID_POINTER);
  EXPECT_EQ(vpmm_last_error(), not_plain(address_of(freed),
                                         "mem_get_address_range failed: "
                                         "CUDA_ERROR_NOT_FOUND (500)"));
  must(gpu_->mem_free(address_of(beside)));
  void* const mine = allocate(4 * kMiB);
  EXPECT_EQ(vpmm_ipc_export(mine, 4 * kMiB + 1, &handle), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(vpmm_ipc_export(mine, 0, &handle), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(handle.kind, 0U);
}

using IpcArguments = IpcExport;

TEST_F(IpcArguments, that_are_wrong_are_named) {
  void* const live = allocate(2 * kMiB);
  void* ptr = nullptr;
  vpmm_ipc_handle handle = share(live, 2 * kMiB);
  const auto expect = [](vpmm_status status, const std::string& said) {
    EXPECT_EQ(status, VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(vpmm_last_error(), said);
  };
  expect(vpmm_ipc_export(nullptr, 1, &handle), "`ptr` is null");
  expect(vpmm_ipc_export(live, 1, nullptr), "`handle` is null");
  expect(vpmm_ipc_export_end(nullptr), "`handle` is null");
  expect(vpmm_ipc_open(nullptr, -1, &ptr), "`handle` is null");
  expect(vpmm_ipc_open(&handle, -1, nullptr), "`ptr` is null");
  expect(vpmm_ipc_open_staged(nullptr, pool_, &ptr), "`handle` is null");
  expect(vpmm_ipc_open_staged(&handle, nullptr, &ptr), "`pool` is null");
  expect(vpmm_ipc_open_staged(&handle, pool_, nullptr), "`ptr` is null");
  expect(vpmm_ipc_read_token(nullptr, &handle), "`token` is null");
  expect(vpmm_ipc_read_token(handle.token, nullptr), "`handle` is null");
  for (const std::uint32_t kind : {0U, 3U}) {
    vpmm_ipc_handle odd = handle;
    odd.kind = kind;
    const std::string said =
        "the IPC handle is of kind " + std::to_string(kind) + ", which there is not";
    expect(vpmm_ipc_open(&odd, -1, &ptr), said);
    expect(vpmm_ipc_open_staged(&odd, pool_, &ptr), said);
    expect(vpmm_ipc_export_end(&odd), said);
  }
  EXPECT_EQ(vpmm_ipc_open(&handle, -1, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(last_error_names("the process that exported it")) << vpmm_last_error();
  EXPECT_EQ(vpmm_ipc_close(live), VPMM_ERROR_INVALID_POINTER);
  EXPECT_TRUE(last_error_names("not open")) << vpmm_last_error();
  vpmm_ipc_close_deferred(live);  // says nothing
  EXPECT_EQ(ptr, nullptr);
  EXPECT_EQ(vpmm_ipc_export_end(&handle), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_deallocate(pool_, live, nullptr), VPMM_OK);
}

// --- openings, in another process

Address allocate_plain_in(Process& process, Bytes bytes) {
  return process
      .call(
          [](Parcel& asked) {
            DevicePtr ptr{};
            asked.status =
                driver_of_actor().mem_alloc(asked.words[0], ptr) == driver::CuResult::success
                    ? VPMM_OK
                    : VPMM_ERROR_OUT_OF_MEMORY;
            asked.words[0] = to_integer(ptr);
          },
          with_address(bytes))
      .words[0];
}

class IpcOpen : public testing::Test {
 protected:
  // Of a pool, and of the driver.
  std::vector<Shared> shared_of_both_kinds(Bytes bytes) {
    const Address plain = allocate_plain_in(exporter_, bytes);
    exporter_.fill(plain, bytes, kSeed);
    return {exporter_.allocate_shared(bytes, kSeed), {plain, exporter_.share(plain, bytes)}};
  }

  Process exporter_;
  Process importer_;
};

TEST_F(IpcOpen, reaches_the_same_bytes_until_the_last_close) {
  for (const Shared& shared : shared_of_both_kinds(3 * kMiB)) {
    SCOPED_TRACE(shared.handle.kind);
    importer_.belongings();
    const auto before = importer_.belongings();
    const Address opened = importer_.open(shared.handle);
    importer_.expect(opened, 3 * kMiB, kSeed);
    EXPECT_EQ(importer_.open(shared.handle, 0), opened) << "its own device, by number";
    importer_.fill(opened, 3 * kMiB, kSeed + 1);
    exporter_.expect(shared.address, 3 * kMiB, kSeed + 1);
    importer_.close(opened);
    importer_.expect(opened, 3 * kMiB, kSeed + 1);
    importer_.close(opened);
    EXPECT_EQ(importer_.belongings(), before);
    expect_refused(importer_.try_to_close(opened), VPMM_ERROR_INVALID_POINTER, "not open");
  }
}

TEST_F(IpcOpen, begins_at_the_offset_of_the_handle) {
  const Address whole = exporter_.allocate(4 * kMiB);
  const Address plain = allocate_plain_in(exporter_, 4 * kMiB);
  for (const Address address : {whole, plain}) {
    exporter_.fill(address + kMiB, kMiB, kSeed + 2);
    const Address opened = importer_.open(exporter_.share(address + kMiB, kMiB));
    importer_.expect(opened, kMiB, kSeed + 2);
    importer_.close(opened);
  }
}

TEST_F(IpcOpen, needs_a_device_that_there_is) {
  for (const Shared& shared : shared_of_both_kinds(2 * kMiB))
    for (const int device : {-2, 1, 1000})
      EXPECT_NE(importer_.try_to_open(shared.handle, device).status, VPMM_OK) << device;
}

// A handle of a token has no device: pool memory says by itself where it is.
TEST_F(IpcOpen, of_a_token_alone_finds_the_device) {
  const Shared shared = exporter_.allocate_shared(2 * kMiB, kSeed);
  vpmm_ipc_handle read{};
  ASSERT_EQ(vpmm_ipc_read_token(shared.handle.token, &read), VPMM_OK) << vpmm_last_error();
  const Address opened = importer_.open(read);
  importer_.expect(opened, 2 * kMiB, kSeed);
  importer_.close(opened);
}

TEST_F(IpcOpen, of_a_device_of_another_machine_is_refused) {
  for (Shared& shared : shared_of_both_kinds(2 * kMiB)) {
    shared.handle.device_uuid[0] ^= 0xFF;
    expect_refused(importer_.try_to_open(shared.handle), VPMM_ERROR_UNSUPPORTED, "device");
  }
}

TEST_F(IpcOpen, staged_gives_a_copy_that_is_the_pools) {
  for (const Shared& shared : shared_of_both_kinds(3 * kMiB)) {
    const Address copy = importer_.open_staged(shared.handle);
    importer_.expect(copy, 3 * kMiB, kSeed);
    EXPECT_EQ(importer_.statistics().live_bytes, 3 * kMiB);
    importer_.free(copy);
    exporter_.end(shared.handle);
  }
}

// Of the exporter: its memory is nobody's once the other process has closed it.
TEST_F(IpcOpen, holds_memory_that_was_freed_and_a_deferred_close_lets_it_go) {
  for (const bool is_deferred : {false, true}) {
    const Shared shared = exporter_.allocate_shared(2 * kMiB, kSeed);
    const Address opened = importer_.open(shared.handle);
    exporter_.free(shared.address);
    exporter_.end(shared.handle);
    EXPECT_GE(exporter_.leased(), 2 * kMiB);
    if (is_deferred)
      importer_.call([](Parcel& asked) { vpmm_ipc_close_deferred(to_pointer(asked.words[0])); },
                     with_address(opened));
    else
      importer_.close(opened);
    ipc_test::expect_leases_to_end(exporter_);
    expect_refused(importer_.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "");
  }
}

TEST_F(IpcOpen, outlives_the_pool) {
  static vpmm_pool* own = nullptr;
  const Parcel made = exporter_.call([](Parcel& parcel) {
    void* ptr = nullptr;
    parcel.take(vpmm_pool_create(0, nullptr, &own));
    if (parcel.status == VPMM_OK) parcel.take(vpmm_allocate_any_stream(own, 2 * kMiB, 0, &ptr));
    parcel.words[0] = reinterpret_cast<Address>(ptr);
  });
  expect_ok(made);
  exporter_.fill(made.words[0], 2 * kMiB, kSeed);
  const vpmm_ipc_handle handle = exporter_.share(made.words[0], 2 * kMiB);
  const Address opened = importer_.open(handle);
  expect_ok(exporter_.call([](Parcel& parcel) { parcel.take(vpmm_pool_destroy(own)); }));
  importer_.expect(opened, 2 * kMiB, kSeed);
  expect_refused(Process().try_to_open(handle), VPMM_ERROR_NOT_SHARED, "freed");
  importer_.close(opened);
}

// --- closings wait for work, and break no capture

class IpcClose : public testing::Test {
 protected:
  void SetUp() override { opened_ = importer_.open(shared_.handle); }

  // A capture of a stream, of which the driver knows, that a wait for its context would break.
  void begin_capture(driver::StreamFlags flags) {
    Parcel parcel;
    parcel.words[0] = flags == driver::StreamFlags::blocking ? 1 : 0;
    expect_ok(importer_.call(
        [](Parcel& asked) {
          driver::Driver& driver = driver_of_actor();
          const bool is_begun =
              driver.stream_create(asked.words[0] != 0 ? driver::StreamFlags::blocking
                                                       : driver::StreamFlags::non_blocking,
                                   stream()) == driver::CuResult::success &&
              driver.stream_begin_capture(stream(), driver::CaptureMode::global) ==
                  driver::CuResult::success;
          asked.status = is_begun ? VPMM_OK : VPMM_ERROR_DRIVER_FAILED;
        },
        parcel));
  }
  // That it is whole is what the driver says.
  void end_capture() {
    expect_ok(importer_.call([](Parcel& asked) {
      driver::Driver& driver = driver_of_actor();
      driver::GraphHandle graph{};
      const auto ended = driver.stream_end_capture(stream(), graph);
      asked.status = ended == driver::CuResult::success ? VPMM_OK : VPMM_ERROR_DRIVER_FAILED;
      asked.say(driver::to_string(ended));
      if (ended == driver::CuResult::success) driver.graph_destroy(graph);
      driver.stream_destroy(stream());
    }));
  }
  void expect_close_to_be_refused() {
    expect_refused(importer_.try_to_close(opened_), VPMM_ERROR_CAPTURE_ACTIVE, "captured");
  }
  void expect_close_to_work() {
    importer_.expect(opened_, 2 * kMiB, kSeed);
    importer_.close(opened_);
  }
  static driver::StreamHandle& stream() {
    static driver::StreamHandle handle{};
    return handle;
  }
  static vpmm_pool*& pool() {
    static vpmm_pool* open = nullptr;
    return open;
  }

  Process exporter_;
  Process importer_;
  const Shared shared_ = exporter_.allocate_shared(2 * kMiB, kSeed);
  Address opened_ = 0;
};

TEST_F(IpcClose, sees_a_capture_without_a_pool_and_beside_one) {
  for (const bool is_beside_a_pool : {false, true}) {
    if (is_beside_a_pool) importer_.allocate(kMiB);
    begin_capture(driver::StreamFlags::blocking);
    expect_close_to_be_refused();
    end_capture();
  }
  expect_close_to_work();
}

TEST_F(IpcClose, sees_a_capture_that_was_announced_to_any_pool) {
  expect_ok(importer_.call([](Parcel& asked) {
    pool_of_actor();
    asked.take(vpmm_pool_create(0, nullptr, &pool()));
  }));
  for (const bool is_private : {false, true}) {
    Parcel parcel;
    parcel.words[0] = is_private ? 1 : 0;
    expect_ok(importer_.call(
        [](Parcel& asked) {
          asked.take(vpmm_capture_begin(asked.words[0] != 0 ? pool() : pool_of_actor()));
        },
        parcel));
    begin_capture(driver::StreamFlags::non_blocking);
    expect_refused(importer_.try_to_close(opened_), VPMM_ERROR_CAPTURE_ACTIVE,
                   "a stream is being captured");
    end_capture();
    expect_ok(importer_.call(
        [](Parcel& asked) {
          asked.take(vpmm_capture_end(asked.words[0] != 0 ? pool() : pool_of_actor()));
        },
        parcel));
  }
  expect_close_to_work();
}

// The copy is there, and what was opened for it is closed later.
TEST_F(IpcClose, of_a_staged_copy_is_put_off_during_a_capture) {
  importer_.close(opened_);
  importer_.allocate(kMiB);
  expect_ok(importer_.call([](Parcel& asked) { asked.take(vpmm_capture_begin(pool_of_actor())); }));
  const Address copy = importer_.open_staged(shared_.handle);
  importer_.expect(copy, 2 * kMiB, kSeed);
  exporter_.free(shared_.address);
  exporter_.end(shared_.handle);
  EXPECT_GT(exporter_.leased(), 0U);
  expect_ok(importer_.call([](Parcel& asked) { asked.take(vpmm_capture_end(pool_of_actor())); }));
  importer_.close(importer_.open(exporter_.allocate_shared(kMiB, kSeed).handle));
  ipc_test::expect_leases_to_end(exporter_);
}

TEST_F(IpcClose, of_a_broken_device_says_so_as_the_pool_does) {
  importer_.allocate(kMiB);
  const Parcel broken = importer_.call(
      [](Parcel& asked) {
        auto* const gpu = dynamic_cast<driver::sim::SimDriver*>(&driver_of_actor());
        if (gpu == nullptr) return;
        gpu->break_context(0, driver::CuResult::illegal_address);
        asked.take(vpmm_ipc_close(to_pointer(asked.words[0])));
        asked.words[1] = static_cast<std::uint64_t>(vpmm_trim(pool_of_actor(), 0, nullptr));
      },
      with_address(opened_));
  EXPECT_EQ(broken.status, VPMM_ERROR_POISONED) << broken.said();
  EXPECT_EQ(broken.words[1], static_cast<std::uint64_t>(VPMM_ERROR_POISONED));
}

TEST_F(IpcClose, waits_for_the_work_of_the_device) {
  for (const bool is_beside_a_pool : {false, true}) {
    if (is_beside_a_pool) importer_.allocate(kMiB);
    expect_ok(importer_.call([](Parcel& asked) {
      auto* const gpu = dynamic_cast<driver::sim::SimDriver*>(&driver_of_actor());
      if (gpu == nullptr || gpu->stream_create(driver::StreamFlags::non_blocking, stream()) !=
                                driver::CuResult::success)
        asked.status = VPMM_ERROR_DRIVER_FAILED;
      else
        gpu->launch({"busy", 1'000'000'000'000, {}, {}}, stream());
    }));
    importer_.close(importer_.open(exporter_.allocate_shared(kMiB, kSeed).handle));
    const Parcel after = importer_.call([](Parcel& asked) {
      asked.words[0] = driver_of_actor().stream_query(stream()) == driver::CuResult::success;
    });
    EXPECT_EQ(after.words[0], 1U) << is_beside_a_pool;
  }
}

}  // namespace
}  // namespace vpmm::capi_test
