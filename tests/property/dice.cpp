// SPDX-License-Identifier: Apache-2.0
// property tests: what is drawn how often.
#include "property/dice.hpp"

#include <array>
#include <cmath>
#include <utility>

namespace vpmm::property {
namespace {

// Programs of earlier seeds stay as they are: tests know them.
constexpr std::uint64_t kFirstGuardedSeed = 100;

std::uint64_t guard_every(std::uint64_t seed, Numbers& numbers) {
  if (seed < kFirstGuardedSeed || seed % 7 != 6) return 0;
  return numbers() % 2 == 0 ? 1 : 2 + numbers() % 20;
}

}  // namespace

// The number is in the low bits and in the high ones, for remainders and for fractions.
Numbers::result_type Numbers::operator()() {
  if (!bytes_) return generator_();
  result_type number = 0;
  for (int i = 0; i < 2 && !bytes_->empty(); ++i) {
    number = number << 8 | bytes_->front();
    bytes_ = bytes_->subspan(1);
  }
  return number << 48 | number;
}

Dice::Dice(std::uint64_t seed, const Numbers::Bytes& bytes)
    : bytes_(bytes),
      size_(bytes ? bytes->size() : 0),
      random_(seed, bytes_),
      others_(seed, bytes_),
      others_one_in_(seed % 3 == 1 ? 0 : 2 + others_() % 20),
      sleeps_(seed, bytes_),
      sleeps_one_in_(seed % 4 == 3 ? 0 : 3 + sleeps_() % 20),
      rarities_(seed, bytes_),
      rarities_one_in_(seed % 4 == 3 ? 0 : 6 + rarities_() % 20),
      extras_(seed, bytes_),
      extras_one_in_(seed % 4 == 3 ? 0 : 10 + extras_() % 30),
      guards_(seed, bytes_),
      guard_every_(guard_every(seed, guards_)),
      shares_gpu_(seed % 6 == 5),
      is_roomy_(seed % 5 == 2),
      backs_up_(seed % 8 == 0),
      records_(seed % 8 == 4),
      takes_turns_(seed % 8 == 1) {}

Bytes Dice::size(Bytes least, Bytes most) {
  const double low = std::log2(static_cast<double>(least));
  const double high = std::log2(static_cast<double>(most));
  const auto drawn =
      static_cast<Bytes>(std::exp2(std::uniform_real_distribution<double>(low, high)(random_)));
  // Round numbers are what programs ask for, and where fits are exact.
  return one_in(3) ? drawn : round_up(drawn, drawn >= 2 * kMiB ? 2 * kMiB : 256);
}

// One byte less, the border itself, or one byte more.
Bytes Dice::border() {
  const std::array borders = {Bytes{256},        2 * kKiB,   8 * kKiB,   16 * kKiB,
                              120 * kKiB,        128 * kKiB, 256 * kKiB, page_ / 2,
                              page_ - 64 * kKiB, page_,      8 * page_};
  return borders[below(borders.size())] + below(3) - 1;
}

Bytes Dice::request() {
  if (one_in(12)) return border();
  if (is_roomy_)
    return one_in(8) ? size(largest_ / 4, largest_) : size(largest_ / 128, largest_ / 32);
  return one_in(small_one_in_) ? size(1, 2 * kMiB) : size(2 * kMiB, largest_);
}

Bytes Dice::alignment() {
  if (!one_in(8)) return 0;
  return Bytes{1} << below(26);
}

void Dice::draw_config(settings::Config& config) {
  config.va_size = one_in(4) ? kGiB : 16 * kGiB;
  config.page_size = one_in(3) ? 8 * kMiB : 2 * kMiB;
  config.page_chunks = one_in(2);
  config.chunk_max = *config.page_size << below(6);
  if (one_in(4)) config.limits.max_mappings = 40 + below(200);
  if (one_in(4)) config.pages = below(60);
  if (one_in(5)) config.limits.release_threshold = below(512) * kMiB;
  if (one_in(3))
    config.streams.any_stream =
        one_in(2) ? settings::AnyStreamOrder::legacy : settings::AnyStreamOrder::park;
  if (one_in(3)) config.small = settings::SmallRequests::stream_ordered;
  if (one_in(3))
    config.prefer = one_in(2) ? settings::Prefer::footprint : settings::Prefer::latency;
  if (one_in(3)) config.streams.crowded_after = 0;
  if (one_in(6)) config.streams.unnamed_free = settings::UnnamedFree::allocating_stream;
  if (one_in(3)) config.limits.capacity = size(128 * kMiB, 2 * kGiB);
  config.log = observe::LogLevel::quiet;
}

Scene Dice::scene() {
  Scene scene;
  scene.sim.device_count = one_in(4) ? 2 : 1;
  scene.sim.capacity = round_up(size(256 * kMiB, 8 * kGiB), 2 * kMiB);
  scene.sim.seed = any();
  constexpr std::array kSchedules = {driver::sim::Schedule::timed, driver::sim::Schedule::random,
                                     driver::sim::Schedule::manual};
  scene.sim.schedule = kSchedules[below(3)];
  if (one_in(2)) scene.sim.lag_ns = below(2'000'000);
  scene.sim.context_events_supported = !one_in(6);
  const std::uint64_t support = below(16);
  scene.sim.vmm_supported = support != 0;
  scene.sim.memory_pools_supported = support != 1;
  scene.frees_when_short = one_in(4);
  draw_config(scene.config);
  scene.config.checks.guard_every = guard_every_;
  page_ = *scene.config.page_size;
  largest_ = size(4 * kMiB, 512 * kMiB);
  small_one_in_ = 1 + below(4);
  allocates_of_16_ = 5 + below(5);
  any_stream_one_in_ = 2 + below(12);
  captures_ = !one_in(3);
  resets_ = one_in(3);
  if (is_roomy_) make_roomy(scene);
  scene.pools_share_gpu = shares_gpu_ && scene.sim.device_count == 1;
  if (extras_one_in_ == 0) return scene;
  constexpr std::array<std::size_t, 8> kStreams = {5, 5, 5, 5, 5, 5, 30, 200};
  scene.streams = kStreams[extras_() % kStreams.size()];
  scene.listens = extras_() % 4 == 0;
  scene.config.ipc_isolate = extras_() % 8 == 0;
  return scene;
}

// Chunks of several pages that requests use in part, and room to do something about it.
void Dice::make_roomy(Scene& scene) {
  scene.sim.capacity = 64 * kGiB;
  scene.config.page_size = page_ = 2 * kMiB;
  scene.config.page_chunks = false;
  scene.config.chunk_max = 4 * kGiB;
  scene.config.limits.max_mappings = settings::Config{}.limits.max_mappings;
  scene.config.pages = 0;
  scene.config.limits.capacity.reset();
  scene.config.va_size = 128 * kGiB;
  if (scene.config.prefer == settings::Prefer::latency)
    scene.config.prefer = settings::Prefer::balanced;
  largest_ = 2 * kGiB;
  any_stream_one_in_ = 12;
}

std::vector<Operation> Dice::program(std::size_t length) {
  std::vector<Operation> operations;
  operations.reserve(length);
  for (std::size_t i = 0; i < length && !is_over(); ++i) draw_step(operations);
  return operations;
}

void Dice::draw_step(std::vector<Operation>& operations) {
  operations.push_back(operation());
  if (others_one_in_ != 0 && below_for_others(others_one_in_) == 0)
    operations.push_back(with_others());
  if (sleeps_one_in_ != 0 && below_for_sleeps(sleeps_one_in_) == 0)
    operations.push_back(with_tags());
}

void Dice::draw_whole_step(std::vector<Operation>& operations) {
  std::vector<Operation> drawn;
  draw_step(drawn);
  for (const Operation& each : drawn) {
    operations.push_back(each);
    if (takes_turns_ && rarities_() % 4 == 0) operations.push_back(Turn{rarities_() % 4});
    if (rarities_one_in_ != 0 && rarities_() % rarities_one_in_ == 0)
      operations.push_back(rarity());
    if (extras_one_in_ != 0 && extras_() % extras_one_in_ == 0) operations.push_back(extra());
    if (guard_every_ != 0 && guards_() % 12 == 0)
      operations.push_back(Overrun{guards_() % (1 << 16), guards_() % 16, guards_() % (1 << 16)});
  }
}

std::vector<Operation> Dice::whole_program(std::size_t length) {
  std::vector<Operation> operations;
  borders_.clear();
  for (std::size_t i = 0; i < length && !is_over(); ++i) {
    note_border();
    draw_whole_step(operations);
  }
  note_border();
  const std::uint64_t end = rarities_() % 8;
  if (end == 1) operations.push_back(Break{rarities_() % 2, rarities_() % 16, rarities_() % 64});
  if (end == 0 || (end == 1 && rarities_() % 4 == 0)) operations.push_back(Exit{rarities_() % 2});
  return operations;
}

Program Dice::program_within(std::size_t length) {
  Program made{scene(), {}};
  made.scene.sim.has_aliases = false;
  made.scene.has_threads = takes_turns_;
  made.operations = whole_program(length);
  std::erase_if(made.operations, [](const Operation& each) {
    return std::holds_alternative<Fork>(each) || std::holds_alternative<Exit>(each) ||
           std::holds_alternative<Record>(each);
  });
  return made;
}

Operation Dice::with_arenas() {
  const auto any = [this] { return rarities_() % (1 << 16); };
  const std::uint64_t what = any() % 16;
  if (what < 2) return MakeArena{any(), any() % 8 == 0, any() % 4 != 0};
  if (what == 2 && any() % 4 == 0) return PinArena{any()};
  if (what == 3) return TrimArena{any()};
  if (what == 4) return ReleaseArena{any()};
  const Bytes most = any() % 2 == 0 ? 64 * kKiB : 12 * kMiB;
  return AllocateInArena{any(), any(), 1 + rarities_() % most};
}

Operation Dice::extra() {
  const auto any = [this] { return extras_() % (1 << 16); };
  const std::uint64_t what = any() % 32;
  const std::uint64_t stream = any() % 4 == 0 ? kAnyStream : any();
  const Bytes bytes = any() % 2 == 0 ? 1 + extras_() % (64 * kKiB) : 1 + extras_() % (24 * kMiB);
  if (what < 6) return AllocateSpecial{any(), stream, bytes, any() % 2 == 0, any() % 2 == 0};
  if (what < 14) return TryAllocate{any(), stream, bytes};
  if (what < 20) return TryFree{any()};
  if (what < 22) return OthersUse{any(), any() % 2 == 0 ? 0 : any() * 64 * kKiB};
  if (what < 24) return DeferCleanup{any()};
  if (what < 28) return DestroyGraph{any(), any() % 2 == 0, true};
  return AllocateInArena{any(), any(), bytes};
}

Operation Dice::rarity() {
  const auto any = [this] { return rarities_() % (1 << 16); };
  const std::uint64_t what = any() % 64;
  if (what >= 32) return with_arenas();
  if (what < 20) return Fault{any(), any(), any() % 6, any() % 4 == 0};
  if (what < 23) return CallBack{any(), any()};
  if (what < 26) return Hook{any(), any(), any() % 6 == 0};
  if (what < 28 && records_) return Record{any()};
  if (what < 31) return Listen{any(), any()};
  return any() % 32 == 0 ? Operation{Fork{any(), any()}} : Operation{Listen{any(), any()}};
}

Operation Dice::operation() {
  const std::uint64_t kind = below(100);
  if (kind < 72) return usual();
  if (kind < 84 && captures_) return capturing();
  if (kind < 97)
    return one_in(2) ? Operation{Order{any(), any(), any()}} : Operation{Pass{below(200'000)}};
  return rare();
}

Allocate Dice::allocate() {
  return {any(), one_in(any_stream_one_in_) ? kAnyStream : any(), request(), alignment()};
}

Operation Dice::usual() {
  if (below(16) < allocates_of_16_) {
    if (one_in(12))
      return AllocateMany{any(), one_in(any_stream_one_in_) ? kAnyStream : any(), request(),
                          below(8)};
    return allocate();
  }
  switch (below(16)) {
    case 0: return Write{any()};
    case 1: return Read{any()};
    case 2: return ReadElsewhere{any(), any()};
    case 3: return Move{any(), any(), one_in(2)};
    case 4:
    case 5:
    case 6: return FreeElsewhere{any(), any(), one_in(2)};
    case 7:
    case 8: return FreeAnyStream{any(), one_in(3)};
    case 9: return FreeMany{any(), any(), below(8)};
    default: return Free{any()};
  }
}

Operation Dice::capturing() {
  switch (below(8)) {
    case 0:
      return BeginCapture{any(), any(), static_cast<driver::CaptureMode>(below(3)), one_in(2)};
    case 1:
    case 2: return EndCapture{any(), !one_in(4)};
    case 3: return DestroyGraph{any(), one_in(2)};
    default: return Launch{any(), any()};
  }
}

Operation Dice::with_others() {
  const auto any = [this] { return below_for_others(1 << 16); };
  switch (below_for_others(16)) {
    case 0:
    case 1:
    case 2: return Share{any(), any(), any()};
    case 3:
    case 4: return Lease{any(), any(), any()};
    case 5:
    case 6: return ReadLease{any(), any()};
    case 7:
    case 8:
    case 9: return EndLease{any(), any(), context::Holder::handle};
    case 10:
    case 11: return EndLease{any(), any(), context::Holder::importer};
    case 12: return FreeTwice{any(), any()};
    case 13: return SetPeerAccess{any(), any()};
    default: return ReadOnPeer{any(), any(), any()};
  }
}

Operation Dice::with_tags() {
  const auto any = [this] { return below_for_sleeps(1 << 16); };
  const auto one_in = [this](std::uint64_t n) { return below_for_sleeps(n) == 0; };
  const std::uint64_t what = below_for_sleeps(16);
  if (what < 3) {
    Suspend suspend{any(), any(), one_in(4), one_in(2), one_in(3) ? any() : kAnyStream, {}};
    if (one_in(12)) suspend.host_bytes = below_for_sleeps(8) * kMiB;
    return suspend;
  }
  if (what < 6) return Resume{any(), any(), backs_up_ && one_in(2), one_in(6)};
  const Bytes bytes = one_in(8) ? (1 + below_for_sleeps(48)) * kMiB : 1 + below_for_sleeps(kMiB);
  return AllocateTagged{any(), one_in(5) ? kAnyStream : any(), bytes, backs_up_ && one_in(2),
                        one_in(8)};
}

Operation Dice::rare() {
  switch (below(18)) {
    case 0: return one_in(2) ? Operation{FreeWrongly{any()}} : Operation{FreeTwice{any(), any()}};
    case 1: return Spin{any(), any(), below(100'000'000)};
    case 2:
    case 3:
    case 4:
      return ReplaceStream{
          any(), any(),
          one_in(2) ? driver::StreamFlags::blocking : driver::StreamFlags::non_blocking, one_in(2)};
    case 5: return Trim{any(), one_in(2) ? 0 : size(kMiB, kGiB)};
    case 6: return Preallocate{any(), size(2 * kMiB, 512 * kMiB)};
    case 7:
      return SetCapacity{any(),
                         one_in(3) ? std::nullopt : std::optional(size(64 * kMiB, 4 * kGiB))};
    case 8:
    case 9: return Synchronize{any()};
    case 10: return Pass{below(200'000'000)};
    case 11:
      if (resets_) return Reset{any(), one_in(2)};
      return Step{1000};
    case 12:
    case 13:
    case 14: return Bind{any(), any()};
    case 15: return FreeTwice{any(), any()};
    default: return Step{below(30)};
  }
}

void add_importer(Program& program, std::uint64_t seed) {
  constexpr std::uint64_t kOneIn = 12;  // operations
  std::mt19937_64 random(seed);
  const auto any = [&random] { return random() % (1 << 16); };
  const auto exchange = [&]() -> Operation {
    const std::uint64_t what = random() % 32;
    if (what < 8) return Share{any(), any(), any()};
    if (what < 17) return Lease{any(), any(), any()};
    if (what < 20) return ReadLease{any(), any()};
    if (what < 25) return EndLease{any(), any(), context::Holder::handle};
    if (what < 31) return EndLease{any(), any(), context::Holder::importer};
    return KillImporter{any(), any(), random() % 2 == 0};
  };
  program.scene.has_importer = true;
  const std::vector<Operation> operations = std::exchange(program.operations, {});
  for (const Operation& each : operations) {
    if (random() % kOneIn == 0) program.operations.push_back(exchange());
    program.operations.push_back(each);
  }
}

}  // namespace vpmm::property
