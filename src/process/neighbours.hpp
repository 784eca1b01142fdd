// SPDX-License-Identifier: Apache-2.0
// process: idle memory that pools of one GPU in this process give each other.
#pragma once

#include <functional>

#include "base/bytes.hpp"
#include "driver/driver.hpp"

namespace vpmm::process {

// Note [Neighbours give back idle memory]
// Idle memory of one pool must not make another pool of the same GPU and driver run out of memory.
// So a pool short of GPU memory first lets its neighbours give back idle, complete memory, as
// Limits::trim() does. That memory is the GPU's again, and the fastest request gets it.
//
// One mutex guards the list; no driver call runs under it. A pool in a trim is pinned: its
// destructor waits, while other pools open and end. Two pools short at once trim each other
// concurrently, as neither holds its own lock. A trim requests no memory, so it never comes back
// here.

// Functions of a pool for its neighbours, none of them null. Each takes the pool's lock.
struct Neighbour {
  driver::DeviceOrdinal device = 0;
  const driver::Driver* driver = nullptr;
  std::function<Bytes(Bytes most)> give_back;  // returns the bytes given back
  std::function<void()> summarize;             // prints, if the lock is free
};

// Identifies a pool: its address.
using PoolKey = const void*;

// Adds the pool to the list. Requires: it leaves before its end.
void enter_neighbourhood(PoolKey pool, Neighbour neighbour);
// Removes the pool, if listed, after its trims in progress; at exit at once.
void leave_neighbourhood(PoolKey pool) noexcept;
// Prints the summary of each pool: for exit, after the gate closed. Waits for no lock.
void summarize_all() noexcept;
// Lets neighbours of `asking` give back up to `bytes`. Returns the bytes given back.
Bytes ask_neighbours(PoolKey asking, Bytes bytes);

}  // namespace vpmm::process
