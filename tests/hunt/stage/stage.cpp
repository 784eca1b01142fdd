// SPDX-License-Identifier: Apache-2.0
// hunt: the simulated GPU for programs in C.
#include "hunt/stage/stage.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "capi/pool.hpp"
#include "capi/settings.hpp"
#include "driver/faulting.hpp"
#include "driver/sim/sim_driver.hpp"

namespace {

namespace driver = vpmm::driver;
namespace sim = vpmm::driver::sim;
using driver::CuResult;
using driver::StreamHandle;

struct RecordedGraph {
  driver::GraphHandle graph{};
  driver::GraphExecHandle exec{};
  driver::CaptureId capture{};
};

struct Stage {
  std::unique_ptr<sim::SimDriver> gpu;
  std::unique_ptr<driver::FaultingDriver> faulting;  // of pools
  std::vector<vpmm_pool*> pools;
  std::vector<driver::ContextHandle> contexts;
  std::vector<RecordedGraph> graphs;
  bool crowds = false;
  int failures = 0;
  std::uint64_t misread = 0;
};

Stage& stage() {
  static auto* const only = new Stage;  // kernels may run in destructors of others
  return *only;
}

void fail(const char* what, const char* why) {
  std::fprintf(stderr, "%s: %s\n", what, why);
  ++stage().failures;
}

void must(CuResult result, const char* what) {
  if (result != CuResult::success) fail(what, driver::to_string(result));
}

StreamHandle handle(vpmm_stream stream) {
  return StreamHandle{reinterpret_cast<std::uintptr_t>(stream)};
}

vpmm::DevicePtr address(const void* ptr) {
  return vpmm::DevicePtr{reinterpret_cast<std::uintptr_t>(ptr)};
}

// Two pools of one device are numbered like those of two.
std::size_t context_of(int device) {
  return static_cast<std::size_t>(device) % stage().contexts.size();
}

sim::SimDriver& gpu_of(int device) {
  Stage& on = stage();
  must(on.gpu->ctx_set_current(on.contexts[context_of(device)]), "set current");
  return *on.gpu;
}

void check_invariants() {
  for (vpmm_pool* const pool : stage().pools)
    if (const std::string broken = pool->context->reports().validate(); !broken.empty())
      fail("invariant", broken.c_str());
}

// Of a large allocation only a few bytes have contents.
std::array<std::uint8_t*, 3> samples(void* ptr, std::size_t bytes) {
  auto* const first = static_cast<std::uint8_t*>(ptr);
  return {first, first + bytes / 2, first + bytes - 1};
}

sim::Kernel kernel(const char* name, void* ptr, std::size_t bytes, sim::MemoryAccess::Kind kind) {
  sim::Kernel made;
  made.name = name;
  made.duration_ns = 2000;
  made.accesses = {{{address(ptr), bytes}, kind}};
  return made;
}

void end_fault() {
  stage().faulting->clear_plan();
  stage().faulting->set_plan({{driver::Call::init}});  // counts from 0, and strikes nothing
  stage().faulting->clear_plan();
}

}  // namespace

void stage_fault(int call, int result, uint64_t nth) {
  stage().faulting->set_plan({{static_cast<driver::Call>(call)},
                              nth,
                              static_cast<CuResult>(result),
                              driver::FaultPlan::Repeat::once});
}

void stage_check(vpmm_status expected, vpmm_status status, const char* call) {
  const bool is_short = expected == VPMM_OK && status == VPMM_ERROR_OUT_OF_MEMORY;
  const bool was_struck = stage().faulting->fired() > 0;
  end_fault();
  if (status != expected && !is_short && !was_struck) fail(call, vpmm_status_string(status));
  check_invariants();
}

void stage_break(int device, int result) {
  stage().gpu->break_context(static_cast<int>(context_of(device)), static_cast<CuResult>(result));
}

void stage_check_broken(vpmm_status status, const char* call) {
  if (status != VPMM_OK && status != VPMM_ERROR_POISONED) fail(call, vpmm_status_string(status));
  check_invariants();
}

void stage_open(int devices, uint64_t capacity, uint64_t seed, int schedule, uint64_t lag_ns,
                int has_virtual_memory, int has_memory_pools, int has_context_events) {
  sim::SimOptions options;
  options.device_count = devices;
  options.capacity = capacity;
  options.seed = seed;
  options.schedule = static_cast<sim::Schedule>(schedule);
  options.lag_ns = lag_ns;
  options.vmm_supported = has_virtual_memory != 0;
  options.memory_pools_supported = has_memory_pools != 0;
  options.context_events_supported = has_context_events != 0;
  Stage& on = stage();
  on.gpu = std::make_unique<sim::SimDriver>(options);
  on.faulting = std::make_unique<driver::FaultingDriver>(*on.gpu);
  must(on.gpu->init(), "init");
  on.contexts.resize(static_cast<std::size_t>(devices));
  for (int i = 0; i < devices; ++i) {
    must(on.gpu->device_primary_ctx_retain(i, on.contexts[static_cast<std::size_t>(i)]), "retain");
    gpu_of(i);
  }
}

void stage_crowd(void) { stage().crowds = true; }

vpmm_pool* stage_pool(int device, const vpmm_config* config) {
  auto settings = vpmm::capi::to_config(config);
  if (!settings) return fail("stage_pool", settings.error().message.c_str()), nullptr;
  if (stage().crowds) settings.value().streams.crowded_after = 0;
  auto made = vpmm::context::Context::create(*stage().faulting, device, settings.value());
  if (!made) return fail("stage_pool", made.error().message.c_str()), nullptr;
  stage().pools.push_back(
      new vpmm_pool{std::move(made).value(), vpmm::capi::PoolLifetime::of_the_caller});
  return stage().pools.back();
}

void stage_pool_close(vpmm_pool* pool) {
  check_invariants();
  std::erase(stage().pools, pool);
  delete pool;
}

void stage_allocate_many_any_stream(vpmm_pool* pool, const size_t* bytes, size_t count,
                                    void** ptrs) {
  std::vector<vpmm::DevicePtr> made(count);
  const bool is_done = pool->context->allocate_many({bytes, count}, std::nullopt, made).ok();
  end_fault();
  if (!is_done) return;
  for (std::size_t i = 0; i < count; ++i)
    ptrs[i] = reinterpret_cast<void*>(static_cast<std::uintptr_t>(to_integer(made[i])));
}

void stage_allocate_tagged(vpmm_pool* pool, size_t bytes, uint32_t tag, int one_chunk,
                           vpmm_stream stream, int is_named, void** ptr) {
  vpmm_request request{};
  request.size = sizeof(request);
  request.bytes = bytes;
  request.stream = stream;
  request.tag = tag;
  if (one_chunk != 0) request.flags |= VPMM_ALLOCATE_ONE_CHUNK;
  if (is_named == 0) request.flags |= VPMM_ALLOCATE_ANY_STREAM;
  static_cast<void>(vpmm_allocate_with(pool, &request, ptr));
  end_fault();
}

void stage_synchronize(vpmm_pool* pool, int is_refused) {
  const vpmm_status status = vpmm_synchronize(pool);
  if (is_refused != 0 && status == VPMM_OK) fail("vpmm_synchronize", "done during a capture");
}

vpmm_stream stage_stream(int device, int is_blocking) {
  StreamHandle made{};
  must(gpu_of(device).stream_create(
           is_blocking != 0 ? driver::StreamFlags::blocking : driver::StreamFlags::non_blocking,
           made),
       "create a stream");
  return reinterpret_cast<vpmm_stream>(static_cast<std::uintptr_t>(made));
}

void stage_stream_destroy(int device, vpmm_stream stream) {
  must(gpu_of(device).stream_destroy(handle(stream)), "destroy a stream");
}

void stage_order(int device, vpmm_stream first, vpmm_stream second) {
  sim::SimDriver& gpu = gpu_of(device);
  driver::EventHandle event{};
  must(gpu.event_create(event), "create an event");
  must(gpu.event_record(event, handle(first)), "record");
  must(gpu.stream_wait_event(handle(second), event), "wait");
  must(gpu.event_destroy(event), "destroy an event");
}

void stage_write(int device, void* ptr, size_t bytes, int value, vpmm_stream stream) {
  if (ptr == nullptr || bytes == 0) return;
  constexpr std::size_t kMostFilled = 4096;
  sim::SimDriver& gpu = gpu_of(device);
  const auto byte = static_cast<std::uint8_t>(value);
  if (bytes <= kMostFilled)
    return must(gpu.memset_d8_async(address(ptr), byte, bytes, handle(stream)), "fill");
  sim::Kernel writer = kernel("writer", ptr, bytes, sim::MemoryAccess::Kind::write);
  writer.body = [ptr, bytes, byte] {
    for (std::uint8_t* const each : samples(ptr, bytes)) *each = byte;
  };
  must(gpu.launch(writer, handle(stream)), "launch");
}

void stage_read(int device, void* ptr, size_t bytes, int value, vpmm_stream stream) {
  if (ptr == nullptr || bytes == 0) return;
  sim::Kernel reader = kernel("reader", ptr, bytes, sim::MemoryAccess::Kind::read);
  reader.body = [ptr, bytes, value] {
    for (const std::uint8_t* const each : samples(ptr, bytes))
      stage().misread += *each != value ? 1 : 0;
  };
  must(gpu_of(device).launch(reader, handle(stream)), "launch");
}

void stage_spin(int device, vpmm_stream stream, uint64_t ns) {
  must(gpu_of(device).launch({"spin", ns, {}, {}}, handle(stream)), "launch");
}

void stage_capture_begin(int device, vpmm_stream stream, int mode) {
  must(gpu_of(device).stream_begin_capture(handle(stream), static_cast<driver::CaptureMode>(mode)),
       "begin a capture");
}

int stage_capture_end(int device, vpmm_stream stream) {
  RecordedGraph made;
  driver::CaptureInfo info;
  must(gpu_of(device).stream_get_capture_info(handle(stream), info), "capture info");
  made.capture = info.id;
  must(gpu_of(device).stream_end_capture(handle(stream), made.graph), "end a capture");
  must(stage().gpu->graph_instantiate(made.graph, made.exec), "instantiate");
  stage().graphs.push_back(made);
  return static_cast<int>(stage().graphs.size() - 1);
}

void stage_launch(int device, int graph, vpmm_stream stream) {
  const RecordedGraph& of = stage().graphs[static_cast<std::size_t>(graph)];
  must(gpu_of(device).graph_launch(of.exec, handle(stream)), "launch a graph");
}

void stage_capture_release(vpmm_pool* pool, int graph) {
  const driver::CaptureId id = stage().graphs[static_cast<std::size_t>(graph)].capture;
  static_cast<void>(vpmm_capture_release(pool, static_cast<std::uint64_t>(id)));
}

void stage_graph_destroy(int graph) {
  const RecordedGraph& of = stage().graphs[static_cast<std::size_t>(graph)];
  must(stage().gpu->graph_exec_destroy(of.exec), "destroy a graph");
  must(stage().gpu->graph_destroy(of.graph), "destroy a graph");
}

void stage_others_use(int device, uint64_t bytes) {
  stage().gpu->set_used_by_others(static_cast<int>(context_of(device)), bytes);
}

void stage_pass(uint64_t ns) { stage().gpu->advance_host_ns(ns); }

void stage_step(uint64_t count) {
  for (std::uint64_t i = 0; i < count && stage().gpu->step(); ++i) {
  }
}

void stage_run_until_idle(void) { stage().gpu->run_until_idle(); }

void stage_reset(int device, int waits_first) {
  if (waits_first != 0) stage().gpu->run_until_idle();
  const std::size_t number = context_of(device);
  must(stage().gpu->device_primary_ctx_reset(static_cast<int>(number)), "reset");
  driver::ContextHandle& context = stage().contexts[number];
  must(stage().gpu->device_primary_ctx_retain(static_cast<int>(number), context), "retain");
}

int stage_end(void) {
  constexpr int kMostTold = 100;
  Stage& on = stage();
  check_invariants();
  for (const sim::Hazard& hazard : on.gpu->hazards()) fail("hazard", hazard.describe().c_str());
  if (on.misread > 0) fail("kernels", "read another value than was written");
  return std::min(on.failures, kMostTold);
}
