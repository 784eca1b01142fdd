// SPDX-License-Identifier: Apache-2.0
// driver/sim: streams as queues of operations, their schedule, and their order.
//
// The *schedule* decides when a queued operation runs. The *clocks* hold the operations ordered
// before one; they follow from the calls alone, never from the order of running. Single-threaded:
// the machine's lock is held.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <queue>
#include <random>
#include <vector>

#include "driver/sim/hazards.hpp"
#include "driver/sim/sim_types.hpp"
#include "driver/sim/vector_clock.hpp"
#include "driver/types.hpp"

namespace vpmm::driver::sim {

enum class StreamKind { blocking, non_blocking, legacy };

// Action of an operation. Host pointers are numbers, as device addresses are.
struct Work {
  enum class Kind : std::uint8_t {
    kernel,
    host_to_device,
    device_to_host,
    device_to_device,
    fill,
    order
  };
  Kind kind = Kind::order;  // order: records and waits, which only take their place in the queue
  std::uint8_t value = 0;   // of a fill
  NameId name{};
  std::uint64_t duration_ns = 0;
  std::uint64_t to = 0;
  std::uint64_t from = 0;
  Bytes size = 0;
  std::shared_ptr<const Kernel> kernel;  // set if it has a body, and always in a graph
};

// The end of the n-th operation of a slot.
struct Point {
  Slot slot;
  std::uint64_t n;
};

// State recorded by an event: complete when all points are, and in timed mode not before `end_ns`.
struct Recording {
  std::vector<Point> points;
  std::uint64_t end_ns = 0;
  VectorClock clock;
};

class WorkRunner {
 public:
  virtual ~WorkRunner() = default;
  virtual void run(const Work& work, DeviceOrdinal device) = 0;
};

class SimTimeline {
 public:
  SimTimeline(const SimOptions& options, WorkRunner& runner);
  // Sets the checker, which names the slots in reports. Requires: no stream is open yet.
  void set_checker(HazardChecker& checker) { checker_ = &checker; }

  Slot open(DeviceOrdinal device, StreamKind kind, StreamId id);
  void close(Slot slot);                // queued work still runs
  void drop_all(DeviceOrdinal device);  // closes all streams of the device and drops their work

  // Takes the next place in the stream. Valid until the next call for the same stream.
  Actor begin(Slot slot, NameId what);
  Actor begin_host(NameId what);
  void enqueue(const Actor& actor, Work&& work);
  void record(Slot slot, Recording& recording);
  void record_all(DeviceOrdinal device, Recording& recording);  // all streams, closed ones too
  void add_point(Slot slot, Recording& recording);              // all work queued on `slot` so far
  void wait(Slot slot, const Recording& recording);
  // Orders the stream's next operation after those that `clock` covers. Requires: complete.
  void join(Slot slot, const VectorClock& clock) { stream(slot).clock.join(clock); }
  const VectorClock& clock(Slot slot) const { return streams_[slot - 1].clock; }

  bool complete(Point point) const;
  bool complete(const Recording& recording) const;
  bool idle(Slot slot) const;  // of the legacy stream: the blocking ones too
  void learn(const VectorClock& clock);
  void learn_stream(Slot slot);
  bool host_knows(const Position& p) const { return host_.covers(p.slot, p.n); }
  const VectorClock& host() const { return host_; }

  // The host waits: work runs, in timed mode the clock advances, and the host learns.
  void host_wait(const Recording& recording);
  void host_wait_stream(Slot slot);
  void host_wait_device(DeviceOrdinal device);

  std::uint64_t now_ns() const { return now_ns_; }
  void advance(std::uint64_t ns);  // and runs due work
  void tick();                     // random schedule: runs work by a coin
  bool step();
  void run_until_idle() {
    while (step()) {
    }
  }

 private:
  struct Operation {
    Work work;
    std::uint64_t n = 0;
    std::uint64_t order = 0;   // over all streams
    std::uint64_t end_ns = 0;  // timed
    std::vector<Point> waits;  // not timed
  };
  struct SimStream {
    DeviceOrdinal device = 0;
    StreamKind kind = StreamKind::blocking;
    bool open = false;
    std::uint64_t n = 0;  // places taken
    VectorClock clock;
    std::uint64_t host_version = 0;  // of the host knowledge in `clock`
    std::uint64_t last_end_ns = 0;   // timed: end of all queued work
    std::vector<Point> waits;        // of the next operation
    std::deque<Operation> queue;
    std::size_t busy_index = 0;  // in busy_, while the queue is not empty
    // Implicit order: the legacy stream's place that this blocking stream comes after.
    std::uint64_t legacy_seen = 0;
    // Legacy only: the blocking streams and their places that this stream comes after.
    std::vector<Point> blocking_seen;
  };
  struct Due {
    std::uint64_t end_ns;
    std::uint64_t order;
    Slot slot;
    bool operator>(const Due& other) const {
      return end_ns != other.end_ns ? end_ns > other.end_ns : order > other.order;
    }
  };

  SimStream& stream(Slot slot) { return streams_[slot - 1]; }
  const SimStream& stream(Slot slot) const { return streams_[slot - 1]; }
  bool is_timed() const { return schedule_ == Schedule::timed; }
  Slot take_slot();
  void attach_to_legacy(Slot slot);
  void detach_from_legacy(Slot slot);
  std::optional<Slot> legacy_of(DeviceOrdinal device) const;
  void join_implicit_order(Slot slot);
  void come_after(SimStream& later, Slot earlier);
  bool can_run(Slot slot) const;
  void run_front(Slot slot);
  void run_due();
  bool run_next_due();
  bool run_random();
  void run_until(Point point);
  std::uint64_t place(SimStream& s, std::uint64_t duration_ns) const;

  const Schedule schedule_;
  const std::uint64_t lag_ns_;
  WorkRunner& runner_;
  HazardChecker* checker_ = nullptr;
  std::deque<SimStream> streams_;  // by slot - 1
  std::vector<Slot> closed_;       // still to be run or to be seen by the host; then reused
  std::vector<Slot> busy_;
  std::vector<Slot> legacy_;  // by device; 0: none
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::uint64_t next_order_ = 1;
  std::uint64_t now_ns_ = 0;
  VectorClock host_;
  std::uint64_t host_version_ = 1;
  std::mt19937_64 random_;
  unsigned eagerness_ = 4;         // of 8: probability of one more operation in the random schedule
  unsigned ticks_until_mood_ = 0;  // until the eagerness is drawn again
};

}  // namespace vpmm::driver::sim
