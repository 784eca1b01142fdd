// SPDX-License-Identifier: Apache-2.0
// context: lock-free pushes onto a list.
#include "context/deferred.hpp"

#include <memory>
#include <new>
#include <utility>

#include "base/host_memory.hpp"
#include "base/race_window.hpp"

namespace vpmm::context {

DeferredList::~DeferredList() {
  destroy(pushed_.load());
  destroy(spare_.load());
}

void DeferredList::destroy(Node* first) {
  while (first != nullptr) {
    Node* next = first->next;
    delete first;
    first = next;
  }
}

void DeferredList::put_back(std::atomic<Node*>& list, Node* first, Node* last) {
  Node* head = list.load(std::memory_order_relaxed);
  do {
    last->next = head;
  } while (!list.compare_exchange_weak(head, first, std::memory_order_release,
                                       std::memory_order_relaxed));
}

void DeferredList::push(std::uint64_t value) noexcept {
  Node* node = spare_.exchange(nullptr, std::memory_order_acquire);
  VPMM_RACE_WINDOW("a push has the stock");
  if (node != nullptr && node->next != nullptr) {
    Node* none = nullptr;
    if (!spare_.compare_exchange_strong(none, node->next, std::memory_order_release,
                                        std::memory_order_relaxed)) {
      Node* last = node->next;  // other nodes came meanwhile: the list must be walked
      while (last->next != nullptr) last = last->next;
      put_back(spare_, node->next, last);
    }
  }
  if (node == nullptr) {
    void* const memory = host_reserve::take(sizeof(Node), alignof(Node));
    if (memory == nullptr)
      return;  // no memory in process and reserve: the value is lost, its memory stays allocated
    node = std::construct_at(static_cast<Node*>(memory));
  }
  node->value = value;
  put_back(pushed_, node, node);
}

void DeferredList::provide(std::size_t count) {
  while (nodes_.load(std::memory_order_relaxed) < count) {
    // Nodes live as long as the list, so they come from the process, not the reserve.
    void* const memory = ::operator new(sizeof(Node), std::nothrow);
    if (memory == nullptr) throw std::bad_alloc();
    Node* node = std::construct_at(static_cast<Node*>(memory));
    put_back(spare_, node, node);
    nodes_.fetch_add(1, std::memory_order_relaxed);
  }
}

void DeferredList::take_all(FunctionRef<void(std::uint64_t)> visit) {
  Node* first = nullptr;  // in the order of the pushes: the reverse of the list
  for (Node* node = pushed_.exchange(nullptr, std::memory_order_acquire); node != nullptr;)
    node = std::exchange(node->next, std::exchange(first, node));
  while (first != nullptr) {
    try {
      visit(first->value);
    } catch (...) {
      while (first != nullptr) {
        Node* const rest = std::exchange(first, first->next);
        put_back(pushed_, rest, rest);
      }
      throw;
    }
    Node* const done = std::exchange(first, first->next);
    put_back(spare_, done, done);
  }
}

}  // namespace vpmm::context
