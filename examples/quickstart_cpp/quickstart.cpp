// SPDX-License-Identifier: Apache-2.0
// examples: uses the process-wide pool, buffers, a private pool with a limit, and runs out of
// memory.
#include <cstdio>
#include <vpmm/vpmm.hpp>

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// A program with CUDA passes its own cudaStream_t or CUstream here; null is the default stream.
void use_the_process_wide_pool(vpmm::stream_ref stream) {
  const vpmm::pool_ref pool = vpmm::default_pool();
  vpmm::buffer weights(pool, 300 * kMiB, stream);
  const vpmm::buffer scratch(pool, 40 * kMiB, stream);
  std::printf("weights at %p, scratch at %p\n", weights.data(), scratch.data());
  // Kernels queued on `stream` may use both now. Freeing a buffer does not wait: the pool reuses
  // its memory only after the work queued before.
  weights.reset();
  const vpmm_statistics figures = pool.statistics();
  std::printf("live %llu MiB, mapped %llu MiB\n",
              static_cast<unsigned long long>(figures.live_bytes / kMiB),
              static_cast<unsigned long long>(figures.mapped_bytes / kMiB));
}

void run_out_of_a_private_pool(vpmm::stream_ref stream) {
  vpmm_config settings = vpmm::settings_from_environment();
  settings.capacity = 64 * kMiB;
  const vpmm::memory_pool pool(0, settings);
  const vpmm::buffer half(pool, 32 * kMiB, stream);
  if (const auto refused = pool.try_allocate(64 * kMiB, stream); !refused) {
    std::printf("as a result: %s\n", vpmm_status_string(refused.status()));
  }
  try {
    const vpmm::buffer too_large(pool, 64 * kMiB, stream);
  } catch (const std::bad_alloc& refused) {
    std::printf("as an exception: %s\n", refused.what());
  }
}

}  // namespace

int main() {
  try {
    use_the_process_wide_pool(vpmm::default_stream);
    run_out_of_a_private_pool(vpmm::default_stream);
    return 0;
  } catch (const vpmm::error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
