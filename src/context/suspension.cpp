// SPDX-License-Identifier: Apache-2.0
// context: the order of steps of a suspend and a resume.
#include "context/suspension.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"
#include "report/tags.hpp"

namespace vpmm::context {

using driver::Call;
using pool::ArenaId;
using region::Region;

// --- tags

Result<void> Suspension::make_suspendable(std::uint32_t tag, TagOptions options) {
  if (device_.pool == nullptr) return arena::no_arenas();
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  const PoolLock lock(parts_.mutex);
  parts_.tags.make(tag, options);
  return {};
}

Result<void> Suspension::enter(std::uint32_t tag, TagScope scope) {
  const PoolLock lock(parts_.mutex);
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  parts_.tags.scopes().enter(tag, scope);
  parts_.front.refresh();
  return {};
}

Result<void> Suspension::leave(std::uint32_t tag, TagScope scope) {
  const PoolLock lock(parts_.mutex);
  if (!parts_.tags.scopes().leave(tag, scope))
    return Error{ErrorCode::invalid_argument,
                 message_of("{} is not entered for {}", report::described_tag(tag),
                            scope == TagScope::thread ? "this thread" : "the process")};
  parts_.front.refresh();
  return {};
}

TagScopes::Entered Suspension::entered() const {
  const PoolLock lock(parts_.mutex);
  return parts_.tags.scopes().innermost();
}

Vector<std::uint32_t> Suspension::suspendable_tags() const {
  const PoolLock lock(parts_.mutex);
  return parts_.tags.all();
}

Vector<std::uint32_t> Suspension::all_tags() const {
  const PoolLock lock(parts_.mutex);
  Set<std::uint32_t> tags;
  for (const auto& some : {parts_.tags.all(), limits_.limited_tags()})
    tags.insert(some.begin(), some.end());
  for (const auto* const sums :
       {&parts_.recorder.tags().by_tag(), &parts_.recorder.tags().by_library()})
    for (const auto& [tag, bytes] : *sums) tags.insert(tag);
  return {tags.begin(), tags.end()};
}

TagInfo Suspension::info(std::uint32_t tag) const {
  const PoolLock lock(parts_.mutex);
  TagInfo info;
  info.limit = limits_.tag_limit(tag);
  const report::Tags& tags = parts_.recorder.tags();
  info.amounts.live = report::Tags::of(tags.by_tag(), tag);
  info.of_library = report::Tags::of(tags.by_library(), tag);
  if (const TagOptions* const options = parts_.tags.find(tag)) info.options = *options;
  for (const ArenaId id : residency_.with_tag(tag)) {
    const arena::ArenaEntry::Amounts amounts = parts_.arenas.find(id)->amounts();
    info.amounts.held += amounts.held;
    info.amounts.suspended += amounts.suspended;
    const std::shared_ptr<HostCopy> copy = parts_.host_copies.find(id);
    if (copy != nullptr) info.host_bytes += copy->held();
    const Residence residence = parts_.arenas.find(id)->residence;
    if (info.state != TagState::live || residence == Residence::resident) continue;
    const bool has_contents = copy != nullptr && !copy->pieces.empty();
    if (residence != Residence::suspended)
      info.state = TagState::changing;
    else
      info.state = has_contents ? TagState::suspended : TagState::discarded;
  }
  return info;
}

// --- the arenas of a call

Result<Suspension::Ids> Suspension::arenas_of(std::uint32_t tag) const {
  if (tag != 0) {
    Ids ids = residency_.with_tag(tag);
    if (!ids.empty() || parts_.tags.find(tag) != nullptr) return ids;
    return Error{ErrorCode::invalid_argument,
                 message_of("{} is not suspendable", report::described_tag(tag))};
  }
  Ids ids;
  for (const std::uint32_t each : parts_.tags.all())
    for (const ArenaId id : residency_.with_tag(each)) ids.push_back(id);
  return ids;
}

// Those that are `now`. suspended: another call is changing one of all.
Result<Suspension::Ids> Suspension::select(const Ids& all, Residence now) const {
  Ids ids;
  for (const ArenaId id : all) {
    const arena::ArenaEntry& in = *parts_.arenas.find(id);
    if (in.keeps_stretches())
      return Error{
          ErrorCode::suspended,
          message_of("another thread is suspending or resuming arena {} of {}",
                     static_cast<std::uint64_t>(id), report::described_tag(in.options.tag))};
    if (in.residence == now) ids.push_back(id);
  }
  return ids;
}

Result<void> Suspension::suspend(std::uint32_t tag, const SuspendHow& how) {
  return suspend_found([&]() VPMM_REQUIRES(pool_lock) { return arenas_of(tag); }, how);
}

Result<void> Suspension::suspend(ArenaId arena, const SuspendHow& how) {
  return suspend_found(
      [&]() VPMM_REQUIRES(pool_lock) -> Result<Ids> {
        VPMM_TRY(residency_.may_change(arena));
        return Ids{arena};
      },
      how);
}

Result<void> Suspension::resume(std::uint32_t tag, const ResumeHow& how) {
  return resume_found([&]() VPMM_REQUIRES(pool_lock) { return arenas_of(tag); }, how);
}

Result<void> Suspension::resume(ArenaId arena, const ResumeHow& how) {
  return resume_found(
      [&]() VPMM_REQUIRES(pool_lock) -> Result<Ids> {
        VPMM_TRY(residency_.may_change(arena));
        return Ids{arena};
      },
      how);
}

// --- suspending

template <typename Find>
Result<void> Suspension::suspend_found(Find&& find, const SuspendHow& how) {
  if (device_.pool == nullptr) return arena::no_arenas();
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  Ids ids;
  Set<std::uint32_t> tags;
  {
    Visit visit(entrance_);
    VPMM_TRY(visit.status());
    parts_.allocations.drain(visit.lock());
    VPMM_TRY_ASSIGN(const Ids all, find());
    VPMM_TRY_ASSIGN(ids, select(all, Residence::resident));
    if (ids.empty()) return {};
    VPMM_TRY(may_suspend(ids));
    for (const ArenaId id : ids) tags.insert(parts_.arenas.find(id)->options.tag);
    for (const ArenaId id : ids) residency_.prepare_change(id);
    for (const ArenaId id : ids) residency_.begin_change(id, Residence::suspending);
  }
  Result<void> done;
  const auto call_off = [&] {
    const Vector<std::uint64_t> told = take_told(tags);
    call_after_map(tags, &told);
  };
  try {
    ScopeExit undo([&] {
      const PoolLock lock(parts_.mutex);
      for (const ArenaId id : ids) residency_.end_change(id, Residence::resident, 0);
    });
    done = call_before_unmap(tags);
    if (done) {
      Visit visit(entrance_);
      done = visit.status();
      if (done) done = suspend_all(ids, how, visit.lock());
      if (done) undo.dismiss();
    }
  } catch (...) {  // a hook of C++ may throw
    call_off();
    throw;
  }
  if (!done) call_off();
  return done;
}

bool Suspension::is_all_back(std::uint32_t tag) const {
  const Ids ids = residency_.with_tag(tag);
  return std::all_of(ids.begin(), ids.end(), [this](ArenaId id) VPMM_REQUIRES(pool_lock) {
    return parts_.arenas.find(id)->residence == Residence::resident;
  });
}

// Refuses memory that other processes or a capture may use.
Result<void> Suspension::may_suspend(const Ids& ids) {
  VPMM_TRY(device_.primary.noted(parts_.peers.find_contexts()));
  if (!parts_.prover.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  for (const ArenaId id : ids)
    for (const Region* const region : residency_.regions_of(id, false))
      if (const std::string holder = parts_.shares.holder_in(region->range); !holder.empty())
        return Error{
            ErrorCode::not_shared,
            message_of("{} cannot be suspended: {}",
                       report::described_tag(parts_.arenas.find(id)->options.tag), holder)};
  return {};
}

Result<void> Suspension::wait_for_uses(const Ids& ids, const SuspendHow& how, MutexLock& lock) {
  if (how.after) {
    // A wait for a capturing stream would end its capture.
    VPMM_TRY_ASSIGN(const pool::Caller caller,
                    device_.primary.noted(parts_.captures.identify(*how.after, nullptr)));
    if (caller.standing != pool::Standing::ordinary)
      return Error{ErrorCode::capture_active, "the stream is being captured"};
    driver::CuResult waited{};
    {
      const Unlocked unlocked(lock);
      const driver::RelaxedCaptureScope relaxed(device_.driver);
      waited = device_.driver.stream_synchronize(*how.after);
    }
    VPMM_TRY(device_.primary.noted(driver::checked(Call::stream_synchronize, waited)));
    VPMM_TRY(parts_.prover.learn(device_.timelines.count()));
    const bool are_quiet =
        std::all_of(ids.begin(), ids.end(),
                    [&](ArenaId id) VPMM_REQUIRES(pool_lock) { return residency_.is_quiet(id); });
    if (are_quiet) return {};
  }
  if (!parts_.prover.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  VPMM_TRY(parts_.prover.wait_for_everything(lock));
  return {};
}

Result<void> Suspension::suspend_all(const Ids& ids, const SuspendHow& how, MutexLock& lock) {
  contents_.drop_dead();
  VPMM_TRY(wait_for_uses(ids, how, lock));
  // Old mappings of chunks that moved would keep their memory from the driver.
  if (how.to_driver) VPMM_TRY(device_.primary.noted(device_.pool->sweep_all(lock)));
  VPMM_TRY(contents_.copy_out(ids, how, lock));
  Result<void> done;
  Vector<Bytes> bytes(ids.size(), 0);
  {
    Vector<Region*> regions;
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (Region* const region : residency_.regions_of(ids[i], false)) {
        regions.push_back(region);
        bytes[i] += region->range.size;
      }
    const pool::Suspender::Fate fate = how.to_driver ? pool::Suspender::Fate::goes_to_driver
                                                     : pool::Suspender::Fate::stays_in_pool;
    for (const ArenaId id : ids) residency_.observe_leave(id);
    done = device_.primary.noted(device_.pool->suspender().suspend(lock, regions, fate));
  }
  if (!done) {
    // An arena with a suspended stretch is suspended as a whole, and keeps its copy.
    for (const ArenaId id : ids) {
      if (!residency_.regions_of(id, true).empty()) continue;
      residency_.observe_return(id);
      contents_.drop(id);
    }
    return done;
  }
  for (std::size_t i = 0; i < ids.size(); ++i)
    residency_.end_change(ids[i], Residence::suspended, bytes[i]);
  return {};
}

Result<void> Suspension::prepare(std::uint32_t tag) {
  if (device_.pool == nullptr) return arena::no_arenas();
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  contents_.drop_dead();
  VPMM_TRY_ASSIGN(const Ids all, arenas_of(tag));
  VPMM_TRY_ASSIGN(const Ids ids, select(all, Residence::resident));
  return contents_.provide(ids, visit.lock());
}

// --- resuming

// One try. `whole`, `tags`: out, for the report of a shortage, and hooks.
template <typename Find>
Result<void> Suspension::resume_once(Find&& find, const ResumeHow& how, pool::Request& whole,
                                     Set<std::uint32_t>& tags) {
  Visit visit(entrance_);
  VPMM_TRY(visit.status());
  parts_.allocations.drain(visit.lock());
  contents_.drop_dead();
  VPMM_TRY_ASSIGN(const Ids all, find());
  VPMM_TRY_ASSIGN(const Ids ids, select(all, Residence::suspended));
  if (ids.empty()) return {};
  if (!parts_.prover.may_record_context_event())
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  for (const ArenaId id : ids) {
    tags.insert(parts_.arenas.find(id)->options.tag);
    whole.bytes += parts_.arenas.find(id)->amounts().suspended;
  }
  for (const ArenaId id : ids) residency_.begin_change(id, Residence::resuming);
  ScopeExit undo([&]() VPMM_REQUIRES(pool_lock) {
    for (const ArenaId id : ids) residency_.end_change(id, Residence::suspended, 0);
  });
  Result<void> done = resume_all(ids, how, visit.lock());
  if (done) undo.dismiss();
  return done;
}

template <typename Find>
Result<void> Suspension::resume_found(Find&& find, const ResumeHow& how) {
  if (device_.pool == nullptr) return arena::no_arenas();
  const HostPromise promise;
  if (!promise.is_kept()) return no_host_memory();
  for (Limits::Asked asked;;) {
    pool::Request whole;
    Set<std::uint32_t> tags;
    Result<void> done = resume_once(find, how, whole, tags);
    if (done) {
      static_cast<void>(take_told(tags));
      call_after_map(tags, nullptr);
      tell_of_released();
      return done;
    }
    // An error without a size is the driver's, of a try that has not begun.
    if (done.error().code != ErrorCode::out_of_memory || whole.bytes == 0) return done;
    if (limits_.find_memory(whole, asked)) continue;
    Error error = std::move(done.error());
    if (tags.size() == 1) whole.tag = *tags.begin();  // no request of the tag before: no limit
    shortages_.explain(whole, error);
    return error;
  }
}

// A suspended stretch.
struct Suspension::Sleeper {
  Region* region = nullptr;
  pool::Chunks chunks{};
};

// Large ones first: the others fit what is left.
Vector<Suspension::Sleeper> Suspension::sleepers_of(const Ids& ids) {
  Vector<Sleeper> sleepers;
  for (const ArenaId id : ids) {
    const bool one_chunk = parts_.arenas.find(id)->options.one_chunk;
    for (Region* const region : residency_.regions_of(id, true))
      sleepers.push_back({region, one_chunk ? pool::Chunks::one : pool::Chunks::exact});
  }
  std::stable_sort(sleepers.begin(), sleepers.end(), [](const Sleeper& a, const Sleeper& b) {
    return a.region->range.size > b.region->range.size;
  });
  return sleepers;
}

// Allocates memory for all of them, or none.
Result<Suspension::Refills> Suspension::memory_for(const Vector<Sleeper>& sleepers,
                                                   MutexLock& lock) {
  small::Ledger& ledger = device_.small->ledger();
  Refills refills;
  refills.reserve(sleepers.size());
  Result<void> done;
  for (const Sleeper& each : sleepers) {
    const Bytes size = each.region->range.size;
    const pool::PageRequest request{size, size, device_.pool->memory().page_alignment(), false,
                                    each.chunks};
    const Result<pool::Placed> placed =
        parts_.router.slow_path().place({lock, request, pool::Caller{}});
    if (!placed) {
      done = device_.primary.noted(Result<void>(placed.error()));
      break;
    }
    refills.push_back(
        {each.region, device_.pool->memory().index.allocated_around(placed.value().begin)});
    ledger.stretch_begins(*refills.back().memory);
  }
  for (const pool::Suspender::Refill& refill : refills) ledger.stretch_ends(*refill.memory);
  if (done) return refills;
  give_back(refills);
  return std::move(done.error());
}

// Frees memory that no stretch has taken.
void Suspension::give_back(const Refills& refills) {
  for (const pool::Suspender::Refill& refill : refills)
    if (refill.suspended->is_suspended && refill.memory != nullptr)
      device_.pool->deallocate(refill.memory, {});
}

Result<void> Suspension::resume_all(const Ids& ids, const ResumeHow& how, MutexLock& lock) {
  VPMM_TRY(device_.primary.noted(parts_.prover.settle(lock)));
  pool::Suspender& suspender = device_.pool->suspender();
  const Vector<Sleeper> sleepers = sleepers_of(ids);
  Vector<Bytes> bytes(ids.size(), 0);
  for (std::size_t i = 0; i < ids.size(); ++i)
    for (const Region* const region : residency_.regions_of(ids[i], true))
      bytes[i] += region->range.size;
  VPMM_TRY_ASSIGN(Refills refills, memory_for(sleepers, lock));
  Result<void> done = device_.primary.noted(suspender.resume(lock, refills));
  if (!done) {
    give_back(refills);
    return done;
  }
  for (const ArenaId id : ids) residency_.note_suspended(id);
  for (const ArenaId id : ids) residency_.observe_return(id);
  if (done = contents_.copy_back(ids, how, lock); !done) {
    Vector<Region*> regions;
    for (const Sleeper& each : sleepers) regions.push_back(each.region);
    for (const ArenaId id : ids) residency_.observe_leave(id);
    static_cast<void>(suspender.suspend(lock, regions, pool::Suspender::Fate::goes_to_driver));
    return done;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    residency_.end_change(ids[i], Residence::resident, bytes[i]);
    if (!how.copies_back || !contents_.keeps(ids[i])) contents_.drop(ids[i]);
  }
  parts_.footprint.note_peaks();
  return {};
}

// --- what is known of suspended memory

Result<bool> Suspension::is_suspended(DevicePtr ptr) const {
  const PoolLock lock(parts_.mutex);
  VPMM_TRY(parts_.allocations.query(ptr));
  return !parts_.arenas.is_resident(ptr);
}

Result<std::byte*> Suspension::host_copy(AddressRange part) const {
  const PoolLock lock(parts_.mutex);
  VPMM_TRY(parts_.allocations.query(part.begin));
  const arena::ArenaEntry* const in = parts_.arenas.around(part.begin);
  const bool has_copy = in != nullptr && !in->options.is_external && !in->keeps_stretches();
  if (std::byte* const host = has_copy ? parts_.host_copies.find(part) : nullptr) return host;
  return Error{ErrorCode::invalid_pointer, message_of("{} bytes at {:#x} have no copy on the host",
                                                      part.size, to_integer(part.begin))};
}

// --- hooks

Result<void> Suspension::call_before_unmap(const Set<std::uint32_t>& tags) {
  std::uint32_t refusing = 0;
  for (const std::uint32_t tag : tags)
    hooks_.visit([&](std::uint64_t number, const SuspendHooks& hooks) {
      if (refusing != 0 || hooks.tag != tag || is_told(tag, number)) return refusing != 0;
      if (hooks.before_unmap && !hooks.before_unmap(device_.primary.device(), tag))
        refusing = tag;
      else
        note_told(tag, number);
      return refusing != 0;
    });
  if (refusing == 0) return {};
  return Error{ErrorCode::invalid_argument,
               message_of("a hook of {} refuses the suspend", report::described_tag(refusing))};
}

bool Suspension::is_told(std::uint32_t tag, std::uint64_t number) const {
  const PoolLock lock(parts_.mutex);
  return told_.contains({tag, number});
}

void Suspension::note_told(std::uint32_t tag, std::uint64_t number) {
  const PoolLock lock(parts_.mutex);
  told_.emplace(tag, number);
}

Vector<std::uint64_t> Suspension::take_told(Set<std::uint32_t>& tags) {
  const PoolLock lock(parts_.mutex);
  Vector<std::uint64_t> numbers;
  for (auto tag = tags.begin(); tag != tags.end();) {
    if (!is_all_back(*tag)) {
      tag = tags.erase(tag);
      continue;
    }
    const auto first = told_.lower_bound({*tag, 0});
    auto last = first;
    for (; last != told_.end() && last->first == *tag; ++last) numbers.push_back(last->second);
    told_.erase(first, last);
    ++tag;
  }
  return numbers;
}

// Tells hooks of tags whose sleeping memory was released, perhaps with all their arenas.
void Suspension::tell_of_released() {
  Set<std::uint32_t> tags;
  {
    const PoolLock lock(parts_.mutex);
    for (const auto& [tag, number] : told_) tags.insert(tag);
  }
  const Vector<std::uint64_t> told = take_told(tags);
  call_after_map(tags, &told);
}

// `wanted`: numbers of the hooks to call; null: all of the tags.
void Suspension::call_after_map(const Set<std::uint32_t>& tags,
                                const Vector<std::uint64_t>* wanted) {
  Vector<std::uint64_t> numbers;
  hooks_.visit([&](std::uint64_t number, const SuspendHooks& hooks) {
    const bool is_wanted =
        wanted == nullptr || std::find(wanted->begin(), wanted->end(), number) != wanted->end();
    if (is_wanted && tags.contains(hooks.tag)) numbers.push_back(number);
    return false;
  });
  std::exception_ptr failure;  // the first; the others are told all the same
  for (auto number = numbers.rbegin(); number != numbers.rend(); ++number) {
    try {
      hooks_.visit([&](std::uint64_t each, const SuspendHooks& hooks) {
        if (each != *number) return false;
        if (hooks.after_map) hooks.after_map(device_.primary.device(), hooks.tag);
        return true;
      });
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace vpmm::context
