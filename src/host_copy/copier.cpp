// SPDX-License-Identifier: Apache-2.0
// host_copy: threads that copy, each with a pinned buffer and a stream.
#include "host_copy/copier.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/quiet_thread.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::host_copy {

using driver::Call;
using driver::checked;
using driver::StreamHandle;

namespace {

// Bytes of a buffer. Halved: 1 GiB 42 GB/s out and 41 back for 44 and 44, 8 GiB 46 and 41 for 48
// and 46, host memory prepared, 16 threads on an H200 whose bus carries 55.
constexpr Bytes kBuffer = 4 * kMiB;
// Eight are as fast where host memory is prepared, and copy 21 GB/s for 30 to memory that they
// touch first.
constexpr std::size_t kMostThreads = 16;
// One: 39 GB/s out and 37 back for 44 and 44.
constexpr std::size_t kBuffersOfThread = 2;

std::size_t most_threads() {
  return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, kMostThreads);
}

// A stream that waits for no other, for the life of this object.
class OwnStream {
 public:
  explicit OwnStream(driver::Driver& driver)
      : driver_(driver),
        made_(checked(Call::stream_create,
                      driver.stream_create(driver::StreamFlags::non_blocking, stream_))) {}
  ~OwnStream() {
    if (made_) driver_.stream_destroy(stream_);
  }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  const Result<void>& made() const { return made_; }
  StreamHandle handle() const { return stream_; }
  // Host memory of the copies must not end before they do, so after a failure it waits for all.
  Result<void> wait() {
    Result<void> waited = checked(Call::stream_synchronize, driver_.stream_synchronize(stream_));
    if (!waited) driver_.ctx_synchronize();
    return waited;
  }

 private:
  driver::Driver& driver_;
  StreamHandle stream_{};
  Result<void> made_;
};

// A buffer, its stream, and the load on its way through it.
struct Lane {
  Lane(driver::Driver& driver, std::byte* at) : stream(driver), buffer(at) {}
  OwnStream stream;
  std::byte* buffer;
  std::optional<std::size_t> load;
};

Result<void> queue_copy(driver::Driver& driver, const CopyPiece& piece, std::byte* host, CopyTo to,
                        StreamHandle stream) {
  if (to == CopyTo::host)
    return checked(Call::memcpy_device_to_host_async,
                   driver.memcpy_device_to_host_async(host, piece.device, piece.bytes, stream));
  return checked(Call::memcpy_host_to_device_async,
                 driver.memcpy_host_to_device_async(piece.device, host, piece.bytes, stream));
}

}  // namespace

// The pieces in loads of at most one buffer, which threads take in turn.
class Copier::CopyJob {
 public:
  CopyJob(driver::Driver& driver, const Vector<CopyPiece>& pieces, CopyTo to,
          const CopyContext& context)
      : driver_(driver), to_(to), context_(context) {
    Bytes filled = kBuffer;
    for (CopyPiece piece : pieces)
      while (piece.bytes > 0) {
        if (filled == kBuffer) {
          loads_.push_back(pieces_.size());
          filled = 0;
        }
        const Bytes bytes = std::min(piece.bytes, kBuffer - filled);
        pieces_.push_back({piece.device, piece.host, bytes});
        filled += bytes;
        piece = {piece.device + bytes, piece.host + bytes, piece.bytes - bytes};
      }
    loads_.push_back(pieces_.size());
  }
  std::size_t loads() const { return loads_.size() - 1; }

  // One thread's share, with kBuffersOfThread buffers in turn. Stops when any thread has failed.
  void work(std::byte* buffers) noexcept {
    const driver::ContextScope scope(driver_, context_.handle);
    const driver::RelaxedCaptureScope relaxed(driver_);
    std::array<Lane, kBuffersOfThread> lanes{Lane{driver_, buffers},
                                             Lane{driver_, buffers + kBuffer}};
    std::size_t turn = 0;
    while (serve(lanes[turn])) turn = (turn + 1) % lanes.size();
    for (Lane& lane : lanes)
      if (Result<void> done = finish(lane); !done) fail(done.error());
  }
  Result<void> result() {
    const MutexLock lock(mutex_);
    if (error_) return std::move(*error_);
    return {};
  }

 private:
  // Brings the lane's load to its end and begins another. False: none is left, or a thread failed.
  bool serve(Lane& lane) {
    Result<void> done = lane.stream.made();
    if (done) done = finish(lane);
    if (done) {
      const std::size_t load = next_.fetch_add(1, std::memory_order_relaxed);
      if (has_failed_.load(std::memory_order_relaxed) || load >= loads()) return false;
      done = begin(lane, load);
      if (done) return true;
    }
    fail(done.error());
    return false;
  }
  Result<void> begin(Lane& lane, std::size_t load) {
    lane.load = load;
    if (to_ == CopyTo::device) move(load, lane.buffer);
    std::byte* at = lane.buffer;
    for (std::size_t i = loads_[load]; i < loads_[load + 1]; ++i) {
      VPMM_TRY(queue_copy(driver_, pieces_[i], at, to_, lane.stream.handle()));
      at += pieces_[i].bytes;
    }
    return {};
  }
  // After a failure, too: the buffer is in use until then.
  Result<void> finish(Lane& lane) {
    const std::optional<std::size_t> load = std::exchange(lane.load, std::nullopt);
    if (!load) return {};
    VPMM_TRY(lane.stream.wait());
    if (to_ == CopyTo::host) move(*load, lane.buffer);
    return {};
  }
  void move(std::size_t load, std::byte* buffer) {
    for (std::size_t i = loads_[load]; i < loads_[load + 1]; ++i) {
      const CopyPiece& piece = pieces_[i];
      if (to_ == CopyTo::host)
        std::memcpy(piece.host, buffer, piece.bytes);
      else
        std::memcpy(buffer, piece.host, piece.bytes);
      buffer += piece.bytes;
    }
  }
  void fail(const Error& error) noexcept {
    has_failed_.store(true, std::memory_order_relaxed);
    const MutexLock lock(mutex_);
    if (!error_) error_ = error;
  }

  driver::Driver& driver_;
  const CopyTo to_;
  const CopyContext context_;
  Vector<CopyPiece> pieces_;
  Vector<std::size_t> loads_;  // first piece of each load; at last the number of pieces
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> has_failed_{false};
  Mutex mutex_;
  std::optional<Error> error_ VPMM_GUARDED_BY(mutex_);
};

Result<void> Copier::prepare(const CopyContext& context) {
  const MutexLock lock(mutex_);
  if (ring_.size() == 0) ring_ = HostMemory(kBuffer * kBuffersOfThread * most_threads());
  return ring_.pin(driver_, context.id);
}

Result<void> Copier::copy(const Vector<CopyPiece>& pieces, CopyTo to, const CopyContext& context) {
  VPMM_TRY(prepare(context));
  const MutexLock lock(mutex_);
  CopyJob job(driver_, pieces, to, context);
  const std::size_t most = std::min(job.loads(), ring_.size() / (kBuffersOfThread * kBuffer));
  Vector<std::thread> helpers;
  helpers.reserve(most);
  {
    const QuietThreads quiet;
    // Fewer threads are slower, and nothing else.
    try {
      for (std::size_t i = 1; i < most; ++i)
        helpers.emplace_back([&job, buffers = ring_.begin() + i * kBuffersOfThread * kBuffer] {
          job.work(buffers);
        });
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }
  job.work(ring_.begin());
  for (std::thread& helper : helpers) helper.join();
  return job.result();
}

template <typename Queue>
Result<void> Copier::on_one_stream(const CopyContext& context, Queue&& queue) {
  const driver::ContextScope scope(driver_, context.handle);
  const driver::RelaxedCaptureScope relaxed(driver_);
  OwnStream stream(driver_);
  VPMM_TRY(stream.made());
  const Result<void> queued = queue(stream.handle());
  Result<void> waited = stream.wait();
  VPMM_TRY(queued);
  return waited;
}

Result<void> Copier::copy_pinned(const Vector<CopyPiece>& pieces, CopyTo to,
                                 const CopyContext& context) {
  return on_one_stream(context, [&](StreamHandle stream) -> Result<void> {
    for (const CopyPiece& piece : pieces)
      VPMM_TRY(queue_copy(driver_, piece, piece.host, to, stream));
    return {};
  });
}

Result<void> Copier::clear(const Vector<AddressRange>& ranges, const CopyContext& context) {
  return on_one_stream(context, [&](StreamHandle stream) -> Result<void> {
    for (const AddressRange range : ranges)
      VPMM_TRY(checked(Call::memset_d8_async,
                       driver_.memset_d8_async(range.begin, 0, range.size, stream)));
    return {};
  });
}

void Copier::release() {
  const MutexLock lock(mutex_);
  ring_.unpin();
  ring_ = HostMemory();
}

}  // namespace vpmm::host_copy
