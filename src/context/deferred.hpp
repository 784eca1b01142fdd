// context: a lock-free list of things to do later, for finalizers and driver callbacks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"

namespace vpmm::context {

// push() may be called from any thread at any time: it takes no lock, calls no driver and waits for
// nobody. Nodes come from a stock that whoever will push later has filled beforehand; only when two
// pushes race for the last node is one taken from the process, or from its reserve.
class DeferredList {
 public:
  DeferredList() = default;
  ~DeferredList();
  DeferredList(const DeferredList&) = delete;
  DeferredList& operator=(const DeferredList&) = delete;

  void push(std::uint64_t value) noexcept;
  // Makes sure that at least `count` pushes find a node.
  void provide(std::size_t count);
  // Takes everything pushed so far and calls `visit` with it, in the order of the pushes. Needs no
  // memory; what `visit` throws passes, and that value and those behind it are as if they had been
  // pushed again.
  void take_all(FunctionRef<void(std::uint64_t)> visit);
  bool empty() const { return pushed_.load(std::memory_order_acquire) == nullptr; }

 private:
  struct Node : FromHostMemory {
    std::uint64_t value = 0;
    Node* next = nullptr;
  };
  // Whole lists are taken by exchange and put back by compare-and-swap of a private list, so no
  // node is ever looked at while somebody else may own it: the ABA problem cannot arise.
  static void put_back(std::atomic<Node*>& list, Node* first, Node* last);
  static void destroy(Node* first);

  std::atomic<Node*> pushed_{nullptr};
  std::atomic<Node*> spare_{nullptr};
  std::atomic<std::size_t> nodes_{0};  // spare and pushed together
};

}  // namespace vpmm::context
