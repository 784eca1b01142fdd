// SPDX-License-Identifier: Apache-2.0
// tests: a fingerprint tells what an allocator did from everything else that it could have done,
// and from where.
#include "replay/fingerprint.hpp"

#include <gtest/gtest.h>

#include <array>

#include "driver/sim/sim_driver.hpp"
#include "support/page_size.hpp"

namespace vpmm::replay {
namespace {

using test::Fingerprint;
using test::FingerprintDriver;

using driver::CuResult;

TEST(Fingerprint, is_fnv_1a) {
  Fingerprint fingerprint;
  EXPECT_EQ(fingerprint.value(), 0xcbf29ce484222325ULL);
  fingerprint.add(0x7261626f6f66);  // "foobar" and two zero bytes
  Fingerprint same;
  for (const char each : {'f', 'o', 'o', 'b', 'a', 'r', '\0', '\0'})
    same.add_byte(static_cast<unsigned char>(each));
  EXPECT_EQ(fingerprint.value(), same.value());
  Fingerprint foobar;
  for (const char each : {'f', 'o', 'o', 'b', 'a', 'r'})
    foobar.add_byte(static_cast<unsigned char>(each));
  EXPECT_EQ(foobar.value(), 0x85944171f73967e8ULL);
}

struct Steps {
  Bytes lead = kPage;  // address space that is reserved before the driver is watched
  Bytes at = 0;        // where the first of two chunks is mapped
  std::array<std::size_t, 2> order{0, 1};  // in which they are mapped
  Bytes given = 0;                         // the address handed out
};

std::uint64_t fingerprint_of(const Steps& steps) {
  driver::sim::SimDriver sim{driver::sim::SimOptions{}};
  EXPECT_EQ(sim.init(), CuResult::success);
  driver::ContextHandle context{};
  EXPECT_EQ(sim.device_primary_ctx_retain(0, context), CuResult::success);
  EXPECT_EQ(sim.ctx_set_current(context), CuResult::success);
  DevicePtr lead{};
  EXPECT_EQ(sim.mem_address_reserve(steps.lead, 0, DevicePtr{}, lead), CuResult::success);
  FingerprintDriver driver(sim);
  DevicePtr begin{};
  EXPECT_EQ(driver.mem_address_reserve(64 * kPage, 0, DevicePtr{}, begin), CuResult::success);
  std::array<driver::ChunkHandle, 2> chunks{};
  for (driver::ChunkHandle& chunk : chunks)
    EXPECT_EQ(driver.mem_create(kPage, {}, chunk), CuResult::success);
  const std::array<AddressRange, 2> ranges{AddressRange{begin + steps.at, kPage},
                                           {begin + 32 * kPage, kPage}};
  for (const std::size_t i : steps.order)
    EXPECT_EQ(driver.mem_map(ranges[i], 0, chunks[i]), CuResult::success);
  driver.add_address(begin + steps.given);
  driver.take();
  for (const AddressRange range : ranges) EXPECT_EQ(driver.mem_unmap(range), CuResult::success);
  for (const driver::ChunkHandle chunk : chunks)
    EXPECT_EQ(driver.mem_release(chunk), CuResult::success);
  EXPECT_EQ(driver.mem_address_free({begin, 64 * kPage}), CuResult::success);
  return driver.taken();
}

TEST(FingerprintDriver, does_not_care_where_the_system_puts_a_reservation) {
  EXPECT_EQ(fingerprint_of({}), fingerprint_of({}));
  EXPECT_EQ(fingerprint_of({}), fingerprint_of({.lead = kTiB}));
}

TEST(FingerprintDriver, tells_places_orders_and_addresses_handed_out_apart) {
  EXPECT_NE(fingerprint_of({}), fingerprint_of({.at = kPage}));
  EXPECT_NE(fingerprint_of({}), fingerprint_of({.order = {1, 0}}));
  EXPECT_NE(fingerprint_of({}), fingerprint_of({.given = 256}));
}

}  // namespace
}  // namespace vpmm::replay
