// ipc: shares, and the thread that serves them.
#include "ipc/exporter.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
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
#include "context/process_gate.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"

namespace vpmm::ipc {

using context::Context;
using context::Holder;
using context::ShareId;

namespace {

constexpr std::chrono::milliseconds kWithoutDescriptors{20};
constexpr std::chrono::milliseconds kBetweenTries{10};
constexpr std::size_t kMostUnsent = 64;                    // of one importer that asks and does not listen
constexpr std::size_t kMostLeases = std::size_t{1} << 20;  // likewise

constinit std::atomic<Exporter*> of_this_process{nullptr};

// For the handler at exit; the child of a fork has none.
constinit std::atomic<const std::string*> socket_of_this_process{nullptr};

void forget_in_child() {
  of_this_process.store(nullptr);
  socket_of_this_process.store(nullptr);
}

void remove_socket() {
  if (const std::string* const path = socket_of_this_process.exchange(nullptr)) unlink(path->c_str());
}

bool can_read(const Descriptor& file) {
  pollfd asked{file.get(), POLLIN, 0};
  return poll(&asked, 1, 0) > 0;
}

}  // namespace

Exporter& Exporter::of_process() {
  if (Exporter* const made = of_this_process.load()) return *made;
  when_forked(forget_in_child);
  auto fresh = std::make_unique<Exporter>();
  Exporter* expected = nullptr;
  if (of_this_process.compare_exchange_strong(expected, fresh.get())) return *fresh.release();
  return *expected;
}

// --- shares ---------------------------------------------------------------------------------------------------------

Exporter::Pool* Exporter::find(std::uint64_t number) {
  const auto found =
      std::find_if(pools_.begin(), pools_.end(), [&](const Pool& pool) { return pool.number == number; });
  return found == pools_.end() ? nullptr : &*found;
}

Result<IpcHandle> Exporter::share(Context& context, AddressRange range) {
  IpcHandle handle;
  VPMM_TRY(driver::checked(driver::Call::device_get_uuid,
                           context.driver().device_get_uuid(context.device(), handle.device)));
  const std::lock_guard guard(mutex_);
  VPMM_TRY(start());
  VPMM_TRY_ASSIGN(const context::SharedRange shared, context.share(range));
  if (std::none_of(pools_.begin(), pools_.end(), [&](const Pool& pool) { return pool.context == &context; }))
    pools_.push_back({++last_pool_, &context});
  handle.token = encode(
      {identity_, to_integer(shared.allocation), static_cast<std::uint64_t>(shared.share), shared.offset, range.size});
  ++handles_[handle.token];
  handle.size = range.size;
  handle.offset = shared.offset;
  return handle;
}

Result<void> Exporter::end(const Token& token) {
  const std::lock_guard guard(mutex_);
  const auto found = handles_.find(encode(token));
  if (found == handles_.end())
    return Error{ErrorCode::invalid_argument, "this export has ended already, or is another process's"};
  if (--found->second == 0) handles_.erase(found);
  for (const Pool& pool : pools_) pool.context->end_lease(ShareId{token.generation}, Holder::handle);
  return {};
}

bool Exporter::is_ours(const Token& token) { return token.process == identity_; }

void Exporter::forget(Context& context) {
  std::unique_lock lock(mutex_);
  const auto found =
      std::find_if(pools_.begin(), pools_.end(), [&](const Pool& pool) { return pool.context == &context; });
  if (found == pools_.end()) return;
  const std::uint64_t number = found->number;
  pools_.erase(found);
  idle_.wait(lock, [&] { return busy_ != number; });
}

// --- the thread -----------------------------------------------------------------------------------------------------

Result<void> Exporter::start() {
  if (is_running_) return {};
  VPMM_TRY_ASSIGN(settings_, context::ipc_settings_from_environment());
  VPMM_TRY_ASSIGN(const std::string folder, socket_folder(settings_.folder));
  sweep(folder);
  path_ = socket_path(folder, identity_);
  VPMM_TRY_ASSIGN(listener_, listen_at(path_));
  if (!std::exchange(removes_socket_at_exit_, true)) context::run_at_exit(remove_socket);
  socket_of_this_process.store(&path_);
  const Result<void> started = start_quiet_thread("vpmm-ipc", [this] { serve(); });
  is_running_ = started.ok();
  if (is_running_) return {};
  remove_socket();
  listener_.reset();
  return started.error();
}

// What goes wrong with one message is not the others' concern, and the process is none of it.
void Exporter::serve() {
  while (!context::process_is_ending()) {
    try {
      wait_for_something();
      const context::GateEntry entry;
      if (!entry.open()) return;
      serve_once();
    } catch (const std::exception& exception) {
      observe::log(observe::LogLevel::error, "sharing memory with other processes failed: {}", exception.what());
      std::this_thread::sleep_for(kWithoutDescriptors);
    }
  }
}

void Exporter::serve_once() {
  take_new_importers();
  for (Importer& importer : importers_) {
    const bool is_dead = importer.process && has_ended(importer);
    if (!importer.is_gone()) hear(importer);
    if (is_dead && !importer.is_gone()) lose(importer);
    while (importer.is_gone() && !importer.leases.empty() && has_ended(importer))
      end_lease(importer, importer.leases.begin()->first);
  }
  importers_.remove_if([](const Importer& importer) { return importer.is_gone() && importer.leases.empty(); });
}

void Exporter::wait_for_something() {
  std::vector<pollfd> asked;
  const auto add = [&](int file) { asked.push_back({file, POLLIN, 0}); };
  auto until = Clock::now() + std::chrono::hours(1);
  if (Clock::now() >= accepts_again_)
    add(listener_.get());
  else
    until = std::min(until, accepts_again_);
  for (const Importer& importer : importers_) {
    if (importer.process) add(importer.process.get());
    if (importer.is_gone()) {
      if (!importer.process) until = std::min(until, importer.grace);
      continue;
    }
    add(importer.channel.get());
    if (!importer.unsent.empty()) until = std::min(until, importer.try_again);
    if (!importer.delivery) continue;
    until = std::min(until, importer.delivery->deadline);
    if (importer.unsent.empty() && importer.delivery->may_send_more()) until = Clock::now();
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  // Whatever it says, everybody is asked.
  poll(asked.data(), asked.size(), static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000)));
}

// Whether it hears that or not.
void Exporter::turn_away(Channel& channel, const Error& error) {
  Message refusal;
  refusal.kind = MessageKind::refused;
  refusal.status = static_cast<std::uint32_t>(error.code);
  refusal.say(error.message);
  static_cast<void>(channel.send(refusal, {}, Clock::now()));
}

void Exporter::take_new_importers() {
  if (Clock::now() < accepts_again_) return;
  for (;;) {
    bool is_short = false;
    Channel channel = accept_from(listener_, is_short);
    if (is_short) accepts_again_ = Clock::now() + kWithoutDescriptors;
    if (!channel) return;
    const Result<Peer> peer = peer_of(channel);
    if (!peer || peer.value().user != geteuid()) {
      turn_away(channel, {ErrorCode::not_shared, "the memory belongs to a process of another user"});
      continue;
    }
    Result<Descriptor> process = watch(channel, peer.value());
    if (!process) {
      turn_away(channel, process.error());
      accepts_again_ = Clock::now() + kWithoutDescriptors;
      continue;
    }
    Importer importer;
    importer.process = std::move(process.value());
    importer.channel = std::move(channel);
    importers_.push_back(std::move(importer));
  }
}

// What it said, then what it waits for. One that never stops talking leaves the others their turn.
void Exporter::hear(Importer& importer) {
  for (std::size_t heard = 0; heard < kMostInFlight; ++heard) {
    if (!importer.channel.wait_to_receive(Clock::now())) break;
    Result<std::optional<Received>> received = importer.channel.receive(Clock::now());
    if (!received || !received.value() || !answer(importer, received.value()->message)) return lose(importer);
  }
  send_again(importer);
  if (importer.delivery) deliver(importer);
}

// An error here means that the connection is of no use any more.
Result<void> Exporter::answer(Importer& importer, const Message& message) {
  const Error disorder{ErrorCode::not_shared, "the importer does not keep to the protocol"};
  switch (message.kind) {
    case MessageKind::open: {
      if (importer.delivery || importer.leases.contains(message.number)) return disorder;
      if (importer.unsent.size() >= kMostUnsent || importer.leases.size() >= kMostLeases) return disorder;
      Result<void> granted = grant(importer, message);
      if (!granted) refuse(importer, message.number, granted.error());
      return {};
    }
    case MessageKind::received: {
      if (!importer.delivery || message.number != importer.delivery->number) return {};  // it was cut short
      Delivery& delivery = *importer.delivery;
      if (message.count > delivery.next || message.count <= delivery.received) return disorder;
      delivery.received = message.count;
      delivery.deadline = soon();
      if (delivery.received == delivery.chunks.size()) importer.delivery.reset();
      return {};
    }
    case MessageKind::close:
      if (importer.delivery && importer.delivery->number == message.number) importer.delivery.reset();
      end_lease(importer, message.number);
      return {};
    default: return disorder;
  }
}

Result<void> Exporter::grant(Importer& importer, const Message& message) {
  VPMM_TRY_ASSIGN(const Token token, decode(message.token));
  if (token.process != identity_)
    return Error{ErrorCode::not_shared, "the process that exported the memory is gone, and this is another one"};
  Message granted;
  granted.kind = MessageKind::granted;
  granted.number = message.number;
  Delivery delivery{message.number, 0, {}, 0, 0, soon()};
  {
    const std::lock_guard guard(mutex_);
    Error refusal{ErrorCode::not_shared, "the memory was freed by the process that exported it"};
    const ShareId share{token.generation};
    for (const Pool& pool : pools_) {
      Result<context::SharedChunks> shared = pool.context->lease(share, token.offset, token.size);
      if (!shared) {
        if (shared.error().code != ErrorCode::not_shared) refusal = std::move(shared.error());
        continue;
      }
      delivery.pool = pool.number;
      delivery.chunks = std::move(shared.value().chunks);
      granted.offset = shared.value().offset;
      importer.leases.emplace(message.number, Lease{pool.number, share});
      const driver::CuResult asked = pool.context->driver().device_get_uuid(pool.context->device(), granted.device);
      if (Result<void> named = driver::checked(driver::Call::device_get_uuid, asked); !named) {
        pool.context->end_lease(share, Holder::importer);
        importer.leases.erase(message.number);
        return named;
      }
      break;
    }
    if (delivery.pool == 0) return refusal;
  }
  granted.chunks = delivery.chunks.size();
  for (const auto& chunk : delivery.chunks) granted.bytes += chunk.size;
  importer.delivery = std::move(delivery);
  send(importer, granted, {});
  return {};
}

// One batch, if there is room for it on the way. The lease keeps the chunks while they are exported without the lock.
void Exporter::deliver(Importer& importer) {
  Delivery& delivery = *importer.delivery;
  if (Clock::now() >= delivery.deadline)
    return cut_short(importer, {ErrorCode::not_shared, "what was asked for was not taken in time"});
  if (!importer.unsent.empty() || !delivery.may_send_more()) return;
  driver::Driver* driver = nullptr;
  {
    const std::lock_guard guard(mutex_);
    const Pool* const pool = find(delivery.pool);
    if (pool == nullptr) return cut_short(importer, {ErrorCode::not_shared, "the pool that the memory was of is gone"});
    driver = &pool->context->driver();
    busy_ = delivery.pool;
  }
  const std::size_t count = std::min(kBatch, delivery.chunks.size() - delivery.next);
  Message batch;
  batch.kind = MessageKind::batch;
  batch.number = delivery.number;
  batch.count = static_cast<std::uint32_t>(count);
  std::vector<Descriptor> files;
  Result<void> exported;
  {
    const ScopeExit done([&] {
      const std::lock_guard guard(mutex_);
      busy_ = 0;
      idle_.notify_all();
    });
    files.reserve(count);  // so that nothing is thrown, and closed, while one is made
    for (std::size_t i = 0; i < count && exported; ++i) {
      const auto& chunk = delivery.chunks[delivery.next + i];
      batch.sizes[i] = chunk.size;
      int file = -1;
      Descriptor::Making making;
      exported = driver::checked(driver::Call::mem_export_to_shareable_handle,
                                 driver->mem_export_to_shareable_handle(chunk.handle, file));
      if (!exported) break;
      fcntl(file, F_SETFD, FD_CLOEXEC);
      files.push_back(making.adopt(file));
    }
  }
  if (!exported) return cut_short(importer, exported.error());
  delivery.next += count;
  send(importer, batch, std::move(files));
}

// Its lease ends as others do, for the importer may have mapped some of it.
void Exporter::cut_short(Importer& importer, const Error& error) {
  const std::uint64_t number = importer.delivery->number;
  importer.delivery.reset();
  std::erase_if(importer.unsent, [&](const Outgoing& one) { return one.message.number == number; });
  refuse(importer, number, error);
}

void Exporter::refuse(Importer& importer, std::uint64_t number, const Error& error) {
  Message refusal;
  refusal.kind = MessageKind::refused;
  refusal.number = number;
  refusal.status = static_cast<std::uint32_t>(error.code);
  refusal.say(error.message);
  send(importer, refusal, {});
}

// Nothing is waited for here: what cannot be sent now is sent later, and what comes behind it waits as well.
void Exporter::send(Importer& importer, const Message& message, std::vector<Descriptor> files) {
  if (importer.is_deaf) return;
  importer.unsent.push_back({message, std::move(files)});
  if (importer.unsent.size() == 1) importer.try_again = Clock::now();
  send_again(importer);
}

void Exporter::send_again(Importer& importer) {
  if (Clock::now() < importer.try_again) return;
  while (!importer.unsent.empty()) {
    const Outgoing& next = importer.unsent.front();
    const Channel::Sent sent = importer.channel.try_send(next.message, next.files, Clock::now());
    importer.try_again = Clock::now() + kBetweenTries;
    if (sent == Channel::Sent::not_now) return;
    if (sent == Channel::Sent::yes) {
      importer.unsent.pop_front();
      continue;
    }
    importer.is_deaf = true;  // whatever it said before is heard, and then that it has gone
    importer.unsent.clear();
    importer.delivery.reset();
  }
}

void Exporter::end_lease(Importer& importer, std::uint64_t number) {
  const auto found = importer.leases.find(number);
  if (found == importer.leases.end()) return;
  const std::lock_guard guard(mutex_);
  if (const Pool* const pool = find(found->second.pool))
    pool->context->end_lease(found->second.share, Holder::importer);
  importer.leases.erase(found);
}

// What it closed before it went is closed: whoever gives up an opening says so and hangs up. Its other leases stay
// until its process has ended.
void Exporter::lose(Importer& importer) {
  importer.delivery.reset();
  importer.unsent.clear();
  shutdown(importer.channel.get(), SHUT_RD);  // it says nothing more
  for (;;) {
    const Result<std::optional<Received>> received = importer.channel.receive(Clock::now());
    if (!received || !received.value()) break;
    const Message& message = received.value()->message;
    if (message.kind == MessageKind::close) end_lease(importer, message.number);
  }
  if (importer.leases.empty()) importer.process.reset();  // its end is nobody's concern
  importer.channel.reset();
  importer.grace = Clock::now() + std::chrono::milliseconds(settings_.grace_ms);
  if (!importer.leases.empty())
    observe::log(observe::LogLevel::info, "another process let go of {} shared ranges without closing them",
                 importer.leases.size());
}

bool Exporter::has_ended(const Importer& importer) const {
  return importer.process ? can_read(importer.process) : Clock::now() >= importer.grace;
}

}  // namespace vpmm::ipc
