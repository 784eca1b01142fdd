// SPDX-License-Identifier: Apache-2.0
// fuzz tests: recordings and traces, as files and as blocks that need no checksum.
#include <zlib.h>
#include <zstd.h>

#include <array>
#include <string>

#include "fuzz/targets.hpp"
#include "observe/recorded_event.hpp"
#include "observe/trace_file.hpp"

namespace vpmm::fuzz {
namespace {

using observe::BlockHeader;
using observe::Trace;
using observe::TraceEvent;

void require_sound(const Trace& trace) {
  std::vector<bool> is_live(trace.allocations);
  std::vector<Bytes> bytes(trace.allocations);
  std::size_t begun = 0;
  std::size_t failed = 0;
  std::uint64_t last_us = 0;
  for (const TraceEvent& event : trace.events) {
    require(event.allocation < trace.allocations, "allocations are numbered");
    require(event.stream < trace.streams, "streams are numbered");
    require(event.time_us >= last_us, "time never decreases");
    last_us = event.time_us;
    if (event.kind == TraceEvent::TraceKind::allocate) {
      require(event.allocation == begun, "allocations are numbered in order of appearance");
      ++begun;
      failed += event.failed ? 1 : 0;
      is_live[event.allocation] = !event.failed;
      bytes[event.allocation] = event.bytes;
    } else {
      require(is_live[event.allocation], "live allocations alone are freed");
      require(event.bytes == bytes[event.allocation], "a free has the bytes of its allocation");
      is_live[event.allocation] = false;
    }
  }
  require(begun == trace.allocations, "allocations are counted");
  require(failed == trace.failed, "failed requests are counted");
}

void read_file(std::string_view bytes) {
  const MemoryFile file(bytes);
  const Result<Trace> trace = observe::read_trace(file.path());
  if (trace) return require_sound(trace.value());
  require(trace.error().code == ErrorCode::bad_file, "an unreadable file is a bad file");
  require(trace.error().message.find(file.path()) != std::string::npos, "an error names its file");
}

void append(std::string& file, std::uint32_t kind, Input bytes) {
  std::string stored(ZSTD_compressBound(bytes.size()), '\0');
  stored.resize(ZSTD_compress(stored.data(), stored.size(), bytes.data(), bytes.size(), 1));
  BlockHeader header;
  header.magic = observe::kBlockMagic;
  header.kind = kind;
  header.stored = static_cast<std::uint32_t>(stored.size());
  header.decompressed = static_cast<std::uint32_t>(bytes.size());
  header.crc = static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(stored.data()), static_cast<uInt>(stored.size())));
  file.append(reinterpret_cast<const char*>(&header), sizeof header).append(stored);
}

}  // namespace

void read_trace_file(Input input) { read_file(text_of(input)); }

// Blocks one after the other: a byte of the kind, three of the length, the contents.
void read_recorded_blocks(Input input) {
  std::string file(observe::kRecordingMagic);
  Taken taken(input);
  while (!taken.is_empty()) {
    const auto kind = static_cast<std::uint32_t>(taken.number(1));
    const auto size = static_cast<std::size_t>(taken.number(3));
    append(file, kind, taken.bytes(size));
  }
  read_file(file);
}

}  // namespace vpmm::fuzz
