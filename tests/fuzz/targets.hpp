// SPDX-License-Identifier: Apache-2.0
// fuzz tests: readers of bytes that somebody else wrote. Each takes any bytes, and ends with a
// result or an error; what else it does, such as a crash or a broken promise, ends the process.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vpmm::fuzz {

using Input = std::span<const std::uint8_t>;
using Contents = std::vector<std::uint8_t>;

struct Target {
  const char* name;
  void (*run)(Input input);
  // Changes of inputs that know their meaning, at most `most` bytes; null: bytes are changed.
  Contents (*change)(Input input, std::size_t most, std::uint32_t seed) = nullptr;
  Contents (*cross)(Input one, Input other, std::size_t most, std::uint32_t seed) = nullptr;
};

// In alphabetical order.
const std::vector<Target>& targets();

// Prints the promise and aborts unless `holds`.
void require(bool holds, const char* promise);
std::string_view text_of(Input input);
// Takes bytes from the front of an input; zeros where it has ended.
class Taken {
 public:
  explicit Taken(Input input) : left_(input) {}
  bool is_empty() const { return left_.empty(); }
  std::uint64_t number(std::size_t bytes);
  Input bytes(std::size_t most);

 private:
  Input left_;
};

// Folder of the sockets of this process; the first call makes it and sets VPMM_IPC_DIR.
const std::string& folder_of_sockets();

// A file of memory that holds `bytes`, while this object lives.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view bytes);
  ~MemoryFile();
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const;

 private:
  int file_;
};

void read_exporter_messages(Input input);
void run_program(Input input);
void read_importer_messages(Input input);
void read_recorded_blocks(Input input);
void read_setting(Input input);
void read_token(Input input);
void read_trace_file(Input input);

}  // namespace vpmm::fuzz
