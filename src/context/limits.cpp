// SPDX-License-Identifier: Apache-2.0
// context: limits of a pool, memory given back, and idle memory of neighbours.
#include "context/limits.hpp"

#include <algorithm>
#include <utility>

#include "base/message.hpp"
#include "base/quantity.hpp"
#include "base/scope_exit.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"
#include "process/neighbours.hpp"
#include "report/headroom.hpp"
#include "report/tags.hpp"

namespace vpmm::context {

using driver::Call;

namespace {

bool has_unproven(const time::Timelines& timelines) VPMM_REQUIRES(pool_lock) {
  bool found = false;
  timelines.for_each(
      [&](const time::Timeline& timeline) { found = found || !timeline.numbers.are_provable(); });
  return found;
}

}  // namespace

Result<Bytes> Limits::trim(Bytes bytes_to_keep) {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  MutexLock& lock = visit.lock();
  parts_.allocations.drain(lock);
  parts_.footprint.flush_caches();
  parts_.arenas.give_back_idle(arena::Idle::chunks);
  // Proves finished work, as unproven frees keep memory.
  if (has_unproven(device_.timelines)) parts_.prover.prove_everything();
  const auto guarded = [&]() VPMM_REQUIRES(pool_lock) {
    return device_.guard == nullptr ? Bytes{0} : device_.guard->figures().mapped;
  };
  const Bytes before = guarded();
  VPMM_TRY(device_.primary.noted(parts_.prover.settle(lock)));
  VPMM_TRY(device_.primary.noted(parts_.prover.settle_guarded(lock, guard::Guarded::kAll)));
  Bytes released = before - std::min(before, guarded());
  if (parts_.footprint.held() > bytes_to_keep) {
    VPMM_TRY_ASSIGN(const Bytes from_driver_pool, parts_.footprint.trim_driver_pool(lock));
    released += from_driver_pool;
  }
  if (device_.pool != nullptr) {
    VPMM_TRY_ASSIGN(const Bytes from_pool,
                    device_.primary.noted(device_.pool->trim(lock, bytes_to_keep)));
    released += from_pool;
  }
  parts_.recorder.trimmed(released);
  return released;
}

Result<void> Limits::preallocate(Bytes bytes) {
  if (bytes > pool::kAddressSpace)
    return Error{ErrorCode::out_of_memory,
                 message_of("{} bytes is more than any address space", bytes)};
  Result<void> done = preallocate_mapped(bytes);
  if (done || done.error().code != ErrorCode::out_of_memory) return done;
  Bytes held = 0;
  {
    const PoolLock lock(parts_.mutex);
    held = parts_.footprint.held();
  }
  return ask_for_idle(bytes - std::min(bytes, held)) > 0 ? preallocate_mapped(bytes) : done;
}

Result<void> Limits::preallocate_mapped(Bytes bytes) {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  if (device_.pool == nullptr)
    return Error{ErrorCode::unsupported, "the virtual memory pool is off or not supported here"};
  Result<void> done = device_.primary.noted(device_.pool->preallocate(visit.lock(), bytes));
  parts_.footprint.note_peaks();
  return done;
}

// Bytes that the GPU lacks for `bytes` more within our own limit. Returns 0 if more free memory
// would not help, or during a capture, which the events of other pools could break.
Bytes Limits::missing_on_gpu(Bytes bytes) {
  driver::MemInfo info;
  if (device_.driver.mem_get_info(info) != driver::CuResult::success) return 0;
  if (!parts_.prover.may_record_context_event()) return 0;
  Bytes in_use = 0;
  if (device_.pool != nullptr) {
    device_.pool->planner().set_cached_bytes(device_.small->caches().cached_bytes());
    in_use = device_.pool->planner().wanted_bytes();
  }
  const Bytes held = parts_.footprint.held();
  const std::optional<Bytes> capacity = parts_.footprint.capacity();
  const Bytes wanted = round_up(bytes, device_.page_size);
  if (wanted > info.total - std::min(info.total, in_use)) return 0;  // beyond the GPU
  const Bytes growth = capacity ? std::min(wanted, *capacity - std::min(*capacity, held)) : wanted;
  return growth - std::min(growth, info.free);
}

// Lets other pools of the GPU give back the bytes missing for `bytes` more. Their waits and events
// count as ours: captures begin before, and then prevent the call, or after it.
Bytes Limits::ask_for_idle(Bytes bytes) {
  Bytes missing = 0;
  {
    Visit visit(entrance_);
    if (visit.status()) missing = missing_on_gpu(bytes);
    if (missing == 0) return 0;
    parts_.prover.begin_wait();
  }
  const ScopeExit end_wait([this] {
    const PoolLock lock(parts_.mutex);
    parts_.prover.end_wait();
  });
  const Bytes given = process::ask_neighbours(&parts_, missing);
  if (given > 0)
    observe::log(observe::LogLevel::info,
                 "device {}: other pools of this process gave back {} bytes",
                 device_.primary.device(), given);
  return given;
}

void Limits::set_capacity(std::optional<Bytes> bytes) {
  const PoolLock lock(parts_.mutex);
  parts_.footprint.set_capacity(bytes);
}

Result<void> Limits::set_share_of_gpu(std::uint32_t percent) {
  const PoolLock lock(parts_.mutex);
  Bytes total = 0;
  VPMM_TRY(device_.primary.noted(driver::checked(
      Call::device_total_mem, device_.driver.device_total_mem(device_.primary.device(), total))));
  Bytes share = settings::Portion{0, percent}.of(total);
  if (device_.pool != nullptr) share = share / device_.page_size * device_.page_size;
  parts_.footprint.set_capacity(share);
  return {};
}

std::optional<Bytes> Limits::capacity() const {
  const PoolLock lock(parts_.mutex);
  return parts_.footprint.capacity();
}

Result<void> Limits::remove_out_of_memory_callback(std::uint64_t id) {
  if (out_of_memory_.remove(id)) return {};
  return Error{ErrorCode::invalid_argument,
               message_of("no out-of-memory callback of this pool has the number {}", id)};
}

Result<driver::MemInfo> Limits::memory_info() {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  parts_.allocations.drain(visit.lock());
  driver::MemInfo info;
  VPMM_TRY(device_.primary.noted(
      driver::checked(Call::mem_get_info, device_.driver.mem_get_info(info))));
  Bytes idle = parts_.footprint.idle_in_driver_pool();
  if (device_.pool != nullptr) idle += totals_.movable_bytes();
  const std::optional<Bytes> capacity = parts_.footprint.capacity();
  const Bytes gpu_free =
      device_.pool == nullptr ? info.free : info.free / device_.page_size * device_.page_size;
  info.free = report::Headroom(parts_.footprint.held(), idle, gpu_free, capacity).left();
  info.total = std::min(info.total, capacity.value_or(info.total));
  return info;
}

void Limits::defer_cleanup_begin() {
  const PoolLock lock(parts_.mutex);
  parts_.footprint.hold_cleanup();
}

Result<void> Limits::defer_cleanup_end() {
  const PoolLock lock(parts_.mutex);
  if (parts_.footprint.end_hold()) return {};
  return Error{ErrorCode::invalid_argument, "defer_cleanup_end without defer_cleanup_begin"};
}

bool Limits::find_memory(const pool::Request& request, Asked& asked) {
  const bool is_first = !std::exchange(asked.neighbours, true);
  if (is_first && lacks_gpu_memory(request, asked) && ask_for_idle(request.bytes) > 0) return true;
  if (asked.answers == kMostAnswers) return false;
  if (!out_of_memory_.ask({request.bytes, device_.primary.device()})) return false;
  ++asked.answers;
  asked.neighbours = false;  // callbacks may have freed memory of neighbours
  return true;
}

bool Limits::lacks_gpu_memory(const pool::Request& request, const Asked& asked) const {
  if (asked.is_over_tag_limit) return false;
  const PoolLock lock(parts_.mutex);
  return !parts_.arenas.external().has(request.arena);
}

// --- tags

void Limits::set_tag_limit(std::uint32_t tag, std::optional<settings::Portion> limit) {
  const PoolLock lock(parts_.mutex);
  if (limit)
    tag_limits_[tag] = *limit;
  else
    tag_limits_.erase(tag);
}

std::optional<Bytes> Limits::tag_limit(std::uint32_t tag) const {
  const auto found = tag_limits_.find(tag);
  if (found == tag_limits_.end()) return std::nullopt;
  const settings::Portion& limit = found->second;
  if (limit.percent == 0) return limit.bytes;
  Bytes total = 0;
  if (const std::optional<Bytes> capacity = parts_.footprint.capacity())
    total = *capacity;
  else if (device_.driver.device_total_mem(device_.primary.device(), total) !=
           driver::CuResult::success)
    return std::nullopt;
  return limit.of(total);
}

Vector<std::uint32_t> Limits::limited_tags() const {
  Vector<std::uint32_t> tags;
  for (const auto& [tag, limit] : tag_limits_) tags.push_back(tag);
  return tags;
}

Result<void> Limits::check_tag(const pool::Request& request) const {
  if (request.tag == 0) return {};
  const std::optional<Bytes> limit = tag_limit(request.tag);
  if (!limit) return {};
  const Bytes taken = report::Tags::of(parts_.recorder.tags().by_tag(), request.tag) +
                      report::Tags::of(coming_, request.tag);
  if (request.bytes <= *limit - std::min(*limit, taken)) return {};
  return Error{
      ErrorCode::out_of_memory,
      message_of("out of device memory: asked for {}; {} has {} of its limit of {}",
                 readable_and_exact_bytes(request.bytes), report::described_tag(request.tag),
                 readable_bytes(taken), readable_bytes(*limit))};
}

void Limits::begin_tagged(const pool::Request& request) {
  if (request.tag != 0) coming_[request.tag] += request.bytes;
}

void Limits::end_tagged(const pool::Request& request) {
  const auto found = coming_.find(request.tag);
  if (found == coming_.end()) return;
  found->second -= request.bytes;
  if (found->second == 0) coming_.erase(found);
}

}  // namespace vpmm::context
