// SPDX-License-Identifier: Apache-2.0
// property tests: faults, recordings, listeners, callbacks that call the pool, forks and exits.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <fmt/format.h>

#include "capi/pool.hpp"
#include "process/process_gate.hpp"
#include "property/world.hpp"
#include "support/recorded_file.hpp"

namespace vpmm::property {
namespace {

constexpr Bytes kOfCallbacks = 1000;

void* pointer(DevicePtr ptr) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(to_integer(ptr)));
}

}  // namespace

// --- faults

// Whether a fault explains the failure. The pool lives on after each of those that are drawn.
bool World::may_have_failed(const Error& error, const char* what) {
  if (!struck_) return false;
  if (error.code == ErrorCode::invalid_pointer || error.code == ErrorCode::poisoned)
    fail(fmt::format("{} after a fault: {}", what, error.message));
  return true;
}

// --- recordings and listeners

void World::operator()(const Record& o) {
  Device& at = device(o.device);
  if (!at.recording.empty()) return read_recording(at);
  static std::uint64_t files = 0;
  const std::string name = fmt::format("vpmm-hunt-{}-{}.vpmmrec", getpid(), ++files);
  const std::string path = std::filesystem::temp_directory_path() / name;
  say("CALL(vpmm_record_start(pool[{}], \"{}\"));", o.device % devices_.size(), name);
  if (expect(call(Bears::nothing, [&] { return at.pool->reports().start_recording(path); }),
             "start a recording"))
    at.recording = path;
}

void World::read_recording(Device& at) {
  say("CALL(vpmm_record_mark(pool[{}], \"end\"));", number_of(at));
  at.pool->reports().mark("end");
  say("CALL(vpmm_record_stop(pool[{}]));", number_of(at));
  expect(call(Bears::nothing, [&] { return at.pool->reports().stop_recording(); }),
         "stop a recording");
  const test::RecordedFile file = test::read_recorded(at.recording);
  unlink(at.recording.c_str());
  at.recording.clear();
  if (!file.error.empty()) return fail("recording: " + file.error);
  if (!file.end.is_object()) return fail("recording: the file has no end");
  for (const observe::RecordedEvent& event : file.events)
    if (event.kind < figures_.recorded.size()) ++figures_.recorded[event.kind];
  // A reset takes memory of the driver's pool away, and no call frees it.
  if (has_drivers_pool()) return;
  if (const std::string fault = test::order_fault(file); !fault.empty())
    fail("recording: " + fault);
}

void World::operator()(const Listen& o) {
  Device& at = device(o.device);
  acted_ = true;
  if (at.listener) {
    say("/* a listener ends */");
    expect(at.pool->reports().remove_event_callback(*at.listener), "remove a listener");
    return at.listener.reset();
  }
  say("/* a listener begins */");
  const report::EventKinds all = (report::EventKinds{1} << report::kEventKinds) - 1;
  const auto kinds = static_cast<report::EventKinds>(o.kinds % 3 == 0 ? all : o.kinds & all);
  at.listener =
      at.pool->reports().add_event_callback(kinds, [this, kinds](const report::ReportedEvent& e) {
        ++figures_.heard[static_cast<std::size_t>(e.kind)];
        if ((kinds & report::bit_of(e.kind)) == 0) fail("an event that nobody listens to is told");
      });
}

// --- callbacks that call the pool

void World::operator()(const CallBack& o) {
  acted_ = true;
  device(o.device).call_back = o.how % 4;
  say("/* out-of-memory callbacks now {} */",
      std::array{"do nothing", "free", "trim", "allocate"}[o.how % 4]);
}

// A request inside of a callback may run out, too, and calls no further.
bool World::call_back(std::size_t number) {
  Device& at = devices_[number];
  if (strikes_ || at.is_called_back || at.call_back == 0) return false;
  at.is_called_back = true;
  bool has_helped = false;
  if (at.call_back == 1) has_helped = frees_one();
  if (at.call_back == 2) {
    const auto trimmed = at.pool->limits().trim(0);
    if (!trimmed && trimmed.error().code != ErrorCode::capture_active)
      fail("trim in a callback: " + trimmed.error().message);
  }
  if (at.call_back == 3 && call_from_hook(number)) ++at.made_by_callbacks;
  at.is_called_back = false;
  return has_helped;
}

// Without a lock, so any call that does not suspend or resume.
bool World::call_from_hook(std::size_t number) {
  if (strikes_) return false;
  static_cast<void>(devices_[number].pool->reports().statistics());
  return comes_and_goes(number, kOfCallbacks);
}

void World::operator()(const Hook& o) {
  if (!has_pool()) return;
  acted_ = true;
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  const std::uint32_t tag = o.tag % 2 == 0 ? kBackup : kDiscard;
  context::Suspension& suspension = at.pool->suspension();
  if (const auto hook = at.hooks.find(tag); hook != at.hooks.end()) {
    say("/* the hooks of tag {} end */", tag);
    if (!suspension.remove_hooks(hook->second)) fail("hooks are not there");
    at.hooks.erase(hook);
    at.told_asleep.erase(tag);
    return;
  }
  say("/* hooks of tag {} begin, which call the pool{} */", tag, o.refuses ? " and refuse" : "");
  context::SuspendHooks hooks;
  hooks.tag = tag;
  hooks.before_unmap = [this, number, tag, refuses = o.refuses](int, std::uint32_t) {
    call_from_hook(number);
    if (refuses) return false;
    if (++devices_[number].told_asleep[tag] != 1) fail("hooks are told twice that a tag sleeps");
    return true;
  };
  hooks.after_map = [this, number, tag](int, std::uint32_t) {
    call_from_hook(number);
    if (--devices_[number].told_asleep[tag] != 0) fail("hooks are told twice that a tag is back");
  };
  at.told_asleep[tag] = at.asleep.contains(tag) ? 1 : 0;  // a resume tells every hook
  at.hooks[tag] = suspension.add_hooks(std::move(hooks));
}

// --- the end of the process

// Behind the closed gate a free does nothing, and other calls are refused.
bool World::refuses_after_the_end() {
  for (Device& each : devices_) {
    if (each.pool == nullptr) continue;
    vpmm_pool pool{std::move(each.pool), capi::PoolLifetime::of_the_caller};
    void* ptr = nullptr;
    std::size_t bytes = 0;
    bool is_right = vpmm_allocate(&pool, 5 * kMiB, nullptr, &ptr) == VPMM_ERROR_PROCESS_ENDING &&
                    vpmm_allocate(&pool, 1000, nullptr, &ptr) == VPMM_ERROR_PROCESS_ENDING &&
                    vpmm_trim(&pool, 0, &bytes) == VPMM_ERROR_PROCESS_ENDING;
    for (const Allocation& live : allocations_)
      if (&devices_[live.device] == &each)
        is_right = is_right && vpmm_deallocate(&pool, pointer(live.ptr), nullptr) == VPMM_OK;
    each.pool = std::move(pool.context);
    if (!is_right) return false;
  }
  return true;
}

void World::operator()(const Fork& /*o*/) {
  { const process::GateEntry known; }  // the process has called
  acted_ = true;
  say("/* forks; frees in the child do nothing, other calls fail */");
  const pid_t child = fork();
  if (child < 0) return;
  if (child == 0) _exit(refuses_after_the_end() ? 0 : 1);
  int status = 0;
  if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
    fail("fork: the child's calls reach the pool, or end it");
}

void World::operator()(const Exit& /*o*/) {
  { const process::GateEntry known; }
  acted_ = true;
  say("/* exits with all that lives */");
}

void World::check_after_exit() {
  if (!refuses_after_the_end()) fail("exit: calls of an exit handler reach the pool");
  const bool is_any_open = std::any_of(shared_.begin(), shared_.end(), [](const Shared& shared) {
    return !shared.importers.empty();
  });
  // A process that has memory open asks through its connection, and waits for an answer.
  if (scene_.has_importer && !is_any_open) check_that_nothing_opens();
}

}  // namespace vpmm::property
