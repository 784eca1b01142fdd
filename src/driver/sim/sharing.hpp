// driver/sim: handles through which one process maps simulated device memory of another.
//
// A handle names the exporting process, its memory file and a notice in that file. The notice says where the memory
// lies and is there for as long as the memory is allocated. An importer reaches the file through /proc, so that
// nothing but the handle has to be sent, and the exporter need not take part.
// Single-threaded: the machine's lock is held.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

#include "base/address.hpp"
#include "driver/types.hpp"

namespace vpmm::driver::sim {

// Notices lie in the memory files from here on, where no chunk ever comes.
constexpr Bytes kNoticesBegin = Bytes{1} << 59;

// Where an allocation lies in its device's memory file.
struct SharedMemory {
  struct Part {
    Bytes offset = 0;
    Bytes size = 0;
  };
  std::array<Part, 2> parts;  // whole chunks; two, one behind the other, where a small allocation crosses pages
  Bytes begin = 0;            // of the allocation, from the begin of the first part
  Bytes size = 0;
};

// Tells an allocation from every other one, also from those of the past.
enum class Cookie : std::uint64_t {};

// What one device has exported.
class Exports {
 public:
  explicit Exports(int file) : file_(file) {}

  // The same handle each time until withdraw(ptr). out_of_memory: the memory file cannot grow.
  CuResult publish(DevicePtr ptr, const SharedMemory& memory, IpcMemHandle& handle);
  void withdraw(DevicePtr ptr);  // harmless for what was never published
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
// invalid_handle: the memory is freed or its process gone. map_failed: its process may not be looked into.
CuResult open_handle(const IpcMemHandle& handle, OpenedHandle& opened);

}  // namespace vpmm::driver::sim
