// SPDX-License-Identifier: Apache-2.0
// tests: a fingerprint of everything that an allocator did: the memory calls it made, in their
// order, and the addresses it handed out.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>

#include "driver/forwarding.hpp"

namespace vpmm::test {

// FNV-1a over 64 bits (http://www.isthe.com/chongo/tech/comp/fnv/).
class Fingerprint {
 public:
  void add_byte(std::uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3ULL; }
  void add(std::uint64_t word) {
    for (int shift = 0; shift < 64; shift += 8) add_byte(static_cast<std::uint8_t>(word >> shift));
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xcbf29ce484222325ULL;
};

// Addresses count as which reservation, by order, and where in it, and chunks by the order of their
// creation, so that the same calls have the same fingerprint wherever the system puts reservations.
// Single-threaded.
class FingerprintDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;

  void add_address(DevicePtr ptr);
  void add_refusal() { fingerprint_.add(kRefusal); }
  // Of what has been added so far. What the pool does as it ends is left out: it gives chunks back
  // in any order.
  void take() { taken_ = fingerprint_.value(); }
  std::uint64_t taken() const { return taken_; }

  driver::CuResult mem_address_reserve(Bytes size, Bytes alignment, DevicePtr hint,
                                       DevicePtr& begin) override;
  driver::CuResult mem_address_free(AddressRange reservation) override;
  driver::CuResult mem_create(Bytes size, const driver::ChunkProperties& properties,
                              driver::ChunkHandle& chunk) override;
  driver::CuResult mem_release(driver::ChunkHandle chunk) override;
  driver::CuResult mem_map(AddressRange range, Bytes offset, driver::ChunkHandle chunk) override;
  driver::CuResult mem_unmap(AddressRange range) override;
  driver::CuResult mem_set_access(AddressRange range,
                                  std::span<const driver::AccessDescriptor> access) override;

 private:
  // Values of their own, so that a new call of the driver changes no fingerprint.
  enum Word : std::uint64_t {
    kReserve = 1,
    kFree,
    kCreate,
    kRelease,
    kMap,
    kUnmap,
    kAccess,
    kAddress,
    kRefusal,
    kNull
  };
  struct Reservation {
    std::uint64_t number = 0;
    Bytes size = 0;
  };

  void add(Word call, driver::CuResult result);
  void add_place(DevicePtr ptr);
  void add_range(AddressRange range);

  Fingerprint fingerprint_;
  std::uint64_t taken_ = 0;
  std::map<DevicePtr, Reservation> reservations_;
  std::uint64_t reserved_ = 0;
  std::unordered_map<driver::ChunkHandle, std::uint64_t> chunks_;
  std::uint64_t created_ = 0;
};

}  // namespace vpmm::test
