// SPDX-License-Identifier: Apache-2.0
// driver/sim: order between operations, and the three schedules.
#include "driver/sim/timeline.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.hpp"

namespace vpmm::driver::sim {

SimTimeline::SimTimeline(const SimOptions& options, WorkRunner& runner)
    : schedule_(options.schedule),
      lag_ns_(options.lag_ns),
      runner_(runner),
      legacy_(static_cast<std::size_t>(options.device_count), 0),
      random_(options.seed) {}

Slot SimTimeline::open(DeviceOrdinal device, StreamKind kind, StreamId id) {
  const Slot slot = take_slot();
  SimStream& s = stream(slot);
  s.device = device;
  s.kind = kind;
  s.open = true;
  s.clock = host_;
  s.host_version = host_version_;
  s.waits.clear();
  s.blocking_seen.clear();
  s.legacy_seen = 0;
  if (kind == StreamKind::legacy) legacy_[static_cast<std::size_t>(device)] = slot;
  if (kind == StreamKind::blocking) attach_to_legacy(slot);
  checker_->name_stream(slot, s.n + 1, id);
  return slot;
}

// Frees a closed stream's slot once its work has run and the host has seen it: then every record
// with that slot orders before all later ones, of any owner of the slot.
Slot SimTimeline::take_slot() {
  for (std::size_t i = 0; i < closed_.size(); ++i) {
    const Slot slot = closed_[i];
    const SimStream& s = stream(slot);
    if (!s.queue.empty() || !host_.covers(slot, s.n)) continue;
    if (s.kind == StreamKind::blocking) detach_from_legacy(slot);
    closed_[i] = closed_.back();
    closed_.pop_back();
    return slot;
  }
  streams_.emplace_back();
  return static_cast<Slot>(streams_.size());
}

void SimTimeline::attach_to_legacy(Slot slot) {
  if (const auto legacy = legacy_of(stream(slot).device))
    stream(*legacy).blocking_seen.push_back({slot, 0});
}

void SimTimeline::detach_from_legacy(Slot slot) {
  const auto legacy = legacy_of(stream(slot).device);
  if (!legacy) return;
  auto& seen = stream(*legacy).blocking_seen;
  seen.erase(std::remove_if(seen.begin(), seen.end(), [slot](Point p) { return p.slot == slot; }),
             seen.end());
}

std::optional<Slot> SimTimeline::legacy_of(DeviceOrdinal device) const {
  const Slot slot = legacy_[static_cast<std::size_t>(device)];
  if (slot == 0) return std::nullopt;
  return slot;
}

void SimTimeline::close(Slot slot) {
  stream(slot).open = false;
  closed_.push_back(slot);
}

void SimTimeline::drop_all(DeviceOrdinal device) {
  legacy_[static_cast<std::size_t>(device)] = 0;
  for (Slot slot = 1; slot <= streams_.size(); ++slot) {
    SimStream& s = stream(slot);
    if (s.device != device) continue;
    if (!s.queue.empty()) {
      busy_.erase(std::find(busy_.begin(), busy_.end(), slot));
      for (std::size_t i = 0; i < busy_.size(); ++i) stream(busy_[i]).busy_index = i;
    }
    s.queue.clear();
    learn(s.clock);
    if (s.open) close(slot);
  }
}

Actor SimTimeline::begin(Slot slot, NameId what) {
  SimStream& s = stream(slot);
  if (s.host_version != host_version_) {
    s.clock.join(host_);
    s.host_version = host_version_;
  }
  join_implicit_order(slot);
  s.clock.set(slot, ++s.n);
  return {{s.n, slot, what}, s.clock};
}

Actor SimTimeline::begin_host(NameId what) {
  const std::uint64_t n = host_.at(kHostSlot) + 1;
  host_.set(kHostSlot, n);
  ++host_version_;
  return {{n, kHostSlot, what}, host_};
}

// Orders the legacy default stream and the blocking streams of its context after each other.
void SimTimeline::join_implicit_order(Slot slot) {
  SimStream& s = stream(slot);
  if (s.kind == StreamKind::non_blocking) return;
  if (s.kind == StreamKind::blocking) {
    const Slot legacy = legacy_[static_cast<std::size_t>(s.device)];
    if (legacy == 0 || stream(legacy).n == s.legacy_seen) return;
    s.legacy_seen = stream(legacy).n;
    come_after(s, legacy);
    return;
  }
  for (Point& seen : s.blocking_seen) {
    if (stream(seen.slot).n == seen.n) continue;
    seen.n = stream(seen.slot).n;
    come_after(s, seen.slot);
  }
}

// Orders all work queued on `earlier` so far before the next operation of `later`.
void SimTimeline::come_after(SimStream& later, Slot earlier) {
  const SimStream& e = stream(earlier);
  later.clock.join(e.clock);
  if (e.queue.empty()) return;
  if (is_timed()) {
    later.last_end_ns = std::max(later.last_end_ns, e.last_end_ns);
  } else {
    later.waits.push_back({earlier, e.n});
  }
}

// Timed: end of an operation that is queued now.
std::uint64_t SimTimeline::place(SimStream& s, std::uint64_t duration_ns) const {
  const std::uint64_t start = std::max(now_ns_, s.last_end_ns);
  s.last_end_ns = std::max(start + duration_ns, now_ns_ + lag_ns_);
  return s.last_end_ns;
}

void SimTimeline::enqueue(const Actor& actor, Work&& work) {
  const Slot slot = actor.at.slot;
  SimStream& s = stream(slot);
  if (s.queue.empty()) {
    s.busy_index = busy_.size();
    busy_.push_back(slot);
  }
  Operation& operation = s.queue.emplace_back();
  operation.n = actor.at.n;
  operation.order = next_order_++;
  if (is_timed()) {
    operation.end_ns = place(s, work.duration_ns);
    due_.push({operation.end_ns, operation.order, slot});
  } else {
    operation.waits = std::exchange(s.waits, {});
  }
  operation.work = std::move(work);
}

void SimTimeline::record(Slot slot, Recording& recording) {
  const Actor actor = begin(slot, NameId{});
  enqueue(actor, Work{});
  recording.points.assign(1, Point{slot, actor.at.n});
  recording.end_ns = stream(slot).last_end_ns;
  recording.clock = actor.clock;
}

void SimTimeline::record_all(DeviceOrdinal device, Recording& recording) {
  recording.points.clear();
  recording.end_ns = now_ns_ + lag_ns_;
  recording.clock = host_;
  for (Slot slot = 1; slot <= streams_.size(); ++slot) {
    if (stream(slot).device == device) add_point(slot, recording);
  }
}

void SimTimeline::add_point(Slot slot, Recording& recording) {
  const SimStream& s = stream(slot);
  recording.clock.join(s.clock);
  if (s.queue.empty()) return;
  recording.points.push_back({slot, s.n});
  recording.end_ns = std::max(recording.end_ns, s.last_end_ns);
}

void SimTimeline::wait(Slot slot, const Recording& recording) {
  const Actor actor = begin(slot, NameId{});
  SimStream& s = stream(slot);
  s.clock.join(recording.clock);
  if (complete(recording)) return;
  if (is_timed()) {
    s.last_end_ns = std::max(s.last_end_ns, recording.end_ns);
  } else {
    for (const Point& point : recording.points) {
      if (!complete(point)) s.waits.push_back(point);
    }
  }
  enqueue(actor, Work{});
}

bool SimTimeline::complete(Point point) const {
  const SimStream& s = stream(point.slot);
  return s.queue.empty() || s.queue.front().n > point.n;
}

bool SimTimeline::complete(const Recording& recording) const {
  if (is_timed() && now_ns_ < recording.end_ns) return false;
  return std::all_of(recording.points.begin(), recording.points.end(),
                     [this](Point p) { return complete(p); });
}

bool SimTimeline::idle(Slot slot) const {
  const SimStream& s = stream(slot);
  if (!s.queue.empty()) return false;
  return std::all_of(s.blocking_seen.begin(), s.blocking_seen.end(),
                     [this](Point p) { return stream(p.slot).queue.empty(); });
}

void SimTimeline::learn(const VectorClock& clock) {
  if (host_.join(clock)) ++host_version_;
}

void SimTimeline::learn_stream(Slot slot) {
  learn(stream(slot).clock);
  for (const Point& seen : stream(slot).blocking_seen) learn(stream(seen.slot).clock);
}

void SimTimeline::host_wait(const Recording& recording) {
  if (is_timed()) {
    now_ns_ = std::max(now_ns_, recording.end_ns);
    run_due();
  }
  for (const Point& point : recording.points) run_until(point);
  learn(recording.clock);
}

void SimTimeline::host_wait_stream(Slot slot) {
  Recording recording;
  add_point(slot, recording);
  for (const Point& seen : stream(slot).blocking_seen) add_point(seen.slot, recording);
  host_wait(recording);
}

void SimTimeline::host_wait_device(DeviceOrdinal device) {
  Recording recording;
  for (Slot slot = 1; slot <= streams_.size(); ++slot) {
    if (stream(slot).device == device) add_point(slot, recording);
  }
  host_wait(recording);
}

void SimTimeline::advance(std::uint64_t ns) {
  now_ns_ += ns;
  if (is_timed()) run_due();
}

void SimTimeline::run_due() {
  while (!due_.empty() && due_.top().end_ns <= now_ns_) run_next_due();
}

// Runs the operation that ends next, on time or before it; false: none is left.
bool SimTimeline::run_next_due() {
  while (!due_.empty()) {
    const Due due = due_.top();
    due_.pop();
    // A reset drops operations but not their entries here.
    const SimStream& s = stream(due.slot);
    if (s.queue.empty() || s.queue.front().order != due.order) continue;
    now_ns_ = std::max(now_ns_, due.end_ns);
    run_front(due.slot);
    return true;
  }
  return false;
}

void SimTimeline::run_front(Slot slot) {
  SimStream& s = stream(slot);
  const Operation operation = std::move(s.queue.front());
  s.queue.pop_front();
  if (s.queue.empty()) {
    busy_[s.busy_index] = busy_.back();
    stream(busy_[s.busy_index]).busy_index = s.busy_index;
    busy_.pop_back();
  }
  runner_.run(operation.work, s.device);
}

bool SimTimeline::can_run(Slot slot) const {
  const auto& waits = stream(slot).queue.front().waits;
  return std::all_of(waits.begin(), waits.end(), [this](Point p) { return complete(p); });
}

// Runs a stream's next operation, drawn among those that could run.
bool SimTimeline::run_random() {
  if (busy_.empty()) return false;
  const std::size_t first = random_() % busy_.size();
  for (std::size_t i = 0; i < busy_.size(); ++i) {
    const Slot slot = busy_[(first + i) % busy_.size()];
    if (!can_run(slot)) continue;
    run_front(slot);
    return true;
  }
  VPMM_CHECK(false, "deadlock: every queued operation waits for another");
  return false;
}

// Changes the eagerness now and then, so that the device is far behind in some phases and idle in
// others.
void SimTimeline::tick() {
  if (schedule_ != Schedule::random || busy_.empty()) return;
  if (ticks_until_mood_ == 0) {
    constexpr std::array<unsigned, 4> kMoods = {0, 1, 4, 7};
    eagerness_ = kMoods[random_() % kMoods.size()];
    ticks_until_mood_ = 16 + static_cast<unsigned>(random_() % 64);
  }
  --ticks_until_mood_;
  while (random_() % 8 < eagerness_ && run_random()) {
  }
}

bool SimTimeline::step() {
  if (busy_.empty()) return false;
  if (schedule_ == Schedule::random) return run_random();
  if (is_timed()) return run_next_due();
  std::optional<Slot> oldest;
  for (const Slot slot : busy_) {
    if (!can_run(slot)) continue;
    if (!oldest || stream(slot).queue.front().order < stream(*oldest).queue.front().order)
      oldest = slot;
  }
  VPMM_CHECK(oldest.has_value(), "deadlock: every queued operation waits for another");
  run_front(*oldest);
  return true;
}

// Runs operations that the point needs, and in the random schedule others on the way.
void SimTimeline::run_until(Point point) {
  std::vector<Point> needed{point};
  while (!needed.empty()) {
    if (complete(needed.back())) {
      needed.pop_back();
      continue;
    }
    VPMM_CHECK(!is_timed(), "the clock passed the end of an operation that did not run");
    if (schedule_ == Schedule::random && random_() % 2 == 0) {
      run_random();
      continue;
    }
    const Slot slot = needed.back().slot;
    const auto& waits = stream(slot).queue.front().waits;
    const auto open =
        std::find_if(waits.begin(), waits.end(), [this](Point p) { return !complete(p); });
    if (open == waits.end()) {
      run_front(slot);
    } else {
      VPMM_CHECK(needed.size() <= next_order_, "deadlock: operations wait for each other");
      needed.push_back(*open);
    }
  }
}

}  // namespace vpmm::driver::sim
