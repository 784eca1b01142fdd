// SPDX-License-Identifier: Apache-2.0
// process: the list of all pools of the process, and requests for idle memory.
#include "process/neighbours.hpp"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "process/process_gate.hpp"

namespace vpmm::process {
namespace {

constexpr int kMostTries = 500;
constexpr std::chrono::microseconds kBetweenTries{100};

struct Member {
  PoolKey pool = nullptr;
  Neighbour neighbour;
  int pins = 0;             // trims in progress; the pool's end waits for them
  bool is_leaving = false;  // takes no more pins
};

// Leaked: pools may be destroyed after every static object.
struct Neighbourhood {
  Mutex mutex;
  Vector<Member> members VPMM_GUARDED_BY(mutex);

  // Null: not in the list.
  Member* find(PoolKey pool) VPMM_REQUIRES(mutex) {
    const auto found = std::find_if(members.begin(), members.end(),
                                    [pool](const Member& each) { return each.pool == pool; });
    return found == members.end() ? nullptr : &*found;
  }
};

Neighbourhood& neighbourhood() {
  static auto* const all = new Neighbourhood;
  return *all;
}

// Keeps a pool from being destroyed.
class Pin {
 public:
  explicit Pin(PoolKey pool) : pool_(pool) {
    const MutexLock lock(neighbourhood().mutex);
    Member* const member = neighbourhood().find(pool);
    if (member == nullptr || member->is_leaving) return;
    ++member->pins;
    give_back_ = member->neighbour.give_back;
  }
  ~Pin() {
    if (!give_back_) return;
    const MutexLock lock(neighbourhood().mutex);
    // At exit its destruction does not wait.
    if (Member* const member = neighbourhood().find(pool_)) --member->pins;
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  // Returns 0 also for a pool that has left or is leaving.
  Bytes give_back(Bytes most) const { return give_back_ ? give_back_(most) : 0; }

 private:
  const PoolKey pool_;
  std::function<Bytes(Bytes)> give_back_;
};

Vector<PoolKey> neighbours_of(PoolKey asking) {
  const MutexLock lock(neighbourhood().mutex);
  const Member* const own = neighbourhood().find(asking);
  if (own == nullptr) return {};
  Vector<PoolKey> found;
  for (const Member& each : neighbourhood().members)
    if (each.pool != asking && each.neighbour.device == own->neighbour.device &&
        each.neighbour.driver == own->neighbour.driver)
      found.push_back(each.pool);
  return found;
}

// Tells if a trim is in progress. False: or the pool is not in the list.
bool is_pinned(PoolKey pool) noexcept {
  const MutexLock lock(neighbourhood().mutex);
  const Member* const member = neighbourhood().find(pool);
  return member != nullptr && member->pins > 0;
}

// Waits until nobody holds the mutex, as a summary in progress does. Returns false if it stays
// locked: in a forked child, or at exit by a stuck thread.
bool is_unlocked_soon(Mutex& mutex) noexcept {
  for (int tries = 0; tries < kMostTries; ++tries) {
    if (mutex.try_lock()) {
      mutex.unlock();
      return true;
    }
    std::this_thread::sleep_for(kBetweenTries);
  }
  return false;
}

}  // namespace

void enter_neighbourhood(PoolKey pool, Neighbour neighbour) {
  const MutexLock lock(neighbourhood().mutex);
  neighbourhood().members.push_back({pool, std::move(neighbour)});
}

void leave_neighbourhood(PoolKey pool) noexcept {
  Neighbourhood& all = neighbourhood();
  if (is_ending() && !is_unlocked_soon(all.mutex)) return;
  {
    const MutexLock lock(all.mutex);
    if (Member* const leaving = all.find(pool); leaving != nullptr) leaving->is_leaving = true;
  }
  // Calls stopped by exit may never end.
  while (is_pinned(pool) && !is_ending()) std::this_thread::sleep_for(kBetweenTries);
  const MutexLock lock(all.mutex);
  std::erase_if(all.members, [pool](const Member& each) { return each.pool == pool; });
}

void summarize_all() noexcept {
  if (!neighbourhood().mutex.try_lock()) return;
  const MutexLock lock(neighbourhood().mutex, std::adopt_lock);
  for (const Member& each : neighbourhood().members) each.neighbour.summarize();
}

Bytes ask_neighbours(PoolKey asking, Bytes bytes) {
  Bytes given = 0;
  for (const PoolKey pool : neighbours_of(asking)) {
    if (given >= bytes || is_ending()) break;
    given += Pin(pool).give_back(bytes - given);
  }
  return given;
}

}  // namespace vpmm::process
