// SPDX-License-Identifier: Apache-2.0
// report: lines of the report, and rules of its advice.
#include "report/shortage_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/quantity.hpp"
#include "report/headroom.hpp"
#include "report/tags.hpp"

namespace vpmm::report {
namespace {

constexpr std::size_t kHoldingsNamed = 5;

Bytes minus(Bytes a, Bytes b) { return a - std::min(a, b); }

Bytes held_by_others(const Shortage& shortage) {
  return shortage.limits.gpu ? minus(minus(shortage.limits.gpu->total, shortage.limits.gpu->free),
                                     shortage.memory.mapped)
                             : 0;
}

// Counts pending memory as used: waits for it were impossible.
Headroom room(const Shortage& shortage) {
  return {shortage.memory.mapped, minus(shortage.memory.movable, shortage.memory.pending),
          shortage.limits.gpu ? shortage.limits.gpu->free : 0, shortage.limits.capacity};
}

// Formats a size exactly, as a whole number of the largest possible unit. Requires: not 0.
std::string exact_bytes(Bytes bytes) {
  constexpr std::string_view kUnits[] = {"bytes", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; unit + 1 < std::size(kUnits) && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

// Missing bytes are the reason; if none are missing, the failed step's own.
std::string reason_of(const Shortage& shortage) {
  if (shortage.limits.gpu && shortage.asked.taken > shortage.limits.gpu->total)
    return "that is more than the GPU has";
  const Bytes missing = room(shortage).missing(shortage.asked.taken);
  return missing == 0 ? shortage.asked.reason : fmt::format("{} are missing", exact_bytes(missing));
}

Bytes idle_in_pinned_arenas(const Shortage& shortage) {
  Bytes idle = 0;
  for (const ArenaHolding& arena : shortage.holders.arenas)
    if (arena.is_pinned) idle += minus(arena.held, arena.live);
  return idle;
}

std::string limit_of(const Shortage& shortage) {
  return shortage.limits.capacity ? readable_bytes(*shortage.limits.capacity) : "none";
}

std::string list_of(const std::vector<Holding>& holders) {
  std::string text;
  Bytes others = 0;
  for (std::size_t i = 0; i < holders.size(); ++i) {
    if (i >= kHoldingsNamed)
      others += holders[i].bytes;
    else
      text += fmt::format("{}{}: {}", i == 0 ? "" : ", ", holders[i].name,
                          readable_bytes(holders[i].bytes));
  }
  return holders.size() <= kHoldingsNamed
             ? text
             : fmt::format("{}, {} more: {}", text, holders.size() - kHoldingsNamed,
                           readable_bytes(others));
}

class Report {
 public:
  template <typename... Args>
  void line(std::string_view name, fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format("\n  {:<10} {}", name, fmt::format(format, std::forward<Args>(args)...));
  }
  void add(std::string_view text) { text_ += text; }
  std::string done() && { return std::move(text_); }

 private:
  std::string text_;
};

void add_request(const Shortage& shortage, Report& report) {
  report.line("asked for", "{}{}{}{}{}{}", readable_and_exact_bytes(shortage.asked.requested),
              shortage.asked.alignment == 0
                  ? ""
                  : ", aligned to " + readable_bytes(shortage.asked.alignment),
              shortage.asked.stream.empty() ? "" : " on " + shortage.asked.stream,
              shortage.asked.tag.empty() ? "" : ", tag " + shortage.asked.tag,
              shortage.asked.arena == 0 ? "" : fmt::format(", arena {}", shortage.asked.arena),
              shortage.asked.is_one_chunk ? ", in one physical chunk" : "");
}

void add_pool(const Shortage& shortage, Report& report) {
  report.line("live", "{} in {}, which take {}", readable_bytes(shortage.memory.live.bytes),
              counted(shortage.memory.live.allocations, "allocation"),
              readable_bytes(shortage.memory.live_taken));
  report.line("free", "{}, the largest range {}", readable_bytes(shortage.memory.free),
              readable_bytes(shortage.memory.largest_free));
  if (shortage.memory.trapped > 0)
    report.line("trapped", "{} of what is free cannot move: live memory shares its chunks",
                readable_bytes(shortage.memory.trapped));
  if (shortage.memory.pending > 0)
    report.line("pending", "{} of what is free is still used by work that was queued before{}{}",
                readable_bytes(shortage.memory.pending),
                shortage.holders.pending_on.empty() ? "" : "; ",
                list_of(shortage.holders.pending_on));
  if (shortage.memory.small_free > 0)
    report.line("in pages", "{} are free in pages that smaller requests share",
                readable_bytes(shortage.memory.small_free));
  if (shortage.memory.leased > 0)
    report.line("leased", "{} are freed, but other processes have them open",
                readable_bytes(shortage.memory.leased));
  if (shortage.memory.parked > 0)
    report.line("graphs", "{} are freed, but belong to captured graphs",
                readable_bytes(shortage.memory.parked));
  for (const ArenaHolding& arena : shortage.holders.arenas)
    report.line("arena", "{} (tag {}{}{}) holds {}, of which live {}", arena.id,
                *tag_name(arena.tag) == '\0' ? fmt::format("{}", arena.tag) : tag_name(arena.tag),
                arena.is_pinned ? ", pinned" : "", arena.is_released ? ", released" : "",
                readable_bytes(arena.held), readable_bytes(arena.live));
  if (shortage.memory.suspended > 0)
    report.line("suspended", "{} sleep at their addresses and hold no memory",
                readable_bytes(shortage.memory.suspended));
  if (shortage.memory.quarantined > 0)
    report.line("refused", "{} that the driver does not take back",
                readable_bytes(shortage.memory.quarantined));
}

void add_limits(const Shortage& shortage, Report& report) {
  report.line("mapped", "{}; the limit is {}; {} more may be mapped",
              readable_bytes(shortage.memory.mapped), limit_of(shortage),
              readable_bytes(room(shortage).mappable()));
  if (shortage.limits.gpu)
    report.line("GPU", "{}, of which {} free, {} held by others",
                readable_bytes(shortage.limits.gpu->total),
                readable_bytes(shortage.limits.gpu->free),
                readable_bytes(held_by_others(shortage)));
}

void add_holders(const Shortage& shortage, Report& report) {
  if (!shortage.holders.by_library.empty())
    report.line("by library", "{}", list_of(shortage.holders.by_library));
  if (!shortage.holders.by_tag.empty())
    report.line("by tag", "{}", list_of(shortage.holders.by_tag));
  if (!shortage.holders.by_stream.empty())
    report.line("by stream", "{}", list_of(shortage.holders.by_stream));
}

std::string way_to_see_holders(const std::string& recording) {
  if (recording.empty())
    return "see who holds it, and since when: VPMM_RECORD=run.vpmm PROGRAM; python -m vpmm report "
           "run.vpmm";
  return fmt::format("see who holds it, and since when: python -m vpmm report {}", recording);
}

// A free range would do but for its address. Pending memory may serve others only, and a chunk or
// an arena have bounds of their own.
bool is_alignment_in_the_way(const Shortage& shortage) {
  const FailedRequest& asked = shortage.asked;
  return asked.alignment > 0 && asked.arena == 0 && !asked.is_one_chunk &&
         minus(shortage.memory.largest_free, shortage.memory.pending) >= asked.taken;
}

void add_advice(const std::vector<std::string>& sentences, Report& report) {
  report.add("\nwhat to try:");
  for (const std::string& sentence : sentences) report.add("\n  - " + sentence);
}

}  // namespace

// A rule applies if its proposal matters for this request.
std::vector<std::string> advice(const Shortage& shortage) {
  std::vector<std::string> list;
  const Headroom left = room(shortage);
  const Bytes lacking = std::max(left.missing(shortage.asked.taken), Bytes{1});
  const Bytes others = held_by_others(shortage);
  const auto say = [&list](std::string text) { list.push_back(std::move(text)); };
  const bool is_limited = shortage.limits.capacity && left.is_limited(shortage.asked.taken);
  if (is_limited)
    say(fmt::format("raise {} by {} or more, or take it away{}",
                    shortage.limits.is_capacity_of_settings
                        ? "VPMM_CAPACITY (vpmm_set_capacity)"
                        : "the limit, which vpmm_set_capacity or PyTorch's memory fraction set,",
                    exact_bytes(lacking),
                    shortage.limits.gpu ? fmt::format(": the GPU has {} free",
                                                      readable_bytes(shortage.limits.gpu->free))
                                        : ""));
  if (shortage.limits.gpu && shortage.asked.taken > shortage.limits.gpu->total) {
    say(fmt::format("ask for less: the GPU has {} in all",
                    readable_bytes(shortage.limits.gpu->total)));
    return list;
  }
  if (is_alignment_in_the_way(shortage))
    say(fmt::format("ask for a smaller alignment: {} are free, but not at a multiple of {}",
                    readable_bytes(shortage.memory.largest_free),
                    readable_bytes(shortage.asked.alignment)));
  if (shortage.memory.pending > 0 && !shortage.holders.pending_on.empty())
    say(fmt::format(
        "{} for the work of {}, or free with the stream that used the memory last{}",
        shortage.limits.is_capture_known ? "end the stream capture that forbids to wait" : "wait",
        shortage.holders.pending_on.front().name,
        shortage.limits.is_capture_known
            ? " (captures that are announced count until they are ended)"
            : ""));
  if (others >= lacking && !is_limited)
    say(
        fmt::format("find out who else holds {} of the GPU: other processes (nvidia-smi), other "
                    "libraries or pools",
                    readable_bytes(others)));
  if (shortage.memory.leased > 0)
    say("have the other processes close the memory of this one that they opened");
  if (shortage.memory.parked > 0)
    say("destroy captured graphs that are not launched any more, or vpmm_capture_release them");
  if (const Bytes idle = idle_in_pinned_arenas(shortage); idle > 0)
    say(fmt::format("release pinned arenas that are done with: {} in them are idle",
                    readable_bytes(idle)));
  if (shortage.memory.trapped >= lacking)
    say(fmt::format("{}: {} are trapped in large chunks",
                    shortage.limits.prefer != settings::Prefer::footprint
                        ? "VPMM_PREFER=footprint, or a smaller VPMM_CHUNK_MAX, down to 2MiB"
                        : "a smaller VPMM_CHUNK_MAX, down to 2MiB",
                    readable_bytes(shortage.memory.trapped)));
  if (const Bytes rounding = minus(shortage.memory.live_taken, shortage.memory.live.bytes);
      rounding >= lacking)
    say(fmt::format(
        "choose other sizes, or fewer and larger allocations: rounding takes {} beside what lives",
        readable_bytes(rounding)));
  if (shortage.memory.small_free >= lacking)
    say("VPMM_SMALL=stream_ordered: a few small allocations keep whole pages");
  if (shortage.memory.mappings >= shortage.limits.max_mappings)
    say(fmt::format(
        "raise VPMM_MAX_MAPPINGS: at {} mappings free memory is not put together any more",
        shortage.memory.mappings));
  if (const std::string libraries = untagged_libraries(); !libraries.empty())
    say(fmt::format("see how much of it each library holds ({}): VPMM_TAG_LIBRARIES=1 PROGRAM",
                    libraries));
  say(way_to_see_holders(shortage.recording));
  return list;
}

std::string shortage_report(const Shortage& shortage) {
  Report report;
  report.add(fmt::format("out of device memory: asked for {}; {}; live {}, free {}, limit {}",
                         readable_bytes(shortage.asked.requested), reason_of(shortage),
                         readable_bytes(shortage.memory.live.bytes),
                         readable_bytes(shortage.memory.free), limit_of(shortage)));
  add_request(shortage, report);
  add_pool(shortage, report);
  add_limits(shortage, report);
  add_holders(shortage, report);
  add_advice(advice(shortage), report);
  return std::move(report).done();
}

std::string holders_report(const Shortage& shortage) {
  Report report;
  add_holders(shortage, report);
  add_advice({"raise the limit of the tag (VPMM_LIMITS, vpmm_tag_set_limit), or free its memory",
              way_to_see_holders(shortage.recording)},
             report);
  return std::move(report).done();
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

}  // namespace vpmm::report
