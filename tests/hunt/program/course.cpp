// SPDX-License-Identifier: Apache-2.0
// hunt: children that play programs, and children that make findings small.
#include "hunt/program/course.hpp"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <map>
#include <memory>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "hunt/program/shared.hpp"
#include "hunt/program/signals.hpp"

namespace vpmm::hunt {
namespace {

constexpr std::uint64_t kProgramsPerChild = 64;
constexpr std::size_t kMostTold = 12;  // kinds that are made small
constexpr double kShareOfFinding = 0.25;
constexpr double kGrace_s = 2;  // for children to end by themselves
constexpr double kLook_s = 0.1;
constexpr double kKeep_s = 1;

// What every child of a course reads.
struct Board {
  std::atomic<std::uint64_t> begun{0};  // programs, and children that found none left
  std::uint64_t programs = 0;
  std::atomic<bool> is_over{false};
};

// "signal #: Aborted". The number of a signal is in its name, too.
std::string name_of(const std::string& failure) {
  std::string name;
  for (const char each : failure.substr(0, failure.find('\n'))) {
    const bool is_number = std::isdigit(static_cast<unsigned char>(each)) != 0 ||
                           (name.ends_with('#') && std::isalpha(static_cast<unsigned char>(each)));
    if (!is_number) name += each;
    if (is_number && !name.ends_with('#')) name += '#';
  }
  return name;
}

// Where each process may have a core to itself, it stays there: threads that take turns wake each
// other on the same core.
void stay_on_a_core(std::size_t seat, unsigned jobs) {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (sched_getaffinity(0, sizeof usable, &usable) != 0) return;
  if (static_cast<unsigned>(CPU_COUNT(&usable)) != jobs) return;
  std::size_t core = 0;
  for (std::size_t before = 0; !CPU_ISSET(core, &usable) || before++ < seat;) ++core;
  CPU_ZERO(&usable);
  CPU_SET(core, &usable);
  sched_setaffinity(0, sizeof usable, &usable);
}

[[noreturn]] void play_many(Board& board, Slot& slot, const Course& course) {
  become_child();
  for (std::uint64_t i = 0; i < kProgramsPerChild && !board.is_over; ++i) {
    const std::uint64_t number = board.begun++;
    if (number >= board.programs) break;
    const std::uint64_t seed = course.first_seed + number * course.step;
    slot.seed = seed;
    const Program program = program_of(seed);
    ++slot.totals.programs;
    slot.totals.operations += program.operations.size();
    const Habits habits = course.habits_of(seed);
    play(program, habits.patience_s, slot, {habits.operations_per_check, nullptr, habits.defect});
  }
  _exit(0);
}

void show(std::FILE* report) {
  std::rewind(report);
  std::array<char, 4096> part{};
  while (const std::size_t size = std::fread(part.data(), 1, part.size(), report))
    std::fwrite(part.data(), 1, size, stdout);
  std::fclose(report);
  std::fflush(stdout);
}

class Race {
 public:
  Race(const Course& course, const Teller& teller, const Keeper& keeper)
      : course_(course), teller_(teller), keeper_(keeper) {
    const std::uint64_t most = ~course.first_seed / course.step + 1;  // seeds do not wrap
    board_->programs = std::min(course.programs, most);
  }

  Outcome run() {
    hold_signals();
    for (std::size_t seat = 0; seat < course_.jobs; ++seat) {
      slots_.push_back(std::make_unique<InShared<Slot>>());
      begin_worker(seat);
    }
    for (double kept_s = begin_s_; !children_.empty();) {
      wait_for_signal(kLook_s);
      if (is_over()) end_children();
      reap();
      if (now_s() < kept_s + kKeep_s) continue;
      kept_s = now_s();
      keeper_(sums());
    }
    return sums();
  }

 private:
  struct Child {
    std::size_t seat = 0;
    std::FILE* report = nullptr;  // of a finding that it makes small
  };

  bool is_over() const { return is_stopped() || now_s() >= end_s_; }

  void begin_worker(std::size_t seat) {
    const pid_t child = forked();
    if (child == 0) {
      stay_on_a_core(seat, course_.jobs);
      play_many(*board_, **slots_[seat], course_);
    }
    children_[child] = {seat};
  }

  void begin_teller(std::size_t seat, const Suspect& suspect) {
    std::FILE* const report = std::tmpfile();
    if (report == nullptr) throw std::system_error(errno, std::generic_category(), "tmpfile");
    const double left_s = end_s_ - now_s();
    const pid_t child = forked();
    if (child == 0) {
      teller_(suspect, now_s() + kShareOfFinding * left_s, report);
      std::fflush(report);
      _exit(0);
    }
    children_[child] = {seat, report};
  }

  void reap() {
    for (int status = 0; const pid_t ended = waitpid(-1, &status, WNOHANG);) {
      if (ended < 0) return;
      const auto found = children_.find(ended);
      if (found == children_.end()) continue;
      const Child child = found->second;
      children_.erase(found);
      if (child.report != nullptr)
        show(child.report);
      else if (was_killed_ && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        unfinished_.push_back((*slots_[child.seat])->seed);
      else if (note(child.seat, status))
        continue;
      const bool has_more = !is_over() && board_->begun < board_->programs;
      if (has_more && findings_ < kMostFindings) begin_worker(child.seat);
    }
  }

  // Returns whether the seat is taken by the first finding of a kind.
  bool note(std::size_t seat, int status) {
    const Slot& slot = **slots_[seat];
    const Suspect suspect{slot.seed, told(status, slot)};
    if (suspect.failure.empty()) return false;
    ++findings_;
    const std::string name = name_of(suspect.failure);
    const auto known = std::find_if(kinds_.begin(), kinds_.end(),
                                    [&](const Kind& kind) { return kind.name == name; });
    if (known != kinds_.end()) return known->seeds.push_back(suspect.seed), false;
    kinds_.push_back({name, suspect, {suspect.seed}});
    fmt::print("finding: seed {}: {}\n  again: ./dev hunt --seed {}\n", suspect.seed,
               suspect.failure, suspect.seed);
    std::fflush(stdout);
    if (is_over() || kinds_.size() > kMostTold) return false;
    begin_teller(seat, suspect);
    return true;
  }

  // Tells all children, and kills those that go on beyond a grace.
  void end_children() {
    if (!board_->is_over.exchange(true)) kill_s_ = now_s() + kGrace_s;
    was_killed_ = now_s() >= kill_s_;
    for (const auto& [pid, child] : children_)
      if (was_killed_ || child.report != nullptr) kill(pid, was_killed_ ? SIGKILL : SIGTERM);
  }

  Outcome sums() const {
    Outcome sums{{}, kinds_, unfinished_, now_s() - begin_s_, course_.jobs};
    for (const auto& slot : slots_) add(sums.totals, (*slot)->totals);
    return sums;
  }

  const Course& course_;
  const Teller& teller_;
  const Keeper& keeper_;
  const double begin_s_ = now_s();
  const double end_s_ = begin_s_ + course_.seconds;
  double kill_s_ = 0;
  bool was_killed_ = false;
  const InShared<Board> board_;
  std::vector<std::unique_ptr<InShared<Slot>>> slots_;  // by seat
  std::map<pid_t, Child> children_;
  std::vector<Kind> kinds_;
  std::size_t findings_ = 0;
  std::vector<std::uint64_t> unfinished_;
};

}  // namespace

Habits Course::habits_of(std::uint64_t seed) const {
  Habits own = habits;
  if (!planted.empty()) own.defect = planted[seed % planted.size()];
  return own;
}

std::size_t findings_of(const Outcome& outcome) {
  std::size_t findings = 0;
  for (const Kind& each : outcome.kinds) findings += each.seeds.size();
  return findings;
}

Outcome run(const Course& course, const Teller& teller, const Keeper& keeper) {
  return Race(course, teller, keeper).run();
}

}  // namespace vpmm::hunt
