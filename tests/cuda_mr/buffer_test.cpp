// SPDX-License-Identifier: Apache-2.0
// cuda_mr: CCCL's own container on a pool.
#include "cuda_mr/mr_case.hpp"

#if CCCL_VERSION >= 3003000
#include <cuda/buffer>

namespace vpmm::cuda_mr_test {
namespace {

class Buffer : public MrCase {};

TEST_F(Buffer, takes_its_memory_from_the_pool_and_gives_it_back_on_its_stream) {
  const cuda::stream_ref stream{streams_[0]};
  {
    auto buffer = cuda::make_buffer<int>(stream, memory_resource(pool_), 1000, cuda::no_init);
    EXPECT_EQ(pool_.query(buffer.data()).requested, 4000U);
    EXPECT_EQ(last_event().stream, streams_[0]);
    const auto moved = std::move(buffer);
    EXPECT_EQ(pool_.statistics().live_allocations, 1U);
  }
  EXPECT_EQ(last_event().kind, VPMM_EVENT_FREE);
  EXPECT_EQ(last_event().stream, streams_[0]);
}

}  // namespace
}  // namespace vpmm::cuda_mr_test
#endif
