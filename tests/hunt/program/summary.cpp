// SPDX-License-Identifier: Apache-2.0
// hunt: kinds of operations and events, with their numbers.
#include "hunt/program/summary.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace vpmm::hunt {
namespace {

constexpr std::array kHeard = {"allocate",      "free",       "map",   "unmap",
                               "out_of_memory", "record_use", "trim",  "arena_grow",
                               "arena_shrink",  "suspend",    "resume"};
static_assert(kHeard.size() == report::kEventKinds);
// `none` is no event.
constexpr std::array kRecorded = {
    "allocate",     "free", "allocate_failed", "record_use",    "map",     "unmap",
    "move",         "trim", "pause",           "out_of_memory", "mark",    "arena_grow",
    "arena_shrink", "live", "driver",          "sample",        "suspend", "resume"};
static_assert(kRecorded.size() == observe::kLastRecordedKind);

// "operations: Free 12, Read 3\n  never: Exit\n"
std::string kinds(const char* title,
                  const std::vector<std::pair<std::string, std::uint64_t>>& all) {
  std::vector<std::string> seen;
  std::vector<std::string> never;
  for (const auto& [name, number] : all)
    number == 0 ? never.push_back(name) : seen.push_back(fmt::format("{} {}", name, number));
  std::string text = fmt::format("{}: {}\n", title, fmt::join(seen, ", "));
  if (!never.empty()) text += fmt::format("  never: {}\n", fmt::join(never, ", "));
  return text;
}

std::string findings(const Outcome& outcome) {
  std::string text;
  if (!outcome.unfinished.empty())
    text += fmt::format("not at their ends when the time was over: seeds {}\n",
                        fmt::join(outcome.unfinished, ", "));
  for (const Kind& kind : outcome.kinds)
    text += fmt::format("{} of {}: seeds {}\n", kind.seeds.size(), kind.name,
                        fmt::join(kind.seeds, ", "));
  return text + fmt::format("findings: {}\n", findings_of(outcome));
}

}  // namespace

std::string summary_of(const Outcome& outcome) {
  const Totals& totals = outcome.totals;
  const property::Figures& figures = totals.figures;
  std::vector<std::pair<std::string, std::uint64_t>> done, heard, recorded;
  for (std::size_t i = 0; i < figures.done.size(); ++i) {
    // A fault counts where it strikes, and not where it is armed.
    const bool is_fault = i == property::Operation(property::Fault{}).index();
    done.emplace_back(property::name_of(i), is_fault ? figures.faults : figures.done[i]);
  }
  for (std::size_t i = 0; i < kHeard.size(); ++i) heard.emplace_back(kHeard[i], figures.heard[i]);
  for (std::size_t i = 0; i < kRecorded.size(); ++i)
    recorded.emplace_back(kRecorded[i], figures.recorded[i + 1]);
  const double share = figures.calls == 0 ? 0
                                          : 100.0 * static_cast<double>(figures.misses) /
                                                static_cast<double>(figures.calls);
  const double rate = static_cast<double>(figures.calls) / std::max(totals.cpu_seconds, 1e-3);
  return fmt::format("{} programs in {:.1f} s, {} at once, {} operations\n", totals.programs,
                     outcome.seconds, outcome.jobs, totals.operations) +
         fmt::format(
             "{} calls of pools, {:.1f} % of them misses of the stream cache, "
             "{:.0f} in a second of a core\n",
             figures.calls, share, rate) +
         fmt::format("{} refusals, each with a need that the memory in use explains\n",
                     figures.judged) +
         fmt::format("{} guarded allocations, {} found overrun\n", figures.guarded,
                     figures.damaged) +
         kinds("operations", done) + kinds("events told to listeners", heard) +
         kinds("events in recordings", recorded) + findings(outcome);
}

}  // namespace vpmm::hunt
