// SPDX-License-Identifier: Apache-2.0
// ipc tests: plain memory of the driver, which goes by CUDA's own IPC, through the same functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "driver/forwarding.hpp"
#include "ipc/importer.hpp"
#include "ipc/process.hpp"

namespace vpmm::ipc_test::legacy_memory_test {
namespace {

constexpr std::uint64_t kSeed = 7;

Address allocate_plain(Process& process, Bytes bytes) {
  Parcel parcel;
  parcel.words[0] = bytes;
  return process
      .call(
          [](Parcel& asked) {
            DevicePtr ptr{};
            if (driver_of_actor().mem_alloc(asked.words[0], ptr) != driver::CuResult::success)
              std::abort();
            asked.words[0] = to_integer(ptr);
          },
          parcel)
      .words[0];
}

void free_plain(Process& process, Address address) {
  Parcel parcel;
  parcel.words[0] = address;
  process.call(
      [](Parcel& asked) {
        if (driver_of_actor().mem_free(DevicePtr{asked.words[0]}) != driver::CuResult::success)
          std::abort();
      },
      parcel);
}

TEST(IpcLegacy, plain_memory_and_what_lies_inside_it_open_elsewhere) {
  Process exporter;
  Process importer;
  importer.belongings();
  const Belongings before = importer.belongings();
  for (const Bytes bytes : {Bytes{5000}, 3 * kMiB, 64 * kMiB}) {
    for (const Bytes offset : {Bytes{0}, Bytes{256}, bytes / 2}) {
      SCOPED_TRACE(offset);
      const Address address = allocate_plain(exporter, bytes);
      const Bytes size = bytes - offset;
      exporter.fill(address + offset, size, kSeed);
      const vpmm_ipc_handle handle = exporter.share(address + offset, size);
      EXPECT_EQ(handle.kind, static_cast<std::uint32_t>(VPMM_IPC_LEGACY));
      EXPECT_EQ(handle.offset, offset);
      EXPECT_EQ(handle.bytes, size);
      const Address opened = importer.open(handle);
      importer.expect(opened, size, kSeed);
      importer.fill(opened, size, kSeed + 1);
      exporter.expect(address + offset, size, kSeed + 1);
      EXPECT_EQ(importer.open(handle), opened);
      importer.close(opened);
      importer.expect(opened, size, kSeed + 1);
      importer.close(opened);
      expect_refused(importer.try_to_close(opened), VPMM_ERROR_INVALID_POINTER, "not open");
      exporter.end(handle);
      free_plain(exporter, address);
    }
  }
  EXPECT_EQ(importer.belongings(), before);
}

TEST(IpcLegacy, two_places_of_one_allocation_are_open_at_once) {
  Process exporter;
  Process importer;
  const Address address = allocate_plain(exporter, 4 * kMiB);
  exporter.fill(address, 4 * kMiB, kSeed);
  const Address whole = importer.open(exporter.share(address, 4 * kMiB));
  const Address half = importer.open(exporter.share(address + 2 * kMiB, 2 * kMiB));
  EXPECT_EQ(half, whole + 2 * kMiB);
  importer.close(whole);
  importer.fill(half, 2 * kMiB, kSeed + 1);
  exporter.expect(address + 2 * kMiB, 2 * kMiB, kSeed + 1);
  importer.close(half);
}

TEST(IpcLegacy, memory_is_copied_staged) {
  Process exporter;
  Process importer;
  const Address address = allocate_plain(exporter, 40 * kMiB);
  exporter.fill(address, 40 * kMiB, kSeed);
  const Address copy = importer.open_staged(exporter.share(address, 40 * kMiB));
  exporter.fill(address, 40 * kMiB, kSeed + 1);
  importer.expect(copy, 40 * kMiB, kSeed);
  importer.free(copy);
}

TEST(IpcLegacy, a_handle_is_not_opened_in_its_own_process) {
  Process exporter;
  const Address address = allocate_plain(exporter, kMiB);
  expect_refused(exporter.try_to_open(exporter.share(address, kMiB)), VPMM_ERROR_INVALID_ARGUMENT,
                 "the process that exported it");
}

TEST(IpcLegacy, what_is_gone_is_reported_and_what_is_open_stays) {
  Process exporter;
  Process importer;
  const Address freed = allocate_plain(exporter, 2 * kMiB);
  const vpmm_ipc_handle stale = exporter.share(freed, 2 * kMiB);
  free_plain(exporter, freed);
  expect_refused(importer.try_to_open(stale), VPMM_ERROR_NOT_SHARED, "freed");
  const Address address = allocate_plain(exporter, 3 * kMiB);
  exporter.fill(address, 3 * kMiB, kSeed);
  const vpmm_ipc_handle handle = exporter.share(address, 3 * kMiB);
  const Address opened = importer.open(handle);
  exporter.kill();
  importer.expect(opened, 3 * kMiB, kSeed);
  importer.close(opened);
  expect_refused(importer.try_to_open(handle), VPMM_ERROR_NOT_SHARED, "gone");
}

TEST(IpcLegacy, a_range_beyond_an_allocation_and_a_nameless_device_are_refused) {
  Process exporter;
  Process importer;
  const Address address = allocate_plain(exporter, 2 * kMiB);
  expect_refused(exporter.try_to_share(address + kMiB, 2 * kMiB), VPMM_ERROR_INVALID_ARGUMENT,
                 "not inside");
  expect_refused(exporter.try_to_share(address, 0), VPMM_ERROR_INVALID_ARGUMENT, "0 bytes");
  vpmm_ipc_handle nameless = exporter.share(address, 2 * kMiB);
  std::memset(nameless.device_uuid, 0, sizeof nameless.device_uuid);
  expect_refused(importer.try_to_open(nameless), VPMM_ERROR_INVALID_ARGUMENT, "device");
  importer.close(importer.open(nameless, 0));
  vpmm_ipc_handle elsewhere = exporter.share(address, 2 * kMiB);
  elsewhere.device_uuid[0] ^= 1;
  for (const int device : {-1, 0})
    expect_refused(importer.try_to_open(elsewhere, device), VPMM_ERROR_UNSUPPORTED, "does not see");
  vpmm_ipc_handle damaged = exporter.share(address, 2 * kMiB);
  damaged.token[0] ^= 1;
  EXPECT_NE(importer.try_to_open(damaged).status, VPMM_OK);
  vpmm_ipc_handle read{};
  EXPECT_EQ(vpmm_ipc_read_token(damaged.token, &read), VPMM_ERROR_INVALID_ARGUMENT);
}

// Also if its memory is open already: the copy of such a handle would go beyond it.
TEST(IpcLegacy, a_handle_of_more_than_its_allocation_is_refused_and_nothing_stays_open) {
  Process exporter;
  Process importer;
  importer.belongings();
  const Belongings before = importer.belongings();
  const Shared of_pool = exporter.allocate_shared(2 * kMiB, kSeed);
  const vpmm_ipc_handle whole = exporter.share(allocate_plain(exporter, 2 * kMiB), 2 * kMiB);
  const Address kept = importer.open(of_pool.handle);
  for (const bool is_open : {false, true}) {
    SCOPED_TRACE(is_open);
    const Address opened = importer.open(whole);
    const auto to_pool = static_cast<Bytes>(kept - opened);  // wraps around below
    if (!is_open) importer.close(opened);
    const Belongings expected = importer.belongings();
    const std::vector<std::pair<Bytes, Bytes>> ranges = {{0, 2 * kMiB + 1}, {kMiB, kMiB + 1},
                                                         {2 * kMiB, 0},     {to_pool, 1},
                                                         {1, ~Bytes{0}},    {~Bytes{0}, 2}};
    for (const auto& [offset, bytes] : ranges) {
      SCOPED_TRACE(offset);
      vpmm_ipc_handle changed = whole;
      changed.offset = offset;
      changed.bytes = bytes;
      expect_refused(importer.try_to_open(changed), VPMM_ERROR_INVALID_ARGUMENT,
                     std::to_string(bytes) + " bytes at offset " + std::to_string(offset));
    }
    EXPECT_EQ(importer.belongings(), expected);
    if (is_open) importer.close(opened);
  }
  importer.expect(kept, 2 * kMiB, kSeed);
  importer.close(kept);
  EXPECT_EQ(importer.belongings(), before);
}

// Whatever is current in the thread that asks stays so.
TEST(IpcLegacy, memory_is_exported_by_a_thread_without_context) {
  Process exporter;
  Process importer;
  const Address address = allocate_plain(exporter, 3 * kMiB);
  exporter.fill(address, 3 * kMiB, kSeed);
  const vpmm_ipc_handle expected = exporter.share(address, 3 * kMiB);
  Parcel parcel;
  parcel.words[0] = address;
  const Parcel shared = exporter.call(
      [](Parcel& asked) {
        driver::Driver& driver = driver_of_actor();
        driver.ctx_set_current({});
        asked.take(
            vpmm_ipc_export(reinterpret_cast<void*>(asked.words[0]), 3 * kMiB, &asked.handle));
        driver::ContextHandle current{};
        driver.ctx_get_current(current);
        asked.words[0] = current == driver::ContextHandle{} ? 1 : 0;
      },
      parcel);
  expect_ok(shared);
  EXPECT_EQ(shared.words[0], 1U) << "no context is current afterwards";
  EXPECT_EQ(std::memcmp(&shared.handle, &expected, sizeof expected), 0);
  const Address opened = importer.open(shared.handle);
  importer.expect(opened, 3 * kMiB, kSeed);
  importer.close(opened);
}

void reset_context(Process& process) {
  expect_ok(process.call([](Parcel&) {
    driver::Driver& driver = driver_of_actor();
    driver.device_primary_ctx_reset(0);
    driver.ctx_set_current({});
  }));
}

// The driver has closed what was open, and gives its address to others.
TEST(IpcLegacy, memory_is_opened_afresh_after_a_reset_of_the_importers_context) {
  Process exporter;
  Process importer;
  const Address address = allocate_plain(exporter, 3 * kMiB);
  exporter.fill(address, 3 * kMiB, kSeed);
  const vpmm_ipc_handle handle = exporter.share(address, 3 * kMiB);
  importer.open(handle);
  reset_context(importer);
  const Address opened = importer.open(handle);
  importer.expect(opened, 3 * kMiB, kSeed);
  EXPECT_EQ(importer.open(handle), opened);
  importer.close(opened);
  importer.expect(opened, 3 * kMiB, kSeed);
  importer.close(opened);
  expect_refused(importer.try_to_close(opened), VPMM_ERROR_INVALID_POINTER, "not open");
}

TEST(IpcLegacy, memory_that_a_reset_closed_is_closed_once_more_without_the_driver) {
  Process exporter;
  Process importer;
  const vpmm_ipc_handle handle = exporter.share(allocate_plain(exporter, 3 * kMiB), 3 * kMiB);
  const Address opened = importer.open(handle);
  reset_context(importer);
  importer.close(opened);
  expect_refused(importer.try_to_close(opened), VPMM_ERROR_INVALID_POINTER, "not open");
}

// Opens at the address that a test chooses.
class PlacingDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult ipc_open_mem_handle(const driver::IpcMemHandle&, DevicePtr& ptr) override {
    ptr = DevicePtr{place};
    return driver::CuResult::success;
  }
  driver::CuResult ipc_close_mem_handle(DevicePtr) override {
    ++closings;
    return driver::CuResult::success;
  }
  driver::CuResult mem_get_address_range(DevicePtr inside, AddressRange& range) override {
    range = {inside, 4096};
    return known;
  }
  Address place = 0;
  driver::CuResult known = driver::CuResult::success;
  std::uint64_t closings = 0;
};

TEST(IpcLegacy, memory_at_the_address_of_what_a_reset_closed_takes_its_place) {
  Process importer;
  const Parcel answer = importer.call([](Parcel& parcel) {
    static PlacingDriver driver(driver_of_actor());
    constexpr Address kPlace = 1 << 20, kOther = 2 << 20;
    const auto open = [&](std::uint8_t which, Address place) {
      driver.place = place;
      ipc::IpcHandle handle;
      handle.kind = ipc::TokenKind::legacy;
      handle.token.fill(std::byte{which});
      const auto opened = ipc::Importer::of_process().open(driver, handle, 0);
      return opened.ok() && to_integer(opened.value()) == place;
    };
    const auto close = [&](Address place) {
      return ipc::Importer::of_process().close(DevicePtr{place}).ok();
    };
    const bool is_open = open(1, kPlace);
    driver.device_primary_ctx_reset(0);
    driver.ctx_set_current({});
    const std::array<bool, 7> all{is_open,       open(2, kPlace), open(1, kOther), close(kPlace),
                                  close(kOther), !close(kPlace),  !close(kOther)};
    // The same memory at another address: the former is nobody's.
    const bool is_open_once_more = open(3, kPlace);
    driver.device_primary_ctx_reset(0);
    driver.ctx_set_current({});
    const std::array<bool, 5> then{is_open_once_more, open(3, kOther), !close(kPlace),
                                   close(kOther), !close(kOther)};
    std::copy(then.begin(), then.end(), std::copy(all.begin(), all.end(), parcel.words.begin()));
  });
  EXPECT_EQ(answer.words, (std::array<std::uint64_t, 16>{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
}

TEST(IpcLegacy, memory_whose_end_the_driver_does_not_know_is_opened_and_after_other_errors_closed) {
  using driver::CuResult;
  for (const auto& [known, is_opened] :
       {std::pair(CuResult::not_found, 1U), std::pair(CuResult::invalid_value, 1U),
        std::pair(CuResult::illegal_address, 0U)}) {
    Process importer;
    Parcel question;
    question.words = {static_cast<std::uint64_t>(known)};
    const Parcel answer = importer.call(
        [](Parcel& parcel) {
          static PlacingDriver driver(driver_of_actor());
          driver.place = 1 << 20;
          driver.known = static_cast<CuResult>(parcel.words[0]);
          ipc::IpcHandle handle;
          handle.kind = ipc::TokenKind::legacy;
          handle.size = 1 << 20;
          const auto opened = ipc::Importer::of_process().open(driver, handle, 0);
          parcel.words = {opened.ok() ? 1U : 0U, driver.closings};
        },
        question);
    EXPECT_EQ(answer.words[0], is_opened);
    EXPECT_EQ(answer.words[1], 1 - is_opened);
  }
}

}  // namespace
}  // namespace vpmm::ipc_test::legacy_memory_test
