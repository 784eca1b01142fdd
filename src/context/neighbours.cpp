// context: the list of all pools of the process, and how they are asked for idle memory.
#include "context/neighbours.hpp"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/host_memory.hpp"
#include "base/mutex.hpp"
#include "context/process_gate.hpp"
#include "observe/log.hpp"

namespace vpmm::context {
namespace {

constexpr int kMostTries = 500;
constexpr std::chrono::microseconds kBetweenTries{100};

// Leaked: pools may be destroyed after every static object.
struct Neighbourhood {
  Mutex mutex;
  Vector<Context*> pools VPMM_GUARDED_BY(mutex);
};

Neighbourhood& neighbourhood() {
  static auto* const all = new Neighbourhood;
  return *all;
}

// Of one that holds nothing the GPU is not even opened.
Bytes give_back(Context& pool, Bytes bytes) {
  const Bytes mapped = pool.statistics().mapped_bytes;
  if (mapped == 0) return 0;
  const Result<Bytes> released = pool.trim(mapped - std::min(mapped, bytes));
  return released ? released.value() : 0;  // what is wrong with it, its own users are told
}

}  // namespace

void enter_neighbourhood(Context& pool) {
  const MutexLock lock(neighbourhood().mutex);
  neighbourhood().pools.push_back(&pool);
}

// In a forked child the mutex may be held for ever, and at exit by a thread that is stuck in the driver; then nobody
// looks at the list any more. Else the summary may be under way, which takes a moment.
void leave_neighbourhood(Context& pool) noexcept {
  Neighbourhood& all = neighbourhood();
  if (process_is_ending()) {
    for (int tries = 0; !all.mutex.try_lock(); ++tries) {
      if (tries == kMostTries) return;
      std::this_thread::sleep_for(kBetweenTries);
    }
  } else {
    all.mutex.lock();
  }
  const MutexLock lock(all.mutex, std::adopt_lock);
  std::erase(all.pools, &pool);
}

void summarize_all() noexcept {
  if (!neighbourhood().mutex.try_lock()) return;
  const MutexLock lock(neighbourhood().mutex, std::adopt_lock);
  for (const Context* const pool : neighbourhood().pools) pool->summarize();
}

Bytes ask_neighbours(Context& asking, Bytes bytes) {
  Bytes given = 0;
  {
    const MutexLock lock(neighbourhood().mutex);
    for (Context* const pool : neighbourhood().pools) {
      if (given >= bytes || process_is_ending()) break;
      const bool is_neighbour =
          pool != &asking && pool->device() == asking.device() && &pool->driver() == &asking.driver();
      if (is_neighbour) given += give_back(*pool, bytes - given);
    }
  }
  if (given > 0)
    observe::log(observe::LogLevel::info, "device {}: other pools of this process gave back {} bytes", asking.device(),
                 given);
  return given;
}

}  // namespace vpmm::context
