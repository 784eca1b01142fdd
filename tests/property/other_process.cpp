// SPDX-License-Identifier: Apache-2.0
// property tests: orders to the other process, and its work.
#include "property/other_process.hpp"

#include <sys/prctl.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "driver/sim/sim_driver.hpp"
#include "ipc/channel.hpp"
#include "ipc/importer.hpp"
#include "settings/variables.hpp"

namespace vpmm::property {

using ipc::Channel;
using ipc::Message;
using ipc::MessageKind;
using ipc_test::Parcel;

namespace {

constexpr std::chrono::seconds kLongest{20};
constexpr int kGpus = 2;
constexpr const char* kIsOther = "VPMM_TEST_IS_OTHER";  // in the environment of the other process

Parcel question_of(const ipc::IpcHandle& handle) {
  Parcel parcel;
  std::memcpy(parcel.handle.token, handle.token.data(), handle.token.size());
  parcel.handle.bytes = handle.size;
  std::copy(handle.device.begin(), handle.device.end(), parcel.handle.device_uuid);
  return parcel;
}

std::optional<Error> error_in(const Parcel& answer) {
  if (answer.status == VPMM_OK) return std::nullopt;
  const std::string why = answer.said();
  return Error{static_cast<ErrorCode>(answer.status),
               why.empty() ? "the other process died or hangs" : why};
}

Result<Channel> connection_to(const ipc::Identity& exporter, ipc::Deadline deadline) {
  VPMM_TRY_ASSIGN(const settings::IpcSettings settings, settings::ipc_settings_from_environment());
  VPMM_TRY_ASSIGN(const std::string folder, ipc::socket_folder(settings.folder));
  return ipc::connect_to(ipc::socket_path(folder, exporter), deadline);
}

Result<void> send_open(Channel& channel, const ipc::TokenBytes& token, ipc::Deadline deadline) {
  Message message;
  message.kind = MessageKind::open;
  message.number = 1;
  message.token = token;
  return channel.send(message, {}, deadline);
}

Result<Message> next_message(Channel& channel, ipc::Deadline deadline) {
  VPMM_TRY_ASSIGN(const std::optional<ipc::Received> received, channel.receive(deadline));
  if (!received) return ipc::not_shared("the exporter hung up");
  return received->message;
}

// --- in the other process

driver::Driver& driver_there() {
  static auto* const driver = [] {
    driver::sim::SimOptions options;
    options.device_count = kGpus;
    return new driver::sim::SimDriver(options);  // outlives what is open
  }();
  return *driver;
}

ipc::IpcHandle handle_in(const Parcel& parcel) {
  ipc::IpcHandle handle;
  std::memcpy(handle.token.data(), parcel.handle.token, handle.token.size());
  handle.size = parcel.handle.bytes;
  std::copy_n(parcel.handle.device_uuid, handle.device.size(), handle.device.begin());
  return handle;
}

void note(Parcel& parcel, const Error& error) {
  parcel.status = static_cast<vpmm_status>(error.code);
  parcel.say(error.message);
}

void open_there(Parcel& parcel) {
  const auto opened =
      ipc::Importer::of_process().open(driver_there(), handle_in(parcel), std::nullopt);
  if (!opened) return note(parcel, opened.error());
  parcel.words[0] = to_integer(opened.value());
}

void close_there(Parcel& parcel) {
  const auto closed = ipc::Importer::of_process().close(DevicePtr{parcel.words[0]});
  if (!closed) note(parcel, closed.error());
}

Result<void> take_unacknowledged(const ipc::IpcHandle& handle) {
  static Channel channel;  // open until this process is dead
  const ipc::Deadline deadline = ipc::Clock::now() + kLongest;
  VPMM_TRY_ASSIGN(const ipc::Token token, ipc::decode(handle.token));
  VPMM_TRY_ASSIGN(channel, connection_to(token.process, deadline));
  VPMM_TRY(send_open(channel, handle.token, deadline));
  VPMM_TRY_ASSIGN(const Message answer, next_message(channel, deadline));
  if (answer.kind == MessageKind::refused)
    return Error{static_cast<ErrorCode>(answer.status), answer.said()};
  if (answer.kind != MessageKind::granted)
    return ipc::not_shared("the exporter neither grants nor refuses");
  for (std::uint64_t left = std::min<std::uint64_t>(answer.chunks, ipc::kMostInFlight); left > 0;) {
    VPMM_TRY_ASSIGN(const Message batch, next_message(channel, deadline));
    if (batch.kind != MessageKind::batch || batch.count > left)
      return ipc::not_shared("the exporter does not keep to the protocol");
    left -= batch.count;
  }
  return {};
}

void begin_there(Parcel& parcel) {
  const auto begun = take_unacknowledged(handle_in(parcel));
  if (!begun) note(parcel, begun.error());
}

// Counts the bytes that differ.
void compare_there(Parcel& parcel) {
  const std::uint64_t count = parcel.words[2];
  std::uint64_t differ = 0;
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t at = parcel.words[0] + parcel.words[3 + i];
    differ += *reinterpret_cast<const std::uint8_t*>(at) != parcel.words[1] ? 1 : 0;
  }
  parcel.words[0] = differ;
}

void end_with_parent(Parcel& parcel) {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0)
    note(parcel, {ErrorCode::driver_failed, "the other process would outlive this one"});
}

}  // namespace

// --- orders

OtherProcess& OtherProcess::instance() {
  static auto* const one = new OtherProcess;  // for exit handlers; it ends with its parent's socket
  return *one;
}

Result<void> OtherProcess::start() {
  if (actor_) return {};
  VPMM_CHECK(std::getenv(kIsOther) == nullptr, "main() does not begin with ipc_test::act()");
  actor_.emplace(std::vector{std::string(kIsOther) + "=1"});
  if (const auto error = error_in(ask(end_with_parent, {}))) return kill(), *error;
  return {};
}

void OtherProcess::kill() {
  if (!actor_) return;
  actor_->kill();
  actor_.reset();
}

Parcel OtherProcess::ask(ipc_test::Work work, const Parcel& question) {
  if (actor_) return actor_->call(work, question);
  Parcel answer;
  note(answer, {ErrorCode::driver_failed, "no other process was started"});
  return answer;
}

Result<DevicePtr> OtherProcess::open(const ipc::IpcHandle& handle) {
  const Parcel answer = ask(open_there, question_of(handle));
  if (const auto error = error_in(answer)) return *error;
  return DevicePtr{answer.words[0]};
}

Result<void> OtherProcess::close(DevicePtr ptr) {
  Parcel question;
  question.words[0] = to_integer(ptr);
  if (const auto error = error_in(ask(close_there, question))) return *error;
  return {};
}

Result<void> OtherProcess::begin_to_open(const ipc::IpcHandle& handle) {
  if (const auto error = error_in(ask(begin_there, question_of(handle)))) return *error;
  return {};
}

Result<bool> OtherProcess::reads(DevicePtr ptr, std::span<const Bytes> offsets,
                                 std::uint8_t content) {
  Parcel question;
  question.words = {to_integer(ptr), content, offsets.size()};
  std::copy(offsets.begin(), offsets.end(), question.words.begin() + 3);
  const Parcel answer = ask(compare_there, question);
  if (const auto error = error_in(answer)) return *error;
  return answer.words[0] == 0;
}

// The exporter's thread admits connections last in a turn, behind the leases that it gives back.
// The turn that answers the first connection hears all that was sent before; the second connection
// is admitted after that turn has given leases back.
Result<void> wait_for_exporter(const ipc::Identity& exporter) {
  const ipc::Deadline deadline = ipc::Clock::now() + kLongest;
  for (int turn = 0; turn < 2; ++turn) {
    VPMM_TRY_ASSIGN(Channel channel, connection_to(exporter, deadline));
    VPMM_TRY(send_open(channel, {}, deadline));
    VPMM_TRY_ASSIGN(const Message answer, next_message(channel, deadline));
    if (answer.kind != MessageKind::refused || answer.number != 1)
      return ipc::not_shared("the exporter answers " + answer.said() + " to no token");
  }
  return {};
}

}  // namespace vpmm::property
