// SPDX-License-Identifier: Apache-2.0
// observe: allocations and frees of a program, read strictly from a file: a recording, or lines
// `op,id,bytes,stream,time_us`, gzip or plain.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "base/result.hpp"

namespace vpmm::observe {

struct TraceEvent {
  enum class TraceKind { allocate, deallocate };
  TraceKind kind = TraceKind::allocate;
  std::size_t allocation = 0;  // renumbered from 0 in order of appearance
  Bytes bytes = 0;             // of the allocation, in both kinds
  std::size_t stream = 0;      // renumbered from 0 in order of appearance
  std::uint64_t time_us = 0;   // never decreases
  bool failed = false;         // an allocation without memory; numbered, never freed
};

struct Trace {
  std::string name;  // the file's name without its folder
  std::vector<TraceEvent> events;
  std::size_t allocations = 0;
  std::size_t streams = 0;
  std::size_t failed = 0;             // requests
  std::optional<Bytes> capacity;      // of the pool; nullopt: the GPU's memory, or unknown
  std::optional<Bytes> device_bytes;  // of the GPU; nullopt: unknown
  std::string warning;                // empty, or: the file was cut, and the trace is its beginning
};

// "-": standard input. Any deviation is ErrorCode::bad_file, "FILE:LINE: reason" or "FILE: byte
// OFFSET: reason"; except that a recording or a compressed file that just ends, because its program
// died, is read up to its last whole block or line.
Result<Trace> read_trace(const std::string& path);

}  // namespace vpmm::observe
