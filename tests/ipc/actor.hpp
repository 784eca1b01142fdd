// SPDX-License-Identifier: Apache-2.0
// ipc tests: another process that runs this binary too, and does what a test tells it to, step by
// step.
#pragma once

#include <sys/types.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <string>
#include <vector>

#include "vpmm/vpmm.h"

namespace vpmm::ipc_test {

// What goes to an actor and comes back.
struct Parcel {
  vpmm_status status = VPMM_OK;
  vpmm_ipc_handle handle{};
  std::array<std::uint64_t, 16> words{};
  std::array<char, 600> text{};

  void say(const std::string& what) { text[what.copy(text.data(), text.size() - 1)] = '\0'; }
  std::string said() const { return text.data(); }
  // Notes what a call of the C ABI said.
  void take(vpmm_status said_by_call) {
    status = said_by_call;
    if (status != VPMM_OK) say(vpmm_last_error());
  }
};

// A function without captures: all that it knows of the test is in the parcel.
using Work = void (*)(Parcel&);

// Starts with a fresh image (no fork without exec), so a test may have as many threads as it likes.
class Actor {
 public:
  // `settings`: "NAME=value", beside the environment of the test.
  explicit Actor(const std::vector<std::string>& settings = {});
  ~Actor();  // it ends by exit(), which must give 0, unless it was killed
  Actor(const Actor&) = delete;
  Actor& operator=(const Actor&) = delete;

  Parcel call(Work work, const Parcel& question = {});
  // The same in two halves, for what must not wait.
  void begin(Work work, const Parcel& question = {});
  Parcel finish();

  pid_t process() const { return process_; }
  void signal(int number) const;  // SIGSTOP: returns when it has stopped
  void kill();                    // by SIGKILL; returns when it is dead
  void exit();                    // returns when it has exited, or was killed after 100 seconds

 private:
  pid_t process_ = 0;
  int control_ = -1;
};

// In an actor: its descriptor to the test, for a forked child to close.
int control_of_actor();
// As fork(); the child ends by SIGALRM if it hangs.
pid_t fork_for_a_while();
// The life of an actor; returns at once in a process that is none.
void act(int argc, const char* const* argv);

}  // namespace vpmm::ipc_test
