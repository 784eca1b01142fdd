// SPDX-License-Identifier: Apache-2.0
// context: a lock-free list of deferred work, for finalizers and driver callbacks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"

namespace vpmm::context {

// push() is for any thread at any time: no lock of a pool, no driver call, no wait. Nodes come from
// a stock that provide() fills beforehand. A push that finds it empty takes one from the process,
// or from its reserve: during another push, or for blocks of a slab that was cut since.
class DeferredList {
 public:
  DeferredList() = default;
  ~DeferredList();
  DeferredList(const DeferredList&) = delete;
  DeferredList& operator=(const DeferredList&) = delete;

  void push(std::uint64_t value) noexcept;
  // Creates nodes for at least `count` values in the list. Throws std::bad_alloc.
  void provide(std::size_t count);
  // Visits all values pushed so far, in order. Needs no memory. An exception of `visit` passes; its
  // value and the later ones are pushed again.
  void take_all(FunctionRef<void(std::uint64_t)> visit);
  bool empty() const { return pushed_.load(std::memory_order_acquire) == nullptr; }

 private:
  struct Node : FromHostMemory {
    std::uint64_t value = 0;
    Node* next = nullptr;
  };
  // Whole lists are taken by exchange, and private lists put back by compare-and-swap, so only its
  // owner reads a node: the ABA problem cannot arise.
  static void put_back(std::atomic<Node*>& list, Node* first, Node* last);
  static void destroy(Node* first);

  std::atomic<Node*> pushed_{nullptr};
  std::atomic<Node*> spare_{nullptr};
  std::atomic<std::size_t> nodes_{0};  // spare and pushed together
};

}  // namespace vpmm::context
