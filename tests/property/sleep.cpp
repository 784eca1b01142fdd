// SPDX-License-Identifier: Apache-2.0
// property tests: memory that is suspended and resumed, whatever else goes on.
#include <algorithm>

#include <fmt/format.h>

#include "base/scope_exit.hpp"
#include "host_copy/host_memory.hpp"
#include "property/world.hpp"

namespace vpmm::property {

namespace {

// Copies touch all of it, on the host and in the simulated GPU.
constexpr Bytes kMostWithBackup = 256 * kKiB;
constexpr Bytes kEnough = 64 * kGiB;  // of the host

Bytes suspended_in(context::Context& pool) { return pool.reports().statistics().suspended_bytes; }

}  // namespace

std::vector<std::uint32_t> World::tags_of(std::uint64_t number) {
  if (tag_of(number) == 0) return {kBackup, kDiscard};
  return {tag_of(number)};
}

// Ordinary memory: in a capture it would pin the arena, and the graph would use it at each launch.
void World::operator()(const AllocateTagged& o) {
  if (allocations_.size() >= kMostAllocations || !has_pool() || o.bytes == 0) return;
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  const bool is_named = o.stream != kAnyStream;
  Stream& stream =
      at.streams[is_named ? o.stream % at.streams.size() : o.bytes % at.streams.size()];
  if (stream.capture || !is_usable(at, stream)) return;
  const std::uint32_t tag = o.has_backup ? kBackup : kDiscard;
  const Bytes bytes = o.has_backup ? 1 + o.bytes % kMostWithBackup : o.bytes;
  pool::Request request{bytes, 0, std::nullopt};
  if (is_named) request.stream = stream.handle;
  request.tag = tag;
  request.one_chunk = o.one_chunk;
  if (!at.has_told_tags) {
    say("CALL(vpmm_tag_make_suspendable(pool[{}], {}, VPMM_TAG_BACKUP));", number, kBackup);
    say("CALL(vpmm_tag_make_suspendable(pool[{}], {}, 0));", number, kDiscard);
    at.has_told_tags = true;
  }
  say("stage_allocate_tagged(pool[{}], {}u, {}, {}, s[{}], {}, &p[{}]);", number, bytes, tag,
      o.one_chunk ? 1 : 0, stream.key, is_named ? 1 : 0, next_number_);
  const auto result = call(Bears::faults, [&] { return at.pool->allocate(request); });
  if (!result && may_have_failed(result.error(), "allocate")) return;
  if (at.asleep.contains(tag)) {
    if (result || result.error().code != ErrorCode::suspended)
      fail("a request in a suspended tag is served");
    return reference(number).count_refusal(seat_of(number));
  }
  if (!result) return judge_request(number, result.error(), {round_up(bytes, page()), 0});
  take_over(number, stream, is_named, {result.value(), bytes, 0, 0});
  allocations_.back().tag = tag;
}

bool World::may_be_capturing() const {
  return is_capturing_anywhere() ||
         std::any_of(devices_.begin(), devices_.end(),
                     [](const Device& each) { return each.had_unannounced_capture; });
}

// Whether all work that uses memory of tags is on streams that are there.
bool World::may_order_all(std::size_t number) const {
  const Device& at = devices_[number];
  if (has_peers() || is_capturing_anywhere()) return false;
  const auto is_there = [&](std::uint64_t key) {
    return std::any_of(at.streams.begin(), at.streams.end(),
                       [&](const Stream& each) { return each.key == key; });
  };
  return std::all_of(allocations_.begin(), allocations_.end(), [&](const Allocation& each) {
    return each.device != number || each.tag == 0 ||
           (is_there(each.home) && std::all_of(each.covered.begin(), each.covered.end(), is_there));
  });
}

void World::order_all(Device& at, const Stream& last) {
  for (const Stream& each : at.streams) order(each, last);
}

bool World::is_excused(const Error& error, std::size_t number, const Suspend& o) const {
  switch (error.code) {
    case ErrorCode::capture_active: return may_be_capturing();
    case ErrorCode::not_shared:
      return std::any_of(shared_.begin(), shared_.end(), [&](const Shared& each) {
        const std::vector<std::uint32_t> tags = tags_of(o.tags);
        return each.device == number && each.is_held() &&
               std::find(tags.begin(), tags.end(), each.tag) != tags.end();
      });
    case ErrorCode::host_out_of_memory: return o.host_bytes.has_value();
    case ErrorCode::invalid_argument: return !devices_[number].hooks.empty();  // a hook refused
    default: return false;
  }
}

void World::operator()(const Suspend& o) {
  if (!has_pool()) return;
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  make_current(number);
  context::SuspendHow how;
  how.keeps_host_copy = o.keeps_host_copy;
  how.to_driver = o.to_driver;
  if (o.after != kAnyStream && may_order_all(number)) {
    const Stream& last = at.streams[o.after % at.streams.size()];
    order_all(at, last);
    how.after = last.handle;
  }
  const Bytes slept = suspended_in(*at.pool);
  host_copy::set_available_host_bytes(o.host_bytes.value_or(kEnough));  // no file is read
  const ScopeExit reset([] { host_copy::set_available_host_bytes(std::nullopt); });
  say("CALL(vpmm_suspend(pool[{}], {}, {}{}{}, {})); /* host memory: {} */", number, tag_of(o.tags),
      o.keeps_host_copy ? "VPMM_SUSPEND_KEEP_HOST_COPY | " : "",
      how.after ? "VPMM_SUSPEND_AFTER_STREAM | " : "", o.to_driver ? "VPMM_SUSPEND_TO_DRIVER" : "0",
      how.after ? fmt::format("(vpmm_stream){}", static_cast<std::uint64_t>(*how.after)) : "0",
      o.host_bytes ? "limited" : "enough");
  const auto done =
      call(Bears::faults, [&] { return at.pool->suspension().suspend(tag_of(o.tags), how); });
  if (!done) {
    if (!may_have_failed(done.error(), "suspend") && !is_excused(done.error(), number, o))
      fail("suspend: " + done.error().message);
    // Deferred frees of suspended memory may have been carried out.
    if (suspended_in(*at.pool) > slept) fail("a failed suspend suspends");
    return;
  }
  const observe::Statistics now = at.pool->reports().statistics();
  if (!had_faults_ && o.to_driver && !how.after && now.suspended_bytes > slept &&
      now.zombie_bytes != 0)
    fail("old mappings keep memory that went to the driver");
  // Without any memory so far it stays live.
  for (const std::uint32_t tag : tags_of(o.tags))
    if (at.pool->suspension().info(tag).state != context::TagState::live) at.asleep.insert(tag);
  // Nobody holds what sleeps, and it comes back in other chunks.
  for (Shared& each : shared_)
    if (each.device == number && each.tag != 0 && at.asleep.contains(each.tag)) each.chunks.clear();
  for (const Allocation& each : allocations_) {
    if (each.device != number || !is_asleep(each)) continue;
    const auto is = at.pool->suspension().is_suspended(each.ptr);
    if (!is || !is.value()) fail("memory of a suspended tag is not suspended");
  }
}

void World::operator()(const Resume& o) {
  if (!has_pool()) return;
  const std::size_t number = o.device % devices_.size();
  Device& at = devices_[number];
  make_current(number);
  context::ResumeHow how;
  how.clears = o.clears;
  how.copies_back = !o.drops_copy;
  say("CALL(vpmm_resume(pool[{}], {}, {})); /* {} */", number, tag_of(o.tags),
      o.clears ? "VPMM_RESUME_ZERO" : "0", o.drops_copy ? "without the copy" : "with the copy");
  const auto done =
      call(Bears::faults, [&] { return at.pool->suspension().resume(tag_of(o.tags), how); });
  if (!done && may_have_failed(done.error(), "resume")) return;
  if (!done) {
    const bool is_capture = done.error().code == ErrorCode::capture_active;
    if (is_capture && !may_be_capturing()) fail("resume: " + done.error().message);
    Bytes missing = 0;
    for (const std::uint32_t tag : tags_of(o.tags))
      missing += at.pool->suspension().info(tag).amounts.suspended;
    if (!is_capture)
      judge_refusal(number, done.error(), {round_up(missing, page()), allocations_.size()});
    for (const Allocation& each : allocations_) {
      if (each.device != number || !is_asleep(each)) continue;
      const auto is = at.pool->suspension().is_suspended(each.ptr);
      if (!is || !is.value()) fail("a failed resume resumes");
    }
    return;
  }
  for (Allocation& each : allocations_) {
    if (each.device != number || !is_asleep(each)) continue;
    const std::vector<std::uint32_t> tags = tags_of(o.tags);
    if (std::find(tags.begin(), tags.end(), each.tag) == tags.end()) continue;
    const auto is = at.pool->suspension().is_suspended(each.ptr);
    if (!is || is.value()) fail("memory of a resumed tag is suspended");
    if (each.tag == kBackup && !o.drops_copy) continue;
    each.content.reset();
    if (o.clears) each.content = std::uint8_t{0};
  }
  for (Shared& each : shared_)
    if (each.device == number && each.tag != 0 && at.asleep.contains(each.tag) &&
        (each.tag == kDiscard || o.drops_copy))
      each.content.reset();
  for (const std::uint32_t tag : tags_of(o.tags)) at.asleep.erase(tag);
}

void World::check_asleep() {
  if (!has_pool()) return;
  for (const Device& each : devices_) {
    if (each.pool == nullptr) continue;
    Bytes suspended = 0;
    Bytes host = 0;
    for (const std::uint32_t tag : {kBackup, kDiscard}) {
      const context::TagInfo info = each.pool->suspension().info(tag);
      suspended += info.amounts.suspended;
      host += info.host_bytes;
      if (info.state == context::TagState::changing) fail("a tag changes for ever");
    }
    const observe::Statistics now = each.pool->reports().statistics();
    if (now.suspended_bytes != suspended)
      fail(fmt::format("suspended: {} bytes, and {} of tags", now.suspended_bytes, suspended));
    if (now.host_copy_bytes != host)
      fail(fmt::format("host copies: {} bytes, and {} of tags", now.host_copy_bytes, host));
    const report::Layout layout = each.pool->reports().layout();
    Bytes chunks = 0;
    for (const AddressRange& chunk : layout.chunks) chunks += chunk.size;
    Bytes blocks = 0;
    std::uint64_t asleep = 0;
    for (const report::LayoutBlock& block : layout.blocks) {
      const bool is_allocated = block.state == region::RegionState::allocated;
      if (block.is_suspended && is_allocated) ++asleep;
      const auto& guarded = each.guarding.addresses;
      if (guarded && guarded->contains(block.range.begin)) continue;
      if (!block.is_suspended && (is_allocated || block.state == region::RegionState::free))
        blocks += block.range.size;
    }
    if (now.allocations - now.deallocations != now.live_allocations + asleep)
      fail(fmt::format("counts: {} allocations, {} deallocations, {} live, {} asleep",
                       now.allocations, now.deallocations, now.live_allocations, asleep));
    // Released chunks that moved before are mapped at their old places, too, and what the driver
    // refused to take back is no place of the layout.
    const Bytes beside = now.zombie_bytes + now.quarantined_bytes;
    if (!has_drivers_pool() && (now.mapped_bytes < chunks || now.mapped_bytes > chunks + beside))
      fail(fmt::format("mapped: {} bytes, {} of chunks", now.mapped_bytes, chunks));
    if (!has_drivers_pool() && blocks + now.guarded_bytes != chunks)
      fail(fmt::format("layout: blocks of {} bytes, chunks of {}", blocks, chunks));
  }
}

}  // namespace vpmm::property
