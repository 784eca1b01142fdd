// SPDX-License-Identifier: Apache-2.0
// torch_allocator: the allocations of a device, from request to free.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "private_pools.hpp"

namespace vpmm::torch_plugin {

// A live allocation.
struct Block {
  std::size_t requested = 0;
  std::size_t bytes = 0;  // as PyTorch counts it
  Stream stream;
  bool is_small = false;
  bool is_in_stretch = false;  // of a private pool or of a tag
  PrivatePoolPtr pool;         // null: the common one, or a tag
  Context stack;

  MempoolId_t pool_id() const { return pool == nullptr ? kCommonPool : pool->id; }
};

// Call Python's observers of GPU memory, such as the sanitizer; they do not throw.
void trace_allocation(const void* ptr);
void trace_deallocation(const void* ptr);

// An allocation that a checkpoint contains.
struct Placed {
  void* ptr;
  std::size_t bytes;
  Stream stream;
};

// Any thread.
class Blocks {
 public:
  Blocks(Pool& pool, PrivatePools& private_pools, Segments& segments, History& history)
      : pool_(pool), private_pools_(private_pools), segments_(segments), history_(history) {}

  // Throws c10::OutOfMemoryError, or the exception of a tracker.
  void* allocate(std::size_t bytes, Stream stream);
  // Allocates at `at`. Throws if that is not free; `purpose` is for the message.
  void allocate_at(void* at, std::size_t bytes, Stream stream, PrivatePoolPtr pool,
                   vpmm_arena* arena, const Call& call, const char* purpose);
  // False: it is none of this device. The call stores the exception of a tracker.
  bool free(void* ptr, const Call& call);

  std::optional<Block> find(const void* ptr);
  // The message that stands for the allocation [begin, begin + bytes) in other processes, the same
  // for its life; null: none of this device. The caller keeps the allocation alive.
  std::optional<std::string> share(void* begin, std::size_t bytes);
  std::vector<Placed> in(const PrivatePool& pool);
  // Those of other libraries, too. By address.
  std::vector<Live> list(const Layout& layout);
  // With the counts of Segments, at one moment.
  void copy_to(DeviceStats& stats);
  void reset_peaks();
  void reset_totals();

 private:
  struct Counts {
    StatArray allocations;
    StatArray bytes;
    StatArray requested;
    std::int64_t retries = 0;
    std::int64_t failures = 0;
    std::int64_t rejections = 0;

    void change(const Block& block, StatChange change);
  };
  struct Export {
    vpmm_ipc_handle handle{};
    std::string message;
  };
  struct Taken {
    Block block;
    std::optional<vpmm_ipc_handle> exported;
  };

  vpmm_status request(PrivatePool* pool, std::size_t bytes, cudaStream_t stream, void** ptr);
  void* request_again(PrivatePoolPtr& pool, std::size_t bytes, cudaStream_t stream,
                      vpmm_status status, std::string& reason);
  bool is_rejected(std::size_t bytes);
  void reject(std::size_t bytes);
  [[noreturn]] void fail(std::size_t bytes, const Context& stack, const std::string& reason);
  std::vector<Live> of_others(const Layout& layout) VPMM_REQUIRES(mutex_);
  void enter(void* ptr, std::size_t bytes, Stream stream, PrivatePoolPtr pool, const Call& call);
  void tell_of_allocation(void* ptr, const Block& block, const Call& call);
  void tell_of_free(const void* ptr, const Block& block, const Call& call);
  std::optional<Taken> take(void* ptr);
  void give_back(void* ptr, const Block& block);
  void report(void* ptr, std::int64_t bytes);
  void reset(StatReset reset) VPMM_REQUIRES(mutex_);

  Pool& pool_;
  PrivatePools& private_pools_;
  Segments& segments_;
  History& history_;
  Mutex sharing_;  // before `mutex_`
  Mutex mutex_;
  ska::flat_hash_map<const void*, Block> blocks_ VPMM_GUARDED_BY(mutex_);
  std::unordered_map<const void*, Export> exports_ VPMM_GUARDED_BY(mutex_);
  Counts counts_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::torch_plugin
