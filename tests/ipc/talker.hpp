// SPDX-License-Identifier: Apache-2.0
// ipc tests: a client that talks on, in the process that serves it: it says one more message
// whenever a thread of that is about to read one.
#pragma once

#include <unistd.h>

#include <atomic>

#include "ipc/kernel.hpp"
#include "ipc/raw.hpp"

namespace vpmm::ipc_test {

struct Talker {
  ipc::Channel channel;
  KernelCall reading{};
  ipc::MessageKind kind{};
  std::atomic<std::uint64_t> heard{0};  // how often a thread was about to read
  std::atomic<std::uint64_t> said{0};
};

inline Talker& talker_of_actor() {
  static auto* const talker = new Talker;
  return *talker;
}

// In the thread that reads; the main thread reads what the test says. Ends when no message is
// taken.
inline void say_one_more() {
  Talker& talker = talker_of_actor();
  if (gettid() == getpid()) return before_kernel_call(talker.reading, say_one_more);
  ++talker.heard;
  if (talker.said >= 1000) return;
  if (talker.channel.try_send(message_of(talker.kind, 99), {}, ipc::Clock::now()) !=
      ipc::Channel::Sent::yes)
    return;
  ++talker.said;
  before_kernel_call(talker.reading, say_one_more);
}

inline void talk_on_before(KernelCall reading, ipc::MessageKind kind) {
  talker_of_actor().reading = reading;
  talker_of_actor().kind = kind;
  before_kernel_call(reading, say_one_more);
}

// words[0]: how many messages were taken; words[1]: how often one could have been said.
inline Parcel told_by_talker(Process& process) {
  return process.call([](Parcel& parcel) {
    parcel.words = {talker_of_actor().said, talker_of_actor().heard};
  });
}

}  // namespace vpmm::ipc_test
