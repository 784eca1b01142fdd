// SPDX-License-Identifier: Apache-2.0
// fault tests: the global operator new.
#include "fault/host_faults.hpp"

#include <cstdlib>
#include <new>

namespace vpmm::fault {
namespace {

struct State {
  int inside = 0;  // calls into the pool
  int exempt = 0;  // calls into the driver, and work of the test
  std::uint64_t counted = 0;
  std::uint64_t fired = 0;
  std::uint64_t failing = 0;  // which allocation fails; 0: none
  bool repeats = false;
};
constinit thread_local State state;

bool fails() {
  if (state.inside == 0 || state.exempt != 0) return false;
  ++state.counted;
  if (state.failing == 0 || state.counted < state.failing) return false;
  if (state.counted > state.failing && !state.repeats) return false;
  ++state.fired;
  return true;
}

void* allocate(std::size_t bytes, std::size_t alignment) noexcept {
  if (fails()) return nullptr;
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const memory = allocate(bytes, alignment)) return memory;
  throw std::bad_alloc();
}

constexpr std::size_t kDefault = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void HostFaults::arm(std::uint64_t n, Repeat repeat) {
  disarm();
  state.failing = n;
  state.repeats = repeat == Repeat::from_then_on;
}

void HostFaults::disarm() {
  state.counted = state.fired = state.failing = 0;
  state.repeats = false;
}

std::uint64_t HostFaults::counted() { return state.counted; }
std::uint64_t HostFaults::fired() { return state.fired; }

InsidePool::InsidePool() { ++state.inside; }
InsidePool::~InsidePool() { --state.inside; }

Exempt::Exempt() { ++state.exempt; }
Exempt::~Exempt() { --state.exempt; }

void ExemptDriver::on_allocate(AddressRange range, driver::StreamHandle stream) {
  const Exempt exempt;
  observer_->on_allocate(range, stream);
}
void ExemptDriver::on_allocate_any_stream(AddressRange range) {
  const Exempt exempt;
  observer_->on_allocate_any_stream(range);
}
void ExemptDriver::on_deallocate(AddressRange range, driver::StreamHandle stream) {
  const Exempt exempt;
  observer_->on_deallocate(range, stream);
}
void ExemptDriver::on_deallocate_any_stream(AddressRange range) {
  const Exempt exempt;
  observer_->on_deallocate_any_stream(range);
}

void ExemptDriver::sleep_ns(std::uint64_t ns) {
  const Exempt exempt;
  ForwardingDriver::sleep_ns(ns);
}

std::optional<driver::CuResult> ExemptDriver::before(driver::Call /*call*/) {
  ++state.exempt;
  return std::nullopt;
}
void ExemptDriver::after(driver::Call /*call*/, driver::CuResult /*result*/,
                         std::uint64_t /*duration_ns*/) {
  --state.exempt;
}

}  // namespace vpmm::fault

using vpmm::fault::allocate;
using vpmm::fault::allocate_or_throw;
using vpmm::fault::kDefault;

void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, kDefault); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, kDefault); }
void* operator new(std::size_t bytes, std::align_val_t to) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(to));
}
void* operator new[](std::size_t bytes, std::align_val_t to) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(to));
}
void* operator new(std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return allocate(bytes, kDefault);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  return allocate(bytes, kDefault);
}
void* operator new(std::size_t bytes, std::align_val_t to, const std::nothrow_t& /*tag*/) noexcept {
  return allocate(bytes, static_cast<std::size_t>(to));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t /*bytes*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t /*to*/) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t /*to*/) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*to*/) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::size_t /*bytes*/, std::align_val_t /*to*/) noexcept {
  std::free(memory);
}
