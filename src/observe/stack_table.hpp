// SPDX-License-Identifier: Apache-2.0
// observe: numbered call stacks of allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"

namespace vpmm::observe {

struct FrameText {
  std::string file;  // of a native frame: its library
  std::uint64_t line = 0;
  std::string function;
};

// Frames of another language. Both functions run on the stack's own thread.
struct StackProvider {
  // Writes up to `most` frames, innermost first, as numbers that keep their meaning while the
  // process runs; returns their count.
  std::size_t (*capture)(void* arg, std::uint64_t* frames, std::size_t most) = nullptr;
  // Describes a frame of capture(). The texts are copied.
  void (*describe)(void* arg, std::uint64_t frame, const char** file, std::uint64_t* line,
                   const char** function) = nullptr;
  void* arg = nullptr;
};

// Sets the process's provider; without functions: none.
void set_stack_provider(const StackProvider& provider);

struct StackKinds {
  bool native = false;
  bool python = false;
  bool any() const { return native || python; }
};
// "none", "native", "python" or "both"; nullopt: another text.
std::optional<StackKinds> stack_kinds_of(const std::string& text);
std::string to_string(const StackKinds& kinds);

// Thread-safe. Keeps native frames as addresses; the reader of take_new() looks up their names.
class StackTable {
 public:
  static constexpr std::size_t kMostFrames = 32;  // of each kind
  static constexpr std::size_t kMostStacks = std::size_t{1} << 17;

  struct Stack {
    std::uint32_t number = 0;
    std::vector<std::uint64_t> native;  // return addresses, innermost first
    std::vector<FrameText> foreign;     // further out than those
  };

  // Number of this thread's stack, without the leading frames of this library. 0: no frames, or no
  // memory.
  std::uint32_t capture(const StackKinds& kinds) noexcept VPMM_EXCLUDES(mutex_);
  // Starts a new file: earlier numbers are never given out again. Returns the first new one.
  std::uint32_t begin_anew() VPMM_EXCLUDES(mutex_);
  // A stack that was not taken; nullopt: none has this number.
  std::optional<Stack> find(std::uint32_t number) const VPMM_EXCLUDES(mutex_);
  // Appends the stacks numbered since the last call.
  void take_new(std::vector<Stack>& taken) VPMM_EXCLUDES(mutex_);

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_
      VPMM_GUARDED_BY(mutex_);  // by a hash of all frames
  std::vector<Stack> fresh_ VPMM_GUARDED_BY(mutex_);
  std::uint32_t next_ VPMM_GUARDED_BY(mutex_) = 1;
};

// Looks up loaded symbols. Never fails: without a symbol the function is the address.
FrameText describe_native(std::uint64_t return_address);

}  // namespace vpmm::observe
