// SPDX-License-Identifier: Apache-2.0
// property tests: memory that other processes hold, and another GPU that uses memory of the pool.
//
// The other process is a stream that the pool never hears of. It reads what it has leased, also
// after the exporter's free; the samples in there and the simulator's hazard checker tell whether
// anybody took the memory away from it. In scenes with an importer a process opens the memory, too.
#include <algorithm>

#include <fmt/format.h>

#include "driver/context_scope.hpp"
#include "property/other_process.hpp"
#include "property/world.hpp"

namespace vpmm::property {

using context::Holder;

namespace {

constexpr std::size_t kMostShared = 24;

// A quarter of `whole`, the rest of it, all of it, and so on: as often as not with the first or the
// last byte. Perhaps empty.
AddressRange part_of(AddressRange whole, std::uint64_t begin, std::uint64_t size) {
  const Bytes offset = whole.size * (begin % 4) / 4;
  return {whole.begin + offset, (whole.size - offset) * (size % 5) / 4};
}

AddressRange common(AddressRange a, AddressRange b) {
  if (!a.overlaps(b)) return {};
  const DevicePtr begin = std::max(a.begin, b.begin);
  return {begin, std::min(a.end(), b.end()) - begin};
}

}  // namespace

// --- what is shared

World::Shared* World::find_shared(const Allocation& allocation) {
  for (Shared& shared : shared_)
    if (shared.freed == Shared::Freed::no && shared.device == allocation.device &&
        shared.range.begin == allocation.ptr)
      return &shared;
  return nullptr;
}

// The oldest of the past is forgotten. False: there is none.
bool World::make_room_for_shared() {
  if (shared_.size() < kMostShared) return true;
  const auto past = std::find_if(shared_.begin(), shared_.end(), [](const Shared& shared) {
    return shared.freed != Shared::Freed::no && !shared.is_held();
  });
  if (past == shared_.end()) return false;
  shared_.erase(past);
  return true;
}

// A deferred free is carried out by some later call, and what is held keeps its address.
bool World::is_freed(const Shared& shared) const {
  if (shared.freed == Shared::Freed::deferred)
    return !devices_[shared.device].pool->query(shared.range.begin).ok();
  return shared.freed == Shared::Freed::yes;
}

void World::check_shared() {
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    if (devices_[number].pool == nullptr) continue;
    Bytes kept = 0;
    for (const Shared& shared : shared_) {
      if (shared.device != number || !is_kept(shared)) continue;
      kept += shared.range.size;
      if (devices_[number].pool->query(shared.range.begin).ok())
        fail("memory that was freed is live again while another process holds it");
    }
    const Bytes told = devices_[number].pool->reports().statistics().leased_bytes;
    if (told != kept)
      fail(fmt::format("leased: {} bytes are told, and {} are freed and held", told, kept));
  }
}

void World::operator()(const Share& o) {
  Allocation* const allocation = pick(o.allocation);
  if (allocation == nullptr || !make_room_for_shared()) return;
  Device& at = devices_[allocation->device];
  const auto info = at.pool->query(allocation->ptr);
  if (!info) return fail("query: " + info.error().message);
  const AddressRange whole{allocation->ptr, info.value().usable};
  const AddressRange part = part_of(whole, o.begin, o.size);
  say("/* another process gets a handle of {} bytes at {} of p[{}] */", part.size,
      part.begin - whole.begin, allocation->number);
  ipc::IpcHandle handle;
  const auto result = call(Bears::nothing, [&] {
    return scene_.has_importer ? export_part(at, part, handle) : at.pool->sharing().share(part);
  });
  // A fault may have said that nothing can be exported, which the pool remembers.
  const bool may_be_drivers =
      had_faults_ || !has_pool() || (has_drivers_pool() && allocation->bytes < page());
  if (!result && result.error().code == ErrorCode::unsupported && may_be_drivers) return;
  if (is_asleep(*allocation)) {
    if (result || result.error().code != ErrorCode::suspended)
      fail("suspended memory is shared: " + (result ? "done" : result.error().message));
    return;
  }
  if (!result && result.error().code == ErrorCode::invalid_argument && part.empty()) return;
  if (!result) return fail("share: " + result.error().message);
  if (part.empty() || result.value().allocation != whole.begin ||
      result.value().offset != part.begin - whole.begin)
    return fail("share tells another range");
  Shared* shared = find_shared(*allocation);
  if (shared == nullptr) {
    if (!share_ids_.insert(result.value().share).second)
      return fail("a number of the past was given again");
    shared = &shared_.emplace_back();
    shared->id = result.value().share;
    shared->number = allocation->number;
    shared->device = allocation->device;
    shared->range = whole;
    shared->bytes = allocation->bytes;
    shared->tag = allocation->tag;
  }
  if (shared->id != result.value().share) return fail("one allocation has two numbers");
  ++shared->handles;
  if (scene_.has_importer) shared->exports.push_back({handle});
  const Stream* const home = work_stream(*allocation);
  if (home != nullptr && !allocation->capture && allocation->content) {
    make_current(allocation->device);
    order(*home, other_process(at));
    shared->content = allocation->content;
  }
  allocation->is_shared = true;
}

// --- the other process

const World::Stream& World::other_process(Device& at) {
  if (!at.other_process) at.other_process = created_stream(driver::StreamFlags::non_blocking);
  return *at.other_process;
}

void World::read(const Shared& shared, AddressRange part) {
  const AddressRange whole{shared.range.begin, shared.bytes};
  const AddressRange used = common(whole, part);
  if (!shared.content || used.empty() || is_broken_) return;
  make_current(shared.device);
  read(whole, used, *shared.content, other_process(devices_[shared.device]).handle);
}

void World::wait_for_other_process(std::size_t number) {
  if (is_broken_) return;
  const driver::RelaxedCaptureScope relaxed(sim_);
  make_current(number);
  expect(sim_.stream_synchronize(other_process(devices_[number]).handle),
         "the other process waits");
}

// Whether an exporter refused what is not shared. One that does not answer refuses nothing.
bool World::says_not_shared(const Error& error) {
  return error.code == ErrorCode::not_shared &&
         error.message.find("does not answer") == std::string::npos;
}

// Whether a part is leased. A refusal that nothing explains is a failure.
bool World::is_leased(Shared& shared, AddressRange part, const std::optional<Error>& refusal) {
  const auto is = [&](ErrorCode code) { return refusal && refusal->code == code; };
  const bool may_be_over = shared.freed != Shared::Freed::no && shared.handles == 0;
  const bool is_asleep =
      shared.freed != Shared::Freed::yes && devices_[shared.device].asleep.contains(shared.tag);
  const bool is_over = refusal && says_not_shared(*refusal) && may_be_over;
  if (is_over || (is(ErrorCode::invalid_argument) && part.empty()) ||
      (is(ErrorCode::suspended) && is_asleep)) {
    if (is_over) shared.freed = Shared::Freed::yes;
    ++figures_.unleased;
    return false;
  }
  if (refusal) return fail("lease: " + refusal->message), false;
  if (may_be_over && shared.freed == Shared::Freed::yes)
    return fail("a lease of what was freed and has no handle"), false;
  if (is_asleep && shared.freed == Shared::Freed::no)
    return fail("suspended memory is leased"), false;
  // The pool has not carried the free out, and keeps the memory when it does.
  if (shared.freed == Shared::Freed::deferred) reference(shared.device).keep(shared.number);
  return true;
}

void World::operator()(const Lease& o) {
  if (shared_.empty()) return;
  Shared& shared = shared_[o.share % shared_.size()];
  Importer importer{part_of(shared.range, o.begin, o.size)};
  if (scene_.has_importer) {
    const Export& of = shared.exports[o.begin % shared.exports.size()];
    if (is_open_there(shared, of)) return;
    const auto imported = call(Bears::nothing, [&] { return import(shared, of, importer); });
    settle_exporter();
    if (!is_leased(shared, importer.part, error_of(imported))) return;
  } else {
    const AddressRange part = importer.part;
    say("/* another process maps {} bytes at {:#x} */", part.size, to_integer(part.begin));
    const auto result = call(Bears::nothing, [&] {
      return devices_[shared.device].pool->sharing().lease(
          shared.id, part.begin - shared.range.begin, part.size);
    });
    if (!is_leased(shared, part, error_of(result))) return;
    DevicePtr at = part.begin - result.value().offset;
    for (const auto& chunk : result.value().chunks) {
      if (shared.chunks.try_emplace(at, chunk.handle).first->second != chunk.handle)
        fail("a chunk of shared memory is another one than before");
      at = at + chunk.size;
    }
    if (part.empty() || at < part.end()) return fail("a lease without all of its chunks");
  }
  shared.importers.push_back(importer);
  flaw_.leased(*devices_[shared.device].pool, shared.id);
  read(shared, importer.part);
}

void World::operator()(const ReadLease& o) {
  if (shared_.empty()) return;
  const Shared& shared = shared_[o.share % shared_.size()];
  if (shared.importers.empty()) return;
  const Importer& importer = shared.importers[o.importer % shared.importers.size()];
  read(shared, importer.part);
  if (scene_.has_importer) read_there(shared, importer);
}

// An importer is done with the memory when it says so, whatever captures here.
void World::operator()(const EndLease& o) {
  if (shared_.empty()) return;
  Shared& shared = shared_[o.share % shared_.size()];
  say("/* another process ends its hold of {:#x} */", to_integer(shared.range.begin));
  acted_ = true;
  if (o.holder == Holder::importer && !shared.importers.empty()) {
    const auto importer = shared.importers.begin() +
                          static_cast<std::ptrdiff_t>(o.importer % shared.importers.size());
    read(shared, importer->part);
    wait_for_other_process(shared.device);
    if (scene_.has_importer)
      expect(OtherProcess::instance().close(importer->there), "the other process closes");
    shared.importers.erase(importer);
  } else if (o.holder == Holder::handle && shared.handles > 0 && !scene_.has_importer) {
    --shared.handles;
  }
  if (!scene_.has_importer)
    devices_[shared.device].pool->sharing().end_lease(shared.id, o.holder);
  else if (o.holder == Holder::handle)
    end_export(shared, o.importer);
  settle_exporter();
  if (!shared.is_held()) reference(shared.device).end_keeping(shared.number);
}

// Those of one in `one_in` allocations.
void World::end_leases(std::size_t one_in) {
  for (std::size_t i = 0; i < shared_.size(); i += one_in) {
    for (std::uint64_t number = 0; shared_[i].handles > 0 && failure_.empty(); ++number)
      (*this)(EndLease{i, number, Holder::handle});
    while (!shared_[i].importers.empty() && failure_.empty())
      (*this)(EndLease{i, 0, Holder::importer});
  }
}

// --- another GPU

// Whether another pool must be told of captures.
bool World::has_peers() const {
  return scene_.pools_share_gpu ||
         std::any_of(devices_.begin(), devices_.end(),
                     [](const Device& each) { return !each.peers.empty(); });
}

std::vector<std::size_t> World::pools_of(std::size_t number) const {
  std::vector<std::size_t> pools;
  for (std::size_t each = 0; each < devices_.size(); ++each)
    if (gpu_of(each) == gpu_of(number) || devices_[each].peers.contains(number))
      pools.push_back(each);
  return pools;
}

void World::operator()(const SetPeerAccess& o) {
  const std::size_t peer = o.peer % devices_.size();
  Device& at = device(o.device);
  if (is_capturing_anywhere()) return;  // the captures were not announced to that pool
  say("CALL(vpmm_set_peer_access(pool[{}], {}));", o.device % devices_.size(), gpu_of(peer));
  const auto result = call(Bears::nothing, [&] {
    return at.pool->sharing().set_peer_access(static_cast<driver::DeviceOrdinal>(gpu_of(peer)));
  });
  if (share_gpu(at, devices_[peer])) return static_cast<void>(expect(result, "set_peer_access"));
  if (!result && result.error().code == ErrorCode::unsupported &&
      (!has_pool() || has_drivers_pool()))
    return;
  if (expect(result, "set_peer_access")) at.peers.insert(peer);
}

void World::operator()(const ReadOnPeer& o) {
  Allocation* const allocation = pick(o.allocation);
  if (allocation == nullptr || allocation->capture || allocation->arena != 0) return;
  Device& at = devices_[allocation->device];
  const std::size_t peer = o.peer % devices_.size();
  if (!at.peers.contains(peer)) return;
  const Stream* const home = work_stream(*allocation);
  const Stream& stream = devices_[peer].streams[2 + o.stream % (devices_[peer].streams.size() - 2)];
  if (home == nullptr || stream.capture) return;
  make_current(allocation->device);
  order(*home, stream);
  if (allocation->content) {
    make_current(peer);
    const AddressRange whole{allocation->ptr, allocation->bytes};
    say("stage_read({}, p[{}], {}u, {}, s[{}]);", peer, allocation->number, allocation->bytes,
        *allocation->content, stream.key);
    read(whole, whole, *allocation->content, stream.handle);
  }
  record_use(*allocation, stream);
  allocation->is_shared = true;
}

}  // namespace vpmm::property
