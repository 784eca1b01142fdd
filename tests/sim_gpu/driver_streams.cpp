// SPDX-License-Identifier: Apache-2.0
// sim_gpu: libcuda's functions about streams, events, captures and graphs.
#include <cuda.h>

#include <mutex>
#include <unordered_map>

#include "sim_gpu/machine.hpp"

using vpmm::driver::CaptureMode;
using vpmm::driver::CaptureStatus;
using vpmm::driver::CuResult;
using vpmm::driver::EventHandle;
using vpmm::driver::GraphExecHandle;
using vpmm::driver::GraphHandle;
using vpmm::driver::StreamFlags;
using vpmm::driver::StreamHandle;
using vpmm::driver::UserObjectHandle;
using vpmm::sim_gpu::handle;
using vpmm::sim_gpu::machine;
using vpmm::sim_gpu::pointer;
using vpmm::sim_gpu::stream_of;
using vpmm::sim_gpu::to_cuda;

namespace {

constexpr int kHighestPriority = -5;

// What CUDA remembers of a handle and the simulator does not.
template <typename Handle, typename Value>
class Notes {
 public:
  void set(Handle about, Value value) {
    const std::lock_guard lock(mutex_);
    values_[about] = value;
  }
  void erase(Handle about) {
    const std::lock_guard lock(mutex_);
    values_.erase(about);
  }
  bool find(Handle about, Value& value) {
    const std::lock_guard lock(mutex_);
    const auto found = values_.find(about);
    if (found == values_.end()) return false;
    value = found->second;
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Handle, Value> values_;
};

Notes<CUstream, int>& priorities() {
  static auto* const notes = new Notes<CUstream, int>;
  return *notes;
}

struct Timing {
  bool is_recorded = false;
  std::uint64_t recorded_ns = 0;
};

Notes<CUevent, Timing>& timings() {  // of events that were created with timing
  static auto* const notes = new Notes<CUevent, Timing>;
  return *notes;
}

EventHandle event_of(CUevent event) { return handle<EventHandle>(event); }

}  // namespace

// --- streams ---

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kHighestPriority;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority) {
  StreamHandle made{};
  const CuResult result = machine().stream_create(StreamFlags{flags}, made);
  if (result != CuResult::success) return to_cuda(result);
  *stream = pointer<CUstream>(made);
  priorities().set(*stream, priority > 0                  ? 0
                            : priority < kHighestPriority ? kHighestPriority
                                                          : priority);
  return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

CUresult cuStreamGetPriority(CUstream stream, int* priority) {
  *priority = 0;  // of the default streams
  priorities().find(stream, *priority);
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
  priorities().erase(stream);
  return to_cuda(machine().stream_destroy(stream_of(stream)));
}

CUresult cuStreamGetId(CUstream stream, unsigned long long* id) {
  vpmm::driver::StreamId found{};
  const CuResult result = machine().stream_get_id(stream_of(stream), found);
  if (result == CuResult::success) *id = static_cast<unsigned long long>(found);
  return to_cuda(result);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  vpmm::driver::ContextHandle found{};
  const CuResult result = machine().stream_get_ctx(stream_of(stream), found);
  if (result == CuResult::success) *context = pointer<CUcontext>(found);
  return to_cuda(result);
}

CUresult cuStreamQuery(CUstream stream) {
  return to_cuda(machine().stream_query(stream_of(stream)));
}

CUresult cuStreamSynchronize(CUstream stream) {
  return to_cuda(machine().stream_synchronize(stream_of(stream)));
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned) {
  return to_cuda(machine().stream_wait_event(stream_of(stream), event_of(event)));
}

// --- events ---

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  EventHandle made{};
  const CuResult result = machine().event_create(made);
  if (result != CuResult::success) return to_cuda(result);
  *event = pointer<CUevent>(made);
  if ((flags & CU_EVENT_DISABLE_TIMING) == 0) timings().set(*event, {});
  return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
  const CuResult result = machine().event_record(event_of(event), stream_of(stream));
  Timing timing;
  if (result == CuResult::success && timings().find(event, timing))
    timings().set(event, {true, machine().now_ns()});
  return to_cuda(result);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
  return cuEventRecord(event, stream);
}

CUresult cuEventQuery(CUevent event) { return to_cuda(machine().event_query(event_of(event))); }

CUresult cuEventSynchronize(CUevent event) {
  return to_cuda(machine().event_synchronize(event_of(event)));
}

CUresult cuEventDestroy(CUevent event) {
  timings().erase(event);
  return to_cuda(machine().event_destroy(event_of(event)));
}

// The virtual time between the two calls of cuEventRecord, not between what they recorded.
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  Timing first, second;
  if (!timings().find(start, first) || !timings().find(end, second))
    return CUDA_ERROR_INVALID_HANDLE;
  if (!first.is_recorded || !second.is_recorded) return CUDA_ERROR_INVALID_HANDLE;
  for (const CUevent event : {start, end}) {
    if (const CUresult result = cuEventQuery(event); result != CUDA_SUCCESS) return result;
  }
  const auto elapsed_ns =
      static_cast<double>(second.recorded_ns) - static_cast<double>(first.recorded_ns);
  *milliseconds = static_cast<float>(elapsed_ns / 1e6);
  return CUDA_SUCCESS;
}

CUresult cuCtxRecordEvent(CUcontext context, CUevent event) {
  return to_cuda(
      machine().ctx_record_event(handle<vpmm::driver::ContextHandle>(context), event_of(event)));
}

// --- events of other processes ---

// What the event recorded is over when the handle is made, so that nobody needs to wait for it: it
// holds for events that are recorded once, before their handle goes out.
CUresult cuIpcGetEventHandle(CUipcEventHandle* shared, CUevent event) {
  const CuResult result = machine().event_synchronize(event_of(event));
  if (result == CuResult::success) *shared = {};
  return to_cuda(result);
}

CUresult cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle) {
  return cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
}

// --- captures and graphs ---

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  CaptureStatus found{};
  const CuResult result = machine().stream_is_capturing(stream_of(stream), found);
  if (result == CuResult::success) *status = static_cast<CUstreamCaptureStatus>(found);
  return to_cuda(result);
}

// Says of no stream what its next node would depend on.
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id,
                                CUgraph* graph, const CUgraphNode** nodes,
                                const CUgraphEdgeData** edges, size_t* count) {
  vpmm::driver::CaptureInfo info;
  const CuResult result = machine().stream_get_capture_info(stream_of(stream), info);
  if (result != CuResult::success) return to_cuda(result);
  *status = static_cast<CUstreamCaptureStatus>(info.status);
  if (id != nullptr) *id = static_cast<cuuint64_t>(info.id);
  if (graph != nullptr) *graph = pointer<CUgraph>(info.graph);
  if (nodes != nullptr) *nodes = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = 0;
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  return to_cuda(machine().stream_begin_capture(stream_of(stream), static_cast<CaptureMode>(mode)));
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  GraphHandle made{};
  const CuResult result = machine().stream_end_capture(stream_of(stream), made);
  *graph = result == CuResult::success ? pointer<CUgraph>(made) : nullptr;
  return to_cuda(result);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  CaptureMode swapped = static_cast<CaptureMode>(*mode);
  const CuResult result = machine().thread_exchange_stream_capture_mode(swapped);
  *mode = static_cast<CUstreamCaptureMode>(swapped);
  return to_cuda(result);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long) {
  GraphExecHandle made{};
  const CuResult result = machine().graph_instantiate(handle<GraphHandle>(graph), made);
  if (result == CuResult::success) *exec = pointer<CUgraphExec>(made);
  return to_cuda(result);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return to_cuda(machine().graph_launch(handle<GraphExecHandle>(exec), stream_of(stream)));
}

CUresult cuGraphDestroy(CUgraph graph) {
  return to_cuda(machine().graph_destroy(handle<GraphHandle>(graph)));
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  return to_cuda(machine().graph_exec_destroy(handle<GraphExecHandle>(exec)));
}

CUresult cuUserObjectCreate(CUuserObject* object, void* argument, CUhostFn destroy,
                            unsigned references, unsigned) {
  if (references != 1) return CUDA_ERROR_NOT_SUPPORTED;
  UserObjectHandle made{};
  const CuResult result = machine().user_object_create(argument, destroy, made);
  if (result == CuResult::success) *object = pointer<CUuserObject>(made);
  return to_cuda(result);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned references) {
  if (references != 1) return CUDA_ERROR_NOT_SUPPORTED;
  return to_cuda(machine().user_object_release(handle<UserObjectHandle>(object)));
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned references,
                                 unsigned flags) {
  if (references != 1 || flags != CU_GRAPH_USER_OBJECT_MOVE) return CUDA_ERROR_NOT_SUPPORTED;
  return to_cuda(machine().graph_retain_user_object(handle<GraphHandle>(graph),
                                                    handle<UserObjectHandle>(object)));
}
