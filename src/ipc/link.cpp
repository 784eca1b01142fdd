// SPDX-License-Identifier: Apache-2.0
// ipc: conversation with one exporter.
#include "ipc/link.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

namespace vpmm::ipc {
namespace {

constexpr std::chrono::seconds kForClosing{1};
constexpr int kMostPassedOver = 1024;  // more than a socket holds; an endless talker is cut off

// Reads a vpmm_status number, from another process that may be newer.
ErrorCode code_of(const Message& refusal) {
  const auto code = static_cast<ErrorCode>(refusal.status);
  return code == ErrorCode::invalid_argument || code == ErrorCode::unsupported ||
                 code == ErrorCode::suspended
             ? code
             : ErrorCode::not_shared;
}

// Makes a sentence of a text from another process: users see it, perhaps on a terminal.
std::string reason_of(const Message& refusal) {
  std::string reason = refusal.said();
  if (reason.empty()) return "the process that exported the memory refuses it without a reason";
  const auto is_printable = [](char each) { return each >= ' ' && each <= '~'; };
  std::replace_if(
      reason.begin(), reason.end(), [&](char each) { return !is_printable(each); }, '?');
  return reason;
}

}  // namespace

Result<bool> Link::Turn::connect(const std::string& folder, Deadline deadline) {
  if (link_.channel_) return true;
  VPMM_TRY_ASSIGN(Channel channel, connect_to(socket_path(folder, link_.exporter_), deadline));
  VPMM_TRY_ASSIGN(const PeerProcess peer, peer_of(channel));
  if (peer.user != geteuid())
    return not_shared(fmt::format(
        "the socket of the process that exported the memory belongs to user {}, not to {}",
        peer.user, geteuid()));
  link_.channel_ = std::move(channel);
  return false;
}

Result<void> Link::Turn::say(const Message& message, Deadline deadline) {
  Result<void> said = link_.channel_.send(message, {}, deadline);
  if (!said) link_.is_broken_ = true;
  return said;
}

Result<Received> Link::Turn::hear(std::uint64_t number, Deadline deadline) {
  for (int passed_over = 0; passed_over < kMostPassedOver; ++passed_over) {
    if (!link_.channel_.wait_to_receive(deadline))
      return not_shared("the process that exported the memory does not answer");
    Result<std::optional<Received>> received = link_.channel_.receive(deadline);
    if (!received) {
      link_.is_broken_ = received.error().code == ErrorCode::not_shared;
      return std::move(received.error());
    }
    if (!received.value()) {
      link_.is_broken_ = true;
      return not_shared("the process that exported the memory is gone");
    }
    Received& heard = *received.value();
    const bool is_refused = heard.message.kind == MessageKind::refused;
    const bool is_for_all = is_refused && heard.message.number == 0;
    if (heard.message.number != number && !is_for_all) continue;  // of an opening that was given up
    if (is_for_all) link_.is_broken_ = true;
    if (is_refused) return Error{code_of(heard.message), reason_of(heard.message)};
    return std::move(heard);
  }
  link_.is_broken_ = true;
  return not_shared("the process that exported the memory does not keep to the protocol");
}

Link::Turn::Turn(Link& link) : link_(link) {
  MutexLock lock(link.mutex_);
  while (link.is_taken_) link.released_.wait(lock);
  link.is_taken_ = true;
}

Link::Turn::~Turn() {
  link_.release();
  link_.say_what_is_unsaid(Patience::a_second);
}

void Link::release() {
  {
    const MutexLock lock(mutex_);
    is_taken_ = false;
  }
  released_.notify_one();
}

void Link::close(ClosedOpenings&& closing, Patience patience) noexcept {
  {
    const MutexLock lock(mutex_);
    unsaid_.splice(unsaid_.end(), closing);
  }
  say_what_is_unsaid(patience);
}

bool Link::has_said_everything() {
  const MutexLock lock(mutex_);
  return unsaid_.empty();
}

ClosedOpenings Link::take_unsaid() {
  const MutexLock lock(mutex_);
  if (unsaid_.empty() || is_taken_) return {};
  is_taken_ = true;
  return std::exchange(unsaid_, {});
}

void Link::say_what_is_unsaid(Patience patience) noexcept {
  for (bool goes_on = true; goes_on;) {
    ClosedOpenings numbers = take_unsaid();
    if (numbers.empty()) return;
    while (!numbers.empty() && goes_on) {
      Message message;
      message.kind = MessageKind::close;
      message.number = numbers.front();
      const bool waits = patience == Patience::a_second && !is_stuck_;
      const Deadline deadline = waits ? Clock::now() + kForClosing : Clock::now();
      const Channel::Sent sent =
          channel_ ? channel_.try_send(message, {}, deadline) : Channel::Sent::gone;
      goes_on = sent != Channel::Sent::not_now;
      is_stuck_ = !goes_on && (is_stuck_ || waits);
      if (sent == Channel::Sent::yes) numbers.pop_front();
      if (sent == Channel::Sent::gone) numbers.clear();
    }
    {
      const MutexLock lock(mutex_);
      unsaid_.splice(unsaid_.begin(), numbers);
    }
    release();
  }
}

}  // namespace vpmm::ipc
