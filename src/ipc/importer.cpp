// ipc: opening and closing memory of other processes.
#include "ipc/importer.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "base/scope_exit.hpp"
#include "context/config.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"
#include "ipc/exporter.hpp"
#include "observe/log.hpp"

namespace vpmm::ipc {

using driver::Call;
using driver::checked;
using driver::CuResult;
using driver::DeviceOrdinal;
using driver::Driver;

namespace {

constinit std::atomic<Importer*> of_this_process{nullptr};

Error not_shared(std::string message) { return {ErrorCode::not_shared, std::move(message)}; }

// As vpmm_status numbers, from another process that may be newer.
ErrorCode code_of(const Message& refusal) {
  const auto code = static_cast<ErrorCode>(refusal.status);
  return code == ErrorCode::invalid_argument || code == ErrorCode::unsupported ? code : ErrorCode::not_shared;
}

Result<void> require_reach(Driver& driver, DeviceOrdinal device, DeviceOrdinal home) {
  if (device == home) return {};
  bool can = false;
  VPMM_TRY(checked(Call::device_can_access_peer, driver.device_can_access_peer(device, home, can)));
  if (can) return {};
  return Error{
      ErrorCode::unsupported,
      fmt::format("device {} has no peer access to device {}, which the shared memory is on: open a staged copy",
                  device, home)};
}

}  // namespace

Result<DeviceOrdinal> device_with(Driver& driver, const driver::Uuid& identity) {
  int count = 0;
  VPMM_TRY(checked(Call::init, driver.init()));
  VPMM_TRY(checked(Call::device_get_count, driver.device_get_count(count)));
  for (DeviceOrdinal device = 0; device < count; ++device) {
    driver::Uuid found{};
    VPMM_TRY(checked(Call::device_get_uuid, driver.device_get_uuid(device, found)));
    if (found == identity) return device;
  }
  return Error{ErrorCode::unsupported,
               fmt::format("the shared memory is on device GPU-{}, which this process does not see "
                           "(CUDA_VISIBLE_DEVICES)",
                           to_hex(identity))};
}

Importer& Importer::of_process() {
  if (Importer* const made = of_this_process.load()) return *made;
  when_forked([] { of_this_process.store(nullptr); });
  auto fresh = std::make_unique<Importer>();
  Importer* expected = nullptr;
  if (of_this_process.compare_exchange_strong(expected, fresh.get())) return *fresh.release();
  return *expected;
}

Importer::Import* Importer::find(const Key& key) {
  const auto found = imports_.find(key);
  return found == imports_.end() ? nullptr : &found->second;
}

// --- opening --------------------------------------------------------------------------------------------------------

Result<DevicePtr> Importer::open(Driver& driver, const IpcHandle& handle, std::optional<DeviceOrdinal> device) {
  std::optional<Token> token;
  if (handle.kind == Kind::pool) {
    VPMM_TRY_ASSIGN(token, decode(handle.token));
    if (handle.size != 0 && handle.size != token->size)
      return Error{ErrorCode::invalid_argument,
                   fmt::format("the IPC handle says {} bytes, and its token {}", handle.size, token->size)};
    if (Exporter::of_process().is_ours(*token))
      return Error{ErrorCode::invalid_argument,
                   "an IPC handle cannot be opened in the process that exported it: use the memory itself"};
  }
  VPMM_TRY(checked(Call::init, driver.init()));
  if (!device && handle.device != driver::Uuid{}) {
    VPMM_TRY_ASSIGN(device, device_with(driver, handle.device));
  }
  const std::lock_guard guard(mutex_);
  Import made;
  made.driver = &driver;
  made.key = {handle.token, token ? token->offset : handle.offset, device.value_or(-1)};
  if (Import* const open = find(made.key)) {
    ++open->opens;
    return open->ptr;
  }
  if (!token && !device)
    return Error{ErrorCode::invalid_argument, "an IPC handle of legacy memory must name its device"};
  VPMM_TRY(token ? open_pool(handle, *token, device, made) : open_legacy(handle, made));
  if (Import* const open = find(made.key)) {  // only the exporter knew the device
    static_cast<void>(give_back(made));       // what it opened twice stays open once
    ++open->opens;
    return open->ptr;
  }
  by_address_[made.ptr] = made.key;
  const DevicePtr ptr = made.ptr;
  imports_.emplace(made.key, std::move(made));
  return ptr;
}

Result<void> Importer::retain(Import& made) {
  Driver& driver = *made.driver;
  VPMM_TRY(checked(Call::device_primary_ctx_retain, driver.device_primary_ctx_retain(made.key.device, made.context)));
  if (driver.has(Call::ctx_get_id)) static_cast<void>(driver.ctx_get_id(made.context, made.context_id));
  return {};
}

Result<void> Importer::open_legacy(const IpcHandle& handle, Import& made) {
  Driver& driver = *made.driver;
  VPMM_TRY(retain(made));
  const driver::ContextScope scope(driver, made.context);
  Result<void> opened = checked(Call::ctx_set_current, scope.result());
  DevicePtr begin{};
  if (opened) {
    const CuResult result = driver.ipc_open_mem_handle(handle.token, begin);
    opened = checked(Call::ipc_open_mem_handle, result);
    if (result == CuResult::invalid_context)
      opened = Error{ErrorCode::invalid_argument,
                     "an IPC handle cannot be opened in the process that exported it: use the memory itself"};
    if (result == CuResult::invalid_handle)
      opened = not_shared("the process that exported the memory is gone, or has freed it");
  }
  if (!opened) {
    driver.device_primary_ctx_release(made.key.device);
    return opened;
  }
  made.ptr = begin + handle.offset;
  return {};
}

// A link that has failed is used no more, but what is open through it closes through it.
Result<std::shared_ptr<Importer::Link>> Importer::link_to(const Identity& exporter, Deadline deadline) {
  if (const auto known = links_.find(exporter); known != links_.end()) {
    if (std::shared_ptr<Link> link = known->second.lock()) return link;
    links_.erase(known);
  }
  VPMM_TRY_ASSIGN(const context::IpcSettings settings, context::ipc_settings_from_environment());
  VPMM_TRY_ASSIGN(const std::string folder, socket_folder(settings.folder));
  VPMM_TRY_ASSIGN(Channel channel, connect_to(socket_path(folder, exporter), deadline));
  VPMM_TRY_ASSIGN(const Peer peer, peer_of(channel));
  if (peer.user != geteuid())
    return not_shared(fmt::format("the socket of the process that exported the memory belongs to user {}, not to {}",
                                  peer.user, geteuid()));
  auto link = std::make_shared<Link>();
  link->channel = std::move(channel);
  links_[exporter] = link;
  return link;
}

Result<Received> Importer::hear(Import& made, Deadline deadline) {
  for (;;) {
    VPMM_TRY_ASSIGN(std::optional<Received> received, made.link->channel.receive(deadline));
    if (!received) return not_shared("the process that exported the memory is gone");
    const bool is_for_all = received->message.kind == MessageKind::refused && received->message.number == 0;
    if (received->message.number != made.number && !is_for_all) continue;  // of an opening that was given up
    if (received->message.kind == MessageKind::refused)
      return Error{code_of(received->message), received->message.said()};
    return std::move(*received);
  }
}

Result<void> Importer::open_pool(const IpcHandle& handle, const Token& token, std::optional<DeviceOrdinal> device,
                                 Import& made) {
  VPMM_TRY_ASSIGN(const context::IpcSettings settings, context::ipc_settings_from_environment());
  const auto soon = [&] { return Clock::now() + std::chrono::milliseconds(settings.timeout_ms); };
  VPMM_TRY_ASSIGN(made.link, link_to(token.process, soon()));
  made.number = ++made.link->last_number;
  bool is_open = false;
  // Also where the answer did not come in time: the exporter hears both, one after the other.
  const ScopeExit tell([&] {
    if (is_open) return;
    say_closed(made);
    made.link.reset();
  });
  Message message;
  message.kind = MessageKind::open;
  message.number = made.number;
  message.token = handle.token;
  Result<void> asked = made.link->channel.send(message, {}, soon());
  Result<Received> granted = asked ? hear(made, soon()) : Result<Received>(std::move(asked.error()));
  if (!granted) {
    if (granted.error().code == ErrorCode::not_shared) links_.erase(token.process);
    return std::move(granted.error());
  }
  const Message& terms = granted.value().message;
  if (terms.kind != MessageKind::granted || terms.chunks == 0 || terms.bytes < token.size ||
      terms.offset > terms.bytes - token.size)
    return not_shared("the process that exported the memory does not keep to the protocol");
  VPMM_TRY_ASSIGN(const DeviceOrdinal home, device_with(*made.driver, terms.device));
  made.key.device = device.value_or(home);
  VPMM_TRY(require_reach(*made.driver, made.key.device, home));
  VPMM_TRY(retain(made));
  Result<void> mapped = map_all(terms, made);
  if (!mapped) {
    made.driver->device_primary_ctx_release(made.key.device);
    return mapped;
  }
  made.ptr = made.reservation.begin + terms.offset;
  is_open = true;
  return {};
}

// Undoes what it did when it fails.
Result<void> Importer::map_all(const Message& granted, Import& made) {
  Driver& driver = *made.driver;
  VPMM_TRY_ASSIGN(const context::IpcSettings settings, context::ipc_settings_from_environment());
  const driver::ContextScope scope(driver, made.context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  DevicePtr begin{};
  VPMM_TRY(checked(Call::mem_address_reserve, driver.mem_address_reserve(granted.bytes, 0, DevicePtr{}, begin)));
  made.reservation = {begin, granted.bytes};
  Result<void> mapped;
  for (std::uint64_t chunks = 0; mapped && chunks < granted.chunks;) {
    const Deadline deadline = Clock::now() + std::chrono::milliseconds(settings.timeout_ms);
    Result<Received> batch = hear(made, deadline);
    mapped = batch ? map_batch(batch.value(), made) : Result<void>(std::move(batch.error()));
    if (!mapped) break;
    chunks += batch.value().message.count;
    Message received;
    received.kind = MessageKind::received;
    received.number = made.number;
    received.count = static_cast<std::uint32_t>(chunks);
    mapped = made.link->channel.send(received, {}, deadline);
  }
  if (mapped && made.mapped != granted.bytes)
    mapped = not_shared("the process that exported the memory does not keep to the protocol");
  if (mapped) return {};
  if (Result<void> undone = unmap(made); !undone)
    observe::log(observe::LogLevel::warning, "opening shared memory was not undone: {}", undone.error().message);
  return mapped;
}

// Each chunk is held by its mapping alone from here on.
Result<void> Importer::map_batch(const Received& batch, Import& made) {
  const Message& message = batch.message;
  if (message.kind != MessageKind::batch || message.count == 0 || message.count > kMostInFlight ||
      batch.files.size() != message.count)
    return not_shared("the process that exported the memory does not keep to the protocol");
  Driver& driver = *made.driver;
  AddressRange added{made.reservation.begin + made.mapped, 0};
  for (std::size_t i = 0; i < message.count; ++i) {
    const Bytes size = message.sizes[i];
    if (size == 0 || size > made.reservation.size - made.mapped)
      return not_shared("the process that exported the memory does not keep to the protocol");
    driver::ChunkHandle chunk{};
    VPMM_TRY(checked(Call::mem_import_from_shareable_handle,
                     driver.mem_import_from_shareable_handle(batch.files[i].get(), chunk)));
    Result<void> mapped =
        checked(Call::mem_map, driver.mem_map({made.reservation.begin + made.mapped, size}, 0, chunk));
    if (mapped) made.mapped += size;
    Result<void> released = checked(Call::mem_release, driver.mem_release(chunk));
    VPMM_TRY(std::move(mapped));
    VPMM_TRY(std::move(released));
    added.size += size;
  }
  const driver::AccessDescriptor access{made.key.device};
  return checked(Call::mem_set_access, driver.mem_set_access(added, {&access, 1}));
}

Result<void> Importer::unmap(Import& import) {
  Driver& driver = *import.driver;
  if (import.mapped != 0) {
    VPMM_TRY(checked(Call::mem_unmap, driver.mem_unmap({import.reservation.begin, import.mapped})));
    import.mapped = 0;
  }
  VPMM_TRY(checked(Call::mem_address_free, driver.mem_address_free(import.reservation)));
  import.reservation = {};
  return {};
}

// --- closing --------------------------------------------------------------------------------------------------------

// Then nothing runs that could use the memory, and what was retained is gone. Mappings survive it.
bool Importer::is_reset(const Import& import) {
  driver::ContextId id{};
  return import.driver->has(Call::ctx_get_id) &&
         (import.driver->ctx_get_id(import.context, id) != CuResult::success || id != import.context_id);
}

Result<void> Importer::synchronize(const Import& import) {
  if (is_reset(import)) return {};
  const driver::ContextScope scope(*import.driver, import.context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  const CuResult result = import.driver->ctx_synchronize();
  if (result == CuResult::stream_capture_unsupported || result == CuResult::stream_capture_implicit)
    return Error{ErrorCode::capture_active, "shared memory is not closed while a stream is being captured"};
  return checked(Call::ctx_synchronize, result);
}

Result<void> Importer::close(DevicePtr ptr) {
  std::unique_lock lock(mutex_);
  for (bool is_idle = false;; is_idle = true) {
    const auto found = by_address_.find(ptr);
    if (found == by_address_.end())
      return Error{
          ErrorCode::invalid_pointer,
          fmt::format("{:#x} is not open: it was closed already, or is no memory of another process", to_integer(ptr))};
    Import& import = *find(found->second);
    if (import.opens > 1) {
      --import.opens;
      return {};
    }
    if (is_idle) {
      VPMM_TRY(give_back(import));
      by_address_.erase(found);
      imports_.erase(import.key);
      return {};
    }
    const Import idle = import;
    lock.unlock();
    VPMM_TRY(synchronize(idle));
    lock.lock();
  }
}

// Requires: nothing on the GPU uses it. It stays open when it fails.
Result<void> Importer::give_back(Import& import) {
  Driver& driver = *import.driver;
  const bool was_reset = is_reset(import);
  if (was_reset) VPMM_TRY(retain(import));
  {
    const driver::ContextScope scope(driver, import.context);
    VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
    if (import.link != nullptr) {
      VPMM_TRY(unmap(import));
      say_closed(import);
    } else if (!was_reset) {  // a reset closed it
      VPMM_TRY(checked(Call::ipc_close_mem_handle,
                       driver.ipc_close_mem_handle(DevicePtr{to_integer(import.ptr) - import.key.offset})));
    }
  }
  driver.device_primary_ctx_release(import.key.device);
  return {};
}

// An exporter that is gone needs no word.
void Importer::say_closed(const Import& import) {
  Message message;
  message.kind = MessageKind::close;
  message.number = import.number;
  static_cast<void>(import.link->channel.send(message, {}, Clock::now() + std::chrono::seconds(1)));
}

}  // namespace vpmm::ipc
