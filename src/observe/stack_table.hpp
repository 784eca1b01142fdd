// observe: call stacks of allocations, each of which has a number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.hpp"

namespace vpmm::observe {

// Where a frame is, in words.
struct FrameText {
  std::string file;  // of a native frame: its library
  std::uint64_t line = 0;
  std::string function;
};

// The frames of another language. Both run on the thread whose stack it is.
struct StackProvider {
  // Up to `most` frames, innermost first, by numbers that mean the same frame as long as the
  // process runs; how many.
  std::size_t (*capture)(void* arg, std::uint64_t* frames, std::size_t most) = nullptr;
  // Of a frame that capture() gave. The texts are copied.
  void (*describe)(void* arg, std::uint64_t frame, const char** file, std::uint64_t* line,
                   const char** function) = nullptr;
  void* arg = nullptr;
};

// The process's; without functions: none.
void set_stack_provider(const StackProvider& provider);

struct StackKinds {
  bool native = false;
  bool python = false;
  bool any() const { return native || python; }
};
// "none", "native", "python" or "both"; none: it is neither of them.
std::optional<StackKinds> stack_kinds_of(const std::string& text);
std::string to_string(const StackKinds& kinds);

// Any thread. Stacks are kept as addresses; names are looked up by whoever takes them out.
class StackTable {
 public:
  static constexpr std::size_t kMostFrames = 32;  // of each kind
  static constexpr std::size_t kMostStacks = std::size_t{1} << 17;

  struct Stack {
    std::uint32_t number = 0;
    std::vector<std::uint64_t> native;  // return addresses, innermost first
    std::vector<FrameText> foreign;     // further out than those
  };

  // The number of the stack of this thread, without the frames of this library that it begins with.
  // 0: it has none, or there is no memory for it.
  std::uint32_t capture(const StackKinds& kinds) noexcept VPMM_EXCLUDES(mutex_);
  // Of a new file: no number from before it is given out again. Returns the first that may be.
  std::uint32_t begin_anew() VPMM_EXCLUDES(mutex_);
  // Appends what got a number since the last time.
  void take_new(std::vector<Stack>& taken) VPMM_EXCLUDES(mutex_);

 private:
  Mutex mutex_;
  std::unordered_map<std::uint64_t, std::uint32_t> numbers_
      VPMM_GUARDED_BY(mutex_);  // by a hash of all frames
  std::vector<Stack> fresh_ VPMM_GUARDED_BY(mutex_);
  std::uint32_t next_ VPMM_GUARDED_BY(mutex_) = 1;
};

// By what the process has loaded. Never fails: without a symbol the function is the address.
FrameText describe_native(std::uint64_t return_address);

}  // namespace vpmm::observe
