// SPDX-License-Identifier: Apache-2.0
// ipc tests: a process that is stopped, and may go on later, is waited for so long and no longer.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "ipc/raw.hpp"

namespace vpmm::ipc_test::timeout_test {
namespace {

using ipc::MessageKind;

constexpr std::uint64_t kSeed = 4;
constexpr Bytes kSize = 64 * kMiB;
const std::vector<std::string> kShort = {"VPMM_IPC_TIMEOUT=200", "VPMM_CHUNK_MAX=page"};

TEST(IpcTimeout, a_stopped_exporter_fails_the_opening_and_holds_no_lease_when_it_goes_on) {
  Process exporter({"VPMM_CHUNK_MAX=page"});
  Process importer(kShort);
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const Shared kept = exporter.allocate_shared(kMiB, kSeed);
  for (const bool is_known : {false, true}) {
    SCOPED_TRACE(is_known ? "connected before" : "not connected before");
    const Address open = is_known ? importer.open(kept.handle) : 0;
    exporter.signal(SIGSTOP);
    expect_refused(importer.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "does not answer");
    expect_refused(importer.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "does not answer");
    exporter.signal(SIGCONT);
    const Address opened = importer.open(shared.handle);
    importer.expect(opened, kSize, kSeed);
    importer.close(opened);
    if (is_known) importer.close(open);
  }
  exporter.free(shared.address);
  exporter.end(shared.handle);
  exporter.free(kept.address);
  exporter.end(kept.handle);
  expect_leases_to_end(exporter);  // while the importer lives
}

TEST(IpcTimeout, an_exporter_that_stops_between_two_batches_fails_the_opening) {
  Process importer(kShort);
  importer.belongings();
  const Belongings before = importer.belongings();
  HandExporter exporter;
  importer.begin_to_open(exporter.listen(8));
  EXPECT_EQ(exporter.hear().kind, MessageKind::open);
  exporter.grant(1);
  exporter.send_batch(1, 4);
  EXPECT_EQ(exporter.hear().kind, MessageKind::received);
  expect_refused(importer.finish(), VPMM_ERROR_NOT_SHARED, "does not answer");
  EXPECT_EQ(exporter.hear().kind, MessageKind::close) << "it lets the exporter know";
  EXPECT_EQ(importer.belongings(), before);
}

TEST(IpcTimeout, an_exporter_that_is_late_keeps_its_connection) {
  Process importer(kShort);
  HandExporter exporter;
  const vpmm_ipc_handle handle = exporter.listen(4);
  importer.begin_to_open(handle);
  EXPECT_EQ(exporter.hear().kind, MessageKind::open);
  exporter.grant(1);
  exporter.send_batch(1, 4);
  const Parcel opened = importer.finish();
  expect_ok(opened);
  EXPECT_EQ(exporter.hear().kind, MessageKind::received);
  ipc::Token other = parts_of(handle);
  ++other.generation;
  for (int i = 0; i < 2; ++i) {
    importer.begin_to_open(handle_of(other));
    EXPECT_EQ(exporter.hear().kind, MessageKind::open);
    expect_refused(importer.finish(), VPMM_ERROR_NOT_SHARED, "does not answer");
    EXPECT_EQ(exporter.hear().kind, MessageKind::close);
  }
  importer.close(opened.words[0]);
}

TEST(IpcTimeout, an_importer_that_stops_between_two_batches_stops_nobody_else) {
  Process exporter({"VPMM_CHUNK_MAX=page"});
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  HandImporter stopped;
  stopped.connect(shared.handle);
  stopped.say_open(shared.handle);
  EXPECT_EQ(stopped.hear().kind, MessageKind::granted);
  stopped.signal(SIGSTOP);
  Process importer;
  const Address opened = importer.open(shared.handle);
  importer.expect(opened, kSize, kSeed);
  importer.close(opened);
  stopped.signal(SIGCONT);
  for (std::uint32_t taken = 0; taken < 32; taken += ipc::kBatch) {
    EXPECT_EQ(stopped.hear().kind, MessageKind::batch);
    stopped.say_received(taken + ipc::kBatch);
  }
}

// As long as it takes something now and then.
TEST(IpcTimeout, an_importer_that_is_slow_gets_all_chunks) {
  Process exporter({"VPMM_IPC_TIMEOUT=1500", "VPMM_CHUNK_MAX=page"});
  const Shared shared = exporter.allocate_shared(100 * kMiB, kSeed);  // 50 chunks
  HandImporter slow;
  slow.connect(shared.handle);
  slow.say_open(shared.handle);
  EXPECT_EQ(slow.hear().kind, MessageKind::granted);
  for (std::uint32_t taken = 0; taken < 12; taken += ipc::kBatch) {
    EXPECT_EQ(slow.hear().kind, MessageKind::batch);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    slow.say_received(taken + ipc::kBatch);
  }
  for (std::uint32_t taken = 12; taken < 48; taken += ipc::kBatch) {
    EXPECT_EQ(slow.hear().kind, MessageKind::batch);
    slow.say_received(taken + ipc::kBatch);
  }
  EXPECT_EQ(slow.hear().count, 2U);
}

TEST(IpcTimeout, an_importer_with_open_memory_takes_nothing_of_the_processor) {
  Process exporter({"VPMM_IPC_TIMEOUT=100"});
  Process importer;
  const Shared shared = exporter.allocate_shared(kMiB, kSeed);
  const Address opened = importer.open(shared.handle);
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  EXPECT_LT(exporter.share_of_a_core(), 0.125);
  importer.close(opened);
}

// It may go on, close what it has, and open again.
TEST(IpcTimeout, an_importer_that_goes_on_too_late_ends_its_leases_while_it_lives) {
  Process exporter(kShort);
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const Shared before = exporter.allocate_shared(kMiB, kSeed);
  HandImporter late;
  late.connect(shared.handle);
  late.say_open(before.handle, 1);
  EXPECT_EQ(late.hear().kind, MessageKind::granted);
  EXPECT_EQ(late.hear().kind, MessageKind::batch);
  late.say_received(1, 1);
  late.say_open(shared.handle, 2);
  EXPECT_EQ(late.hear().kind, MessageKind::granted);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(late.hear().kind, MessageKind::batch);
  EXPECT_EQ(late.hear().kind, MessageKind::refused);  // after the timeout
  late.say_close(2);
  late.say_close(1);
  for (const Shared& each : {shared, before}) {
    exporter.free(each.address);
    exporter.end(each.handle);
  }
  expect_leases_to_end(exporter);
}

TEST(IpcTimeout, settings_out_of_range_are_named) {
  Process exporter({"VPMM_IPC_TIMEOUT=0"});
  expect_refused(exporter.try_to_share(exporter.allocate(kMiB), kMiB), VPMM_ERROR_BAD_CONFIGURATION,
                 "VPMM_IPC_TIMEOUT");
  Process patient({"VPMM_IPC_GRACE=forever"});
  expect_refused(patient.try_to_share(patient.allocate(kMiB), kMiB), VPMM_ERROR_BAD_CONFIGURATION,
                 "VPMM_IPC_GRACE");
}

}  // namespace
}  // namespace vpmm::ipc_test::timeout_test
