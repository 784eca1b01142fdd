// SPDX-License-Identifier: Apache-2.0
// ipc tests: an exporter whose answers are not taken, whose pools end, or that ends itself.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <thread>

#include "context/context.hpp"
#include "driver/forwarding.hpp"
#include "ipc/exporter.hpp"
#include "ipc/gate.hpp"
#include "ipc/kernel.hpp"
#include "ipc/raw.hpp"
#include "ipc/talker.hpp"
#include "settings/config.hpp"

namespace vpmm::ipc_test::delivery_test {
namespace {

using ipc::Channel;
using ipc::MessageKind;
using std::chrono::milliseconds;

constexpr std::uint64_t kSeed = 14;
constexpr Bytes kLarge = 100 * kMiB;  // 50 chunks, more than are on their way at once

// An opening of which 32 chunks have come.
Channel open_by_hand(const vpmm_ipc_handle& handle) {
  Channel channel = connect_by_hand(handle);
  send_by_hand(channel, open_message(handle, 1));
  EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(next_from(channel)->kind, MessageKind::batch);
  return channel;
}

std::uint64_t sends_of(Process& process) {
  return process.call([](Parcel& parcel) { parcel.words[0] = kernel_calls(KernelCall::send); })
      .words[0];
}

void fail_all_sends(Parcel&) { fail_kernel_call(KernelCall::send, EAGAIN, 1'000'000'000); }

// Whatever else it has to do meanwhile.
TEST(IpcDelivery, that_finds_no_room_is_tried_again_a_hundred_times_a_second_at_most) {
  Process exporter({"VPMM_CHUNK_MAX=page"});
  Channel channel = open_by_hand(exporter.allocate_shared(kLarge, kSeed).handle);
  exporter.call(fail_all_sends);
  send_by_hand(channel, message_of(MessageKind::received, 1, 4));
  for (const auto give_up = soon(); sends_of(exporter) == 0;) ASSERT_LT(ipc::Clock::now(), give_up);
  const auto begin = ipc::Clock::now();
  exporter.call(fail_all_sends);  // counts anew
  while (ipc::Clock::now() - begin < milliseconds(200)) {
    send_by_hand(channel, message_of(MessageKind::close, 99));
    std::this_thread::sleep_for(milliseconds(1));
  }
  const std::uint64_t tried = sends_of(exporter);
  const auto took = std::chrono::ceil<milliseconds>(ipc::Clock::now() - begin).count();
  EXPECT_LE(tried, static_cast<std::uint64_t>(took) / 10 + 2) << "in " << took << " ms";
  exporter.call([](Parcel&) { fail_kernel_call(KernelCall::send, 0, 0); });
  const std::optional<ipc::Message> batch = next_from(channel);
  ASSERT_TRUE(batch);
  EXPECT_EQ(batch->kind, MessageKind::batch);
}

TEST(IpcDelivery, that_is_not_taken_in_time_is_refused_once) {
  Process exporter({"VPMM_CHUNK_MAX=page", "VPMM_IPC_TIMEOUT=2000"});
  Channel channel = open_by_hand(exporter.allocate_shared(kLarge, kSeed).handle);
  const std::optional<ipc::Message> refused = next_from(channel);
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->kind, MessageKind::refused);
  EXPECT_EQ(refused->number, 1U);
  EXPECT_EQ(refused->status, static_cast<std::uint32_t>(VPMM_ERROR_NOT_SHARED));
  EXPECT_EQ(refused->said(), "what was asked for was not taken in time");
  EXPECT_LT(exporter.share_of_a_core(), 0.125);
  EXPECT_FALSE(channel.wait_to_receive(ipc::Clock::now()));
}

// Its importer closes and hangs up before it is answered, and lives on.
TEST(IpcDelivery, that_nobody_takes_any_more_holds_nothing) {
  Process exporter({"VPMM_IPC_TIMEOUT=60000"});
  HandImporter importer;
  const Shared kept = exporter.allocate_shared(kMiB, kSeed);
  const Shared shared = exporter.allocate_shared(kMiB, kSeed);
  importer.connect(kept.handle);
  importer.say_open(kept.handle, 1);
  EXPECT_EQ(importer.hear().kind, MessageKind::granted);
  EXPECT_EQ(importer.hear().kind, MessageKind::batch);
  importer.say_received(1, 1);
  exporter.call([](Parcel&) { fail_kernel_call(KernelCall::send, 0, 0); });  // counts anew
  exporter.signal(SIGSTOP);
  importer.say_open(shared.handle, 2);
  importer.say_close(2);
  importer.hang_up();
  exporter.signal(SIGCONT);
  for (const auto give_up = soon(); sends_of(exporter) == 0;)  // until it tries to grant it
    ASSERT_LT(ipc::Clock::now(), give_up);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

// --- one that never stops talking

TEST(IpcDelivery, is_not_held_up_by_one_that_talks_on_when_it_is_hung_up_on) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kMiB, kSeed);
  Parcel parcel;
  parcel.handle = shared.handle;
  exporter.call(
      [](Parcel& asked) {
        talker_of_actor().channel = connect_by_hand(asked.handle);
        talk_on_before(KernelCall::receive, MessageKind::close);
        send_by_hand(talker_of_actor().channel, message_of(MessageKind::granted, 1));  // nonsense
      },
      parcel);
  Process importer;
  importer.expect(importer.open(shared.handle), kMiB, kSeed);
  EXPECT_EQ(told_by_talker(exporter).words[0], 1U) << "before it was hung up on";
}

// --- programs that the exporter starts meanwhile

// In the actor.
std::atomic<int> exported_file{-1};
std::atomic<int> flags_when_sent{-1};

// Exports as CUDA may: its descriptors would go to programs that are started.
class OpenDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult mem_export_to_shareable_handle(driver::ChunkHandle chunk, int& file) override {
    const auto result = ForwardingDriver::mem_export_to_shareable_handle(chunk, file);
    fcntl(file, F_SETFD, 0);
    exported_file = file;
    return result;
  }
};

// Of the exporter's thread; the first messages have no descriptors.
void look_at_flags() {
  if (exported_file < 0) return before_kernel_call(KernelCall::send, look_at_flags);
  flags_when_sent = fcntl(exported_file, F_GETFD);
}

TEST(IpcDelivery, leaves_programs_that_are_started_no_chunk) {
  Process exporter;
  Process importer;
  const Parcel shared = exporter.call([](Parcel& parcel) {
    static OpenDriver driver(driver_of_actor());
    static auto pool =
        context::Context::create(driver, 0, settings::config_from_environment().value()).value();
    const DevicePtr memory = pool->allocate({kMiB, 0, std::nullopt}).value();
    const auto handle = ipc::Exporter::of_process().share(*pool, {memory, kMiB}).value();
    parcel.handle = handle_of(ipc::decode(handle.token).value());
    before_kernel_call(KernelCall::send, look_at_flags);
  });
  importer.open(shared.handle);
  const Parcel seen = exporter.call([](Parcel& parcel) {
    parcel.words = {exported_file < 0 ? 0U : 1U, static_cast<std::uint64_t>(flags_when_sent)};
  });
  EXPECT_EQ(seen.words[0], 1U);
  EXPECT_EQ(seen.words[1], static_cast<std::uint64_t>(FD_CLOEXEC));
}

// --- ends

TEST(IpcExporterEnd, of_a_pool_whose_memory_nobody_opened_waits_for_nobody) {
  Process exporter;
  expect_ok(exporter.call([](Parcel& parcel) {
    vpmm_pool* pool = nullptr;
    void* ptr = nullptr;
    driver_of_actor();
    parcel.take(vpmm_pool_create(0, nullptr, &pool));
    if (parcel.status == VPMM_OK) parcel.take(vpmm_allocate_any_stream(pool, kMiB, 0, &ptr));
    if (parcel.status == VPMM_OK) parcel.take(vpmm_ipc_export(ptr, kMiB, &parcel.handle));
    if (parcel.status == VPMM_OK) parcel.take(vpmm_pool_destroy(pool));
  }));
}

// Sleeps in the kernel, or is over.
bool is_at_rest(pid_t thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string read;
  if (!std::getline(file, read)) return true;
  return read.substr(read.rfind(')')).starts_with(") S");
}

void wait_until_the_answer_would_be_sent() {
  const auto give_up = soon();
  while ((thread_past_gate() == 0 || !is_at_rest(thread_past_gate())) &&
         ipc::Clock::now() < give_up)
    usleep(1000);
}

TEST(IpcExporterEnd, of_the_process_answers_nobody_from_its_begin_on) {
  Process exporter;
  // Registered first, so it runs last.
  exporter.call([](Parcel&) { std::atexit(wait_until_the_answer_would_be_sent); });
  const Shared shared = exporter.allocate_shared(kMiB, kSeed);
  Channel channel = connect_by_hand(shared.handle);
  send_by_hand(channel, open_message(shared.handle, 1));
  EXPECT_EQ(next_from(channel)->kind, MessageKind::granted);
  EXPECT_EQ(next_from(channel)->kind, MessageKind::batch);
  send_by_hand(channel, message_of(MessageKind::received, 1, 1));
  hold_thread_at_gate(exporter);
  send_by_hand(channel, open_message(shared.handle, 2));
  expect_thread_at_gate(exporter);
  exporter.exit();
  EXPECT_FALSE(next_from(channel).has_value());
}

}  // namespace
}  // namespace vpmm::ipc_test::delivery_test
