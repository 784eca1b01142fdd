// ipc: the side that owns the memory: hands out tokens, and a thread of it the chunks behind them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "context/config.hpp"
#include "context/context.hpp"
#include "ipc/channel.hpp"
#include "ipc/handle.hpp"

namespace vpmm::ipc {

// One per process, never destroyed. Thread-safe; the lock is taken before that of a context. A forked child has none of
// what its parent had, and would draw an identity of its own.
class Exporter {
 public:
  static Exporter& of_process();

  // Memory inside one allocation of `context`, held until end() for each. Starts the thread at the first call.
  Result<IpcHandle> share(context::Context& context, AddressRange range);
  // Ends one share() of this token. invalid_argument: there is none.
  Result<void> end(const Token& token);
  // Whether this process made the token.
  bool is_ours(const Token& token);
  // Before a context goes: nothing of it is handed out any more. Its memory stays valid where it is open.
  void forget(context::Context& context);

 private:
  // Note [A lease ends when its importer says so or is dead]
  // A closed connection alone proves nothing: a kernel of the importer may still be running. So leases that were not
  // closed wait until the importer's process has ended, which its descriptor tells; the driver has taken its work off
  // the GPU by then. A process that cannot be watched, because it lives in another container, is given a grace period.
  struct Lease {
    std::uint64_t pool = 0;  // of Pool
    context::ShareId share{};
  };
  struct Delivery {
    std::uint64_t number = 0;
    std::uint64_t pool = 0;
    Vector<context::SharedChunks::Chunk> chunks;
    std::size_t next = 0;      // of the chunks, to be sent
    std::size_t received = 0;  // acknowledged
    Deadline deadline;         // for the next acknowledgement
    bool may_send_more() const { return next < chunks.size() && next - received + kBatch <= kMostInFlight; }
  };
  struct Outgoing {
    Message message;
    std::vector<Descriptor> files;
  };
  struct Importer {
    Channel channel;  // closed: it went without a word
    Descriptor process;
    std::map<std::uint64_t, Lease> leases;  // by the number of the opening
    std::optional<Delivery> delivery;
    std::deque<Outgoing> unsent;  // what could not be sent yet, and what comes behind it
    Deadline try_again{};         // to send it
    bool is_deaf = false;         // it takes no more, but what it said before it went is heard
    Deadline grace;               // of one that is gone and cannot be watched
    bool is_gone() const { return !channel; }
  };
  // One that shared something, by a number, for a later pool may have the address of an earlier one.
  struct Pool {
    std::uint64_t number = 0;
    context::Context* context = nullptr;
  };

  Result<void> start();
  Pool* find(std::uint64_t number);  // null: it is gone
  // --- the thread ---
  void serve();
  void serve_once();
  void wait_for_something();
  void take_new_importers();
  static void turn_away(Channel& channel, const Error& error);
  void hear(Importer& importer);
  Result<void> answer(Importer& importer, const Message& message);
  Result<void> grant(Importer& importer, const Message& message);
  void deliver(Importer& importer);
  void cut_short(Importer& importer, const Error& error);
  void refuse(Importer& importer, std::uint64_t number, const Error& error);
  void send(Importer& importer, const Message& message, std::vector<Descriptor> files);
  static void send_again(Importer& importer);
  void end_lease(Importer& importer, std::uint64_t number);
  void lose(Importer& importer);
  bool has_ended(const Importer& importer) const;
  Deadline soon() const { return Clock::now() + std::chrono::milliseconds(settings_.timeout_ms); }

  std::mutex mutex_;
  std::condition_variable idle_;
  std::vector<Pool> pools_;
  std::uint64_t last_pool_ = 0;
  std::uint64_t busy_ = 0;                       // its chunks are being exported, without the lock
  std::map<TokenBytes, std::uint64_t> handles_;  // shares of this process that have not ended
  const Identity identity_ = new_identity();
  bool is_running_ = false;
  context::IpcSettings settings_;
  std::string path_;
  // --- the thread's alone, once it runs ---
  Descriptor listener_;
  std::list<Importer> importers_;
  Deadline accepts_again_{};  // there was no descriptor for a new one
};

}  // namespace vpmm::ipc
