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
  return shortage.gpu ? minus(minus(shortage.gpu->total, shortage.gpu->free), shortage.mapped) : 0;
}

// Counts pending memory as used: waits for it were impossible.
Headroom room(const Shortage& shortage) {
  return {shortage.mapped, minus(shortage.movable, shortage.pending),
          shortage.gpu ? shortage.gpu->free : 0, shortage.capacity};
}

// Formats a size exactly, as a whole number of the largest possible unit.
std::string exact_bytes(Bytes bytes) {
  constexpr std::string_view kUnits[] = {"bytes", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; unit + 1 < std::size(kUnits) && bytes != 0 && bytes % 1024 == 0; ++unit) bytes /= 1024;
  return fmt::format("{} {}", bytes, kUnits[unit]);
}

// Missing bytes are the reason; if none are missing, the failed step's own.
std::string reason_of(const Shortage& shortage) {
  if (shortage.gpu && shortage.taken > shortage.gpu->total) return "that is more than the GPU has";
  const Bytes missing = room(shortage).missing(shortage.taken);
  return missing == 0 ? shortage.reason : fmt::format("{} are missing", exact_bytes(missing));
}

Bytes idle_in_pinned_arenas(const Shortage& shortage) {
  Bytes idle = 0;
  for (const ArenaHolding& arena : shortage.arenas)
    if (arena.is_pinned) idle += minus(arena.held, arena.live);
  return idle;
}

std::string limit_of(const Shortage& shortage) {
  return shortage.capacity ? readable_bytes(*shortage.capacity) : "none";
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
  report.line("asked for", "{}{}{}{}{}", readable_and_exact_bytes(shortage.requested),
              shortage.stream.empty() ? "" : " on " + shortage.stream,
              shortage.tag.empty() ? "" : ", tag " + shortage.tag,
              shortage.arena == 0 ? "" : fmt::format(", arena {}", shortage.arena),
              shortage.is_one_chunk ? ", in one physical chunk" : "");
}

void add_pool(const Shortage& shortage, Report& report) {
  report.line("live", "{} in {}, which take {}", readable_bytes(shortage.live.bytes),
              counted(shortage.live.allocations, "allocation"),
              readable_bytes(shortage.live_taken));
  report.line("free", "{}, the largest range {}", readable_bytes(shortage.free),
              readable_bytes(shortage.largest_free));
  if (shortage.trapped > 0)
    report.line("trapped", "{} of what is free cannot move: live memory shares its chunks",
                readable_bytes(shortage.trapped));
  if (shortage.pending > 0)
    report.line("pending", "{} of what is free is still used by work that was queued before{}{}",
                readable_bytes(shortage.pending), shortage.pending_on.empty() ? "" : "; ",
                list_of(shortage.pending_on));
  if (shortage.small_free > 0)
    report.line("in pages", "{} are free in pages that smaller requests share",
                readable_bytes(shortage.small_free));
  if (shortage.leased > 0)
    report.line("leased", "{} are freed, but other processes have them open",
                readable_bytes(shortage.leased));
  if (shortage.parked > 0)
    report.line("graphs", "{} are freed, but belong to captured graphs",
                readable_bytes(shortage.parked));
  for (const ArenaHolding& arena : shortage.arenas)
    report.line("arena", "{} (tag {}{}{}) holds {}, of which live {}", arena.id,
                *tag_name(arena.tag) == '\0' ? fmt::format("{}", arena.tag) : tag_name(arena.tag),
                arena.is_pinned ? ", pinned" : "", arena.is_released ? ", released" : "",
                readable_bytes(arena.held), readable_bytes(arena.live));
  if (shortage.suspended > 0)
    report.line("suspended", "{} sleep at their addresses and hold no memory",
                readable_bytes(shortage.suspended));
  if (shortage.quarantined > 0)
    report.line("refused", "{} that the driver does not take back",
                readable_bytes(shortage.quarantined));
}

void add_limits(const Shortage& shortage, Report& report) {
  report.line("mapped", "{}; the limit is {}; {} more may be mapped",
              readable_bytes(shortage.mapped), limit_of(shortage),
              readable_bytes(room(shortage).mappable()));
  if (shortage.gpu)
    report.line("GPU", "{}, of which {} free, {} held by others",
                readable_bytes(shortage.gpu->total), readable_bytes(shortage.gpu->free),
                readable_bytes(held_by_others(shortage)));
}

void add_holders(const Shortage& shortage, Report& report) {
  if (!shortage.by_library.empty()) report.line("by library", "{}", list_of(shortage.by_library));
  if (!shortage.by_tag.empty()) report.line("by tag", "{}", list_of(shortage.by_tag));
  if (!shortage.by_stream.empty()) report.line("by stream", "{}", list_of(shortage.by_stream));
}

std::string way_to_see_holders(const std::string& recording) {
  if (recording.empty())
    return "see who holds it, and since when: VPMM_RECORD=run.vpmm PROGRAM; python -m vpmm report "
           "run.vpmm";
  return fmt::format("see who holds it, and since when: python -m vpmm report {}", recording);
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
  const Bytes lacking = std::max(left.missing(shortage.taken), Bytes{1});
  const Bytes others = held_by_others(shortage);
  const auto say = [&list](std::string text) { list.push_back(std::move(text)); };
  const bool is_limited = shortage.capacity && left.is_limited(shortage.taken);
  if (is_limited)
    say(fmt::format("raise {} by {} or more, or take it away: the GPU has {} free",
                    shortage.is_capacity_of_settings
                        ? "VPMM_CAPACITY (vpmm_set_capacity)"
                        : "the limit, which vpmm_set_capacity or PyTorch's memory fraction set,",
                    exact_bytes(lacking), readable_bytes(shortage.gpu->free)));
  if (shortage.gpu && shortage.taken > shortage.gpu->total) {
    say(fmt::format("ask for less: the GPU has {} in all", readable_bytes(shortage.gpu->total)));
    return list;
  }
  if (shortage.pending > 0 && !shortage.pending_on.empty())
    say(fmt::format(
        "{} for the work of {}, or free with the stream that used the memory last{}",
        shortage.is_capture_known ? "end the stream capture that forbids to wait" : "wait",
        shortage.pending_on.front().name,
        shortage.is_capture_known ? " (captures that are announced count until they are ended)"
                                  : ""));
  if (others >= lacking && !is_limited)
    say(
        fmt::format("find out who else holds {} of the GPU: other processes (nvidia-smi), other "
                    "libraries or pools",
                    readable_bytes(others)));
  if (shortage.leased > 0)
    say("have the other processes close the memory of this one that they opened");
  if (shortage.parked > 0)
    say("destroy captured graphs that are not launched any more, or vpmm_capture_release them");
  if (const Bytes idle = idle_in_pinned_arenas(shortage); idle > 0)
    say(fmt::format("release pinned arenas that are done with: {} in them are idle",
                    readable_bytes(idle)));
  if (shortage.trapped >= lacking)
    say(fmt::format("{}: {} are trapped in large chunks",
                    shortage.prefer != settings::Prefer::footprint
                        ? "VPMM_PREFER=footprint, or a smaller VPMM_CHUNK_MAX, down to 2MiB"
                        : "a smaller VPMM_CHUNK_MAX, down to 2MiB",
                    readable_bytes(shortage.trapped)));
  if (const Bytes rounding = minus(shortage.live_taken, shortage.live.bytes); rounding >= lacking)
    say(fmt::format(
        "choose other sizes, or fewer and larger allocations: rounding takes {} beside what lives",
        readable_bytes(rounding)));
  if (shortage.small_free >= lacking)
    say("VPMM_SMALL=stream_ordered: a few small allocations keep whole pages");
  if (shortage.mappings >= shortage.max_mappings)
    say(fmt::format(
        "raise VPMM_MAX_MAPPINGS: at {} mappings free memory is not put together any more",
        shortage.mappings));
  if (const std::string libraries = untagged_libraries(); !libraries.empty())
    say(fmt::format("see how much of it each library holds ({}): VPMM_TAG_LIBRARIES=1 PROGRAM",
                    libraries));
  say(way_to_see_holders(shortage.recording));
  return list;
}

std::string shortage_report(const Shortage& shortage) {
  Report report;
  report.add(fmt::format("out of device memory: asked for {}; {}; live {}, free {}, limit {}",
                         readable_bytes(shortage.requested), reason_of(shortage),
                         readable_bytes(shortage.live.bytes), readable_bytes(shortage.free),
                         limit_of(shortage)));
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
