// ipc: opening and closing memory of other processes.
#include "ipc/importer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/scope_exit.hpp"
#include "context/config.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"
#include "ipc/exporter.hpp"
#include "ipc/mapping.hpp"
#include "observe/log.hpp"

namespace vpmm::ipc {

using driver::Call;
using driver::checked;
using driver::CuResult;
using driver::DeviceOrdinal;
using driver::Driver;

namespace {

constinit std::atomic<Importer*> of_this_process{nullptr};

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

// Then nothing runs that could use the memory, and what was retained is gone. Mappings survive it.
bool is_reset(Driver& driver, driver::ContextHandle context, driver::ContextId known) {
  driver::ContextId id{};
  return driver.has(Call::ctx_get_id) && (driver.ctx_get_id(context, id) != CuResult::success || id != known);
}

Result<void> retain(Driver& driver, DeviceOrdinal device, driver::ContextHandle& context, driver::ContextId& id) {
  VPMM_TRY(checked(Call::device_primary_ctx_retain, driver.device_primary_ctx_retain(device, context)));
  if (!driver.has(Call::ctx_get_id)) return {};
  Result<void> known = checked(Call::ctx_get_id, driver.ctx_get_id(context, id));
  if (!known) driver.device_primary_ctx_release(device);
  return known;
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

Result<void> wait_for_primary(Driver& driver, DeviceOrdinal device) {
  driver::ContextHandle context{};
  VPMM_TRY(checked(Call::device_primary_ctx_retain, driver.device_primary_ctx_retain(device, context)));
  const ScopeExit release([&] { driver.device_primary_ctx_release(device); });
  const driver::ContextScope scope(driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  driver::CaptureStatus status{};
  if (driver.stream_is_capturing(driver::kLegacyStream, status) != CuResult::success)
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  const driver::RelaxedCaptureScope relaxed(driver);
  return checked(Call::ctx_synchronize, driver.ctx_synchronize());
}

Importer& Importer::of_process() {
  if (Importer* const made = of_this_process.load()) return *made;
  when_forked([] { of_this_process.store(nullptr); });
  auto fresh = std::make_unique<Importer>();
  Importer* expected = nullptr;
  if (of_this_process.compare_exchange_strong(expected, fresh.get())) return *fresh.release();
  return *expected;
}

// --- opening --------------------------------------------------------------------------------------------------------

// What CUDA's own IPC had open is closed by a reset of the context, and its address may be anybody's.
Importer::Import* Importer::find(const IpcHandle& handle, Bytes offset, std::optional<DeviceOrdinal> device) {
  for (auto at = imports_.lower_bound({handle.token, offset, -1});
       at != imports_.end() && at->first.token == handle.token && at->first.offset == offset; ++at) {
    Import& import = at->second;
    if (import.key.device != device.value_or(import.home)) continue;
    if (import.link != nullptr || !is_reset(*import.driver, import.context, import.context_id)) return &import;
    by_address_.erase(import.ptr);
    imports_.erase(at);
    return nullptr;
  }
  return nullptr;
}

Result<DevicePtr> Importer::open(Driver& driver, const IpcHandle& handle, std::optional<DeviceOrdinal> device) {
  VPMM_TRY(checked(Call::init, driver.init()));  // also so that CUDA's own precautions for fork() come before ours
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
  if (!device && handle.device != driver::Uuid{}) {
    VPMM_TRY_ASSIGN(device, device_with(driver, handle.device));
  }
  if (!token && !device)
    return Error{ErrorCode::invalid_argument, "an IPC handle of legacy memory must name its device"};
  close_late_ones();
  say_what_is_unsaid();
  free_leftovers();

  const std::pair<TokenBytes, Bytes> what{handle.token, token ? token->offset : handle.offset};
  std::unique_lock lock(mutex_);
  for (;;) {
    if (Import* const open = find(handle, what.second, device)) {
      ++open->opens;
      open->last_use = ++last_use_;
      return open->ptr;
    }
    if (opening_.insert(what).second) break;
    opened_.wait(lock);
  }
  lock.unlock();
  Import made;
  made.driver = &driver;
  made.key = {what.first, what.second, device.value_or(-1)};
  Result<void> opened = Error{};
  {
    const ScopeExit done([&] {
      lock.lock();
      opening_.erase(what);
      if (opened) {
        made.last_use = ++last_use_;
        by_address_[made.ptr] = made.key;
        imports_[made.key] = made;
      }
      opened_.notify_all();
      lock.unlock();
    });
    opened = open_first(handle, token, device, made);
  }
  if (opened) return made.ptr;
  made.link.reset();
  say_what_is_unsaid();
  return std::move(opened.error());
}

std::shared_ptr<Link> Importer::link_to(const Identity& exporter) {
  const std::lock_guard guard(mutex_);
  std::shared_ptr<Link>& link = links_[exporter];
  if (link == nullptr) link = std::make_shared<Link>(exporter);
  return link;
}

// What is open through it closes through it still.
void Importer::forget_link(const Identity& exporter, const std::shared_ptr<Link>& link) {
  const std::lock_guard guard(mutex_);
  const auto found = links_.find(exporter);
  if (found == links_.end() || found->second != link) return;
  old_links_.push_back(std::move(found->second));
  links_.erase(found);
}

// And what nobody needs any more goes: nothing is open through it, and nothing is left to say.
void Importer::say_what_is_unsaid() {
  std::vector<std::shared_ptr<Link>> speaking;
  {
    const std::lock_guard guard(mutex_);
    for (const auto& [exporter, link] : links_) speaking.push_back(link);
    speaking.insert(speaking.end(), old_links_.begin(), old_links_.end());
  }
  for (const std::shared_ptr<Link>& link : speaking) link->say_what_is_unsaid();
  speaking.clear();
  const std::lock_guard guard(mutex_);
  const auto is_done = [](const std::shared_ptr<Link>& link) {
    return link.use_count() == 1 && (link->is_broken() || link->has_said_everything());
  };
  std::erase_if(links_, [&](const auto& entry) { return is_done(entry.second); });
  std::erase_if(old_links_, is_done);
}

Result<void> Importer::open_first(const IpcHandle& handle, const std::optional<Token>& token,
                                  std::optional<DeviceOrdinal> device, Import& made) {
  Driver& driver = *made.driver;
  if (!token) {
    made.home = *device;
    if (handle.device != driver::Uuid{}) {
      VPMM_TRY_ASSIGN(made.home, device_with(driver, handle.device));
    }
    VPMM_TRY(retain(driver, made.key.device, made.context, made.context_id));
    Result<DevicePtr> begin = open_legacy(driver, made.context, handle.token);
    if (!begin) driver.device_primary_ctx_release(made.key.device);
    VPMM_TRY(begin ? Result<void>() : Result<void>(std::move(begin.error())));
    made.ptr = begin.value() + handle.offset;
    return {};
  }
  VPMM_TRY_ASSIGN(const context::IpcSettings settings, context::ipc_settings_from_environment());
  VPMM_TRY_ASSIGN(const std::string folder, socket_folder(settings.folder));
  for (;;) {
    made.link = link_to(token->process);
    Result<void> opened;
    bool was_connected = false;
    {
      Link::Turn turn(*made.link);
      Opening opening(driver, turn, std::chrono::milliseconds(settings.timeout_ms));
      Result<bool> connected = turn.connect(folder, opening.deadline());
      opened = connected ? opening.ask(handle.token, *token) : Result<void>(std::move(connected.error()));
      was_connected = connected && connected.value();
      if (opened) {
        made.home = opening.home();
        made.key.device = device.value_or(made.home);
        opened = require_reach(driver, made.key.device, made.home);
      }
      if (opened) opened = retain(driver, made.key.device, made.context, made.context_id);
      if (opened) {
        opened = opening.map_all(made.key.device, made.context);
        if (!opened) driver.device_primary_ctx_release(made.key.device);
      }
      if (opened) {
        made.ptr = opening.begin();
        made.reservation = opening.reservation();
        made.mapped = opening.reservation().size;
        made.number = opening.keep();
      }
    }  // an opening that was not kept is closed
    if (opened) return {};
    const bool is_broken = made.link->is_broken();
    if (is_broken) forget_link(token->process, made.link);
    made.link.reset();
    // The link may have broken long ago.
    if (!is_broken || !was_connected) return opened;
  }
}

// --- closing --------------------------------------------------------------------------------------------------------

// Note [Who closes last waits, and looks again]
// While it waits, others may open the memory, use it and close it again, and their work is not waited for. So the
// memory goes only if nobody has opened or closed it since before the wait.
Result<void> Importer::close(DevicePtr ptr, const Wait& wait) {
  free_leftovers();
  std::unique_lock lock(mutex_);
  std::optional<std::uint64_t> waited_since;
  for (;;) {
    const auto found = by_address_.find(ptr);
    if (found == by_address_.end())
      return Error{
          ErrorCode::invalid_pointer,
          fmt::format("{:#x} is not open: it was closed already, or is no memory of another process", to_integer(ptr))};
    Import& import = imports_.at(found->second);
    if (import.opens > 1) {
      --import.opens;
      import.last_use = ++last_use_;
      return {};
    }
    const bool was_reset = is_reset(*import.driver, import.context, import.context_id);
    if (!was_reset && waited_since != import.last_use) {
      waited_since = import.last_use;
      Driver& driver = *import.driver;
      const DeviceOrdinal device = import.key.device;
      lock.unlock();
      VPMM_TRY(wait(driver, device));
      lock.lock();
      continue;
    }
    driver::ContextHandle context = import.context;
    driver::ContextId context_id{};
    if (was_reset) VPMM_TRY(retain(*import.driver, import.key.device, context, context_id));
    Result<void> gone;
    if (import.link != nullptr)
      gone = unmap(*import.driver, context, {import.reservation.begin, import.mapped}, import.reservation);
    else if (!was_reset)  // which closed it
      gone = close_legacy(*import.driver, context, import.ptr - import.key.offset);
    if (gone || was_reset) import.driver->device_primary_ctx_release(import.key.device);
    VPMM_TRY(std::move(gone));
    const Import closed = std::move(import);
    imports_.erase(found->second);
    by_address_.erase(found);
    lock.unlock();
    if (closed.link != nullptr) closed.link->close(closed.number);
    break;
  }
  close_late_ones();
  say_what_is_unsaid();
  return {};
}

void Importer::close_some_time(DevicePtr ptr, const Wait& wait) {
  const Result<void> closed = close(ptr, wait);
  if (closed || closed.error().code == ErrorCode::invalid_pointer) return;
  const std::lock_guard guard(mutex_);
  late_.emplace_back(ptr, wait);
}

std::vector<std::pair<DevicePtr, Wait>> Importer::take_late_ones() {
  const std::lock_guard guard(mutex_);
  return std::exchange(late_, {});
}

// Each once: what cannot be closed yet is on the list again.
void Importer::close_late_ones() {
  for (const auto& [ptr, wait] : take_late_ones()) close_some_time(ptr, wait);
}

}  // namespace vpmm::ipc
