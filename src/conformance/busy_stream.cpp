// SPDX-License-Identifier: Apache-2.0
// conformance: queues work by the driver's own calls, which the managers' table lacks.
#include "conformance/busy_stream.hpp"

#include <string_view>
#include <utility>

#include "context/open_driver.hpp"
#include "driver/driver_error.hpp"
#include "settings/config.hpp"

namespace vpmm::conformance {
namespace {

using driver::Call;

constexpr Bytes kScratch = 64 * kMiB;
// An H200 fills kScratch in 20 to 30 microseconds, as on the simulator's clock; the simulator's
// host needs longer.
constexpr int kFills = 400;
constexpr int kFillsOnSimulator = 8;

template <typename T>
T value_or_throw(Result<T> result) {
  if (!result) throw_error(VPMM_ERROR_DRIVER_FAILED, result.error().message);
  return std::move(result).value();
}

void done(Call call, driver::CuResult result) {
  if (const Result<void> checked = driver::checked(call, result); !checked)
    throw_error(VPMM_ERROR_DRIVER_FAILED, checked.error().message);
}

driver::Driver& process_driver() {
  const settings::Config config = value_or_throw(settings::config_from_environment());
  return *value_or_throw(context::process_driver(config.driver));
}

DevicePtr to_device_ptr(const void* ptr) {
  return DevicePtr{reinterpret_cast<std::uintptr_t>(ptr)};
}

}  // namespace

BusyStream::BusyStream(const Subject& subject) : subject_(subject), driver_(process_driver()) {
  const emm::CurrentContext current(subject_.driver, subject_.primary);
  done(Call::mem_alloc, driver_.mem_alloc(kScratch, scratch_));
  const driver::CuResult made = driver_.stream_create(driver::StreamFlags::non_blocking, stream_);
  if (made != driver::CuResult::success) driver_.mem_free(scratch_);
  done(Call::stream_create, made);
}

BusyStream::~BusyStream() {
  const emm::CurrentContext current(subject_.driver, subject_.primary, std::nothrow);
  driver_.stream_synchronize(stream_);
  driver_.stream_destroy(stream_);
  driver_.mem_free(scratch_);
}

void BusyStream::work_for_a_while() {
  const emm::CurrentContext current(subject_.driver, subject_.primary);
  const bool is_simulated = std::string_view(driver_.name()) == "sim";
  for (int i = 0; i < (is_simulated ? kFillsOnSimulator : kFills); ++i)
    done(Call::memset_d8_async,
         driver_.memset_d8_async(scratch_, static_cast<std::uint8_t>(i), kScratch, stream_));
}

void BusyStream::copy(void* to, const void* from, std::size_t bytes) {
  const emm::CurrentContext current(subject_.driver, subject_.primary);
  done(Call::memcpy_device_to_device_async,
       driver_.memcpy_device_to_device_async(to_device_ptr(to), to_device_ptr(from), bytes,
                                             stream_));
}

void BusyStream::wait() {
  const emm::CurrentContext current(subject_.driver, subject_.primary);
  done(Call::stream_synchronize, driver_.stream_synchronize(stream_));
}

}  // namespace vpmm::conformance
