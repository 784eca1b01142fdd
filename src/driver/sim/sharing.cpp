// SPDX-License-Identifier: Apache-2.0
// driver/sim: contents of a handle and of a descriptor, and the notices behind them.
#include "driver/sim/sharing.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <random>

namespace vpmm::driver::sim {
namespace {

constexpr std::uint64_t kMagic = 0x31637069'6d6d7076;  // "vpmmipc1"

struct Contents {
  std::uint64_t magic = 0;
  std::int32_t process = 0;
  std::int32_t file = -1;  // its number in that process
  std::uint64_t inode = 0;
  std::uint64_t place = 0;
  Cookie cookie{};
  std::array<std::uint64_t, 3> unused{};
};
static_assert(sizeof(Contents) == sizeof(IpcMemHandle));

struct Notice {
  Cookie cookie{};  // 0: none
  SharedMemory memory;
};

struct ChunkNotice {
  std::uint64_t magic = 0;
  Bytes size = 0;
  std::int64_t device = 0;
  std::uint64_t unused = 0;
};
constexpr std::uint64_t kChunkMagic = 0x316b6e68'6d6d7076;  // "vpmmhnk1"

// Chunks of any machine begin on such a boundary, so that the importer need not know the exporter's
// granularity.
constexpr Bytes kSmallestChunk = 4 * kKiB;

off_t chunk_position(Bytes offset) {
  return static_cast<off_t>(kNoticesBegin + kNoticesBegin / 2 +
                            offset / kSmallestChunk * sizeof(ChunkNotice));
}

off_t position(std::uint64_t place) {
  return static_cast<off_t>(kNoticesBegin + place * sizeof(Notice));
}

bool write_notice(int file, std::uint64_t place, const Notice& notice) {
  return pwrite(file, &notice, sizeof notice, position(place)) ==
         static_cast<ssize_t>(sizeof notice);
}

Cookie new_cookie() {
  std::random_device dice;
  for (;;) {
    const std::uint64_t drawn = std::uint64_t{dice()} << 32 | dice();
    if (drawn != 0) return Cookie{drawn};
  }
}

CuResult unreachable() { return errno == ENOENT ? CuResult::invalid_handle : CuResult::map_failed; }

// A file's number may be reused by now, for a file that is not safe to open.
CuResult check_file(const char* path, std::uint64_t inode) {
  struct stat status {};
  if (stat(path, &status) != 0) return unreachable();
  return S_ISREG(status.st_mode) && status.st_ino == inode ? CuResult::success
                                                           : CuResult::invalid_handle;
}

}  // namespace

std::uint64_t Exports::take_place() {
  if (free_places_.empty()) return next_place_++;
  const std::uint64_t place = free_places_.back();
  free_places_.pop_back();
  return place;
}

CuResult Exports::publish(DevicePtr ptr, const SharedMemory& memory, IpcMemHandle& handle) {
  struct stat status {};
  if (fstat(file_, &status) != 0) return CuResult::map_failed;
  auto found = exports_.find(ptr);
  if (found == exports_.end()) {
    const Export made{take_place(), new_cookie()};
    if (!write_notice(file_, made.place, {made.cookie, memory})) {
      free_places_.push_back(made.place);
      return CuResult::out_of_memory;
    }
    found = exports_.emplace(ptr, made).first;
  }
  const auto& [place, cookie] = found->second;
  handle = std::bit_cast<IpcMemHandle>(
      Contents{kMagic, getpid(), file_, status.st_ino, place, cookie, {}});
  return CuResult::success;
}

void Exports::withdraw(DevicePtr ptr) {
  const auto found = exports_.find(ptr);
  if (found == exports_.end()) return;
  clear(found->second);
  exports_.erase(found);
}

void Exports::withdraw_all() {
  for (const auto& [ptr, gone] : exports_) clear(gone);
  exports_.clear();
}

// A written notice can be overwritten: its page is there.
void Exports::clear(const Export& gone) {
  write_notice(file_, gone.place, {});
  free_places_.push_back(gone.place);
}

CuResult read_cookie(const IpcMemHandle& handle, Cookie& cookie) {
  const auto contents = std::bit_cast<Contents>(handle);
  if (contents.magic != kMagic) return CuResult::invalid_value;
  if (contents.process == getpid()) return CuResult::invalid_context;
  cookie = contents.cookie;
  return CuResult::success;
}

CuResult open_handle(const IpcMemHandle& handle, OpenedHandle& opened) {
  const auto contents = std::bit_cast<Contents>(handle);
  const std::string path = fmt::format("/proc/{}/fd/{}", contents.process, contents.file);
  if (const CuResult error = check_file(path.c_str(), contents.inode); error != CuResult::success)
    return error;
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return unreachable();
  Notice notice;
  const ssize_t got = pread(file, &notice, sizeof notice, position(contents.place));
  if (got != static_cast<ssize_t>(sizeof notice) || notice.cookie != contents.cookie ||
      notice.cookie == Cookie{}) {
    close(file);
    return CuResult::invalid_handle;
  }
  opened = {file, notice.memory};
  return CuResult::success;
}

CuResult export_chunk(int memory_file, const SharedChunk& chunk, int& file) {
  const ChunkNotice notice{kChunkMagic, chunk.size, chunk.device, 0};
  if (pwrite(memory_file, &notice, sizeof notice, chunk_position(chunk.offset)) !=
      ssize_t{sizeof notice}) {
    return CuResult::out_of_memory;
  }
  // Opens the file anew: a dup would share one position with every other descriptor of the file.
  const int opened = open(fmt::format("/proc/self/fd/{}", memory_file).c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) return CuResult::operating_system;
  if (lseek(opened, static_cast<off_t>(chunk.offset), SEEK_SET) < 0) {
    close(opened);
    return CuResult::operating_system;
  }
  file = opened;
  return CuResult::success;
}

CuResult read_chunk(int file, SharedChunk& chunk) {
  struct stat status {};
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) return CuResult::invalid_value;
  if (status.st_size != static_cast<off_t>(kMemoryFileSize)) return CuResult::invalid_value;
  const auto offset = static_cast<Bytes>(lseek(file, 0, SEEK_CUR));
  if (offset >= kNoticesBegin || !is_multiple(offset, kSmallestChunk))
    return CuResult::invalid_value;
  ChunkNotice notice;
  const ssize_t got = pread(file, &notice, sizeof notice, chunk_position(offset));
  if (got != ssize_t{sizeof notice} || notice.magic != kChunkMagic) return CuResult::invalid_value;
  chunk = {offset, notice.size, static_cast<DeviceOrdinal>(notice.device)};
  return CuResult::success;
}

}  // namespace vpmm::driver::sim
