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

#include "context/process_gate.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"

namespace vpmm::ipc {

using context::Context;
using context::Holder;
using context::ShareId;

namespace {

constexpr std::chrono::milliseconds kWithoutDescriptors{20};

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

Result<IpcHandle> Exporter::share(Context& context, AddressRange range) {
  IpcHandle handle;
  VPMM_TRY(driver::checked(driver::Call::device_get_uuid,
                           context.driver().device_get_uuid(context.device(), handle.device)));
  const std::lock_guard guard(mutex_);
  VPMM_TRY(start());
  VPMM_TRY_ASSIGN(const context::SharedRange shared, context.share(range));
  if (std::find(contexts_.begin(), contexts_.end(), &context) == contexts_.end()) contexts_.push_back(&context);
  ++handles_[static_cast<std::uint64_t>(shared.share)];
  handle.token = encode(
      {identity_, to_integer(shared.allocation), static_cast<std::uint64_t>(shared.share), shared.offset, range.size});
  handle.size = range.size;
  handle.offset = shared.offset;
  return handle;
}

Result<void> Exporter::end(const Token& token) {
  const std::lock_guard guard(mutex_);
  const auto found = handles_.find(token.generation);
  if (token.process != identity_ || found == handles_.end())
    return Error{ErrorCode::invalid_argument, "this export has ended already, or is another process's"};
  if (--found->second == 0) handles_.erase(found);
  for (Context* const context : contexts_) context->end_lease(ShareId{token.generation}, Holder::handle);
  return {};
}

bool Exporter::is_ours(const Token& token) { return token.process == identity_; }

void Exporter::forget(Context& context) {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return busy_ != &context; });
  std::erase(contexts_, &context);
}

// --- the thread -----------------------------------------------------------------------------------------------------

Result<void> Exporter::start() {
  if (is_running_) return {};
  VPMM_TRY_ASSIGN(settings_, context::ipc_settings_from_environment());
  VPMM_TRY_ASSIGN(const std::string folder, socket_folder(settings_.folder));
  sweep(folder);
  path_ = socket_path(folder, identity_);
  VPMM_TRY_ASSIGN(listener_, listen_at(path_));
  if (socket_of_this_process.exchange(&path_) == nullptr) std::atexit(remove_socket);
  // Signals are for the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([this] { serve(); }).detach();
    is_running_ = true;
  } catch (const std::system_error&) {
    remove_socket();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!is_running_) return Error{ErrorCode::host_out_of_memory, "the thread that shares memory cannot be started"};
  return {};
}

void Exporter::serve() {
  pthread_setname_np(pthread_self(), "vpmm-ipc");
  while (wait_for_something()) {
    const context::GateEntry entry;
    if (!entry.open()) return;
    take_new_importers();
    for (Importer& importer : importers_) hear(importer);
    for (Importer& importer : importers_)
      while (importer.is_gone() && !importer.leases.empty() && has_ended(importer))
        end_lease(importer, importer.leases.begin()->first);
    importers_.remove_if([](const Importer& importer) { return importer.is_gone() && importer.leases.empty(); });
  }
}

// False: the process ends.
bool Exporter::wait_for_something() {
  std::vector<pollfd> asked;
  const auto add = [&](int file, short events) { asked.push_back({file, events, 0}); };
  auto until = Clock::now() + std::chrono::hours(1);
  bool has_work = false;
  if (Clock::now() >= accepts_again_)
    add(listener_.get(), POLLIN);
  else
    until = std::min(until, accepts_again_);
  for (const Importer& importer : importers_) {
    if (importer.is_gone()) {
      if (importer.process) add(importer.process.get(), POLLIN);
      if (!importer.process) until = std::min(until, importer.grace);
      continue;
    }
    add(importer.channel.get(), POLLIN);
    if (!importer.delivery) continue;
    const Delivery& delivery = *importer.delivery;
    until = std::min(until, delivery.deadline);
    has_work = has_work ||
               (delivery.next < delivery.chunks.size() && delivery.next - delivery.received + kBatch <= kMostInFlight);
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
  const int timeout = has_work ? 0 : static_cast<int>(std::clamp<std::int64_t>(left, 0, 3'600'000));
  poll(asked.data(), asked.size(), timeout);  // whatever it says, everybody is asked
  return !context::process_is_ending();
}

// Nothing that is sent is waited for: what two processes that keep to the protocol have on their way always fits.
void Exporter::take_new_importers() {
  if (Clock::now() < accepts_again_) return;
  for (;;) {
    bool is_short = false;
    Channel channel = accept_from(listener_, is_short);
    if (is_short) accepts_again_ = Clock::now() + kWithoutDescriptors;
    if (!channel) return;
    const Result<Peer> peer = peer_of(channel);
    if (!peer || peer.value().user != geteuid()) {
      Message refusal;
      refusal.kind = MessageKind::refused;
      refusal.status = static_cast<std::uint32_t>(ErrorCode::not_shared);
      refusal.say("the memory belongs to a process of another user");
      static_cast<void>(channel.send(refusal, {}, Clock::now()));  // whether it hears it or not
      continue;
    }
    Importer importer;
    importer.process = watch(channel, peer.value());
    importer.channel = std::move(channel);
    importers_.push_back(std::move(importer));
  }
}

// What it said, then a batch if one is wanted. One that never stops talking leaves the others their turn.
void Exporter::hear(Importer& importer) {
  Result<void> outcome;
  for (std::size_t heard = 0; heard < kMostInFlight && outcome && !importer.is_gone(); ++heard) {
    if (!importer.channel.wait_to_receive(Clock::now())) break;
    Result<std::optional<Received>> received = importer.channel.receive(Clock::now());
    if (!received || !received.value()) return lose(importer);
    outcome = answer(importer, received.value()->message);
  }
  if (outcome && importer.delivery) outcome = deliver(importer);
  if (!outcome) lose(importer);
}

// An error here means that the connection is of no use any more.
Result<void> Exporter::answer(Importer& importer, const Message& message) {
  const Error disorder{ErrorCode::not_shared, "the importer does not keep to the protocol"};
  switch (message.kind) {
    case MessageKind::open: {
      if (importer.delivery || importer.leases.contains(message.number)) return disorder;
      Result<void> granted = grant(importer, message);
      if (!granted) refuse(importer, message.number, granted.error());
      return {};
    }
    case MessageKind::received: {
      if (!importer.delivery || message.number != importer.delivery->number) return {};  // it was cut short
      Delivery& delivery = *importer.delivery;
      if (message.count > delivery.next) return disorder;
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
  Delivery delivery{message.number, nullptr, {}, 0, 0, soon()};
  {
    const std::lock_guard guard(mutex_);
    Error refusal{ErrorCode::not_shared, "the memory was freed by the process that exported it"};
    for (Context* const context : contexts_) {
      Result<context::SharedChunks> shared = context->lease(ShareId{token.generation}, token.offset, token.size);
      if (!shared) {
        if (shared.error().code != ErrorCode::not_shared) refusal = std::move(shared.error());
        continue;
      }
      delivery.context = context;
      delivery.chunks = std::move(shared.value().chunks);
      granted.offset = shared.value().offset;
      break;
    }
    if (delivery.context == nullptr) return refusal;
    importer.leases.emplace(message.number, Lease{delivery.context, ShareId{token.generation}});
    const driver::CuResult asked =
        delivery.context->driver().device_get_uuid(delivery.context->device(), granted.device);
    if (Result<void> named = driver::checked(driver::Call::device_get_uuid, asked); !named) {
      delivery.context->end_lease(ShareId{token.generation}, Holder::importer);
      importer.leases.erase(message.number);
      return named;
    }
  }
  granted.chunks = delivery.chunks.size();
  for (const auto& chunk : delivery.chunks) granted.bytes += chunk.size;
  importer.delivery = std::move(delivery);
  if (!importer.channel.send(granted, {}, Clock::now())) lose(importer);
  return {};
}

// One batch, if there is room for it on the way. The lease keeps the chunks while they are exported without the lock.
Result<void> Exporter::deliver(Importer& importer) {
  Delivery& delivery = *importer.delivery;
  if (Clock::now() >= delivery.deadline) {
    refuse(importer, delivery.number, {ErrorCode::not_shared, "what was asked for was not taken in time"});
    return {};
  }
  const std::size_t count = std::min(kBatch, delivery.chunks.size() - delivery.next);
  if (count == 0 || delivery.next - delivery.received + count > kMostInFlight) return {};
  {
    const std::lock_guard guard(mutex_);
    if (std::find(contexts_.begin(), contexts_.end(), delivery.context) == contexts_.end()) {
      refuse(importer, delivery.number, {ErrorCode::not_shared, "the pool that the memory was of is gone"});
      return {};
    }
    busy_ = delivery.context;
  }
  Message batch;
  batch.kind = MessageKind::batch;
  batch.number = delivery.number;
  batch.count = static_cast<std::uint32_t>(count);
  std::vector<Descriptor> files;
  files.reserve(count);  // so that nothing is thrown, and closed, while one is made
  Result<void> exported;
  for (std::size_t i = 0; i < count && exported; ++i) {
    const auto& chunk = delivery.chunks[delivery.next + i];
    batch.sizes[i] = chunk.size;
    int file = -1;
    Descriptor::Making making;
    exported = driver::checked(driver::Call::mem_export_to_shareable_handle,
                               busy_->driver().mem_export_to_shareable_handle(chunk.handle, file));
    if (!exported) break;
    fcntl(file, F_SETFD, FD_CLOEXEC);
    files.push_back(making.adopt(file));
  }
  {
    const std::lock_guard guard(mutex_);
    busy_ = nullptr;
  }
  idle_.notify_all();
  if (!exported) {
    refuse(importer, delivery.number, exported.error());
    return {};
  }
  delivery.next += count;
  return importer.channel.send(batch, files, Clock::now());
}

// The opening is over. A lease that it had ends as others do: the importer may have mapped some of it.
void Exporter::refuse(Importer& importer, std::uint64_t number, const Error& error) {
  Message refusal;
  refusal.kind = MessageKind::refused;
  refusal.number = number;
  refusal.status = static_cast<std::uint32_t>(error.code);
  refusal.say(error.message);
  importer.delivery.reset();
  if (!importer.channel.send(refusal, {}, Clock::now())) lose(importer);
}

void Exporter::end_lease(Importer& importer, std::uint64_t number) {
  const auto found = importer.leases.find(number);
  if (found == importer.leases.end()) return;
  const std::lock_guard guard(mutex_);
  const auto& [context, share] = found->second;
  if (std::find(contexts_.begin(), contexts_.end(), context) != contexts_.end())
    context->end_lease(share, Holder::importer);
  importer.leases.erase(found);
}

// What it closed before it went is closed: whoever gives up an opening says so and hangs up, and an answer that finds
// nobody is how that is noticed first. Its other leases stay until its process has ended.
void Exporter::lose(Importer& importer) {
  importer.delivery.reset();
  shutdown(importer.channel.get(), SHUT_RD);  // it says nothing more
  for (;;) {
    const Result<std::optional<Received>> received = importer.channel.receive(Clock::now());
    if (!received || !received.value()) break;
    const Message& message = received.value()->message;
    if (message.kind == MessageKind::close) end_lease(importer, message.number);
  }
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
