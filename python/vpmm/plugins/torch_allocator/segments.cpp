// SPDX-License-Identifier: Apache-2.0
// torch_allocator: follows the mappings of the pool, and lists them as segments and their blocks.
#include "segments.hpp"

#include <algorithm>
#include <exception>
#include <utility>

namespace vpmm::torch_plugin {

void check(vpmm_status status, const char* purpose) {
  TORCH_CHECK(status == VPMM_OK, "VPMM: ", purpose, ": ", vpmm_last_error());
}

vpmm_statistics figures_of(vpmm_pool* pool) {
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  check(vpmm_get_statistics(pool, &figures), "statistics");
  return figures;
}

Layout::Layout(vpmm_pool* pool) {
  layout_.size = sizeof layout_;
  check(vpmm_layout_take(pool, &layout_), "a layout");
}

namespace {

// A run of mapped addresses of one kind is an expandable segment of PyTorch. In private
// pools each stretch is a segment of its own, because libraries that register memory need its
// borders.
struct Run {
  std::size_t begin = 0;
  std::size_t bytes = 0;
  bool is_small = false;
  std::uint64_t arena = 0;
  const Stretches::Stretch* stretch = nullptr;  // null: the run is in no private pool

  bool is_continued_by(const Run& next) const {
    return begin + bytes == next.begin && is_small == next.is_small && arena == next.arena &&
           next.stretch == nullptr;
  }
};

std::vector<Run> runs_of(const Layout& layout, Stretches& stretches) {
  std::vector<Run> runs;
  for (std::size_t i = 0; i < layout->block_count; ++i) {
    const vpmm_block& block = layout->blocks[i];
    if (block.state == VPMM_REGION_HOLE || block.state == VPMM_REGION_ZOMBIE ||
        block.state == VPMM_REGION_SUSPENDED)
      continue;
    // Blocks of the driver's own pool have the requested size.
    const std::size_t bytes = block.is_small != 0 ? block.bytes : round_up(block.bytes, kGrain);
    const Run next{address(block.begin), bytes, block.is_small != 0, block.arena,
                   block.arena == 0 ? nullptr : stretches.find(block.begin)};
    if (!runs.empty() && runs.back().is_continued_by(next))
      runs.back().bytes += next.bytes;
    else
      runs.push_back(next);
  }
  return runs;
}

BlockInfo block_of(const Live& live) {
  BlockInfo block;
  block.size = live.bytes;
  block.requested_size = live.requested;
  block.allocated = block.active = true;
  block.context_when_allocated = live.stack;
  return block;
}

// Enters the live blocks in it, from `next` on, and the gaps between them.
void tile(SegmentInfo& segment, std::vector<Live>::const_iterator& next,
          std::vector<Live>::const_iterator last) {
  std::size_t at = segment.address;
  const std::size_t end = segment.address + segment.total_size;
  const auto add_idle = [&](std::size_t until) {
    if (until == at) return;
    segment.blocks.emplace_back().size = until - at;
  };
  for (; next != last && next->begin < end; ++next) {
    const bool is_inside = next->begin >= at && next->begin + next->bytes <= end;
    if (!is_inside) continue;  // it is suspended, or the layout is of another moment
    add_idle(next->begin);
    segment.blocks.push_back(block_of(*next));
    segment.allocated_size += next->bytes;
    segment.active_size += next->bytes;
    segment.requested_size += next->requested;
    if (segment.stream == nullptr) segment.stream = next->stream;
    at = next->begin + next->bytes;
  }
  add_idle(end);
}

}  // namespace

// Under the pool's lock, through which no exception may pass.
void Segments::on_event(void* segments, const vpmm_event* event) {
  try {
    static_cast<Segments*>(segments)->note(*event);
  } catch (...) {
    Call::note_exception();
  }
}

// The ring has no entries for stretches of private pools: it already has the memory that they lie
// in. Libraries that register memory are told of every stretch, and of its private pool.
void Segments::note(const vpmm_event& event) {
  Event told{Action::SEGMENT_MAP, device_,     event.ptr,
             event.bytes,         kCommonPool, Call::current_stack()};
  {
    const MutexLock lock(mutex_);
    told.action = follow(event, told.stack);
    told.pool = pool_of(event.arena);
    changes_.fetch_add(1, std::memory_order_relaxed);
  }
  history_.record(told, event.arena == 0 ? Audience::ALL : Audience::TRACKERS);
}

// A stretch of a private pool has the stack of the call that added it. The pool's memory keeps that
// stack when the stretch is released; that of another allocator is gone then.
Action Segments::follow(const vpmm_event& event, const Context& stack) {
  const auto begin = address(event.ptr);
  switch (event.kind) {
    case VPMM_EVENT_MAP:
      reserved_.at(kAll).increase(event.bytes);
      growths_.add(begin, event.bytes, stack);
      return Action::SEGMENT_MAP;
    case VPMM_EVENT_UNMAP:
      reserved_.at(kAll).decrease(event.bytes);
      growths_.remove(begin, event.bytes);
      return Action::SEGMENT_UNMAP;
    case VPMM_EVENT_ARENA_GROW:
      stretches_.add(event.ptr, event.bytes);
      growths_.add(begin, event.bytes, stack);
      return Action::SEGMENT_ALLOC;
    default:
      const std::size_t foreign = stretches_.remove(event.ptr, event.bytes);
      growths_.remove(begin, foreign);
      reserved_.at(kAll).decrease(foreign);
      return Action::SEGMENT_FREE;
  }
}

MempoolId_t Segments::pool_of(std::uint64_t arena) {
  const auto pool = pools_.find(arena);
  return pool == pools_.end() ? kCommonPool : pool->second;
}

// Other libraries may map memory of the pool meanwhile, which its events report, too: then the
// figures are taken anew.
void Segments::begin(vpmm_pool* pool) {
  for (;;) {
    const std::uint64_t changes = changes_.load();
    const vpmm_statistics figures = ask(pool);
    const MutexLock lock(mutex_);
    if (changes_.load() != changes) continue;
    set(reserved_.at(kAll), static_cast<std::int64_t>(figures.mapped_bytes));
    return;
  }
}

void Segments::name(std::uint64_t arena, MempoolId_t pool) {
  const MutexLock lock(mutex_);
  pools_[arena] = pool;
}

void Segments::enter_foreign(const void* memory, std::size_t bytes) {
  const MutexLock lock(mutex_);
  if (Stretches::Stretch* const stretch = stretches_.find(memory)) stretch->is_foreign = true;
  reserved_.at(kAll).increase(bytes);
  changes_.fetch_add(1, std::memory_order_relaxed);
}

bool Segments::is_in_stretch(const void* ptr) {
  const MutexLock lock(mutex_);
  return stretches_.around(ptr) != nullptr;
}

void Segments::enter(const void* ptr, std::size_t bytes) {
  const MutexLock lock(mutex_);
  stretches_.enter(ptr, bytes);
}

void Segments::leave(const void* ptr, std::size_t bytes) {
  const MutexLock lock(mutex_);
  stretches_.leave(ptr, bytes);
}

// Events report how much is mapped, but not which pages the pool cuts for small requests. So the
// pool is asked for these. If it cannot answer, the next question does.
void Segments::note_changes(vpmm_pool* pool) noexcept try {
  if (changes_.load(std::memory_order_relaxed) != noted_.load(std::memory_order_relaxed))
    note_mapped(pool);
} catch (const std::exception&) {
}

// Memory of the driver's own pool and guarded memory have no event.
vpmm_statistics Segments::ask(vpmm_pool* pool) {
  const vpmm_statistics figures = figures_of(pool);
  if (figures.stream_ordered_bytes != 0 || figures.guarded_bytes != 0) has_untold_memory_ = true;
  return figures;
}

vpmm_statistics Segments::note_mapped(vpmm_pool* pool) {
  noted_ = changes_.load();
  const vpmm_statistics figures = ask(pool);
  const MutexLock lock(mutex_);
  const std::int64_t all = reserved_.at(kAll).current;
  const auto small = static_cast<std::int64_t>(figures.small_bytes);
  set(reserved_.at(kSmall), small);
  set(reserved_.at(kLarge), std::max<std::int64_t>(all - small, 0));
  return figures;
}

// Reports segments by the layout.
void Segments::note_layout(vpmm_pool* pool) {
  const Layout layout(pool);
  const MutexLock lock(mutex_);
  std::int64_t all = 0;
  for (const Run& run : runs_of(layout, stretches_)) all += static_cast<std::int64_t>(run.bytes);
  set(reserved_.at(kAll), all);
}

vpmm_statistics Segments::count(vpmm_pool* pool) {
  const vpmm_statistics figures = note_mapped(pool);
  if (!has_untold_memory_) return figures;
  note_layout(pool);
  return note_mapped(pool);
}

std::size_t Segments::reserved() {
  const MutexLock lock(mutex_);
  return static_cast<std::size_t>(reserved_.at(kAll).current);
}

void Segments::copy_to(DeviceStats& stats) {
  const MutexLock lock(mutex_);
  stats.segment = stretches_.segments;
  stats.inactive_split = stretches_.inactive_split;
  stats.inactive_split_bytes = stretches_.inactive_split_bytes;
  stats.reserved_bytes = reserved_;
}

void Segments::reset(StatReset reset) {
  const MutexLock lock(mutex_);
  for (StatArray* const array : {&reserved_, &stretches_.segments, &stretches_.inactive_split,
                                 &stretches_.inactive_split_bytes})
    for (auto& stat : *array) (stat.*reset)();
}

std::vector<SegmentInfo> Segments::list(const Layout& layout, const std::vector<Live>& live,
                                        const std::optional<MempoolId_t>& only) {
  std::vector<SegmentInfo> segments;
  auto next = live.begin();
  const MutexLock lock(mutex_);
  for (const Run& run : runs_of(layout, stretches_)) {
    SegmentInfo segment;
    segment.device = device_;
    segment.address = run.begin;
    segment.total_size = run.bytes;
    segment.is_large = !run.is_small;
    segment.is_expandable = run.stretch == nullptr;
    segment.registration_counter = run.stretch == nullptr ? 0 : run.stretch->order;
    segment.context_when_allocated = growths_.stack_in(run.begin, run.bytes);
    segment.owner_private_pool_id = pool_of(run.arena);
    tile(segment, next, live.end());
    if (!only || segment.owner_private_pool_id == *only) segments.push_back(std::move(segment));
  }
  return segments;
}

}  // namespace vpmm::torch_plugin
