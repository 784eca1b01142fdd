// SPDX-License-Identifier: Apache-2.0
// tests/driver: names of calls and results.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "driver/fake_driver.hpp"

namespace vpmm::driver {
namespace {

TEST(DriverNames, every_call_has_its_own_name) {
  std::set<std::string> names;
  for (const Call call : every_call()) names.insert(to_string(call));
  EXPECT_EQ(names.size(), kCallCount);
  EXPECT_STREQ(to_string(Call::mem_map), "mem_map");
  EXPECT_STREQ(to_string(Call::graph_retain_user_object), "graph_retain_user_object");
}

TEST(DriverNames, results_have_cudas_names_and_unknown_numbers_say_so) {
  EXPECT_STREQ(to_string(CuResult::success), "CUDA_SUCCESS");
  EXPECT_STREQ(to_string(CuResult::out_of_memory), "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_STREQ(to_string(CuResult::context_is_destroyed), "CUDA_ERROR_CONTEXT_IS_DESTROYED");
  EXPECT_STREQ(to_string(CuResult{702}), "CUDA_ERROR_LAUNCH_TIMEOUT");
  EXPECT_STREQ(to_string(CuResult{123}), "unrecognised CUresult");
}

TEST(DriverNames, time_in_mapping_and_allocation_counts_as_memory_time) {
  for (const Call call : {Call::mem_create, Call::mem_map, Call::mem_unmap, Call::mem_set_access,
                          Call::mem_release, Call::mem_alloc, Call::mem_alloc_from_pool_async,
                          Call::mem_free_async, Call::mem_host_register, Call::mem_alloc_managed}) {
    EXPECT_TRUE(is_memory_call(call)) << to_string(call);
  }
  for (const Call call :
       {Call::event_record, Call::event_query, Call::stream_wait_event, Call::memcpy_host_to_device,
        Call::mem_get_info, Call::mem_get_address_range, Call::pointer_get_device}) {
    EXPECT_FALSE(is_memory_call(call)) << to_string(call);
  }
}

TEST(DriverNames, only_errors_that_end_the_context_are_sticky) {
  for (const CuResult result :
       {CuResult::illegal_address, CuResult::launch_failed, CuResult::ecc_uncorrectable,
        CuResult::assert_triggered, CuResult::deinitialized, CuResult::invalid_pc}) {
    EXPECT_TRUE(is_sticky(result)) << to_string(result);
  }
  for (const CuResult result : {CuResult::success, CuResult::out_of_memory, CuResult::not_ready,
                                CuResult::invalid_value, CuResult::context_is_destroyed,
                                CuResult::stream_capture_implicit, CuResult::not_permitted}) {
    EXPECT_FALSE(is_sticky(result)) << to_string(result);
  }
}

}  // namespace
}  // namespace vpmm::driver
