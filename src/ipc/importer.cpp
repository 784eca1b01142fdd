// SPDX-License-Identifier: Apache-2.0
// ipc: opens and closes memory of other processes.
#include "ipc/importer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "base/scope_exit.hpp"
#include "driver/context_scope.hpp"
#include "driver/driver_error.hpp"
#include "ipc/exporter.hpp"
#include "settings/config.hpp"

namespace vpmm::ipc {

using driver::Call;
using driver::checked;
using driver::CuResult;
using driver::DeviceOrdinal;
using driver::Driver;

namespace {

constinit std::atomic<Importer*> importer_of_this_process{nullptr};

Result<void> require_reach(Driver& driver, DeviceOrdinal device, DeviceOrdinal home) {
  if (device == home) return {};
  bool can = false;
  VPMM_TRY(checked(Call::device_can_access_peer, driver.device_can_access_peer(device, home, can)));
  if (can) return {};
  return Error{ErrorCode::unsupported,
               fmt::format("device {} has no peer access to device {}, which the shared memory is "
                           "on: open a staged copy",
                           device, home)};
}

// Makes an entry before it is needed, so that noting open memory cannot fail.
template <typename Map>
typename Map::node_type new_entry() {
  Map one;
  one.emplace();
  return one.extract(one.begin());
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
  VPMM_TRY(
      checked(Call::device_primary_ctx_retain, driver.device_primary_ctx_retain(device, context)));
  const ScopeExit release([&] { driver.device_primary_ctx_release(device); });
  const driver::ContextScope scope(driver, context);
  VPMM_TRY(checked(Call::ctx_set_current, scope.result()));
  driver::CaptureStatus status{};
  const CuResult seen = driver.stream_is_capturing(driver::kLegacyStream, status);
  if (seen == CuResult::stream_capture_implicit)
    return Error{ErrorCode::capture_active, "a stream is being captured"};
  VPMM_TRY(checked(Call::stream_is_capturing, seen));
  const driver::RelaxedCaptureScope relaxed(driver);
  return checked(Call::ctx_synchronize, driver.ctx_synchronize());
}

Importer& Importer::of_process() {
  if (Importer* const made = importer_of_this_process.load()) return *made;
  auto fresh = std::make_unique<Importer>();
  Importer* expected = nullptr;
  if (importer_of_this_process.compare_exchange_strong(expected, fresh.get()))
    return *fresh.release();
  return *expected;
}

// --- opening

// Drops an entry of CUDA's own IPC after a reset of its context: the reset closed it, and its
// address may be reused.
Importer::Import* Importer::find(const IpcHandle& handle, Bytes offset,
                                 std::optional<DeviceOrdinal> device) {
  for (auto at = imports_.lower_bound({handle.token, offset, -1});
       at != imports_.end() && at->first.token == handle.token && at->first.offset == offset;
       ++at) {
    Import& import = at->second;
    if (import.key.device != device.value_or(import.home)) continue;
    if (import.link == nullptr && handle.size > import.legacy_size) continue;  // to be refused
    if (import.link != nullptr || !import.context.is_reset()) return &import;
    by_address_.erase(import.ptr);
    imports_.erase(at);
    return nullptr;
  }
  return nullptr;
}

Result<DevicePtr> Importer::open(Driver& driver, const IpcHandle& handle,
                                 std::optional<DeviceOrdinal> device) {
  VPMM_TRY(checked(Call::init,
                   driver.init()));  // before our handlers, so that CUDA's own precautions for
                                     // fork() come first
  std::optional<Token> token;
  if (handle.kind == TokenKind::pool) {
    VPMM_TRY_ASSIGN(token, decode(handle.token));
    if (handle.size != 0 && handle.size != token->size)
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("the IPC handle says {} bytes, and its token {}", handle.size, token->size)};
    if (Exporter::of_process().is_ours(*token))
      return Error{
          ErrorCode::invalid_argument,
          "an IPC handle cannot be opened in the process that exported it: use the memory itself"};
  }
  if (!device && handle.device != driver::Uuid{}) {
    VPMM_TRY_ASSIGN(device, device_with(driver, handle.device));
  }
  if (!token && !device)
    return Error{ErrorCode::invalid_argument,
                 "an IPC handle of legacy memory must name its device"};
  close_late_ones();
  say_what_is_unsaid();
  free_leftovers();

  const TokenAndOffset what{handle.token, token ? token->offset : handle.offset};
  if (const std::optional<DevicePtr> open = join_or_begin(what, handle, device)) return *open;
  const ScopeExit done([&] { end_opening(what); });
  Result<DevicePtr> opened = open_new(driver, handle, token, device, what.second);
  if (!opened) say_what_is_unsaid();
  return opened;
}

// Returns the address of memory that is open already; nullopt: the caller opens it, then calls
// end_opening().
std::optional<DevicePtr> Importer::join_or_begin(const TokenAndOffset& what,
                                                 const IpcHandle& handle,
                                                 std::optional<DeviceOrdinal> device) {
  MutexLock lock(mutex_);
  for (;;) {
    if (Import* const open = find(handle, what.second, device)) {
      ++open->opens;
      open->last_use = ++last_use_;
      return open->ptr;
    }
    const bool is_first = opening_.insert(what).second;
    if (is_first) return std::nullopt;
    opened_.wait(lock);
  }
}

void Importer::end_opening(const TokenAndOffset& what) {
  const MutexLock lock(mutex_);
  opening_.erase(what);
  opened_.notify_all();
}

Result<DevicePtr> Importer::open_new(Driver& driver, const IpcHandle& handle,
                                     const std::optional<Token>& token,
                                     std::optional<DeviceOrdinal> device, Bytes offset) {
  auto import = new_entry<Imports>();
  auto address = new_entry<Addresses>();
  Import& made = import.mapped();
  made.driver = &driver;
  made.key = {handle.token, offset, device.value_or(-1)};
  VPMM_TRY(token ? open_pool_memory(handle, *token, device, made)
                 : open_legacy_memory(handle, made));
  import.key() = address.mapped() = made.key;
  address.key() = made.ptr;
  const MutexLock lock(mutex_);
  made.last_use = ++last_use_;
  // A reset closed the stale memory of CUDA's own IPC at this address; that of a pool has
  // addresses of its own.
  if (const auto stale = by_address_.find(made.ptr); stale != by_address_.end()) {
    imports_.erase(stale->second);
    by_address_.erase(stale);
  }
  by_address_.insert(std::move(address));
  imports_.insert(std::move(import));
  return made.ptr;
}

Result<void> Importer::open_legacy_memory(const IpcHandle& handle, Import& made) {
  if (handle.device != driver::Uuid{}) VPMM_TRY(device_with(*made.driver, handle.device));
  VPMM_TRY_ASSIGN(made.context, RetainedContext::retain(*made.driver, made.key.device));
  VPMM_TRY_ASSIGN(const AddressRange memory,
                  open_legacy(*made.driver, made.context.handle(), handle.token));
  if (handle.offset >= memory.size || handle.size > memory.size - handle.offset) {
    // Drops a failure: the handle is what the caller can mend.
    static_cast<void>(close_legacy(*made.driver, made.context.handle(), memory.begin));
    return Error{ErrorCode::invalid_argument,
                 fmt::format("the IPC handle says {} bytes at offset {}, which are not inside the "
                             "memory of {} bytes",
                             handle.size, handle.offset, memory.size)};
  }
  made.ptr = memory.begin + handle.offset;
  made.legacy_size = memory.size - handle.offset;
  return {};
}

Result<void> Importer::open_pool_memory(const IpcHandle& handle, const Token& token,
                                        std::optional<DeviceOrdinal> device, Import& made) {
  Driver& driver = *made.driver;
  VPMM_TRY_ASSIGN(const settings::IpcSettings settings, settings::ipc_settings_from_environment());
  VPMM_TRY_ASSIGN(const std::string folder, socket_folder(settings.folder));
  for (;;) {
    made.link = link_to(token.process);
    Result<void> opened;
    bool was_connected = false;
    {
      Link::Turn turn(*made.link);
      Opening opening(driver, turn, std::chrono::milliseconds(settings.timeout_ms));
      Result<bool> connected = turn.connect(folder, opening.deadline());
      opened =
          connected ? opening.ask(handle.token, token) : Result<void>(std::move(connected.error()));
      was_connected = connected && connected.value();
      if (opened) {
        made.home = opening.home();
        made.key.device = device.value_or(made.home);
        opened = require_reach(driver, made.key.device, made.home);
      }
      if (opened) opened = opening.map_all(made.key.device);
      if (opened) {
        made.ptr = opening.begin();
        Opening::Kept kept = std::move(opening).keep();
        made.context = std::move(kept.context);
        made.mapping = std::move(kept.mapping);
        made.closing = std::move(kept.closing);
      }
    }  // closes an opening that was not kept
    if (opened) return {};
    const bool is_broken = made.link->is_broken();
    made.link.reset();
    // The link may have broken long ago.
    if (!is_broken || !was_connected) return opened;
  }
}

// --- links

// Memory opened through a broken link still closes through it.
std::shared_ptr<Link> Importer::link_to(const Identity& exporter) {
  const MutexLock lock(mutex_);
  for (const std::shared_ptr<Link>& link : links_)
    if (link->exporter() == exporter && !link->is_broken()) return link;
  links_.push_back(std::make_shared<Link>(exporter));
  return links_.back();
}

std::shared_ptr<Link> Importer::link_at(std::size_t place) {
  const MutexLock lock(mutex_);
  return place < links_.size() ? links_[place] : nullptr;
}

// Takes a link that is broken or has no closing left to send off the list. Null: none.
std::shared_ptr<Link> Importer::take_unused_link() {
  const MutexLock lock(mutex_);
  const auto unused = std::find_if(links_.begin(), links_.end(), [](const auto& link) {
    return link.use_count() == 1 && (link->is_broken() || link->has_said_everything());
  });
  if (unused == links_.end()) return nullptr;
  std::shared_ptr<Link> taken = std::move(*unused);
  links_.erase(unused);
  return taken;
}

// Passes over links that change their place, until the next call. Unused links end without the
// lock: the exporter chooses how long that lasts.
void Importer::say_what_is_unsaid() noexcept {
  for (std::size_t place = 0; const std::shared_ptr<Link> link = link_at(place); ++place)
    link->say_what_is_unsaid(Link::Patience::none);
  for (auto unused = take_unused_link(); unused; unused = take_unused_link()) unused.reset();
}

// --- closing

// Note [The last close waits, and looks again]
// During the wait other threads may open, use and close the memory again, and their work is not
// waited for. So the memory goes only if no thread has opened or closed it since before the wait.
Result<void> Importer::close_now(DevicePtr ptr, const Wait& wait, Link::Patience patience) {
  free_leftovers();
  MutexLock lock(mutex_);
  std::optional<std::uint64_t> waited_since;
  for (;;) {
    const auto found = by_address_.find(ptr);
    if (found == by_address_.end())
      return Error{
          ErrorCode::invalid_pointer,
          fmt::format(
              "{:#x} is not open: it was closed already, or is no memory of another process",
              to_integer(ptr))};
    const auto open = imports_.find(found->second);
    Import& import = open->second;
    if (import.opens > 1) {
      --import.opens;
      import.last_use = ++last_use_;
      return {};
    }
    const bool was_reset = import.context.is_reset();
    if (!was_reset && waited_since != import.last_use) {
      waited_since = import.last_use;
      Driver& driver = *import.driver;
      const DeviceOrdinal device = import.key.device;
      lock.unlock();
      VPMM_TRY(wait(driver, device));
      lock.lock();
      continue;
    }
    if (import.link != nullptr) {
      if (was_reset) {
        VPMM_TRY_ASSIGN(import.context, RetainedContext::retain(*import.driver, import.key.device));
      }
      VPMM_TRY(unmap(import.context.handle(), import.mapping));
    } else if (!was_reset) {  // the reset closed it
      VPMM_TRY(
          close_legacy(*import.driver, import.context.handle(), import.ptr - import.key.offset));
    }
    by_address_.erase(found);
    auto closed = imports_.extract(open);
    lock.unlock();
    if (import.link != nullptr) import.link->close(std::move(import.closing), patience);
    return {};
  }
}

Result<void> Importer::close(DevicePtr ptr, const Wait& wait) {
  VPMM_TRY(close_now(ptr, wait, Link::Patience::a_second));
  close_late_ones();
  say_what_is_unsaid();
  return {};
}

// Returns true if the memory is closed now, or never was open.
bool Importer::close_or_note(DevicePtr ptr, Wait wait, Link::Patience patience) noexcept {
  try {
    const Result<void> closed = close_now(ptr, wait, patience);
    if (closed || closed.error().code == ErrorCode::invalid_pointer) return true;
  } catch (const std::exception&) {  // out of host memory: still open, as after any other failure
  }
  const MutexLock lock(mutex_);
  const auto found = by_address_.find(ptr);
  if (found != by_address_.end()) imports_.find(found->second)->second.late = std::move(wait);
  return false;
}

void Importer::close_some_time(DevicePtr ptr, Wait wait) noexcept {
  if (!close_or_note(ptr, std::move(wait), Link::Patience::a_second)) return;
  close_late_ones();
  say_what_is_unsaid();
}

std::optional<std::pair<DevicePtr, Wait>> Importer::take_late_one(std::optional<DevicePtr> after) {
  const MutexLock lock(mutex_);
  for (auto at = after ? by_address_.upper_bound(*after) : by_address_.begin();
       at != by_address_.end(); ++at)
    if (Wait& late = imports_.find(at->second)->second.late)
      return std::pair(at->first, std::exchange(late, nullptr));
  return std::nullopt;
}

// Tries each once, by address: memory that cannot be closed yet is late again.
void Importer::close_late_ones() noexcept {
  std::optional<DevicePtr> last;
  while (auto late = take_late_one(last)) {
    last = late->first;
    close_or_note(late->first, std::move(late->second), Link::Patience::none);
  }
}

}  // namespace vpmm::ipc
