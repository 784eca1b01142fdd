// SPDX-License-Identifier: Apache-2.0
// bench/harness: reading a trace (bench/traces/README.md). A third operation, `s`, waits for the
// GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace vpmm::bench {

struct Event {
  char operation = 'a';  // a, f or s
  std::size_t id = 0;    // 0, 1, 2 ... in the order of first appearance
  std::size_t bytes = 0;
  std::size_t stream = 0;
  std::uint64_t time_us = 0;
};

struct Trace {
  std::string name;  // the file's, without folder and endings
  std::vector<Event> events;
  std::size_t allocations = 0;  // ids are below it
  std::size_t streams = 0;
};

// CSV, gzip-compressed or plain. Throws std::runtime_error.
Trace read_trace(const std::string& path);

}  // namespace vpmm::bench
