// SPDX-License-Identifier: Apache-2.0
// property tests: guarded allocations, kernels that leave them, and the end of their pages.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "property/world.hpp"

namespace vpmm::property {

using driver::CuResult;
using driver::sim::MemoryAccess;

namespace {

constexpr std::size_t kMostFreedKnown = 64;
constexpr std::size_t kMostPlanted = 40;  // the simulator describes a hundred hazards
constexpr std::uint8_t kForeign = 0x5A;   // no filling
// As in guard/guarded.cpp: bytes that are compared at most, and unmapped addresses behind.
constexpr Bytes kMarginBefore = 256;
constexpr Bytes kMarginAfter = 4 * kKiB;
constexpr Bytes kLargestGap = 256 * kMiB;

}  // namespace

// Requests that took addresses unseen: failed ones, and those whose memory was freed in their call.
std::uint64_t World::unseen(std::size_t number) const {
  const observe::Statistics now = devices_[number].pool->reports().statistics();
  return now.unguarded_allocations + now.failed_allocations + now.guarded_allocations -
         devices_[number].guarding.seen;
}

bool World::is_mapped(DevicePtr ptr) {
  driver::DeviceOrdinal device = 0;
  return sim_.pointer_get_device(ptr, device) == CuResult::success;
}

// It ends in the last of them, and begins in the first unless its alignment leaves more.
AddressRange World::own_pages(AddressRange guarded) const {
  const Bytes page = scene_.sim.granularity;
  const DevicePtr end = align_up(guarded.end(), page);
  const Bytes size = round_up(guarded.size, page);
  return {end - size, size};
}

// --- addresses

// The pool tells which allocations are guarded; each ends at unmapped addresses.
void World::note_guarded(Allocation& made) {
  context::Context& pool = *devices_[made.device].pool;
  const auto told = pool.reports().explain(made.ptr);
  if (!expect(told, "explain")) return;
  const std::string is_live =
      fmt::format("{:#x} is inside a live allocation, at byte 0", to_integer(made.ptr));
  if (told.value().find(is_live) == std::string::npos) return;
  made.is_guarded = true;
  ++figures_.guarded;
  const AddressRange pages = own_pages({made.ptr, made.bytes});
  if (!is_mapped(pages.begin) || !is_mapped(pages.end() - 1))
    fail(fmt::format("guard: {} bytes at {:#x} are not mapped", made.bytes, to_integer(made.ptr)));
  if (is_mapped(pages.begin - 1) || is_mapped(pages.end()))
    fail(fmt::format("guard: beside the pages of {} bytes at {:#x} memory is mapped", made.bytes,
                     to_integer(made.ptr)));
  devices_[made.device].guarding.made.push_back(
      {pages.begin, pages.size + std::min(pages.size, kLargestGap)});
}

// Addresses of the first round ascend: none is used again before all have been used. Later, live
// memory is in the way of some.
void World::look_at_made(std::size_t number) {
  constexpr Bytes kLargestSlot = 3 * kGiB;  // requests of 2 GiB at most, with gap and alignment
  Guarding& guarding = devices_[number].guarding;
  if (guarding.made.empty()) return;
  if (!guarding.addresses) guarding.addresses = AddressRange{guarding.made.front().begin, 0};
  guarding.seen += guarding.made.size();
  const Bytes va_size = scene_.config.va_size;
  const std::uint64_t passing = unseen(number) - std::exchange(guarding.unseen, unseen(number));
  guarding.is_first_round &=
      passing == 0 || (!is_null(guarding.next) && passing < va_size / kLargestSlot);
  for (const AddressRange& slot : guarding.made) {
    const DevicePtr begin = std::min(guarding.addresses->begin, slot.begin);
    const DevicePtr end = std::max(guarding.addresses->end(), slot.end());
    guarding.addresses = AddressRange{begin, end - begin};
    const bool is_again = slot.begin < guarding.next;
    const Bytes passed = guarding.next - begin + scene_.sim.granularity;
    if (is_again && guarding.is_first_round && passing == 0 && passed + slot.size <= va_size)
      fail(fmt::format("guard: {:#x} is in use again, and {} bytes of addresses never were",
                       to_integer(slot.begin), va_size - passed));
    guarding.is_first_round &= !is_again;
    guarding.next = slot.end();
    std::erase_if(guarding.freed,
                  [&](const Guarding::Freed& each) { return each.pages.overlaps(slot); });
  }
  guarding.made.clear();
}

// --- overruns

void World::operator()(const Overrun& o) {
  Allocation* const allocation = pick(o.allocation);
  if (allocation == nullptr || !allocation->is_guarded) return;
  const Stream* const stream = work_stream(*allocation);
  if (stream == nullptr) return;
  const AddressRange range{allocation->ptr, allocation->bytes};
  const AddressRange pages = own_pages(range);
  make_current(allocation->device);
  if (o.place % 4 >= 2) {
    if (planted_.size() >= kMostPlanted) return;
    const DevicePtr at = o.place % 4 == 2 ? pages.end() : pages.begin - 1;
    say("/* a kernel writes to {:#x}, {} the pages of p[{}]: it fails */", to_integer(at),
        o.place % 4 == 2 ? "behind" : "before", allocation->number);
    const std::uint64_t hazards = sim_.hazard_count();
    launch({"overrun", 2000, {{{at, 1}, MemoryAccess::Kind::write}}, {}}, stream->handle);
    if (sim_.hazard_count() != hazards + 1)
      fail(fmt::format("guard: a write to {:#x}, beside the pages of {} bytes at {:#x}, is served",
                       to_integer(at), range.size, to_integer(range.begin)));
    planted_.insert(hazards);
    return;
  }
  const Bytes before = std::min(kMarginBefore, range.begin - pages.begin);
  const Bytes after = std::min(kMarginAfter, pages.end() - range.end());
  const bool is_behind = o.place % 4 == 0;
  if ((is_behind ? after : before) == 0) return;
  const DevicePtr at =
      is_behind ? range.end() + o.offset % after : range.begin - 1 - o.offset % before;
  acted_ = true;
  say("stage_write({}, (char*)p[{}] + {}, 1u, {}, s[{}]);", allocation->device, allocation->number,
      static_cast<std::int64_t>(to_integer(at) - to_integer(range.begin)), kForeign, stream->key);
  expect(sim_.memset_d8_async(at, kForeign, 1, stream->handle), "fill a byte of a margin");
  if (allocation->damage != Damage::untold) allocation->damage = Damage::done;
}

void World::check_hazards() {
  if (sim_.hazard_count() == planted_.size()) return;
  const std::vector<driver::sim::Hazard> hazards = sim_.hazards();
  for (std::size_t i = 0; i < hazards.size(); ++i)
    if (!planted_.contains(i)) return fail("hazard: " + hazards[i].describe());
}

// A margin that was overwritten is told once its pages are unmapped, and no other.
void World::check_damage() {
  for (const Device& each : devices_) {
    if (each.pool == nullptr) continue;
    const std::uint64_t told = each.pool->reports().statistics().damaged_allocations;
    if (told > each.guarding.most_damaged)
      fail(fmt::format("guard: {} allocations are told to be overrun, and {} were", told,
                       each.guarding.most_damaged));
  }
}

// --- frees

void World::note_freed_guarded(const Allocation& allocation, Guarding::When when) {
  Guarding& guarding = devices_[allocation.device].guarding;
  const bool is_damaged = allocation.damage == Damage::done;
  guarding.least_damaged += is_damaged && when != Guarding::When::captured ? 1 : 0;
  guarding.most_damaged += is_damaged ? 1 : 0;
  const AddressRange range{allocation.ptr, allocation.bytes};
  guarding.freed.push_back(
      {range, own_pages(range), allocation.damage, when, unseen(allocation.device)});
  if (guarding.freed.size() > kMostFreedKnown) guarding.freed.pop_front();
}

// Text about a freed allocation that the pool still knows.
std::string World::explained(std::size_t number, AddressRange freed) {
  const auto told = devices_[number].pool->reports().explain(freed.begin);
  if (!expect(told, "explain")) return "";
  for (const std::string& words :
       {std::string("is inside an allocation that was freed, at byte 0"),
        fmt::format("{} bytes at {:#x}, allocated", freed.size, to_integer(freed.begin))})
    if (told.value().find(words) == std::string::npos)
      fail(fmt::format("guard: the explanation of {} freed bytes at {:#x} is: {}", freed.size,
                       to_integer(freed.begin), told.value()));
  return told.value();
}

void World::look_at_guarded() {
  if (!guards() || is_broken_) return;
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    look_at_made(number);
    for (Guarding::Freed& each : devices_[number].guarding.freed)
      if (std::exchange(each.is_new, false) && each.when == Guarding::When::now &&
          each.unseen == unseen(number))
        explained(number, each.range);
  }
}

void World::forget_margins(std::size_t number) {
  Guarding& guarding = devices_[number].guarding;
  guarding.least_damaged = devices_[number].pool->reports().statistics().damaged_allocations;
  for (Guarding::Freed& each : guarding.freed) each.damage = Damage::untold;
  for (Allocation& each : allocations_)
    if (each.device == number) each.damage = Damage::untold;
}

// After a wait for everything.
void World::check_unmapped(std::size_t number) {
  const Guarding& guarding = devices_[number].guarding;
  for (const Guarding::Freed& each : guarding.freed) {
    if (each.when == Guarding::When::captured) continue;
    if (is_mapped(each.pages.begin) || is_mapped(each.pages.end() - 1))
      fail(fmt::format(
          "guard: {} bytes at {:#x} were freed, their work is done, and they are mapped",
          each.range.size, to_integer(each.range.begin)));
    // Others may have taken these addresses.
    if (each.unseen != unseen(number)) continue;
    const std::string text = explained(number, each.range);
    const bool is_told = text.find("memory beside it was overwritten") != std::string::npos;
    if (each.damage != Damage::untold && is_told != (each.damage == Damage::done))
      fail("guard: the explanation of damage is: " + text);
  }
  const std::uint64_t told = devices_[number].pool->reports().statistics().damaged_allocations;
  if (told < guarding.least_damaged)
    fail(fmt::format("guard: {} allocations are told to be overrun, and {} were", told,
                     guarding.least_damaged));
}

// --- refusals

// Guarded memory is for one process and one GPU. False: the operation is no such request.
bool World::refuses_guarded(const Operation& operation) {
  if (!guards() || is_broken_) return false;
  const auto require = [this](const auto& result, const char* what) {
    if (result || result.error().code != ErrorCode::unsupported)
      fail(fmt::format("guard: {}: {}", what, result ? "served" : result.error().message));
    return true;
  };
  if (const auto* const share = std::get_if<Share>(&operation)) {
    const Allocation* const allocation = pick(share->allocation);
    if (allocation == nullptr || !allocation->is_guarded) return false;
    context::Sharing& sharing = devices_[allocation->device].pool->sharing();
    say("/* guarded memory is not shared */");
    return require(call(Bears::nothing,
                        [&] {
                          return sharing.share({allocation->ptr, allocation->bytes});
                        }),
                   "share");
  }
  if (const auto* const peer = std::get_if<SetPeerAccess>(&operation)) {
    const std::size_t other = peer->peer % devices_.size();
    if (share_gpu(device(peer->device), devices_[other]) || is_capturing_anywhere()) return false;
    context::Sharing& sharing = device(peer->device).pool->sharing();
    say("/* guarded memory is for one GPU */");
    return require(
        call(Bears::nothing,
             [&] {
               return sharing.set_peer_access(static_cast<driver::DeviceOrdinal>(gpu_of(other)));
             }),
        "set_peer_access");
  }
  return false;
}

}  // namespace vpmm::property
