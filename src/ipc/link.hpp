// SPDX-License-Identifier: Apache-2.0
// ipc: link to one exporter: one opening at a time, and closings that are never lost.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <optional>

#include "base/mutex.hpp"
#include "ipc/channel.hpp"

namespace vpmm::ipc {

// Number of one opening, or empty. Made with the opening, and moved as a list node, so that a
// closing cannot fail for want of memory.
using ClosedOpenings = std::list<std::uint64_t>;

// Note [Closings are said by whoever has the link]
// An opening has the link to itself (Turn) from its first message to its last. A closing never
// waits for it: it leaves its number, which the thread with the link sends. An exporter that does
// not read gets the rest at the next openings or closings, and is waited for once only, by a call
// about its memory; one that is gone needs no message.
class Link {
 public:
  explicit Link(Identity exporter) : exporter_(exporter) {}

  class Turn {
   public:
    explicit Turn(Link& link) VPMM_EXCLUDES(link.mutex_);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Connects unless connected. Returns true if it was connected before, perhaps long ago.
    Result<bool> connect(const std::string& folder, Deadline deadline);
    std::uint64_t next_number() { return ++link_.last_number_; }
    // not_shared: the exporter is gone or does not read, and the link is broken.
    Result<void> say(const Message& message, Deadline deadline);
    // Receives a message for opening `number`; a refusal is an error. After a timeout the link
    // stays usable, as the next opening skips late messages.
    Result<Received> hear(std::uint64_t number, Deadline deadline);

    // Sent at the end of the turn.
    void close(ClosedOpenings&& closing) { link_.close(std::move(closing), Patience::none); }

   private:
    Link& link_;
  };

  // A second of it: of a call about memory of this exporter.
  enum class Patience { none, a_second };

  const Identity& exporter() const { return exporter_; }
  void close(ClosedOpenings&& closing, Patience patience) noexcept VPMM_EXCLUDES(mutex_);
  // Sends closings; if the link is taken, the thread that has it sends them.
  void say_what_is_unsaid(Patience patience) noexcept VPMM_EXCLUDES(mutex_);
  bool has_said_everything() VPMM_EXCLUDES(mutex_);
  bool is_broken() const { return is_broken_; }

 private:
  // Takes the closings and the link; empty: no closings, or the link is taken.
  ClosedOpenings take_unsaid() VPMM_EXCLUDES(mutex_);
  void release() VPMM_EXCLUDES(mutex_);

  const Identity exporter_;
  std::atomic<bool> is_broken_{false};
  // --- of the thread that has the link ---
  Channel channel_;
  std::uint64_t last_number_ = 0;
  bool is_stuck_ =
      false;  // the exporter did not take a closing in time: the next ones are not waited for
  // --- shared ---
  Mutex mutex_;
  std::condition_variable_any released_;
  bool is_taken_ VPMM_GUARDED_BY(mutex_) = false;
  ClosedOpenings unsaid_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::ipc
