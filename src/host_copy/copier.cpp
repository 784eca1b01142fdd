// SPDX-License-Identifier: Apache-2.0
// host_copy: threads that copy, each with a pinned buffer and a stream.
#include "host_copy/copier.hpp"

#include <algorithm>
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

// Bytes of a buffer. Halved: threads wait for the GPU more often (38 GB/s for 47, both directions,
// 16 threads on an H200); doubled: the same, and the last buffers leave most threads idle.
constexpr Bytes kBuffer = 4 * kMiB;
// Buffers of the ring, one for each thread. Eight copy 35 GB/s out and 41 back, sixteen 47, the
// bus carries 55.
constexpr std::size_t kMostThreads = 16;

std::size_t buffers_of_ring() {
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

  // One thread's share. Stops when any thread has failed.
  void work(std::byte* buffer) noexcept {
    const driver::ContextScope scope(driver_, context_.handle);
    const driver::RelaxedCaptureScope relaxed(driver_);
    OwnStream stream(driver_);
    if (!stream.made()) return fail(stream.made().error());
    while (!has_failed_.load(std::memory_order_relaxed)) {
      const std::size_t load = next_.fetch_add(1, std::memory_order_relaxed);
      if (load >= loads()) return;
      if (Result<void> done = carry(load, buffer, stream); !done) return fail(done.error());
    }
  }
  Result<void> result() {
    const MutexLock lock(mutex_);
    if (error_) return std::move(*error_);
    return {};
  }

 private:
  Result<void> carry(std::size_t load, std::byte* buffer, OwnStream& stream) {
    if (to_ == CopyTo::device) move(load, buffer);
    std::byte* at = buffer;
    Result<void> done;
    for (std::size_t i = loads_[load]; i < loads_[load + 1] && done; ++i) {
      done = queue_copy(driver_, pieces_[i], at, to_, stream.handle());
      at += pieces_[i].bytes;
    }
    Result<void> waited = stream.wait();  // also after a failure: the buffer is in use
    VPMM_TRY(done);
    VPMM_TRY(waited);
    if (to_ == CopyTo::host) move(load, buffer);
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
  if (ring_.size() == 0) ring_ = HostMemory(kBuffer * buffers_of_ring());
  return ring_.pin(driver_, context.id);
}

Result<void> Copier::copy(const Vector<CopyPiece>& pieces, CopyTo to, const CopyContext& context) {
  VPMM_TRY(prepare(context));
  const MutexLock lock(mutex_);
  CopyJob job(driver_, pieces, to, context);
  const std::size_t most = std::min(job.loads(), buffers_of_ring());
  Vector<std::thread> helpers;
  helpers.reserve(most);
  {
    const QuietThreads quiet;
    // Fewer threads are slower, and nothing else.
    try {
      for (std::size_t i = 1; i < most; ++i)
        helpers.emplace_back([&job, buffer = ring_.begin() + i * kBuffer] { job.work(buffer); });
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
  const Result<void> waited = stream.wait();
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

Bytes Copier::ring_bytes() const {
  const MutexLock lock(mutex_);
  return ring_.size();
}

}  // namespace vpmm::host_copy
