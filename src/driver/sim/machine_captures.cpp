// SPDX-License-Identifier: Apache-2.0
// driver/sim: captures, graphs, user objects, and calls that a capture forbids.
#include <algorithm>

#include "driver/sim/machine.hpp"

namespace vpmm::driver::sim {

// Refuses these calls in the capture's own thread, and for a global capture in every thread in
// global mode; relaxed captures and relaxed threads are exempt.
CuResult Machine::refuse_unsafe_call() {
  if (captures_.none() || caller_->capture_mode == CaptureMode::relaxed) return CuResult::success;
  CuResult result = CuResult::success;
  captures_.for_each_valid([&](Capture& capture) {
    if (capture.mode == CaptureMode::relaxed) return;
    const bool both_global =
        capture.mode == CaptureMode::global && caller_->capture_mode == CaptureMode::global;
    if (capture.thread != thread_ && !both_global) return;
    capture.invalidated = true;
    result = CuResult::stream_capture_unsupported;
  });
  return result;
}

// Tells if the legacy stream's implicit rules would order work on `slot` with the capture.
bool Machine::is_implicit(const Capture& capture, Slot slot) const {
  if (info(slot).kind != StreamKind::legacy || capture.device != info(slot).device) return false;
  return std::any_of(capture.members.begin(), capture.members.end(),
                     [this](const CaptureMember& member) {
                       return info(member.slot).kind == StreamKind::blocking;
                     });
}

CuResult Machine::refuse_implicit(Slot slot) {
  if (captures_.none()) return CuResult::success;
  CuResult result = CuResult::success;
  captures_.for_each_valid([&](Capture& capture) {
    if (!is_implicit(capture, slot)) return;
    capture.invalidated = true;
    result = CuResult::stream_capture_implicit;
  });
  return result;
}

CuResult Machine::refuse_host_wait(Slot slot) {
  if (captures_.none()) return CuResult::success;
  if (Capture* capture = captures_.of_stream(slot)) {
    capture->invalidated = true;
    return CuResult::stream_capture_unsupported;
  }
  if (const CuResult error = refuse_implicit(slot); error != CuResult::success) return error;
  return refuse_unsafe_call();
}

CuResult Machine::refuse_event_wait(const SimEvent& event) {
  if (event.captured_in != CaptureId{}) {
    if (Capture* capture = captures_.by_id(event.captured_in)) capture->invalidated = true;
    return CuResult::captured_event;
  }
  return refuse_unsafe_call();
}

CuResult Machine::refuse_while_any_captures(DeviceOrdinal device) {
  CuResult result = CuResult::success;
  captures_.for_each_valid([&](Capture& capture) {
    if (capture.device != device) return;
    capture.invalidated = true;
    result = CuResult::stream_capture_unsupported;
  });
  return result;
}

CuResult Machine::capture_status(Slot slot, CaptureInfo& result) {
  result = CaptureInfo{};
  if (captures_.none()) return CuResult::success;
  if (const Capture* capture = captures_.of_stream(slot)) {
    result.status = capture->invalidated ? CaptureStatus::invalidated : CaptureStatus::active;
    result.id = capture->id;
    result.graph = capture->graph;
    return CuResult::success;
  }
  // A query is harmless, unlike a use of the legacy stream.
  CuResult answer = CuResult::success;
  captures_.for_each_valid([&](const Capture& capture) {
    if (is_implicit(capture, slot)) answer = CuResult::stream_capture_implicit;
  });
  return answer;
}

CuResult Machine::stream_is_capturing(StreamHandle stream, CaptureStatus& status) {
  CaptureInfo capture;
  const CuResult result = stream_get_capture_info(stream, capture);
  if (result == CuResult::success) status = capture.status;
  return result;
}

CuResult Machine::stream_get_capture_info(StreamHandle stream, CaptureInfo& capture) {
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  CaptureInfo found;
  const CuResult result = capture_status(slot, found);
  if (result == CuResult::success) capture = found;
  return result;
}

CuResult Machine::stream_begin_capture(StreamHandle stream, CaptureMode mode) {
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  if (info(slot).kind == StreamKind::legacy) return CuResult::stream_capture_unsupported;
  if (captures_.of_stream(slot) != nullptr) return CuResult::illegal_state;
  Capture capture;
  capture.id = captures_.next_id();
  capture.mode = mode;
  capture.thread = thread_;
  capture.device = info(slot).device;
  capture.origin = slot;
  capture.graph = GraphHandle{next_graph_object_++};
  capture.members.push_back({slot, {}});
  graphs_.emplace(static_cast<std::uintptr_t>(capture.graph), Graph{});
  captures_.begin(std::move(capture));
  return CuResult::success;
}

CuResult Machine::stream_end_capture(StreamHandle stream, GraphHandle& graph) {
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  Capture* capture = captures_.of_stream(slot);
  if (capture == nullptr) return CuResult::illegal_state;
  if (capture->mode != CaptureMode::relaxed && capture->thread != thread_) {
    return CuResult::stream_capture_wrong_thread;
  }
  if (capture->origin != slot) {
    capture->invalidated = true;
    return CuResult::stream_capture_unmatched;
  }
  const GraphHandle made = capture->graph;
  CuResult result = CuResult::success;
  if (!capture->joined()) result = CuResult::stream_capture_unjoined;
  if (capture->invalidated) result = CuResult::stream_capture_invalidated;
  captures_.end(*capture);
  if (result == CuResult::success) {
    graph = made;
  } else {
    graph_destroy(made);
  }
  return result;
}

CuResult Machine::capture_work(Capture& capture, Slot slot, Work&& work) {
  if (capture.invalidated) return CuResult::stream_capture_invalidated;
  graphs_.at(static_cast<std::uintptr_t>(capture.graph)).nodes.push_back(std::move(work));
  VectorClock& clock = capture.find(slot)->clock;
  clock.set(slot, clock.at(slot) + 1);
  return CuResult::success;
}

CuResult Machine::record_in_capture(Capture& capture, Slot slot, SimEvent& event) {
  if (capture.invalidated) return CuResult::stream_capture_invalidated;
  event.captured_in = capture.id;
  event.captured_clock = capture.find(slot)->clock;
  return CuResult::success;
}

// Requires: the stream captures, or the event was recorded in a capture, or both.
CuResult Machine::wait_in_capture(Slot slot, Capture* capture, const SimEvent& event) {
  if (capture != nullptr && capture->invalidated) return CuResult::stream_capture_invalidated;
  if (event.captured_in == CaptureId{}) {
    if (!event.is_recorded) return CuResult::success;
    if (capture != nullptr) capture->invalidated = true;
    return CuResult::stream_capture_isolation;
  }
  Capture* source = captures_.by_id(event.captured_in);
  if (source == nullptr) {
    if (capture != nullptr) capture->invalidated = true;
    return CuResult::captured_event;
  }
  if (source->invalidated) return CuResult::stream_capture_invalidated;
  if (capture == source) {
    capture->find(slot)->clock.join(event.captured_clock);
    return CuResult::success;
  }
  if (capture != nullptr) {
    capture->invalidated = source->invalidated = true;
    return CuResult::stream_capture_merge;
  }
  if (info(slot).kind == StreamKind::legacy) {
    source->invalidated = true;
    return CuResult::stream_capture_implicit;
  }
  source->members.push_back({slot, event.captured_clock});
  return CuResult::success;
}

CuResult Machine::thread_exchange_stream_capture_mode(CaptureMode& mode) {
  std::swap(caller_->capture_mode, mode);
  return CuResult::success;
}

CuResult Machine::graph_instantiate(GraphHandle handle, GraphExecHandle& exec) {
  if (const CuResult error = caller_error(); error != CuResult::success) return error;
  const auto graph = graphs_.find(static_cast<std::uintptr_t>(handle));
  if (graph == graphs_.end()) return CuResult::invalid_value;
  GraphExec made;
  made.nodes = std::make_shared<const std::vector<Work>>(graph->second.nodes);
  made.user_objects = graph->second.user_objects;
  for (const UserObjectHandle object : made.user_objects) {
    ++user_objects_.at(static_cast<std::uintptr_t>(object)).references;
  }
  exec = GraphExecHandle{next_graph_object_++};
  execs_.emplace(static_cast<std::uintptr_t>(exec), std::move(made));
  return CuResult::success;
}

CuResult Machine::graph_launch(GraphExecHandle handle, StreamHandle stream) {
  const auto found = execs_.find(static_cast<std::uintptr_t>(handle));
  if (found == execs_.end()) return CuResult::invalid_value;
  GraphExec& exec = found->second;
  Slot slot = 0;
  if (const CuResult error = find_stream(stream, slot); error != CuResult::success) return error;
  if (Capture* capture = captures_.of_stream(slot)) {
    CuResult result = CuResult::success;
    for (const Work& node : *exec.nodes) result = capture_work(*capture, slot, Work(node));
    return result;
  }
  if (const CuResult error = refuse_implicit(slot); error != CuResult::success) return error;
  // Launches of one executable graph never overlap.
  timeline_.wait(slot, exec.last_launch);
  for (const Work& node : *exec.nodes) queue_self_described(slot, node);
  exec.last_launch = Recording{};
  timeline_.add_point(slot, exec.last_launch);
  return CuResult::success;
}

CuResult Machine::graph_destroy(GraphHandle handle) {
  const auto graph = graphs_.find(static_cast<std::uintptr_t>(handle));
  if (graph == graphs_.end()) return CuResult::invalid_value;
  drop_references(graph->second.user_objects);
  graphs_.erase(graph);
  return CuResult::success;
}

CuResult Machine::graph_exec_destroy(GraphExecHandle handle) {
  const auto exec = execs_.find(static_cast<std::uintptr_t>(handle));
  if (exec == execs_.end()) return CuResult::invalid_value;
  dying_execs_.push_back(std::move(exec->second));
  execs_.erase(exec);
  bury_finished_execs();
  return CuResult::success;
}

// User-object destructors tell the host that the launches are over.
void Machine::bury_finished_execs() {
  auto is_over = [this](GraphExec& exec) {
    if (!timeline_.complete(exec.last_launch)) return false;
    if (!exec.user_objects.empty()) timeline_.learn(exec.last_launch.clock);
    drop_references(exec.user_objects);
    return true;
  };
  dying_execs_.erase(std::remove_if(dying_execs_.begin(), dying_execs_.end(), is_over),
                     dying_execs_.end());
}

CuResult Machine::user_object_create(void* argument, UserObjectDestructor destroy,
                                     UserObjectHandle& object) {
  if (destroy == nullptr) return CuResult::invalid_value;
  if (const CuResult error = caller_error(); error != CuResult::success) return error;
  object = UserObjectHandle{next_graph_object_++};
  user_objects_.emplace(static_cast<std::uintptr_t>(object), UserObject{argument, destroy, 1});
  return CuResult::success;
}

CuResult Machine::user_object_release(UserObjectHandle object) {
  if (user_objects_.count(static_cast<std::uintptr_t>(object)) == 0) return CuResult::invalid_value;
  drop_reference(object);
  return CuResult::success;
}

CuResult Machine::graph_retain_user_object(GraphHandle handle, UserObjectHandle object) {
  const auto graph = graphs_.find(static_cast<std::uintptr_t>(handle));
  if (graph == graphs_.end() || user_objects_.count(static_cast<std::uintptr_t>(object)) == 0) {
    return CuResult::invalid_value;
  }
  graph->second.user_objects.push_back(object);
  return CuResult::success;
}

void Machine::drop_reference(UserObjectHandle object) {
  const auto found = user_objects_.find(static_cast<std::uintptr_t>(object));
  --found->second.references;
  if (found->second.references != 0) return;
  farewells_.push_back({found->second.destroy, found->second.argument});
  user_objects_.erase(found);
}

void Machine::drop_references(std::vector<UserObjectHandle>& objects) {
  for (const UserObjectHandle object : objects) drop_reference(object);
  objects.clear();
}

}  // namespace vpmm::driver::sim
