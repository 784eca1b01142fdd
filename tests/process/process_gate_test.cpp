// SPDX-License-Identifier: Apache-2.0
// process: what exit and fork do to calls into the library.
//
// Gates close for good, so each of these runs in a child process and reports through its exit
// status.
#include "process/process_gate.hpp"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/race_window.hpp"
#include "process/rests.hpp"

namespace vpmm::process {
namespace {

// The exit status of a forked child that runs `body` and leaves with what it returns; 255 when it
// died otherwise.
template <typename Body>
int status_of_child(Body body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 255;
  return WEXITSTATUS(status);
}

// Death tests in the threadsafe style start the test binary anew, so the gate in them is fresh.
class ProcessGateDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST(ProcessGate, is_open_while_the_process_runs) {
  const GateEntry entry;
  EXPECT_TRUE(entry.open());
  EXPECT_FALSE(is_ending());
}

TEST(ProcessGate, entries_nest) {
  const GateEntry outer;
  const GateEntry inner;
  EXPECT_TRUE(outer.open());
  EXPECT_TRUE(inner.open());
}

TEST(ProcessGate, is_closed_in_a_forked_child_also_when_the_parent_was_inside_a_call) {
  const GateEntry parent;
  ASSERT_TRUE(parent.open());
  EXPECT_EQ(status_of_child([] {
              const GateEntry entry;
              return !entry.open() && is_ending() ? 0 : 1;
            }),
            0);
  EXPECT_FALSE(is_ending());
}

TEST_F(ProcessGateDeathTest, is_open_in_a_forked_child_of_a_process_that_made_no_call) {
  EXPECT_EXIT(_exit(status_of_child([] {
                const GateEntry entry;
                return entry.open() && !is_ending() ? 59 : 1;
              })),
              testing::ExitedWithCode(59), "");
}

TEST(ProcessGate, says_in_the_child_that_it_is_a_child) {
  { const GateEntry first_use; }
  EXPECT_EQ(status_of_child([] {
              const Error error = ending_error();
              const bool says = error.message.find("forked child") != std::string::npos;
              return says && error.code == ErrorCode::process_ending ? 0 : 1;
            }),
            0);
}

// Registered before the gate's handler, so it runs after: what a static destructor of the program
// sees.
void report_gate_late() {
  const GateEntry entry;
  _exit(entry.open() ? 1 : (ending_error().message.find("exiting") != std::string::npos ? 42 : 2));
}

TEST_F(ProcessGateDeathTest, is_closed_for_destructors_that_run_after_exit_began) {
  EXPECT_EXIT(
      {
        std::atexit(report_gate_late);
        { const GateEntry first_use; }
        std::exit(0);
      },
      testing::ExitedWithCode(42), "");
}

TEST_F(ProcessGateDeathTest, is_still_open_for_destructors_of_objects_made_after_the_first_use) {
  EXPECT_EXIT(
      {
        { const GateEntry first_use; }
        std::atexit([] {
          const GateEntry entry;
          if (!entry.open()) _exit(1);
        });
        std::exit(43);
      },
      testing::ExitedWithCode(43), "");
}

std::atomic<bool> call_finished{false};

// On another thread, which runs `before` first. The call ends a little after exit has begun.
void begin_a_call_that_exit_must_wait_for(void (*before)() = [] {}) {
  std::atomic<bool> inside{false};
  std::thread([&inside, before] {
    before();
    const GateEntry entry;
    inside = true;
    while (!is_ending()) std::this_thread::yield();
    { const GateEntry turned_away; }  // counts for nothing
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    call_finished = true;
  }).detach();
  while (!inside) std::this_thread::yield();
}

TEST_F(ProcessGateDeathTest, exit_waits_for_a_call_in_progress_on_another_thread) {
  EXPECT_EXIT(
      {
        std::atexit([] { _exit(call_finished ? 44 : 1); });
        begin_a_call_that_exit_must_wait_for();
        std::exit(0);
      },
      testing::ExitedWithCode(44), "");
}

// Its thread has a counter of its own since its first call.
TEST_F(ProcessGateDeathTest, exit_waits_for_a_later_call_of_a_thread_too) {
  EXPECT_EXIT(
      {
        std::atexit([] { _exit(call_finished ? 53 : 1); });
        begin_a_call_that_exit_must_wait_for([] { const GateEntry earlier; });
        std::exit(0);
      },
      testing::ExitedWithCode(53), "");
}

// The next two end at once or, if they waited, at the alarm: the bound of the wait is two seconds.

TEST_F(ProcessGateDeathTest, exit_of_a_forked_child_does_not_wait_for_the_parents_threads) {
  EXPECT_EXIT(
      {
        std::atexit([] { _exit(47); });
        std::atomic<bool> inside{false};
        std::thread([&inside] {
          const GateEntry entry;
          inside = true;
          for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
        }).detach();
        while (!inside) std::this_thread::yield();
        _exit(status_of_child([]() -> int {
          alarm(1);
          std::exit(0);
        }));
      },
      testing::ExitedWithCode(47), "");
}

TEST_F(ProcessGateDeathTest, exit_from_inside_a_call_does_not_wait_for_itself) {
  EXPECT_EXIT(
      {
        std::atexit([] { _exit(45); });
        alarm(1);
        const GateEntry outer;
        const GateEntry inner;
        std::exit(0);
      },
      testing::ExitedWithCode(45), "");
}

TEST_F(ProcessGateDeathTest, exit_gives_up_waiting_for_a_call_that_never_ends_and_rests_meanwhile) {
  EXPECT_EXIT(
      {
        std::atexit([] { _exit(rests(RUSAGE_SELF) > 100 ? 46 : 1); });
        std::atomic<bool> inside{false};
        std::thread([&inside] {
          const GateEntry entry;
          inside = true;
          for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
        }).detach();
        while (!inside) std::this_thread::yield();
        std::exit(0);
      },
      testing::ExitedWithCode(46), "");
}

// The wait of exit is two seconds at most.
constexpr unsigned kBelowOneWait = 1;

// The bound of the wait is two seconds. The next two would end at the alarm if each of ten handlers
// waited.
constexpr unsigned kFarBelowTenWaits = 12;

void ask_for_nine_more_handlers() {
  { const GateEntry first_use; }
  for (int i = 0; i < 9; ++i) close_gate_at_exit();
}

TEST_F(ProcessGateDeathTest, exit_waits_once_however_many_handlers_there_are) {
  EXPECT_EXIT(
      {
        ask_for_nine_more_handlers();
        std::atomic<bool> inside{false};
        std::thread([&inside] {
          const GateEntry entry;
          inside = true;
          for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
        }).detach();
        while (!inside) std::this_thread::yield();
        alarm(kFarBelowTenWaits);
        std::exit(48);
      },
      testing::ExitedWithCode(48), "");
}

// One is inside until others were turned away, which hold what they were told for ever.
TEST_F(ProcessGateDeathTest, exit_does_not_wait_for_calls_that_it_turned_away) {
  EXPECT_EXIT(
      {
        ask_for_nine_more_handlers();
        static std::atomic<bool> inside{false};
        static std::atomic<int> turned_away{0};
        constexpr int kOthers = 300;  // more than there are counters
        std::thread([] {
          const GateEntry entry;
          inside = true;
          while (turned_away != kOthers) std::this_thread::yield();
        }).detach();
        for (int i = 0; i < kOthers; ++i) {
          std::thread([] {
            for (;;) {
              const GateEntry entry;
              if (entry.open()) continue;
              ++turned_away;
              for (;;) std::this_thread::sleep_for(std::chrono::seconds(1));
            }
          }).detach();
        }
        while (!inside) std::this_thread::yield();
        alarm(kFarBelowTenWaits);
        std::exit(49);
      },
      testing::ExitedWithCode(49), "");
}

// Runs `meanwhile` in each entry that counts and has not looked at the gate again.
void hold_entries(void (*meanwhile)()) {
  static void (*in_entry)() = nullptr;
  in_entry = meanwhile;
  race_window.store([](const char* name) {
    if (std::string(name) == "an entry counts, and has not looked at the gate again") in_entry();
  });
}

TEST_F(ProcessGateDeathTest, exit_does_not_wait_for_a_call_that_finds_the_gate_closed_meanwhile) {
  EXPECT_EXIT(
      {
        static std::atomic<bool> is_counted{false};
        hold_entries([] {
          is_counted = true;
          while (!is_ending()) std::this_thread::yield();
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
        });
        std::thread([] {
          const GateEntry entry;
          for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
        }).detach();
        while (!is_counted) std::this_thread::yield();
        alarm(kBelowOneWait);
        std::exit(60);
      },
      testing::ExitedWithCode(60), "");
}

TEST_F(ProcessGateDeathTest, calls_at_a_closed_gate_do_not_count_for_a_moment) {
  EXPECT_EXIT(
      {
        hold_entries([] {
          while (is_ending()) std::this_thread::sleep_for(std::chrono::seconds(1));
        });
        begin_a_call_that_exit_must_wait_for();
        alarm(kBelowOneWait);
        std::exit(61);
      },
      testing::ExitedWithCode(61), "");
}

// 300 threads that are inside calls at the same time: more than there are counters.
constexpr int kManyThreads = 300;

// Each of them runs `inside` in its call; they end after all have been there.
template <typename Inside>
void in_many_threads(Inside inside) {
  std::atomic<int> here{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kManyThreads; ++i)
    threads.emplace_back([&] {
      { const GateEntry earlier; }
      {
        const GateEntry entry;
        inside();
        ++here;
        while (here < kManyThreads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(ProcessGate, counts_each_thread_alone_as_long_as_counters_are_left) {
  std::mutex mutex;
  std::multiset<std::atomic<std::int64_t>*> counters;
  in_many_threads([&] {
    const std::lock_guard lock(mutex);
    counters.insert(detail::own_entries);
  });
  const std::size_t shared = counters.count(nullptr);
  EXPECT_GE(shared, kManyThreads - 255u);
  EXPECT_LT(shared, kManyThreads - 245u) << "some may be of threads of other tests";
  counters.erase(nullptr);
  EXPECT_EQ(std::set(counters.begin(), counters.end()).size(), counters.size());
}

// In a process of its own, where no other thread has one.
TEST_F(ProcessGateDeathTest, has_a_counter_for_each_of_255_threads) {
  EXPECT_EXIT(
      {
        std::atomic<int> shared{0};
        in_many_threads([&] { shared += detail::own_entries == nullptr ? 1 : 0; });
        _exit(shared);
      },
      testing::ExitedWithCode(kManyThreads - 255), "");
}

// Made before its thread's first call, so it ends after the thread gave its counter back.
struct CallsAtTheEnd {
  ~CallsAtTheEnd() {
    const GateEntry late;
    EXPECT_TRUE(late.open());
    EXPECT_EQ(detail::own_entries, nullptr) << "nobody would take it back";
  }
};

TEST(ProcessGate, takes_back_the_counters_of_threads_that_ended) {
  for (int i = 0; i < kManyThreads; ++i)
    std::thread([] {
      thread_local const CallsAtTheEnd at_end;
      static_cast<void>(at_end);
      const GateEntry entry;
      EXPECT_NE(detail::own_entries, nullptr);
    }).join();
}

TEST_F(ProcessGateDeathTest, keeps_the_counter_of_a_thread_that_ended_inside_a_call) {
  EXPECT_EXIT(
      {
        static std::atomic<std::int64_t>* kept = nullptr;
        static bool is_kept = true;
        std::thread([] {
          static_cast<void>(new GateEntry);
          kept = detail::own_entries;
        }).join();
        std::thread([] {
          const GateEntry entry;
          is_kept = detail::own_entries != kept;
        }).join();
        _exit(is_kept ? 55 : 1);
      },
      testing::ExitedWithCode(55), "");
}

bool has_kernel_membarrier() {
  const long known = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0);
  return known > 0 && (known & MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0;
}

TEST(ProcessGate, lets_the_kernel_put_the_fences_where_it_can) {
  { const GateEntry first_use; }
  EXPECT_EQ(detail::has_membarrier, has_kernel_membarrier());
}

// The kernel answers this command of membarrier so from here on. Returns false if it takes no
// filter.
bool answer_membarrier(std::uint32_t command, std::uint32_t answer) {
  constexpr auto kNumber = static_cast<std::uint32_t>(offsetof(seccomp_data, nr));
  constexpr auto kCommand = static_cast<std::uint32_t>(offsetof(seccomp_data, args));
  constexpr auto kFlags = static_cast<std::uint32_t>(kCommand + sizeof(std::uint64_t));
  std::array<sock_filter, 8> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kNumber),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kFlags),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, kCommand),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, command, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, answer),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  }};
  const sock_fprog all{static_cast<unsigned short>(program.size()), program.data()};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &all) == 0;
}

bool can_answer_membarrier() {
  return has_kernel_membarrier() &&
         status_of_child([] { return answer_membarrier(0, SECCOMP_RET_ALLOW) ? 0 : 1; }) == 0;
}

// A full fence in each running thread, once the gate is closed and before the calls are counted.
TEST_F(ProcessGateDeathTest, closing_puts_one_fence_into_all_other_threads) {
  if (!can_answer_membarrier()) GTEST_SKIP() << "no membarrier, or no seccomp filter";
  EXPECT_EXIT(
      {
        static std::atomic<int> fences{0};
        std::signal(SIGSYS, [](int) { fences += is_ending() ? 1 : 100; });
        std::atexit([] { _exit(fences == 1 ? 56 : 1); });
        { const GateEntry first_use; }
        if (!answer_membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED, SECCOMP_RET_TRAP)) _exit(2);
        std::exit(0);
      },
      testing::ExitedWithCode(56), "");
}

TEST_F(ProcessGateDeathTest, exit_waits_for_a_call_though_the_kernel_puts_no_fences) {
  if (!can_answer_membarrier()) GTEST_SKIP() << "no membarrier, or no seccomp filter";
  EXPECT_EXIT(
      {
        std::atexit([] { _exit(detail::has_membarrier ? 2 : call_finished ? 57 : 1); });
        if (!answer_membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED,
                               SECCOMP_RET_ERRNO | ENOSYS))
          _exit(3);
        begin_a_call_that_exit_must_wait_for();
        std::exit(0);
      },
      testing::ExitedWithCode(57), "");
}

// Otherwise the second thread would go on to its exit while nothing closes the gate yet.
TEST_F(ProcessGateDeathTest, a_first_call_waits_until_exit_is_to_close_the_gate) {
  EXPECT_EXIT(
      {
        static std::atomic<bool> is_in_window{false};
        static std::atomic<bool> has_passed{false};
        std::atexit([] { _exit(is_ending() ? 60 : 1); });
        race_window = [](const char* name) {
          if (std::string(name) != "exit is to close the gate") return;
          is_in_window = true;
          for (int i = 0; i < 1000 && !has_passed; ++i)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        };
        alarm(kFarBelowTenWaits);
        std::thread([] { const GateEntry entry; }).detach();
        while (!is_in_window) std::this_thread::yield();
        { const GateEntry entry; }
        has_passed = true;
        std::exit(0);
      },
      testing::ExitedWithCode(60), "");
}

// A child that was forked within a registration never ends its exit, as its lock stays taken.
TEST_F(ProcessGateDeathTest, a_fork_waits_for_a_handler_that_is_being_registered) {
  EXPECT_EXIT(
      {
        static std::atomic<bool> is_over{false};
        std::thread registering([] {
          while (!is_over) {
            for (int i = 0; i < 100; ++i) run_at_exit([] {});
            std::this_thread::sleep_for(std::chrono::microseconds(1));  // fork() has its turn
          }
        });
        int stuck = 0;
        for (int i = 0; i < 20 && stuck == 0; ++i)
          stuck += status_of_child([]() -> int {
                     alarm(10);
                     std::exit(0);
                   }) == 0
                       ? 0
                       : 1;
        is_over = true;
        registering.join();
        _exit(stuck == 0 ? 58 : 1);
      },
      testing::ExitedWithCode(58), "");
}

TEST_F(ProcessGateDeathTest, exit_does_not_wait_for_calls_that_ended) {
  EXPECT_EXIT(
      {
        in_many_threads([] {});
        { const GateEntry entry; }
        alarm(kBelowOneWait);
        std::exit(50);
      },
      testing::ExitedWithCode(50), "");
}

// Keeps all counters but the shared one taken by threads that are in no call.
void take_all_counters() {
  static std::atomic<int> taken{0};
  for (int i = 0; i < kManyThreads; ++i)
    std::thread([] {
      { const GateEntry entry; }
      ++taken;
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }).detach();
  while (taken < kManyThreads) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

TEST_F(ProcessGateDeathTest, exit_from_inside_a_call_that_shares_its_counter_does_not_wait) {
  EXPECT_EXIT(
      {
        take_all_counters();
        std::thread([] {
          { const GateEntry before; }
          const GateEntry entry;
          alarm(kBelowOneWait);
          std::exit(51);
        }).join();
      },
      testing::ExitedWithCode(51), "");
}

TEST_F(ProcessGateDeathTest, exit_on_a_thread_that_shares_its_counter_waits_for_others) {
  EXPECT_EXIT(
      {
        std::atexit([] { _exit(call_finished ? 52 : 1); });
        in_many_threads([] {});
        take_all_counters();
        std::thread([] {
          { const GateEntry before; }
          begin_a_call_that_exit_must_wait_for();
          std::exit(0);
        }).join();
      },
      testing::ExitedWithCode(52), "");
}

}  // namespace
}  // namespace vpmm::process
