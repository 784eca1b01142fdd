// SPDX-License-Identifier: Apache-2.0
// ipc: shares, and the thread that serves them.
#include "ipc/exporter.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/quiet_thread.hpp"
#include "base/scope_exit.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"
#include "process/process_gate.hpp"

namespace vpmm::ipc {

using context::Context;
using context::Holder;
using context::ShareId;

namespace {

constexpr std::chrono::milliseconds kWithoutDescriptors{20};
// Bound of one process: 2 MiB of bookkeeping. The process mapped the memory of each lease itself.
constexpr std::size_t kMostLeases = 1 << 14;
constexpr std::size_t kMostHeard = 32;    // messages of one connection per turn
constexpr int kMostLetIn = 32;            // new connections per turn
constexpr std::size_t kMostReplaced = 8;  // sockets that wait for the thread to close them
constexpr std::chrono::seconds kForReplaced{1};

constinit std::atomic<Exporter*> exporter_of_this_process{nullptr};

// For the handler at exit; null in a forked child.
constinit std::atomic<const std::string*> socket_of_this_process{nullptr};

void forget_in_child() {
  exporter_of_this_process.store(nullptr);
  socket_of_this_process.store(nullptr);
}

void remove_socket() {
  if (const std::string* const path = socket_of_this_process.exchange(nullptr))
    unlink(path->c_str());
}

void report(const std::exception& failure) noexcept {
  observe::log(observe::LogLevel::error, "sharing memory with other processes failed: {}",
               failure.what());
}

constexpr const char* kOutOfMemory = "the process that exported the memory is out of host memory";

}  // namespace

Exporter& Exporter::of_process() {
  if (Exporter* const made = exporter_of_this_process.load()) return *made;
  when_forked(forget_in_child);
  auto fresh = std::make_unique<Exporter>();
  Exporter* expected = nullptr;
  if (exporter_of_this_process.compare_exchange_strong(expected, fresh.get()))
    return *fresh.release();
  return *expected;
}

// --- shares

Exporter::SharingPool* Exporter::find(std::uint64_t number) {
  const auto found = std::find_if(pools_.begin(), pools_.end(),
                                  [&](const SharingPool& pool) { return pool.number == number; });
  return found == pools_.end() ? nullptr : &*found;
}

Result<IpcHandle> Exporter::share(Context& context, AddressRange range) {
  IpcHandle handle;
  VPMM_TRY(driver::checked(driver::Call::device_get_uuid,
                           context.driver().device_get_uuid(context.device(), handle.device)));
  MutexLock lock(mutex_);
  VPMM_TRY(start(lock));
  if (std::none_of(pools_.begin(), pools_.end(),
                   [&](const SharingPool& pool) { return pool.context == &context; }))
    pools_.push_back({++last_pool_, &context});
  VPMM_TRY_ASSIGN(const context::SharedRange shared, context.sharing().share(range));
  ScopeExit undo([&] { context.sharing().end_lease(shared.share, Holder::handle); });
  handle.token = encode({identity_, to_integer(shared.allocation),
                         static_cast<std::uint64_t>(shared.share), shared.offset, range.size});
  ++handles_[handle.token];
  undo.dismiss();
  handle.size = range.size;
  handle.offset = shared.offset;
  return handle;
}

Result<void> Exporter::end(const Token& token) {
  const MutexLock lock(mutex_);
  const auto found = handles_.find(encode(token));
  if (found == handles_.end())
    return Error{ErrorCode::invalid_argument,
                 "this export has ended already, or is another process's"};
  --found->second;
  if (found->second == 0) handles_.erase(found);
  for (const SharingPool& pool : pools_)
    pool.context->sharing().end_lease(ShareId{token.generation}, Holder::handle);
  return {};
}

bool Exporter::is_ours(const Token& token) { return token.process == identity_; }

void Exporter::forget(Context& context) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(pools_.begin(), pools_.end(), [&](const SharingPool& pool) {
    return pool.context == &context;
  });
  if (found == pools_.end()) return;
  const std::uint64_t number = found->number;
  pools_.erase(found);
  while (busy_ == number) idle_.wait(lock);
}

// --- the thread

Result<void> Exporter::start(MutexLock& lock) {
  if (is_running_) return stay_reachable(lock);
  VPMM_TRY_ASSIGN(settings_, settings::ipc_settings_from_environment());
  VPMM_TRY_ASSIGN(const std::string folder, socket_folder(settings_.folder));
  sweep(folder);
  path_ = socket_path(folder, identity_);
  VPMM_TRY(listen());
  if (!removes_socket_at_exit_) process::run_at_exit(remove_socket);
  removes_socket_at_exit_ = true;
  socket_of_this_process.store(&path_);
  const Result<void> started = start_quiet_thread("vpmm-ipc", [this] { serve(); });
  is_running_ = started.ok();
  if (is_running_) return {};
  remove_socket();
  listeners_.clear();
  return started.error();
}

// Note [A removed socket is made anew]
// Cleaners empty folders while processes run for weeks, and a handle that no process can open is
// worse than an error. So every export checks that the path still leads to the listening socket,
// and otherwise binds another one there, also for earlier handles. Connections do not need the path
// and stay. The thread closes the old socket, once it has admitted all connections to it; a
// shutdown of the socket wakes the thread.
Result<void> Exporter::stay_reachable(MutexLock& lock) {
  VPMM_TRY(socket_folder(settings_.folder));
  const auto is_reachable = [&]() VPMM_REQUIRES(mutex_) {
    return file_ && file_ == socket_file(path_);
  };
  const auto may_replace = [&]()
                               VPMM_REQUIRES(mutex_) { return listeners_.size() <= kMostReplaced; };
  if (is_reachable()) return {};
  if (!idle_.wait_for(lock, kForReplaced, may_replace))
    return Error{ErrorCode::host_out_of_memory,
                 "sockets that were removed are not closed yet: this process may have as many "
                 "descriptors open as it may (ulimit -n)"};
  if (is_reachable()) return {};  // another thread made it meanwhile
  const int replaced = listeners_.back().get();
  VPMM_TRY(listen());
  shutdown(replaced, SHUT_RD);
  observe::log(observe::LogLevel::info, "the socket at {} was removed and is made anew", path_);
  return {};
}

Result<void> Exporter::listen() {
  listeners_.reserve(listeners_.size() + 1);  // may throw, so before the path is taken
  VPMM_TRY_ASSIGN(Descriptor listener, listen_at(path_));
  listeners_.push_back(std::move(listener));
  file_ = socket_file(path_);
  return {};
}

// Logs failures and retries unfinished work before the next wait.
void Exporter::serve() {
  for (bool is_behind = false; !process::is_ending();) {
    try {
      if (!is_behind) wait_for_something();
      const process::GateEntry entry;
      if (!entry.open()) return;
      serve_once();
      is_behind = false;
    } catch (const std::exception& exception) {
      if (!is_behind) report(exception);
      is_behind = true;
      std::this_thread::sleep_for(kWithoutDescriptors);
    }
  }
}

void Exporter::serve_once() {
  for (Connection& connection : clients_.connections()) attend(connection);
  clients_.remove_gone();
  for (Connected& client : clients_.all()) give_back_leases(client);
  clients_.remove_gone();
  take_new_importers();  // last: ended connections have made room
}

void Exporter::wait_for_something() {
  std::vector<pollfd> asked;
  const auto add = [&](int file) { asked.push_back({file, POLLIN, 0}); };
  auto until = Clock::now() + std::chrono::hours(1);
  if (Clock::now() >= accepts_again_)
    add(listening());
  else
    until = std::min(until, accepts_again_);
  for (const Connected& client : clients_.all()) {
    if (client.process)
      add(client.process.get());
    else if (client.connections == 0)
      until = std::min(until, client.grace);
  }
  for (const Connection& connection : clients_.connections()) {
    if (connection.unsent)
      until = std::min(until, connection.try_again);
    else
      add(connection.channel.get());
    if (!connection.delivery) continue;
    until = std::min(until, connection.delivery->deadline);
    if (!connection.unsent && connection.delivery->may_send_more())
      until = std::min(until, connection.try_again);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  // Asks every connection, after any result.
  poll(asked.data(), asked.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000)));
}

void Exporter::take_new_importers() {
  for (int i = 0; i < kMostLetIn; ++i) {
    bool is_short = false;
    const bool is_replaced = has_next_listener();  // from then on no connection reaches the old one
    Channel channel = accept_from(listening(), is_short);
    if (is_short) accepts_again_ = Clock::now() + kWithoutDescriptors;
    if (!channel && (is_short || !is_replaced)) return;
    if (!channel) {
      take_next_listener();
      continue;
    }
    try {
      const Result<void> admitted = clients_.admit(channel);
      if (admitted) continue;
      Clients::turn_away(channel, admitted.error().code, admitted.error().message);
    } catch (const std::bad_alloc&) {
      Clients::turn_away(channel, ErrorCode::host_out_of_memory, kOutOfMemory);
    }
  }
}

int Exporter::listening() {
  const MutexLock lock(mutex_);
  return listeners_.front().get();
}

bool Exporter::has_next_listener() {
  const MutexLock lock(mutex_);
  return listeners_.size() > 1;
}

void Exporter::take_next_listener() {
  const MutexLock lock(mutex_);
  listeners_.erase(listeners_.begin());
  idle_.notify_all();
}

// --- one connection

void Exporter::attend(Connection& connection) {
  const bool is_dead = connection.client->process && connection.client->has_ended();
  connection.send_again();
  hear(connection);
  if (!connection.channel) return;
  // A connection that does not read its answer in time is lost.
  if (is_dead || (connection.unsent && Clock::now() >= connection.give_up)) return lose(connection);
  if (connection.delivery) deliver(connection);
}

// Reads at most kMostHeard messages, so that others get their turn, and none while an answer is
// unsent.
void Exporter::hear(Connection& connection) {
  for (std::size_t heard = 0; heard < kMostHeard && !connection.unsent; ++heard) {
    if (!connection.channel.wait_to_receive(Clock::now())) return;
    const auto received = connection.channel.receive(Clock::now(), Channel::Files::none);
    // An importer of another version learns from the answer's version which one this is.
    if (!received)
      Clients::turn_away(connection.channel, ErrorCode::not_shared,
                         "the process that exported the memory cannot read this one's message");
    if (!received || !received.value() || !answer(connection, received.value()->message))
      return lose(connection);
  }
}

// Returns an error if the connection is of no more use.
Result<void> Exporter::answer(Connection& connection, const Message& message) {
  const auto disorder = [] {
    return Error{ErrorCode::not_shared, "the importer does not keep to the protocol"};
  };
  switch (message.kind) {
    case MessageKind::open: {
      if (connection.delivery ||
          connection.client->leases.contains({connection.number, message.number}))
        return disorder();
      open(connection, message);
      return {};
    }
    case MessageKind::received: {
      if (!connection.delivery || message.number != connection.delivery->number)
        return {};  // its delivery was cut short
      Delivery& delivery = *connection.delivery;
      if (message.count > delivery.next || message.count <= delivery.received) return disorder();
      delivery.received = message.count;
      delivery.deadline = soon();
      if (delivery.received == delivery.chunks.size()) connection.delivery.reset();
      return {};
    }
    case MessageKind::close:
      if (connection.delivery && connection.delivery->number == message.number)
        connection.delivery.reset();
      connection.client->end_lease({connection.number, message.number});
      return {};
    default: return disorder();
  }
}

// Makes the entry before the lease, so that no lease is lost.
void Exporter::open(Connection& connection, const Message& message) {
  auto& leases = connection.client->leases;
  if (leases.size() >= kMostLeases)
    return refuse(
        connection, message.number, ErrorCode::not_shared,
        "this process has as much memory of the one that exported it open as it may have");
  try {
    const Connected::LeaseKey key{connection.number, message.number};
    Lease& lease = leases[key];
    ScopeExit undo([&] { connection.client->end_lease(key); });
    const Result<void> granted = grant(connection, message, lease);
    if (granted) return undo.dismiss();
    refuse(connection, message.number, granted.error().code, granted.error().message);
  } catch (const std::bad_alloc&) {
    refuse(connection, message.number, ErrorCode::host_out_of_memory, kOutOfMemory);
  }
}

Result<void> Exporter::grant(Connection& connection, const Message& message, Lease& lease) {
  VPMM_TRY_ASSIGN(const Token token, decode(message.token));
  if (token.process != identity_)
    return Error{ErrorCode::not_shared,
                 "the process that exported the memory is gone, and this is another one"};
  Message granted;
  granted.kind = MessageKind::granted;
  granted.number = message.number;
  VPMM_TRY_ASSIGN(connection.delivery, lease_chunks(token, lease, granted));
  connection.delivery->number = message.number;
  connection.send(granted, soon());
  return {};
}

// Sets lease.pool if there is a lease to end, also on failure.
Result<Delivery> Exporter::lease_chunks(const Token& token, Lease& lease, Message& granted) {
  const MutexLock lock(mutex_);
  Error refusal{ErrorCode::not_shared, "the memory was freed by the process that exported it"};
  const ShareId share{token.generation};
  for (const SharingPool& pool : pools_) {
    Result<context::SharedChunks> shared =
        pool.context->sharing().lease(share, token.offset, token.size);
    if (!shared) {
      if (shared.error().code != ErrorCode::not_shared) refusal = std::move(shared.error());
      continue;
    }
    lease.pool = pool.number;
    lease.share = share;
    Delivery delivery;
    delivery.pool = pool.number;
    delivery.chunks = std::move(shared.value().chunks);
    delivery.deadline = soon();
    granted.offset = shared.value().offset;
    granted.chunks = delivery.chunks.size();
    for (const auto& chunk : delivery.chunks) granted.bytes += chunk.size;
    VPMM_TRY(driver::checked(
        driver::Call::device_get_uuid,
        pool.context->driver().device_get_uuid(pool.context->device(), granted.device)));
    return Result<Delivery>(std::move(delivery));
  }
  return refusal;
}

Result<driver::Driver*> Exporter::begin_to_export(std::uint64_t pool) {
  const MutexLock lock(mutex_);
  const SharingPool* const found = find(pool);
  if (found == nullptr)
    return Error{ErrorCode::not_shared, "the pool that the memory was of is gone"};
  busy_ = pool;
  return &found->context->driver();
}

void Exporter::end_exporting() {
  const MutexLock lock(mutex_);
  busy_ = 0;
  idle_.notify_all();
}

// Sends one batch, if the bound on descriptors allows. The lease keeps the chunks alive during the
// export without the lock.
void Exporter::deliver(Connection& connection) {
  Delivery& delivery = *connection.delivery;
  if (Clock::now() >= delivery.deadline)
    return cut_short(connection,
                     {ErrorCode::not_shared, "what was asked for was not taken in time"});
  if (connection.unsent || Clock::now() < connection.try_again || !delivery.may_send_more()) return;
  const std::size_t count = std::min(kBatch, delivery.chunks.size() - delivery.next);
  Message batch;
  batch.kind = MessageKind::batch;
  batch.number = delivery.number;
  batch.count = static_cast<std::uint32_t>(count);
  std::vector<Descriptor> files;
  files.reserve(count);  // so that no exception closes a descriptor while another is made
  const Result<driver::Driver*> driver = begin_to_export(delivery.pool);
  if (!driver) return cut_short(connection, driver.error());
  driver::CuResult exported = driver::CuResult::success;
  {
    const ScopeExit done([&] { end_exporting(); });
    for (std::size_t i = 0; i < count; ++i) {
      const auto& chunk = delivery.chunks[delivery.next + i];
      batch.sizes[i] = chunk.size;
      int file = -1;
      Descriptor::Making making;
      exported = driver.value()->mem_export_to_shareable_handle(chunk.handle, file);
      if (exported != driver::CuResult::success) break;
      fcntl(file, F_SETFD, FD_CLOEXEC);
      files.push_back(making.adopt(file));
    }
  }
  if (exported != driver::CuResult::success)
    return cut_short(connection,
                     driver::driver_error(driver::Call::mem_export_to_shareable_handle, exported));
  const std::size_t after = delivery.next + count;
  if (connection.try_batch(batch, files)) delivery.next = after;
}

// Refuses the opening. Its lease ends as others do, for the importer may have mapped some chunks.
void Exporter::cut_short(Connection& connection, const Error& error) {
  const std::uint64_t number = connection.delivery->number;
  connection.delivery.reset();
  refuse(connection, number, error.code, error.message);
}

void Exporter::refuse(Connection& connection, std::uint64_t number, ErrorCode code,
                      std::string_view why) const {
  connection.refuse(number, code, why, soon());
}

// Gives back ended leases, and all of an ended process. On an exception the rest waits for the next
// turn.
void Exporter::give_back_leases(Connected& client) {
  if (client.connections == 0 && client.has_ended()) client.end_all_leases();
  while (!client.over.empty()) {
    const Lease& lease = client.over.begin()->second;
    const MutexLock lock(mutex_);
    if (const SharingPool* const pool = find(lease.pool))
      pool->context->sharing().end_lease(lease.share, Holder::importer);
    client.over.erase(client.over.begin());
  }
}

// Ends leases that the importer closed before it went: an importer that gives up an opening closes
// it and hangs up. Other leases stay until their process has ended.
void Exporter::lose(Connection& connection) {
  shutdown(connection.channel.get(), SHUT_RD);  // no further messages
  for (;;) {
    const auto received = connection.channel.receive(Clock::now(), Channel::Files::none);
    if (!received || !received.value()) break;
    const Message& message = received.value()->message;
    if (message.kind == MessageKind::close)
      connection.client->end_lease({connection.number, message.number});
  }
  connection.channel.reset();
  connection.client->grace = Clock::now() + std::chrono::milliseconds(settings_.grace_ms);
  if (connection.has_leases())
    observe::log(observe::LogLevel::info, "process {} let go of shared memory without closing it",
                 connection.client->number);
}

}  // namespace vpmm::ipc
