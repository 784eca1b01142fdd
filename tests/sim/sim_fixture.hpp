// SPDX-License-Identifier: Apache-2.0
// tests/sim: a simulated driver with a current context, and words to write scenarios with.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "driver/sim/sim_driver.hpp"

namespace vpmm::driver::sim {

using Kind = Hazard::Kind;

inline AddressRange part(AddressRange range, Bytes offset, Bytes size) {
  return {range.begin + offset, size};
}

// Every result that no test is about must be success.
inline void ok(CuResult result) { ASSERT_EQ(result, CuResult::success) << to_string(result); }

// One simulated machine whose device 0 has a retained and current context.
class Sim {
 public:
  explicit Sim(const SimOptions& options = manual()) : driver(options) {
    ok(driver.init());
    use_device(0);
  }
  static SimOptions manual() { return with_schedule(Schedule::manual); }
  static SimOptions with_schedule(Schedule schedule, std::uint64_t seed = 1) {
    SimOptions options;
    options.capacity = 4 * kGiB;
    options.schedule = schedule;
    options.seed = seed;
    return options;
  }

  void use_device(DeviceOrdinal device) {
    ok(driver.device_primary_ctx_retain(device, context));
    ok(driver.ctx_set_current(context));
  }
  StreamHandle stream(StreamFlags flags = StreamFlags::non_blocking) {
    StreamHandle made{};
    ok(driver.stream_create(flags, made));
    return made;
  }
  StreamId id_of(StreamHandle stream) {
    StreamId id{};
    ok(driver.stream_get_id(stream, id));
    return id;
  }
  EventHandle event() {
    EventHandle made{};
    ok(driver.event_create(made));
    return made;
  }
  EventHandle recorded_event(StreamHandle stream) {
    const EventHandle made = event();
    ok(driver.event_record(made, stream));
    return made;
  }
  // Work of `waiting` queued from now on comes after all that is queued on `first`.
  void order(StreamHandle first, StreamHandle waiting) {
    const EventHandle between = recorded_event(first);
    ok(driver.stream_wait_event(waiting, between));
    ok(driver.event_destroy(between));
  }

  AddressRange reserve(Bytes size) {
    DevicePtr begin{};
    ok(driver.mem_address_reserve(size, 0, DevicePtr{}, begin));
    return {begin, size};
  }
  ChunkHandle create(Bytes size, DeviceOrdinal device = 0) {
    ChunkHandle chunk{};
    ok(driver.mem_create(size, ChunkProperties{device, false, false}, chunk));
    return chunk;
  }
  void map(AddressRange range, ChunkHandle chunk) {
    ok(driver.mem_map(range, 0, chunk));
    allow(range, {0});
  }
  void allow(AddressRange range, const std::vector<DeviceOrdinal>& devices) {
    std::vector<AccessDescriptor> access;
    for (const DeviceOrdinal device : devices) access.push_back({device});
    ok(driver.mem_set_access(range, access));
  }
  // A fresh chunk in a reservation of its own, accessible to its device.
  AddressRange memory(Bytes size = 2 * kMiB, DeviceOrdinal device = 0) {
    const AddressRange range = reserve(size);
    ok(driver.mem_map(range, 0, create(size, device)));
    allow(range, {device});
    return range;
  }

  void write(AddressRange range, StreamHandle stream, std::string name = "writer") {
    ok(driver.launch({std::move(name), 0, {{range, MemoryAccess::Kind::write}}, {}}, stream));
  }
  void read(AddressRange range, StreamHandle stream, std::string name = "reader") {
    ok(driver.launch({std::move(name), 0, {{range, MemoryAccess::Kind::read}}, {}}, stream));
  }
  // A kernel that touches nothing and takes this long.
  void spin(std::uint64_t duration_ns, StreamHandle stream) {
    ok(driver.launch({"spin", duration_ns, {}, {}}, stream));
  }
  std::vector<std::uint8_t> read_back(AddressRange range) {
    std::vector<std::uint8_t> bytes(range.size);
    ok(driver.memcpy_device_to_host(bytes.data(), range.begin, range.size));
    return bytes;
  }

  std::string hazards() const {
    std::string all;
    for (const Hazard& hazard : driver.hazards()) all += hazard.describe() + "\n";
    return all;
  }
  // The kinds found so far, in order.
  std::vector<Hazard::Kind> kinds() const {
    std::vector<Hazard::Kind> found;
    for (const Hazard& hazard : driver.hazards()) found.push_back(hazard.kind);
    return found;
  }
  MemoryObserver& observer() { return *driver.memory_observer(); }

  SimDriver driver;
  ContextHandle context{};
};

}  // namespace vpmm::driver::sim
