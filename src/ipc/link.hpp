// ipc: what is between this process and one exporter: one opening at a time, and closings that are
// never lost.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <optional>

#include "base/mutex.hpp"
#include "ipc/channel.hpp"

namespace vpmm::ipc {

// The number of one opening, or nothing. It is made with the opening, and its node goes from list
// to list, so that a closing cannot fail for want of memory.
using Closing = std::list<std::uint64_t>;

// Note [Closings are said by whoever has the link]
// An opening has the link to itself (Turn) from its first word to its last. A closing never waits
// for that: it leaves its number, and whoever has the link then says it. What an exporter that does
// not listen cannot be told is told when this process opens or closes something again, and it is
// waited for once only; one that is gone needs no word.
class Link {
 public:
  explicit Link(Identity exporter) : exporter_(exporter) {}

  class Turn {
   public:
    explicit Turn(Link& link) VPMM_EXCLUDES(link.mutex_);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Connects if that has not been done. True: it had been, perhaps long ago.
    Result<bool> connect(const std::string& folder, Deadline deadline);
    std::uint64_t next_number() { return ++link_.last_number_; }
    // not_shared, and the link is of no more use: the exporter is gone.
    Result<void> say(const Message& message, Deadline deadline);
    // What is meant for opening `number`; a refusal is an error. Without an answer in time the link
    // stays what it is, for what comes late is passed over by the next opening.
    Result<Received> hear(std::uint64_t number, Deadline deadline);

    // Said when the turn is over.
    void close(Closing&& closing) { link_.close(std::move(closing)); }

   private:
    Link& link_;
  };

  const Identity& exporter() const { return exporter_; }
  void close(Closing&& closing) noexcept VPMM_EXCLUDES(mutex_);
  // Who finds the link taken leaves it to whoever has it.
  void say_what_is_unsaid() noexcept VPMM_EXCLUDES(mutex_);
  bool has_said_everything() VPMM_EXCLUDES(mutex_);
  bool is_broken() const { return is_broken_; }

 private:
  // What is to be said, by who has taken the link with it; nothing: there is nothing, or somebody
  // else has it.
  Closing take_unsaid() VPMM_EXCLUDES(mutex_);
  void release() VPMM_EXCLUDES(mutex_);

  const Identity exporter_;
  std::atomic<bool> is_broken_{false};
  // --- of whoever has taken it ---
  Channel channel_;
  std::uint64_t last_number_ = 0;
  bool is_stuck_ =
      false;  // the exporter did not take a closing in time: the next ones are not waited for
  // --- shared ---
  Mutex mutex_;
  std::condition_variable_any released_;
  bool is_taken_ VPMM_GUARDED_BY(mutex_) = false;
  Closing unsaid_ VPMM_GUARDED_BY(mutex_);
};

}  // namespace vpmm::ipc
