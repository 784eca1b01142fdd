// SPDX-License-Identifier: Apache-2.0
// time: numbers frees, closes them with events, finds completed ones.
#include "time/timelines.hpp"

#include <algorithm>

#include "base/function_ref.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::time {

using driver::Call;

namespace {
constexpr Bytes kAnyStreamBytes =
    2 * kMiB;  // about 0.2 us of event against memory that no stream can use
}

Timelines::Timelines(driver::Driver& driver, const ClosingRule& rule)
    : driver_(driver), rule_(rule), events_(driver) {}

Timeline& Timelines::begin(const KnownContext& context, std::optional<driver::StreamId> stream) {
  auto timeline = std::make_unique<Timeline>();
  timeline->id = TimelineId{next_id_++};
  timeline->context = context;
  timeline->stream = stream;
  Timeline& begun = *timeline;
  turns_.push_back(begun.id);
  by_id_.emplace(static_cast<std::uint64_t>(begun.id), std::move(timeline));
  if (stream) by_stream_[static_cast<std::uint64_t>(*stream)] = &begun;
  return begun;
}

Result<Timeline*> Timelines::of(driver::StreamHandle stream) {
  driver::StreamId id{};
  VPMM_TRY(driver::checked(Call::stream_get_id, driver_.stream_get_id(stream, id)));
  if (const auto found = by_stream_.find(static_cast<std::uint64_t>(id)); found != by_stream_.end())
    return found->second;
  KnownContext context = contexts_.primary;
  const bool is_default = stream == driver::kNullStream || stream == driver::kLegacyStream ||
                          stream == driver::kPerThreadStream;
  if (!is_default) {
    const driver::ContextHandle primary = context.handle;
    VPMM_TRY(driver::checked(Call::stream_get_ctx, driver_.stream_get_ctx(stream, context.handle)));
    if (context.handle != primary)  // of an old driver
      context.id = driver::ContextId{static_cast<std::uint64_t>(context.handle)};
    if (context.handle != primary && driver_.has(Call::ctx_get_id))
      VPMM_TRY(driver::checked(Call::ctx_get_id, driver_.ctx_get_id(context.handle, context.id)));
  }
  contexts_.add(context);
  Timeline& begun = begin(context, id);
  begun.handle = stream;
  return &begun;
}

Timeline& Timelines::any_stream() {
  if (any_ == nullptr) any_ = &begin(contexts_.primary, std::nullopt);
  return *any_;
}

Timeline& Timelines::every_stream() {
  if (every_ == nullptr) every_ = &begin(contexts_.primary, std::nullopt);
  return *every_;
}

Timeline* Timelines::find(TimelineId id) const {
  const auto found = by_id_.find(static_cast<std::uint64_t>(id));
  return found == by_id_.end() ? nullptr : found->second.get();
}

void Timelines::for_each(FunctionRef<void(Timeline&)> visit) const {
  for (const auto& [key, timeline] : by_id_) visit(*timeline);
}

Stamp Timelines::reduce(const Stamp& stamp) const {
  Stamp rest = stamp;
  for (const StampPart& part : stamp.parts()) {
    const Timeline* const timeline = find(part.timeline);
    if (timeline == nullptr || timeline->numbers.complete >= part.sequence)
      rest = rest.without(part.timeline, part.sequence);
  }
  return rest;
}

bool Timelines::is_due(const Timeline& timeline) const {
  const bool is_any_stream = !timeline.stream;
  const Numbers& numbers = timeline.numbers;
  if (numbers.last == (is_any_stream ? numbers.provable : numbers.waitable) &&
      !timeline.has_unsealed())
    return false;
  if (timeline.wanted) return true;
  // Any-stream memory serves no stream before it is proven complete, not even its last user.
  if (is_any_stream)
    return timeline.since_event.count >= rule_.frees ||
           timeline.since_event.bytes >= kAnyStreamBytes;
  if (!rule_.even_alone && by_stream_.size() < 2 && (any_ == nullptr || any_->numbers.last == 0))
    return false;
  return timeline.since_event.count >= rule_.frees || timeline.since_event.bytes >= rule_.bytes;
}

Result<void> Timelines::close(Timeline& timeline, driver::StreamHandle stream) {
  VPMM_TRY_ASSIGN(auto event, events_.take(timeline.context));
  timeline.seal();
  VPMM_TRY(driver::checked(Call::event_record, driver_.event_record(event->handle(), stream)));
  if (timeline.closings.empty()) poll_order_.push_back(timeline.id);
  timeline.closings.push_back({timeline.numbers.last, std::move(event)});
  timeline.numbers.waitable = timeline.numbers.provable = timeline.numbers.last;
  timeline.since_event = {};
  timeline.wanted = false;
  ++recorded_;
  ++outstanding_;
  return {};
}

// The legacy stream waits for blocking streams only, so its events prove only the any-stream
// timeline.
Vector<StampPart> Timelines::unproven(driver::ContextId context, Everything how) {
  Vector<StampPart> parts;
  for (const auto& [key, timeline] : by_id_)
    if (timeline->is_of(context, contexts_) &&
        (how == Everything::context_event || timeline.get() == any_))
      timeline->add_above(&Numbers::provable, parts);
  return parts;
}

Result<std::shared_ptr<Event>> Timelines::record(const KnownContext& context, Everything how) {
  VPMM_TRY_ASSIGN(auto event, events_.take(context));
  const auto on_legacy_stream = [&] {  // of the current context
    return driver::checked(Call::event_record,
                           driver_.event_record(event->handle(), driver::kLegacyStream));
  };
  if (how == Everything::context_event) {
    VPMM_TRY(driver::checked(Call::ctx_record_event,
                             driver_.ctx_record_event(context.handle, event->handle())));
  } else if (context.id == contexts_.primary.id) {
    VPMM_TRY(on_legacy_stream());
  } else {
    const driver::ContextScope scope(driver_, context.handle);
    VPMM_TRY(driver::checked(Call::ctx_set_current, scope.result()));
    VPMM_TRY(on_legacy_stream());
  }
  ++recorded_;
  return event;
}

void Timelines::publish(ContextClosing closing) {
  for (const StampPart& part : closing.covers) {
    Timeline& timeline = *find(part.timeline);
    timeline.numbers.provable = part.sequence;
    if (!timeline.stream) timeline.since_event = {};
  }
  context_closings_.push_back(std::move(closing));
  ++outstanding_;
}

Result<bool> Timelines::close_all(Everything how) {
  const Vector<KnownContext>& others = contexts_.others;
  ContextClosing everybody{how, {}, {}};  // Note [Everybody is in every known context]
  if (any_ != nullptr && !others.empty()) any_->add_above(&Numbers::provable, everybody.covers);
  if (every_ != nullptr && !others.empty() && how == Everything::context_event)
    every_->add_above(&Numbers::provable, everybody.covers);
  bool has_closed = !everybody.covers.empty();
  for (std::size_t i = 0; i <= others.size(); ++i) {
    const KnownContext context = i == 0 ? contexts_.primary : others[i - 1];
    Vector<StampPart> covers = unproven(context.id, how);
    if (covers.empty() && everybody.covers.empty()) continue;
    VPMM_TRY_ASSIGN(auto event, record(context, how));
    everybody.events.push_back(event);
    if (covers.empty()) continue;
    publish({how, {std::move(event)}, std::move(covers)});
    has_closed = true;
  }
  if (!everybody.covers.empty()) publish(std::move(everybody));
  return has_closed;
}

// Events of one kind finish in record order in each context; those on the legacy stream may
// overtake others.
Result<void> Timelines::poll_context_closings(Vector<StampPart>& done) {
  Vector<std::pair<driver::ContextId, Everything>> unfinished;
  for (auto closing = context_closings_.begin(); closing != context_closings_.end();) {
    Vector<std::shared_ptr<Event>>& events = closing->events;
    for (auto event = events.begin(); event != events.end();) {
      const std::pair kind{(*event)->context(), closing->how};
      bool is_finished = std::find(unfinished.begin(), unfinished.end(), kind) == unfinished.end();
      if (is_finished) {
        VPMM_TRY_ASSIGN(is_finished, (*event)->is_done());
        if (!is_finished) unfinished.push_back(kind);
      }
      event = is_finished ? events.erase(event) : std::next(event);
    }
    closing = events.empty() ? end_closing(closing, done) : std::next(closing);
  }
  return {};
}

Deque<Timelines::ContextClosing>::iterator Timelines::end_closing(
    const Deque<ContextClosing>::iterator& closing, Vector<StampPart>& done) {
  for (const StampPart& part : closing->covers)
    if (Timeline* timeline = find(part.timeline)) timeline->end(part.sequence, done);
  --outstanding_;
  return context_closings_.erase(closing);
}

Result<void> Timelines::poll(std::size_t limit, Vector<StampPart>& done) {
  if (outstanding_ == 0) return {};
  const driver::RelaxedCaptureScope relaxed(driver_);
  VPMM_TRY(poll_context_closings(done));
  for (std::size_t asked = 0, known = poll_order_.size(); asked < std::min(limit, known); ++asked) {
    const TimelineId id = poll_order_.front();
    Timeline* timeline = find(id);
    while (timeline != nullptr && !timeline->closings.empty()) {
      const Timeline::Closing& oldest = timeline->closings.front();
      VPMM_TRY_ASSIGN(const bool is_done, oldest.event->is_done());
      if (!is_done) break;
      const std::uint64_t sequence = oldest.sequence;
      timeline->closings.pop_front();
      --outstanding_;
      timeline->end(sequence, done);
    }
    poll_order_.pop_front();
    if (timeline != nullptr && !timeline->closings.empty()) poll_order_.push_back(id);
  }
  return {};
}

Vector<StampPart> Timelines::numbers_so_far() {
  Vector<StampPart> parts;
  for (const auto& [key, timeline] : by_id_) timeline->add_above(&Numbers::complete, parts);
  return parts;
}

Vector<StampPart> Timelines::numbers_so_far(driver::ContextId context) {
  Vector<StampPart> parts;
  for (const auto& [key, timeline] : by_id_)
    if (timeline->is_of(context, contexts_)) timeline->add_above(&Numbers::complete, parts);
  return parts;
}

Vector<StampPart> Timelines::mark_complete(const Vector<StampPart>& parts) {
  Vector<StampPart> done;
  for (const StampPart& part : parts)
    if (Timeline* timeline = find(part.timeline)) timeline->end(part.sequence, done);
  return done;
}

Vector<StampPart> Timelines::forget_context(driver::ContextId context) {
  events_.forget_context(context);
  Vector<StampPart> done = mark_complete(numbers_so_far(context));
  for (auto& [key, timeline] : by_id_) {
    if (!timeline->is_of(context, contexts_)) continue;
    outstanding_ -= timeline->closings.size();
    timeline->closings.clear();
    timeline->is_over = true;
    if (timeline->stream) by_stream_.erase(static_cast<std::uint64_t>(*timeline->stream));
  }
  for (auto closing = context_closings_.begin(); closing != context_closings_.end();) {
    std::erase_if(closing->events, [&](const auto& event) { return event->context() == context; });
    closing = closing->events.empty() ? end_closing(closing, done) : std::next(closing);
  }
  std::erase_if(poll_order_, [&](TimelineId id) VPMM_REQUIRES(pool_lock) {
    const Timeline* timeline = find(id);
    return timeline == nullptr || timeline->closings.empty();
  });
  pass_on_everybody(context);
  contexts_.remove(context);
  return done;
}

// Handles the death of the primary context. Where other contexts may use the memory of everybody,
// its pending numbers stay pending; else the timeline is over, and begun anew in the successor.
void Timelines::pass_on_everybody(driver::ContextId dead) {
  for (Timeline** everybody : {&any_, &every_}) {
    Timeline* const timeline = *everybody;
    if (timeline == nullptr || timeline->context.id != dead) continue;
    if (timeline->is_over) {
      *everybody = nullptr;
    } else {
      timeline->context = contexts_.primary;
    }
  }
}

bool Timelines::is_waitable(const StampPart& part) const {
  const Timeline* const timeline = find(part.timeline);
  return timeline == nullptr || timeline->numbers.waitable >= part.sequence;
}

Result<void> Timelines::queue_wait(driver::StreamHandle stream, const StampPart& part) {
  Timeline* timeline = find(part.timeline);
  if (timeline == nullptr || timeline->numbers.complete >= part.sequence) return {};
  for (const Timeline::Closing& closing : timeline->closings) {
    if (closing.sequence < part.sequence) continue;
    return driver::checked(Call::stream_wait_event,
                           driver_.stream_wait_event(stream, closing.event->handle()));
  }
  return Error{ErrorCode::invalid_argument, message_of("no event stands for {}", describe(part))};
}

std::shared_ptr<Event> Timelines::proof_of(const StampPart& part) const {
  const Timeline* const timeline = find(part.timeline);
  if (timeline == nullptr) return nullptr;
  for (const Timeline::Closing& closing : timeline->closings)
    if (closing.sequence >= part.sequence) return closing.event;
  for (const ContextClosing& closing : context_closings_)
    for (const StampPart& covered : closing.covers)
      if (covered.timeline == part.timeline && covered.sequence >= part.sequence)
        return closing.events.front();
  return nullptr;
}

Timeline* Timelines::next_in_turn() {
  while (!turns_.empty()) {
    const TimelineId id = turns_.front();
    Timeline* const timeline = find(id);
    if (timeline != nullptr) turns_.push_back(id);
    turns_.pop_front();
    if (timeline != nullptr) return timeline;
  }
  return nullptr;
}

bool Timelines::may_be_forgotten(const Timeline& timeline) const {
  if (&timeline == any_ || &timeline == every_ || timeline.references != 0) return false;
  return timeline.numbers.are_complete() && timeline.closings.empty();
}

void Timelines::forget(const Timeline& timeline) {
  if (timeline.stream) {
    const auto found = by_stream_.find(static_cast<std::uint64_t>(*timeline.stream));
    if (found != by_stream_.end() && found->second == &timeline) by_stream_.erase(found);
  }
  by_id_.erase(static_cast<std::uint64_t>(timeline.id));
}

void Timelines::destroy_events() {
  for (auto& [key, timeline] : by_id_) {
    timeline->closings.clear();
    Numbers& numbers = timeline->numbers;
    numbers.provable = numbers.waitable = numbers.complete;
  }
  context_closings_.clear();
  poll_order_.clear();
  outstanding_ = 0;
  events_.destroy_spares();
}

std::optional<driver::StreamHandle> Timelines::handle_of(driver::StreamId stream) const {
  const auto found = by_stream_.find(static_cast<std::uint64_t>(stream));
  return found == by_stream_.end() ? std::nullopt : std::optional(found->second->handle);
}

std::string describe_stream(const Timelines& timelines, driver::StreamId stream) {
  const auto number = static_cast<std::uint64_t>(stream);
  const std::optional<driver::StreamHandle> handle = timelines.handle_of(stream);
  if (!handle) return message_of("stream {}", number);
  if (*handle == driver::kNullStream || *handle == driver::kLegacyStream)
    return message_of("default stream ({})", number);
  if (*handle == driver::kPerThreadStream)
    return message_of("a thread's default stream ({})", number);
  return message_of("stream {} ({:#x})", number, static_cast<std::uint64_t>(*handle));
}

std::string Timelines::describe_stream(TimelineId id) const {
  const Timeline* const timeline = find(id);
  if (timeline == nullptr) return "a past stream";
  const std::optional<driver::StreamId>& stream = timeline->stream;
  return stream ? time::describe_stream(*this, *stream) : "any stream";
}

std::string Timelines::describe(const StampPart& part) const {
  return message_of("{} up to {}", describe_stream(part.timeline), part.sequence);
}

std::string Timelines::validate() const {
  std::uint64_t closings = context_closings_.size();
  for (const auto& [key, timeline] : by_id_) {
    closings += timeline->closings.size();
    const Numbers& numbers = timeline->numbers;
    if (numbers.complete > numbers.provable || numbers.provable > numbers.last ||
        numbers.waitable > numbers.provable)
      return message_of("timeline {}: complete {} waitable {} provable {} last {} out of order",
                        key, numbers.complete, numbers.waitable, numbers.provable, numbers.last);
    std::uint64_t previous = 0;
    for (const Timeline::Closing& closing : timeline->closings) {
      if (closing.sequence < previous) return message_of("timeline {}: events out of order", key);
      previous = closing.sequence;
    }
  }
  if (closings != outstanding_)
    return message_of("{} events outstanding, {} counted", closings, outstanding_);
  return {};
}

void count_references(const Timelines& timelines, std::optional<TimelineId> owner,
                      const Vector<TimelineId>& others, int change) {
  const auto count = [&](TimelineId id) VPMM_REQUIRES(pool_lock) {
    if (Timeline* const counted = timelines.find(id))
      counted->references += static_cast<std::uint64_t>(change);
  };
  if (owner) count(*owner);
  for (const TimelineId other : others) count(other);
}

void add_use(Vector<TimelineId>& uses, Timeline& timeline) {
  if (std::find(uses.begin(), uses.end(), timeline.id) != uses.end()) return;
  uses.push_back(timeline.id);
  ++timeline.references;
}

}  // namespace vpmm::time
