// SPDX-License-Identifier: Apache-2.0
// examples: runs one program on every memory manager: the three of vpmm, and a plugin if its path
// is given.
//
// Each manager runs the same steps, which resemble a training loop. The program measures the time
// in its calls and how much the driver's free memory shrinks. No kernels run here, so waiting for
// the GPU costs almost nothing: a manager that waits looks better here than in a program that keeps
// the GPU busy.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>
#include <vpmm/emm.hpp>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kKiB = 1024;
constexpr int kWarmUpSteps = 20;  // not timed
constexpr int kSteps = 120;
constexpr int kLayers = 24;
constexpr std::size_t kMostCheckpoints = 16;

struct Buffer {
  vpmm::emm::MemoryPointer memory;
  std::uint64_t mark = 0;  // written at the beginning and at the end of the memory
};

class Workload {
 public:
  explicit Workload(const vpmm::emm::Context& context)
      : context_(context), free_before_(driver_.mem_get_info().free) {}

  // Allocates the activations of a batch of random size, layer by layer, each with its own scratch,
  // and frees them in reverse order. Every third step keeps a checkpoint; beyond kMostCheckpoints
  // the oldest one is freed.
  void step(int index) {
    const std::size_t batch = between(1, 8);
    std::vector<Buffer> activations;
    for (int layer = 0; layer < kLayers; ++layer) {
      activations.push_back(allocate(batch * between(64, 1024) * kKiB));
      Buffer scratch = allocate(between(4, 256) * kKiB);
      drop(scratch);
    }
    if (index % 3 == 0) checkpoints_.push_back(allocate(between(1, 12) * 1024 * kKiB));
    if (checkpoints_.size() > kMostCheckpoints) {
      drop(checkpoints_.front());
      checkpoints_.erase(checkpoints_.begin());
    }
    for (; !activations.empty(); activations.pop_back()) drop(activations.back());
  }
  // Checks and frees the remaining checkpoints.
  void finish() {
    for (Buffer& buffer : checkpoints_) drop(buffer);
    if (live_ != 0) throw std::runtime_error(std::to_string(live_) + " bytes were never freed");
  }
  void restart_clock() { in_calls_ = {}; }

  Clock::duration in_calls() const { return in_calls_; }
  std::uint64_t peak_live() const { return peak_live_; }  // requested bytes
  std::uint64_t peak_held() const { return peak_held_; }  // bytes taken from the driver

 private:
  Buffer allocate(std::size_t bytes) {
    Buffer buffer;
    timed([&] { buffer.memory = context_.memalloc(bytes); });
    buffer.mark = random_();
    for (const vpmm::emm::MemoryPointer& place : ends(buffer))
      driver_.memcpy_host_to_device(place.device_pointer(), &buffer.mark, sizeof(buffer.mark));
    live_ += bytes;
    peak_live_ = std::max(peak_live_, live_);
    const std::uint64_t free_now = driver_.mem_get_info().free;
    if (free_now < free_before_) peak_held_ = std::max(peak_held_, free_before_ - free_now);
    return buffer;
  }
  void drop(Buffer& buffer) {
    for (const vpmm::emm::MemoryPointer& place : ends(buffer)) {
      std::uint64_t found = 0;
      driver_.memcpy_device_to_host(&found, place.device_pointer(), sizeof(found));
      if (found != buffer.mark)
        throw std::runtime_error("memory does not hold what was written to it");
    }
    live_ -= buffer.memory.size();
    timed([&] { buffer.memory.reset(); });
  }
  static std::vector<vpmm::emm::MemoryPointer> ends(const Buffer& buffer) {
    const std::size_t size = sizeof(buffer.mark);
    return {buffer.memory.view(0, size), buffer.memory.view(buffer.memory.size() - size, size)};
  }
  template <typename Call>
  void timed(Call&& call) {
    const Clock::time_point begin = Clock::now();
    call();
    in_calls_ += Clock::now() - begin;
  }
  std::size_t between(std::size_t least, std::size_t most) {
    return least + random_() % (most - least + 1);
  }

  const vpmm::emm::Context& context_;
  vpmm::emm::Driver driver_ = vpmm::emm::Driver::of_process();
  std::mt19937_64 random_{42};  // every manager gets the same requests
  std::uint64_t free_before_;
  std::vector<Buffer> checkpoints_;
  std::uint64_t live_ = 0;
  std::uint64_t peak_live_ = 0;
  std::uint64_t peak_held_ = 0;
  Clock::duration in_calls_{};
};

void measure(const vpmm_emm_plugin* plugin) {
  const vpmm::emm::Context context = vpmm::emm::Context::create(0, plugin);
  const vpmm::emm::CurrentContext current(vpmm::emm::Driver::of_process(), context.cuda_context());
  Workload workload(context);
  for (int index = 0; index < kWarmUpSteps; ++index) workload.step(index);
  workload.restart_clock();
  for (int index = 0; index < kSteps; ++index) workload.step(index);
  const double us = std::chrono::duration<double, std::micro>(workload.in_calls()).count() / kSteps;
  workload.finish();
  const auto mib = [](std::uint64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(1024 * kKiB);
  };
  std::printf("%-16s %12.1f %16.1f %16.1f\n", plugin->name, us, mib(workload.peak_live()),
              mib(workload.peak_held()));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::vector<const vpmm_emm_plugin*> plugins;
    for (const char* name : {"vpmm", "stream_ordered", "default"})
      plugins.push_back(vpmm::emm::builtin_plugin(name));
    if (argc > 1) plugins.push_back(vpmm::emm::load_plugin(argv[1]));

    const bool is_simulated = std::strcmp(vpmm::settings_from_environment().driver, "sim") == 0;
    std::printf("driver: %s\n",
                is_simulated ? "simulator; its times say nothing about a GPU" : "CUDA");
    std::printf("%-16s %12s %16s %16s\n", "manager", "us per step", "peak live MiB",
                "peak held MiB");
    for (const vpmm_emm_plugin* const plugin : plugins) measure(plugin);
    std::printf("all memory held its contents as written\n");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
