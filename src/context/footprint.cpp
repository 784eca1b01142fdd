// SPDX-License-Identifier: Apache-2.0
// context: limits and peaks of held memory.
#include "context/footprint.hpp"

#include <algorithm>

namespace vpmm::context {

namespace {

constexpr std::uint64_t kCachesPerCall = 8;  // read by a call for samples, on average

}  // namespace

Bytes Footprint::held() const {
  const Bytes guarded = device_.guard == nullptr ? 0 : device_.guard->figures().mapped;
  return (device_.pool == nullptr ? 0 : device_.pool->memory().mapped_bytes()) +
         driver_pool_bytes_ + guarded;
}

Bytes Footprint::idle_in_driver_pool(Bytes but_for) const {
  const Bytes used =
      device_.driver_pool == nullptr ? 0 : device_.driver_pool->requested_bytes() + but_for;
  return driver_pool_bytes_ - std::min(driver_pool_bytes_, used);
}

void Footprint::look_at_driver_pool() {
  driver_pool_bytes_ = device_.driver_pool->reserved_bytes();
  tell_pool();
}

void Footprint::forget_driver_pool() {
  if (device_.driver_pool != nullptr) device_.driver_pool->forget();
  driver_pool_bytes_ = 0;
  tell_pool();
}

Result<Bytes> Footprint::trim_driver_pool(MutexLock& lock) {
  if (device_.driver_pool == nullptr) return Bytes{0};
  Result<Bytes> freed = device_.primary.noted(device_.driver_pool->trim(lock));
  look_at_driver_pool();
  return freed;
}

// The other half of Note [Caches shrink before the footprint grows]. Only in page mode: a large
// chunk is too much for a small request.
void Footprint::offset_growth(MutexLock& lock) {
  if (device_.pool == nullptr || !device_.config.page_chunks || is_cleanup_held() ||
      held() <= peak_mapped_)
    return;
  static_cast<void>(device_.primary.noted(device_.pool->trim(lock, peak_mapped_)));
}

// Bytes that others hold on the pool's account.
void Footprint::tell_pool(Bytes coming) {
  if (device_.pool == nullptr) return;
  const guard::GuardFigures guarded =
      device_.guard == nullptr ? guard::GuardFigures() : device_.guard->figures();
  device_.pool->set_others({driver_pool_bytes_ + guarded.mapped + coming, guarded.mappings});
}

bool Footprint::is_above_threshold() const {
  return device_.pool != nullptr && device_.config.limits.release_threshold && !is_cleanup_held() &&
         held() > *device_.config.limits.release_threshold;
}

void Footprint::set_capacity(std::optional<Bytes> bytes) {
  capacity_ = bytes;
  if (device_.config.limits.capacity_percent != 0 && !settings_capacity_)
    settings_capacity_ = bytes;
  if (device_.pool != nullptr) device_.pool->set_capacity(bytes);
}

void Footprint::hold_cleanup() {
  ++cleanup_holds_;
  if (device_.pool != nullptr) device_.pool->hold_cleanup(true);
}

bool Footprint::end_hold() {
  if (cleanup_holds_ == 0) return false;
  --cleanup_holds_;
  if (cleanup_holds_ == 0 && device_.pool != nullptr) device_.pool->hold_cleanup(false);
  return true;
}

// Note [The peak is sampled]
// Warm calls count in their own cache, so live bytes are a sum over all caches. Calls with the
// pool's lock sample it: all calls with few streams, every n-th with many, so that a call pays for
// a few caches on average; and every call that grows the footprint.
void Footprint::note_peaks() {
  const bool has_grown = held() > peak_mapped_;
  if (has_grown) peak_mapped_ = held();
  ++calls_since_sample_;
  const std::uint64_t streams =
      device_.small == nullptr ? 0 : device_.small->caches().stream_count();
  if (!has_grown && calls_since_sample_ * kCachesPerCall < streams) return;
  calls_since_sample_ = 0;
  peak_live_ = std::max(peak_live_, device_.live_bytes());
}

void Footprint::reset_peaks() {
  if (device_.pool != nullptr) device_.pool->reset_peaks();
  peak_mapped_ = held();
  peak_live_ = device_.live_bytes();
}

bool Footprint::flush_caches() {
  return device_.small != nullptr && device_.small->flusher().flush();
}

void Footprint::fill(observe::Statistics& figures) const {
  if (device_.driver_pool != nullptr) figures.stream_ordered_bytes = driver_pool_bytes_;
  figures.mapped_bytes += driver_pool_bytes_ + figures.guarded_bytes;
  figures.peak_mapped_bytes =
      std::max({peak_mapped_, figures.mapped_bytes, figures.peak_mapped_bytes});
  figures.peak_live_bytes = peak_live_ = std::max(peak_live_, figures.live_bytes);
}

}  // namespace vpmm::context
