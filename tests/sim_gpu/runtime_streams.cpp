// SPDX-License-Identifier: Apache-2.0
// sim_gpu: the CUDA runtime's functions about streams, events, captures and graphs.
#include <cstring>

#include "sim_gpu/runtime.hpp"

using vpmm::sim_gpu::answer;
using vpmm::sim_gpu::in_context;

// --- streams ---

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return in_context([&] { return cuStreamCreateWithPriority(stream, flags, priority); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return in_context([&] { return cuStreamGetPriority(stream, priority); });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return in_context([&] { return cuStreamDestroy(stream); });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return in_context([&] { return cuStreamQuery(stream); });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return in_context([&] { return cuStreamSynchronize(stream); });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return in_context([&] { return cuStreamWaitEvent(stream, event, flags); });
}

// --- events ---

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return in_context([&] { return cuEventCreate(event, flags); });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return in_context([&] { return cuEventRecord(event, stream); });
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return in_context([&] { return cuEventRecordWithFlags(event, stream, flags); });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return in_context([&] { return cuEventQuery(event); });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return in_context([&] { return cuEventSynchronize(event); });
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return in_context([&] { return cuEventDestroy(event); });
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return in_context([&] { return cuEventElapsedTime(milliseconds, start, end); });
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  CUipcEventHandle made{};
  static_assert(sizeof made == sizeof *handle);
  const cudaError_t error = in_context([&] { return cuIpcGetEventHandle(&made, event); });
  if (error == cudaSuccess) std::memcpy(handle, &made, sizeof made);
  return error;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  CUipcEventHandle shared{};
  std::memcpy(&shared, &handle, sizeof shared);
  return in_context([&] { return cuIpcOpenEventHandle(event, shared); });
}

// --- captures and graphs ---

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return in_context([&] {
    CUstreamCaptureStatus found{};
    const CUresult result = cuStreamIsCapturing(stream, &found);
    if (result == CUDA_SUCCESS) *status = static_cast<cudaStreamCaptureStatus>(found);
    return result;
  });
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  return in_context([&] {
    CUstreamCaptureStatus found{};
    cuuint64_t found_id = 0;
    const CUresult result =
        cuStreamGetCaptureInfo(stream, &found, &found_id, graph, nodes, nullptr, count);
    if (result != CUDA_SUCCESS) return result;
    *status = static_cast<cudaStreamCaptureStatus>(found);
    if (id != nullptr) *id = found_id;
    if (edges != nullptr) *edges = nullptr;
    return result;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return in_context(
      [&] { return cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)); });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return in_context([&] { return cuStreamEndCapture(stream, graph); });
}

// Needs no context.
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  if (const CUresult result = cuInit(0); result != CUDA_SUCCESS) return answer(result);
  auto swapped = static_cast<CUstreamCaptureMode>(*mode);
  const CUresult result = cuThreadExchangeStreamCaptureMode(&swapped);
  *mode = static_cast<cudaStreamCaptureMode>(swapped);
  return answer(result);
}

// The simulator does not tell what is in a graph; a program that counts wants to know whether there
// is anything.
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return vpmm::sim_gpu::unsupported("cudaGraphGetNodes, with nodes,");
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long flags) {
  return in_context([&] { return cuGraphInstantiateWithFlags(exec, graph, flags); });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  return in_context([&] { return cuGraphLaunch(exec, stream); });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return in_context([&] { return cuGraphDestroy(graph); });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  return in_context([&] { return cuGraphExecDestroy(exec); });
}
