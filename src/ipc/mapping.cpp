// ipc: importing, mapping and unmapping chunks of other processes.
#include "ipc/mapping.hpp"

#include <mutex>
#include <utility>
#include <vector>

#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"
#include "ipc/importer.hpp"
#include "observe/log.hpp"

namespace vpmm::ipc {

using driver::Call;
using driver::checked;
using driver::CuResult;
using driver::Driver;

namespace {

Error disorder() {
  return {ErrorCode::not_shared, "the process that exported the memory does not keep to the protocol"};
}

// Address space that the driver would not take back.
struct Leftovers {
  std::mutex mutex;
  std::vector<std::pair<Driver*, AddressRange>> list;
};

Leftovers& leftovers() {
  static auto* const all = new Leftovers;
  return *all;
}

}  // namespace

Opening::Opening(Driver& driver, Link::Turn& turn, std::chrono::milliseconds patience)
    : driver_(driver), turn_(turn), patience_(patience), number_(turn.next_number()) {}

Opening::~Opening() {
  if (is_kept_) return;
  if (!reservation_.empty()) {
    const Result<void> undone = unmap(driver_, context_, {reservation_.begin, mapped_}, reservation_);
    if (!undone)
      observe::log(observe::LogLevel::warning, "opening shared memory was not undone: {}", undone.error().message);
  }
  if (is_asked_) turn_.close(number_);
}

std::uint64_t Opening::keep() {
  is_kept_ = true;
  return number_;
}

Result<void> Opening::ask(const TokenBytes& bytes, const Token& token) {
  Message message;
  message.kind = MessageKind::open;
  message.number = number_;
  message.token = bytes;
  // Who turns us away says why and hangs up, perhaps before the question is there.
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

Result<void> Opening::map_all(driver::DeviceOrdinal device, driver::ContextHandle context) {
  context_ = context;
  const driver::ContextScope scope(driver_, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  DevicePtr begin{};
  VPMM_TRY(checked(Call::mem_address_reserve, driver_.mem_address_reserve(terms_.bytes, 0, DevicePtr{}, begin)));
  reservation_ = {begin, terms_.bytes};
  for (std::uint64_t chunks = 0; chunks < terms_.chunks;) {
    VPMM_TRY_ASSIGN(const Received batch, turn_.hear(number_, deadline()));
    if (batch.message.count > terms_.chunks - chunks) return disorder();
    VPMM_TRY(map_batch(batch, device));
    chunks += batch.message.count;
    Message received;
    received.kind = MessageKind::received;
    received.number = number_;
    received.count = static_cast<std::uint32_t>(chunks);
    VPMM_TRY(turn_.say(received, deadline()));
  }
  if (mapped_ != terms_.bytes) return disorder();
  return {};
}

// Each chunk is held by its mapping alone from here on.
Result<void> Opening::map_batch(const Received& batch, driver::DeviceOrdinal device) {
  const Message& message = batch.message;
  if (message.kind != MessageKind::batch || message.count == 0 || message.count > kMostInFlight ||
      batch.files.size() != message.count)
    return disorder();
  AddressRange added{reservation_.begin + mapped_, 0};
  for (std::size_t i = 0; i < message.count; ++i) {
    const Bytes size = message.sizes[i];
    if (size == 0 || size > reservation_.size - mapped_) return disorder();
    driver::ChunkHandle chunk{};
    VPMM_TRY(checked(Call::mem_import_from_shareable_handle,
                     driver_.mem_import_from_shareable_handle(batch.files[i].get(), chunk)));
    Result<void> mapped = checked(Call::mem_map, driver_.mem_map({reservation_.begin + mapped_, size}, 0, chunk));
    if (mapped) mapped_ += size;
    Result<void> released = checked(Call::mem_release, driver_.mem_release(chunk));
    VPMM_TRY(std::move(mapped));
    VPMM_TRY(std::move(released));
    added.size += size;
  }
  const driver::AccessDescriptor access{device};
  return checked(Call::mem_set_access, driver_.mem_set_access(added, {&access, 1}));
}

Result<void> unmap(Driver& driver, driver::ContextHandle context, AddressRange mapped, AddressRange reservation) {
  const driver::ContextScope scope(driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  if (!mapped.empty()) VPMM_TRY(checked(Call::mem_unmap, driver.mem_unmap(mapped)));
  if (driver.mem_address_free(reservation) == CuResult::success) return {};
  const std::lock_guard guard(leftovers().mutex);
  leftovers().list.emplace_back(&driver, reservation);
  return {};
}

void free_leftovers() {
  const std::lock_guard guard(leftovers().mutex);
  std::erase_if(leftovers().list,
                [](const auto& left) { return left.first->mem_address_free(left.second) == CuResult::success; });
}

Result<DevicePtr> open_legacy(Driver& driver, driver::ContextHandle context, const TokenBytes& token) {
  const driver::ContextScope scope(driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  DevicePtr begin{};
  const CuResult result = driver.ipc_open_mem_handle(token, begin);
  if (result == CuResult::invalid_context)
    return Error{ErrorCode::invalid_argument,
                 "an IPC handle cannot be opened in the process that exported it: use the memory itself"};
  if (result == CuResult::invalid_handle)
    return Error{ErrorCode::not_shared, "the process that exported the memory is gone, or has freed it"};
  VPMM_TRY(checked(Call::ipc_open_mem_handle, result));
  return begin;
}

Result<void> close_legacy(Driver& driver, driver::ContextHandle context, DevicePtr begin) {
  const driver::ContextScope scope(driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  return checked(Call::ipc_close_mem_handle, driver.ipc_close_mem_handle(begin));
}

}  // namespace vpmm::ipc
