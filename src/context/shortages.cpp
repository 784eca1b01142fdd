// SPDX-License-Identifier: Apache-2.0
// context: description of a pool after a request failed for want of memory.
#include "context/shortages.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "base/quantity.hpp"
#include "observe/log.hpp"
#include "report/tags.hpp"

namespace vpmm::context {

namespace {

std::string name_of_tag(std::uint32_t tag, const char* without) {
  const char* const name = report::tag_name(tag);
  if (tag == 0) return without;
  return *name == '\0' ? message_of("{}", tag) : name;
}

template <typename Number>
std::vector<report::Holding> sorted(const std::map<Number, report::Holding>& sums) {
  std::vector<report::Holding> holders;
  holders.reserve(sums.size());
  for (const auto& [number, holder] : sums) holders.push_back(holder);
  std::stable_sort(
      holders.begin(), holders.end(),
      [](const report::Holding& a, const report::Holding& b) { return a.bytes > b.bytes; });
  return holders;
}

void count(report::Holding& holder, std::string name, Bytes bytes) {
  holder.name = std::move(name);
  holder.bytes += bytes;
  ++holder.allocations;
}

}  // namespace

// Leaves out external arenas.
void Shortages::add_holders(report::Shortage& shortage, std::uint32_t tag) const {
  Set<DevicePtr> external;
  parts_.arenas.external().for_each_stretch([&](DevicePtr stretch) VPMM_REQUIRES(pool_lock) {
    parts_.arenas.for_each_block_around(stretch,
                                        [&](const arena::ArenaBlock& block, bool /*is_pinned*/) {
                                          external.insert(block.range.begin);
                                        });
  });
  std::map<std::uint32_t, report::Holding> by_library;
  std::map<std::uint32_t, report::Holding> by_tag;
  std::map<std::uint64_t, report::Holding> by_stream;
  for (const report::LayoutBlock& block : drawing_.layout().blocks) {
    if (block.state != region::RegionState::allocated) continue;
    if (tag != 0 ? block.tag != tag : block.is_suspended || external.contains(block.range.begin))
      continue;
    count(shortage.memory.live, "live", block.requested);
    shortage.memory.live_taken += block.range.size;
    count(by_library[block.library], name_of_tag(block.library, "no library known"),
          block.requested);
    count(by_tag[block.tag], name_of_tag(block.tag, "no tag"), block.requested);
    count(by_stream[block.stream_id],
          block.stream_id == 0
              ? "no stream"
              : time::describe_stream(device_.timelines, driver::StreamId{block.stream_id}),
          block.requested);
  }
  if (by_library.size() > 1 || by_library.count(0) == 0)
    shortage.holders.by_library = sorted(by_library);
  if (tag == 0 && (by_tag.size() > 1 || by_tag.count(0) == 0))
    shortage.holders.by_tag = sorted(by_tag);
  shortage.holders.by_stream = sorted(by_stream);
  if (const auto writer = parts_.recorder.writer()) shortage.recording = writer->path();
}

void Shortages::add_pending(report::Shortage& shortage) const {
  std::map<std::uint64_t, report::Holding> by_timeline;
  device_.timelines.for_each([&](const time::Timeline& timeline) VPMM_REQUIRES(pool_lock) {
    if (device_.pool == nullptr) return;
    const Bytes pending = device_.pool->memory().index.pending_bytes(timeline.id) +
                          device_.small->figures().pending_bytes(timeline.id);
    if (pending > 0)
      count(by_timeline[static_cast<std::uint64_t>(timeline.id)],
            device_.timelines.describe_stream(timeline.id), pending);
  });
  shortage.holders.pending_on = sorted(by_timeline);
}

report::Shortage Shortages::look_at(const pool::Request& request, const std::string& reason) const {
  report::Shortage shortage;
  const observe::Statistics now = totals_.now();
  shortage.asked.requested = request.bytes;
  // Requests beyond any address space stay unrounded: rounding could overflow.
  shortage.asked.taken = request.bytes > pool::kAddressSpace ? request.bytes
                         : device_.small == nullptr
                             ? round_up(request.bytes, device_.page_size)
                             : device_.small->serving().size_of_pages(request.bytes);
  if (request.alignment > device_.page_size) shortage.asked.alignment = request.alignment;
  if (request.tag != 0) shortage.asked.tag = name_of_tag(request.tag, "");
  shortage.asked.arena = static_cast<std::uint64_t>(request.arena);
  shortage.asked.is_one_chunk = request.one_chunk;
  shortage.asked.reason = reason;
  shortage.memory.trapped = now.trapped_bytes;
  shortage.memory.movable = device_.pool == nullptr ? 0 : totals_.movable_bytes();
  shortage.memory.free = now.free_bytes;
  shortage.memory.pending = now.pending_bytes;
  shortage.memory.largest_free = now.largest_free_bytes;
  shortage.memory.small_free = now.small_free_bytes;
  shortage.memory.leased = now.leased_bytes;
  shortage.memory.parked = parts_.captures.parked_bytes();
  shortage.memory.suspended = now.suspended_bytes;
  shortage.memory.quarantined = now.quarantined_bytes;
  shortage.memory.mapped = now.mapped_bytes;
  shortage.memory.mappings = now.mappings;
  shortage.limits.max_mappings = device_.config.limits.max_mappings;
  shortage.limits.capacity = parts_.footprint.capacity();
  shortage.limits.is_capacity_of_settings = parts_.footprint.is_capacity_of_settings();
  shortage.limits.prefer = device_.config.prefer;
  shortage.limits.is_capture_known = parts_.captures.are_known();
  driver::MemInfo gpu;
  if (device_.driver.mem_get_info(gpu) == driver::CuResult::success) shortage.limits.gpu = gpu;
  shortage.holders.arenas = parts_.arenas.holdings();
  add_pending(shortage);
  add_holders(shortage, 0);
  return shortage;
}

void Shortages::add_holders_to(std::uint32_t tag, Error& error) noexcept {
  try {
    const PoolLock lock(parts_.mutex);
    report::Shortage shortage;
    add_holders(shortage, tag);
    error.message += report::holders_report(shortage);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the reason alone
  }
}

void Shortages::explain(const pool::Request& request, Error& error) noexcept {
  const std::string reason =
      std::exchange(error.message, message_of("out of device memory: {}", error.message));
  try {
    Visit visit(entrance_);
    if (visit.status()) {
      report::Shortage shortage = look_at(request, reason);
      shortage.asked.stream = request.stream ? "a stream that is being captured" : "no stream";
      const Result<pool::Caller> caller = visit.identify(request.stream);  // leaves captures intact
      if (caller && caller.value().timeline != nullptr)
        shortage.asked.stream = device_.timelines.describe_stream(caller.value().timeline->id);
      error.message = report::shortage_report(shortage);
    }
  } catch (...) {  // NOLINT(bugprone-empty-catch): the reason alone
  }
  observe::log(observe::LogLevel::info, "{}", report::first_line(error.message));
}

}  // namespace vpmm::context
