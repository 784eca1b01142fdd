// context: the list of all pools of the process, and how they are asked for idle memory.
#include "context/neighbours.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <thread>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "context/process_gate.hpp"
#include "observe/log.hpp"

namespace vpmm::context {
namespace {

constexpr int kMostTries = 500;
constexpr std::chrono::microseconds kBetweenTries{100};
constexpr std::chrono::milliseconds kBetweenLooks{10};

struct Neighbour {
  Context* pool = nullptr;
  int pins = 0;             // calls that trim it: it is not destroyed before they end
  bool is_leaving = false;  // nobody pins it any more
};

// Leaked: pools may be destroyed after every static object.
struct Neighbourhood {
  Mutex mutex;
  std::condition_variable_any unpinned;
  Vector<Neighbour> pools VPMM_GUARDED_BY(mutex);

  // Null: it is not here.
  Neighbour* find(const Context* pool) VPMM_REQUIRES(mutex) {
    const auto found = std::find_if(pools.begin(), pools.end(),
                                    [pool](const Neighbour& each) { return each.pool == pool; });
    return found == pools.end() ? nullptr : &*found;
  }
};

Neighbourhood& neighbourhood() {
  static auto* const all = new Neighbourhood;
  return *all;
}

// Keeps a pool from being destroyed.
class Pin {
 public:
  explicit Pin(Context* pool) : pool_(pool) {
    const MutexLock lock(neighbourhood().mutex);
    Neighbour* const neighbour = neighbourhood().find(pool);
    if (neighbour == nullptr || neighbour->is_leaving) return;
    ++neighbour->pins;
    is_held_ = true;
  }
  ~Pin() {
    if (!is_held_) return;
    const MutexLock lock(neighbourhood().mutex);
    --neighbourhood().find(pool_)->pins;
    neighbourhood().unpinned.notify_all();
  }
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;

  // False: the pool is gone, or about to go.
  bool is_held() const { return is_held_; }

 private:
  Context* const pool_;
  bool is_held_ = false;
};

// Of one that holds nothing the GPU is not even opened.
Bytes give_back(Context& pool, Bytes bytes) {
  const Bytes mapped = pool.statistics().mapped_bytes;
  if (mapped == 0) return 0;
  const Result<Bytes> released = pool.trim(mapped - std::min(mapped, bytes));
  return released ? released.value() : 0;  // what is wrong with it, its own users are told
}

Vector<Context*> neighbours_of(Context& asking) {
  Vector<Context*> found;
  const MutexLock lock(neighbourhood().mutex);
  for (const Neighbour& each : neighbourhood().pools)
    if (each.pool != &asking && each.pool->device() == asking.device() &&
        &each.pool->driver() == &asking.driver())
      found.push_back(each.pool);
  return found;
}

// In a forked child the mutex may be held for ever, and at exit by a thread that is stuck in the
// driver; then nobody looks at the list any more. Else the summary may be under way, which takes a
// moment.
bool lock_at_end(Mutex& mutex) noexcept {
  for (int tries = 0; !mutex.try_lock(); ++tries) {
    if (tries == kMostTries) return false;
    std::this_thread::sleep_for(kBetweenTries);
  }
  return true;
}

}  // namespace

void enter_neighbourhood(Context& pool) {
  const MutexLock lock(neighbourhood().mutex);
  neighbourhood().pools.push_back({&pool});
}

void leave_neighbourhood(Context& pool) noexcept {
  Neighbourhood& all = neighbourhood();
  if (process_is_ending()) {
    if (!lock_at_end(all.mutex)) return;
    all.mutex.unlock();
  }
  MutexLock lock(all.mutex);
  Neighbour* const leaving = all.find(&pool);
  if (leaving == nullptr) return;
  leaving->is_leaving = true;
  // Calls that exit has stopped may never end.
  while (all.find(&pool)->pins > 0 && !process_is_ending())
    all.unpinned.wait_for(lock, kBetweenLooks);
  std::erase_if(all.pools, [&pool](const Neighbour& each) { return each.pool == &pool; });
}

void summarize_all() noexcept {
  if (!neighbourhood().mutex.try_lock()) return;
  const MutexLock lock(neighbourhood().mutex, std::adopt_lock);
  for (const Neighbour& each : neighbourhood().pools) each.pool->summarize();
}

Bytes ask_neighbours(Context& asking, Bytes bytes) {
  Bytes given = 0;
  for (Context* const pool : neighbours_of(asking)) {
    if (given >= bytes || process_is_ending()) break;
    const Pin pin(pool);
    if (pin.is_held()) given += give_back(*pool, bytes - given);
  }
  if (given > 0)
    observe::log(observe::LogLevel::info,
                 "device {}: other pools of this process gave back {} bytes", asking.device(),
                 given);
  return given;
}

}  // namespace vpmm::context
