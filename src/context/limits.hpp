// SPDX-License-Identifier: Apache-2.0
// context: limits of a pool, memory given back, and help in a shortage.
#pragma once

#include <cstdint>
#include <optional>

#include "context/entrance.hpp"
#include "context/out_of_memory.hpp"
#include "context/parts.hpp"
#include "context/totals.hpp"
#include "settings/portion.hpp"

namespace vpmm::context {

class Limits {
 public:
  Limits(Parts& parts, Entrance& entrance, Totals& totals)
      : parts_(parts), device_(parts.device), entrance_(entrance), totals_(totals) {}

  // Gives idle memory back to the driver until at most `bytes_to_keep` are mapped, or none is idle.
  // Returns the bytes given back.
  Result<Bytes> trim(Bytes bytes_to_keep);
  Result<void> preallocate(Bytes bytes);  // maps at least this total
  void set_capacity(std::optional<Bytes> bytes);
  // 1 to 100 percent of the device's memory; asks the driver.
  Result<void> set_share_of_gpu(std::uint32_t percent);
  std::optional<Bytes> capacity() const;
  // Memory of the pool, within its capacity. free: largest possible request.
  Result<driver::MemInfo> memory_info();
  // Called before a request fails.
  OutOfMemoryCallbacks& out_of_memory_callbacks() { return out_of_memory_; }
  Result<void> remove_out_of_memory_callback(std::uint64_t id);

  // --- tags ---
  // The most that live requests of a tag may sum up to, suspended ones included; nullopt: no limit.
  void set_tag_limit(std::uint32_t tag, std::optional<settings::Portion> limit);
  std::optional<Bytes> tag_limit(std::uint32_t tag) const VPMM_REQUIRES(pool_lock);
  Vector<std::uint32_t> limited_tags() const VPMM_REQUIRES(pool_lock);
  // out_of_memory: the tag of the request would have more than its limit.
  Result<void> check_tag(const pool::Request& request) const VPMM_REQUIRES(pool_lock);
  // Counts the request for its tag while a call drops the lock, until end_tagged(). Throws
  // std::bad_alloc.
  void begin_tagged(const pool::Request& request) VPMM_REQUIRES(pool_lock);
  void end_tagged(const pool::Request& request) VPMM_REQUIRES(pool_lock);

  // While held, the pool unmaps, releases and waits on the host only in a shortage. Pairs may nest
  // and overlap.
  void defer_cleanup_begin();
  Result<void> defer_cleanup_end();

  // State of one request between its attempts.
  struct Asked {
    bool neighbours = false;
    unsigned answers = 0;            // of callbacks that said that they freed memory
    bool is_over_tag_limit = false;  // the last attempt failed by check_tag()
  };
  // A callback that always says so would otherwise hold the request for ever.
  static constexpr unsigned kMostAnswers = 10'000;
  // Helps a request without memory in pool and GPU: asks neighbours for idle memory, once, then the
  // callbacks, until kMostAnswers. Returns true to try again.
  bool find_memory(const pool::Request& request, Asked& asked);
  // Tells if the last attempt failed for want of memory of the pool: neither in an external arena,
  // nor beyond the limit of its tag.
  bool lacks_gpu_memory(const pool::Request& request, const Asked& asked) const;

 private:
  Result<void> preallocate_mapped(Bytes bytes);
  Bytes missing_on_gpu(Bytes bytes) VPMM_REQUIRES(pool_lock);
  Bytes ask_for_idle(Bytes bytes);

  Parts& parts_;
  Device& device_;
  Entrance& entrance_;
  Totals& totals_;
  OutOfMemoryCallbacks out_of_memory_;  // has its own lock
  Map<std::uint32_t, settings::Portion> tag_limits_ VPMM_GUARDED_BY(pool_lock);
  Map<std::uint32_t, Bytes> coming_ VPMM_GUARDED_BY(pool_lock);  // by tag, of calls in progress
};

}  // namespace vpmm::context
