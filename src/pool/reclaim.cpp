// pool: unmapping zombies, giving idle chunks back, getting address space, and the end.
#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "base/check.hpp"
#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "observe/log.hpp"
#include "pool/in_flight.hpp"
#include "pool/pool.hpp"

namespace vpmm::pool {

using region::Region;

// --- zombies --------------------------------------------------------------------------------------------------------

namespace {

// The first mappings of `zombie`, at most `budget` of them; several are unmapped in one call.
AddressRange front_of(const vm::ChunkTable& chunks, const Region& zombie, std::uint64_t& budget) {
  AddressRange part{zombie.range.begin, 0};
  chunks.for_each_inside(zombie.range, [&](const vm::Mapping& mapping) {
    if (budget == 0) return false;
    part.size += mapping.chunk->size;
    --budget;
    return true;
  });
  return part;
}

}  // namespace

// Note [Zombies outlive their mapping's last use]
// Work queued before the chunks moved may still run through the old address, so that address is unmapped only when the
// stamp it was freed with is complete. A failed unmap leaves the zombie a zombie: it is never assumed gone.
Result<void> Pool::sweep(MutexLock& lock, std::uint64_t max_mappings) {
  VPMM_TRY(retry_orphans(lock));
  wait_for_grant(lock);
  Vector<Region*> complete;
  index_.for_each_zombie([&](Region* zombie) {
    if (zombie->stamp.is_complete()) complete.push_back(zombie);
    return complete.size() < max_mappings;
  });
  Vector<Region*> flying;
  Vector<Result<void>> results;
  flying.reserve(complete.size());
  results.reserve(complete.size());
  for (Region* zombie : complete) {
    if (max_mappings == 0) break;
    flying.push_back(index_.detach(zombie, front_of(chunks_, *zombie, max_mappings)));
  }
  if (flying.empty()) return {};
  {
    const InFlight away(*this, lock, InFlight::Work::unmaps);
    for (const Region* zombie : flying) results.push_back(mapper_.unmap(zombie->range));
  }
  Result<void> outcome;
  for (std::size_t i = 0; i < flying.size(); ++i) {
    if (results[i]) {
      bury(flying[i]);
    } else {
      stuck_[flying[i]->range.begin] = flying[i]->range.size;
      index_.attach_zombie(flying[i], {});
      if (results[i].error().code == ErrorCode::poisoned) outcome = std::move(results[i].error());
    }
  }
  return outcome;
}

// The zombie is unmapped: its address range is a hole. A chunk that lived on through it alone is gone with it, or is an
// orphan if its handle is still held.
void Pool::bury(Region* zombie) {
  for (const vm::Mapping& mapping : chunks_.inside(zombie->range))
    if (mapping.chunk->mappings == 1 && mapping.chunk->handle_held) orphans_.push_back(mapping.chunk);
  stuck_.erase(stuck_.lower_bound(zombie->range.begin), stuck_.lower_bound(zombie->range.end()));
  chunks_.unmap(zombie->range);
  index_.attach_hole(zombie);
}

Result<void> Pool::retry_orphans(MutexLock& lock) {
  if (orphans_.empty()) return {};
  Vector<vm::Chunk*> orphans;
  orphans.swap(orphans_);
  Vector<bool> is_released;
  is_released.reserve(orphans.size());
  {
    const InFlight away(*this, lock);
    for (const vm::Chunk* orphan : orphans) is_released.push_back(mapper_.release(orphan->handle).ok());
  }
  for (std::size_t i = 0; i < orphans.size(); ++i) {
    if (!is_released[i]) {
      orphans_.push_back(orphans[i]);
      continue;
    }
    chunks_.handle_released(orphans[i]);
  }
  return {};
}

// --- giving back ----------------------------------------------------------------------------------------------------

// Oldest idle memory first; only complete memory, so nobody waits.
Result<Bytes> Pool::trim(MutexLock& lock, Bytes bytes_to_keep) {
  reunite();
  VPMM_TRY(sweep(lock, chunks_.mapping_count()));
  VPMM_TRY(retry_orphans(lock));  // what only now has no mapping any more
  want_all_proof();
  Bytes released = 0;
  for (;;) {
    wait_for_grant(lock);
    const Bytes held = chunks_.chunk_bytes() + other_bytes_;
    if (held <= bytes_to_keep) return released;
    Region* from = nullptr;
    AddressRange idle;
    index_.for_each_free_by_age([&](Region* free) {
      idle = releasable(*free, held - bytes_to_keep);
      if (!idle.empty()) from = free;
      return from == nullptr;
    });
    if (from == nullptr) return released;
    VPMM_TRY_ASSIGN(const Bytes freed, release_idle(lock, idle, from));
    released += freed;
  }
}

// A stretch of whole chunks in a complete free region that have no other mapping, about `wanted` bytes of it.
AddressRange Pool::releasable(const Region& free, Bytes wanted) const {
  AddressRange idle;
  if (!free.stamp.is_complete()) return idle;
  chunks_.for_each_inside(free.range, [&](const vm::Mapping& mapping) {
    if (idle.size >= wanted) return false;
    if (mapping.chunk->mappings > 1) return idle.empty();
    if (idle.empty()) idle.begin = mapping.at;
    idle.size += mapping.chunk->size;
    return true;
  });
  return idle;
}

Result<Bytes> Pool::release_idle(MutexLock& lock, AddressRange idle, Region* free) {
  const Vector<vm::Mapping> mappings = chunks_.inside(idle);
  Vector<bool> is_released(mappings.size(), false);
  Region* flying = index_.detach(free, idle);
  Result<void> unmapped;
  {
    const InFlight away(*this, lock, InFlight::Work::unmaps);
    unmapped = mapper_.unmap(idle);
    for (std::size_t i = 0; unmapped && i < mappings.size(); ++i)
      is_released[i] = mapper_.release(mappings[i].chunk->handle).ok();
  }
  if (!unmapped) {
    index_.attach_free(flying, {}, flying->age);
    return std::move(unmapped.error());
  }
  Bytes released = 0;
  chunks_.unmap(idle);
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    if (!is_released[i]) {
      orphans_.push_back(mappings[i].chunk);
      continue;
    }
    released += mappings[i].chunk->size;
    ++counters_.chunks_released;
    chunks_.handle_released(mappings[i].chunk);
  }
  index_.attach_hole(flying);
  return released;
}

void Pool::want_all_proof() {
  timelines_.for_each([](time::Timeline& timeline) {
    if (timeline.provable < timeline.last) timeline.wanted = true;
  });
}

// --- address space and preallocation --------------------------------------------------------------------------------

// A request larger than a usual reservation gets one of its own size. When the address space is short, smaller
// reservations do.
Result<void> Pool::add_reservation(MutexLock& lock, Bytes at_least) {
  const Bytes least = round_up(at_least, page_size());
  Bytes size = std::max(round_up(config_.va_size, page_size()), least);
  // Pages begin at multiples of themselves from there on; the driver takes powers of two only.
  Bytes alignment = page_alignment() * (pages_stand_alone() ? 1 : kPagesInLine);
  const auto reserve = [&] {
    const Unlocked unlocked(lock);
    return mapper_.reserve(size, alignment);
  };
  Result<AddressRange> reserved = reserve();
  while (!reserved && reserved.error().code != ErrorCode::poisoned && (size > least || alignment > page_alignment())) {
    if (size > least)
      size = std::max(round_up(size / 2, page_size()), least);
    else
      alignment = page_alignment();
    reserved = reserve();
  }
  if (!reserved) return std::move(reserved.error());
  // The table of its pages is the one thing that is too large for the reserve of host memory.
  try {
    reservations_.push_back(reserved.value());
    index_.add_reservation(reserved.value());
  } catch (const std::bad_alloc&) {
    std::erase(reservations_, reserved.value());
    if (!mapper_.free_reservation(reserved.value()))
      observe::log(observe::LogLevel::warning, "the driver did not take {} reserved bytes back", reserved.value().size);
    return no_host_memory();
  }
  return {};
}

// Note [A pool tries its calls out]
// The first creation, mapping and access of a process take the driver half as long again as the next ones, and a
// program times its first allocation more often than the making of its pool. So one page comes and goes. It counts in
// no figure but the calls themselves, unless it could not be given back. What fails here fails again, and is reported,
// when memory is asked for; only a broken context is told at once.
Result<void> Pool::prepare(MutexLock& lock) {
  VPMM_TRY(add_reservation(lock, std::max<Bytes>(1, config_.pages) * page_size()));
  VPMM_TRY(ask_for_room(lock, page_size()));
  const observe::Statistics counted = counters_;
  Result<void> tried = preallocate(lock, page_size());
  if (tried)
    if (Result<Bytes> given_back = trim(lock, 0); !given_back) tried = std::move(given_back.error());
  if (chunks_.chunk_count() == 0) {
    counters_ = counted;
    reset_peaks();
  }
  if (!tried && tried.error().code == ErrorCode::poisoned) return tried;
  return {};
}

Result<void> Pool::preallocate(MutexLock& lock, Bytes bytes) {
  const Bytes wanted = round_up(bytes, page_size());
  if (wanted <= chunks_.chunk_bytes()) return {};
  const Bytes missing = wanted - chunks_.chunk_bytes();
  const auto too_much = [&](const std::string& why) {
    return Error{ErrorCode::out_of_memory, message_of("out of device memory: asked to map {} bytes in all, {} are "
                                                      "mapped; {}",
                                                      bytes, chunks_.chunk_bytes(), why)};
  };
  if (missing > growth_room()) return too_much(message_of("the limit is {}", *capacity_));
  if (missing > unasked_growth_) VPMM_TRY(ask_for_room(lock, missing));
  if (missing > unasked_growth_) return too_much("the GPU has less free");
  Region* hole = nullptr;
  while ((hole = index_.smallest_hole(missing, page_alignment())) == nullptr) VPMM_TRY(add_reservation(lock, missing));
  VPMM_TRY(fill_hole(lock, hole, {hole->range.begin, missing}, policy_->chunk_sizes(missing, chunks_.chunk_bytes())));
  peak_used_ = std::max(peak_used_, used_bytes() + missing);  // the program says that it will use as much
  return {};
}

// New chunks, which are free at once.
Result<void> Pool::fill_hole(MutexLock& lock, Region* hole, AddressRange part, Vector<Bytes> chunks) {
  Plan plan;
  plan.hole = hole;
  plan.mapped = part;
  plan.allocation = part.begin;
  plan.creates = std::move(chunks);
  const Result<DevicePtr> filled = carry_out(lock, plan, {}, Caller{});
  if (!filled) return filled.error();
  return {};
}

void Pool::release_everything() {
  Vector<AddressRange> mapped;
  Vector<vm::Chunk*> chunks;
  try {
    mapped.reserve(chunks_.mapping_count());
    chunks.reserve(chunks_.chunk_count());
  } catch (const std::bad_alloc&) {
    return;  // the system takes it back with the process
  }
  chunks_.for_each_mapping([&](const vm::Mapping& mapping) { mapped.push_back(mapping.range()); });
  for (const AddressRange& range : mapped) {
    if (mapper_.unmap(range)) chunks_.unmap(range);
  }
  chunks_.for_each_chunk([&](vm::Chunk& chunk) { chunks.push_back(&chunk); });
  for (vm::Chunk* chunk : chunks)
    if (chunk->handle_held && mapper_.release(chunk->handle)) chunks_.handle_released(chunk);
  if (chunks_.mapping_count() > 0) return;  // a reservation with mappings cannot be freed
  for (const AddressRange& reservation : reservations_)
    if (!mapper_.free_reservation(reservation)) return;
  reservations_.clear();
}

}  // namespace vpmm::pool
