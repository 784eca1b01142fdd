// SPDX-License-Identifier: Apache-2.0
// report: events of calls for a recording, with the pool's lock or without.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/thread_number.hpp"
#include "driver/recording.hpp"
#include "observe/trace_writer.hpp"
#include "pool/request.hpp"

namespace vpmm::report {

// Lives as long as its pool (observe::RecordingChannel). Drops events while no recording runs.
class CallLog final : public driver::CallObserver {
 public:
  using Claim = observe::EventQueue::Claim;
  using RecordedKind = observe::RecordedKind;
  explicit CallLog(driver::Driver& driver)
      : driver_(driver), channel_(std::make_shared<observe::RecordingChannel>()) {}

  const std::shared_ptr<observe::RecordingChannel>& channel() const { return channel_; }
  void set_stacks(const observe::StackKinds& kinds) {
    native_.store(kinds.native, std::memory_order_relaxed);
    python_.store(kinds.python, std::memory_order_relaxed);
  }

  // The calling stream.
  struct By {
    std::optional<std::uint64_t> stream;  // its id
    std::optional<std::uint64_t> handle;
  };
  static By by(driver::StreamId id, const pool::Stream& stream) {
    if (!stream) return {};
    return {static_cast<std::uint64_t>(id), static_cast<std::uint64_t>(*stream)};
  }
  static By by(const pool::Caller& caller) {
    if (caller.timeline == nullptr || !caller.timeline->stream) return {};
    const driver::StreamHandle handle = caller.stream.value_or(caller.timeline->handle);
    return {static_cast<std::uint64_t>(*caller.timeline->stream),
            static_cast<std::uint64_t>(handle)};
  }

  // 0: not wanted, or no memory. Call without the pool's lock: symbols may need the loader's lock,
  // and another thread with that lock may call the pool.
  std::uint32_t capture_stack() noexcept {
    const observe::StackKinds kinds{native_.load(std::memory_order_relaxed),
                                    python_.load(std::memory_order_relaxed)};
    return kinds.any() && channel_->queue.is_open() ? channel_->stacks.capture(kinds) : 0;
  }
  // Tells if claim() may wait.
  bool would_wait() const noexcept { return channel_->queue.would_wait(); }
  // Call before the memory can serve another request.
  Claim claim() noexcept { return channel_->queue.claim(); }
  void freed(Claim place, DevicePtr ptr, const By& by) noexcept;
  // Call when the caller has the memory. `taken`: bytes of the pool, or 0.
  void allocated(DevicePtr begin, const pool::Request& request, Bytes taken, const By& by) noexcept;
  void failed(const pool::Request& request, const Error& error, const By& by) noexcept;
  void put(RecordedKind kind, AddressRange range, std::uint64_t value = 0,
           std::uint64_t arena = 0) noexcept;
  void put(RecordedKind kind, const std::string& text) noexcept;
  void used(AddressRange allocation, const By& by) noexcept;
  void after_call(driver::Call call, Bytes bytes, std::uint64_t duration_ns) noexcept override;

 private:
  void fail(RecordedKind kind, const pool::Request& request, const Error& error,
            const By& by) noexcept;
  observe::QueuedEvent event(RecordedKind kind, AddressRange range, const By& by) const noexcept;

  driver::Driver& driver_;
  const std::shared_ptr<observe::RecordingChannel> channel_;
  std::atomic<bool> native_{false};
  std::atomic<bool> python_{false};
};

}  // namespace vpmm::report
