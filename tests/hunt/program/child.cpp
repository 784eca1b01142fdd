// SPDX-License-Identifier: Apache-2.0
// hunt: children, their time limit, and their reports through shared memory.
#include "hunt/program/child.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "hunt/program/shared.hpp"
#include "hunt/program/signals.hpp"
#include "property/dice.hpp"

namespace vpmm::hunt {

using property::World;

namespace {

constexpr std::size_t kOperationsPerProgram = 1500;
constexpr std::uint64_t kOneInHasAliases = 16;
constexpr std::uint64_t kOneInHasManyThreads = 512;
constexpr std::uint64_t kOneInHasImporter = 7;
constexpr std::uint64_t kOneInAsks = 4;
constexpr std::size_t kOperationsPerQuestion = 200;
constexpr std::uint64_t kOneInHasFewThreads = 3;
constexpr std::size_t kFewestThreads = 2;
constexpr std::size_t kMostFewThreads = 8;
constexpr int kFound = 3;  // exit code of a child with a failure in its slot

void put(Slot& slot, const std::string& failure) {
  const std::size_t size = std::min(failure.size(), slot.failure.size() - 1);
  std::memcpy(slot.failure.data(), failure.data(), size);
  slot.failure[size] = '\0';
}

void add(property::Figures& sum, const property::Figures& each) {
  sum.calls += each.calls;
  sum.misses += each.misses;
  sum.faults += each.faults;
  sum.judged += each.judged;
  sum.unleased += each.unleased;
  sum.guarded += each.guarded;
  sum.damaged += each.damaged;
  for (std::size_t i = 0; i < sum.done.size(); ++i) sum.done[i] += each.done[i];
  for (std::size_t i = 0; i < sum.heard.size(); ++i) sum.heard[i] += each.heard[i];
  for (std::size_t i = 0; i < sum.recorded.size(); ++i) sum.recorded[i] += each.recorded[i];
}

// The world that is left when the process exits, for the handler.
World* left_world = nullptr;
Slot* left_slot = nullptr;

void check_left_world() {
  if (left_world == nullptr) return;
  left_world->check_after_exit();
  if (left_world->failure().empty()) return;
  put(*left_slot, left_world->failure());
  _exit(kFound);
}

// SIGALRM ends a process that takes longer.
void begin_patience(double seconds) {
  itimerval limit{};
  limit.it_value.tv_sec = static_cast<time_t>(seconds);
  limit.it_value.tv_usec =
      static_cast<suseconds_t>(1e6 * (seconds - static_cast<double>(limit.it_value.tv_sec)));
  setitimer(ITIMER_REAL, &limit, nullptr);
}

// Of this process, and of its children that ended.
double cpu_s() {
  double seconds = 0;
  for (const auto who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    rusage used{};
    getrusage(who, &used);
    for (const timeval& time : {used.ru_utime, used.ru_stime})
      seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  }
  return seconds;
}

// Figures of the program that ends, and the time of the process since the program before.
void count(Slot& slot, const World& world) {
  static double counted_s = 0;
  add(slot.totals.figures, world.figures());
  const double now = cpu_s();
  slot.totals.cpu_seconds += now - std::exchange(counted_s, now);
}

void silence() {
  const int nowhere = open("/dev/null", O_WRONLY);
  if (nowhere < 0) return;
  dup2(nowhere, STDERR_FILENO);
  close(nowhere);
}

void ask_meanwhile(Program& program) {
  std::vector<property::Operation>& operations = program.operations;
  for (std::size_t at = kOperationsPerQuestion; at < operations.size();
       at += kOperationsPerQuestion)
    operations.insert(operations.begin() + static_cast<std::ptrdiff_t>(at), property::Ask{});
}

// Every fourth operation or so is another thread's. The draws are apart from those of the program.
void take_turns(Program& program, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  program.scene.has_threads = true;
  program.scene.threads = kFewestThreads + random() % (kMostFewThreads - kFewestThreads + 1);
  const std::vector<property::Operation> operations = std::exchange(program.operations, {});
  for (const property::Operation& each : operations) {
    if (random() % 4 == 0)
      program.operations.emplace_back(property::Turn{random() % program.scene.threads});
    program.operations.push_back(each);
  }
}

}  // namespace

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

pid_t forked() {
  std::fflush(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw std::bad_alloc();
  if (child != 0) return child;
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) std::abort();
  if (getppid() != parent) _exit(0);  // it ended before
  return child;
}

// Memory of the host stays with the process: the system's calls would be most of the time.
void become_child() {
  constexpr int kKept = 1 << 30;
  constexpr int kLargest = 32 << 20;  // that glibc allows
  constexpr int kExceptAdvised = 2;   // of Linux 6.18: copies of suspended memory get huge pages
  mallopt(M_ARENA_MAX, 1);            // memory of threads stays, too
  mallopt(M_TRIM_THRESHOLD, kKept);
  mallopt(M_MMAP_THRESHOLD, kLargest);
  if (prctl(PR_SET_THP_DISABLE, 1, kExceptAdvised, 0, 0) != 0)
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  std::signal(SIGALRM, SIG_DFL);
  release_signals();
  std::atexit(check_left_world);
}

void play(const Program& program, double patience_s, Slot& slot, const property::Watch& watch) {
  begin_patience(patience_s);
  auto world = std::make_unique<World>(program.scene, watch);
  world->run(program.operations);
  const bool exits = !program.operations.empty() &&
                     std::holds_alternative<property::Exit>(program.operations.back());
  if (world->failure().empty() && exits) {
    left_slot = &slot;
    left_world = world.release();
    count(slot, *left_world);
    std::exit(0);
  }
  if (world->failure().empty()) world->finish();
  if (watch.script != nullptr) watch.script->end(world->failure());
  count(slot, *world);
  if (world->failure().empty()) return;
  put(slot, world->failure());
  _exit(kFound);
}

std::string told(int status, const Slot& slot) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "hang: the time is over";
  if (WIFSIGNALED(status))
    return fmt::format("signal {}: {}", WTERMSIG(status), strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) == kFound) return slot.failure.data();
  if (WEXITSTATUS(status) != 0) return fmt::format("exit code {}: ", WEXITSTATUS(status));
  return "";
}

void add(Totals& sum, const Totals& each) {
  sum.programs += each.programs;
  sum.operations += each.operations;
  add(sum.figures, each.figures);
  sum.cpu_seconds += each.cpu_seconds;
}

Program program_of(std::uint64_t seed) {
  property::Dice dice(seed);
  Program program;
  program.scene = dice.scene();
  program.scene.has_threads = dice.takes_turns();
  // Mapping in earnest takes most of the time.
  program.scene.sim.has_aliases = seed % kOneInHasAliases == 0;
  program.operations = dice.whole_program(kOperationsPerProgram);
  if (seed % kOneInHasImporter == 0) {
    property::add_importer(program, seed);
    // Without them the other process would see no contents.
    program.scene.sim.has_aliases |= seed % (2 * kOneInHasImporter) == 0;
  }
  if (seed % kOneInAsks == 2) ask_meanwhile(program);
  if (seed % kOneInHasFewThreads == 0) take_turns(program, seed);
  if (seed % kOneInHasManyThreads == 1) program.scene.threads = 68;
  return program;
}

std::string failure_of(const Program& program, const Habits& habits, Messages messages,
                       int script) {
  const InShared<Slot> slot;
  const pid_t child = forked();
  if (child == 0) {
    become_child();
    if (messages == Messages::dropped) silence();
    property::Script text(script);
    play(program, habits.patience_s, *slot,
         {habits.operations_per_check, script < 0 ? nullptr : &text, habits.defect});
    _exit(0);
  }
  int status = 0;
  const bool was_stopped = is_stopped();  // else what begins after the signal would end at once
  while (waitpid(child, &status, WNOHANG) == 0) {
    wait_for_signal(1);
    if (is_stopped() && !was_stopped) kill(child, SIGKILL);
  }
  return told(status, *slot);
}

}  // namespace vpmm::hunt
