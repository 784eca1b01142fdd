// SPDX-License-Identifier: Apache-2.0
// ipc tests: one side of the protocol spoken by hand, so that a test can stop, lie or die between
// any two messages.
#pragma once

#include <optional>

#include "ipc/channel.hpp"
#include "ipc/process.hpp"

namespace vpmm::ipc_test {

ipc::TokenBytes token_in(const vpmm_ipc_handle& handle);
ipc::Token parts_of(const vpmm_ipc_handle& handle);
vpmm_ipc_handle handle_of(const ipc::Token& token);
ipc::Deadline soon();

// --- in any process, the test's own included ---
ipc::Channel connect_by_hand(const vpmm_ipc_handle& handle);
ipc::Message open_message(const vpmm_ipc_handle& handle, std::uint64_t number);
ipc::Message message_of(ipc::MessageKind kind, std::uint64_t number, std::uint32_t count = 0);
// Bytes as they are, with descriptors of no meaning: at most 200.
bool send_with_copies_of(int file, const ipc::Channel& channel, const void* bytes, std::size_t size,
                         std::size_t copies);
void send_by_hand(ipc::Channel& channel, const ipc::Message& message);
// none: the other side closed, or nothing came.
std::optional<ipc::Message> next_from(ipc::Channel& channel);
// Passes over messages before that. False: nothing more came, and the other side has not closed.
bool is_hung_up_on(ipc::Channel& channel);

// An importer that says what it is told to.
class HandImporter : public Process {
 public:
  using Process::Process;
  void connect(const vpmm_ipc_handle& handle);
  void say_open(const vpmm_ipc_handle& handle, std::uint64_t number = 1);
  ipc::Message hear();  // of kind 0: the exporter closed
  void say_received(std::uint32_t chunks, std::uint64_t number = 1);
  void say_close(std::uint64_t number = 1);
  void hang_up();
};

// An exporter whose thread is the test: of `chunks` chunks of 2 MiB.
class HandExporter : public Process {
 public:
  using Process::Process;
  vpmm_ipc_handle listen(std::uint64_t chunks);
  ipc::Message hear();  // takes a new importer if none is there
  struct Terms {
    std::optional<std::uint64_t> chunks = {};  // nullopt: all
    Bytes more = 0;                            // beyond these chunks
    Bytes offset = 0;
    ipc::MessageKind kind = ipc::MessageKind::granted;
  };
  void grant(std::uint64_t number, const Terms& terms);
  void grant(std::uint64_t number) { grant(number, {}); }
  void send_batch(std::uint64_t number, std::uint32_t chunks,
                  std::optional<Bytes> said_size = {},  // of each chunk; nullopt: the right one
                  ipc::MessageKind kind = ipc::MessageKind::batch);
  void send_something_else(std::uint64_t number, std::uint32_t chunks);  // descriptors of no chunks
  // As many descriptors as a message takes. To close the last one lasts as long as this process, up
  // to a minute.
  void send_lingering(std::uint64_t number);
  // The first bytes of a message, with descriptors of no chunks.
  void send_piece(std::uint64_t bytes, std::uint32_t descriptors);
  bool is_read();                // the importer has taken all messages
  bool is_connected_to_again();  // waits for another connection, which is not taken yet
  void say(const ipc::Message& message);
  void begin_to_flood(const ipc::Message& message);  // until it is killed or hung up on
  enum class HangUp { for_good, one_connection };
  void hang_up(HangUp what = HangUp::for_good);
};

}  // namespace vpmm::ipc_test
