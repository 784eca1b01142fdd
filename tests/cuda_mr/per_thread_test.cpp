// SPDX-License-Identifier: Apache-2.0
// cuda_mr: a file that is compiled for per-thread default streams, in one program with files that
// are not.
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include "cuda_mr/concepts.hpp"
#include "cuda_mr/mr_case.hpp"

namespace vpmm::cuda_mr_test {
namespace {

class PerThreadDefaultStream : public MrCase {
 protected:
  memory_resource resource_{pool_};
};

TEST_F(PerThreadDefaultStream, is_what_handle_0_means) {
  void* const ptr = resource_.allocate(cuda::stream_ref{cudaStream_t{}}, 1, 1);
  EXPECT_EQ(last_event().stream, handle(2));
  resource_.deallocate(cuda::stream_ref{cudaStream_t{}}, ptr, 1, 1);
  EXPECT_EQ(last_event().stream, handle(2));
}

TEST_F(PerThreadDefaultStream, leaves_other_handles_as_they_are) {
  void* const ptr = resource_.allocate(cuda::stream_ref{cudaStreamLegacy}, 1, 1);
  EXPECT_EQ(last_event().stream, handle(1));
  resource_.deallocate(cuda::stream_ref{streams_[0]}, ptr, 1, 1);
  EXPECT_EQ(last_event().stream, streams_[0]);
}

}  // namespace
}  // namespace vpmm::cuda_mr_test
