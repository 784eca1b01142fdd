// hunt: children, their time limit, and their reports through shared memory.
#include "hunt/program/child.hpp"

#include <fcntl.h>
#include <malloc.h>
#include <sys/mman.h>
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
#include <map>
#include <memory>
#include <new>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "property/dice.hpp"

namespace vpmm::hunt {

using property::World;

namespace {

constexpr std::size_t kOperationsPerProgram = 1500;
constexpr std::uint64_t kProgramsPerChild = 64;
constexpr std::uint64_t kOneInHasAliases = 16;
constexpr std::uint64_t kOneInHasManyThreads = 512;
constexpr std::uint64_t kOneInAsks = 4;
constexpr std::size_t kOperationsPerQuestion = 200;
constexpr std::uint64_t kOneInHasFewThreads = 3;
constexpr std::size_t kFewestThreads = 2;
constexpr std::size_t kMostFewThreads = 8;
constexpr int kFound = 3;  // exit code of a child with a failure in its slot

// What every child of a course reads.
struct Board {
  std::atomic<std::uint64_t> next_seed{0};
  std::uint64_t end_seed = 0;
};

template <typename T>
class InShared {
 public:
  InShared()
      : memory_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
    object_ = new (memory_) T;
  }
  ~InShared() { munmap(memory_, sizeof(T)); }
  InShared(const InShared&) = delete;
  InShared& operator=(const InShared&) = delete;
  T& operator*() const { return *object_; }
  T* operator->() const { return object_; }

 private:
  void* memory_;
  T* object_ = nullptr;
};

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

// Ends the process if the program does, or failed.
void play(const Program& program, double patience_s, Slot& slot, const property::Watch& watch) {
  begin_patience(patience_s);
  auto world = std::make_unique<World>(program.scene, watch);
  for (const property::Operation& each : program.operations) world->run(each);
  const bool exits = !program.operations.empty() &&
                     std::holds_alternative<property::Exit>(program.operations.back());
  if (world->failure().empty() && exits) {
    left_slot = &slot;
    left_world = world.release();
    add(slot.totals.figures, left_world->figures());
    std::exit(0);
  }
  if (world->failure().empty()) world->finish();
  if (watch.script != nullptr) watch.script->end(world->failure());
  add(slot.totals.figures, world->figures());
  if (world->failure().empty()) return;
  put(slot, world->failure());
  _exit(kFound);
}

void silence() {
  const int nowhere = open("/dev/null", O_WRONLY);
  if (nowhere < 0) return;
  dup2(nowhere, STDERR_FILENO);
  close(nowhere);
}

// Memory of the host stays with the process: the system's calls would be most of the time.
void become_child() {
  constexpr int kKept = 1 << 30;
  constexpr int kLargest = 32 << 20;  // that glibc allows
  mallopt(M_TRIM_THRESHOLD, kKept);
  mallopt(M_MMAP_THRESHOLD, kLargest);
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  std::signal(SIGALRM, SIG_DFL);
  std::atexit(check_left_world);
}

std::string told(int status, const Slot& slot) {
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) return "hang: the time is over";
  if (WIFSIGNALED(status))
    return fmt::format("signal {}: {}", WTERMSIG(status), strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) == kFound) return slot.failure.data();
  if (WEXITSTATUS(status) != 0) return fmt::format("exit code {}: ", WEXITSTATUS(status));
  return "";
}

// Of all children that ended.
double cpu_s() {
  rusage used{};
  getrusage(RUSAGE_CHILDREN, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

[[noreturn]] void play_many(Board& board, Slot& slot, const Habits& habits, double end_s) {
  become_child();
  for (std::uint64_t i = 0; i < kProgramsPerChild && now_s() < end_s; ++i) {
    const std::uint64_t seed = board.next_seed.fetch_add(1);
    if (seed >= board.end_seed) break;
    slot.seed = seed;
    const Program program = program_of(seed);
    ++slot.totals.programs;
    slot.totals.operations += program.operations.size();
    play(program, habits.patience_s, slot, {habits.operations_per_check, nullptr, habits.defect});
  }
  _exit(0);
}

pid_t forked() {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw std::bad_alloc();
  return child;
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

Program program_of(std::uint64_t seed) {
  property::Dice dice(seed);
  Program program;
  program.scene = dice.scene();
  program.scene.has_threads = dice.takes_turns();
  // Mapping in earnest takes most of the time.
  program.scene.sim.has_aliases = seed % kOneInHasAliases == 0;
  program.operations = dice.whole_program(kOperationsPerProgram);
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
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return told(status, *slot);
}

Outcome run(const Course& course, const Habits& habits) {
  const double begin_s = now_s();
  const double end_s = begin_s + course.seconds;
  const InShared<Board> board;
  board->next_seed = course.first_seed;
  board->end_seed = course.programs > ~course.first_seed ? ~std::uint64_t{0}
                                                         : course.first_seed + course.programs;
  std::vector<std::unique_ptr<InShared<Slot>>> slots;
  std::map<pid_t, std::size_t> children;
  Outcome outcome;
  const auto begin_child = [&](std::size_t number) {
    const pid_t child = forked();
    if (child == 0) play_many(*board, **slots[number], habits, end_s);
    children[child] = number;
  };
  for (unsigned i = 0; i < course.jobs; ++i) {
    slots.push_back(std::make_unique<InShared<Slot>>());
    begin_child(i);
  }
  while (!children.empty()) {
    int status = 0;
    const pid_t ended = waitpid(-1, &status, 0);
    const auto child = children.find(ended);
    if (child == children.end()) continue;
    const std::size_t number = child->second;
    children.erase(child);
    Slot& slot = **slots[number];
    if (std::string failure = told(status, slot); !failure.empty())
      outcome.suspects.push_back({slot.seed, std::move(failure)});
    const bool is_over = now_s() >= end_s || board->next_seed >= board->end_seed;
    if (!is_over && outcome.suspects.size() < kMostSuspects) begin_child(number);
  }
  for (const auto& slot : slots) {
    const Totals& totals = (*slot)->totals;
    outcome.totals.programs += totals.programs;
    outcome.totals.operations += totals.operations;
    add(outcome.totals.figures, totals.figures);
  }
  outcome.seconds = now_s() - begin_s;
  outcome.cpu_seconds = cpu_s();
  return outcome;
}

}  // namespace vpmm::hunt
