// SPDX-License-Identifier: Apache-2.0
// capi: the C++ header, together with the project's own names, which users do not see.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "capi/sim_pool.hpp"
#include "context/context.hpp"
#include "vpmm/vpmm.hpp"

namespace vpmm::capi_test {
namespace {

class Cpp : public testing::Test {
 protected:
  std::uint64_t live() const { return pool_.statistics().live_allocations; }

  memory_pool pool_;
};

static_assert(std::is_nothrow_move_constructible_v<buffer> &&
              !std::is_copy_constructible_v<buffer>);
static_assert(std::is_nothrow_move_constructible_v<memory_pool> &&
              !std::is_copy_constructible_v<memory_pool>);
static_assert(std::is_trivially_copyable_v<pool_ref>);

// --- which arguments are streams
template <typename... Arguments>
concept CanAllocate = requires(const pool_ref& pool, Arguments... arguments) {
  pool.allocate(arguments...);
};
template <typename... Arguments>
concept CanDeallocate = requires(const pool_ref& pool, Arguments... arguments) {
  pool.deallocate(arguments...);
};

using CudaStream = CUstream_st*;  // CUstream and cudaStream_t
static_assert(CanAllocate<int, CudaStream>);
static_assert(CanAllocate<int, stream_ref>);
static_assert(CanAllocate<int, any_stream_t>);
static_assert(CanAllocate<int, CudaStream, int>);
static_assert(!CanAllocate<int, int*>, "an address is no stream");
static_assert(!CanAllocate<int, void*>, "nor is device memory");
static_assert(!CanAllocate<int, int>, "an alignment is no stream");
static_assert(!CanAllocate<int, std::nullptr_t>);
static_assert(!CanAllocate<CudaStream, int>);
static_assert(CanDeallocate<void*, CudaStream>);
static_assert(CanDeallocate<float*, CudaStream>);
static_assert(!CanDeallocate<CudaStream, void*>, "swapped arguments do not compile");
static_assert(!CanDeallocate<stream_ref, void*>);
static_assert(!CanDeallocate<void*, std::nullptr_t>);
static_assert(!std::is_constructible_v<stream_ref, void*> && !std::is_constructible_v<stream_ref>);
static_assert(!std::is_constructible_v<stream_ref, long> &&
              !std::is_constructible_v<stream_ref, bool>);
static_assert(!std::is_constructible_v<buffer, pool_ref, int, void*>);
static_assert(sizeof(stream_ref) == sizeof(void*) && std::is_trivially_copyable_v<stream_ref>);
template <typename Pool>
concept TakesBraces = requires(const Pool& pool) {
  pool.allocate(100, {});
};
static_assert(!TakesBraces<pool_ref>);

TEST(StreamRef, is_a_handle_with_equality_and_hash) {
  const CudaStream handle = reinterpret_cast<CudaStream>(0x4200);
  const stream_ref stream = handle;
  EXPECT_EQ(stream.handle(), handle);
  EXPECT_EQ(stream, stream_ref::from_handle(handle));
  EXPECT_NE(stream, default_stream);
  EXPECT_EQ(default_stream.handle(), nullptr);
  EXPECT_EQ(std::unordered_set<stream_ref>({stream, default_stream, handle}).size(), 2U);
}

TEST_F(Cpp, allocates_and_deallocates) {
  void* const ptr = pool_.allocate(3 * kMiB, default_stream);
  EXPECT_GE(pool_.usable_size(ptr), 3 * kMiB);
  EXPECT_EQ(pool_.query(ptr).begin, ptr);
  pool_.deallocate(ptr, default_stream);
  void* const any = pool_.allocate(3 * kMiB, any_stream, 4 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(any) % (4 * kMiB), 0U);
  pool_.deallocate(any, any_stream);
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, out_of_memory_is_a_bad_alloc_an_exception_and_an_error) {
  EXPECT_EQ(pool_.capacity(), std::nullopt);
  pool_.set_capacity(8 * kMiB);
  EXPECT_EQ(pool_.capacity(), 8 * kMiB);
  EXPECT_THROW((void)pool_.allocate(64 * kMiB, default_stream), std::bad_alloc);
  EXPECT_THROW((void)pool_.allocate(64 * kMiB, default_stream), std::exception);
  try {
    (void)pool_.allocate(64 * kMiB, default_stream);
    FAIL() << "allocated more than the capacity";
  } catch (const error& caught) {
    EXPECT_EQ(caught.status(), VPMM_ERROR_OUT_OF_MEMORY);
    EXPECT_GT(std::strlen(caught.what()), 0U);
  }
}

TEST_F(Cpp, a_mistake_is_a_runtime_error_and_an_error) {
  int foreign = 0;
  EXPECT_THROW(pool_.deallocate(&foreign, default_stream), std::runtime_error);
  try {
    pool_.deallocate(&foreign, default_stream);
    FAIL() << "took a foreign pointer";
  } catch (const error& caught) {
    EXPECT_EQ(caught.status(), VPMM_ERROR_INVALID_POINTER);
  }
}

TEST_F(Cpp, access_for_another_device_is_asked_for_in_both_forms) {
  pool_.set_peer_access(0);  // its own
  EXPECT_THROW(pool_.set_peer_access(7), failure);
  EXPECT_EQ(pool_.try_set_peer_access(7).status(), VPMM_ERROR_INVALID_ARGUMENT);
}

TEST_F(Cpp, try_forms_return_what_went_wrong) {
  pool_.set_capacity(8 * kMiB);
  const result<void*> refused = pool_.try_allocate(64 * kMiB, default_stream);
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(refused.status(), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(refused.message().empty());
  EXPECT_THROW((void)refused.value(), out_of_memory);
  const result<void*> given = pool_.try_allocate(2 * kMiB, any_stream);
  ASSERT_TRUE(given.ok()) << given.message();
  ASSERT_NE(given.value(), nullptr);
  EXPECT_TRUE(pool_.try_deallocate(given.value(), any_stream).ok());
  EXPECT_EQ(pool_.try_deallocate(given.value(), default_stream).status(),
            VPMM_ERROR_INVALID_POINTER);
  EXPECT_TRUE(pool_.try_deallocate(nullptr, default_stream).ok());
}

TEST_F(Cpp, a_buffer_gives_itself_back) {
  {
    const buffer first(pool_, 3 * kMiB, default_stream);
    const buffer second(pool_, 100, any_stream);
    EXPECT_EQ(live(), 2U);
    EXPECT_EQ(first.size(), 3 * kMiB);
    EXPECT_EQ(second.stream(), std::nullopt);
  }
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, a_unique_ptr_with_the_deleter_gives_memory_back_on_its_stream) {
  static_assert(noexcept(std::declval<const deleter&>()(nullptr)));
  {
    std::unique_ptr<void, deleter> empty;
    std::unique_ptr<void, deleter> one(pool_.allocate(3 * kMiB, default_stream),
                                       deleter(pool_, default_stream));
    const std::unique_ptr<void, deleter> any(pool_.allocate(100, any_stream),
                                             deleter(pool_, any_stream));
    empty = std::move(one);
    EXPECT_EQ(live(), 2U);
    EXPECT_EQ(empty.get_deleter().stream(), default_stream);
  }
  EXPECT_EQ(live(), 0U);
  deleter(pool_, any_stream)(&pool_);
  EXPECT_EQ(pool_.statistics().caller_mistakes, 1U);
}

TEST_F(Cpp, references_are_equal_and_hash_alike_if_their_pool_is_the_same) {
  const memory_pool other;
  const pool_ref same(pool_.handle());
  EXPECT_TRUE(same == pool_);
  EXPECT_TRUE(same != other);
  EXPECT_EQ(std::unordered_set<pool_ref>({same, pool_, other}).size(), 2U);
}

// Without the share, the buffer would free into a pool that is gone.
TEST(CppLife, memory_keeps_the_pool_that_it_was_made_from) {
  const auto make = [] {
    const memory_pool pool;
    return std::pair(buffer(pool, 3 * kMiB, default_stream), try_make_buffer(pool, 5, any_stream));
  };
  auto [kept, tried] = make();
  EXPECT_EQ(kept.pool().statistics().live_allocations, 2U);
  kept.reset();
  EXPECT_EQ(kept.pool().statistics().live_allocations, 1U);
  const shared_pool pool = [] { return memory_pool(); }();
  const buffer last(pool, 100, default_stream);
  EXPECT_EQ(last.pool(), pool);
}

// Without the share, the second buffer would free into a pool that is gone.
TEST(CppLife, a_buffer_made_from_the_pool_of_a_buffer_or_deleter_keeps_it) {
  buffer second;
  buffer third;
  {
    const memory_pool pool(0);
    const buffer first(pool, 100, default_stream);
    second = buffer(first.pool(), 100, default_stream);
    third = buffer(deleter(pool, default_stream).pool(), 100, default_stream);
  }
  EXPECT_EQ(second.pool().statistics().live_allocations, 2U);
  second.reset();
  EXPECT_EQ(third.pool().statistics().live_allocations, 1U);
}

// A handle left behind would be that of a pool that is gone.
TEST(CppLife, what_was_moved_from_is_null_and_its_calls_are_errors) {
  static_assert(std::is_nothrow_move_constructible_v<shared_pool> &&
                std::is_nothrow_move_assignable_v<shared_pool> &&
                std::is_nothrow_copy_assignable_v<shared_pool> &&
                std::is_nothrow_move_assignable_v<deleter>);
  memory_pool pool(0);
  shared_pool share = std::move(pool);
  shared_pool next(pool_ref(nullptr));
  next = std::move(share);
  deleter frees(std::move(next), any_stream);
  const deleter last = std::move(frees);
  EXPECT_EQ(last.pool().statistics().live_allocations, 0U);
  // NOLINTNEXTLINE(bugprone-use-after-move): what was moved from is what is tested
  for (const shared_pool& null : {shared_pool(pool), share, next, frees.pool()}) {
    EXPECT_EQ(null.handle(), nullptr);
    EXPECT_EQ(null.try_allocate(100, default_stream).status(), VPMM_ERROR_INVALID_ARGUMENT);
  }
  share = last.pool();
  shared_pool& same = share;
  share = std::move(same);
  EXPECT_EQ(share, last.pool()) << "moved to itself";
}

TEST(CppLife, a_pool_ends_with_the_last_owner_and_a_reference_is_none) {
  std::optional<memory_pool> pool(std::in_place);
  const vpmm_pool* const handle = pool->handle();
  std::optional<buffer> through_reference(std::in_place, pool_ref(*pool), 100, default_stream);
  through_reference.reset();  // before the pool, as the rule says
  memory_pool moved = std::move(*pool);
  EXPECT_EQ(moved.handle(), handle);
  EXPECT_EQ(pool->handle(), nullptr);
  static_assert(sizeof(pool_ref) == sizeof(void*));
}

TEST_F(Cpp, a_size_that_no_device_can_have_is_out_of_memory) {
  for (const std::size_t bytes : {std::size_t{1} << 48, std::size_t{1} << 60, SIZE_MAX}) {
    EXPECT_THROW((void)pool_.allocate(bytes, default_stream), std::bad_alloc) << bytes;
    EXPECT_THROW((void)pool_.allocate(bytes, any_stream), out_of_memory) << bytes;
    EXPECT_THROW((void)pool_.allocate_many({1, bytes}, default_stream), std::bad_alloc) << bytes;
    EXPECT_THROW(pool_.preallocate(bytes), std::bad_alloc) << bytes;
    EXPECT_THROW((void)bound_stream(pool_, default_stream).allocate(bytes), std::bad_alloc);
  }
  EXPECT_EQ(pool_.statistics().caller_mistakes, 0U);
}

TEST_F(Cpp, a_moved_buffer_leaves_an_empty_one) {
  buffer first(pool_, 3 * kMiB, default_stream);
  void* const data = first.data();
  buffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  first = std::move(second);
  EXPECT_EQ(first.data(), data);
  EXPECT_EQ(live(), 1U);
  first = buffer(pool_, 5 * kMiB, default_stream);
  EXPECT_EQ(live(), 1U);
  first = buffer();
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, a_released_buffer_is_the_callers) {
  buffer owner(pool_, 3 * kMiB, default_stream);
  void* const data = owner.release();
  EXPECT_TRUE(owner.empty());
  owner.reset();
  EXPECT_EQ(live(), 1U);
  owner = buffer::adopt(pool_, data, 3 * kMiB, std::nullopt);
  owner.reset();
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, a_buffer_goes_back_on_the_stream_it_was_given_last) {
  const auto per_thread = stream_ref::from_handle(reinterpret_cast<vpmm_stream>(2));
  buffer moving(pool_, 3 * kMiB, default_stream);
  moving.record_use(per_thread);
  moving.set_stream(per_thread);
  EXPECT_EQ(moving.stream(), per_thread);
  moving.set_stream(any_stream);
  EXPECT_EQ(moving.stream(), std::nullopt);
  moving.reset();
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, try_make_buffer_reports_and_a_zero_byte_buffer_is_empty) {
  pool_.set_capacity(8 * kMiB);
  EXPECT_EQ(try_make_buffer(pool_, 64 * kMiB, default_stream).status(), VPMM_ERROR_OUT_OF_MEMORY);
  result<buffer> made = try_make_buffer(pool_, 2 * kMiB, default_stream);
  ASSERT_TRUE(made.ok()) << made.message();
  const buffer taken = std::move(made).value();
  EXPECT_NE(taken.data(), nullptr);
  EXPECT_EQ(live(), 1U);
  const buffer nothing(pool_, 0, default_stream);
  EXPECT_EQ(nothing.data(), nullptr);
  EXPECT_TRUE(nothing.empty());
}

TEST_F(Cpp, a_moved_pool_keeps_its_memory) {
  const buffer kept(pool_, 3 * kMiB, default_stream);
  memory_pool moved(std::move(pool_));
  EXPECT_EQ(moved.statistics().live_allocations, 1U);
  pool_ = std::move(moved);
  EXPECT_EQ(live(), 1U);
}

TEST_F(Cpp, settings_are_checked_when_a_pool_is_opened) {
  vpmm_config settings = settings_from_environment();
  settings.page_size = 3 * kMiB;
  EXPECT_THROW(memory_pool(0, settings), failure);
  settings = default_settings();
  settings.driver = settings_from_environment().driver;
  settings.page_size = 4 * kMiB;
  const memory_pool pool(0, settings);
  const buffer one(pool, 4 * kMiB, default_stream);
  EXPECT_EQ(pool.usable_size(one.data()), 4 * kMiB);
}

TEST_F(Cpp, the_default_pool_is_one_per_device) {
  EXPECT_GE(device_count(), 1);
  EXPECT_EQ(default_pool().handle(), default_pool(0).handle());
  EXPECT_EQ(open_default_pool(0, settings_from_environment()).handle(), default_pool().handle());
  EXPECT_EQ(default_pool().device(), 0);
  EXPECT_THROW(default_pool(-1), failure);
}

TEST_F(Cpp, observing_and_limits_reach_the_pool) {
  const buffer one(pool_, 4 * kMiB, default_stream);
  EXPECT_FALSE(pool_.snapshot().empty());
  EXPECT_NE(pool_.dump_text().find("live_bytes"), std::string::npos);
  EXPECT_EQ(pool_.dump_json().front(), '{');
  EXPECT_GT(pool_.memory_info().total_bytes, 0U);
  pool_.preallocate(32 * kMiB);
  EXPECT_GE(pool_.statistics().mapped_bytes, 32 * kMiB);
  pool_.synchronize();
  pool_.trim();
  pool_.reset_peaks();
  const vpmm_statistics after = pool_.statistics();
  EXPECT_LT(after.mapped_bytes, 32 * kMiB);
  EXPECT_EQ(after.peak_mapped_bytes, after.mapped_bytes);
}

TEST_F(Cpp, what_is_ready_is_given_at_once_and_the_rest_not) {
  EXPECT_EQ(pool_.allocate_if_ready(80, any_stream), nullptr);
  void* const first = pool_.allocate(80, any_stream);
  void* const second = pool_.allocate_if_ready(80, any_stream);
  ASSERT_NE(second, nullptr);
  EXPECT_NE(second, first);
  pool_.deallocate(first, any_stream);
  pool_.deallocate(second, any_stream);
}

TEST_F(Cpp,
       what_a_stream_frees_at_once_is_freed_and_where_no_context_is_current_it_has_nothing_ready) {
  const stream_ref stream = default_stream;
  void* const ptr = pool_.allocate(80, stream);
  EXPECT_TRUE(pool_.deallocate_if_ready(ptr, stream));
  EXPECT_EQ(live(), 0U);
  EXPECT_FALSE(pool_.deallocate_if_ready(ptr, stream)) << "it is freed";
  EXPECT_EQ(pool_.allocate_if_ready(80, stream), nullptr)
      << "whose default stream it is, is not known";
  EXPECT_EQ(pool_.allocate(80, stream), ptr);
}

TEST_F(Cpp, one_stream_waits_for_another_and_what_is_none_is_named) {
  const auto per_thread = stream_ref::from_handle(reinterpret_cast<vpmm_stream>(2));
  EXPECT_NO_THROW(pool_.stream_wait(default_stream, per_thread));
  try {
    pool_.stream_wait(default_stream,
                      stream_ref::from_handle(reinterpret_cast<vpmm_stream>(0x4200)));
    FAIL() << "waited for no stream";
  } catch (const error& caught) {
    EXPECT_EQ(caught.status(), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(caught.what()).find("`first` 0x4200 is no stream"), std::string::npos)
        << caught.what();
  }
}

TEST_F(Cpp, a_defer_cleanup_guard_lasts_for_a_scope) {
  { const defer_cleanup_guard guard(pool_); }
  EXPECT_NE(vpmm_defer_cleanup_end(pool_.handle()), VPMM_OK) << "the guard did not end its hold";
}

TEST_F(Cpp, a_capture_guard_announces_a_capture_for_a_scope) {
  { const capture_guard guard(pool_); }
  EXPECT_NE(vpmm_capture_end(pool_.handle()), VPMM_OK) << "the guard did not end its capture";
}

}  // namespace
}  // namespace vpmm::capi_test
