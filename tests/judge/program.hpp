// judge: a program as data: a setting and operations, which print themselves as text and are read
// from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.hpp"

namespace vpmm::judge {

enum class Verb : std::uint8_t {
#define VPMM_VERB(name) name,
#include "judge/verbs.def"
#undef VPMM_VERB
};

constexpr std::uint64_t kNoStream = ~std::uint64_t{0};

// Fields that a verb does not read are 0.
struct Operation {
  Verb verb{};
  std::uint64_t id = 0;
  std::uint64_t pool = 0;
  std::uint64_t stream = 0;
  std::uint64_t other = 0;
  std::uint64_t arena = 0;  // id; 0: none
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 0;
  std::uint64_t count = 0;
  std::uint64_t ns = 0;
  std::uint64_t flag = 0;
  friend bool operator==(const Operation&, const Operation&) = default;
};

// Bits of Operation::flag.
enum Request : std::uint64_t { kOneChunk = 1, kTagged = 2 };
enum GraphFlag : std::uint64_t { kFreedFirst = 1, kReleasedFirst = 2 };
enum ArenaFlag : std::uint64_t { kArenaOneChunk = 1, kArenaNoSplit = 2 };

struct Setting {
  std::uint64_t seed = 1;  // of the simulator
  std::uint64_t pools = 1;
  std::uint64_t threads = 1;
  std::uint64_t streams = 5;  // that are created
  Bytes gpu_bytes = kGiB;
  std::uint64_t schedule = 0;  // driver::sim::Schedule
  std::uint64_t lag_ns = 0;
  std::uint64_t has_vmm = 1;
  std::uint64_t has_driver_pool = 1;
  std::uint64_t has_context_events = 1;
  std::uint64_t frees_when_short = 0;     // an out-of-memory callback frees something
  std::uint64_t frees_on_allocating = 0;  // unnamed_free_on_allocating_stream
  std::uint64_t listens = 0;              // events are counted
  std::uint64_t crowds = 0;               // every stream does, from the beginning
  std::vector<std::pair<std::string, std::string>> variables;  // VPMM_PREFER and its value, ...
};

struct Program {
  Setting setting;
  std::vector<Operation> operations;
};

std::string to_text(const Operation& operation);  // "allocate id=3 stream=5 bytes=4096"
std::string to_text(const Program& program);  // one line each; lines that begin with # are comments
// None: `problem` names the line.
std::optional<Program> read_program(const std::string& text, std::string& problem);

}  // namespace vpmm::judge
