// SPDX-License-Identifier: Apache-2.0
// host_copy tests: operator new for memory at huge pages.
#include "host_copy/fresh_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>

#include "base/bytes.hpp"

namespace vpmm::host_copy {
namespace {

constexpr Bytes kHugePage = 2 * kMiB;
constexpr Bytes kSystemPage = 4 * kKiB;

struct Mapping {
  void* begin;
  Bytes size;
};

struct Pieces {
  std::mutex mutex;
  std::map<void*, Mapping> live;
};

Pieces& pieces() {
  static auto* const all = new Pieces;
  return *all;
}

void* take(Bytes bytes, Bytes alignment) {
  if (alignment < kHugePage) return std::aligned_alloc(alignment, round_up(bytes, alignment));
  const Bytes usable = round_up(bytes, kSystemPage);
  const Bytes size = usable + alignment + kSystemPage;
  void* const mapped = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin =
      reinterpret_cast<void*>(round_up(reinterpret_cast<std::uintptr_t>(mapped), alignment));
  if (::mprotect(begin, usable, PROT_READ | PROT_WRITE) != 0) return nullptr;
  const std::lock_guard lock(pieces().mutex);
  pieces().live[begin] = {mapped, size};
  return begin;
}

void give_back(void* begin) {
  const std::lock_guard lock(pieces().mutex);
  const auto found = pieces().live.find(begin);
  if (found == pieces().live.end()) return std::free(begin);
  ::munmap(found->second.begin, found->second.size);
  pieces().live.erase(found);
}

}  // namespace

std::size_t live_pieces() {
  const std::lock_guard lock(pieces().mutex);
  return pieces().live.size();
}

}  // namespace vpmm::host_copy

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  void* const made = vpmm::host_copy::take(bytes, static_cast<std::size_t>(alignment));
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
void operator delete(void* begin, std::align_val_t) noexcept { vpmm::host_copy::give_back(begin); }
void operator delete(void* begin, std::size_t, std::align_val_t) noexcept {
  vpmm::host_copy::give_back(begin);
}
