// SPDX-License-Identifier: Apache-2.0
// report: reports of events to listeners and recordings.
#include "report/recorder.hpp"

namespace vpmm::report {
namespace {

constexpr std::uint64_t kBetweenSamplesNs = 10'000'000;

}  // namespace

// --- a recording

// A channel in use belongs to a recording with a hanging file: its thread still reads the channel.
CallLog& Recorder::provide_log() {
  if (log_ != nullptr && log_->channel()->is_in_use.load()) given_up_.push_back(std::move(log_));
  if (log_ == nullptr) log_ = std::make_unique<CallLog>(driver_);
  return *log_;
}

void Recorder::start(std::shared_ptr<observe::TraceWriter> writer) {
  writer_ = std::move(writer);
  sampled_ns_ = 0;
  driver_.set_observer(log_.get());
}

std::shared_ptr<observe::TraceWriter> Recorder::stop() {
  std::shared_ptr<observe::TraceWriter> writer = std::move(writer_);
  driver_.set_observer(nullptr);
  return writer;
}

// --- listeners

std::uint64_t Recorder::add_listener(EventKinds kinds, EventCallback callback) {
  listeners_.push_back({last_listener_ + 1, kinds, std::move(callback)});
  listen();
  return ++last_listener_;
}

bool Recorder::remove_listener(std::uint64_t id) {
  const bool is_there =
      std::erase_if(listeners_, [&](const Listener& listener) { return listener.id == id; }) != 0;
  listen();
  return is_there;
}

void Recorder::listen() {
  wanted_ = 0;
  for (const Listener& listener : listeners_) wanted_ |= listener.kinds;
}

// Drops exceptions of callbacks: the pool is in the middle of its work.
void Recorder::tell(ReportedEvent event) noexcept {
  if (!wants(event.kind)) return;
  event.time_ns = driver_.now_ns();
  event.device = device_;
  for (const Listener& listener : listeners_) {
    if ((listener.kinds & bit_of(event.kind)) == 0) continue;
    try {
      listener.callback(event);
    } catch (...) {  // NOLINT(bugprone-empty-catch): documented as dropped
    }
  }
}

// --- events

void Recorder::allocated(AddressRange range, DevicePtr begin, const pool::Request& request,
                         const pool::Caller& caller) {
  if (request.tag != 0) tags_.add(begin, request.bytes, {request.tag, request.library});
  tell({EventKind::allocate, begin, request.bytes, request.stream, request.tag,
        static_cast<std::uint64_t>(request.arena)});
  if (CallLog* const recording = log())
    recording->allocated(begin, request, range.size, CallLog::by(caller));
  observe_begin(range, request.stream);
}

Labels Recorder::freed(DevicePtr ptr, const Told& told, const pool::Caller& caller) {
  const Labels labels = tags_.take(ptr);
  tell({EventKind::free, ptr, told.requested, caller.stream, labels.tag,
        static_cast<std::uint64_t>(told.arena)});
  return labels;
}

void Recorder::free_failed(AddressRange range, const pool::Stream& stream, const Labels& labels,
                           const pool::Caller& caller) {
  if (labels.tag != 0) tags_.add(range.begin, range.size, labels);
  tell({EventKind::allocate, range.begin, range.size, stream, labels.tag});
  if (CallLog* const recording = log()) {
    pool::Request request;
    request.bytes = range.size;
    request.tag = labels.tag;
    request.library = labels.library;
    pool::Caller owner = caller;
    owner.stream = stream;
    recording->allocated(range.begin, request, 0, CallLog::by(owner));
  }
  observe_begin(range, caller.stream);  // behind the end that it heard of
}

CallLog::Claim Recorder::claim_free() const {
  return log() == nullptr ? CallLog::Claim() : log()->claim();
}

void Recorder::record_free(CallLog::Claim place, DevicePtr ptr, const pool::Caller& caller) {
  if (CallLog* const recording = log())
    recording->freed(std::move(place), ptr, CallLog::by(caller));
}

void Recorder::used(DevicePtr ptr, const Told& told, const pool::Caller& caller,
                    driver::StreamHandle stream) {
  tell({EventKind::record_use, ptr, told.requested, stream, tags_.of(ptr).tag,
        static_cast<std::uint64_t>(told.arena)});
  if (CallLog* const recording = log()) recording->used({ptr, told.requested}, CallLog::by(caller));
}

void Recorder::arena_changed(EventKind kind, AddressRange stretch, pool::ArenaId arena) {
  tell({kind, stretch.begin, stretch.size, std::nullopt, 0, static_cast<std::uint64_t>(arena)});
  using RecordedKind = observe::RecordedKind;
  if (CallLog* const recording = log())
    recording->put(
        kind == EventKind::arena_grow ? RecordedKind::arena_grow : RecordedKind::arena_shrink,
        stretch, 0, static_cast<std::uint64_t>(arena));
}

void Recorder::arena_resides(EventKind kind, Bytes bytes, std::uint32_t tag, pool::ArenaId arena) {
  tell({kind, DevicePtr{}, bytes, std::nullopt, tag, static_cast<std::uint64_t>(arena)});
  using RecordedKind = observe::RecordedKind;
  if (CallLog* const recording = log())
    recording->put(kind == EventKind::suspend ? RecordedKind::suspend : RecordedKind::resume,
                   {DevicePtr{}, bytes}, tag, static_cast<std::uint64_t>(arena));
}

void Recorder::failed(const pool::Request& request, const Error& error, const CallLog::By& by) {
  const bool is_shortage = error.code == ErrorCode::out_of_memory;
  if (is_shortage)
    tell({EventKind::out_of_memory, DevicePtr{}, request.bytes, request.stream, request.tag});
  if (CallLog* const recording = log()) recording->failed(request, error, by);
}

void Recorder::trimmed(Bytes released) {
  tell({EventKind::trim, DevicePtr{}, released, std::nullopt});
  if (CallLog* const recording = log())
    recording->put(CallLog::RecordedKind::trim, {DevicePtr{}, released});
}

void Recorder::paused(std::uint64_t ns) {
  if (CallLog* const recording = log()) recording->put(CallLog::RecordedKind::pause, {}, ns);
}

bool Recorder::is_sample_due() {
  if (log() == nullptr) return false;
  const std::uint64_t now_ns = driver_.now_ns();
  if (sampled_ns_ != 0 && now_ns - sampled_ns_ < kBetweenSamplesNs) return false;
  sampled_ns_ = now_ns;
  return true;
}

void Recorder::sample(Bytes mapped, Bytes pending, Bytes free) {
  if (CallLog* const recording = log())
    recording->put(CallLog::RecordedKind::sample, {DevicePtr{mapped}, pending}, free);
}

void Recorder::on_map(AddressRange chunk, DevicePtr before) noexcept {
  tell({EventKind::map, chunk.begin, chunk.size, std::nullopt});
  CallLog* const recording = log();
  if (recording == nullptr) return;
  recording->put(CallLog::RecordedKind::map, chunk, is_null(before) ? 1 : 0);
  if (!is_null(before)) recording->put(CallLog::RecordedKind::move, chunk, to_integer(before));
}

void Recorder::on_unmap(AddressRange chunk, Fate fate) noexcept {
  tell({EventKind::unmap, chunk.begin, chunk.size, std::nullopt});
  if (CallLog* const recording = log())
    recording->put(CallLog::RecordedKind::unmap, chunk, fate == Fate::given_back ? 1 : 0);
}

void Recorder::observe_begin(AddressRange range, const pool::Stream& stream) const {
  if (observer_ == nullptr || range.empty()) return;
  if (stream)
    observer_->on_allocate(range, *stream);
  else
    observer_->on_allocate_any_stream(range);
}

void Recorder::observe_end(AddressRange range, const pool::Stream& last) const {
  if (observer_ == nullptr) return;
  if (last)
    observer_->on_deallocate(range, *last);
  else
    observer_->on_deallocate_any_stream(range);
}

}  // namespace vpmm::report
