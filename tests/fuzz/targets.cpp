// SPDX-License-Identifier: Apache-2.0
// fuzz tests: list of the targets, and the words that they share.
#include "fuzz/targets.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "fuzz/program_mutator.hpp"

namespace vpmm::fuzz {

const std::vector<Target>& targets() {
  static const std::vector<Target> all = {
      {"exporter_messages", read_exporter_messages},
      {"hunt", run_program, changed_program, crossed_programs},
      {"importer_messages", read_importer_messages},
      {"recorded_blocks", read_recorded_blocks},
      {"setting", read_setting},
      {"token", read_token},
      {"trace_file", read_trace_file},
  };
  return all;
}

void require(bool holds, const char* promise) {
  if (holds) return;
  static_cast<void>(std::fprintf(stderr, "broken promise: %s\n", promise));
  std::abort();
}

std::string_view text_of(Input input) {
  return {reinterpret_cast<const char*>(input.data()), input.size()};
}

std::uint64_t Taken::number(std::size_t bytes) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < bytes && i < left_.size(); ++i)
    number |= std::uint64_t{left_[i]} << (8 * i);
  this->bytes(bytes);
  return number;
}

Input Taken::bytes(std::size_t most) {
  const Input taken = left_.first(std::min(most, left_.size()));
  left_ = left_.subspan(taken.size());
  return taken;
}

const std::string& folder_of_sockets() {
  static const std::string folder = [] {
    std::string made = "/tmp/vpmm-fuzz-XXXXXX";
    require(mkdtemp(made.data()) != nullptr, "the system gives a folder");
    setenv("VPMM_IPC_DIR", made.c_str(), 1);
    return made;
  }();
  return folder;
}

MemoryFile::MemoryFile(std::string_view bytes) : file_(memfd_create("input", MFD_CLOEXEC)) {
  require(file_ >= 0, "the system gives a file of memory");
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t count = write(file_, bytes.data() + written, bytes.size() - written);
    require(count > 0, "a file of memory takes bytes");
    written += static_cast<std::size_t>(count);
  }
}

MemoryFile::~MemoryFile() { close(file_); }

std::string MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(file_); }

}  // namespace vpmm::fuzz
