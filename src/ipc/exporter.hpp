// SPDX-License-Identifier: Apache-2.0
// ipc: exporter: hands out tokens, and its thread the chunks behind them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "context/context.hpp"
#include "ipc/clients.hpp"
#include "ipc/handle.hpp"
#include "settings/config.hpp"

namespace vpmm::ipc {

// One per process, never destroyed. Thread-safe; its lock is taken before a context's. A forked
// child starts without its parent's, with an identity of its own.
class Exporter {
 public:
  static Exporter& of_process();

  // Shares memory inside one allocation of `context`, until one end() per call. Starts the thread
  // at the first call; makes a removed folder or socket anew; bad_configuration, bad_file: that
  // failed.
  Result<IpcHandle> share(context::Context& context, AddressRange range) VPMM_EXCLUDES(mutex_);
  // Ends one share() of this token. invalid_argument: there is none.
  Result<void> end(const Token& token) VPMM_EXCLUDES(mutex_);
  bool is_ours(const Token& token);
  // Stops handing out memory of `context`, before its end; waits for an export in progress. Memory
  // stays valid where it is open.
  void forget(context::Context& context) VPMM_EXCLUDES(mutex_);

 private:
  // A pool with shares, by a number, for a later pool may have the same address.
  struct SharingPool {
    std::uint64_t number = 0;
    context::Context* context = nullptr;
  };

  Result<void> start(MutexLock& lock) VPMM_REQUIRES(mutex_);
  Result<void> stay_reachable(MutexLock& lock) VPMM_REQUIRES(mutex_);
  Result<void> listen() VPMM_REQUIRES(mutex_);
  SharingPool* find(std::uint64_t number) VPMM_REQUIRES(mutex_);  // null: gone
  // --- the thread ---
  void serve();
  void serve_once();
  void wait_for_something();
  void take_new_importers();
  int listening() VPMM_EXCLUDES(mutex_);
  bool has_next_listener() VPMM_EXCLUDES(mutex_);
  void take_next_listener() VPMM_EXCLUDES(mutex_);
  void attend(Connection& connection);
  void hear(Connection& connection);
  Result<void> answer(Connection& connection, const Message& message);
  void open(Connection& connection, const Message& message);
  Result<void> grant(Connection& connection, const Message& message, Lease& lease)
      VPMM_EXCLUDES(mutex_);
  Result<Delivery> lease_chunks(const Token& token, Lease& lease, Message& granted)
      VPMM_EXCLUDES(mutex_);
  void deliver(Connection& connection) VPMM_EXCLUDES(mutex_);
  Result<driver::Driver*> begin_to_export(std::uint64_t pool) VPMM_EXCLUDES(mutex_);
  void end_exporting() VPMM_EXCLUDES(mutex_);
  void cut_short(Connection& connection, const Error& error);
  void refuse(Connection& connection, std::uint64_t number, ErrorCode code,
              std::string_view why) const;
  void give_back_leases(Connected& client) VPMM_EXCLUDES(mutex_);
  void lose(Connection& connection);
  Deadline soon() const { return Clock::now() + std::chrono::milliseconds(settings_.timeout_ms); }

  Mutex mutex_;
  std::condition_variable_any idle_;
  std::vector<SharingPool> pools_ VPMM_GUARDED_BY(mutex_);
  std::uint64_t last_pool_ VPMM_GUARDED_BY(mutex_) = 0;
  std::uint64_t busy_ VPMM_GUARDED_BY(mutex_) =
      0;  // number of the pool that exports chunks without the lock; 0: none
  // Open shares of this process, by token.
  std::map<TokenBytes, std::uint64_t> handles_ VPMM_GUARDED_BY(mutex_);
  const Identity identity_ = new_identity();
  bool is_running_ VPMM_GUARDED_BY(mutex_) = false;
  bool removes_socket_at_exit_ VPMM_GUARDED_BY(mutex_) = false;
  // Oldest first; the last one has the path. The thread alone removes the first, which it uses
  // without the lock.
  std::vector<Descriptor> listeners_ VPMM_GUARDED_BY(mutex_);
  std::optional<SocketFile> file_ VPMM_GUARDED_BY(mutex_);  // of the newest
  // --- written before the thread starts ---
  settings::IpcSettings settings_;
  std::string path_;
  // --- the thread's alone, once it runs ---
  Clients clients_;
  Deadline accepts_again_{};  // set after a lack of descriptors
};

}  // namespace vpmm::ipc
