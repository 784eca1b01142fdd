// context: who is told of every allocation and free: a recording, and the driver's observer of memory.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "context/context.hpp"
#include "context/device.hpp"
#include "observe/trace_file.hpp"

namespace vpmm::context {

class Recorder {
 public:
  explicit Recorder(Device& device) : device_(device), observer_(device.driver.memory_observer()) {}

  bool is_recording() const VPMM_REQUIRES(pool_lock) { return writer_ != nullptr; }
  void start(std::shared_ptr<observe::TraceWriter> writer) VPMM_REQUIRES(pool_lock) { writer_ = std::move(writer); }
  std::shared_ptr<observe::TraceWriter> stop() VPMM_REQUIRES(pool_lock) { return std::move(writer_); }

  // `block`: where it is part of an arena's memory.
  void allocated(DevicePtr begin, const Request& request, const pool::Caller& caller,
                 std::optional<AddressRange> block = std::nullopt) VPMM_REQUIRES(pool_lock);
  void freed(DevicePtr ptr, const pool::Caller& caller) VPMM_REQUIRES(pool_lock);
  // To the observer alone. `last`: whose work is the last to use it; none: any stream's.
  void observe_begin(AddressRange range, const Stream& stream) const;
  void observe_end(AddressRange range, const Stream& last) const;

 private:
  Device& device_;
  driver::MemoryObserver* const observer_;
  std::shared_ptr<observe::TraceWriter> writer_ VPMM_GUARDED_BY(pool_lock);  // null: nothing is recorded
};

}  // namespace vpmm::context
