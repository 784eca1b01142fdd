// SPDX-License-Identifier: Apache-2.0
// examples: takes all GPU memory from a plugin, named by the argument or by VPMM_MEMORY_MANAGER.
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>
#include <vpmm/emm.hpp>

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

void run(const vpmm_emm_plugin* plugin) {
  const vpmm::emm::Context context = vpmm::emm::Context::create(0, plugin);
  std::printf("the memory manager is %s\n", plugin->name);

  const vpmm::emm::MemoryPointer numbers = context.memalloc(6 * kMiB);
  const vpmm::emm::PinnedMemory staging = context.allocate_pinned(kMiB);
  std::memset(staging.host_pointer(), 7, kMiB);
  // A view keeps the whole memory alive.
  const vpmm::emm::MemoryPointer part = numbers.view(2 * kMiB, kMiB);
  // Memory knows its CUDA context. Copies do not: as with CUDA itself, a context must be current.
  const vpmm::emm::Driver driver = vpmm::emm::Driver::of_process();
  const vpmm::emm::CurrentContext current(driver, context.cuda_context());
  driver.memcpy_host_to_device(part.device_pointer(), staging.host_pointer(), kMiB);
  std::vector<unsigned char> back(kMiB);
  driver.memcpy_device_to_host(back.data(), part.device_pointer(), back.size());
  std::printf("numbers at %p, the view's first and last byte: %d and %d\n",
              numbers.device_pointer(), back.front(), back.back());

  try {
    (void)context.memalloc(std::size_t{1} << 40);
  } catch (const vpmm::out_of_memory& refused) {
    std::printf("a terabyte: %s\n", refused.what());
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? vpmm::emm::load_plugin(argv[1]) : vpmm::emm::get_memory_manager());
    return 0;
  } catch (const vpmm::error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
