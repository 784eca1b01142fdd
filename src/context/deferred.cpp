// context: pushing without a lock.
#include "context/deferred.hpp"

#include <algorithm>
#include <new>

#include "base/host_memory.hpp"

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
  } while (!list.compare_exchange_weak(head, first, std::memory_order_release, std::memory_order_relaxed));
}

void DeferredList::push(std::uint64_t value) noexcept {
  Node* node = spare_.exchange(nullptr, std::memory_order_acquire);
  if (node != nullptr && node->next != nullptr) {
    Node* none = nullptr;
    if (!spare_.compare_exchange_strong(none, node->next, std::memory_order_release, std::memory_order_relaxed)) {
      Node* last = node->next;  // somebody put nodes there meanwhile: only then is the list walked
      while (last->next != nullptr) last = last->next;
      put_back(spare_, node->next, last);
    }
  }
  if (node == nullptr) node = new (std::nothrow) Node;
  if (node == nullptr) return;  // out of host memory inside a finalizer: the memory stays allocated
  node->value = value;
  put_back(pushed_, node, node);
}

void DeferredList::provide(std::size_t count) {
  while (nodes_.load(std::memory_order_relaxed) < count) {
    Node* node = new Node;
    put_back(spare_, node, node);
    nodes_.fetch_add(1, std::memory_order_relaxed);
  }
}

Vector<std::uint64_t> DeferredList::take_all() {
  Vector<std::uint64_t> values;
  Node* first = pushed_.exchange(nullptr, std::memory_order_acquire);
  if (first == nullptr) return values;
  Node* last = first;
  for (Node* node = first; node != nullptr; node = node->next) {
    values.push_back(node->value);
    last = node;
  }
  put_back(spare_, first, last);
  std::reverse(values.begin(), values.end());
  return values;
}

}  // namespace vpmm::context
