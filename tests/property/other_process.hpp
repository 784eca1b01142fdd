// SPDX-License-Identifier: Apache-2.0
// property tests: a process that opens memory of this one over its socket.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/result.hpp"
#include "ipc/actor.hpp"
#include "ipc/handle.hpp"

namespace vpmm::property {

// One for all programs of this process. It has simulated GPUs of its own and ends with the thread
// that started it.
class OtherProcess {
 public:
  static OtherProcess& instance();
  // No effect if it runs. Aborts a process that was started as the other one and whose main() does
  // not begin with ipc_test::act(), so that the start fails here.
  Result<void> start();
  void kill();  // by SIGKILL; returns when it is dead

  // Returns the address of the memory there.
  Result<DevicePtr> open(const ipc::IpcHandle& handle);
  Result<void> close(DevicePtr ptr);
  // Takes as many chunks as an exporter sends without an acknowledgement, and waits. For a process
  // that is killed next.
  Result<void> begin_to_open(const ipc::IpcHandle& handle);
  // Returns whether the bytes at `offsets` from `ptr`, three at most, are `content`.
  Result<bool> reads(DevicePtr ptr, std::span<const Bytes> offsets, std::uint8_t content);

 private:
  ipc_test::Parcel ask(ipc_test::Work work, const ipc_test::Parcel& question);

  std::optional<ipc_test::Actor> actor_;
};

// Waits until the thread of this process's exporter has done all that other processes, alive or
// dead, gave it to do. not_shared: that takes longer than some seconds.
Result<void> wait_for_exporter(const ipc::Identity& exporter);

}  // namespace vpmm::property
