// torch_allocator: the stack of each mapped address: that of the call that mapped it.
#pragma once

#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

#include "history.hpp"

namespace vpmm::torch_plugin {

class Growths {
 public:
  // A call with this stack mapped [begin, begin + bytes), or gave it to a private pool; null: no
  // stack is recorded.
  void add(std::size_t begin, std::size_t bytes, Context stack) {
    remove(begin, bytes);
    if (stack != nullptr)
      by_begin_.insert_or_assign(begin, Growth{begin + bytes, std::move(stack)});
  }

  void remove(std::size_t begin, std::size_t bytes) {
    const std::size_t end = begin + bytes;
    auto next = by_begin_.lower_bound(begin);
    if (next != by_begin_.begin() && std::prev(next)->second.end > begin) --next;
    while (next != by_begin_.end() && next->first < end) {
      const auto each = next++;
      const Growth growth = each->second;
      if (growth.end > end) by_begin_.insert_or_assign(end, growth);
      if (each->first < begin)
        each->second.end = begin;
      else
        by_begin_.erase(each);
    }
  }

  // The stack of the first mapping in [begin, begin + bytes).
  Context stack_in(std::size_t begin, std::size_t bytes) const {
    auto next = by_begin_.lower_bound(begin);
    if (next != by_begin_.begin() && std::prev(next)->second.end > begin) --next;
    return next == by_begin_.end() || next->first >= begin + bytes ? nullptr : next->second.stack;
  }

 private:
  struct Growth {
    std::size_t end;
    Context stack;
  };
  std::map<std::size_t, Growth> by_begin_;  // they do not overlap
};

}  // namespace vpmm::torch_plugin
