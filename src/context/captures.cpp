// SPDX-License-Identifier: Apache-2.0
// context: identity of a stream, memory parked with graphs, and the end of graphs.
#include "context/captures.hpp"

#include <algorithm>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "driver/driver_error.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;
using pool::Caller;
using pool::Standing;

namespace {

// Owned by the graph's user object. The list outlives the context if the graph does.
struct GraphEnd : FromHostMemory {
  std::shared_ptr<DeferredList> ended;  // null: the graph did not take the object
  std::uint64_t capture;
};

void on_graph_end(void* argument) {
  const std::unique_ptr<GraphEnd> end(static_cast<GraphEnd*>(argument));
  if (end->ended != nullptr) end->ended->push(end->capture);
}

}  // namespace

Error no_stream(const char* parameter, driver::StreamHandle stream, Call call) {
  return {ErrorCode::invalid_argument,
          message_of("`{}` {:#x} is no stream: {}", parameter, static_cast<std::uint64_t>(stream),
                     driver::driver_error(call, CuResult::invalid_handle).message)};
}

// Note [A capturing stream has no id]
// cuStreamGetId of a capturing stream fails and breaks the capture, in every mode; so does that of
// the legacy stream while a blocking stream captures. cuStreamIsCapturing is harmless, so it is
// called first. A caller in a capture has no timeline: its frees of ordinary memory wait for all
// streams.
Result<Caller> Captures::identify(const pool::Stream& stream, const time::TimelineId* bound) {
  Caller caller;
  caller.stream = stream;
  if (!stream) return caller;
  if (bound != nullptr) {
    // After a reset the stream's handle must not be touched.
    time::Timeline* timeline = device_.timelines.find(*bound);
    if (timeline != nullptr && timeline->is_over) timeline = nullptr;
    if (timeline == nullptr) caller.stream.reset();
    if (timeline == nullptr || !may_be_known()) {
      caller.timeline = timeline;
      return caller;
    }
  }
  driver::CaptureStatus status{};
  const CuResult result = device_.driver.stream_is_capturing(*stream, status);
  caller.standing = Standing::blocked;
  if (result == CuResult::stream_capture_implicit) return caller;
  if (result == CuResult::invalid_handle)
    return no_stream("stream", *stream, Call::stream_is_capturing);
  VPMM_TRY(driver::checked(Call::stream_is_capturing, result));
  // The thread tells per-thread default streams apart: they share one handle.
  const HandleKey key{*stream, *stream == driver::kPerThreadStream ? std::this_thread::get_id()
                                                                   : std::thread::id{}};
  if (status == driver::CaptureStatus::none) {
    caller.standing = Standing::ordinary;
    const bool was_seen = seen_.erase(key) != 0;
    if (was_seen) refresh();
    VPMM_TRY_ASSIGN(caller.timeline, device_.timelines.of(*stream));
    return caller;
  }
  Seen& seen = seen_.try_emplace(key, Seen{.is_announced = announced_ > 0}).first->second;
  seen.id = 0;  // if the look below fails, the graph of the stream's last capture must not end it
  refresh();
  if (status == driver::CaptureStatus::active) VPMM_TRY(read_capture(caller));
  seen.id = caller.capture;
  return caller;
}

Result<void> Captures::read_capture(Caller& caller) {
  driver::CaptureInfo info;
  VPMM_TRY(driver::checked(Call::stream_get_capture_info,
                           device_.driver.stream_get_capture_info(*caller.stream, info)));
  if (info.status != driver::CaptureStatus::active) return {};
  caller.standing = Standing::capturing;
  caller.capture = static_cast<std::uint64_t>(info.id);
  return keep_for(info);
}

void Captures::announce() {
  ++announced_;
  refresh();
}

bool Captures::end_announced() {
  if (announced_ == 0) return false;
  --announced_;
  std::erase_if(seen_, [](const auto& seen) { return seen.second.is_announced; });
  refresh();
  return true;
}

void Captures::forget_streams() {
  seen_.clear();
  refresh();
}

// Writes only a change: all threads read it at every call.
void Captures::refresh() {
  if (may_be_known() != are_known()) may_be_known_.store(are_known());
}

// Ties the memory to the graph; a driver without user objects keeps it until capture_release.
Result<void> Captures::keep_for(const driver::CaptureInfo& info) {
  const auto capture = static_cast<std::uint64_t>(info.id);
  if (keeps(capture)) return {};
  if (!device_.driver.has(Call::user_object_create)) {
    kept_[capture];
    return {};
  }
  ended_->provide(kept_.size() + 1);
  auto end = std::make_unique<GraphEnd>(GraphEnd{{}, ended_, capture});
  driver::UserObjectHandle object{};
  VPMM_TRY(driver::checked(Call::user_object_create,
                           device_.driver.user_object_create(end.get(), on_graph_end, object)));
  // The driver calls on_graph_end from here on, also when the object is released right away.
  GraphEnd* const owned = end.release();
  const CuResult retained = device_.driver.graph_retain_user_object(info.graph, object);
  if (retained == CuResult::success) {
    kept_[capture];
  } else {
    owned->ended.reset();  // the capture goes on, and its next call tries again
    device_.driver.user_object_release(object);  // `retained` has the error
  }
  return driver::checked(Call::graph_retain_user_object, retained);
}

void Captures::park(std::uint64_t capture, region::Region* region,
                    std::optional<driver::StreamHandle> freed_on) {
  Vector<Parked>& parked = kept_[capture];
  const auto take = [&](region::Region* neighbour) {
    const auto found = std::find(parked.begin(), parked.end(), Parked{neighbour, freed_on});
    if (found == parked.end()) return false;
    parked.erase(found);
    return true;
  };
  if (take(region->next)) region = device_.pool->unite(region);
  if (take(region->previous)) region = device_.pool->unite(region->previous);
  parked.push_back({region, freed_on});
}

bool Captures::is_parked(const region::Region* region) const {
  const auto found = kept_.find(region->owner.capture);
  if (found == kept_.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(),
                     [&](const Parked& parked) { return parked.region == region; });
}

region::Region* Captures::take_parked(std::uint64_t capture, driver::StreamHandle stream,
                                      const pool::PageRequest& request) {
  const auto kept = kept_.find(capture);
  if (kept == kept_.end()) return nullptr;  // it ended while the call had dropped the lock
  Vector<Parked>& parked = kept->second;
  auto best = parked.end();
  for (auto candidate = parked.begin(); candidate != parked.end(); ++candidate) {
    const region::Region& region = *candidate->region;
    if (candidate->freed_on != stream || device_.pool->front_for(region, request) == 0) continue;
    if (best == parked.end() || region.range.size < best->region->range.size) best = candidate;
  }
  if (best == parked.end()) return nullptr;
  region::Region* region = best->region;
  parked.erase(best);
  return region;
}

Vector<region::Region*> Captures::release(std::uint64_t capture) {
  std::erase_if(seen_, [&](const auto& seen) { return seen.second.id == capture; });
  refresh();
  Vector<region::Region*> regions;
  const auto kept = kept_.find(capture);
  if (kept == kept_.end()) return regions;
  for (const Parked& parked : kept->second) regions.push_back(parked.region);
  kept_.erase(kept);
  return regions;
}

Bytes Captures::parked_bytes() const {
  Bytes bytes = 0;
  for (const auto& [id, parked] : kept_)
    for (const Parked& each : parked) bytes += each.region->range.size;
  return bytes;
}

Vector<std::uint64_t> Captures::all() const {
  Vector<std::uint64_t> ids;
  for (const auto& [id, parked] : kept_) ids.push_back(id);
  return ids;
}

}  // namespace vpmm::context
