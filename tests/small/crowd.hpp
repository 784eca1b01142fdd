// SPDX-License-Identifier: Apache-2.0
// tests: many streams on one pool, of a GPU with room for all of them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "support/pool_world_words.hpp"

namespace vpmm::test {

inline WorldOptions large_gpu(settings::Prefer prefer = settings::Prefer::balanced,
                              bool has_page_chunks = false) {
  WorldOptions options = has_page_chunks ? page_world() : adaptive_world();
  options.sim.capacity = 2 * kTiB;
  options.config.va_size = 2048 * kGiB;
  options.config.prefer = prefer;
  return options;
}

class Crowd {
 public:
  explicit Crowd(std::size_t count, const WorldOptions& options = large_gpu()) : world(options) {
    for (std::size_t i = 0; i < count; ++i) streams.push_back(world.stream());
  }
  // Warm calls of these streams never look which context is current.
  std::uint64_t calls_through_the_lock() {
    return world.calls().count(driver::Call::ctx_get_current);
  }
  DevicePtr take(Bytes bytes, pool::Stream stream) {
    auto made = world.pool().allocate({bytes, 0, stream});
    EXPECT_TRUE(made.ok()) << message_of(made);
    return made ? made.value() : DevicePtr{};
  }
  void give(DevicePtr ptr, pool::Stream stream) {
    EXPECT_TRUE(world.pool().deallocate(ptr, stream).ok());
  }
  void pair(Bytes bytes, StreamHandle stream) {
    const DevicePtr ptr = take(bytes, stream);
    world.use(ptr, bytes, stream);
    give(ptr, stream);
  }
  void round(Bytes bytes) {
    for (const StreamHandle stream : streams) pair(bytes, stream);
  }
  // All streams together, of each so much at once.
  void burst(Bytes bytes, int count) {
    std::vector<std::pair<DevicePtr, StreamHandle>> live;
    for (int i = 0; i < count; ++i)
      for (const StreamHandle stream : streams) {
        live.emplace_back(take(bytes, stream), stream);
        world.use(live.back().first, bytes, stream);
      }
    for (const auto& [ptr, stream] : live) give(ptr, stream);
  }
  Bytes kept() const { return world.statistics().cached_bytes; }
  Bytes most_kept() const {
    return std::min(64 * kMiB, world.statistics().peak_mapped_bytes / 100);
  }

  PoolWorld world;
  std::vector<StreamHandle> streams;
};

}  // namespace vpmm::test
