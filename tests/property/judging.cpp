// property tests: what the reference of tests/judge says of a program.
#include <algorithm>

#include "property/world.hpp"

namespace vpmm::property {

judge::Terms World::terms_of(const Scene& scene) {
  constexpr std::uint64_t kAsManyAsItLikes = 10'000;
  const bool has_pool = scene.sim.vmm_supported && scene.config.pool_enabled;
  const bool has_small =
      !scene.sim.memory_pools_supported || scene.config.small == settings::SmallRequests::pool;
  return {scene.config.page_size.value_or(2 * kMiB), has_pool && has_small,
          scene.config.max_mappings > kAsManyAsItLikes, scene.config.ipc_isolate};
}

void World::listen_to_stretches(std::size_t number) {
  using report::EventKind;
  devices_[number].pool->reports().add_event_callback(
      bit_of(EventKind::arena_grow) | bit_of(EventKind::arena_shrink) | bit_of(EventKind::suspend) |
          bit_of(EventKind::resume),
      [this, number](const report::ReportedEvent& event) {
        judge::Reference& reference = references_[number];
        if (event.kind == EventKind::arena_grow)
          reference.grow_arena(0, event.arena, {event.ptr, event.bytes});
        else if (event.kind == EventKind::arena_shrink)
          reference.shrink_arena(event.ptr);
        else
          reference.put_to_sleep(event.arena, event.kind == EventKind::suspend);
      });
}

void World::judge_request(std::size_t number, const Error& error, const Refused& refused) {
  references_[number].count_refusal(0);
  judge_refusal(number, error, refused);
}

// What is pending can be waited for, except while somebody captures.
bool World::may_wait(std::size_t number) const {
  const Device& at = devices_[number];
  if (is_capturing(at) || at.had_unannounced_capture) return false;
  return !has_peers() || !is_capturing_anywhere();
}

void World::judge_refusal(std::size_t number, const Error& error, const Refused& refused) {
  if (!has_pool() && error.code == ErrorCode::capture_active) return;
  context::Context& pool = *devices_[number].pool;
  // Memory that the driver refused to take back is mapped, and serves nobody.
  const Bytes stuck = pool.reports().statistics().quarantined_bytes;
  judge::Reference::Refused judged{0, refused.whole_pages + stuck, may_wait(number), {}, 0};
  judged.chunks.push_back(devices_[number].pool->reports().layout().chunks);
  for (const AddressRange& chunk : judged.chunks.front())
    judged.trapped_before = std::max(judged.trapped_before, 2 * refused.made_before * chunk.size);
  const std::uint64_t before = references_[number].judged();
  const std::string wrong = references_[number].refuse(judged, error);
  figures_.judged += references_[number].judged() - before;
  if (!wrong.empty()) fail(wrong);
}

bool World::comes_and_goes(std::size_t number, Bytes bytes) {
  constexpr std::uint64_t kNumber = ~std::uint64_t{0};
  context::Context& pool = *devices_[number].pool;
  judge::Reference& reference = references_[number];
  const auto made = pool.allocate({bytes, 0, std::nullopt});
  if (!made) return reference.count_refusal(0), false;
  if (const std::string wrong = reference.hand_out({kNumber, 0, {made.value(), bytes}}, 0);
      !wrong.empty())
    fail(wrong);
  if (!pool.query(made.value())) fail("memory that was handed out is not there");
  const auto freed = pool.deallocate(made.value(), std::nullopt);
  if (!freed) fail("deallocate: " + freed.error().message);
  reference.give_back(kNumber, judge::Reference::State::pending, 0);
  return true;
}

void World::check_reference() {
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    if (devices_[number].pool == nullptr) continue;
    const context::Reports& reports = devices_[number].pool->reports();
    for (const std::string& wrong : {references_[number].compare(0, reports.statistics()),
                                     references_[number].compare(0, reports.layout())})
      if (!wrong.empty()) fail(wrong);
  }
}

}  // namespace vpmm::property
