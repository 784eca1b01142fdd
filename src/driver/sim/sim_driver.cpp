// SPDX-License-Identifier: Apache-2.0
// driver/sim: door of the simulated driver: takes the lock, makes the call, runs its farewells.
#include "driver/sim/sim_driver.hpp"

#include <atomic>

#include "base/mutex.hpp"
#include "driver/sim/costs.hpp"
#include "driver/sim/machine.hpp"

namespace vpmm::driver::sim {
namespace {

// Number of the calling thread for all simulated drivers; never reused.
std::uint64_t this_thread() {
  static std::atomic<std::uint64_t> next{1};
  thread_local const std::uint64_t token = next.fetch_add(1, std::memory_order_relaxed);
  return token;
}

}  // namespace

class SimDriver::State final : public MemoryObserver {
 public:
  explicit State(const SimOptions& options_in) : options(options_in), machine(options_in) {}

  // Makes one driver call: f(machine) under the lock, then the destructors of user objects without
  // it.
  template <typename F>
  CuResult call(Call which, F&& f) VPMM_EXCLUDES(mutex) {
    const bool needs_init = which != Call::init && which != Call::driver_get_version;
    return call_costing(fixed_cost_ns(which), needs_init ? Requires::init : Requires::nothing,
                        std::forward<F>(f));
  }
  enum class Requires { init, nothing };
  template <typename F>
  CuResult call_costing(std::uint64_t cost_ns, Requires needs, F&& f) VPMM_EXCLUDES(mutex) {
    MutexLock lock(mutex);
    if (needs == Requires::init && !machine.is_initialised()) return CuResult::not_initialized;
    machine.enter(this_thread(), cost_ns);
    const CuResult result = f(machine);
    const auto farewells = machine.take_farewells();
    lock.unlock();
    for (const Machine::Farewell& farewell : farewells) farewell.destroy(farewell.argument);
    return result;
  }

  void on_allocate(AddressRange range, StreamHandle stream) override {
    annotate([&](Machine& m) { m.on_allocate(range, stream); });
  }
  void on_allocate_any_stream(AddressRange range) override {
    annotate([&](Machine& m) { m.on_allocate_any_stream(range); });
  }
  void on_deallocate(AddressRange range, StreamHandle stream) override {
    annotate([&](Machine& m) { m.on_deallocate(range, stream); });
  }
  void on_deallocate_any_stream(AddressRange range) override {
    annotate([&](Machine& m) { m.on_deallocate_any_stream(range); });
  }

  const SimOptions options;
  mutable Mutex mutex;
  Machine machine VPMM_GUARDED_BY(mutex);

 private:
  // Destructors of user objects wait for the next call, as the observed may hold a lock that they
  // need.
  template <typename F>
  void annotate(F&& f) VPMM_EXCLUDES(mutex) {
    const MutexLock lock(mutex);
    machine.enter(this_thread(), 0);
    f(machine);
  }
};

SimDriver::SimDriver(const SimOptions& options) : state_(std::make_unique<State>(options)) {}
SimDriver::~SimDriver() = default;

const char* SimDriver::name() const { return "sim"; }

bool SimDriver::has(Call call) const {
  return call != Call::ctx_record_event || state_->options.context_events_supported;
}

std::uint64_t SimDriver::now_ns() {
  MutexLock lock(state_->mutex);
  return state_->machine.timeline().now_ns();
}

MemoryObserver* SimDriver::memory_observer() { return state_.get(); }

CuResult SimDriver::launch(const Kernel& kernel, StreamHandle stream) {
  return state_->call_costing(kLaunchCostNs, State::Requires::init,
                              [&](Machine& m) { return m.launch(kernel, stream); });
}

void SimDriver::advance_host_ns(std::uint64_t ns) {
  state_->call_costing(ns, State::Requires::nothing, [](Machine&) { return CuResult::success; });
}

// Runs an operation, or a thread that sleeps until the GPU is done would sleep for ever.
void SimDriver::sleep_ns(std::uint64_t ns) {
  advance_host_ns(ns);
  if (state_->options.schedule != Schedule::timed) step();
}

bool SimDriver::step() {
  MutexLock lock(state_->mutex);
  return state_->machine.timeline().step();
}

void SimDriver::run_until_idle() {
  MutexLock lock(state_->mutex);
  state_->machine.timeline().run_until_idle();
}

std::uint64_t SimDriver::hazard_count() const {
  MutexLock lock(state_->mutex);
  return state_->machine.checker().count();
}

std::vector<Hazard> SimDriver::hazards() const {
  MutexLock lock(state_->mutex);
  return state_->machine.checker().first_hazards();
}

std::uint64_t SimDriver::dropped_hazard_records() const {
  MutexLock lock(state_->mutex);
  return state_->machine.checker().dropped_records();
}

Census SimDriver::census() const {
  MutexLock lock(state_->mutex);
  return state_->machine.census();
}

void SimDriver::set_used_by_others(DeviceOrdinal device, Bytes bytes) {
  MutexLock lock(state_->mutex);
  state_->machine.set_used_by_others(device, bytes);
}

void SimDriver::break_context(DeviceOrdinal device, CuResult error) {
  MutexLock lock(state_->mutex);
  state_->machine.break_context(device, error);
}

#define VPMM_DRIVER_METHOD(name, parameters, arguments)                            \
  CuResult SimDriver::name parameters {                                            \
    return state_->call(Call::name, [&](Machine& m) { return m.name arguments; }); \
  }
#include "driver/methods.def"
#undef VPMM_DRIVER_METHOD

}  // namespace vpmm::driver::sim
