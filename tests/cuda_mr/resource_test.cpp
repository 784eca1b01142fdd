// SPDX-License-Identifier: Apache-2.0
// cuda_mr: a pool's memory through cuda::mr's calls, on the simulated GPU.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>

#include "base/host_memory.hpp"
#include "cuda_mr/concepts.hpp"
#include "cuda_mr/mr_case.hpp"
#include "fault/host_faults.hpp"

namespace vpmm::cuda_mr_test {
namespace {

class MemoryResource : public MrCase {
 protected:
  cuda::stream_ref first() const { return cuda::stream_ref{streams_[0]}; }
  cuda::stream_ref second() const { return cuda::stream_ref{streams_[1]}; }
  std::uint64_t mistakes() const { return pool_.statistics().caller_mistakes; }

  memory_resource resource_{pool_};
};

TEST_F(MemoryResource, allocates_and_frees_on_the_streams_that_calls_name) {
  void* const ptr = resource_.allocate(first(), 3 * kMiB, 256);
  EXPECT_GE(pool_.usable_size(ptr), 3 * kMiB);
  EXPECT_EQ(last_event().kind, VPMM_EVENT_ALLOCATE);
  EXPECT_EQ(last_event().stream, streams_[0]);
  resource_.deallocate(second(), ptr, 3 * kMiB, 256);
  EXPECT_EQ(last_event().kind, VPMM_EVENT_FREE);
  EXPECT_EQ(last_event().stream, streams_[1]);
}

TEST_F(MemoryResource, memory_freed_on_another_stream_waits_for_that_stream) {
  void* const ptr = resource_.allocate(first(), 4 * kMiB, 256);
  ASSERT_EQ(cudaMemsetAsync(ptr, 1, 4 * kMiB, streams_[0]), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  keep_busy(streams_[1]);
  ASSERT_EQ(cudaMemsetAsync(ptr, 2, 4 * kMiB, streams_[1]), cudaSuccess);
  resource_.deallocate(second(), ptr, 4 * kMiB, 256);
  void* const next =
      resource_.allocate(first(), 4 * kMiB, 256);  // the fixture looks whether the checker objects
  ASSERT_EQ(cudaMemsetAsync(next, 3, 4 * kMiB, streams_[0]), cudaSuccess);
  resource_.deallocate(first(), next, 4 * kMiB, 256);
}

TEST_F(MemoryResource, memory_freed_on_its_stream_is_used_again_at_once) {
  void* const ptr = resource_.allocate(first(), 4 * kMiB, 256);
  keep_busy(streams_[0]);
  resource_.deallocate(first(), ptr, 4 * kMiB, 256);
  void* const again = resource_.allocate(first(), 4 * kMiB, 256);
  EXPECT_EQ(again, ptr);
  resource_.deallocate(first(), again, 4 * kMiB, 256);
}

TEST_F(MemoryResource, handle_0_is_the_legacy_default_stream) {
  resource_.deallocate(cuda::stream_ref{cudaStream_t{}},
                       resource_.allocate(cuda::stream_ref{cudaStream_t{}}, 1, 1), 1, 1);
  EXPECT_EQ(last_event().stream, handle(1));
  resource_.deallocate(cuda::stream_ref{cudaStreamPerThread}, resource_.allocate(first(), 1, 1), 1,
                       1);
  EXPECT_EQ(last_event().stream, handle(2));
}

TEST_F(MemoryResource, memory_for_any_stream_names_none) {
  void* const ptr = resource_.allocate_sync(kMiB, 256);
  EXPECT_EQ(last_event().flags, std::uint32_t{VPMM_EVENT_NO_STREAM});
  resource_.deallocate_sync(ptr, kMiB, 256);
  EXPECT_EQ(last_event().kind, VPMM_EVENT_FREE);
  EXPECT_EQ(last_event().flags, std::uint32_t{VPMM_EVENT_NO_STREAM});
}

TEST_F(MemoryResource, zero_bytes_are_null_and_null_is_freed_by_doing_nothing) {
  EXPECT_EQ(resource_.allocate(first(), 0, 256), nullptr);
  EXPECT_EQ(resource_.allocate_sync(0, 256), nullptr);
  resource_.deallocate(first(), nullptr, 0, 256);
  resource_.deallocate_sync(nullptr, 0, 256);
  EXPECT_EQ(mistakes(), 0U);
}

TEST_F(MemoryResource, alignments_from_1_byte_to_pages_hold) {
  for (std::size_t alignment = 1; alignment <= 64 * kMiB; alignment *= 4) {
    for (const std::size_t bytes : {std::size_t{1}, 5 * kMiB}) {
      void* const ptr = resource_.allocate(first(), bytes, alignment);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ptr) % std::max<std::size_t>(alignment, 256), 0U);
      resource_.deallocate(first(), ptr, bytes, alignment);
      void* const any = resource_.allocate_sync(bytes, alignment);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(any) % std::max<std::size_t>(alignment, 256), 0U);
      resource_.deallocate_sync(any, bytes, alignment);
    }
  }
}

TEST_F(MemoryResource, an_alignment_that_is_no_power_of_two_is_refused_by_name) {
  try {
    (void)resource_.allocate(first(), 100, 384);
    FAIL() << "took an alignment of 384";
  } catch (const std::runtime_error& refused) {
    EXPECT_NE(std::strstr(refused.what(), "alignment 384"), nullptr) << refused.what();
  }
}

TEST_F(MemoryResource, out_of_memory_is_a_bad_alloc_with_the_pools_report) {
  pool_.set_capacity(8 * kMiB);
  try {
    (void)resource_.allocate(first(), 64 * kMiB, 256);
    FAIL() << "allocated more than the capacity";
  } catch (const std::bad_alloc& refused) {
    EXPECT_NE(std::strstr(refused.what(), "67108864"), nullptr) << refused.what();
  }
  EXPECT_THROW((void)resource_.allocate_sync(64 * kMiB, 256), std::bad_alloc);
  void* const ptr = resource_.allocate(first(), 4 * kMiB, 256);  // nothing has changed
  resource_.deallocate(first(), ptr, 4 * kMiB, 256);
}

TEST_F(MemoryResource, a_size_beyond_all_addresses_is_out_of_memory_too) {
  EXPECT_THROW((void)resource_.allocate(first(), SIZE_MAX, 256), std::bad_alloc);
  EXPECT_THROW((void)resource_.allocate_sync(std::size_t{1} << 50, 256), std::bad_alloc);
}

TEST_F(MemoryResource, a_free_for_which_the_process_lacks_memory_is_made_later) {
  for (const bool names_a_stream : {true, false}) {
    void* const ptr = resource_.allocate(first(), 4 * kMiB, 256);
    {
      const HostPromise all(std::size_t{8} << 20);  // of the library's reserve
      const fault::InsidePool inside;
      fault::HostFaults::arm(1, fault::HostFaults::Repeat::from_then_on);
      if (names_a_stream) {
        resource_.deallocate(second(), ptr, 4 * kMiB, 256);
      } else {
        resource_.deallocate_sync(ptr, 4 * kMiB, 256);
      }
      fault::HostFaults::disarm();
    }
    EXPECT_STREQ(vpmm_last_error(), "no host memory");
    resource_.deallocate(first(), resource_.allocate(first(), 8 * kMiB, 256), 8 * kMiB, 256);
    EXPECT_EQ(pool_.statistics().live_allocations, 0U);
  }
}

TEST_F(MemoryResource, a_pointer_of_others_is_one_mistake_and_no_exception) {
  int foreign = 0;
  resource_.deallocate(first(), &foreign, 4, 256);
  EXPECT_EQ(mistakes(), 1U);
  resource_.deallocate_sync(&foreign, 4, 256);
  EXPECT_EQ(mistakes(), 2U);
}

TEST_F(MemoryResource, copies_name_one_pool_and_free_each_others_memory) {
  memory_resource copy = resource_;
  EXPECT_TRUE(copy == resource_);
  EXPECT_FALSE(copy != resource_);
  copy.deallocate(first(), resource_.allocate(first(), kMiB, 256), kMiB, 256);
  const memory_pool other;
  EXPECT_TRUE(memory_resource(other) != resource_);
}

TEST_F(MemoryResource, without_a_pool_it_is_the_process_wide_one_of_the_device) {
  EXPECT_EQ(memory_resource().pool().handle(), default_pool(0).handle());
  EXPECT_TRUE(memory_resource(0) == memory_resource(default_pool(0)));
  EXPECT_THROW(memory_resource(99), std::runtime_error);
}

TEST_F(MemoryResource, references_and_erased_resources_serve_from_the_same_pool) {
  allocate_and_free(resource_, first(), 4 * kMiB);
  EXPECT_EQ(pool_.statistics().allocations, 2U);
  EXPECT_TRUE(is_found_in_an_environment(resource_));
  pass_as_any(resource_, first(), 4 * kMiB);
  EXPECT_EQ(pool_.statistics().allocations, 8U);
}

TEST_F(MemoryResource, erased_resources_of_one_pool_are_equal) {
  const AnyDevice any(resource_);
  EXPECT_TRUE(any == AnyDevice(memory_resource(pool_)));
  const memory_pool other;
  EXPECT_FALSE(any == AnyDevice(memory_resource(other)));
}

}  // namespace
}  // namespace vpmm::cuda_mr_test
