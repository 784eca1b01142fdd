// SPDX-License-Identifier: Apache-2.0
// gpu_rmm: programs with the resource: Thrust, CUB, RMM's containers, CCCL's buffer; results are
// checked.
#include <vpmm/rmm_mr.hpp>

#include <gtest/gtest.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>

#include <cub/device/device_reduce.cuh>
#include <cuda/buffer>
#include <cuda/std/execution>
#include <rmm/cuda_stream.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/exec_policy.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <vector>

namespace {

constexpr int kCount = 1 << 20;
constexpr long long kSum = static_cast<long long>(kCount) * (kCount - 1) / 2;

class Programs : public testing::Test {
 protected:
  Programs() { rmm::mr::set_current_device_resource(resource_); }
  ~Programs() override {
    stream_.synchronize();
    rmm::mr::reset_current_device_resource();
    EXPECT_EQ(pool_.statistics().live_allocations, 0u);
    EXPECT_EQ(pool_.statistics().caller_mistakes, 0u);
  }
  bool owns(const void* ptr) const { return pool_.query(ptr).begin != nullptr; }

  vpmm::memory_pool pool_;
  vpmm::rmm_memory_resource resource_{pool_};
  rmm::cuda_stream stream_;
};

TEST_F(Programs, device_uvector_and_thrust_draw_from_the_current_resource) {
  rmm::device_uvector<int> values(kCount, stream_);
  EXPECT_TRUE(owns(values.data()));
  const auto policy = rmm::exec_policy_nosync(stream_);
  thrust::sequence(policy, values.begin(), values.end());
  thrust::sort(policy, values.begin(), values.end(), thrust::greater<int>());
  EXPECT_EQ(values.front_element(stream_), kCount - 1);
  EXPECT_EQ(thrust::reduce(policy, values.begin(), values.end(), 0LL), kSum);
  EXPECT_GT(pool_.statistics().allocations, 1u);  // Thrust's scratch memory, too
}

TEST_F(Programs, cub_finds_the_resource_in_its_environment) {
  rmm::device_uvector<int> values(kCount, stream_);
  rmm::device_uvector<long long> sum(1, stream_);
  thrust::sequence(rmm::exec_policy_nosync(stream_), values.begin(), values.end());
  const auto before = pool_.statistics().allocations;
  const cuda::stream_ref stream{stream_.value()};
  const vpmm::memory_resource resource(pool_);
  const auto environment = cuda::std::execution::env{stream, resource};
  ASSERT_EQ(cub::DeviceReduce::Sum(values.begin(), sum.begin(), kCount, environment), cudaSuccess);
  EXPECT_EQ(sum.element(0, stream_), kSum);
  EXPECT_GT(pool_.statistics().allocations, before);
}

TEST_F(Programs, a_buffer_of_cccl_lives_in_the_pool) {
  const cuda::stream_ref stream{stream_.value()};
  const std::vector<int> host(1000, 7);
  auto buffer = cuda::make_buffer<int>(stream, vpmm::memory_resource(pool_), host);
  EXPECT_TRUE(owns(buffer.data()));
  std::vector<int> back(1000);
  ASSERT_EQ(cudaMemcpyAsync(back.data(), buffer.data(), 4000, cudaMemcpyDefault, stream_.value()),
            cudaSuccess);
  stream_.synchronize();
  EXPECT_EQ(back, host);
}

TEST_F(Programs, memory_passes_between_streams_without_a_wait_of_the_host) {
  rmm::cuda_stream other;
  for (int round = 0; round < 200; ++round) {
    rmm::device_uvector<int> values(kCount, stream_);
    thrust::sequence(rmm::exec_policy_nosync(stream_), values.begin(), values.end(), round);
    cudaEvent_t ready{};
    ASSERT_EQ(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(ready, stream_.value()), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(other.value(), ready, 0), cudaSuccess);
    ASSERT_EQ(cudaEventDestroy(ready), cudaSuccess);
    values.set_stream(other);  // freed there, while both streams are still at work
    if (round % 50 == 0) EXPECT_EQ(values.element(kCount - 1, other), kCount - 1 + round);
  }
  other.synchronize();
}

TEST_F(Programs, adaptors_stack_on_it) {
  rmm::mr::statistics_resource_adaptor counted{resource_};
  {
    const rmm::device_uvector<int> values(1000, stream_, counted);
    EXPECT_EQ(counted.get_bytes_counter().value, 4000);
  }
  EXPECT_EQ(counted.get_bytes_counter().value, 0);
}

}  // namespace
