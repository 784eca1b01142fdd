// SPDX-License-Identifier: Apache-2.0
// gpu_rmm: RMM's typed suites for memory resources, from a tree of RMM's that run.py names, over
// our resource.
#include <vpmm/rmm_mr.hpp>

#include "cccl_mr_ref_test_allocation.hpp"
#include "cccl_mr_ref_test_basic.hpp"
#include "cccl_mr_ref_test_mt.hpp"

namespace rmm::test {

// What RMM asks of a fixture: `ref` and `stream`.
struct VpmmFixture : public ::testing::Test {
  vpmm::rmm_memory_resource mr{0};
  rmm::device_async_resource_ref ref{mr};
  rmm::cuda_stream stream{};
};

INSTANTIATE_TYPED_TEST_SUITE_P(Vpmm, CcclMrRefTest, VpmmFixture);
INSTANTIATE_TYPED_TEST_SUITE_P(Vpmm, CcclMrRefAllocationTest, VpmmFixture);
INSTANTIATE_TYPED_TEST_SUITE_P(Vpmm, CcclMrRefTestMT, VpmmFixture);

static_assert(cuda::mr::resource_with<vpmm::rmm_memory_resource, cuda::mr::device_accessible>);
static_assert(std::is_constructible_v<cuda::mr::any_resource<cuda::mr::device_accessible>,
                                      vpmm::rmm_memory_resource>);

}  // namespace rmm::test
