// SPDX-License-Identifier: Apache-2.0
// driver/sim: handles and descriptors through which one process maps simulated device memory of
// another.
//
// A legacy handle names the exporting process, its memory file and a notice in that file, which
// locates the memory while it is allocated. An importer reaches the file through /proc: only the
// handle is sent, and the exporter need not take part. A chunk's descriptor is a further opening of
// the memory file, positioned at the chunk's offset. A notice has the chunk's size. Notice and
// bytes stay: an importer may come long after the exporter's end. Single-threaded: the machine's
// lock is held.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "base/address.hpp"
#include "driver/types.hpp"

namespace vpmm::driver::sim {

// Begin of the notices in a memory file, behind all chunks; notices about chunks in the upper half.
constexpr Bytes kNoticesBegin = Bytes{1} << 59;
constexpr Bytes kMemoryFileSize = 2 * kNoticesBegin;

// Location of an allocation in its device's memory file.
struct SharedMemory {
  struct SharedPart {
    Bytes offset = 0;
    Bytes size = 0;
  };
  std::array<SharedPart, 2>
      parts;        // whole chunks; two, adjacent, where a small allocation crosses pages
  Bytes begin = 0;  // of the allocation, from the begin of the first part
  Bytes size = 0;
};

// Unique number of an allocation, also among past ones.
enum class Cookie : std::uint64_t {};

class Exports {
 public:
  explicit Exports(int file) : file_(file) {}

  // Returns the same handle until withdraw(ptr). out_of_memory: the memory file cannot grow.
  CuResult publish(DevicePtr ptr, const SharedMemory& memory, IpcMemHandle& handle);
  void withdraw(DevicePtr ptr);  // no effect if never published
  void withdraw_all();

 private:
  struct Export {
    std::uint64_t place;
    Cookie cookie;
  };
  std::uint64_t take_place();
  void clear(const Export& gone);

  int file_;
  std::map<DevicePtr, Export> exports_;
  std::vector<std::uint64_t> free_places_;
  std::uint64_t next_place_ = 0;
};

struct OpenedHandle {
  int file = -1;  // the caller closes it
  SharedMemory memory;
};

// invalid_value: no handle of a simulated driver. invalid_context: one of this process.
CuResult read_cookie(const IpcMemHandle& handle, Cookie& cookie);
// invalid_handle: the memory is freed or its process gone. map_failed: no access to its process.
CuResult open_handle(const IpcMemHandle& handle, OpenedHandle& opened);

// A chunk sent by descriptor.
struct SharedChunk {
  Bytes offset = 0;  // in its memory file
  Bytes size = 0;
  DeviceOrdinal device = 0;
};
// `memory_file`: file of the chunk; the caller closes `file`. out_of_memory: the memory file cannot
// grow. operating_system: no descriptor is left.
CuResult export_chunk(int memory_file, const SharedChunk& chunk, int& file);
// invalid_value: no descriptor of a chunk.
CuResult read_chunk(int file, SharedChunk& chunk);

}  // namespace vpmm::driver::sim
