// SPDX-License-Identifier: Apache-2.0
// ipc: messages over a connection, and leases of its process.
#include "ipc/connection.hpp"

#include <poll.h>

namespace vpmm::ipc {
namespace {

constexpr std::chrono::milliseconds kBetweenTries{10};

bool can_read(const Descriptor& file) {
  pollfd asked{file.get(), POLLIN, 0};
  return poll(&asked, 1, 0) > 0;
}

}  // namespace

bool Connected::has_ended() const { return process ? can_read(process) : Clock::now() >= grace; }

void Connected::end_lease(const LeaseKey& key) noexcept {
  const auto found = leases.find(key);
  if (found != leases.end()) over.insert(leases.extract(found));
}

bool Connection::has_leases() const {
  const auto first = client->leases.lower_bound({number, 0});
  return first != client->leases.end() && first->first.first == number;
}

// Replaces only a message about the same opening.
void Connection::send(const Message& message, Deadline until) {
  unsent = message;
  give_up = until;
  try_again = Clock::now();
  send_again();
}

void Connection::refuse(std::uint64_t opening, ErrorCode code, std::string_view why,
                        Deadline until) {
  Message refusal;
  refusal.kind = MessageKind::refused;
  refusal.number = opening;
  refusal.status = static_cast<std::uint32_t>(code);
  refusal.say(why);
  send(refusal, until);
}

void Connection::send_again() {
  if (!unsent || Clock::now() < try_again) return;
  const Channel::Sent sent = channel.try_send(*unsent, {}, Clock::now());
  if (sent == Channel::Sent::yes) unsent.reset();
  note(sent);
}

bool Connection::try_batch(const Message& batch, const std::vector<Descriptor>& files) {
  const Channel::Sent sent = channel.try_send(batch, files, Clock::now());
  note(sent);
  return sent == Channel::Sent::yes;
}

// Earlier messages of a peer that is gone still count.
void Connection::note(Channel::Sent sent) {
  if (sent == Channel::Sent::not_now) try_again = Clock::now() + kBetweenTries;
  if (sent != Channel::Sent::gone) return;
  unsent.reset();
  delivery.reset();
}

}  // namespace vpmm::ipc
