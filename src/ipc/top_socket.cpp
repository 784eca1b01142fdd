// SPDX-License-Identifier: Apache-2.0
// ipc: the thread that answers `vpmm top`.
#include "ipc/top_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <utility>

#include "base/mutex.hpp"
#include "base/quiet_thread.hpp"
#include "base/scope_exit.hpp"
#include "ipc/channel.hpp"
#include "ipc/top_answer.hpp"
#include "observe/log.hpp"
#include "process/process_gate.hpp"
#include "settings/variables.hpp"

namespace vpmm::ipc {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWithoutDescriptors{100};
// An answer serves all connections of this time, so that connecting in a loop costs the pools
// little.
constexpr milliseconds kFresh{20};
// Longest wait for the locks of all pools together.
constexpr milliseconds kForLocks{100};
// Fits the buffer of a socket, of 208 KiB by default, beside its bookkeeping.
constexpr std::size_t kMostText = std::size_t{96} << 10;
constexpr std::size_t kMostPools = 64;
constexpr std::array<std::size_t, 3> kMostTags{32, 4, 0};  // the most that fit

// For the handler at exit; null in a forked child.
constinit std::atomic<const std::string*> socket_of_this_process{nullptr};

void remove_socket() {
  if (const std::string* const path = socket_of_this_process.exchange(nullptr))
    unlink(path->c_str());
}

// Note [An answer waits for nobody]
// A connection is the question. The thread sends one message, which fits the buffer of the socket,
// and closes: it reads no message, keeps no client, and waits for none. It tries the locks of pools
// rather than taking them, since it has the list of pools meanwhile: a callback under a pool's lock
// may wait for a thread that opens another pool.
class TopThread {
 public:
  TopThread(const TopSource& source, std::string path, Descriptor listener)
      : source_(source), path_(std::move(path)), listener_(std::move(listener)) {}

  const std::string& path() const { return path_; }

  void serve() noexcept {
    while (!process::is_ending()) {
      pollfd asked{listener_.get(), POLLIN, 0};
      poll(&asked, 1, -1);
      bool is_short = false;
      Channel channel = accept_from(listener_.get(), is_short);
      if (is_short) std::this_thread::sleep_for(kWithoutDescriptors);
      if (!channel) continue;
      try {
        answer(channel);
      } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): no host memory, no answer
      }
      hang_up(channel);
    }
  }

 private:
  void answer(const Channel& channel) {
    const Result<PeerProcess> peer = peer_of(channel);
    if (!peer || peer.value().user != geteuid()) return;
    if (text_.empty() || Clock::now() - made_at_ > kFresh) {
      text_ = text_of(figures());
      made_at_ = Clock::now();
    }
    // A client that does not take it gets none.
    static_cast<void>(send(channel.get(), text_.data(), text_.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
  }

  // Takes messages off, since the other end would see a reset instead of the answer. Descriptors
  // that come with them are closed without the lock that other threads need: Note [Descriptors that
  // nobody asked for].
  static void hang_up(Channel& channel) {
    shutdown(channel.get(), SHUT_RD);  // no further messages
    char byte = 0;
    while (recv(channel.get(), &byte, 1, MSG_DONTWAIT) > 0) {
    }
    channel.reset();  // an empty message ends the loop, too
  }

  TopFigures figures() {
    TopFigures now;
    now.library = source_.library;
    const auto age = Clock::now() - began_at_;
    now.age_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(age).count());
    for (const Deadline deadline = Clock::now() + kForLocks; !try_figures(now);) {
      if (Clock::now() >= deadline) break;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return now;
  }

  // Returns false if the lock of a pool is taken.
  bool try_figures(TopFigures& now) const {
    std::vector<TopPool>& pools = now.pools;
    pools.clear();
    now.more_pools = 0;
    const process::GateEntry entry;
    if (!entry.open()) return true;
    bool are_all_known = true;
    source_.for_each_pool([&](context::Context& pool) {
      if (pools.size() == kMostPools) {
        ++now.more_pools;
        return;
      }
      pools.push_back({pool.device(), pool.reports().try_figures()});
      are_all_known = are_all_known && pools.back().figures.has_value();
    });
    return are_all_known;
  }

  static std::string text_of(const TopFigures& figures) {
    std::string text;
    for (const std::size_t most_tags : kMostTags) {
      text = top_answer(figures, most_tags);
      if (text.size() <= kMostText) break;
    }
    return text;
  }

  const TopSource source_;
  const std::string path_;
  const Descriptor listener_;
  const Deadline began_at_ = Clock::now();
  // --- the thread's ---
  std::string text_;
  Deadline made_at_{};
};

// Serializes openings of pools; a forked child, which opens none, never takes it.
constinit Mutex starting;
constinit TopThread* running VPMM_GUARDED_BY(starting) = nullptr;  // never destroyed
constinit bool removes_socket_at_exit VPMM_GUARDED_BY(starting) = false;

Result<void> start(const TopSource& source) VPMM_REQUIRES(starting) {
  if (running != nullptr) return {};
  VPMM_TRY_ASSIGN(const settings::IpcSettings settings, settings::ipc_settings_from_environment());
  VPMM_TRY_ASSIGN(const std::string folder, socket_folder(settings.folder));
  sweep(folder);
  when_forked([] { socket_of_this_process.store(nullptr); });
  const std::string path = top_socket_path(folder, new_identity());
  VPMM_TRY_ASSIGN(Descriptor listener, listen_at(path));
  ScopeExit undo([&] { unlink(path.c_str()); });
  // Lives as long as the process: so may its thread.
  auto thread = std::make_unique<TopThread>(source, path, std::move(listener));
  if (!removes_socket_at_exit) process::run_at_exit(remove_socket);
  removes_socket_at_exit = true;
  VPMM_TRY(start_quiet_thread(
      "vpmm-top", [serving = thread.get()] { serving->serve(); }, ThreadStack::small));
  undo.dismiss();
  running = thread.release();
  socket_of_this_process.store(&running->path());
  return {};
}

void note(observe::LogLevel level, const char* why) noexcept {
  observe::log(level, "`vpmm top` has no figures of this process: {}", why);
}

}  // namespace

void answer_top(const TopSource& source) noexcept {
  using observe::LogLevel;
  try {
    const Result<bool> is_wanted = settings::answers_top_from_environment();
    if (!is_wanted) return note(LogLevel::warning, is_wanted.error().message.c_str());
    if (!is_wanted.value()) return;
    const Result<void> started = [&] {
      const MutexLock lock(starting);
      return start(source);
    }();
    if (!started) note(LogLevel::info, started.error().message.c_str());
  } catch (const std::exception& exception) {
    note(LogLevel::info, exception.what());
  }
}

}  // namespace vpmm::ipc
