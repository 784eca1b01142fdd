// SPDX-License-Identifier: Apache-2.0
// ipc tests: the text of an answer to `vpmm top`, and how often a process looks for its figures.
#include "ipc/top_answer.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "capi/pool.hpp"
#include "ipc/kernel.hpp"
#include "ipc/talker.hpp"
#include "ipc/top.hpp"
#include "ipc/top_socket.hpp"
#include "report/tags.hpp"

namespace vpmm::ipc_test::top_answer_test {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

TEST(IpcTopAnswer, is_bounded_whatever_tags_are_called) {
  const std::string escaped(64, '\1');  // each becomes six characters
  for (std::uint32_t tag = 1001; tag < 2000; ++tag) report::set_tag_name(tag, escaped.c_str());
  ipc::TopFigures figures;
  figures.library = escaped.c_str();
  for (int device = 0; device < 64; ++device) {
    figures.pools.push_back({device, context::FiguresToTell{}});
    figures.pools.back().figures->device_name = escaped;
    for (std::uint32_t tag = 1001; tag < 2000; ++tag)
      figures.pools.back().figures->by_tag[tag] = figures.pools.back().figures->by_library[tag] =
          tag;
  }
  EXPECT_LT(ipc::top_answer(figures, 0).size(), std::size_t{96} << 10);
  EXPECT_TRUE(json::accept(ipc::top_answer(figures, 32)));
}

TEST(IpcTopAnswer, has_each_figure_under_its_name) {
  ipc::TopFigures figures;
  figures.library = "1.2.3";
  figures.age_ns = 4;
  figures.more_pools = 5;
  context::FiguresToTell told;
  told.device_name = std::string(100, 'd');
  told.device_bytes = 6;
  told.capacity = 7;
  observe::Statistics& now = told.statistics;
  std::uint64_t next = 10;
  for (std::uint64_t* const figure :
       {&now.live_bytes, &now.peak_live_bytes, &now.mapped_bytes, &now.pending_bytes,
        &now.free_bytes, &now.suspended_bytes, &now.allocations, &now.deallocations,
        &now.failed_allocations, &now.driver_calls, &now.pauses})
    *figure = next++;
  report::set_tag_name(31, "one");
  told.by_tag = {{31, 100}, {32, 100}, {33, 200}, {34, 1}};
  told.by_library = {{41, 300}};
  figures.pools = {{2, told}, {3, std::nullopt}};
  const auto tag = [](int number, const char* name, int live) {
    return json{{"tag", number}, {"name", name}, {"live_bytes", live}};
  };
  const json pool{{"device", 2},
                  {"is_busy", false},
                  {"device_name", std::string(64, 'd')},
                  {"device_bytes", 6},
                  {"capacity", 7},
                  {"live_bytes", 10},
                  {"peak_live_bytes", 11},
                  {"mapped_bytes", 12},
                  {"pending_bytes", 13},
                  {"free_bytes", 14},
                  {"suspended_bytes", 15},
                  {"allocations", 16},
                  {"deallocations", 17},
                  {"failed_allocations", 18},
                  {"driver_calls", 19},
                  {"pauses", 20},
                  {"tagged_bytes", 401},
                  // Of equal ones the lower number.
                  {"tags", json::array({tag(33, "", 200), tag(31, "one", 100), tag(32, "", 100)})},
                  {"libraries", json::array({tag(41, "", 300)})}};
  const json expected{{"vpmm_top", ipc::kTopVersion},
                      {"library", "1.2.3"},
                      {"age_ns", 4},
                      {"pools", json::array({pool, json{{"device", 3}, {"is_busy", true}}})},
                      {"more_pools", 5}};
  EXPECT_EQ(json::parse(ipc::top_answer(figures, 3)), expected);
}

std::atomic<std::uint64_t> looks_in_actor{0};

void look_at_the_pool(const std::function<void(context::Context&)>& visit) {
  ++looks_in_actor;
  visit(*pool_of_actor()->context);
}

std::uint64_t looks_of(Process& process) {
  return process.call([](Parcel& parcel) { parcel.words[0] = looks_in_actor.exchange(0); })
      .words[0];
}

// So that asking without end costs the pools little.
TEST_F(IpcTop, looks_at_the_pools_once_for_all_who_ask_within_20_ms) {
  Process process(on());
  process.call([](Parcel&) { ipc::answer_top({&look_at_the_pool, "x"}); });
  process.allocate(kMiB);
  looks_of(process);
  const auto begin = ipc::Clock::now();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(ask(process)["library"], "x");
  const auto took = std::chrono::ceil<milliseconds>(ipc::Clock::now() - begin).count();
  const std::uint64_t looks = looks_of(process);
  EXPECT_GE(looks, 1U);
  EXPECT_LE(looks, static_cast<std::uint64_t>(took) / 20 + 1) << "in " << took << " ms";
}

// Of which the user is not known.
TEST_F(IpcTop, a_client_that_the_kernel_does_not_name_gets_no_answer) {
  Process process(on());
  process.allocate(kMiB);
  process.call([](Parcel&) { fail_kernel_call(KernelCall::getsockopt, EINVAL); });
  EXPECT_EQ(heard_from(connect(process)), "");
  EXPECT_TRUE(json::accept(heard_from(connect(process))));
}

std::atomic<bool> is_talker_ready{false};

// In the thread that answers, which asks the kernel first who connected.
void wait_for_the_talker() {
  const auto give_up = soon();
  while (!is_talker_ready && ipc::Clock::now() < give_up) usleep(1000);
}

TEST_F(IpcTop, is_not_held_up_by_a_client_that_talks_on) {
  Process process(on());
  process.allocate(kMiB);
  Parcel parcel;
  parcel.say(socket_of(process));
  expect_ok(process.call(
      [](Parcel& asked) {
        before_kernel_call(KernelCall::getsockopt, wait_for_the_talker);
        talk_on_before(KernelCall::plain_receive, ipc::MessageKind::open);
        Result<ipc::Channel> channel = ipc::connect_to(asked.said(), soon());
        if (!channel) return asked.say(channel.error().message);
        talker_of_actor().channel = std::move(channel).value();
        is_talker_ready = true;
      },
      parcel));
  EXPECT_EQ(ask(process)["pools"].size(), 1U);
  const Parcel told = told_by_talker(process);
  EXPECT_EQ(told.words[0], 0U) << "it takes no more once it has answered";
  EXPECT_GE(told.words[1], 1U) << "although it was offered one";
}

}  // namespace
}  // namespace vpmm::ipc_test::top_answer_test
