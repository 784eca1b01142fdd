// SPDX-License-Identifier: Apache-2.0
// property tests: a context that breaks for good, and every kind of call after that.
#include <array>

#include <fmt/format.h>

#include "property/world.hpp"

namespace vpmm::property {

using driver::CuResult;

namespace {

constexpr std::array kSticky = {CuResult::illegal_address, CuResult::launch_failed,
                                CuResult::ecc_uncorrectable};
constexpr Bytes kLittle = 64;
constexpr Bytes kMuch = 24 * kMiB;

}  // namespace

// Every kind that may be refused, with right arguments.
std::vector<World::NamedCall> World::calls_of(std::size_t number) {
  Device& at = devices_[number];
  context::Context* const pool = at.pool.get();
  const driver::StreamHandle stream = at.streams.back().handle;
  const std::string name = fmt::format("pool[{}]", number);
  const std::string on = fmt::format("s[{}]", at.streams.back().key);
  std::vector<NamedCall> calls;
  const auto add = [&](std::string text, auto&& work) {
    calls.push_back({std::move(text), [work] { return error_of(work()); }});
  };
  for (const Bytes bytes : {kLittle, kMuch}) {
    add(fmt::format("vpmm_allocate({}, {}u, {}, &p[{}])", name, bytes, on, next_number_), [=] {
      return pool->allocate({bytes, 0, stream});
    });
    add(fmt::format("vpmm_allocate_any_stream({}, {}u, 0, &p[{}])", name, bytes, next_number_),
        [=] {
          return pool->allocate({bytes, 0, std::nullopt});
        });
    add(fmt::format("vpmm_allocate_many({}, (size_t[]){{{}}}, 1, {}, &p[{}])", name, bytes, on,
                    next_number_),
        [=] {
          std::array<DevicePtr, 1> made{};
          return pool->allocate_many(std::array{bytes}, stream, made);
        });
  }
  add(fmt::format("vpmm_trim({}, 0, 0)", name), [=] { return pool->limits().trim(0); });
  if (has_pool())
    add(fmt::format("vpmm_preallocate({}, {}u)", name, kGiB),
        [=] { return pool->limits().preallocate(kGiB); });
  add(fmt::format("vpmm_memory_info({}, (uint64_t[1]){{0}}, (uint64_t[1]){{0}})", name),
      [=] { return pool->limits().memory_info(); });
  add(fmt::format("vpmm_synchronize({})", name), [=] { return pool->streams().synchronize(); });
  add(fmt::format("vpmm_reset({})", name), [=] { return pool->streams().reset(); });
  add(fmt::format("vpmm_stream_bind({}, {}, &b[0])", name, on), [=] { return pool->bind(stream); });
  if (has_pool()) {
    add(fmt::format("vpmm_suspend({}, {}, 0, 0)", name, kBackup),
        [=] { return pool->suspension().suspend(kBackup, {}); });
    add(fmt::format("vpmm_resume({}, {}, 0)", name, kDiscard),
        [=] { return pool->suspension().resume(kDiscard, {}); });
  }
  for (const Allocation& each : allocations_) {
    if (each.device != number) continue;
    const DevicePtr ptr = each.ptr;
    const std::string what = fmt::format("{}, p[{}]", name, each.number);
    if (each.number % 3 == 0)
      add(fmt::format("vpmm_record_use({}, {})", what, on),
          [=] { return pool->record_use(ptr, stream); });
    if (each.number % 3 == 1)
      add(fmt::format("vpmm_deallocate_any_stream({})", what),
          [=] { return pool->deallocate(ptr, std::nullopt); });
    if (each.number % 3 == 2)
      add(fmt::format("vpmm_deallocate({}, {})", what, on),
          [=] { return pool->deallocate(ptr, stream); });
  }
  return calls;
}

// A call without need of the driver may be served. The first that meets the error is refused, and
// from then on each is, without a driver call.
void World::operator()(const Break& o) {
  const std::size_t number = o.device % devices_.size();
  const CuResult result = kSticky[o.result % kSticky.size()];
  context::Context& pool = *devices_[number].pool;
  make_current(number);
  armed_.reset();
  check();
  is_broken_ = acted_ = true;
  say("stage_break({}, {}); /* {} */", number, static_cast<int>(result), driver::to_string(result));
  sim_.break_context(static_cast<int>(gpu_of(number)), result);
  const std::vector<NamedCall> calls = calls_of(number);
  std::optional<std::uint64_t> driver_calls;  // when the pool knew
  for (std::size_t i = 0; i < 2 * calls.size() && failure_.empty(); ++i) {
    const NamedCall& each = calls[(o.first + i) % calls.size()];
    say("BROKEN({});", each.text);
    std::optional<Error> error;
    const auto done = call(Bears::nothing, [&]() -> Result<void> {
      error = each.work();
      return {};
    });
    if (!done) error = done.error();
    if (error && error->code != ErrorCode::poisoned)
      fail(fmt::format("broken: {}: {}", each.text, error->message));
    if (error && !driver_calls) driver_calls = meter_.calls();
    if (!error && driver_calls) fail("broken: served: " + each.text);
  }
  for (const Allocation& each : allocations_)
    if (each.device == number) pool.deallocate_deferred(each.ptr);
  static_cast<void>(pool.reports().statistics());
  static_cast<void>(pool.reports().layout());
  if (std::string broken = pool.reports().validate(); !broken.empty())
    fail("invariant: of a broken pool: " + broken);
  if (!driver_calls) fail("broken: no call was refused");
  if (driver_calls && meter_.calls() != *driver_calls)
    fail("broken: calls of the driver after the error was known");
}

// The system takes the memory of the broken device back.
void World::finish_broken() {
  end_leases(2);
  for (Device& each : devices_) {
    if (!each.recording.empty())
      expect(each.pool->reports().stop_recording(), "stop a recording of a broken pool");
    for (Stream& stream : each.streams) {
      if (stream.bound != nullptr) say("vpmm_stream_unbind(b[{}]);", stream.key);
      stream.bound.reset();
    }
    close_pool(number_of(each));
  }
}

}  // namespace vpmm::property
