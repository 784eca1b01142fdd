// SPDX-License-Identifier: Apache-2.0
// ipc tests: an actor that allocates, shares and opens memory, and tells what it has.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "driver/driver.hpp"
#include "ipc/actor.hpp"

namespace vpmm::ipc_test {

using Address = std::uint64_t;

struct Descriptors {
  std::uint64_t all = 0;
  std::uint64_t sockets = 0;  // among them
  std::uint64_t watches = 0;  // among them, of processes
};

#if defined(__SANITIZE_THREAD__)
constexpr std::uint64_t kFirstThread = 2;  // brings one of the sanitizer's own along
#else
constexpr std::uint64_t kFirstThread = 1;
#endif

// What a process has that could leak.
struct Belongings {
  std::uint64_t descriptors = 0;
  std::uint64_t threads = 0;
  std::uint64_t sockets = 0;  // among the descriptors
  std::uint64_t watches = 0;  // of processes, likewise
  std::uint64_t areas = 0;    // of the memory map that belong to memory files
  std::uint64_t chunks = 0;   // in the simulator, as are the rest
  std::uint64_t mappings = 0;
  std::uint64_t reservations = 0;
  friend bool operator==(const Belongings&, const Belongings&) = default;
};
void PrintTo(const Belongings& belongings, std::ostream* out);

struct Shared {
  Address address = 0;
  vpmm_ipc_handle handle{};
};

// The words of a test. Where one may fail, `try_to` gives the whole answer; without it failure
// fails the test.
class Process : public Actor {
 public:
  using Actor::Actor;

  // --- the exporter's side, on the default pool of a device ---
  Address allocate(Bytes bytes, int device = 0);
  void free(Address address);
  Parcel try_to_free(Address address);
  vpmm_ipc_handle share(Address address, Bytes bytes);
  Parcel try_to_share(Address address, Bytes bytes);
  Shared allocate_shared(Bytes bytes, std::uint64_t seed);  // filled
  void end(const vpmm_ipc_handle& handle);
  Parcel try_to_end(const vpmm_ipc_handle& handle);
  Bytes leased();  // freed, and kept
  void trim();     // all that is idle
  vpmm_statistics statistics();

  // --- the importer's side ---
  Address open(const vpmm_ipc_handle& handle, int device = -1);
  Parcel try_to_open(const vpmm_ipc_handle& handle, int device = -1);
  void begin_to_open(const vpmm_ipc_handle& handle);  // finish() has the answer
  Address open_staged(const vpmm_ipc_handle& handle, int device = 0);
  void close(Address address);
  Parcel try_to_close(Address address);

  // --- bytes; `seed` makes them ---
  void fill(Address address, Bytes bytes, std::uint64_t seed);
  void expect(Address address, Bytes bytes, std::uint64_t seed);

  Belongings belongings();
  // Part of a core that all its threads take while nobody asks for anything.
  double share_of_a_core();
  void limit_descriptors(std::uint64_t most);
};

// In an actor. Makes the device's context current in the calling thread.
driver::Driver& driver_of_actor();
vpmm_pool* pool_of_actor(int device = 0);
Belongings own_belongings();
Descriptors own_descriptors();  // asks no driver, so it works in a forked child

// Waits until the exporter's leases are over. No test asserts how long that takes.
void expect_leases_to_end(Process& exporter);
std::vector<std::string> names_in(const std::string& folder);
std::string socket_folder_of_tests();

inline void expect_ok(const Parcel& answer) { EXPECT_EQ(answer.status, VPMM_OK) << answer.said(); }
// That it failed with this, and said so with these words.
void expect_refused(const Parcel& answer, vpmm_status status, const std::string& words);

}  // namespace vpmm::ipc_test
