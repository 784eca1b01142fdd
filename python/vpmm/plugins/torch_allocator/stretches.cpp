// SPDX-License-Identifier: Apache-2.0
// torch_allocator: cuts and joins growths, and counts the gaps of stretches.
#include "stretches.hpp"

#include <iterator>
#include <utility>

namespace vpmm::torch_plugin {

void set(Stat& stat, std::int64_t now) {
  if (now > stat.current)
    stat.increase(static_cast<std::size_t>(now - stat.current));
  else
    stat.decrease(static_cast<std::size_t>(stat.current - now));
}

namespace {

// Private pools count as large.
void add_large(StatArray& stats, std::int64_t change) {
  for (const std::size_t i : {kAll, kLarge}) set(stats.at(i), stats.at(i).current + change);
}

}  // namespace

void Growths::add(std::size_t begin, std::size_t bytes, Context stack) {
  remove(begin, bytes);
  if (stack != nullptr) by_begin_.insert_or_assign(begin, Growth{begin + bytes, std::move(stack)});
}

void Growths::remove(std::size_t begin, std::size_t bytes) {
  const std::size_t end = begin + bytes;
  auto next = first_after(begin);
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

Context Growths::stack_in(std::size_t begin, std::size_t bytes) {
  const auto first = first_after(begin);
  return first == by_begin_.end() || first->first >= begin + bytes ? nullptr : first->second.stack;
}

// The first growth that ends after `begin`.
Growths::ByBegin::iterator Growths::first_after(std::size_t begin) {
  const auto next = by_begin_.lower_bound(begin);
  if (next == by_begin_.begin()) return next;
  const auto before = std::prev(next);
  return before->second.end > begin ? before : next;
}

void Stretches::add(const void* begin, std::size_t bytes) {
  Stretch& stretch = by_address_[address(begin)];
  stretch.bytes = bytes;
  stretch.order = ++made_;
  add_large(segments, 1);
}

Stretches::Stretch* Stretches::find(const void* begin) {
  const auto found = by_address_.find(address(begin));
  return found == by_address_.end() ? nullptr : &found->second;
}

Stretches::Stretch* Stretches::around(const void* ptr) {
  const auto found = find_around(ptr);
  return found == by_address_.end() ? nullptr : &found->second;
}

std::size_t Stretches::remove(const void* begin, std::size_t bytes) {
  const auto around = find_around(begin);
  if (around == by_address_.end()) return 0;
  const std::uintptr_t first = around->first;
  const Stretch whole = std::move(around->second);
  by_address_.erase(around);
  add_large(inactive_split, -whole.split_gaps());
  add_large(inactive_split_bytes, -whole.split_bytes());
  add_large(segments, -1);
  keep(whole, first, address(begin));
  keep(whole, address(begin) + bytes, first + whole.bytes);
  return whole.is_foreign ? bytes : 0;
}

void Stretches::keep(const Stretch& of, std::uintptr_t first, std::uintptr_t end) {
  if (first >= end) return;
  add(reinterpret_cast<const void*>(first), end - first);
  for (auto block = of.live.lower_bound(first); block != of.live.end() && block->first < end;
       ++block)
    enter(reinterpret_cast<const void*>(block->first), block->second);
}

void Stretches::enter(const void* ptr, std::size_t bytes) {
  change(ptr, [&](Stretch& stretch, std::uintptr_t first, std::uintptr_t begin) {
    stretch.gaps += gaps_around(stretch, first, begin, bytes) - 1;
    stretch.live.emplace(begin, bytes);
    stretch.live_bytes += static_cast<std::int64_t>(bytes);
  });
}

void Stretches::leave(const void* ptr, std::size_t bytes) {
  change(ptr, [&](Stretch& stretch, std::uintptr_t first, std::uintptr_t begin) {
    stretch.live.erase(begin);
    stretch.live_bytes -= static_cast<std::int64_t>(bytes);
    stretch.gaps -= gaps_around(stretch, first, begin, bytes) - 1;
  });
}

Stretches::ByAddress::iterator Stretches::find_around(const void* ptr) {
  auto around = by_address_.upper_bound(address(ptr));
  if (around == by_address_.begin()) return by_address_.end();
  --around;
  return address(ptr) - around->first < around->second.bytes ? around : by_address_.end();
}

template <class Change>
void Stretches::change(const void* ptr, Change change_it) {
  const auto around = find_around(ptr);
  if (around == by_address_.end()) return;
  auto& [begin, stretch] = *around;
  const std::int64_t gaps = stretch.split_gaps();
  const std::int64_t bytes = stretch.split_bytes();
  change_it(stretch, begin, address(ptr));
  add_large(inactive_split, stretch.split_gaps() - gaps);
  add_large(inactive_split_bytes, stretch.split_bytes() - bytes);
}

// How many sides of [begin, begin + bytes) are idle; a block that lives there is ignored.
int Stretches::gaps_around(const Stretch& stretch, std::uintptr_t first, std::uintptr_t begin,
                           std::size_t bytes) {
  const auto next = stretch.live.lower_bound(begin);
  const std::uintptr_t after = next == stretch.live.end() ? first + stretch.bytes : next->first;
  std::uintptr_t before = first;
  if (next != stretch.live.begin()) before = std::prev(next)->first + std::prev(next)->second;
  return (before < begin ? 1 : 0) + (begin + bytes < after ? 1 : 0);
}

}  // namespace vpmm::torch_plugin
