// SPDX-License-Identifier: Apache-2.0
// capi: streams, alignments and sizes of structs in each function that takes them, captures,
// cleaning up that is put off, and all functions in a forked child.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "capi/gpu_pool.hpp"

namespace vpmm::capi_test {
namespace {

struct Allocation {
  const char* function;
  std::function<vpmm_status(std::size_t bytes, std::size_t alignment, void** ptr)> make;
  bool has_stream;
};

class EachAllocation : public GpuPool {
 protected:
  void SetUp() override {
    GpuPool::SetUp();
    stream_ = new_stream();
    ASSERT_EQ(vpmm_stream_bind(pool_, stream_, &bound_), VPMM_OK) << vpmm_last_error();
    ASSERT_EQ(vpmm_arena_create(pool_, 0, 0, &arena_), VPMM_OK) << vpmm_last_error();
  }
  void TearDown() override {
    vpmm_stream_unbind(bound_);
    EXPECT_EQ(vpmm_arena_release(arena_), VPMM_OK) << vpmm_last_error();
    GpuPool::TearDown();
  }
  std::vector<Allocation> all() {
    const auto with = [this](std::uint32_t flags) {
      return [this, flags](std::size_t bytes, std::size_t alignment, void** ptr) {
        vpmm_request request{};
        request.size = sizeof(request);
        request.bytes = bytes;
        request.alignment = alignment;
        request.stream = stream_;
        request.flags = flags;
        return vpmm_allocate_with(pool_, &request, ptr);
      };
    };
    return {
        {"vpmm_allocate_aligned",
         [this](auto bytes, auto alignment, auto ptr) {
           return vpmm_allocate_aligned(pool_, bytes, alignment, stream_, ptr);
         },
         true},
        {"vpmm_allocate_any_stream",
         [this](auto bytes, auto alignment, auto ptr) {
           return vpmm_allocate_any_stream(pool_, bytes, alignment, ptr);
         },
         false},
        {"vpmm_allocate_with", with(0), true},
        {"vpmm_allocate_with, any stream", with(VPMM_ALLOCATE_ANY_STREAM), false},
        {"vpmm_allocate_with, one chunk", with(VPMM_ALLOCATE_ONE_CHUNK), true},
        {"vpmm_bound_allocate",
         [this](auto bytes, auto alignment, auto ptr) {
           return vpmm_bound_allocate(bound_, bytes, alignment, ptr);
         },
         true},
        {"vpmm_arena_allocate",
         [this](auto bytes, auto alignment, auto ptr) {
           return vpmm_arena_allocate(arena_, bytes, alignment, stream_, ptr);
         },
         true},
    };
  }
  vpmm_stream stream_ = nullptr;
  vpmm_bound_stream* bound_ = nullptr;
  vpmm_arena* arena_ = nullptr;
};

TEST_F(EachAllocation, has_the_alignment_and_the_stream_that_were_asked_for) {
  driver::StreamId id{};
  must(gpu_->stream_get_id(handle_of(stream_), id));
  for (const Allocation& allocation : all()) {
    SCOPED_TRACE(allocation.function);
    for (const std::size_t alignment : {std::size_t{0}, 64 * kMiB}) {
      void* ptr = nullptr;
      ASSERT_EQ(allocation.make(3 * kMiB, alignment, &ptr), VPMM_OK) << vpmm_last_error();
      if (alignment != 0) {
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(ptr) % alignment, 0U);
      }
      const vpmm_block block = block_at(pool_, ptr);
      EXPECT_EQ(block.requested, 3 * kMiB);
      EXPECT_EQ(block.stream_id,
                allocation.has_stream ? static_cast<std::uint64_t>(id) : std::uint64_t{0});
      EXPECT_EQ(vpmm_deallocate(pool_, ptr, stream_), VPMM_OK) << vpmm_last_error();
    }
    void* ptr = this;
    EXPECT_EQ(allocation.make(3 * kMiB, 384, &ptr), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_EQ(ptr, this) << "written on success only";
    EXPECT_EQ(allocation.make(1, 0, nullptr), VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_STREQ(vpmm_last_error(), "`ptr` is null");
    EXPECT_EQ(allocation.make(0, 0, &ptr), VPMM_OK) << vpmm_last_error();
    EXPECT_EQ(ptr, nullptr);
  }
  EXPECT_EQ(statistics_of(pool_).live_allocations, 0U);
}

// What can be had at once: memory that the stream freed, or a part of a page that is cut. Larger
// alignments are for the calls that may block.
TEST_F(EachAllocation, without_blocking_has_its_alignment_as_well) {
  void* kept = nullptr;
  ASSERT_EQ(vpmm_allocate_any_stream(pool_, 5000, 0, &kept), VPMM_OK);
  ASSERT_EQ(vpmm_deallocate(pool_, allocate_on(stream_, 5000), stream_), VPMM_OK);
  for (const bool is_any_stream : {false, true}) {
    void* ptr = this;
    const auto try_with = [&](std::size_t alignment) {
      return is_any_stream ? vpmm_try_allocate_any_stream(pool_, 5000, alignment, &ptr)
                           : vpmm_try_allocate(pool_, 5000, alignment, stream_, &ptr);
    };
    for (const std::size_t refused : {std::size_t{384}, std::size_t{4096}})
      EXPECT_EQ(try_with(refused), VPMM_WOULD_BLOCK) << refused;
    EXPECT_EQ(is_any_stream ? vpmm_try_allocate_any_stream(pool_, 5000, 0, nullptr)
                            : vpmm_try_allocate(pool_, 5000, 0, stream_, nullptr),
              VPMM_WOULD_BLOCK);
    EXPECT_EQ(ptr, this);
    ASSERT_EQ(try_with(128), VPMM_OK);
    EXPECT_EQ(vpmm_deallocate_any_stream(pool_, ptr), VPMM_OK) << vpmm_last_error();
  }
  EXPECT_EQ(vpmm_deallocate_any_stream(pool_, kept), VPMM_OK) << vpmm_last_error();
}

// --- streams of frees and uses

using Reuse = EachAllocation;

TEST_F(Reuse, waits_for_the_stream_of_a_free_and_for_recorded_uses) {
  const vpmm_stream other = new_stream();
  for (const int which : {0, 1, 2}) {
    void* const ptr = allocate_on(stream_, 24 * kMiB);
    keep_busy(which == 2 ? stream_ : other, 1000 * kMillisecond);
    if (which == 1) {
      EXPECT_EQ(vpmm_record_use(pool_, ptr, other), VPMM_OK) << vpmm_last_error();
    }
    EXPECT_EQ(vpmm_deallocate(pool_, ptr, which == 0 ? other : stream_), VPMM_OK);
    // Its own stream may have it at once, unless another is not done with it.
    void* const again = allocate_on(stream_, 24 * kMiB);
    EXPECT_EQ(again == ptr, which == 2) << which;
    EXPECT_EQ(vpmm_deallocate(pool_, again, stream_), VPMM_OK);
    gpu_->run_until_idle();
    ASSERT_EQ(vpmm_synchronize(pool_), VPMM_OK);
    ASSERT_EQ(vpmm_trim(pool_, 0, nullptr), VPMM_OK);
  }
}

TEST_F(Reuse, of_memory_that_is_freed_without_a_stream_waits_for_all) {
  const vpmm_stream other = new_stream();
  for (const bool is_deferred : {false, true}) {
    void* const ptr = allocate_on(stream_, 24 * kMiB);
    keep_busy(other, 1000 * kMillisecond);
    if (is_deferred)
      vpmm_deallocate_deferred(pool_, ptr);
    else
      EXPECT_EQ(vpmm_deallocate_any_stream(pool_, ptr), VPMM_OK) << vpmm_last_error();
    void* const again = allocate_on(stream_, 24 * kMiB);
    EXPECT_NE(again, ptr);
    EXPECT_FALSE(is_idle(other));
    EXPECT_EQ(vpmm_deallocate(pool_, again, stream_), VPMM_OK);
    ASSERT_EQ(vpmm_synchronize(pool_), VPMM_OK) << vpmm_last_error();
    EXPECT_TRUE(is_idle(other)) << "it waits for the device";
    ASSERT_EQ(vpmm_trim(pool_, 0, nullptr), VPMM_OK);
  }
}

// --- structs of other versions

TEST_F(GpuPool, knows_the_first_version_of_each_struct_and_no_shorter_one) {
  void* const ptr = allocate(3 * kMiB);
  const auto try_sizes = [](std::size_t first, const char* name,
                            const std::function<vpmm_status(std::size_t)>& call) {
    EXPECT_EQ(call(first - 1), VPMM_ERROR_INVALID_ARGUMENT) << name;
    EXPECT_EQ(vpmm_last_error(),
              fmt::format("{0}.size is {1}, at least {2} is needed: set it to sizeof({0})", name,
                          first - 1, first));
    EXPECT_EQ(call(first), VPMM_OK) << name << ": " << vpmm_last_error();
  };
  try_sizes(offsetof(vpmm_config, unnamed_free_on_allocating_stream) + sizeof(int), "vpmm_config",
            [](std::size_t size) {
              vpmm_config config{};
              config.size = size;
              return vpmm_config_init(&config);
            });
  try_sizes(sizeof(vpmm_allocation_info), "vpmm_allocation_info", [&](std::size_t size) {
    vpmm_allocation_info info{};
    info.size = size;
    return vpmm_query(pool_, ptr, &info);
  });
  try_sizes(offsetof(vpmm_layout, largest_small), "vpmm_layout", [&](std::size_t size) {
    vpmm_layout layout{};
    layout.size = size;
    const vpmm_status status = vpmm_layout_take(pool_, &layout);
    EXPECT_EQ(layout.largest_small, 0U) << "beyond what the caller has";
    vpmm_layout_release(&layout);
    return status;
  });
  try_sizes(offsetof(vpmm_statistics, pauses), "vpmm_statistics", [&](std::size_t size) {
    vpmm_statistics statistics{};
    statistics.size = size;
    return vpmm_get_statistics(pool_, &statistics);
  });
  try_sizes(offsetof(vpmm_request, library), "vpmm_request", [&](std::size_t size) {
    vpmm_request request{};
    request.size = size;
    void* none = nullptr;
    return vpmm_allocate_with(pool_, &request, &none);
  });
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

TEST_F(GpuPool, zeroes_what_only_a_newer_header_has) {
  struct {
    vpmm_allocation_info known;
    std::uint64_t newer[2];
  } longer{};
  longer.known.size = sizeof(longer) - sizeof(std::uint64_t);
  longer.newer[0] = longer.newer[1] = 7;
  void* const ptr = allocate(3 * kMiB);
  ASSERT_EQ(vpmm_query(pool_, ptr, &longer.known), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(longer.known.size, sizeof(longer) - sizeof(std::uint64_t));
  EXPECT_EQ(longer.known.begin, ptr);
  EXPECT_EQ(longer.newer[0], 0U);
  EXPECT_EQ(longer.newer[1], 7U) << "beyond what the caller has";
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK);
}

// --- captures, and cleaning up that is put off

TEST_F(GpuPool, keeps_memory_of_a_capture_until_it_is_released) {
  const vpmm_stream stream = new_stream();
  ASSERT_EQ(vpmm_deallocate(pool_, allocate_on(stream, 24 * kMiB), stream), VPMM_OK);
  must(gpu_->stream_begin_capture(handle_of(stream), driver::CaptureMode::relaxed));
  driver::CaptureInfo capture;
  must(gpu_->stream_get_capture_info(handle_of(stream), capture));
  void* const ptr = allocate_on(stream, 24 * kMiB);
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, stream), VPMM_OK) << vpmm_last_error();
  driver::GraphHandle graph{};
  must(gpu_->stream_end_capture(handle_of(stream), graph));
  void* const other = allocate_on(stream, 24 * kMiB);
  EXPECT_NE(other, ptr) << "it is the graph's";
  EXPECT_EQ(vpmm_capture_release(pool_, static_cast<std::uint64_t>(capture.id)), VPMM_OK)
      << vpmm_last_error();
  ASSERT_EQ(vpmm_synchronize(pool_), VPMM_OK);
  EXPECT_EQ(allocate_on(stream, 24 * kMiB), ptr);
  EXPECT_EQ(vpmm_capture_release(nullptr, 1), VPMM_ERROR_INVALID_ARGUMENT);
  must(gpu_->graph_destroy(graph));
}

TEST_F(GpuPool, cleans_up_after_the_last_end) {
  vpmm_config config = default_config();
  config.release_threshold = 0;
  config.chunk_max = 0;  // one chunk for each page
  ASSERT_EQ(vpmm_pool_destroy(pool_), VPMM_OK);
  ASSERT_EQ(vpmm_pool_create(0, &config, &pool_), VPMM_OK) << vpmm_last_error();
  const vpmm_stream stream = new_stream();
  for (int i = 0; i < 2; ++i) ASSERT_EQ(vpmm_defer_cleanup_begin(pool_), VPMM_OK);
  const auto mapped_after_a_call = [&](std::size_t bytes) {
    EXPECT_EQ(vpmm_deallocate(pool_, allocate_on(stream, bytes), stream), VPMM_OK);
    gpu_->advance_host_ns(1000 * kMillisecond);
    return statistics_of(pool_).mapped_bytes;
  };
  mapped_after_a_call(24 * kMiB);
  EXPECT_EQ(mapped_after_a_call(2 * kMiB), 24 * kMiB);
  ASSERT_EQ(vpmm_defer_cleanup_end(pool_), VPMM_OK);
  EXPECT_EQ(mapped_after_a_call(2 * kMiB), 24 * kMiB);
  ASSERT_EQ(vpmm_defer_cleanup_end(pool_), VPMM_OK);
  EXPECT_LT(mapped_after_a_call(2 * kMiB), 24 * kMiB);
}

TEST_F(GpuPool, resets_the_device_and_keeps_its_memory) {
  void* const ptr = allocate(3 * kMiB);
  EXPECT_EQ(vpmm_reset(pool_), VPMM_OK) << vpmm_last_error();
  driver::ContextHandle context{};
  must(gpu_->device_primary_ctx_retain(0, context));
  must(gpu_->ctx_set_current(context));
  EXPECT_EQ(statistics_of(pool_).live_allocations, 1U);
  write(ptr, std::vector<std::uint8_t>(100, 7));
  EXPECT_EQ(read(ptr, 100), std::vector<std::uint8_t>(100, 7));
  EXPECT_EQ(vpmm_deallocate(pool_, ptr, nullptr), VPMM_OK) << vpmm_last_error();
}

// --- a forked child

struct Call {
  const char* function;
  std::function<vpmm_status()> make;
  vpmm_status expected;
};

// Frees and ends do nothing there; all else is an error. Returns the number of calls that answer
// otherwise.
int count_other_answers(vpmm_pool* pool, vpmm_arena* arena, vpmm_bound_stream* bound, void* live) {
  constexpr vpmm_status kRefused = VPMM_ERROR_PROCESS_ENDING;
  void* ptr = live;
  int number = 0;
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  std::uint32_t tag = 0;
  char* text = nullptr;
  vpmm_pool* other = nullptr;
  vpmm_ipc_handle handle{};
  handle.kind = VPMM_IPC_POOL;
  const auto spill = [](void*, int, std::uint64_t) { return 0; };
  const std::vector<Call> calls = {
      {"device_count", [&] { return vpmm_device_count(&number); }, kRefused},
      {"default_pool", [&] { return vpmm_default_pool(0, &other); }, kRefused},
      {"pool_create", [&] { return vpmm_pool_create(0, nullptr, &other); }, kRefused},
      {"allocate", [&] { return vpmm_allocate(pool, 1, nullptr, &ptr); }, kRefused},
      {"record_use", [&] { return vpmm_record_use(pool, live, nullptr); }, kRefused},
      {"stream_wait", [&] { return vpmm_stream_wait(pool, nullptr, nullptr); }, kRefused},
      {"usable_size", [&] { return vpmm_usable_size(pool, live, &count); }, kRefused},
      {"stream_bind", [&] { return vpmm_stream_bind(pool, nullptr, &bound); }, kRefused},
      {"bound_allocate", [&] { return vpmm_bound_allocate(bound, 64 * kMiB, 0, &ptr); }, kRefused},
      {"arena_create", [&] { return vpmm_arena_create(pool, 0, 0, &arena); }, kRefused},
      {"arena_allocate", [&] { return vpmm_arena_allocate(arena, 1, 0, nullptr, &ptr); }, kRefused},
      {"arena_pin", [&] { return vpmm_arena_pin(arena); }, kRefused},
      {"arena_trim", [&] { return vpmm_arena_trim(arena, nullptr); }, kRefused},
      {"capture_begin", [&] { return vpmm_capture_begin(pool); }, kRefused},
      {"capture_end", [&] { return vpmm_capture_end(pool); }, kRefused},
      {"trim", [&] { return vpmm_trim(pool, 0, nullptr); }, kRefused},
      {"preallocate", [&] { return vpmm_preallocate(pool, 1); }, kRefused},
      {"get_capacity", [&] { return vpmm_get_capacity(pool, &bytes); }, kRefused},
      {"synchronize", [&] { return vpmm_synchronize(pool); }, kRefused},
      {"reset", [&] { return vpmm_reset(pool); }, kRefused},
      {"dump_text", [&] { return vpmm_dump_text(pool, &text); }, kRefused},
      {"record_start", [&] { return vpmm_record_start(pool, "/dev/null"); }, kRefused},
      {"record_mark", [&] { return vpmm_record_mark(pool, "x"); }, kRefused},
      {"tag_with_name", [&] { return vpmm_tag_with_name("x", &tag); }, kRefused},
      {"set_callback", [&] { return vpmm_set_out_of_memory_callback(pool, spill, nullptr); },
       kRefused},
      {"ipc_export", [&] { return vpmm_ipc_export(live, 1, &handle); }, kRefused},
      {"ipc_open", [&] { return vpmm_ipc_open(&handle, -1, &ptr); }, kRefused},
      {"ipc_open_staged", [&] { return vpmm_ipc_open_staged(&handle, pool, &ptr); }, kRefused},
      {"deallocate", [&] { return vpmm_deallocate(pool, live, nullptr); }, VPMM_OK},
      {"deallocate_any", [&] { return vpmm_deallocate_any_stream(pool, live); }, VPMM_OK},
      {"deallocate_many", [&] { return vpmm_deallocate_many(pool, &live, 1, nullptr); }, VPMM_OK},
      {"capture_release", [&] { return vpmm_capture_release(pool, 1); }, VPMM_OK},
      {"remove_callback", [&] { return vpmm_remove_out_of_memory_callback(pool, 77); }, VPMM_OK},
      {"remove_events", [&] { return vpmm_remove_event_callback(pool, 77); }, VPMM_OK},
      {"remove_hooks", [&] { return vpmm_remove_suspend_hooks(pool, 77); }, VPMM_OK},
      {"tag_leave", [&] { return vpmm_tag_leave(pool, 5, VPMM_TAG_OF_THREAD); }, VPMM_OK},
      {"set_tag_name", [&] { return vpmm_set_tag_name(5, "x"); }, VPMM_OK},
      {"ipc_export_end", [&] { return vpmm_ipc_export_end(&handle); }, VPMM_OK},
      {"ipc_close", [&] { return vpmm_ipc_close(live); }, VPMM_OK},
      {"arena_release", [&] { return vpmm_arena_release(arena); }, VPMM_OK},
      {"pool_destroy", [&] { return vpmm_pool_destroy(pool); }, VPMM_OK},
      {"try_allocate", [&] { return vpmm_try_allocate(pool, 9, 0, nullptr, &ptr); },
       VPMM_WOULD_BLOCK},
      {"try_allocate_any_stream", [&] { return vpmm_try_allocate_any_stream(pool, 5000, 0, &ptr); },
       VPMM_WOULD_BLOCK},
      {"try_deallocate", [&] { return vpmm_try_deallocate(pool, live, nullptr); },
       VPMM_WOULD_BLOCK},
  };
  int others = 0;
  for (const auto& [function, make, expected] : calls) {
    const vpmm_status status = make();
    if (status == expected && (status != kRefused || last_error_names("forked child"))) continue;
    std::fprintf(stderr, "vpmm_%s: status %d, %s\n", function, status, vpmm_last_error());
    ++others;
  }
  vpmm_deallocate_deferred(pool, live);
  vpmm_stream_unbind(bound);
  vpmm_ipc_close_deferred(live);
  return others + (std::string(vpmm_tag_name(5)).empty() ? 0 : 1) + (ptr == live ? 0 : 1);
}

TEST_F(EachAllocation, and_all_other_calls_fail_or_do_nothing_in_a_forked_child) {
  void* const live = allocate(3 * kMiB);
  void* small = nullptr;  // in a page with room for more
  ASSERT_EQ(vpmm_allocate_any_stream(pool_, 5000, 0, &small), VPMM_OK);
  ASSERT_EQ(vpmm_set_tag_name(5, "five"), VPMM_OK);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(count_other_answers(pool_, arena_, bound_, live));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(vpmm_deallocate(pool_, live, nullptr), VPMM_OK) << vpmm_last_error();
  EXPECT_EQ(vpmm_try_allocate_any_stream(pool_, 5000, 0, &small), VPMM_OK) << "there was room";
  ASSERT_EQ(vpmm_set_tag_name(5, ""), VPMM_OK);
}

}  // namespace
}  // namespace vpmm::capi_test
