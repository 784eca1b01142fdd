// process: the pools of one GPU in this process give each other idle memory.
#pragma once

#include <functional>

#include "base/bytes.hpp"
#include "driver/driver.hpp"

namespace vpmm::process {

// Note [Neighbours give back what they hold idle]
// Idle memory of one pool must not make another pool of the same GPU and driver run out of memory.
// So a pool that would report a shortage of the GPU first has its neighbours give back memory that
// is idle and complete, as Context::trim does. That memory is the GPU's again, and the fastest
// request gets it.
//
// One mutex guards the list, and no driver call runs under it. A pool that is being trimmed is
// pinned: its destructor waits, while other pools open and end. Two pools that are short at once
// trim each other concurrently, because neither holds its own lock. A trim requests no memory, so
// it never comes back here.

// A pool as its neighbours see it. Each function takes the pool's lock itself.
struct Neighbour {
  driver::DeviceOrdinal device = 0;
  const driver::Driver* driver = nullptr;
  std::function<Bytes(Bytes most)> give_back;  // returns the bytes given back
  std::function<void()> summarize;             // prints; waits for no lock
};

// Identifies a pool: its address.
using PoolKey = const void*;

// Adds the pool to the list. It must leave before it is destroyed.
void enter_neighbourhood(PoolKey pool, Neighbour neighbour);
// Removes the pool and waits for trims of it that are in progress. Does nothing for a pool that
// never entered, and while the process ends.
void leave_neighbourhood(PoolKey pool) noexcept;
// Has each pool print its summary: for exit, when the gate is closed. Waits for no lock.
void summarize_all() noexcept;
// Has the neighbours of `asking` give back `bytes`, or as much as they have. Returns the sum.
Bytes ask_neighbours(PoolKey asking, Bytes bytes);

}  // namespace vpmm::process
