// SPDX-License-Identifier: Apache-2.0
// ipc: imports, maps and unmaps chunks of other processes.
#include "ipc/mapping.hpp"

#include <limits>
#include <utility>

#include "base/mutex.hpp"
#include "base/scope_exit.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"
#include "ipc/importer.hpp"

namespace vpmm::ipc {

using driver::Call;
using driver::checked;
using driver::CuResult;
using driver::Driver;

namespace {

Error disorder() {
  return {ErrorCode::not_shared,
          "the process that exported the memory does not keep to the protocol"};
}

// Mappings that the driver refused to take back.
struct Leftovers {
  Mutex mutex;
  std::list<MappedRange> list VPMM_GUARDED_BY(mutex);
};

Leftovers& leftovers() {
  static auto* const all = new Leftovers;
  return *all;
}

void leave_over(OwnMapping& mapping) noexcept {
  const MutexLock lock(leftovers().mutex);
  leftovers().list.splice(leftovers().list.end(), mapping);
}

std::list<MappedRange> take_leftovers() noexcept {
  const MutexLock lock(leftovers().mutex);
  return std::exchange(leftovers().list, {});
}

// Notes each part given back, also if a later part fails. Requires: the context is current if
// memory is mapped.
CuResult give_back(MappedRange& mapping) noexcept {
  if (mapping.mapped != 0) {
    const CuResult unmapped =
        mapping.driver->mem_unmap({mapping.reservation.begin, mapping.mapped});
    if (unmapped != CuResult::success) return unmapped;
    mapping.mapped = 0;
  }
  return mapping.driver->mem_address_free(mapping.reservation);
}

bool is_given_back(MappedRange& mapping) noexcept {
  if (mapping.mapped == 0) return give_back(mapping) == CuResult::success;
  driver::ContextHandle context{};
  if (mapping.driver->device_primary_ctx_retain(mapping.device, context) != CuResult::success)
    return false;
  const ScopeExit release([&] { mapping.driver->device_primary_ctx_release(mapping.device); });
  const driver::ContextScope scope(*mapping.driver, context);
  return scope.result() == CuResult::success && give_back(mapping) == CuResult::success;
}

}  // namespace

// --- the context

Result<RetainedContext> RetainedContext::retain(Driver& driver, driver::DeviceOrdinal device) {
  RetainedContext made;
  VPMM_TRY(checked(Call::device_primary_ctx_retain,
                   driver.device_primary_ctx_retain(device, made.handle_)));
  if (driver.has(Call::ctx_get_id)) {
    const CuResult known = driver.ctx_get_id(made.handle_, made.id_);
    if (known != CuResult::success) {
      driver.device_primary_ctx_release(device);
      return driver::driver_error(Call::ctx_get_id, known);
    }
  }
  made.driver_ = &driver;
  made.device_ = device;
  return Result<RetainedContext>(std::move(made));
}

RetainedContext& RetainedContext::operator=(RetainedContext&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  std::swap(id_, other.id_);
  return *this;
}

RetainedContext::~RetainedContext() {
  if (driver_ != nullptr && !is_reset()) driver_->device_primary_ctx_release(device_);
}

bool RetainedContext::is_reset() const {
  driver::ContextId id{};
  return driver_->has(Call::ctx_get_id) &&
         (driver_->ctx_get_id(handle_, id) != CuResult::success || id != id_);
}

// --- an opening

Opening::Opening(Driver& driver, Link::Turn& turn, std::chrono::milliseconds patience)
    : driver_(driver),
      turn_(turn),
      patience_(patience),
      number_(turn.next_number()),
      closing_({number_}),
      mapping_({MappedRange{&driver}}) {}

Opening::~Opening() {
  if (closing_.empty()) return;
  if (!mapping_.front().reservation.empty()) {
    const driver::ContextScope scope(driver_, context_.handle());
    if (scope.result() != CuResult::success || give_back(mapping_.front()) != CuResult::success)
      leave_over(mapping_);
  }
  if (is_asked_) turn_.close(std::move(closing_));
}

Opening::Kept Opening::keep() && {
  return {std::move(context_), std::move(mapping_), std::exchange(closing_, {})};
}

Result<void> Opening::ask(const TokenBytes& bytes, const Token& token) {
  Message message;
  message.kind = MessageKind::open;
  message.number = number_;
  message.token = bytes;
  // An exporter that refuses the connection says why and hangs up, perhaps before the question
  // arrives.
  const Result<void> said = turn_.say(message, deadline());
  is_asked_ = said.ok();
  VPMM_TRY_ASSIGN(const Received granted, turn_.hear(number_, said ? deadline() : Clock::now()));
  terms_ = granted.message;
  if (terms_.kind != MessageKind::granted || terms_.chunks == 0 || terms_.bytes < token.size ||
      terms_.offset > terms_.bytes - token.size)
    return disorder();
  VPMM_TRY_ASSIGN(home_, device_with(driver_, terms_.device));
  return {};
}

Result<void> Opening::map_all(driver::DeviceOrdinal device) {
  VPMM_TRY_ASSIGN(context_, RetainedContext::retain(driver_, device));
  MappedRange& mapping = mapping_.front();
  mapping.device = device;
  const driver::ContextScope scope(driver_, context_.handle());
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  DevicePtr begin{};
  VPMM_TRY(checked(Call::mem_address_reserve,
                   driver_.mem_address_reserve(terms_.bytes, 0, DevicePtr{}, begin)));
  mapping.reservation = {begin, terms_.bytes};
  for (std::uint64_t chunks = 0; chunks < terms_.chunks;) {
    VPMM_TRY_ASSIGN(Received batch, turn_.hear(number_, deadline()));
    if (batch.message.count > terms_.chunks - chunks) return disorder();
    VPMM_TRY(map_batch(batch));
    chunks += batch.message.count;
    Message received;
    received.kind = MessageKind::received;
    received.number = number_;
    received.count = static_cast<std::uint32_t>(chunks);
    VPMM_TRY(turn_.say(received, deadline()));
  }
  if (mapping.mapped != terms_.bytes) return disorder();
  return {};
}

// Imports, maps and releases each chunk: its mapping alone keeps the chunk from here on.
Result<void> Opening::map_batch(Received& batch) {
  const Message& message = batch.message;
  if (message.kind != MessageKind::batch || message.count == 0 || message.count > kMostInFlight ||
      batch.files.size() != message.count)
    return disorder();
  MappedRange& mapping = mapping_.front();
  AddressRange added{mapping.reservation.begin + mapping.mapped, 0};
  for (std::size_t i = 0; i < message.count; ++i) {
    const Bytes size = message.sizes[i];
    if (size == 0 || size > mapping.reservation.size - mapping.mapped) return disorder();
    driver::ChunkHandle chunk{};
    VPMM_TRY(checked(Call::mem_import_from_shareable_handle,
                     driver_.mem_import_from_shareable_handle(batch.files[i].get(), chunk)));
    const CuResult mapped =
        driver_.mem_map({mapping.reservation.begin + mapping.mapped, size}, 0, chunk);
    if (mapped == CuResult::success) mapping.mapped += size;
    const CuResult released =
        driver_.mem_release(chunk);  // before an error is made, which needs memory
    VPMM_TRY(checked(Call::mem_map, mapped));
    VPMM_TRY(checked(Call::mem_release, released));
    batch.files[i].reset();  // at once, so that no child inherits a chunk
    added.size += size;
  }
  const driver::AccessDescriptor access{mapping.device};
  return checked(Call::mem_set_access, driver_.mem_set_access(added, {&access, 1}));
}

Result<void> unmap(driver::ContextHandle context, OwnMapping& mapping) {
  const driver::ContextScope scope(*mapping.front().driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  const CuResult result = give_back(mapping.front());
  if (mapping.front().mapped != 0) return driver::driver_error(Call::mem_unmap, result);
  if (result != CuResult::success) leave_over(mapping);
  mapping.clear();
  return {};
}

void free_leftovers() noexcept {
  for (std::list<MappedRange> left = take_leftovers(); !left.empty();) {
    OwnMapping one;
    one.splice(one.end(), left, left.begin());
    if (!is_given_back(one.front())) leave_over(one);
  }
}

// --- legacy

Result<AddressRange> open_legacy(Driver& driver, driver::ContextHandle context,
                                 const TokenBytes& token) {
  const driver::ContextScope scope(driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  DevicePtr begin{};
  const CuResult result = driver.ipc_open_mem_handle(token, begin);
  if (result == CuResult::invalid_context)
    return Error{
        ErrorCode::invalid_argument,
        "an IPC handle cannot be opened in the process that exported it: use the memory itself"};
  if (result == CuResult::invalid_handle)
    return Error{ErrorCode::not_shared,
                 "the process that exported the memory is gone, or has freed it"};
  VPMM_TRY(checked(Call::ipc_open_mem_handle, result));
  AddressRange allocation;
  const CuResult known = driver.mem_get_address_range(begin, allocation);
  if (known == CuResult::success) return AddressRange{begin, allocation.end() - begin};
  // CUDA's manual does not promise an answer for memory of another process.
  if (known == CuResult::not_found || known == CuResult::invalid_value)
    return AddressRange{begin, std::numeric_limits<Bytes>::max()};
  driver.ipc_close_mem_handle(begin);
  return driver::driver_error(Call::mem_get_address_range, known);
}

Result<void> close_legacy(Driver& driver, driver::ContextHandle context, DevicePtr begin) {
  const driver::ContextScope scope(driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  return checked(Call::ipc_close_mem_handle, driver.ipc_close_mem_handle(begin));
}

}  // namespace vpmm::ipc
