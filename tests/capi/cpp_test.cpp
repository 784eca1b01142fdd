// capi: the C++ header, together with the project's own names, which users do not see.
#include <gtest/gtest.h>

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
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

TEST_F(Cpp, allocates_and_deallocates) {
  void* const ptr = pool_.allocate(3 * kMiB, nullptr);
  EXPECT_GE(pool_.usable_size(ptr), 3 * kMiB);
  EXPECT_EQ(pool_.query(ptr).begin, ptr);
  pool_.deallocate(ptr, nullptr);
  void* const any = pool_.allocate(3 * kMiB, any_stream, 4 * kMiB);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(any) % (4 * kMiB), 0U);
  pool_.deallocate(any, any_stream);
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, out_of_memory_is_a_bad_alloc_an_exception_and_an_error) {
  EXPECT_EQ(pool_.capacity(), std::nullopt);
  pool_.set_capacity(8 * kMiB);
  EXPECT_EQ(pool_.capacity(), 8 * kMiB);
  EXPECT_THROW(pool_.allocate(64 * kMiB, nullptr), std::bad_alloc);
  EXPECT_THROW(pool_.allocate(64 * kMiB, nullptr), std::exception);
  try {
    pool_.allocate(64 * kMiB, nullptr);
    FAIL() << "allocated more than the capacity";
  } catch (const error& caught) {
    EXPECT_EQ(caught.status(), VPMM_ERROR_OUT_OF_MEMORY);
    EXPECT_GT(std::strlen(caught.what()), 0U);
  }
}

TEST_F(Cpp, a_mistake_is_a_runtime_error_and_an_error) {
  int foreign = 0;
  EXPECT_THROW(pool_.deallocate(&foreign, nullptr), std::runtime_error);
  try {
    pool_.deallocate(&foreign, nullptr);
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
  const result<void*> refused = pool_.try_allocate(64 * kMiB, nullptr);
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(refused.status(), VPMM_ERROR_OUT_OF_MEMORY);
  EXPECT_FALSE(refused.message().empty());
  EXPECT_THROW((void)refused.value(), out_of_memory);
  const result<void*> given = pool_.try_allocate(2 * kMiB, any_stream);
  ASSERT_TRUE(given.ok()) << given.message();
  ASSERT_NE(given.value(), nullptr);
  EXPECT_TRUE(pool_.try_deallocate(given.value(), any_stream).ok());
  EXPECT_EQ(pool_.try_deallocate(given.value(), nullptr).status(), VPMM_ERROR_INVALID_POINTER);
  EXPECT_TRUE(pool_.try_deallocate(nullptr, nullptr).ok());
}

TEST_F(Cpp, a_buffer_gives_itself_back) {
  {
    const buffer first(pool_, 3 * kMiB, nullptr);
    const buffer second(pool_, 100, any_stream);
    EXPECT_EQ(live(), 2U);
    EXPECT_EQ(first.size(), 3 * kMiB);
    EXPECT_EQ(second.stream(), std::nullopt);
  }
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, a_moved_buffer_leaves_an_empty_one) {
  buffer first(pool_, 3 * kMiB, nullptr);
  void* const data = first.data();
  buffer second(std::move(first));
  EXPECT_EQ(second.data(), data);
  first = std::move(second);
  EXPECT_EQ(first.data(), data);
  EXPECT_EQ(live(), 1U);
  first = buffer(pool_, 5 * kMiB, nullptr);
  EXPECT_EQ(live(), 1U);
  first = buffer();
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, a_released_buffer_is_the_callers) {
  buffer owner(pool_, 3 * kMiB, nullptr);
  void* const data = owner.release();
  EXPECT_TRUE(owner.empty());
  owner.reset();
  EXPECT_EQ(live(), 1U);
  owner = buffer::adopt(pool_, data, 3 * kMiB, std::nullopt);
  owner.reset();
  EXPECT_EQ(live(), 0U);
}

TEST_F(Cpp, a_buffer_goes_back_on_the_stream_it_was_given_last) {
  const auto per_thread = reinterpret_cast<vpmm_stream>(std::uintptr_t{2});
  buffer moving(pool_, 3 * kMiB, nullptr);
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
  EXPECT_EQ(try_make_buffer(pool_, 64 * kMiB, nullptr).status(), VPMM_ERROR_OUT_OF_MEMORY);
  result<buffer> made = try_make_buffer(pool_, 2 * kMiB, nullptr);
  ASSERT_TRUE(made.ok()) << made.message();
  const buffer taken = std::move(made).value();
  EXPECT_NE(taken.data(), nullptr);
  EXPECT_EQ(live(), 1U);
  const buffer nothing(pool_, 0, nullptr);
  EXPECT_EQ(nothing.data(), nullptr);
  EXPECT_TRUE(nothing.empty());
}

TEST_F(Cpp, a_moved_pool_keeps_its_memory) {
  const buffer kept(pool_, 3 * kMiB, nullptr);
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
  const buffer one(pool, 4 * kMiB, nullptr);
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
  const buffer one(pool_, 4 * kMiB, nullptr);
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
  const vpmm_stream stream = nullptr;
  void* const ptr = pool_.allocate(80, stream);
  EXPECT_TRUE(pool_.deallocate_if_ready(ptr, stream));
  EXPECT_EQ(live(), 0U);
  EXPECT_FALSE(pool_.deallocate_if_ready(ptr, stream)) << "it is freed";
  EXPECT_EQ(pool_.allocate_if_ready(80, stream), nullptr)
      << "whose default stream it is, is not known";
  EXPECT_EQ(pool_.allocate(80, stream), ptr);
}

TEST_F(Cpp, one_stream_waits_for_another_and_what_is_none_is_named) {
  auto* const per_thread = reinterpret_cast<vpmm_stream>(2);
  EXPECT_NO_THROW(pool_.stream_wait(nullptr, per_thread));
  try {
    pool_.stream_wait(nullptr, reinterpret_cast<vpmm_stream>(0x4200));
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
