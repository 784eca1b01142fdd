// SPDX-License-Identifier: Apache-2.0
// observe: walks the stack of a thread, and names its frames.
#include "observe/stack_table.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <unwind.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <utility>

namespace vpmm::observe {
namespace {

using Frames = std::array<std::uint64_t, StackTable::kMostFrames>;

struct Walk {
  Frames frames;
  std::size_t count = 0;
};

struct Area {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool has(std::uint64_t address) const { return begin <= address && address < end; }
};

int find_own(dl_phdr_info* module, std::size_t /*size*/, void* arg) {
  const auto here = reinterpret_cast<std::uint64_t>(&find_own);
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const auto& part = module->dlpi_phdr[i];
    const Area area{module->dlpi_addr + part.p_vaddr,
                    module->dlpi_addr + part.p_vaddr + part.p_memsz};
    if (part.p_type != PT_LOAD || !area.has(here)) continue;
    if (*module->dlpi_name != '\0') *static_cast<Area*>(arg) = area;
    return 1;
  }
  return 0;
}

// Address range of this library's code. Empty where it is linked into a program, as the program's
// frames are wanted.
const Area& own_code() {
  static const Area own = [] {
    Area found;
    dl_iterate_phdr(&find_own, &found);
    return found;
  }();
  return own;
}

_Unwind_Reason_Code add_frame(_Unwind_Context* context, void* arg) {
  Walk& walk = *static_cast<Walk*>(arg);
  const std::uint64_t address = _Unwind_GetIP(context);
  if (address == 0 || walk.count == walk.frames.size()) return _URC_END_OF_STACK;
  if (walk.count == 0 && own_code().has(address)) return _URC_NO_REASON;
  walk.frames[walk.count++] = address;
  return _URC_NO_REASON;
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}

std::uint64_t hash_of(const Walk& walk, std::uint64_t seed) {
  std::uint64_t hash = mixed(seed, walk.count);
  for (std::size_t i = 0; i < walk.count; ++i) hash = mixed(hash, walk.frames[i]);
  return hash;
}

struct ProviderHolder {
  Mutex mutex;
  StackProvider provider VPMM_GUARDED_BY(mutex);
};

// Stays for good: static objects may still allocate.
ProviderHolder& holder() {
  static auto* const the = new ProviderHolder;
  return *the;
}

StackProvider provider() {
  const MutexLock lock(holder().mutex);
  return holder().provider;
}

FrameText described(const StackProvider& by, std::uint64_t frame) {
  FrameText text;
  const char* file = nullptr;
  const char* function = nullptr;
  by.describe(by.arg, frame, &file, &text.line, &function);
  if (file != nullptr) text.file = file;
  if (function != nullptr) text.function = function;
  return text;
}

}  // namespace

void set_stack_provider(const StackProvider& provider) {
  const MutexLock lock(holder().mutex);
  holder().provider = provider;
}

std::optional<StackKinds> stack_kinds_of(const std::string& text) {
  if (text == "none") return StackKinds{};
  if (text == "native") return StackKinds{true, false};
  if (text == "python") return StackKinds{false, true};
  if (text == "both") return StackKinds{true, true};
  return std::nullopt;
}

std::string to_string(const StackKinds& kinds) {
  if (kinds.native) return kinds.python ? "both" : "native";
  return kinds.python ? "python" : "none";
}

// Holds no lock while the provider runs, which may call capture() again.
[[gnu::noinline]] std::uint32_t StackTable::capture(const StackKinds& kinds) noexcept try {
  Walk native;
  Walk foreign;
  if (kinds.native) _Unwind_Backtrace(&add_frame, &native);
  const StackProvider by = kinds.python ? provider() : StackProvider{};
  if (by.capture != nullptr)
    foreign.count = by.capture(by.arg, foreign.frames.data(), foreign.frames.size());
  if (native.count + foreign.count == 0) return 0;
  const std::uint64_t hash = hash_of(foreign, hash_of(native, 0));
  {
    const MutexLock lock(mutex_);
    if (const auto found = numbers_.find(hash); found != numbers_.end()) return found->second;
    if (numbers_.size() == kMostStacks) return 0;
  }
  Stack stack;
  const std::size_t own = own_code().end == 0 && native.count > 1 ? 1 : 0;  // capture() itself
  stack.native.assign(native.frames.begin() + own,
                      native.frames.begin() + static_cast<std::ptrdiff_t>(native.count));
  for (std::size_t i = 0; i < foreign.count; ++i)
    stack.foreign.push_back(described(by, foreign.frames[i]));
  const MutexLock lock(mutex_);
  // May throw, so before a number is given.
  if (fresh_.size() == fresh_.capacity()) fresh_.reserve(2 * fresh_.size() + 1);
  const auto [entry, is_new] = numbers_.try_emplace(hash, next_);
  if (!is_new) return entry->second;
  stack.number = next_;
  fresh_.push_back(std::move(stack));
  return next_++;
} catch (...) {  // no host memory
  return 0;
}

std::uint32_t StackTable::begin_anew() {
  const MutexLock lock(mutex_);
  numbers_.clear();
  fresh_.clear();
  return next_;
}

std::optional<StackTable::Stack> StackTable::find(std::uint32_t number) const {
  const MutexLock lock(mutex_);
  const auto found = std::lower_bound(
      fresh_.begin(), fresh_.end(), number,
      [](const Stack& stack, std::uint32_t sought) { return stack.number < sought; });
  if (found == fresh_.end() || found->number != number) return std::nullopt;
  return *found;
}

void StackTable::take_new(std::vector<Stack>& taken) {
  const MutexLock lock(mutex_);
  taken.reserve(taken.size() + fresh_.size());
  std::move(fresh_.begin(), fresh_.end(), std::back_inserter(taken));
  fresh_.clear();
}

FrameText describe_native(std::uint64_t return_address) {
  Dl_info info{};
  // The call lies before its return address, which may be in another function.
  const auto* const at =
      reinterpret_cast<const void*>(return_address - 1);  // NOLINT(performance-no-int-to-ptr)
  if (dladdr(at, &info) == 0) return {"", 0, fmt::format("{:#x}", return_address)};
  const std::string file = info.dli_fname == nullptr ? "" : info.dli_fname;
  if (info.dli_sname == nullptr) {
    const auto base = reinterpret_cast<std::uint64_t>(info.dli_fbase);
    return {file, 0, fmt::format("+{:#x}", return_address - base)};
  }
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  return {file, 0, status == 0 && name ? name.get() : info.dli_sname};
}

}  // namespace vpmm::observe
