// SPDX-License-Identifier: Apache-2.0
// ipc tests: what is freed while others hold it stays as it is, and is used again when the last of
// them let go.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "ipc/process.hpp"

namespace vpmm::ipc_test::lease_test {
namespace {

constexpr std::uint64_t kSeed = 5;
const std::vector<Bytes> kSizes = {1000, 100 * kKiB, 2 * kMiB, 24 * kMiB};

bool overlap(Address one, Address other, Bytes bytes) {
  return one < other + bytes && other < one + bytes;
}

// Tries to get the memory at `shared` from the pool in every way there is.
void expect_never_reused(Process& exporter, Address shared, Bytes bytes) {
  for (int round = 0; round < 3; ++round) {
    std::vector<Address> others;
    for (int i = 0; i < 8; ++i) others.push_back(exporter.allocate(bytes));
    for (const Address other : others) {
      EXPECT_FALSE(overlap(shared, other, bytes));
      exporter.fill(other, bytes, 77);
    }
    for (const Address other : others) exporter.free(other);
    exporter.trim();
  }
}

TEST(IpcLease, memory_that_an_importer_has_open_is_not_used_again_before_it_closes) {
  Process importer;
  for (const Bytes bytes : kSizes) {
    SCOPED_TRACE(bytes);
    Process exporter;
    const Shared shared = exporter.allocate_shared(bytes, kSeed);
    const Address opened = importer.open(shared.handle);
    exporter.end(shared.handle);
    EXPECT_EQ(exporter.leased(), 0U) << "nothing is freed yet";
    exporter.free(shared.address);
    EXPECT_GE(exporter.leased(), bytes);
    expect_never_reused(exporter, shared.address, bytes);
    importer.expect(opened, bytes, kSeed);
    importer.close(opened);
    expect_leases_to_end(exporter);
    exporter.trim();
    EXPECT_EQ(exporter.statistics().mapped_bytes, 0U);
    EXPECT_EQ(exporter.statistics().live_allocations, 0U);
  }
}

TEST(IpcLease, an_export_that_has_not_ended_holds_its_memory_and_opens) {
  Process importer;
  for (const Bytes bytes : kSizes) {
    SCOPED_TRACE(bytes);
    Process exporter;
    const Shared shared = exporter.allocate_shared(bytes, kSeed);
    const vpmm_ipc_handle again = exporter.share(shared.address, bytes);
    exporter.free(shared.address);
    expect_never_reused(exporter, shared.address, bytes);
    const Address opened = importer.open(shared.handle);
    importer.expect(opened, bytes, kSeed);
    exporter.end(shared.handle);
    importer.close(opened);
    expect_never_reused(exporter, shared.address, bytes);
    EXPECT_GE(exporter.leased(), bytes) << "the other export has not ended";
    exporter.end(again);
    expect_leases_to_end(exporter);
    exporter.trim();
    EXPECT_EQ(exporter.statistics().mapped_bytes, 0U);
  }
}

TEST(IpcLease, the_rest_of_the_chunk_stays_in_use) {
  Process exporter;
  Process importer;
  for (const Bytes bytes : {Bytes{1000}, 2 * kMiB}) {
    SCOPED_TRACE(bytes);
    exporter.free(exporter.allocate(64 * kMiB));  // one chunk, to be cut
    const Shared shared = exporter.allocate_shared(bytes, kSeed);
    Address neighbour = exporter.allocate(bytes);
    const Address opened = importer.open(shared.handle);
    exporter.free(shared.address);
    const std::uint64_t chunks = exporter.statistics().chunks;
    for (std::uint64_t i = 0; i < 10; ++i) {
      exporter.fill(neighbour, bytes, i);
      exporter.expect(neighbour, bytes, i);
      exporter.free(neighbour);
      neighbour = exporter.allocate(bytes);
      EXPECT_FALSE(overlap(shared.address, neighbour, bytes));
    }
    EXPECT_EQ(exporter.statistics().chunks, chunks);
    importer.expect(opened, bytes, kSeed);
    importer.close(opened);
    exporter.end(shared.handle);
    exporter.free(neighbour);
    expect_leases_to_end(exporter);
    exporter.trim();
  }
}

TEST(IpcLease, memory_that_everybody_let_go_of_is_handed_out_again) {
  Process importer;
  for (const Bytes bytes : kSizes) {
    SCOPED_TRACE(bytes);
    Process exporter;
    const Shared shared = exporter.allocate_shared(bytes, kSeed);
    const Address opened = importer.open(shared.handle);
    exporter.end(shared.handle);
    exporter.free(shared.address);
    importer.close(opened);
    expect_leases_to_end(exporter);
    std::vector<Address> others;
    Shared next;
    const auto is_there = [&] {
      return next.address < shared.address + bytes && shared.address < next.address + bytes;
    };
    for (int i = 0; !is_there() && i < 20000; ++i) {
      if (next.address != 0) others.push_back(next.address);
      next.address = exporter.allocate(bytes);
    }
    ASSERT_TRUE(is_there()) << "or in a part of it";
    for (const Address other : others) exporter.free(other);
    exporter.fill(next.address, bytes, kSeed + 1);
    next.handle = exporter.share(next.address, bytes);
    EXPECT_NE(std::memcmp(next.handle.token, shared.handle.token, sizeof next.handle.token), 0);
    expect_refused(importer.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "freed");
    const Address reopened = importer.open(next.handle);
    importer.expect(reopened, bytes, kSeed + 1);
    importer.close(reopened);
    exporter.end(next.handle);
    exporter.free(next.address);
    expect_leases_to_end(exporter);
    exporter.trim();
  }
}

// --- every way to free takes note

struct WayToFree {
  const char* name;
  Work work;  // words[0]: the address
};

void* pointer_in(const Parcel& parcel) { return reinterpret_cast<void*>(parcel.words[0]); }

const WayToFree kWaysToFree[] = {
    {"any_stream",
     [](Parcel& p) { p.take(vpmm_deallocate_any_stream(pool_of_actor(), pointer_in(p))); }},
    {"on_a_stream",
     [](Parcel& p) { p.take(vpmm_deallocate(pool_of_actor(), pointer_in(p), nullptr)); }},
    {"deferred",
     [](Parcel& p) {
       vpmm_deallocate_deferred(pool_of_actor(), pointer_in(p));
       p.take(vpmm_synchronize(pool_of_actor()));
     }},
    {"many",
     [](Parcel& p) {
       void* const pointer = pointer_in(p);
       p.take(vpmm_deallocate_many(pool_of_actor(), &pointer, 1, nullptr));
     }},
    {"bound",
     [](Parcel& p) {
       vpmm_bound_stream* bound = nullptr;
       p.take(vpmm_stream_bind(pool_of_actor(), nullptr, &bound));
       if (p.status != VPMM_OK) return;
       p.take(vpmm_bound_deallocate(bound, pointer_in(p)));
       vpmm_stream_unbind(bound);
     }},
};

class IpcLeaseWays : public testing::TestWithParam<WayToFree> {};

// On the stream that it was allocated on, so that the short cut would be there for it.
Address allocate_on_a_stream(Process& exporter, Bytes bytes) {
  Parcel parcel;
  parcel.words[1] = bytes;
  const Parcel answer = exporter.call(
      [](Parcel& asked) {
        driver_of_actor();
        void* ptr = nullptr;
        asked.take(vpmm_allocate(pool_of_actor(), asked.words[1], nullptr, &ptr));
        asked.words[0] = reinterpret_cast<Address>(ptr);
      },
      parcel);
  expect_ok(answer);
  return answer.words[0];
}

TEST_P(IpcLeaseWays, a_free_of_shared_memory_waits_for_its_holders) {
  Process exporter;
  Process importer;
  for (const Bytes bytes : kSizes) {
    SCOPED_TRACE(bytes);
    const Address address = allocate_on_a_stream(exporter, bytes);
    exporter.fill(address, bytes, kSeed);
    const vpmm_ipc_handle handle = exporter.share(address, bytes);
    const Address opened = importer.open(handle);
    exporter.end(handle);
    Parcel parcel;
    parcel.words[0] = address;
    expect_ok(exporter.call(GetParam().work, parcel));
    EXPECT_GE(exporter.leased(), bytes);
    std::vector<Address> others;
    for (int i = 0; i < 20; ++i) others.push_back(allocate_on_a_stream(exporter, bytes));
    for (const Address other : others) EXPECT_FALSE(overlap(address, other, bytes));
    for (const Address other : others) exporter.free(other);
    importer.expect(opened, bytes, kSeed);
    importer.close(opened);
    expect_leases_to_end(exporter);
    EXPECT_EQ(exporter.statistics().live_allocations, 0U);
  }
}

INSTANTIATE_TEST_SUITE_P(All, IpcLeaseWays, testing::ValuesIn(kWaysToFree),
                         [](const auto& tested) { return tested.param.name; });

// --- mistakes

TEST(IpcLease, a_second_free_of_leased_memory_is_a_mistake_and_changes_nothing) {
  Process exporter;
  Process importer;
  for (const Bytes bytes : kSizes) {
    SCOPED_TRACE(bytes);
    const Shared shared = exporter.allocate_shared(bytes, kSeed);
    const Address opened = importer.open(shared.handle);
    exporter.free(shared.address);
    expect_refused(exporter.try_to_free(shared.address), VPMM_ERROR_INVALID_POINTER, "");
    expect_refused(exporter.try_to_share(shared.address, bytes), VPMM_ERROR_INVALID_POINTER, "");
    Parcel asked;
    asked.words[0] = shared.address;
    expect_refused(exporter.call(
                       [](Parcel& parcel) {
                         vpmm_allocation_info info{};
                         info.size = sizeof info;
                         parcel.take(vpmm_query(pool_of_actor(), pointer_in(parcel), &info));
                       },
                       asked),
                   VPMM_ERROR_INVALID_POINTER, "");
    EXPECT_GE(exporter.leased(), bytes);
    importer.expect(opened, bytes, kSeed);
    importer.close(opened);
    exporter.end(shared.handle);
    expect_leases_to_end(exporter);
    expect_refused(exporter.try_to_free(shared.address), VPMM_ERROR_INVALID_POINTER, "");
  }
}

TEST(IpcLease, an_export_ends_once) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(2 * kMiB, kSeed);
  const vpmm_ipc_handle again = exporter.share(shared.address, 2 * kMiB);
  exporter.end(shared.handle);
  exporter.end(again);
  expect_refused(exporter.try_to_end(shared.handle), VPMM_ERROR_INVALID_ARGUMENT, "ended already");
  exporter.free(shared.address);
  expect_refused(exporter.try_to_end(shared.handle), VPMM_ERROR_INVALID_ARGUMENT, "ended already");
  expect_refused(Process().try_to_end(shared.handle), VPMM_ERROR_INVALID_ARGUMENT,
                 "another process");
}

TEST(IpcLease, ending_the_export_of_live_memory_changes_nothing_for_the_others) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(3 * kMiB, kSeed);
  exporter.end(shared.handle);
  const Address opened = importer.open(shared.handle);
  importer.expect(opened, 3 * kMiB, kSeed);
  exporter.expect(shared.address, 3 * kMiB, kSeed);
  importer.close(opened);
  exporter.free(shared.address);
  expect_leases_to_end(exporter);
  expect_refused(importer.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "freed");
}

// Its export has ended and nobody has it open, so it may be suspended.
TEST(IpcLease, an_opening_of_suspended_memory_says_so_and_works_after_the_resume) {
  Process exporter;
  Process importer;
  const Parcel made = exporter.call([](Parcel& parcel) {
    vpmm_pool* const pool = pool_of_actor();
    vpmm_request request{};
    request.size = sizeof request;
    request.bytes = 3 * kMiB;
    request.tag = 1;
    void* ptr = nullptr;
    parcel.take(vpmm_tag_make_suspendable(pool, 1, VPMM_TAG_BACKUP));
    if (parcel.status == VPMM_OK) parcel.take(vpmm_allocate_with(pool, &request, &ptr));
    parcel.words[0] = reinterpret_cast<Address>(ptr);
  });
  expect_ok(made);
  const Address address = made.words[0];
  exporter.fill(address, 3 * kMiB, kSeed);
  const vpmm_ipc_handle handle = exporter.share(address, 3 * kMiB);
  exporter.end(handle);
  expect_ok(exporter.call(
      [](Parcel& parcel) { parcel.take(vpmm_suspend(pool_of_actor(), 1, 0, nullptr)); }));
  expect_refused(importer.try_to_open(handle), VPMM_ERROR_SUSPENDED, "resume it");
  expect_ok(exporter.call([](Parcel& parcel) { parcel.take(vpmm_resume(pool_of_actor(), 1, 0)); }));
  const Address opened = importer.open(handle);
  importer.expect(opened, 3 * kMiB, kSeed);
  importer.close(opened);
}

}  // namespace
}  // namespace vpmm::ipc_test::lease_test
