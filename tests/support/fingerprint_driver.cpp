// SPDX-License-Identifier: Apache-2.0
// tests: what counts in a fingerprint.
#include "support/fingerprint_driver.hpp"

#include <iterator>

namespace vpmm::test {

using driver::CuResult;

void FingerprintDriver::add(Word call, CuResult result) {
  fingerprint_.add(call);
  fingerprint_.add(static_cast<std::uint64_t>(result));
}

void FingerprintDriver::add_place(DevicePtr ptr) {
  if (is_null(ptr)) return fingerprint_.add(kNull);
  const auto after = reservations_.upper_bound(ptr);
  if (after == reservations_.begin()) return fingerprint_.add(0);
  const auto& [begin, reservation] = *std::prev(after);
  if (ptr - begin >= reservation.size) return fingerprint_.add(0);
  fingerprint_.add(reservation.number);
  fingerprint_.add(ptr - begin);
}

void FingerprintDriver::add_range(AddressRange range) {
  add_place(range.begin);
  fingerprint_.add(range.size);
}

void FingerprintDriver::add_address(DevicePtr ptr) {
  fingerprint_.add(kAddress);
  add_place(ptr);
}

CuResult FingerprintDriver::mem_address_reserve(Bytes size, Bytes alignment, DevicePtr hint,
                                                DevicePtr& begin) {
  const CuResult result = ForwardingDriver::mem_address_reserve(size, alignment, hint, begin);
  if (result == CuResult::success) reservations_[begin] = {++reserved_, size};
  add(kReserve, result);
  fingerprint_.add(size);
  return result;
}

CuResult FingerprintDriver::mem_address_free(AddressRange reservation) {
  const CuResult result = ForwardingDriver::mem_address_free(reservation);
  add(kFree, result);
  add_range(reservation);
  if (result == CuResult::success) reservations_.erase(reservation.begin);
  return result;
}

CuResult FingerprintDriver::mem_create(Bytes size, const driver::ChunkProperties& properties,
                                       driver::ChunkHandle& chunk) {
  const CuResult result = ForwardingDriver::mem_create(size, properties, chunk);
  if (result == CuResult::success) chunks_[chunk] = ++created_;
  add(kCreate, result);
  fingerprint_.add(size);
  return result;
}

CuResult FingerprintDriver::mem_release(driver::ChunkHandle chunk) {
  const CuResult result = ForwardingDriver::mem_release(chunk);
  add(kRelease, result);
  fingerprint_.add(chunks_[chunk]);
  return result;
}

CuResult FingerprintDriver::mem_map(AddressRange range, Bytes offset, driver::ChunkHandle chunk) {
  const CuResult result = ForwardingDriver::mem_map(range, offset, chunk);
  add(kMap, result);
  add_range(range);
  fingerprint_.add(offset);
  fingerprint_.add(chunks_[chunk]);
  return result;
}

CuResult FingerprintDriver::mem_unmap(AddressRange range) {
  const CuResult result = ForwardingDriver::mem_unmap(range);
  add(kUnmap, result);
  add_range(range);
  return result;
}

CuResult FingerprintDriver::mem_set_access(AddressRange range,
                                           std::span<const driver::AccessDescriptor> access) {
  const CuResult result = ForwardingDriver::mem_set_access(range, access);
  add(kAccess, result);
  add_range(range);
  return result;
}

}  // namespace vpmm::test
