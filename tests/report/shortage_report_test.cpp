// SPDX-License-Identifier: Apache-2.0
// report: what the report of a shortage says, and which advice it gives when.
#include "report/shortage_report.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "report/tags.hpp"

namespace vpmm::report {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kRecord =
    "see who holds it, and since when: VPMM_RECORD=run.vpmm PROGRAM; python -m vpmm report "
    "run.vpmm";

// A GPU of 64 MiB, of which the pool has mapped 48 and others have 8; the request of 20 MiB
// lacks 4.
Shortage usual() {
  Shortage shortage;
  shortage.asked.requested = shortage.asked.taken = 20 * kMiB;
  shortage.asked.stream = "stream 3";
  shortage.asked.reason = "4 MiB are missing";
  shortage.memory.live = {"live", 40 * kMiB, 3};
  shortage.memory.live_taken = 40 * kMiB;
  shortage.memory.free = shortage.memory.movable = shortage.memory.largest_free = 8 * kMiB;
  shortage.memory.mapped = 48 * kMiB;
  shortage.memory.mappings = 7;
  shortage.limits.max_mappings = 60'000;
  shortage.limits.gpu = driver::MemInfo{8 * kMiB, 64 * kMiB};
  shortage.holders.by_stream = {{"stream 3", 30 * kMiB, 2}, {"no stream", 10 * kMiB, 1}};
  return shortage;
}

TEST(ShortageReport, begins_with_a_line_that_makes_sense_alone) {
  EXPECT_EQ(first_line(shortage_report(usual())),
            "out of device memory: asked for 20 MiB; 4 MiB are missing; live 40 MiB, free 8 MiB, "
            "limit none");
}

TEST(ShortageReport, tells_what_was_asked_for_what_lives_what_is_free_and_who_holds_it) {
  Shortage shortage = usual();
  shortage.asked.tag = "weights";
  shortage.limits.capacity = 52 * kMiB;
  shortage.limits.gpu = driver::MemInfo{12 * kMiB, 68 * kMiB};
  shortage.holders.by_library = {{"torch", 30 * kMiB, 2}, {"no library known", 10 * kMiB, 1}};
  shortage.holders.by_tag = {{"weights", 40 * kMiB, 3}};
  EXPECT_EQ(shortage_report(shortage),
            "out of device memory: asked for 20 MiB; 8 MiB are missing; live 40 MiB, free 8 MiB, "
            "limit 52 MiB\n"
            "  asked for  20 MiB (20971520 bytes) on stream 3, tag weights\n"
            "  live       40 MiB in 3 allocations, which take 40 MiB\n"
            "  free       8 MiB, the largest range 8 MiB\n"
            "  mapped     48 MiB; the limit is 52 MiB; 4 MiB more may be mapped\n"
            "  GPU        68 MiB, of which 12 MiB free, 8 MiB held by others\n"
            "  by library torch: 30 MiB, no library known: 10 MiB\n"
            "  by tag     weights: 40 MiB\n"
            "  by stream  stream 3: 30 MiB, no stream: 10 MiB\n"
            "what to try:\n"
            "  - raise VPMM_CAPACITY (vpmm_set_capacity) by 8 MiB or more, or take it away: the "
            "GPU has 12 MiB free\n"
            "  - " +
                std::string(kRecord));
}

TEST(ShortageReport, names_the_recording_that_is_being_written) {
  Shortage shortage = usual();
  shortage.recording = "out/run.4711.vpmm";
  EXPECT_THAT(
      shortage_report(shortage),
      EndsWith("\n  - see who holds it, and since when: python -m vpmm report out/run.4711.vpmm"));
}

TEST(ShortageReport, says_why_memory_that_is_free_did_not_help) {
  Shortage shortage = usual();
  shortage.memory.pending = 6 * kMiB;
  shortage.holders.pending_on = {{"stream 9", 4 * kMiB, 1}, {"any stream", 2 * kMiB, 1}};
  shortage.memory.small_free = 3 * kMiB;
  shortage.memory.leased = 2 * kMiB;
  shortage.memory.parked = 10 * kMiB;
  shortage.memory.quarantined = 2 * kMiB;
  shortage.holders.arenas = {{4, 7, true, false, 6 * kMiB, 2 * kMiB}};
  const std::string report = shortage_report(shortage);
  for (const char* line :
       {"\n  pending    6 MiB of what is free is still used by work that was queued before; "
        "stream 9: 4 MiB, any stream: 2 MiB\n",
        "\n  in pages   3 MiB are free in pages that smaller requests share\n",
        "\n  leased     2 MiB are freed, but other processes have them open\n",
        "\n  graphs     10 MiB are freed, but belong to captured graphs\n",
        "\n  arena      4 (tag 7, pinned) holds 6 MiB, of which live 2 MiB\n",
        "\n  refused    2 MiB that the driver does not take back\n"})
    EXPECT_THAT(report, HasSubstr(line));
  shortage.holders.pending_on.clear();  // all of it in arenas
  EXPECT_THAT(shortage_report(shortage), HasSubstr("work that was queued before\n"));
}

TEST(ShortageReport, says_what_was_special_about_the_request) {
  Shortage shortage = usual();
  shortage.asked.arena = 9;
  shortage.asked.is_one_chunk = true;
  EXPECT_THAT(shortage_report(shortage),
              HasSubstr("on stream 3, arena 9, in one physical chunk\n"));
}

TEST(ShortageReport, advises_to_raise_a_limit_where_the_gpu_does_not_say_what_is_free) {
  Shortage shortage = usual();
  shortage.asked.requested = shortage.asked.taken = 4 * kMiB;
  shortage.memory.mapped = 48 * kMiB;
  shortage.limits.capacity = 40 * kMiB;  // lowered since
  shortage.limits.gpu.reset();
  EXPECT_THAT(
      advice(shortage),
      Contains("raise VPMM_CAPACITY (vpmm_set_capacity) by 4 MiB or more, or take it away"));
}

TEST(ShortageReport, names_an_alignment_and_whether_it_is_the_reason) {
  Shortage shortage = usual();
  shortage.asked.alignment = 32 * kMiB;
  shortage.asked.taken = 4 * kMiB;
  shortage.memory.largest_free = 4 * kMiB;
  EXPECT_THAT(shortage_report(shortage), HasSubstr(" bytes), aligned to 32 MiB on stream 3\n"));
  const char* const advice =
      "\n  - ask for a smaller alignment: 4 MiB are free, but not at a multiple of 32 MiB\n";
  EXPECT_THAT(shortage_report(shortage), HasSubstr(advice));
  for (const auto change : std::initializer_list<void (*)(Shortage&)>{
           [](Shortage& other) { other.asked.taken += 1; },
           [](Shortage& other) { other.memory.pending = 1; },
           [](Shortage& other) { other.asked.arena = 1; },
           [](Shortage& other) { other.asked.is_one_chunk = true; }}) {
    Shortage other = shortage;
    change(other);
    EXPECT_THAT(shortage_report(other), Not(HasSubstr("smaller alignment")));
  }
}

TEST(ShortageReport, leaves_out_what_is_nothing) {
  Shortage shortage = usual();
  shortage.holders.by_stream.clear();
  const std::string report = shortage_report(shortage);
  for (const char* word : {"trapped", "pending", "in pages", "leased", "graphs", "suspended",
                           "refused", "by library", "by tag", "by stream", "arena", "chunk"})
    EXPECT_THAT(report, Not(HasSubstr(word)));
}

TEST(ShortageReport, names_single_bytes) {
  Shortage shortage = usual();
  shortage.memory.trapped = shortage.memory.pending = shortage.memory.small_free = 1;
  shortage.memory.leased = shortage.memory.parked = shortage.memory.suspended = 1;
  shortage.memory.quarantined = 1;
  const std::string report = shortage_report(shortage);
  for (const char* word :
       {"trapped", "pending", "in pages", "leased", "graphs", "suspended", "refused"})
    EXPECT_THAT(report, HasSubstr(std::string("\n  ") + word));
}

TEST(ShortageReport, of_what_nobody_filled_in_has_zeros) {
  Shortage nothing;
  nothing.asked.taken = 1;
  nothing.holders.arenas = {{}};
  nothing.holders.by_tag = {{}};
  EXPECT_EQ(
      shortage_report(nothing),
      std::string(
          "out of device memory: asked for 0 bytes; 1 bytes are missing; live 0 bytes, free 0 "
          "bytes, limit none\n"
          "  asked for  0 bytes\n"
          "  live       0 bytes in 0 allocations, which take 0 bytes\n"
          "  free       0 bytes, the largest range 0 bytes\n"
          "  arena      0 (tag 0) holds 0 bytes, of which live 0 bytes\n"
          "  mapped     0 bytes; the limit is none; 0 bytes more may be mapped\n"
          "  by tag     : 0 bytes\n"
          "what to try:\n"
          "  - raise VPMM_MAX_MAPPINGS: at 0 mappings free memory is not put together any more\n"
          "  - ") +
          kRecord);
}

TEST(ShortageReport, says_that_a_byte_is_missing_or_why_none_is) {
  Shortage nothing;
  nothing.asked.reason = "the driver refused";
  EXPECT_THAT(first_line(shortage_report(nothing)), HasSubstr("; the driver refused; "));
  Shortage shortage = usual();
  shortage.asked.reason = "no range is long enough";
  shortage.asked.taken = 16 * kMiB + 1;
  EXPECT_THAT(first_line(shortage_report(shortage)), HasSubstr("; 1 bytes are missing; "));
  shortage.asked.taken = 16 * kMiB;
  EXPECT_THAT(first_line(shortage_report(shortage)), HasSubstr("; no range is long enough; "));
  shortage.asked.taken = 64 * kMiB;
  EXPECT_THAT(first_line(shortage_report(shortage)), HasSubstr("; 48 MiB are missing; "));
  ++shortage.asked.taken;
  EXPECT_THAT(first_line(shortage_report(shortage)),
              HasSubstr("; that is more than the GPU has; "));
}

TEST(ShortageReport, gives_sizes_that_are_missing_exactly) {
  const std::pair<Bytes, const char*> sizes[] = {
      {1023, "; 1023 bytes are"},          {1024, "; 1 KiB are"},
      {1536, "; 1536 bytes are"},          {3 * kMiB, "; 3 MiB are"},
      {3 * kMiB + kKiB, "; 3073 KiB are"}, {2 * kGiB, "; 2 GiB are"},
      {2 * kTiB, "; 2048 GiB are"}};
  for (const auto& [bytes, words] : sizes) {
    Shortage shortage = usual();
    shortage.asked.taken = 16 * kMiB + bytes;
    shortage.limits.gpu->total = 4 * kTiB;
    EXPECT_THAT(first_line(shortage_report(shortage)), HasSubstr(words));
  }
}

TEST(ShortageReport, describes_arenas) {
  set_tag_name(911, "kv cache");
  Shortage shortage = usual();
  shortage.holders.arenas = {{4, 911, false, true, kMiB, 0}, {5, 912, true, true, kMiB, 0}};
  EXPECT_THAT(shortage_report(shortage),
              HasSubstr("\n  arena      4 (tag kv cache, released) holds 1 MiB, of which live 0 "
                        "bytes\n  arena      5 (tag 912, pinned, released) holds 1 MiB"));
}

TEST(HoldersReport, lists_holders_and_what_to_do_about_a_tags_limit) {
  Shortage shortage = usual();
  shortage.holders.by_library = {{"torch", 30 * kMiB, 2}};
  const std::string ways =
      "\nwhat to try:\n"
      "  - raise the limit of the tag (VPMM_LIMITS, vpmm_tag_set_limit), or free its memory\n"
      "  - see who holds it, and since when: ";
  EXPECT_EQ(holders_report(shortage),
            "\n  by library torch: 30 MiB"
            "\n  by stream  stream 3: 30 MiB, no stream: 10 MiB" +
                ways + "VPMM_RECORD=run.vpmm PROGRAM; python -m vpmm report run.vpmm");
  shortage.recording = "here.vpmm";
  shortage.holders = {};
  EXPECT_EQ(holders_report(shortage), ways + "python -m vpmm report here.vpmm");
}

TEST(FirstLine, is_all_of_a_text_without_a_line_break) {
  EXPECT_EQ(first_line("one\ntwo\nthree"), "one");
  EXPECT_EQ(first_line("one"), "one");
  EXPECT_EQ(first_line(""), "");
}

TEST(ShortageReport, names_five_holders_and_counts_the_others) {
  Shortage shortage = usual();
  shortage.holders.by_stream.clear();
  for (int i = 1; i <= 7; ++i)
    shortage.holders.by_stream.push_back({"stream " + std::to_string(i), 2 * kMiB, 1});
  EXPECT_THAT(shortage_report(shortage), HasSubstr("stream 5: 2 MiB, 2 more: 4 MiB\n"));
  shortage.holders.by_stream.resize(5);
  EXPECT_THAT(shortage_report(shortage), HasSubstr("stream 5: 2 MiB\n")) << "no more";
}

TEST(ShortageAdvice, is_to_look_at_a_recording_where_no_rule_has_anything_to_say) {
  Shortage shortage = usual();
  shortage.limits.gpu = driver::MemInfo{0, 48 * kMiB};
  EXPECT_THAT(advice(shortage), ElementsAre(kRecord));
}

TEST(ShortageAdvice, names_the_limit_where_it_is_in_the_way_and_the_gpu_has_enough) {
  Shortage shortage = usual();
  EXPECT_THAT(advice(shortage), Not(Contains(HasSubstr("VPMM_CAPACITY")))) << "there is none";
  shortage.limits.capacity = 50 * kMiB;
  shortage.limits.gpu = driver::MemInfo{512 * kMiB, kGiB};
  EXPECT_THAT(advice(shortage),
              Contains(StartsWith("raise VPMM_CAPACITY (vpmm_set_capacity) by 10 MiB or more")));
  shortage.limits.is_capacity_of_settings = false;
  EXPECT_THAT(advice(shortage),
              Contains(StartsWith("raise the limit, which vpmm_set_capacity or PyTorch's memory "
                                  "fraction set, by 10 MiB or more")));
  shortage.limits.gpu = driver::MemInfo{kMiB, kGiB};
  EXPECT_THAT(advice(shortage), Not(Contains(HasSubstr("VPMM_CAPACITY")))) << "it would not help";
}

TEST(ShortageAdvice, does_not_count_idle_memory_above_a_limit_that_was_lowered) {
  Shortage shortage = usual();
  shortage.asked.requested = shortage.asked.taken = 100 * kMiB;
  shortage.memory.live = {};
  shortage.memory.live_taken = 0;
  shortage.memory.free = shortage.memory.movable = shortage.memory.largest_free =
      shortage.memory.mapped;
  shortage.limits.capacity = 32 * kMiB;
  shortage.limits.gpu = driver::MemInfo{512 * kMiB, kGiB};
  EXPECT_THAT(advice(shortage),
              Contains(StartsWith("raise VPMM_CAPACITY (vpmm_set_capacity) by 68 MiB or more")));
}

TEST(ShortageAdvice, counts_what_is_over_a_lowered_limit) {
  Shortage shortage = usual();
  shortage.asked.taken = shortage.asked.requested = 10 * kMiB;
  shortage.memory.mapped = 600 * kMiB;
  shortage.memory.free = shortage.memory.movable = shortage.memory.pending = 0;
  shortage.limits.capacity = 100 * kMiB;
  shortage.limits.gpu = driver::MemInfo{20 * kMiB, kGiB};
  EXPECT_THAT(shortage_report(shortage), HasSubstr("; 510 MiB are missing; "));
  EXPECT_THAT(advice(shortage),
              Contains(StartsWith("raise VPMM_CAPACITY (vpmm_set_capacity) by 510 MiB or more")));
}

TEST(ShortageAdvice, of_more_than_the_gpu_has_is_to_ask_for_less) {
  Shortage shortage = usual();
  shortage.asked.taken = shortage.asked.requested = 200 * kGiB;
  shortage.limits.capacity = 52 * kMiB;
  EXPECT_THAT(shortage_report(shortage), HasSubstr("; that is more than the GPU has; "));
  EXPECT_THAT(advice(shortage), ElementsAre("ask for less: the GPU has 64 MiB in all"));
}

TEST(ShortageAdvice, of_all_that_the_gpu_has_is_not_to_ask_for_less) {
  Shortage shortage = usual();
  shortage.asked.taken = 64 * kMiB;
  EXPECT_THAT(advice(shortage), Not(Contains(StartsWith("ask for less"))));
  ++shortage.asked.taken;
  EXPECT_THAT(advice(shortage), Contains(StartsWith("ask for less")));
}

TEST(ShortageAdvice, names_a_byte_where_none_is_missing) {
  Shortage shortage = usual();
  shortage.asked.taken = kMiB;
  shortage.memory.trapped = 1;
  EXPECT_THAT(advice(shortage), Contains(HasSubstr("1 byte are trapped")));
  shortage.memory.trapped = 0;
  EXPECT_THAT(advice(shortage), Not(Contains(HasSubstr("trapped"))));
}

TEST(ShortageAdvice, says_nothing_of_a_gpu_that_is_not_known) {
  Shortage shortage = usual();
  shortage.asked.taken = kMiB;
  EXPECT_THAT(advice(shortage), Contains(HasSubstr("of the GPU")));
  shortage.limits.gpu.reset();
  EXPECT_THAT(advice(shortage), Not(Contains(HasSubstr("the GPU"))));
  EXPECT_THAT(shortage_report(shortage), Not(HasSubstr("GPU")));
}

TEST(ShortageAdvice, names_others_where_they_hold_what_is_missing) {
  Shortage shortage = usual();
  EXPECT_THAT(advice(shortage), Contains(StartsWith("find out who else holds 8 MiB of the GPU")));
  shortage.limits.gpu->free = 14 * kMiB;
  EXPECT_THAT(advice(shortage), Contains(StartsWith("find out who else")))
      << "2 MiB are held, and nothing is missing";
  shortage.limits.gpu = driver::MemInfo{8 * kMiB, 60 * kMiB};
  EXPECT_THAT(advice(shortage), Contains(StartsWith("find out who else holds 4 MiB")));
  ++shortage.asked.taken;
  EXPECT_THAT(advice(shortage), Not(Contains(StartsWith("find out who else"))))
      << "a byte more is missing than they hold";
  --shortage.asked.taken;
  shortage.limits.gpu->free = 12 * kMiB;
  EXPECT_THAT(advice(shortage), Not(Contains(StartsWith("find out who else")))) << "nothing";
}

TEST(ShortageAdvice, names_the_stream_to_wait_for_and_the_capture_that_forbids_it) {
  Shortage shortage = usual();
  shortage.memory.pending = 4 * kMiB;
  shortage.holders.pending_on = {{"stream 9", 4 * kMiB, 1}};
  const std::string way =
      " for the work of stream 9, or free with the stream that used the memory last";
  EXPECT_THAT(advice(shortage), Contains("wait" + way));
  shortage.memory.pending = 1;
  EXPECT_THAT(advice(shortage), Contains("wait" + way));
  shortage.memory.pending = 0;
  EXPECT_THAT(advice(shortage), Not(Contains(HasSubstr("stream 9"))));
  shortage.memory.pending = 1;
  shortage.limits.is_capture_known = true;
  EXPECT_THAT(advice(shortage),
              Contains("end the stream capture that forbids to wait" + way +
                       " (captures that are announced count until they are ended)"));
}

TEST(ShortageAdvice, names_leases_graphs_and_pinned_arenas) {
  Shortage shortage = usual();
  const std::vector<std::string> none = advice(shortage);
  shortage.memory.leased = shortage.memory.parked = 1;
  shortage.holders.arenas = {{4, 0, true, false, 6, 5}};
  EXPECT_EQ(advice(shortage).size(), none.size() + 3);
  shortage.holders.arenas = {{4, 0, true, false, 6 * kMiB, 2 * kMiB},
                             {5, 0, false, false, 6 * kMiB, 0}};
  EXPECT_EQ(advice(shortage).size(), none.size() + 3);
  EXPECT_THAT(advice(shortage), Contains(HasSubstr("other processes close")));
  EXPECT_THAT(advice(shortage), Contains(HasSubstr("destroy captured graphs")));
  EXPECT_THAT(advice(shortage),
              Contains(HasSubstr("release pinned arenas that are done with: 4 MiB")));
}

TEST(ShortageAdvice, names_the_preference_where_what_is_missing_is_trapped) {
  Shortage shortage = usual();
  shortage.memory.trapped = 2 * kMiB;
  EXPECT_THAT(advice(shortage), Not(Contains(HasSubstr("VPMM_PREFER")))) << "it is not enough";
  shortage.memory.trapped = 4 * kMiB;
  EXPECT_THAT(advice(shortage),
              Contains(StartsWith("VPMM_PREFER=footprint, or a smaller VPMM_CHUNK_MAX, down to "
                                  "2MiB: 4 MiB")));
  shortage.limits.prefer = settings::Prefer::footprint;
  EXPECT_THAT(advice(shortage), Not(Contains(HasSubstr("VPMM_PREFER"))));
  EXPECT_THAT(advice(shortage), Contains(StartsWith("a smaller VPMM_CHUNK_MAX, down to 2MiB: 4")));
}

TEST(ShortageAdvice, names_rounding_where_it_takes_what_is_missing) {
  Shortage shortage = usual();
  shortage.memory.live.bytes = 36 * kMiB + 1;
  EXPECT_THAT(advice(shortage), Not(Contains(HasSubstr("rounding")))) << "a byte too few";
  --shortage.memory.live.bytes;
  EXPECT_THAT(advice(shortage), Contains(HasSubstr("rounding takes 4 MiB")));
  shortage.memory.live.bytes = 34 * kMiB;
  EXPECT_THAT(advice(shortage), Contains("choose other sizes, or fewer and larger allocations: "
                                         "rounding takes 6 MiB beside what lives"));
}

TEST(ShortageAdvice, names_shared_pages_and_the_limit_of_mappings) {
  Shortage shortage = usual();
  shortage.memory.small_free = 5 * kMiB;
  shortage.memory.mappings = shortage.limits.max_mappings;
  EXPECT_THAT(advice(shortage), Contains(StartsWith("VPMM_SMALL=stream_ordered")));
  EXPECT_THAT(advice(shortage), Contains(StartsWith("raise VPMM_MAX_MAPPINGS: at 60000 mappings")));
  --shortage.memory.mappings;
  EXPECT_THAT(advice(shortage), Not(Contains(StartsWith("raise VPMM_MAX_MAPPINGS"))));
  shortage.memory.small_free = 4 * kMiB;
  EXPECT_THAT(advice(shortage), Contains(StartsWith("VPMM_SMALL")));
  --shortage.memory.small_free;
  EXPECT_THAT(advice(shortage), Not(Contains(StartsWith("VPMM_SMALL")))) << "a byte too few";
}

}  // namespace
}  // namespace vpmm::report
