// SPDX-License-Identifier: Apache-2.0
// time: timelines of a pool: frees by stream, events that close them, and completion.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/bytes.hpp"
#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/race_window.hpp"
#include "base/result.hpp"
#include "driver/driver.hpp"
#include "time/event_pool.hpp"
#include "time/known_contexts.hpp"
#include "time/stamp.hpp"

namespace vpmm::time {

// Closes a timeline's frees with an own event, if more than one timeline is known.
struct ClosingRule {
  std::uint64_t frees = 16;  // after this many frees
  Bytes bytes = 32 * kMiB;   // or this many bytes freed
  bool even_alone = false;   // also while the pool has seen one timeline only
};

// Note [Sequence numbers of a cache]
// Frees that a stream keeps for its own next requests happen without the pool's lock. They share a
// number laid out beforehand, the last given + 1. Code about to record an event, or to wait for
// everything, first counts that number as given and lays out the next: a free with the old number
// was called before the event is recorded, so the event covers it; a free with the new one waits
// for the next event.
//
// Invariant: a free's number counts as given, or is laid out and marked as used. So a free reads
// the number before it marks it: a late mark, after an old number, only costs a needless event.
class NextNumber {
 public:
  // Returns the number for a free now. Under the lock of the cache that gets the memory.
  std::uint64_t of_a_free() {
    const std::uint64_t carried = number_.load(std::memory_order_acquire);
    VPMM_RACE_WINDOW("the number of a free is read");
    is_used_.store(true, std::memory_order_release);  // not before the number is read
    return carried;
  }
  // Counts the number as given, if used, and lays out the next. Returns the last given number,
  // previously `last`. This and all below: under the pool's lock.
  std::uint64_t seal(std::uint64_t last) VPMM_REQUIRES(pool_lock) {
    if (is_used_.exchange(false)) last = std::max(last, number_.load(std::memory_order_relaxed));
    number_.store(last + 1);
    return last;
  }
  bool is_used() const { return is_used_.load(std::memory_order_relaxed); }
  // Starts after `last`, the last number of another timeline.
  void begin(std::uint64_t last) VPMM_REQUIRES(pool_lock) {
    is_used_.store(false);
    number_.store(last + 1);
  }

 private:
  std::atomic<std::uint64_t> number_{1};
  std::atomic<bool> is_used_{false};  // since it was laid out
};

// Numbers of a timeline's frees: 1..last were given. complete <= provable <= last, and waitable <=
// provable:
//   waitable  covered by an event on this stream: another stream may wait for it
//   provable  covered by some event, perhaps context-wide: the host can find out
//   complete  seen done by the host
struct Numbers {
  std::uint64_t last = 0;
  std::uint64_t waitable = 0;
  std::uint64_t provable = 0;
  std::uint64_t complete = 0;
  bool are_provable() const { return provable == last; }
  bool are_complete() const { return complete == last; }
  // Completes numbers up to `sequence`. Requires: not complete yet.
  void complete_to(std::uint64_t sequence) {
    complete = sequence;
    provable = std::max(provable, sequence);
    waitable = std::max(waitable, sequence);
  }
};

struct Timeline : FromHostMemory {
  TimelineId id{};
  KnownContext context;
  std::optional<driver::StreamId>
      stream;  // nullopt: any-stream or every-stream, closed by events of the whole context
  driver::StreamHandle handle{};  // of that stream, as it first called
  Numbers numbers;
  struct Frees {
    std::uint64_t count = 0;
    Bytes bytes = 0;
  } since_event;
  // Live allocations that name it, calls in progress on it, and bindings: it is not forgotten.
  std::uint64_t references = 0;
  NextNumber* next_number = nullptr;  // null: the stream has no cache
  bool is_over = false;               // its context died
  bool is_noted = false;              // listed where calls look for their stream
  bool wanted = false;                // proof is needed: close at the next call of this stream
  std::uint64_t wanted_since = 0;     // miss counter when it became wanted
  struct Closing {
    std::uint64_t sequence;
    std::shared_ptr<Event> event;
  };
  Deque<Closing> closings;  // own events, oldest first

  // The number of a free.
  StampPart next(Bytes bytes) VPMM_REQUIRES(pool_lock) {
    claim(numbers.last + 1, bytes);
    return {id, numbers.last};
  }
  // Counts the number of frees that leave a cache as given.
  void claim(std::uint64_t number, Bytes bytes) VPMM_REQUIRES(pool_lock) {
    ++since_event.count;
    since_event.bytes += bytes;
    numbers.last = std::max(numbers.last, number);
  }
  void seal() VPMM_REQUIRES(pool_lock) {
    if (next_number != nullptr) numbers.last = next_number->seal(numbers.last);
  }
  bool has_unsealed() const { return next_number != nullptr && next_number->is_used(); }
  // Adds its last number to `parts` if that is above `proven`, `provable` or `complete`.
  void add_above(std::uint64_t Numbers::*proven, Vector<StampPart>& parts)
      VPMM_REQUIRES(pool_lock) {
    seal();
    if (numbers.*proven < numbers.last) parts.push_back({id, numbers.last});
  }
  // Completes numbers up to `sequence`, and adds that to `done` if any was not.
  void end(std::uint64_t sequence, Vector<StampPart>& done) {
    if (sequence <= numbers.complete) return;
    numbers.complete_to(sequence);
    done.push_back({id, sequence});
  }
  // Tells if an event of this context alone suffices.
  bool is_of(driver::ContextId one, const KnownContexts& all) const {
    return context.id == one && (stream || all.others.empty());
  }
};

// Methods do not wait for the GPU.
class Timelines {
 public:
  Timelines(driver::Driver& driver, const ClosingRule& rule);

  KnownContexts& contexts() VPMM_REQUIRES(pool_lock) { return contexts_; }
  Result<Timeline*> of(driver::StreamHandle stream)
      VPMM_REQUIRES(pool_lock);  // found or begun; needs the primary context current
  Timeline& any_stream() VPMM_REQUIRES(pool_lock);
  // Like any_stream(), but never closed by an event on the legacy stream, which does not wait for
  // every stream.
  Timeline& every_stream() VPMM_REQUIRES(pool_lock);
  bool is_every_stream_unproven() const VPMM_REQUIRES(pool_lock) {
    return every_ != nullptr && !every_->numbers.are_provable();
  }
  Timeline* find(TimelineId id) const VPMM_REQUIRES(pool_lock);  // null: a past one
  void for_each(FunctionRef<void(Timeline&)> visit) const VPMM_REQUIRES(pool_lock);
  std::size_t count() const VPMM_REQUIRES(pool_lock) { return by_id_.size(); }
  std::size_t stream_count() const VPMM_REQUIRES(pool_lock) {
    return by_stream_.size();
  }  // without the any-stream timeline
  std::uint64_t outstanding_events() const VPMM_REQUIRES(pool_lock) { return outstanding_; }
  bool awaits_context_event() const VPMM_REQUIRES(pool_lock) { return !context_closings_.empty(); }
  std::uint64_t events_recorded() const VPMM_REQUIRES(pool_lock) { return recorded_; }

  Stamp reduce(const Stamp& stamp) const VPMM_REQUIRES(pool_lock);

  bool is_due(const Timeline& timeline) const VPMM_REQUIRES(pool_lock);
  // Closes all numbers so far by an event on `stream`, the timeline's own. Requires: not capturing.
  Result<void> close(Timeline& timeline, driver::StreamHandle stream) VPMM_REQUIRES(pool_lock);
  // Closes every timeline by one context-wide event in each known context (`legacy_stream`:
  // any-stream alone, by one on each legacy stream). Requires: no stream of these contexts is
  // capturing. Returns false if all were closed.
  enum class Everything { context_event, legacy_stream };
  Result<bool> close_all(Everything how) VPMM_REQUIRES(pool_lock);

  // Queries events, oldest first, of at most `limit` timelines. Adds completions since the last
  // call to `done`, also when a query fails.
  Result<void> poll(std::size_t limit, Vector<StampPart>& done) VPMM_REQUIRES(pool_lock);
  // Numbers that a synchronisation of all known contexts, begun afterwards, completes.
  Vector<StampPart> numbers_so_far() VPMM_REQUIRES(pool_lock);
  // Same for one context.
  Vector<StampPart> numbers_so_far(driver::ContextId context) VPMM_REQUIRES(pool_lock);
  Vector<StampPart> mark_complete(const Vector<StampPart>& parts) VPMM_REQUIRES(pool_lock);
  // Forgets a dead context's streams and events untouched; all its numbers are complete. Requires
  // for the primary context: its successor is set.
  Vector<StampPart> forget_context(driver::ContextId context) VPMM_REQUIRES(pool_lock);

  bool is_waitable(const StampPart& part) const VPMM_REQUIRES(pool_lock);
  // Queues a wait of `stream` for `part`. Requires: is_waitable(part).
  Result<void> queue_wait(driver::StreamHandle stream, const StampPart& part)
      VPMM_REQUIRES(pool_lock);
  // Event that will prove `part`, or the next of a set that will; shared, for a synchronisation
  // without the lock. Null if none will.
  std::shared_ptr<Event> proof_of(const StampPart& part) const VPMM_REQUIRES(pool_lock);

  // Returns each timeline in turn, one a call. Null if there is none.
  Timeline* next_in_turn() VPMM_REQUIRES(pool_lock);
  // Tells if no number is pending on it, and no allocation or call needs it.
  bool may_be_forgotten(const Timeline& timeline) const VPMM_REQUIRES(pool_lock);
  // Forgets a timeline; its stream begins a new one at its next call. Requires: may_be_forgotten().
  void forget(const Timeline& timeline) VPMM_REQUIRES(pool_lock);
  // Destroys all events (while the driver may still be called); unproven numbers need new ones.
  void destroy_events() VPMM_REQUIRES(pool_lock);
  std::string describe(const StampPart& part) const
      VPMM_REQUIRES(pool_lock);  // "stream 9 (0x5f10) up to 17"
  // First handle of a stream with a timeline.
  std::optional<driver::StreamHandle> handle_of(driver::StreamId stream) const
      VPMM_REQUIRES(pool_lock);
  std::string describe_stream(TimelineId id) const VPMM_REQUIRES(pool_lock);
  std::string validate() const VPMM_REQUIRES(pool_lock);

 private:
  struct ContextClosing {
    Everything how;
    Vector<std::shared_ptr<Event>> events;  // not seen done yet
    Vector<StampPart> covers;
  };
  Timeline& begin(const KnownContext& context, std::optional<driver::StreamId> stream)
      VPMM_REQUIRES(pool_lock);
  Vector<StampPart> unproven(driver::ContextId context, Everything how) VPMM_REQUIRES(pool_lock);
  Result<std::shared_ptr<Event>> record(const KnownContext& context, Everything how)
      VPMM_REQUIRES(pool_lock);
  void publish(ContextClosing closing) VPMM_REQUIRES(pool_lock);
  Deque<ContextClosing>::iterator end_closing(const Deque<ContextClosing>::iterator& closing,
                                              Vector<StampPart>& done) VPMM_REQUIRES(pool_lock);
  void pass_on_everybody(driver::ContextId dead) VPMM_REQUIRES(pool_lock);
  Result<void> poll_context_closings(Vector<StampPart>& done) VPMM_REQUIRES(pool_lock);

  driver::Driver& driver_;
  ClosingRule rule_;
  EventPool events_ VPMM_GUARDED_BY(pool_lock);
  KnownContexts contexts_ VPMM_GUARDED_BY(pool_lock);
  std::uint64_t next_id_ VPMM_GUARDED_BY(pool_lock) = 1;
  HashMap<std::uint64_t, std::unique_ptr<Timeline>> by_id_ VPMM_GUARDED_BY(pool_lock);
  HashMap<std::uint64_t, Timeline*> by_stream_
      VPMM_GUARDED_BY(pool_lock);  // by StreamId; ids are never reused by the driver
  Timeline* any_ VPMM_GUARDED_BY(pool_lock) = nullptr;
  Timeline* every_ VPMM_GUARDED_BY(pool_lock) = nullptr;
  Deque<ContextClosing> context_closings_ VPMM_GUARDED_BY(pool_lock);  // oldest first
  Deque<TimelineId> poll_order_
      VPMM_GUARDED_BY(pool_lock);  // timelines with own closings, next to query first
  Deque<TimelineId> turns_
      VPMM_GUARDED_BY(pool_lock);  // all timelines, and forgotten ones; the next first
  std::uint64_t outstanding_ VPMM_GUARDED_BY(pool_lock) = 0;
  std::uint64_t recorded_ VPMM_GUARDED_BY(pool_lock) = 0;
};

// Counts a live allocation that names these timelines, or one less. Past ones do not count.
void count_references(const Timelines& timelines, std::optional<TimelineId> owner,
                      const Vector<TimelineId>& others, int change) VPMM_REQUIRES(pool_lock);
// "stream 9 (0x5f10)", "default stream (7)", "a thread's default stream (8)".
std::string describe_stream(const Timelines& timelines, driver::StreamId stream)
    VPMM_REQUIRES(pool_lock);
// Names the timeline among those that use a live allocation, once.
void add_use(Vector<TimelineId>& uses, Timeline& timeline) VPMM_REQUIRES(pool_lock);

}  // namespace vpmm::time
