// SPDX-License-Identifier: Apache-2.0
// ipc tests: memory of one process is the same memory in another, whatever its size and wherever it
// begins.
#include <gtest/gtest.h>

#include <cstring>
#include <list>
#include <set>

#include "ipc/process.hpp"

namespace vpmm::ipc_test::sharing_test {
namespace {

constexpr std::uint64_t kMine = 1;
constexpr std::uint64_t kTheirs = 2;
const std::vector<std::string> kPageChunks = {"VPMM_CHUNK_MAX=page"};

// Both see what the other wrote.
void expect_both_ways(Process& exporter, Process& importer, Address address, Bytes bytes) {
  exporter.fill(address, bytes, kMine);
  const vpmm_ipc_handle handle = exporter.share(address, bytes);
  EXPECT_EQ(handle.kind, static_cast<std::uint32_t>(VPMM_IPC_POOL));
  EXPECT_EQ(handle.bytes, bytes);
  const Address opened = importer.open(handle);
  importer.expect(opened, bytes, kMine);
  importer.fill(opened, bytes, kTheirs);
  exporter.expect(address, bytes, kTheirs);
  importer.close(opened);
  exporter.end(handle);
}

TEST(IpcSharing, both_processes_write_and_read_the_same_bytes_of_any_size) {
  Process exporter;
  Process importer;
  for (const Bytes bytes :
       {Bytes{1}, Bytes{256}, Bytes{1000}, 100 * kKiB, kMiB, 2 * kMiB, 3 * kMiB + 8, 200 * kMiB}) {
    SCOPED_TRACE(bytes);
    const Address address = exporter.allocate(bytes);
    expect_both_ways(exporter, importer, address, bytes);
    exporter.free(address);
  }
}

TEST(IpcSharing, a_slice_of_an_allocation_opens_at_its_own_begin) {
  Process exporter;
  Process importer;
  for (const Bytes bytes : {100 * kKiB, 9 * kMiB}) {
    const Address address = exporter.allocate(bytes);
    for (const Bytes offset : {Bytes{256}, Bytes{8}, bytes / 2, bytes - 1000}) {
      SCOPED_TRACE(offset);
      expect_both_ways(exporter, importer, address + offset, 1000);
      const vpmm_ipc_handle handle = exporter.share(address + offset, 1000);
      EXPECT_EQ(handle.offset, offset);
      exporter.end(handle);
    }
  }
}

TEST(IpcSharing, memory_beyond_an_allocation_is_not_shared) {
  Process exporter;
  const Address address = exporter.allocate(4 * kMiB);
  expect_refused(exporter.try_to_share(address + kMiB, 4 * kMiB), VPMM_ERROR_INVALID_ARGUMENT,
                 "not inside");
  expect_refused(exporter.try_to_share(address, 0), VPMM_ERROR_INVALID_ARGUMENT, "0 bytes");
  expect_refused(exporter.try_to_share(0x1234, 8), VPMM_ERROR_INVALID_POINTER, "0x1234");
}

TEST(IpcSharing, three_hundred_chunks_arrive_in_their_order) {
  Process exporter(kPageChunks);
  Process importer;
  constexpr Bytes kSize = 300 * 2 * kMiB;
  const Address address = exporter.allocate(kSize);
  EXPECT_GE(exporter.statistics().chunks, 300U);
  expect_both_ways(exporter, importer, address, kSize);
  expect_both_ways(exporter, importer, address + 101 * kMiB, 99 * kMiB);
}

TEST(IpcSharing, tens_of_gibibytes_open_as_one_range) {
  Process exporter;
  Process importer;
  constexpr Bytes kSize = 40 * kGiB;
  const Address address = exporter.allocate(kSize);
  const std::vector<Bytes> places = {0, 7 * kGiB + 4096, 25 * kGiB, kSize - kMiB};
  for (std::size_t i = 0; i < places.size(); ++i) exporter.fill(address + places[i], kMiB, i);
  const Address opened = importer.open(exporter.share(address, kSize));
  for (std::size_t i = 0; i < places.size(); ++i) importer.expect(opened + places[i], kMiB, i);
  importer.close(opened);
}

TEST(IpcSharing, eight_processes_open_the_memory_of_one_at_once) {
  Process exporter(kPageChunks);
  constexpr Bytes kSize = 64 * kMiB;
  const Shared shared = exporter.allocate_shared(kSize, kMine);
  std::list<Process> importers;
  for (int i = 0; i < 8; ++i) importers.emplace_back();
  for (Process& importer : importers) importer.begin_to_open(shared.handle);
  std::uint64_t part = 0;
  std::vector<Address> opened;
  for (Process& importer : importers) {
    const Parcel answer = importer.finish();
    expect_ok(answer);
    opened.push_back(answer.words[0]);
    importer.expect(opened.back(), kSize, kMine);
  }
  for (Process& importer : importers) {
    importer.fill(opened[part] + part * kMiB, kMiB, 100 + part);
    ++part;
  }
  for (part = 0; part < 8; ++part) exporter.expect(shared.address + part * kMiB, kMiB, 100 + part);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  part = 0;
  for (Process& importer : importers) {
    EXPECT_GT(exporter.leased(), 0U);
    importer.close(opened[part++]);
  }
  expect_leases_to_end(exporter);
}

TEST(IpcSharing, a_hundred_handles_of_one_process_are_open_at_once) {
  Process exporter;
  Process importer;
  std::vector<Shared> shared;
  std::set<Address> opened;
  for (std::uint64_t i = 0; i < 100; ++i) {
    const Bytes bytes = i % 2 == 0 ? 1000 + i : 2 * kMiB;
    shared.push_back(exporter.allocate_shared(bytes, i));
    const Address address = importer.open(shared.back().handle);
    importer.expect(address, bytes, i);
    opened.insert(address);
  }
  EXPECT_EQ(opened.size(), 100U);
  for (const Address address : opened) importer.close(address);
}

TEST(IpcSharing, a_process_is_exporter_and_importer_at_once) {
  Process one;
  Process other;
  const Shared of_one = one.allocate_shared(5 * kMiB, kMine);
  const Shared of_other = other.allocate_shared(5 * kMiB, kTheirs);
  one.begin_to_open(of_other.handle);
  other.begin_to_open(of_one.handle);
  const Parcel at_one = one.finish();
  const Parcel at_other = other.finish();
  one.expect(at_one.words[0], 5 * kMiB, kTheirs);
  other.expect(at_other.words[0], 5 * kMiB, kMine);
  one.close(at_one.words[0]);
  other.close(at_other.words[0]);
}

TEST(IpcSharing, a_staged_copy_is_the_importers_own) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(33 * kMiB, kMine);
  const Address copy = importer.open_staged(shared.handle);
  importer.expect(copy, 33 * kMiB, kMine);
  importer.fill(copy, 33 * kMiB, kTheirs);
  exporter.expect(shared.address, 33 * kMiB, kMine);
  exporter.end(shared.handle);
  exporter.free(shared.address);
  expect_leases_to_end(exporter);  // the copy holds nothing
  importer.free(copy);
}

TEST(IpcSharing, openings_are_counted_and_the_last_close_unmaps) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(6 * kMiB, kMine);
  importer.belongings();
  const Belongings before = importer.belongings();
  const Address first = importer.open(shared.handle);
  EXPECT_EQ(importer.open(shared.handle), first);
  EXPECT_EQ(importer.open(shared.handle, 0), first);
  importer.close(first);
  importer.close(first);
  importer.expect(first, 6 * kMiB, kMine);
  EXPECT_EQ(importer.belongings().reservations, before.reservations + 1);
  importer.close(first);
  EXPECT_EQ(importer.belongings(), before);
  expect_refused(importer.try_to_close(first), VPMM_ERROR_INVALID_POINTER, "not open");
}

Parcel read_token(Process& process, const vpmm_ipc_handle& handle) {
  Parcel parcel;
  parcel.handle = handle;
  return process.call(
      [](Parcel& asked) {
        vpmm_ipc_handle read{};
        asked.take(vpmm_ipc_read_token(asked.handle.token, &read));
        asked.handle = read;
      },
      parcel);
}

TEST(IpcSharing, a_token_alone_is_enough) {
  Process exporter;
  Process importer;
  const Shared whole = exporter.allocate_shared(4 * kMiB, kMine);
  const vpmm_ipc_handle slice = exporter.share(whole.address + kMiB, 1000);
  const Parcel read = read_token(importer, slice);
  expect_ok(read);
  EXPECT_EQ(read.handle.bytes, 1000U);
  EXPECT_EQ(read.handle.offset, kMiB);
  EXPECT_EQ(std::memcmp(read.handle.token, slice.token, sizeof slice.token), 0);
  const Address by_token = importer.open(read.handle);
  EXPECT_EQ(importer.open(slice), by_token);
  EXPECT_EQ(importer.open(read.handle), by_token);
  for (int i = 0; i < 3; ++i) importer.close(by_token);
  expect_refused(importer.try_to_close(by_token), VPMM_ERROR_INVALID_POINTER, "not open");
  exporter.free(whole.address);
  exporter.end(whole.handle);
  exporter.end(slice);
  expect_leases_to_end(exporter);
}

TEST(IpcSharing, a_handle_is_not_opened_in_its_own_process) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(2 * kMiB, kMine);
  expect_refused(exporter.try_to_open(shared.handle), VPMM_ERROR_INVALID_ARGUMENT,
                 "the process that exported it");
}

TEST(IpcSharing, what_was_opened_is_not_exported_and_its_handle_opens_in_a_third_process) {
  Process exporter;
  Process importer;
  Process third;
  const Shared shared = exporter.allocate_shared(2 * kMiB, kMine);
  const Address opened = importer.open(shared.handle);
  expect_refused(importer.try_to_share(opened, 2 * kMiB), VPMM_ERROR_INVALID_POINTER,
                 "neither memory of a pool");
  third.expect(third.open(shared.handle), 2 * kMiB, kMine);
}

// What the exporter's pools are called after is no business of the importer's: a private one shares
// as well.
TEST(IpcSharing, a_pool_of_its_own_shares_and_ends_while_others_have_its_memory) {
  Process exporter;
  Process importer;
  static vpmm_pool* of_its_own = nullptr;
  const Parcel made = exporter.call([](Parcel& parcel) {
    void* ptr = nullptr;
    parcel.take(vpmm_pool_create(0, nullptr, &of_its_own));
    if (parcel.status == VPMM_OK)
      parcel.take(vpmm_allocate_any_stream(of_its_own, 8 * kMiB, 0, &ptr));
    parcel.words[0] = reinterpret_cast<Address>(ptr);
  });
  expect_ok(made);
  exporter.fill(made.words[0], 8 * kMiB, kMine);
  const vpmm_ipc_handle handle = exporter.share(made.words[0], 8 * kMiB);
  const Address opened = importer.open(handle);
  expect_ok(exporter.call([](Parcel& parcel) { parcel.take(vpmm_pool_destroy(of_its_own)); }));
  importer.expect(opened, 8 * kMiB, kMine);
  expect_refused(Process().try_to_open(handle), VPMM_ERROR_NOT_SHARED, "freed");
  importer.close(opened);
  exporter.end(handle);
  const Shared of_another = exporter.allocate_shared(kMiB, kTheirs);
  importer.expect(importer.open(of_another.handle), kMiB, kTheirs);
}

}  // namespace
}  // namespace vpmm::ipc_test::sharing_test
