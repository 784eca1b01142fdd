// SPDX-License-Identifier: Apache-2.0
// driver: possible failures of each call, and the moment of a planned fault.
#include "driver/faulting.hpp"

#include <algorithm>
#include <utility>

namespace vpmm::driver {
namespace {

bool can_fail(Call call) { return !errors_that_matter(call).empty(); }

}  // namespace

std::vector<CuResult> errors_that_matter(Call call) {
  using enum CuResult;
  switch (call) {
    case Call::init: return {no_device, unknown};
    case Call::device_primary_ctx_retain: return {out_of_memory, invalid_device};
    case Call::ctx_set_current:
    case Call::ctx_get_id: return {invalid_context};
    case Call::ctx_synchronize: return {illegal_address};
    case Call::ctx_record_event:
      return {stream_capture_unsupported, not_supported, illegal_address};

    case Call::mem_create:
      return {out_of_memory, invalid_value, not_permitted, not_ready, illegal_address};
    case Call::mem_set_access:
    case Call::mem_map: return {out_of_memory, invalid_value, not_ready, illegal_address};
    case Call::mem_address_reserve: return {out_of_memory, not_ready, illegal_address};
    case Call::mem_unmap:
    case Call::mem_release:
    case Call::mem_address_free: return {invalid_value, not_ready, illegal_address};

    case Call::mem_export_to_shareable_handle:
      return {out_of_memory, invalid_value, operating_system,
              not_permitted, not_supported, illegal_address};
    case Call::mem_import_from_shareable_handle:
      return {out_of_memory, invalid_value, invalid_device, operating_system,
              not_permitted, not_supported, illegal_address};

    case Call::mem_get_info: return {illegal_address};
    case Call::mem_alloc:
    case Call::mem_pool_create: return {out_of_memory, not_supported, illegal_address};
    case Call::mem_alloc_from_pool_async:
      return {out_of_memory, invalid_value, not_supported, illegal_address};
    case Call::mem_free:
    case Call::mem_free_async:
    case Call::mem_pool_destroy:
    case Call::mem_pool_trim_to: return {invalid_value, illegal_address};
    case Call::mem_pool_set_attribute:
    case Call::mem_pool_get_attribute: return {invalid_value};
    case Call::mem_host_alloc: return {out_of_memory};
    case Call::mem_free_host: return {invalid_value};
    case Call::mem_host_register:
      return {out_of_memory, invalid_value, host_memory_already_registered, not_supported,
              illegal_address};
    case Call::mem_host_unregister:
      return {invalid_value, host_memory_not_registered, illegal_address};
    case Call::mem_host_get_device_pointer: return {invalid_value};
    case Call::mem_alloc_managed: return {out_of_memory, not_supported, illegal_address};
    case Call::mem_get_address_range: return {invalid_value, not_found};
    case Call::pointer_get_device: return {invalid_value};
    case Call::ipc_get_mem_handle: return {out_of_memory, invalid_value, map_failed, not_supported};
    case Call::ipc_open_mem_handle:
      return {out_of_memory,  invalid_value,  invalid_context, map_failed,
              invalid_handle, too_many_peers, illegal_address};
    case Call::ipc_close_mem_handle:
      return {invalid_value, map_failed, invalid_handle, illegal_address};

    case Call::memcpy_host_to_device:
    case Call::memcpy_device_to_host:
    case Call::memcpy_host_to_device_async:
    case Call::memcpy_device_to_host_async:
    case Call::memcpy_device_to_device_async:
    case Call::memset_d8:
    case Call::memset_d8_async: return {invalid_value, illegal_address};

    case Call::stream_create:
    case Call::event_create: return {out_of_memory, illegal_address};
    case Call::stream_get_id:
    case Call::stream_get_ctx: return {invalid_handle, invalid_context};
    case Call::stream_is_capturing:
    case Call::stream_get_capture_info: return {stream_capture_implicit, invalid_handle};
    case Call::stream_wait_event:
      return {out_of_memory, invalid_handle, stream_capture_isolation, illegal_address};
    case Call::event_record:
      return {out_of_memory, invalid_handle, stream_capture_implicit, illegal_address};
    case Call::event_query: return {not_ready, illegal_address};
    case Call::event_synchronize:
    case Call::stream_query:
    case Call::stream_synchronize:
    case Call::event_destroy:
    case Call::stream_destroy: return {illegal_address};
    case Call::thread_exchange_stream_capture_mode: return {invalid_value};
    case Call::user_object_create: return {out_of_memory};
    case Call::graph_retain_user_object: return {out_of_memory, invalid_value};

    case Call::driver_get_version:
    case Call::device_get_count:
    case Call::device_get_name:
    case Call::device_get_uuid:
    case Call::device_get_attribute:
    case Call::device_total_mem:
    case Call::device_can_access_peer:
    case Call::device_primary_ctx_get_state:
    case Call::device_primary_ctx_release:
    case Call::device_primary_ctx_reset:
    case Call::ctx_get_current:
    case Call::ctx_get_device:
    case Call::mem_get_allocation_granularity:
    case Call::stream_begin_capture:
    case Call::stream_end_capture:
    case Call::graph_instantiate:
    case Call::graph_launch:
    case Call::graph_destroy:
    case Call::graph_exec_destroy:
    case Call::user_object_release: return {};
  }
  return {};
}

void FaultingDriver::set_plan(FaultPlan plan) {
  MutexLock lock(mutex_);
  plan_ = std::move(plan);
  broken_by_.reset();
  counted_ = 0;
  fired_ = 0;
}

void FaultingDriver::clear_plan() {
  MutexLock lock(mutex_);
  plan_.reset();
  broken_by_.reset();
}

std::uint64_t FaultingDriver::counted() const {
  MutexLock lock(mutex_);
  return counted_;
}

std::uint64_t FaultingDriver::fired() const {
  MutexLock lock(mutex_);
  return fired_;
}

std::optional<CuResult> FaultingDriver::before(Call call) {
  MutexLock lock(mutex_);
  const std::optional<CuResult> answer = decide(call);
  if (answer) ++fired_;
  return answer;
}

std::optional<CuResult> FaultingDriver::decide(Call call) {
  if (!plan_) return std::nullopt;
  const std::vector<Call>& chosen = plan_->calls;
  const bool matches = chosen.empty()
                           ? can_fail(call)
                           : std::find(chosen.begin(), chosen.end(), call) != chosen.end();
  if (matches) ++counted_;
  if (broken_by_) return can_fail(call) ? broken_by_ : std::nullopt;
  const bool hangs = call == Call::event_query && plan_->result == CuResult::not_ready;
  const bool repeats = plan_->repeat == FaultPlan::Repeat::from_then_on && !hangs;
  const bool strikes = counted_ == plan_->nth || (counted_ > plan_->nth && repeats);
  if (!matches || !strikes) return std::nullopt;
  if (is_sticky(plan_->result)) broken_by_ = plan_->result;
  return plan_->result;
}

}  // namespace vpmm::driver
