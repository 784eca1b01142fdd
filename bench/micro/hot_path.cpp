// SPDX-License-Identifier: Apache-2.0
// bench/micro: what an allocation and its deallocation cost when the allocator has all the memory
// it needs.
//
// pair:   allocate one size and give it back, again and again.
// random: N live allocations; a random one is given back and another of random size takes its
// place. turns:  a pair on one stream after another, beside 8 GiB that stay. One operation is one
// deallocate and one allocate. Every thread has a stream of its own (for turns, many) and, for
// random, N allocations of its own. Nothing runs on the streams. On a virtual machine a core may
// have half the speed of the next, as long as somebody else uses what they share: so each
// measurement of a case runs on other cores than the one before.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "harness/clock.hpp"
#include "harness/cores.hpp"
#include "harness/parts.hpp"
#include "harness/random.hpp"
#include "harness/samples.hpp"

namespace vpmm::bench {
namespace {

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kGiB = 1024 * kMiB;

struct Case {
  std::string name;
  std::size_t live = 0;   // 0: pair
  std::size_t bytes = 0;  // the size of a pair, the largest of random
  std::vector<int> threads;
  std::size_t streams = 1;  // of each thread
  std::size_t beside = 0;   // bytes that stay allocated
};

// Large numbers of live allocations come last: an allocator that cannot give them back in time ends
// the part.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"pair 256 B", 0, 256, {1, 2, 4, 8}},
      {"pair 64 KiB", 0, 64 * kKiB, {1, 2, 4, 8}},
      {"pair 2 MiB", 0, 2 * kMiB, {1, 2, 4, 8}},
      {"pair 16 MiB", 0, 16 * kMiB, {1, 2, 4, 8}},
      {"turns 64 x 1 KiB", 0, kKiB, {1}, 64, 8 * kGiB},
      {"turns 65 x 1 KiB", 0, kKiB, {1}, 65, 8 * kGiB},
      {"turns 200 x 1 KiB", 0, kKiB, {1}, 200, 8 * kGiB},
      {"turns 2000 x 1 KiB", 0, kKiB, {1}, 2000, 8 * kGiB},
      {"turns 65 x 4 MiB", 0, 4 * kMiB, {1}, 65, 8 * kGiB},
      {"turns 2000 x 100 KiB", 0, 100 * kKiB, {1}, 2000, 8 * kGiB},
      {"random 1e3 <= 4 MiB", 1'000, 4 * kMiB, {1, 2, 4, 8}},
      {"random 1e3 <= 64 KiB", 1'000, 64 * kKiB, {1, 8}},
      {"random 1e4 <= 1 MiB", 10'000, kMiB, {1, 2, 4, 8}},
      {"random 1e5 <= 64 KiB", 100'000, 64 * kKiB, {1, 8}},
      {"random 1e6 <= 64 KiB", 1'000'000, 64 * kKiB, {1}},
  };
  return all;
}

// One thread's share of a case.
class Worker {
 public:
  using Lanes = std::vector<std::unique_ptr<Lane>>;
  Worker(const Lanes& lanes, const Case& what, std::uint64_t seed)
      : lanes_(lanes), case_(what), random_(seed) {}

  void prepare() {
    if (case_.beside != 0 && (beside_ = lane_.allocate(case_.beside)) == nullptr) ++refused_;
    slots_.resize(case_.live);
    for (Slot& slot : slots_) fill(slot);
    for (std::size_t& victim : upcoming_)
      victim = slots_.empty() ? 0 : random_.below(slots_.size());
  }
  // Operations done until `stop` is set or `limit` are done. tools/bench_instructions.py counts its
  // instructions by name.
  [[gnu::noinline]] std::uint64_t run(const std::atomic<bool>& stop, std::uint64_t limit) {
    std::uint64_t done = 0;
    while (done < limit && !stop.load(std::memory_order_relaxed)) {
      for (int i = 0; i < kBetweenLooks; ++i) slots_.empty() ? pair() : replace();
      done += kBetweenLooks;
    }
    return done;
  }
  // Gives back what is live until `stop` is set; returns how much is left.
  std::size_t finish(const std::atomic<bool>& stop) {
    if (beside_ != nullptr) lane_.deallocate(std::exchange(beside_, nullptr), case_.beside);
    while (!slots_.empty() && !stop.load(std::memory_order_relaxed)) {
      empty(slots_.back());
      slots_.pop_back();
    }
    return slots_.size();
  }
  std::uint64_t refused() const { return refused_; }
  std::uint64_t live_bytes() const {
    std::uint64_t sum = 0;
    for (const Slot& slot : slots_) sum += slot.bytes;
    return sum;
  }

 private:
  struct Slot {
    void* ptr = nullptr;
    std::size_t bytes = 0;
  };
  static constexpr int kBetweenLooks = 32;

  void pair() {
    Lane& lane = *lanes_[next_lane_];
    if (++next_lane_ == lanes_.size()) next_lane_ = 0;
    void* const ptr = lane.allocate(case_.bytes);
    if (ptr == nullptr) {
      ++refused_;
      return;
    }
    lane.deallocate(ptr, case_.bytes);
  }
  // The victim was drawn a few operations ago, so that its slot is in the cache: the allocator's
  // misses are to be measured, not the benchmark's.
  void replace() {
    std::size_t& next = upcoming_[turn_++ % kAhead];
    Slot& slot = slots_[next];
    next = random_.below(slots_.size());
    __builtin_prefetch(&slots_[next], 1);
    empty(slot);
    fill(slot);
  }
  void fill(Slot& slot) {
    slot.bytes = 1 + random_.below(case_.bytes);
    slot.ptr = lane_.allocate(slot.bytes);
    if (slot.ptr == nullptr) ++refused_;
  }
  void empty(Slot& slot) {
    if (slot.ptr != nullptr) lane_.deallocate(slot.ptr, slot.bytes);
    slot.ptr = nullptr;
  }

  static constexpr std::size_t kAhead = 8;
  const Lanes& lanes_;
  Lane& lane_ = *lanes_.front();
  std::size_t next_lane_ = 0;
  void* beside_ = nullptr;
  const Case& case_;
  Random random_;
  std::vector<Slot> slots_;
  std::size_t upcoming_[kAhead] = {};
  std::size_t turn_ = 0;
  std::uint64_t refused_ = 0;
};

// Threads that do the same thing at the same time, as often as asked. They live as long as this.
class Crew {
 public:
  Crew(Peer& peer, const Case& what, int threads)
      : case_(what), gate_(threads + 1), members_(static_cast<std::size_t>(threads)) {
    for (int i = 0; i < threads; ++i) {
      members_[static_cast<std::size_t>(i)].thread =
          std::thread([this, &peer, i] { live(peer, i); });
    }
    pass_gate();  // prepared
  }
  ~Crew() {
    job_ = Job::leave;
    pass_gate();
    for (Member& member : members_) member.thread.join();
  }

  // All run until `seconds` are over or each has done `limit` operations. Returns ns an operation.
  double measure(double seconds, std::uint64_t limit) {
    limit_ = limit;
    ++turn_;
    run_job(Job::work, seconds);
    double ns = 0, operations = 0;
    for (const Member& member : members_) {
      ns += static_cast<double>(member.ns);
      operations += static_cast<double>(member.operations);
    }
    return ns / operations;
  }
  // False: memory is left that could not be given back in this time.
  bool finish(double seconds) {
    run_job(Job::finish, seconds);
    return std::all_of(members_.begin(), members_.end(),
                       [](const Member& member) { return member.left == 0; });
  }
  std::uint64_t refused() const {
    std::uint64_t sum = 0;
    for (const Member& member : members_) sum += member.refused;
    return sum;
  }
  // After the last measurement.
  std::uint64_t live_bytes() const {
    std::uint64_t sum = 0;
    for (const Member& member : members_) sum += member.live_bytes;
    return sum;
  }

 private:
  enum class Job { work, finish, leave };
  struct alignas(128) Member {
    std::thread thread;
    std::uint64_t ns = 0;
    std::uint64_t operations = 0;
    std::uint64_t refused = 0;
    std::uint64_t live_bytes = 0;
    std::size_t left = 0;
  };

  void pass_gate() { gate_.arrive_and_wait(); }
  // Until all are done, `seconds` at most.
  void run_job(Job job, double seconds) {
    job_ = job;
    stop_ = false;
    busy_ = static_cast<int>(members_.size());
    pass_gate();
    const auto start = Clock::now();
    while (busy_ > 0 && seconds_since(start) < seconds)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    stop_ = true;
    pass_gate();
  }

  // The threads spread out evenly, and move on by one and a half places at each turn.
  std::size_t core_of(int index) const {
    const std::size_t apart = std::max<std::size_t>(1, cores_.size() / members_.size());
    return cores_[(static_cast<std::size_t>(index) * apart + turn_ + turn_ / 2) % cores_.size()];
  }

  void live(Peer& peer, int index) {
    enter_context();
    const std::vector<Stream> streams(case_.streams);
    Worker::Lanes lanes;
    for (const Stream& stream : streams) lanes.push_back(peer.open_lane(stream.handle()));
    Worker worker(lanes, case_, static_cast<std::uint64_t>(index) + 1);
    Member& me = members_[static_cast<std::size_t>(index)];
    worker.prepare();
    pass_gate();
    for (;;) {
      pass_gate();
      if (job_ == Job::leave) return;
      run_on(core_of(index));
      const auto start = Clock::now();
      if (job_ == Job::work) {
        me.operations = worker.run(stop_, limit_);
        me.ns = ns_since(start);
      } else {
        me.left = worker.finish(stop_);
      }
      me.refused = worker.refused();
      me.live_bytes = worker.live_bytes();
      --busy_;
      pass_gate();
    }
  }

  const Case& case_;
  const std::vector<std::size_t> cores_ = usable_cores();
  std::barrier<> gate_;
  std::vector<Member> members_;
  std::atomic<bool> stop_{false};
  std::atomic<int> busy_{0};
  // Written between two gates, when nobody reads them.
  Job job_ = Job::work;
  std::size_t turn_ = 0;
  std::uint64_t limit_ = 0;
};

constexpr double kLongSeconds = 3600;

// False: the process is of no more use to other cases.
bool measure(const Run& run, const Samples& samples, const Case& what, int threads,
             const HotPathSettings& settings) {
  Crew crew(run.peer, what, threads);
  // Everything has been replaced twice, and more often where that takes no time.
  const std::uint64_t twice = std::max<std::uint64_t>({2 * what.live, 10 * what.streams, 10'000});
  const bool is_counted = settings.operations > 0;
  constexpr std::uint64_t kEndless = std::numeric_limits<std::uint64_t>::max();
  crew.measure(is_counted ? kLongSeconds : settings.warm_up_seconds, twice);
  if (!is_counted) crew.measure(settings.settling_seconds, kEndless);
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    const double ns = is_counted ? crew.measure(kLongSeconds, settings.operations)
                                 : crew.measure(settings.round_ms * 1e-3, kEndless);
    samples.add({what.name, "time", "ns", ns, repeat, threads});
  }
  const std::optional<Footprint> held = run.peer.footprint();
  if (what.live > 0 && held) {
    const double bytes = static_cast<double>(held->now_bytes);
    samples.add(
        {what.name, "held", "of live", bytes / static_cast<double>(crew.live_bytes()), 0, threads});
  }
  if (crew.refused() > 0) {
    samples.add(
        {what.name, "refused", "allocations", static_cast<double>(crew.refused()), 0, threads});
  }
  return crew.finish(settings.finish_seconds);
}

// More threads than cores would measure the scheduler.
std::vector<int> affordable(const std::vector<int>& threads, const Samples& samples) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  std::vector<int> counts;
  for (const int count : threads) {
    if (count <= cores) {
      counts.push_back(count);
    } else {
      samples.left_out(std::to_string(count) + " threads",
                       "there are " + std::to_string(cores) + " cores");
    }
  }
  return counts;
}

}  // namespace

void run_hot_path(const Run& run, const HotPathSettings& settings) {
  const auto start = Clock::now();
  const Samples samples("hot_path", run.peer_name);
  const std::vector<int> counts = affordable(settings.threads, samples);
  for (const Case& what : cases()) {
    if (what.name.find(settings.only) == std::string::npos) continue;
    for (const int threads : what.threads) {
      if (std::find(counts.begin(), counts.end(), threads) == counts.end()) continue;
      const std::string name = what.name + " with " + std::to_string(threads) + " threads";
      if (seconds_since(start) > run.seconds) {
        samples.left_out(name, "out of time");
      } else if (measure(run, samples, what, threads, settings)) {
        must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
        run.peer.start_over();
      } else {
        samples.left_out("all after " + name, "giving memory back took too long");
        std::_Exit(0);
      }
    }
  }
}

}  // namespace vpmm::bench
