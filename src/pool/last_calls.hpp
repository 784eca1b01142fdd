// pool: whether several threads are at work.
#pragma once

#include <cstdint>
#include <thread>

namespace vpmm::pool {

// Who called last, and when. Nanoseconds of any clock that does not go back. Holds: the context's lock.
class LastCalls {
 public:
  void note(std::thread::id thread, std::uint64_t now_ns) {
    if (thread != last_.thread) last_of_another_ = last_;
    last_ = {thread, now_ns};
  }
  // Whether any other thread called since then.
  bool has_other(std::thread::id thread, std::uint64_t since_ns) const {
    const Call& call = last_.thread == thread ? last_of_another_ : last_;
    return call.thread != std::thread::id() && call.at_ns >= since_ns;
  }

 private:
  struct Call {
    std::thread::id thread;
    std::uint64_t at_ns = 0;
  };
  Call last_;
  Call last_of_another_;  // than that of the last
};

}  // namespace vpmm::pool
