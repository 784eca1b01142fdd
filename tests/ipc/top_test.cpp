// SPDX-License-Identifier: Apache-2.0
// ipc tests: the socket for `vpmm top`: what it tells and to whom, and that nothing there disturbs
// the program.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "capi/pool.hpp"
#include "ipc/gate.hpp"
#include "ipc/kernel.hpp"
#include "ipc/lingering.hpp"
#include "ipc/memory.hpp"
#include "ipc/raw.hpp"
#include "ipc/top.hpp"
#include "ipc/top_answer.hpp"
#include "ipc/top_socket.hpp"

namespace vpmm::ipc_test::top_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

void create_pools(Process& process, std::uint64_t number) {
  Parcel parcel;
  parcel.words[0] = number;
  expect_ok(process.call(
      [](Parcel& asked) {
        vpmm_pool* pool = nullptr;
        for (std::uint64_t i = 0; i < asked.words[0] && asked.status == VPMM_OK; ++i)
          asked.take(vpmm_pool_create(0, nullptr, &pool));
      },
      parcel));
}

TEST_F(IpcTop, tells_the_figures_of_a_pool) {
  Process process(on());
  const Address kept = process.allocate(5 * kMiB);
  const json answer = ask(process);
  EXPECT_EQ(answer["vpmm_top"], ipc::kTopVersion);
  EXPECT_EQ(answer["library"], vpmm_version());
  ASSERT_EQ(answer["pools"].size(), 1U);
  const json& pool = answer["pools"][0];
  EXPECT_EQ(pool["device"], 0);
  EXPECT_EQ(pool["is_busy"], false);
  EXPECT_NE(pool["device_name"], "");
  EXPECT_GT(pool["device_bytes"], 5 * kMiB);
  EXPECT_EQ(pool["capacity"], nullptr);
  EXPECT_EQ(pool["live_bytes"], 5 * kMiB);
  EXPECT_EQ(pool["peak_live_bytes"], 5 * kMiB);
  EXPECT_GE(pool["mapped_bytes"], 5 * kMiB);
  EXPECT_EQ(pool["allocations"], 1U);
  EXPECT_EQ(pool["tags"], json::array());
  process.free(kept);
  const json after = ask_anew(process);
  EXPECT_EQ(after["pools"][0]["live_bytes"], 0U);
  EXPECT_EQ(after["pools"][0]["deallocations"], 1U);
  EXPECT_GT(after["age_ns"], answer["age_ns"]);
}

// SECURITY.md lists them.
TEST_F(IpcTop, tells_nothing_but_figures) {
  Process process(on());
  process.allocate(kMiB);
  const json answer = ask(process);
  const std::vector<std::string> all{"age_ns", "library", "more_pools", "pools", "vpmm_top"};
  const std::vector<std::string> of_a_pool{
      "allocations",   "capacity",        "deallocations",      "device",     "device_bytes",
      "device_name",   "driver_calls",    "failed_allocations", "free_bytes", "is_busy",
      "libraries",     "live_bytes",      "mapped_bytes",       "pauses",     "peak_live_bytes",
      "pending_bytes", "suspended_bytes", "tagged_bytes",       "tags"};
  EXPECT_EQ(members_of(answer), all);
  EXPECT_EQ(members_of(answer["pools"][0]), of_a_pool);
}

TEST_F(IpcTop, tells_of_each_pool_and_of_its_tags) {
  auto settings = on();
  settings.emplace_back("VPMM_CAPACITY=64MiB");
  Process process(settings);
  expect_ok(process.call([](Parcel& parcel) {
    vpmm_set_tag_name(7, "a \"name\"\n");
    vpmm_pool* other = nullptr;
    parcel.take(vpmm_pool_create(0, nullptr, &other));
    for (std::uint32_t tag = 1; tag <= 40 && parcel.status == VPMM_OK; ++tag) {
      vpmm_request request{};
      request.size = sizeof request;
      request.bytes = tag == 7 ? 2 * kMiB : 1024 * tag;
      request.flags = VPMM_ALLOCATE_ANY_STREAM;
      request.tag = tag;
      request.library = 7;
      void* ptr = nullptr;
      parcel.take(vpmm_allocate_with(other, &request, &ptr));
    }
  }));
  process.allocate(kMiB);
  const json answer = ask_anew(process);
  ASSERT_EQ(answer["pools"].size(), 2U);
  EXPECT_EQ(answer["pools"][0]["capacity"], 64 * kMiB);
  const json& tags = answer["pools"][0]["tags"];
  ASSERT_EQ(tags.size(), 32U) << "those that hold most";
  EXPECT_EQ(tags[0], (json{{"tag", 7}, {"name", "a \"name\"\n"}, {"live_bytes", 2 * kMiB}}));
  EXPECT_EQ(tags[1], (json{{"tag", 40}, {"name", ""}, {"live_bytes", 40 * 1024}}));
  const json of_library{
      {"tag", 7}, {"name", "a \"name\"\n"}, {"live_bytes", answer["pools"][0]["tagged_bytes"]}};
  EXPECT_EQ(answer["pools"][0]["libraries"], json::array({of_library}));
  EXPECT_EQ(answer["pools"][1]["live_bytes"], kMiB);
  EXPECT_EQ(answer["pools"][1]["libraries"], json::array());
}

TEST_F(IpcTop, counts_the_pools_that_it_does_not_tell_of) {
  Process process(on());
  process.allocate(kMiB);
  create_pools(process, 66);
  const json answer = ask_anew(process);
  EXPECT_EQ(answer["pools"].size(), 64U);
  EXPECT_EQ(answer["more_pools"], 3U);
}

// With all of them the answer would not fit.
TEST_F(IpcTop, of_many_pools_tells_only_the_largest_tags) {
  auto settings = on();
  settings.emplace_back("VPMM_VA_SIZE=1GiB");
  Process process(settings);
  expect_ok(process.call([](Parcel& parcel) {
    for (std::uint32_t tag = 1; tag <= 32; ++tag)
      vpmm_set_tag_name(tag, std::string(64, 'x').c_str());
    for (int i = 0; i < 64 && parcel.status == VPMM_OK; ++i) {
      vpmm_pool* pool = nullptr;
      parcel.take(vpmm_pool_create(0, nullptr, &pool));
      for (std::uint32_t tag = 1; tag <= 32 && parcel.status == VPMM_OK; ++tag) {
        vpmm_request request{};
        request.size = sizeof request;
        request.bytes = 1000;
        request.flags = VPMM_ALLOCATE_ANY_STREAM;
        request.tag = request.library = tag;
        void* ptr = nullptr;
        parcel.take(vpmm_allocate_with(pool, &request, &ptr));
      }
    }
  }));
  const json answer = ask_anew(process);
  ASSERT_EQ(answer["pools"].size(), 64U);
  for (const json& pool : answer["pools"]) EXPECT_EQ(pool["tags"].size(), 4U);
}

TEST_F(IpcTop, of_a_process_without_a_pool_any_more_tells_of_none) {
  Process process(on());
  expect_ok(process.call([](Parcel& parcel) {
    vpmm_pool* pool = nullptr;
    parcel.take(vpmm_pool_create(0, nullptr, &pool));
    if (parcel.status == VPMM_OK) parcel.take(vpmm_pool_destroy(pool));
  }));
  EXPECT_EQ(ask(process)["pools"], json::array());
}

// --- the folder, and the life of the socket

TEST_F(IpcTop, is_for_the_user_alone_and_is_one_for_each_process) {
  Process process(on());
  Process other(on());
  process.allocate(kMiB);
  other.allocate(kMiB);
  process.call([](Parcel&) {
    vpmm_pool* pool = nullptr;
    vpmm_pool_create(0, nullptr, &pool);
  });
  EXPECT_EQ(names().size(), 2U);
  struct stat status {};
  ASSERT_EQ(stat(folder_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700U);
  const Belongings own = process.belongings();
  EXPECT_EQ(own.sockets, 2U) << "to the test, and the listening one";
  EXPECT_EQ(own.threads, kFirstThread + 1);
}

TEST_F(IpcTop, is_not_made_where_the_switch_is_off_or_wrong) {
  for (const char* const switched : {"0", "no"}) {
    Process process(on(switched));
    process.allocate(kMiB);
    EXPECT_EQ(names(), std::vector<std::string>{}) << switched;
    const Belongings own = process.belongings();
    EXPECT_EQ(own.sockets, 1U) << switched;
    EXPECT_EQ(own.threads, 1U) << switched;
  }
}

// As in a container that is read only, or after a wrong setting.
TEST_F(IpcTop, where_none_can_be_made_the_pool_opens_all_the_same) {
  fs::create_directory(folder_);
  std::ofstream(folder_ + "/file") << "x";
  fs::create_directory(folder_ + "/open");
  ASSERT_EQ(chmod((folder_ + "/open").c_str(), 0755), 0);
  for (const std::string& folder : {folder_ + "/file", folder_ + "/open", folder_ + "/not/there",
                                    std::string("/proc/vpmm"), std::string("relative")}) {
    SCOPED_TRACE(folder);
    Process process({"VPMM_IPC_DIR=" + folder, "VPMM_TOP=1"});
    process.allocate(kMiB);
    const Belongings own = process.belongings();
    EXPECT_EQ(own.sockets, 1U);
    EXPECT_EQ(own.threads, 1U);
  }
  EXPECT_EQ(names_in(folder_ + "/open"), std::vector<std::string>{});
}

TEST_F(IpcTop, is_removed_at_exit_and_after_a_kill_by_the_next_process) {
  Process living(on());
  living.allocate(kMiB);
  {
    Process exiting(on());
    exiting.allocate(kMiB);
    Process killed(on());
    killed.allocate(kMiB);
    EXPECT_EQ(names().size(), 3U);
    exiting.exit();
    EXPECT_EQ(names().size(), 2U);
    killed.kill();
    EXPECT_EQ(names().size(), 2U);
  }
  Process next(on());
  next.allocate(kMiB);
  EXPECT_EQ(names().size(), 2U);
  EXPECT_NE(socket_of(next), "");
  EXPECT_EQ(ask(living)["pools"][0]["live_bytes"], kMiB);
}

TEST_F(IpcTop, of_an_ended_process_with_the_same_number_is_removed) {
  Process process(on());
  fs::create_directory(folder_);
  fs::permissions(folder_, fs::perms::owner_all);
  const std::string stem = folder_ + "/top-" + std::to_string(process.process()) + "-";
  const std::string old = stem + std::string(folder_.size() + 33 - stem.size(), '0') + ".sock";
  ASSERT_TRUE(ipc::listen_at(old).ok());  // and ends, as in a container that was killed
  process.allocate(kMiB);
  ASSERT_EQ(names().size(), 1U);
  EXPECT_NE(folder_ + "/" + names()[0], old);
}

TEST_F(IpcTop, is_the_parents_alone_after_a_fork) {
  Process process(on());
  process.allocate(kMiB);
  const Parcel answer = process.call([](Parcel& parcel) {
    const pid_t child = fork_for_a_while();
    if (child == 0) {
      vpmm_pool* pool = nullptr;
      const bool is_refused = vpmm_pool_create(0, nullptr, &pool) == VPMM_ERROR_PROCESS_ENDING;
      std::exit(is_refused && own_descriptors().sockets == 1 ? 0 : 1);  // handlers at exit run
    }
    int status = 0;
    waitpid(child, &status, 0);
    parcel.words[0] = static_cast<std::uint64_t>(status);
  });
  EXPECT_EQ(answer.words[0], 0U);
  EXPECT_EQ(ask(process)["pools"][0]["live_bytes"], kMiB);
}

TEST_F(IpcTop, a_child_of_a_process_without_a_pool_has_one_of_its_own) {
  Process process(on());
  const Parcel answer = process.call([](Parcel& parcel) {
    const pid_t child = fork_for_a_while();
    if (child == 0) {
      vpmm_pool* pool = nullptr;
      const vpmm_status made = vpmm_pool_create(0, nullptr, &pool);
      std::_Exit(made == VPMM_OK && own_descriptors().sockets == 2 ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    parcel.words[0] = static_cast<std::uint64_t>(status);
    parcel.words[1] = static_cast<std::uint64_t>(child);
  });
  EXPECT_EQ(answer.words[0], 0U);
  ASSERT_EQ(names().size(), 1U);
  EXPECT_TRUE(names()[0].starts_with("top-" + std::to_string(answer.words[1]) + "-"));
}

// --- clients

TEST_F(IpcTop, messages_of_a_client_are_passed_over) {
  Process process(on());
  process.allocate(kMiB);
  for (int i = 0; i < 3; ++i) {
    ipc::Channel channel = connect(process);
    const std::string rubbish(10'000, '\xff');
    for (int j = 0; j < 10; ++j)
      send(channel.get(), rubbish.data(), rubbish.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ipc::Message message = message_of(ipc::MessageKind::open, 1);
    std::vector<ipc::Descriptor> files;
    {
      ipc::Descriptor::Making making;
      files.push_back(making.adopt(dup(0)));
    }
    static_cast<void>(channel.try_send(message, files, ipc::Clock::now()));
    const std::string heard = heard_from(channel);
    EXPECT_TRUE(json::accept(heard)) << heard;
    EXPECT_EQ(heard_from(channel), "") << "and is hung up on";
  }
  EXPECT_EQ(process.belongings().sockets, 2U);
}

TEST_F(IpcTop, clients_that_take_no_answer_hold_nothing_up) {
  Process process(on());
  process.allocate(kMiB);
  const Belongings before = process.belongings();
  std::vector<ipc::Channel> stalled;
  for (int i = 0; i < 300; ++i) stalled.push_back(connect(process));
  process.free(process.allocate(kMiB));
  EXPECT_EQ(ask_anew(process)["pools"][0]["live_bytes"], kMiB);
  // The last connection is closed after its answer has come.
  for (int i = 0; process.belongings().descriptors != before.descriptors && i < 20'000; ++i)
    usleep(1000);
  EXPECT_EQ(process.belongings().descriptors, before.descriptors);
  EXPECT_TRUE(json::accept(heard_from(stalled.front())));
}

TEST_F(IpcTop, clients_that_hang_up_at_once_are_no_matter) {
  Process process(on());
  process.allocate(kMiB);
  for (int i = 0; i < 300; ++i) connect(process);
  EXPECT_EQ(ask(process)["pools"][0]["live_bytes"], kMiB);
}

TEST_F(IpcTop, a_client_that_sends_a_descriptor_whose_closing_lasts_does_not_stop_the_program) {
  for (const bool is_behind_an_empty_one : {false, true}) {
    Process process(on());
    process.call([](Parcel&) { become_older_kernel(); });
    process.allocate(kMiB);
    Lingering lingering;
    ASSERT_TRUE(lingering.is_connected());
    const Belongings before = process.belongings();
    process.signal(SIGSTOP);
    ipc::Channel channel = connect(process);
    if (is_behind_an_empty_one) send(channel.get(), "", 0, MSG_NOSIGNAL);
    ASSERT_TRUE(lingering.give_to(channel, message_of(ipc::MessageKind::open, 1)));
    process.signal(SIGCONT);
    const std::string heard = heard_from(channel);
    EXPECT_NE(heard, "nothing came");
    EXPECT_TRUE(is_behind_an_empty_one || json::accept(heard)) << heard;
    const vpmm_ipc_handle handle = process.share(process.allocate(kMiB), kMiB);
    process.end(handle);
    EXPECT_GE(process.belongings().threads, before.threads);
  }
}

TEST_F(IpcTop, another_user_gets_no_answer) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Process process(on());
  process.allocate(kMiB);
  const std::string path = socket_of(process);
  ASSERT_EQ(chmod(socket_folder_of_tests().c_str(), 0755), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 0777), 0);
  ASSERT_EQ(chmod(path.c_str(), 0777), 0);
  Process stranger;
  Parcel parcel;
  parcel.say(path);
  const Parcel answer = stranger.call(
      [](Parcel& asked) {
        const auto channel = setuid(65534) == 0
                                 ? ipc::connect_to(asked.said(), soon())
                                 : Result<ipc::Channel>(ipc::not_shared("setuid failed"));
        if (!channel) return asked.say(channel.error().message);
        asked.words[0] = heard_from(channel.value()).size();
        asked.words[1] = 1;
      },
      parcel);
  EXPECT_EQ(answer.words[1], 1U) << answer.said();
  EXPECT_EQ(answer.words[0], 0U);
  chmod(socket_folder_of_tests().c_str(), 0700);
}

// --- the program

std::atomic<bool> is_released_in_actor{false};
std::atomic<bool> is_inside_in_actor{false};

void hold_the_lock(void*, const vpmm_event*) {
  is_inside_in_actor = true;
  while (!is_released_in_actor) usleep(1000);
}

// In a thread that holds the lock of the actor's pool until it is released.
void begin_a_long_call(Process& process) {
  expect_ok(process.call([](Parcel& parcel) {
    std::uint64_t id = 0;
    parcel.take(vpmm_add_event_callback(pool_of_actor(), 1U << VPMM_EVENT_ALLOCATE, &hold_the_lock,
                                        nullptr, &id));
    std::thread([] {
      void* ptr = nullptr;
      vpmm_allocate_any_stream(pool_of_actor(), kMiB, 0, &ptr);
    }).detach();
    while (parcel.status == VPMM_OK && !is_inside_in_actor) usleep(1000);
  }));
}

TEST_F(IpcTop, a_pool_in_a_long_call_has_no_figures_and_others_open_meanwhile) {
  Process process(on());
  process.allocate(kMiB);
  begin_a_long_call(process);
  const json busy = ask_anew(process)["pools"];
  EXPECT_EQ(busy, (json::array({json{{"device", 0}, {"is_busy", true}}})));
  expect_ok(process.call([](Parcel& parcel) {
    vpmm_pool* pool = nullptr;
    parcel.take(vpmm_pool_create(0, nullptr, &pool));
  }));
  expect_ok(process.call([](Parcel&) { is_released_in_actor = true; }));
  json pools;
  for (int i = 0; i < 1000; ++i) {
    pools = ask_anew(process)["pools"];
    if (pools[0]["is_busy"] == false && pools[0]["live_bytes"] == 2 * kMiB) break;
  }
  EXPECT_EQ(pools[0]["live_bytes"], 2 * kMiB);
  EXPECT_EQ(pools.size(), 2U);
}

std::atomic<std::uint64_t> looks_in_actor{0};

void look_at_the_pool(const std::function<void(context::Context&)>& visit) {
  ++looks_in_actor;
  visit(*pool_of_actor()->context);
}

TEST_F(IpcTop, counts_the_pools_that_it_does_not_tell_of_once_however_often_it_looks) {
  Process process(on());
  process.allocate(kMiB);
  create_pools(process, 66);
  begin_a_long_call(process);
  const json answer = ask_anew(process);
  expect_ok(process.call([](Parcel&) { is_released_in_actor = true; }));
  EXPECT_EQ(answer["pools"].size(), 64U);
  EXPECT_EQ(answer["pools"][0]["is_busy"], true) << "so that it looked again";
  EXPECT_EQ(answer["more_pools"], 3U);
}

TEST_F(IpcTop, takes_nothing_of_the_processor_while_nobody_asks) {
  Process process(on());
  process.allocate(kMiB);
  EXPECT_LT(process.share_of_a_core(), 0.125);
}

TEST_F(IpcTop, a_pool_in_a_long_call_is_looked_at_for_a_while_once_in_a_millisecond) {
  Process process(on());
  process.call([](Parcel&) { ipc::answer_top({&look_at_the_pool, "x"}); });
  process.allocate(kMiB);
  begin_a_long_call(process);
  EXPECT_EQ(ask(process)["pools"][0]["is_busy"], true);
  const Parcel looked = process.call([](Parcel& parcel) {
    parcel.words[0] = looks_in_actor;
    is_released_in_actor = true;
  });
  EXPECT_GT(looked.words[0], 1U);
  EXPECT_LE(looked.words[0], 101U);
}

void visit_no_pool(const std::function<void(context::Context&)>&) {}

// Every `new` in the making of the socket fails in turn.
TEST_F(IpcTop, without_host_memory_is_made_at_a_later_pool) {
  Process process(on());
  const Parcel answer = process.call([](Parcel& parcel) {
    for (std::uint64_t nth = 1;; ++nth) {
      fail_allocation(nth, Of::main_thread);
      ipc::answer_top({&visit_no_pool, "x"});
      if (stop_failing() == 0) break;
      ++parcel.words[0];
    }
    const Descriptors own = own_descriptors();
    parcel.words[1] = own.sockets;
  });
  EXPECT_GT(answer.words[0], 3U);
  EXPECT_EQ(answer.words[1], 2U);
  EXPECT_EQ(names().size(), 1U);
  EXPECT_EQ(ask(process)["library"], "x");
}

TEST_F(IpcTop, without_host_memory_an_answer_fails_and_the_next_is_given) {
  Process process(on());
  process.allocate(kMiB);
  expect_ok(process.call([](Parcel&) { fail_allocation(1, Of::others, Repeat::from_then_on); }));
  EXPECT_EQ(heard_from(connect(process)), "");
  expect_ok(process.call([](Parcel&) { stop_failing(); }));
  EXPECT_EQ(ask(process)["pools"][0]["live_bytes"], kMiB);
}

TEST_F(IpcTop, of_a_process_that_began_to_exit_tells_of_no_pool) {
  Process process(on());
  // Registered first, so it runs last: the answer is sent by then.
  process.call([](Parcel&) { std::atexit([] { usleep(2'000'000); }); });
  process.allocate(kMiB);
  hold_thread_at_gate(process);
  const ipc::Channel channel = connect(process);
  expect_thread_at_gate(process);
  process.exit();
  const std::string text = heard_from(channel);
  const json answer = json::parse(text, nullptr, false);
  ASSERT_FALSE(answer.is_discarded()) << text;
  EXPECT_EQ(answer["pools"], json::array());
  EXPECT_EQ(answer["more_pools"], 0U);
}

TEST_F(IpcTop, without_a_descriptor_answers_again_when_there_is_one) {
  Process process(on());
  process.allocate(kMiB);
  const auto allow = [&](std::uint64_t descriptors) {
    Parcel parcel;
    parcel.words[0] = descriptors;
    expect_ok(process.call(
        [](Parcel& asked) {
          rlimit limit{};
          getrlimit(RLIMIT_NOFILE, &limit);
          limit.rlim_cur = asked.words[0];
          if (setrlimit(RLIMIT_NOFILE, &limit) != 0) asked.status = VPMM_ERROR_DRIVER_FAILED;
        },
        parcel));
  };
  allow(0);
  const ipc::Channel channel = connect(process);
  EXPECT_LT(process.share_of_a_core(), 0.125) << "while one waits for an answer";
  allow(1000);
  EXPECT_TRUE(json::accept(heard_from(channel)));
}

}  // namespace
}  // namespace vpmm::ipc_test::top_test
