// ipc: what is between this process and one exporter: one opening at a time, and closings that are never lost.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "ipc/channel.hpp"

namespace vpmm::ipc {

// Note [Closings are said by whoever has the link]
// An opening has the link to itself (Turn) from its first word to its last. A closing never waits for that: it leaves
// its number, and whoever has the link then says it. What an exporter that does not listen cannot be told is told when
// this process opens or closes something again, and it is waited for once only; one that is gone needs no word.
class Link {
 public:
  explicit Link(Identity exporter) : exporter_(exporter) {}

  class Turn {
   public:
    explicit Turn(Link& link);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

    // Connects if that has not been done. True: it had been, perhaps long ago.
    Result<bool> connect(const std::string& folder, Deadline deadline);
    std::uint64_t next_number() { return ++link_.last_number_; }
    // not_shared, and the link is of no more use: the exporter is gone.
    Result<void> say(const Message& message, Deadline deadline);
    // What is meant for opening `number`; a refusal is an error. Without an answer in time the link stays what it is,
    // for what comes late is passed over by the next opening.
    Result<Received> hear(std::uint64_t number, Deadline deadline);

    // Said when the turn is over.
    void close(std::uint64_t number) { link_.close(number); }

   private:
    Link& link_;
  };

  void close(std::uint64_t number);
  // Who finds the link taken leaves it to whoever has it.
  void say_what_is_unsaid();
  bool has_said_everything();
  bool is_broken() const { return is_broken_; }

 private:
  void release();

  const Identity exporter_;
  std::atomic<bool> is_broken_{false};
  // --- of whoever has taken it ---
  Channel channel_;
  std::uint64_t last_number_ = 0;
  bool is_stuck_ = false;  // the exporter did not take a closing in time: the next ones are not waited for
  // --- under mutex_ ---
  std::mutex mutex_;
  std::condition_variable released_;
  bool is_taken_ = false;
  std::vector<std::uint64_t> unsaid_;
};

}  // namespace vpmm::ipc
