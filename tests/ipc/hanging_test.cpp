// SPDX-License-Identifier: Apache-2.0
// ipc tests: an exporter that hangs holds up whoever asks it something, and nobody else.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "ipc/importer.hpp"
#include "ipc/kernel.hpp"
#include "ipc/raw.hpp"

namespace vpmm::ipc_test::hanging_test {
namespace {

using ipc::MessageKind;

constexpr std::uint64_t kSeed = 9;
const std::vector<std::string> kShort = {"VPMM_IPC_TIMEOUT=200"};

vpmm_ipc_handle without_device(const vpmm_ipc_handle& handle) {
  vpmm_ipc_handle read{};
  EXPECT_EQ(vpmm_ipc_read_token(handle.token, &read), VPMM_OK) << vpmm_last_error();
  return read;
}

TEST(IpcHangingExporter, is_not_asked_for_what_is_open_even_by_a_token_without_device) {
  Process exporter;
  Process importer(kShort);
  const Shared shared = exporter.allocate_shared(3 * kMiB, kSeed);
  const vpmm_ipc_handle token = without_device(shared.handle);
  const Address opened = importer.open(token);
  exporter.signal(SIGSTOP);
  EXPECT_EQ(importer.open(token), opened);
  EXPECT_EQ(importer.open(shared.handle), opened);
  EXPECT_EQ(importer.open(token, 0), opened);
  importer.expect(opened, 3 * kMiB, kSeed);
  for (int i = 0; i < 4; ++i) importer.close(opened);
  expect_refused(importer.try_to_close(opened), VPMM_ERROR_INVALID_POINTER, "not open");
  exporter.signal(SIGCONT);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

// More than its socket holds. The rest is said as memory of another is opened, or closed, which
// does not wait for it.
TEST(IpcHangingExporter, hears_of_all_that_was_closed_meanwhile_when_it_goes_on) {
  constexpr std::uint64_t kMany = 300;
  for (const bool is_said_by_a_closing : {false, true}) {
    SCOPED_TRACE(is_said_by_a_closing);
    Process exporter;
    Process other;
    Process importer;
    importer.close(importer.open(exporter.allocate_shared(kMiB, kSeed).handle));
    const vpmm_ipc_handle of_other = other.allocate_shared(kMiB, kSeed).handle;
    importer.belongings();
    const Belongings before = importer.belongings();
    constexpr std::uint64_t kTries = 100;
    Address of_other_open = 0;
    std::uint64_t opens = 0;
    for (; is_said_by_a_closing && opens < kTries; ++opens) of_other_open = importer.open(of_other);
    const Belongings with_other = importer.belongings();
    std::vector<Address> opened;
    for (std::uint64_t i = 0; i < kMany; ++i) {
      const Shared shared = exporter.allocate_shared(1000, kSeed);
      opened.push_back(importer.open(shared.handle));
      exporter.free(shared.address);
      exporter.end(shared.handle);
    }
    exporter.signal(SIGSTOP);
    for (const Address address : opened) importer.close(address);
    const Belongings closed = importer.belongings();
    EXPECT_EQ(closed.mappings, with_other.mappings);
    EXPECT_EQ(closed.reservations, with_other.reservations);
    exporter.signal(SIGCONT);
    // Then it reads, and there is room again.
    for (std::uint64_t i = 0; exporter.leased() > 0 && i < kTries; ++i) {
      if (is_said_by_a_closing) {
        importer.close(of_other_open);
        --opens;
      } else {
        of_other_open = importer.open(of_other);
        ++opens;
      }
      usleep(10'000);
    }
    EXPECT_EQ(exporter.leased(), 0U);
    for (; opens > 0; --opens) importer.close(of_other_open);
    EXPECT_EQ(importer.belongings(), before);
  }
}

// Of the first closing, which may find no room although the exporter reads.
TEST(IpcHangingExporter, that_has_room_a_moment_later_hears_of_a_closing_at_once) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(3 * kMiB, kSeed);
  Parcel parcel;
  parcel.words[0] = importer.open(shared.handle);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  const Parcel closed = importer.call(
      [](Parcel& asked) {
        fail_kernel_call(KernelCall::send, EAGAIN, 3);
        asked.take(vpmm_ipc_close(reinterpret_cast<void*>(asked.words[0])));
        asked.words[1] = kernel_calls(KernelCall::send);
      },
      parcel);
  expect_ok(closed);
  EXPECT_GE(closed.words[1], 2U);  // four, unless a second passes between
  expect_leases_to_end(exporter);
}

struct Asking {
  std::thread thread;
  std::atomic<bool> is_answered{false};
  Parcel parcel;
};

Asking& asking_of_actor() {
  static auto* const asking = new Asking;
  return *asking;
}

// In a thread of its own.
void begin_to_open(Process& importer, const vpmm_ipc_handle& handle) {
  Parcel asked;
  asked.handle = handle;
  importer.call(
      [](Parcel& parcel) {
        asking_of_actor().parcel = parcel;
        asking_of_actor().thread = std::thread([] {
          void* ptr = nullptr;
          Parcel& mine = asking_of_actor().parcel;
          mine.take(vpmm_ipc_open(&mine.handle, -1, &ptr));
          asking_of_actor().is_answered = true;
        });
      },
      asked);
}

bool is_answered(Process& importer) {
  const auto look = [](Parcel& parcel) { parcel.words[0] = asking_of_actor().is_answered ? 1 : 0; };
  return importer.call(look).words[0] != 0;
}

Parcel answer_of(Process& importer) {
  return importer.call([](Parcel& parcel) {
    asking_of_actor().thread.join();
    parcel = asking_of_actor().parcel;
  });
}

TEST(IpcHangingExporter, holds_up_nobody_who_uses_memory_of_another) {
  HandExporter hanging;
  Process exporter({"VPMM_CHUNK_MAX=page"});
  Process importer;
  const Shared kept = exporter.allocate_shared(kMiB, kSeed);
  const Shared shared = exporter.allocate_shared(64 * kMiB, kSeed);
  const Address open = importer.open(kept.handle);
  begin_to_open(importer, hanging.listen(4));
  EXPECT_EQ(hanging.hear().kind, MessageKind::open);  // and is not answered
  for (int i = 0; i < 3; ++i) {
    const Address opened = importer.open(shared.handle);
    importer.expect(opened, 64 * kMiB, kSeed);
    importer.close(opened);
  }
  importer.close(open);
  EXPECT_FALSE(is_answered(importer));
  hanging.hang_up();
  expect_refused(answer_of(importer), VPMM_ERROR_NOT_SHARED, "gone");
  for (const Shared& each : {kept, shared}) {
    exporter.free(each.address);
    exporter.end(each.handle);
  }
  expect_leases_to_end(exporter);
}

TEST(IpcHangingExporter, that_goes_on_serves_whoever_waited_for_the_link) {
  HandExporter hanging;
  Process importer;
  const vpmm_ipc_handle handle = hanging.listen(4);
  ipc::Token other = parts_of(handle);
  ++other.generation;
  begin_to_open(importer, handle);
  EXPECT_EQ(hanging.hear().number, 1U);
  importer.begin_to_open(handle_of(other));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // so that it waits
  const auto refuse = [&](std::uint64_t number) {
    ipc::Message refusal = message_of(MessageKind::refused, number);
    refusal.say("not now");
    hanging.say(refusal);
  };
  refuse(1);
  ipc::Message next = hanging.hear();
  if (next.kind == MessageKind::close) next = hanging.hear();  // of the first, or later
  EXPECT_EQ(next.kind, MessageKind::open);
  EXPECT_EQ(next.number, 2U);
  refuse(2);
  expect_refused(importer.finish(), VPMM_ERROR_NOT_SHARED, "not now");
  expect_refused(answer_of(importer), VPMM_ERROR_NOT_SHARED, "not now");
}

// Memory of 4 chunks; `which` tells those of one exporter apart.
vpmm_ipc_handle small_memory(const vpmm_ipc_handle& handle, std::uint64_t which) {
  ipc::Token token = parts_of(handle);
  token.size = 8 * kMiB;
  token.generation = which;
  return handle_of(token);
}

void expect_open(HandExporter& exporter, std::uint64_t number) {
  const ipc::Message asked = exporter.hear();
  EXPECT_EQ(asked.kind, MessageKind::open);
  EXPECT_EQ(asked.number, number);
}

void deliver(HandExporter& exporter, std::uint64_t number) {
  exporter.grant(number, {.chunks = 4});
  exporter.send_batch(number, 4);
}

Address open_first(Process& importer, HandExporter& exporter, const vpmm_ipc_handle& handle) {
  importer.begin_to_open(small_memory(handle, 1));
  expect_open(exporter, 1);
  deliver(exporter, 1);
  EXPECT_EQ(exporter.hear().kind, MessageKind::received);
  const Parcel opened = importer.finish();
  expect_ok(opened);
  return opened.words[0];
}

TEST(IpcHangingExporter, hears_of_what_was_closed_during_an_opening_when_that_is_done) {
  HandExporter hanging;
  Process importer;
  const vpmm_ipc_handle handle = hanging.listen(8);
  const Address opened = open_first(importer, hanging, handle);
  begin_to_open(importer, small_memory(handle, 2));
  expect_open(hanging, 2);
  importer.close(opened);
  deliver(hanging, 2);
  expect_ok(answer_of(importer));
  EXPECT_EQ(hanging.hear().kind, MessageKind::received);
  const ipc::Message closing = hanging.hear();
  EXPECT_EQ(closing.kind, MessageKind::close);
  EXPECT_EQ(closing.number, 1U);
}

// As one does whose importer read nothing for too long: before the importer hears of a batch, or
// after it asked, so that it hears of nothing else.
TEST(IpcHangingExporter, that_hung_up_is_asked_anew) {
  for (const bool has_delivered : {true, false}) {
    SCOPED_TRACE(has_delivered);
    HandExporter hanging;
    Process importer;
    const vpmm_ipc_handle handle = hanging.listen(12);
    open_first(importer, hanging, handle);
    importer.begin_to_open(small_memory(handle, 2));
    expect_open(hanging, 2);
    importer.signal(SIGSTOP);
    if (has_delivered) deliver(hanging, 2);
    hanging.hang_up(HandExporter::HangUp::one_connection);
    importer.signal(SIGCONT);
    expect_open(hanging, 1);
    deliver(hanging, 1);
    EXPECT_EQ(hanging.hear().kind, MessageKind::received);
    expect_ok(importer.finish());
  }
}

// As one does whose connections are too many: it makes way for another.
TEST(IpcHangingExporter, that_turns_a_connection_away_is_asked_anew_through_another) {
  HandExporter hanging;
  Process importer;
  const vpmm_ipc_handle handle = hanging.listen(12);
  open_first(importer, hanging, handle);
  importer.begin_to_open(small_memory(handle, 2));
  expect_open(hanging, 2);
  ipc::Message refusal = message_of(MessageKind::refused, 0);
  refusal.say("made way");
  hanging.say(refusal);
  hanging.hang_up(HandExporter::HangUp::one_connection);
  expect_open(hanging, 1);
  deliver(hanging, 1);
  EXPECT_EQ(hanging.hear().kind, MessageKind::received);
  expect_ok(importer.finish());
}

// One that talks of other openings without end, or says what is no message.
TEST(IpcHangingExporter, that_does_not_keep_to_the_protocol_is_asked_anew_through_another) {
  constexpr int kMostPassedOver = 1024;
  for (const bool talks : {true, false}) {
    SCOPED_TRACE(talks);
    HandExporter hanging;
    Process importer;
    const vpmm_ipc_handle handle = hanging.listen(12);
    open_first(importer, hanging, handle);
    importer.begin_to_open(small_memory(handle, 2));
    expect_open(hanging, 2);
    if (!talks) hanging.send_piece(1, 0);
    for (int i = 0; talks && i < kMostPassedOver; ++i)
      hanging.say(message_of(MessageKind::batch, 99));
    EXPECT_TRUE(hanging.is_connected_to_again()) << "before it hangs up";
    hanging.hang_up(HandExporter::HangUp::one_connection);
    expect_open(hanging, 1);
    deliver(hanging, 1);
    EXPECT_EQ(hanging.hear().kind, MessageKind::received);
    expect_ok(importer.finish());
  }
}

// --- a link that is busy

std::atomic<std::uint64_t> sent_meanwhile{0};
std::atomic<bool> is_sending{false};

// Of a closing, in its thread: what others send before it is over.
void hold_the_closing() {
  is_sending = true;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  sent_meanwhile = kernel_calls(KernelCall::send) - 1;
}

TEST(IpcLink, has_one_speaker_at_a_time) {
  Process exporter;
  Process importer;
  const Shared first = exporter.allocate_shared(kMiB, kSeed);
  const Shared second = exporter.allocate_shared(kMiB, kSeed + 1);
  Parcel parcel;
  parcel.words[0] = importer.open(first.handle);
  parcel.handle = second.handle;
  const Parcel opened = importer.call(
      [](Parcel& asked) {
        before_kernel_call(KernelCall::send, hold_the_closing);
        std::thread closing(
            [&] { vpmm_ipc_close(reinterpret_cast<void*>(std::exchange(asked.words[0], 0))); });
        while (!is_sending) std::this_thread::yield();
        void* ptr = nullptr;
        asked.take(vpmm_ipc_open(&asked.handle, -1, &ptr));
        closing.join();
        asked.words[0] = reinterpret_cast<Address>(ptr);
        asked.words[1] = sent_meanwhile;
      },
      parcel);
  expect_ok(opened);
  EXPECT_EQ(opened.words[1], 0U) << "the opening waits for the closing";
  importer.expect(opened.words[0], kMiB, kSeed + 1);
  importer.close(opened.words[0]);
  for (const Shared& each : {first, second}) {
    exporter.free(each.address);
    exporter.end(each.handle);
  }
  expect_leases_to_end(exporter);
}

std::thread opening_in_actor;
std::atomic<bool> is_open_meanwhile{false};
vpmm_ipc_handle other_in_actor;

// Of a closing, in its thread: another opens other memory, and is waited for.
void open_the_other() {
  opening_in_actor = std::thread([] {
    void* ptr = nullptr;
    is_open_meanwhile = vpmm_ipc_open(&other_in_actor, -1, &ptr) == VPMM_OK;
  });
  const auto give_up = soon();
  while (!is_open_meanwhile && ipc::Clock::now() < give_up) std::this_thread::yield();
}

TEST(IpcLink, that_is_slow_to_take_a_closing_holds_up_nobody_who_uses_memory_of_another) {
  Process exporter;
  Process other;
  Process importer;
  Parcel parcel;
  parcel.words[0] = importer.open(exporter.allocate_shared(kMiB, kSeed).handle);
  parcel.handle = other.allocate_shared(kMiB, kSeed).handle;
  importer.open(parcel.handle);
  const Parcel closed = importer.call(
      [](Parcel& asked) {
        other_in_actor = asked.handle;
        before_kernel_call(KernelCall::send, [] {
          open_the_other();
          sent_meanwhile = is_open_meanwhile ? 1 : 0;
        });
        asked.take(vpmm_ipc_close(reinterpret_cast<void*>(asked.words[0])));
        opening_in_actor.join();
        asked.words[1] = sent_meanwhile;
      },
      parcel);
  expect_ok(closed);
  EXPECT_EQ(closed.words[1], 1U) << "before the closing is over";
}

TEST(IpcLink, that_cannot_be_spoken_on_any_more_is_made_anew) {
  Process exporter;
  Process importer;
  const Shared first = exporter.allocate_shared(kMiB, kSeed);
  const Shared second = exporter.allocate_shared(kMiB, kSeed + 1);
  const Address open = importer.open(first.handle);
  Parcel parcel;
  parcel.handle = second.handle;
  const Parcel opened = importer.call(
      [](Parcel& asked) {
        void* ptr = nullptr;
        fail_kernel_call(KernelCall::connect, 0, 0);
        fail_kernel_call(KernelCall::send, EPIPE);
        asked.take(vpmm_ipc_open(&asked.handle, -1, &ptr));
        asked.words[0] = reinterpret_cast<Address>(ptr);
        asked.words[1] = kernel_calls(KernelCall::connect);
      },
      parcel);
  expect_ok(opened);
  EXPECT_EQ(opened.words[1], 1U);
  importer.expect(opened.words[0], kMiB, kSeed + 1);
  importer.close(opened.words[0]);
  importer.close(open);
  for (const Shared& each : {first, second}) {
    exporter.free(each.address);
    exporter.end(each.handle);
  }
  expect_leases_to_end(exporter);
}

constexpr std::uint64_t kAlways = 1'000'000'000;

// Then the rest is said when there is room, and a later lack of it is waited for again.
TEST(IpcLink, waits_for_room_for_one_closing_and_not_for_each) {
  Process exporter;
  Process importer;
  Parcel parcel;
  std::vector<Shared> shared;
  for (std::size_t i = 0; i < 4; ++i) {
    shared.push_back(exporter.allocate_shared(kMiB, kSeed));
    parcel.words[i] = importer.open(shared.back().handle);
  }
  const Parcel closed = importer.call(
      [](Parcel& asked) {
        const auto calls_to_close = [&](std::size_t which, std::uint64_t failing) {
          fail_kernel_call(KernelCall::send, EAGAIN, failing);
          asked.take(vpmm_ipc_close(reinterpret_cast<void*>(asked.words[which])));
          asked.words[which] = kernel_calls(KernelCall::send);
        };
        calls_to_close(0, kAlways);
        calls_to_close(1, kAlways);
        calls_to_close(2, 0);
        calls_to_close(3, 3);
      },
      parcel);
  expect_ok(closed);
  EXPECT_GE(closed.words[0], 2U) << "for a second";
  // This decides: a closing that waited itself would try again and again, as the first one does.
  EXPECT_LE(closed.words[1], 2U) << "now, and when the closing is over";
  EXPECT_EQ(closed.words[2], 3U);
  EXPECT_GE(closed.words[3], 2U);  // four, unless a second passes between
  for (const Shared& each : shared) {
    exporter.free(each.address);
    exporter.end(each.handle);
  }
  expect_leases_to_end(exporter);
}

void let_one_message_pass() {
  before_kernel_call(KernelCall::send, [] { fail_kernel_call(KernelCall::send, EAGAIN, kAlways); });
}

// As of an exporter that reads one message now and then: it is no longer taken for stuck.
TEST(IpcLink, is_not_waited_for_by_a_call_about_memory_of_another) {
  Process exporter;
  Process other;
  Process importer;
  Parcel parcel;
  for (std::size_t i = 0; i < 2; ++i)
    parcel.words[i] = importer.open(exporter.allocate_shared(kMiB, kSeed).handle);
  parcel.handle = other.allocate_shared(kMiB, kSeed).handle;
  importer.open(parcel.handle);
  const Parcel opened = importer.call(
      [](Parcel& asked) {
        fail_kernel_call(KernelCall::send, EAGAIN, kAlways);
        for (std::size_t i = 0; i < 2; ++i)
          asked.take(vpmm_ipc_close(reinterpret_cast<void*>(asked.words[i])));
        before_kernel_call(KernelCall::send, let_one_message_pass);
        void* ptr = nullptr;
        asked.take(vpmm_ipc_open(&asked.handle, -1, &ptr));
        asked.words[0] = kernel_calls(KernelCall::send);
        fail_kernel_call(KernelCall::send, 0, 0);
      },
      parcel);
  expect_ok(opened);
  EXPECT_EQ(opened.words[0], 0U) << "after the one that failed";
}

std::atomic<bool> is_late_in_actor{true};

TEST(IpcLink, is_not_waited_for_by_a_call_that_closes_its_late_memory_on_the_way) {
  Process exporter;
  Process other;
  Process importer;
  Parcel parcel;
  parcel.words[0] = importer.open(exporter.allocate_shared(kMiB, kSeed).handle);
  parcel.handle = other.allocate_shared(kMiB, kSeed).handle;
  importer.open(parcel.handle);
  const Parcel opened = importer.call(
      [](Parcel& asked) {
        const auto wait = [](driver::Driver&, driver::DeviceOrdinal) -> Result<void> {
          if (is_late_in_actor) return Error{ErrorCode::capture_active, "later"};
          return {};
        };
        ipc::Importer::of_process().close_some_time(DevicePtr{asked.words[0]}, wait);
        is_late_in_actor = false;
        fail_kernel_call(KernelCall::send, EAGAIN, kAlways);
        void* ptr = nullptr;
        asked.take(vpmm_ipc_open(&asked.handle, -1, &ptr));
        asked.words[0] = kernel_calls(KernelCall::send);
        fail_kernel_call(KernelCall::send, 0, 0);
      },
      parcel);
  expect_ok(opened);
  EXPECT_EQ(opened.words[0], 2U) << "at the closing, and after it";
}

TEST(IpcHangingExporter, that_sends_a_descriptor_whose_closing_lasts_holds_up_that_opening_alone) {
  HandExporter hanging;
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kMiB, kSeed);
  begin_to_open(importer, hanging.listen(4));
  EXPECT_EQ(hanging.hear().kind, MessageKind::open);
  hanging.grant(1);
  const auto descriptors = [&] {
    return importer.call([](Parcel& parcel) { parcel.words[0] = own_descriptors().all; }).words[0];
  };
  const std::uint64_t before = descriptors();
  importer.signal(SIGSTOP);  // so that it is the last that has the descriptor
  hanging.send_lingering(1);
  importer.signal(SIGCONT);
  // A child forked before the closing begins would be the last.
  while (!hanging.is_read() || descriptors() > before) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  for (int i = 0; i < 3; ++i) {
    const Parcel forked = importer.call([](Parcel& parcel) {
      const pid_t child = fork_for_a_while();
      if (child == 0) _exit(0);
      int status = 1;
      parcel.words[0] = waitpid(child, &status, 0) == child && status == 0 ? 1 : 0;
    });
    ASSERT_EQ(forked.words[0], 1U);
    ASSERT_FALSE(is_answered(importer));
  }
  importer.close(importer.open(shared.handle));
  EXPECT_FALSE(is_answered(importer));
  hanging.kill();
  EXPECT_NE(answer_of(importer).status, VPMM_OK);
}

}  // namespace
}  // namespace vpmm::ipc_test::hanging_test
