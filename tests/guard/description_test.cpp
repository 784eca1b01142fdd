// SPDX-License-Identifier: Apache-2.0
// guard tests: sentences about guarded allocations and addresses near them.
#include <utility>

#include "base/scope_exit.hpp"
#include "fault/no_memory.hpp"
#include "guard/guard_world.hpp"
#include "observe/stack_table.hpp"
#include "report/tags.hpp"
#include "support/own_file.hpp"

namespace vpmm::guard {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::StartsWith;

constexpr std::uint64_t kMs = 1'000'000;

std::string hex(DevicePtr ptr) { return message_of("{:#x}", to_integer(ptr)); }

class Description : public GuardedTest {
 protected:
  DevicePtr tagged(Bytes bytes, std::uint32_t tag, pool::Stream on = std::nullopt) {
    return try_allocate({bytes, 0, on, {}, tag}).value();
  }
  std::vector<std::string> explained(DevicePtr address, std::uint64_t now_ns) {
    const PoolLock lock(mutex);
    std::vector<std::string> texts;
    for (const Paragraph& each : explain(guarded, address, now_ns)) texts.push_back(each.text);
    return texts;
  }
  // The texts without the lines on times.
  std::vector<std::string> places(DevicePtr address) {
    std::vector<std::string> first;
    for (const std::string& each : explained(address, 0))
      first.push_back(each.substr(0, each.find('\n')));
    return first;
  }
};

TEST_F(Description, of_a_block_has_its_streams_and_its_tag) {
  const StreamHandle a = stream();
  report::set_tag_name(8, "cache");
  const ScopeExit unnamed([] { report::set_tag_name(8, ""); });
  const DevicePtr plain = allocate(1000), of_stream = allocate(4, a);
  const DevicePtr numbered = tagged(5, 7), named = tagged(6, 8, a);
  const auto text = [&](DevicePtr ptr) { return describe(*around(ptr)); };
  EXPECT_EQ(text(plain), "1000 bytes at " + hex(plain) + ", allocated without a stream");
  EXPECT_EQ(text(of_stream),
            message_of("4 bytes at {}, allocated on stream {}", hex(of_stream), id_of(a)));
  EXPECT_EQ(text(numbered),
            "5 bytes at " + hex(numbered) + ", allocated without a stream with tag 7");
  const std::string begin = message_of(
      "6 bytes at {}, allocated on stream {} with the tag \"cache\"", hex(named), id_of(a));
  EXPECT_EQ(text(named), begin);
  free(named, a);
  EXPECT_EQ(text(named), message_of("{}, freed on stream {}", begin, id_of(a)));
  free(plain);
  EXPECT_EQ(text(plain),
            "1000 bytes at " + hex(plain) + ", allocated without a stream, freed without a stream");
}

TEST_F(Description, says_so_if_there_is_no_memory_for_it) {
  const Block& block = *around(tagged(1000, 7));
  std::string text;
  {
    const fault::NoMemory none(fault::NoMemory::Reserve::left);
    text = describe(block);
  }
  EXPECT_EQ(text, kNoMemoryForMessage);
}

TEST_F(Description, an_address_is_explained_with_state_times_and_number) {
  const StreamHandle a = stream();
  sim.advance_host_ns(10 * kMs);
  allocate(1);
  const DevicePtr ptr = allocate(1000, a);
  const Block& block = *around(ptr);
  const std::uint64_t began = block.allocated.at_ns;
  const auto text = [&](const std::string& place, const std::string& rest) {
    return message_of("{} {}\n  {}\n  {}\n", hex(ptr + 5), place, describe(block), rest);
  };
  EXPECT_THAT(explained(ptr + 5, began + 3 * kMs),
              ElementsAre(text("is inside a live allocation, at byte 5",
                               "live; allocated 3.000 ms ago as guarded allocation 2")));
  EXPECT_THAT(explained(ptr + 5, began - kMs),
              ElementsAre(text("is inside a live allocation, at byte 5",
                               "live; allocated 0.000 ms ago as guarded allocation 2")))
      << "by a thread that read the time before";
  sim.advance_host_ns(10 * kMs);
  free(ptr, a);
  const std::uint64_t ended = block.freed.at_ns;
  const auto since = [&](const std::string& state, std::uint64_t now, const char* end) {
    return message_of("{}; allocated {:.3f} ms ago as guarded allocation 2, freed {:.3f} ms ago{}",
                      state, static_cast<double>(now - began) / 1e6,
                      static_cast<double>(now - ended) / 1e6, end);
  };
  const std::string inside =
      "is inside an allocation that was freed, at byte 5: a use after its "
      "free";
  EXPECT_THAT(explained(ptr + 5, ended + 2 * kMs),
              ElementsAre(text(inside, since("freed, and not unmapped yet", ended + 2 * kMs, ""))));
  prove();
  settle();
  EXPECT_THAT(explained(ptr + 5, ended + 4 * kMs),
              ElementsAre(text(inside, since("freed and unmapped", ended + 4 * kMs, ""))));
}

TEST_F(Description, damage_is_told_with_the_allocation) {
  const test::Told told;
  const StreamHandle a = stream();
  const DevicePtr ptr = allocate(1000, a);
  poke(ptr + 1000, 1, a);
  end(ptr, a);
  EXPECT_THAT(explained(ptr, 0),
              ElementsAre(ContainsRegex("\n  freed and unmapped; allocated 0.000 ms ago as guarded "
                                        "allocation 1, freed 0.000 ms ago; memory beside it was "
                                        "overwritten\n$")));
}

TEST_F(Description, places_are_inside_before_or_beyond) {
  const DevicePtr first = allocate(100), second = allocate(1000);
  const DevicePtr end = first + 100;
  const DevicePtr page = align_up(end, 4096);  // where the pages end
  const auto beyond = [&](DevicePtr at) {
    return message_of("{} is {} bytes beyond the end of an allocation", hex(at), at - end);
  };
  const auto stepped = [&](DevicePtr at) {
    return message_of("{} is {} to {} bytes beyond the end of an allocation", hex(at), at - end,
                      at - end + 4095);
  };
  const auto before = [&](DevicePtr at, DevicePtr begin) {
    return message_of("{} is {} bytes before the begin of an allocation", hex(at), begin - at);
  };
  const auto stepped_before = [&](DevicePtr at, DevicePtr begin) {
    return message_of("{} is {} to {} bytes before the begin of an allocation", hex(at),
                      begin - at - 4095, begin - at);
  };
  const auto inside = [&](DevicePtr at, Bytes offset) {
    return message_of("{} is inside a live allocation, at byte {}", hex(at), offset);
  };
  const Bytes reach = around(second)->slot.size;
  EXPECT_THAT(places(first), ElementsAre(inside(first, 0)));
  EXPECT_THAT(places(end - 1), ElementsAre(inside(end - 1, 99)));
  EXPECT_THAT(places(end), ElementsAre(beyond(end), before(end, second)));
  EXPECT_THAT(places(end + 57), ElementsAre(beyond(end + 57), before(end + 57, second)));
  EXPECT_THAT(places(page), ElementsAre(stepped(page), stepped_before(page, second)));
  EXPECT_THAT(places(page + 4096),
              ElementsAre(stepped(page + 4096), stepped_before(page + 4096, second)));
  EXPECT_THAT(places(page + 4097), ElementsAre(beyond(page + 4097), before(page + 4097, second)));
  // Of the pages of the first, the second is only near the last ones.
  ASSERT_LT(second - reach, first);
  EXPECT_THAT(places(second - reach),
              ElementsAre(before(second - reach, first), before(second - reach, second)));
  EXPECT_THAT(places(second - reach - 1), ElementsAre(before(second - reach - 1, first)));
  // In front of all, and behind all in the slot of the last.
  const AddressRange slot = around(first)->slot;
  EXPECT_THAT(places(slot.begin - 1), ElementsAre(before(slot.begin - 1, first)));
  EXPECT_THAT(places(slot.begin), ElementsAre(stepped_before(slot.begin, first)));
  const DevicePtr last = around(second)->slot.end() - 1;
  EXPECT_THAT(places(last), ElementsAre(message_of("{} is {} bytes beyond the end of an allocation",
                                                   hex(last), last - (second + 1000))));
}

TEST_F(Description, the_logged_step_around_a_begin_may_be_inside) {
  const DevicePtr ptr = allocate(5000);
  const DevicePtr step = align_down(ptr, 4096);
  ASSERT_LT(step, ptr);
  const std::string inside = message_of(
      "{} is in an allocation, or up to {} bytes before its begin", hex(step), ptr - step);
  EXPECT_THAT(places(step), ElementsAre(inside));
  free(ptr);
  prove();
  settle();
  EXPECT_THAT(places(step), ElementsAre(inside));
  EXPECT_THAT(places(step - 4096),
              ElementsAre(message_of("{} is {} to {} bytes before the begin of an allocation",
                                     hex(step - 4096), ptr - step + 1, ptr - step + 4096)));
  EXPECT_THAT(places(step + 1),
              ElementsAre(message_of("{} is {} bytes before the begin of an allocation",
                                     hex(step + 1), ptr - step - 1)));
}

TEST_F(Description, an_address_near_none_lists_the_newest) {
  const auto none = [](DevicePtr at, const char* end) {
    return message_of("{} is in or near no guarded allocation that is known{}\n", hex(at), end);
  };
  EXPECT_THAT(explained(DevicePtr{4096}, 0), ElementsAre(none(DevicePtr{4096}, "")));
  std::vector<DevicePtr> all;
  for (int i = 0; i < 6; ++i) all.push_back(allocate(1000));
  const auto listed = [&](std::size_t i) {
    return message_of("  {}\n  live; allocated 0.000 ms ago as guarded allocation {}\n",
                      describe(*around(all[i])), i + 1);
  };
  for (const DevicePtr far : {DevicePtr{4096}, around(all[5])->slot.end()})
    EXPECT_THAT(explained(far, 0), ElementsAre(none(far, "; the newest ones:"), listed(5),
                                               listed(4), listed(3), listed(2), listed(1)));
}

// --- stacks

// Frames of another language, as many as `depth`; the first has no line.
class Stacks : public Description {
 protected:
  Stacks() {
    observe::StackProvider provider;
    provider.capture = [](void*, std::uint64_t* frames, std::size_t most) {
      const std::size_t count = std::min(depth, most);
      for (std::size_t i = 0; i < count; ++i) frames[i] = i;
      return count;
    };
    provider.describe = [](void*, std::uint64_t frame, const char** file, std::uint64_t* line,
                           const char** function) {
      *file = "train.py";
      *line = 10 * frame;
      *function = "step";
    };
    observe::set_stack_provider(provider);
  }
  ~Stacks() override { observe::set_stack_provider({}); }
  static std::uint32_t capture(Guarded& guarded, std::size_t frames) {
    depth = frames;
    return guarded.capture_stack();
  }
  static std::string frames(std::size_t count) {
    std::string text = count == 0 ? "" : "    train.py step\n";
    for (std::size_t i = 1; i < count; ++i) text += message_of("    train.py:{} step\n", 10 * i);
    return text;
  }
  inline static std::size_t depth = 0;
};

TEST_F(Stacks, are_printed_behind_their_paragraph_innermost_first_and_not_all) {
  const std::uint32_t three = capture(guarded, 3), eight = capture(guarded, 8);
  const std::uint32_t nine = capture(guarded, 9);
  EXPECT_NE(three, eight);
  const auto text = [&](const Paragraph& paragraph) {
    return with_stacks({paragraph}, guarded.stacks());
  };
  EXPECT_EQ(text({"text\n", three, 0}), "text\n  allocated by\n" + frames(3));
  EXPECT_EQ(text({"text\n", 0, eight}), "text\n  freed by\n" + frames(8));
  EXPECT_EQ(text({"text\n", nine, three}),
            "text\n  allocated by\n" + frames(8) + "  freed by\n" + frames(3));
  EXPECT_EQ(text({"text\n", 1000, 0}), "text\n") << "no stack has this number";
  EXPECT_EQ(with_stacks({{"one\n", three}, {"two\n", three}}, guarded.stacks()),
            "one\n  allocated by\n" + frames(3) + "two\n  allocated by\n" + frames(3));
  EXPECT_EQ(with_stacks({}, guarded.stacks()), "");
}

TEST_F(Stacks, without_frames_of_another_language_are_those_of_the_program) {
  const std::uint32_t stack = capture(guarded, 0);
  const auto found = guarded.stacks().find(stack);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->foreign.empty());
  EXPECT_FALSE(found->native.empty());
  EXPECT_THAT(with_stacks({{"text\n", stack}}, guarded.stacks()),
              StartsWith("text\n  allocated by\n    " + test::own_file() + " "));
}

TEST_F(Stacks, of_both_kinds_are_taken) {
  const auto found = guarded.stacks().find(capture(guarded, 2));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->foreign.size(), 2u);
  EXPECT_FALSE(found->native.empty());
}

TEST_F(Stacks, of_an_allocation_and_its_free_go_with_its_paragraph) {
  const std::uint32_t came = capture(guarded, 1), went = capture(guarded, 2);
  pool::Request request{1000, 0, std::nullopt};
  request.guard_stack = came;
  const DevicePtr ptr = try_allocate(request).value();
  for (const std::uint32_t freed_by : {0U, went}) {
    if (freed_by != 0) free(ptr, std::nullopt, went);
    for (const DevicePtr address : {ptr, DevicePtr{4096}}) {
      const Vector<Paragraph> paragraphs = explain(guarded, address, 0);
      EXPECT_EQ(paragraphs.back().allocated_by, came);
      EXPECT_EQ(paragraphs.back().freed_by, freed_by);
      if (paragraphs.size() == 1) continue;
      EXPECT_EQ(paragraphs[0].allocated_by, 0u) << "of none";
      EXPECT_EQ(paragraphs[0].freed_by, 0u);
    }
  }
}

}  // namespace
}  // namespace vpmm::guard
