// small: what the pages that are cut are divided into, for whoever draws them.
#include "small/small_pool.hpp"

namespace vpmm::small {
namespace {

using Part = SmallPool::Part;

// Of one segment, by address. What lies side by side and is not live is one part.
class Divider {
 public:
  Divider(const Segment& segment, const StreamCache& cache, FunctionRef<void(const Part&)> visit)
      : segment_(segment), cache_(cache), visit_(visit) {}

  void divide() VPMM_REQUIRES(cache_lock) {
    idle_from_ = segment_.begin;
    for (std::uint64_t unit = 0; unit < segment_.units;) unit += units_at(unit);
    end_idle(segment_.range().end());
  }

 private:
  // Of the slab or span that begins there; 1: neither does.
  std::uint64_t units_at(std::uint64_t unit) VPMM_REQUIRES(cache_lock) {
    const Arena& arena = *segment_.arena;
    const Slab* const slab = content_in(arena.contents[arena.unit_of(segment_.at(unit))]).slab();
    if (slab != nullptr) {
      for (std::uint64_t i = 0; i < slab->blocks; ++i)
        if (slab->is_live(i)) add_live({slab->block(i), slab->block_bytes()}, slab->requested(i));
      return slab->units;
    }
    if (!segment_.has_span_at(unit)) return 1;
    const std::uint64_t units = span_units(segment_.requested(unit));
    add_live({segment_.at(unit), units * kUnit}, segment_.requested(unit));
    return units;
  }
  void add_live(AddressRange range, Bytes requested) VPMM_REQUIRES(cache_lock) {
    end_idle(range.begin);
    visit_({range, true, requested, cache_.timeline});
    idle_from_ = range.end();
  }
  void end_idle(DevicePtr end) VPMM_REQUIRES(cache_lock) {
    if (end > idle_from_) visit_({{idle_from_, end - idle_from_}, false, 0, cache_.timeline, true});
  }

  const Segment& segment_;
  const StreamCache& cache_;
  FunctionRef<void(const Part&)> visit_;
  DevicePtr idle_from_{};
};

}  // namespace

void CutPages::for_each_free(FunctionRef<void(const region::Region&)> visit) const {
  units_.for_each([&](const region::Region& region) {
    if (region.state == region::RegionState::free) visit(region);
  });
}

void SmallPool::for_each_part(FunctionRef<void(const Part&)> visit) const {
  cut_pages_.for_each_free([&](const region::Region& free) {
    visit({free.range, false, 0, {}, false, free.stamp});
  });
  for (const Segment* segment : cut_pages_.segments()) {
    StreamCache* const cache = segment->cache();
    if (cache == nullptr) continue;
    const CacheGuard guard(*cache);
    Divider(*segment, *cache, visit).divide();
  }
}

}  // namespace vpmm::small
