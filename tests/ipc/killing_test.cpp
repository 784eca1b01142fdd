// SPDX-License-Identifier: Apache-2.0
// ipc tests: a process is killed at each step of an opening; the other side notices, and nothing is
// lost.
#include <gtest/gtest.h>

#include "ipc/raw.hpp"

namespace vpmm::ipc_test::killing_test {
namespace {

using ipc::MessageKind;

constexpr std::uint64_t kSeed = 3;
constexpr Bytes kSize = 64 * kMiB;  // 32 chunks, in 8 batches
const std::vector<std::string> kPageChunks = {"VPMM_CHUNK_MAX=page"};

// --- the importer

class IpcKilledImporter : public testing::Test {
 protected:
  // Its memory is freed, and its export has ended: only leases of importers are left.
  void let_go() {
    exporter_.free(shared_.address);
    exporter_.end(shared_.handle);
  }
  void expect_still_leased() {
    exporter_.trim();
    EXPECT_EQ(exporter_.leased(), kSize);
  }
  void expect_all_over() {
    expect_leases_to_end(exporter_);
    exporter_.trim();
    EXPECT_EQ(exporter_.statistics().mapped_bytes, 0U);
    Process other;  // and it serves others
    const Shared next = exporter_.allocate_shared(kMiB, kSeed);
    other.expect(other.open(next.handle), kMiB, kSeed);
  }

  Process exporter_{kPageChunks};
  const Shared shared_ = exporter_.allocate_shared(kSize, kSeed);
  HandImporter importer_;
};

TEST_F(IpcKilledImporter, before_it_said_anything_held_nothing) {
  importer_.connect(shared_.handle);
  importer_.kill();
  let_go();
  EXPECT_EQ(exporter_.leased(), 0U);
  expect_all_over();
}

TEST_F(IpcKilledImporter, after_it_asked_holds_nothing) {
  exporter_.signal(SIGSTOP);
  importer_.connect(shared_.handle);
  importer_.say_open(shared_.handle);
  importer_.kill();
  exporter_.signal(SIGCONT);
  let_go();
  expect_all_over();
}

TEST_F(IpcKilledImporter, before_it_took_a_chunk_holds_nothing) {
  importer_.connect(shared_.handle);
  importer_.say_open(shared_.handle);
  EXPECT_EQ(importer_.hear().kind, MessageKind::granted);
  let_go();
  expect_still_leased();
  importer_.kill();
  expect_all_over();
}

TEST_F(IpcKilledImporter, between_two_batches_holds_nothing) {
  importer_.connect(shared_.handle);
  importer_.say_open(shared_.handle);
  EXPECT_EQ(importer_.hear().kind, MessageKind::granted);
  for (std::uint32_t batch = 1; batch <= 3; ++batch) {
    const ipc::Message heard = importer_.hear();
    EXPECT_EQ(heard.kind, MessageKind::batch);
    EXPECT_EQ(heard.count, ipc::kBatch);
    importer_.say_received(batch * ipc::kBatch);
  }
  let_go();
  expect_still_leased();
  importer_.kill();
  expect_all_over();
}

TEST_F(IpcKilledImporter, while_it_had_the_memory_mapped_holds_nothing) {
  importer_.expect(importer_.open(shared_.handle), kSize, kSeed);
  let_go();
  expect_still_leased();
  importer_.kill();
  expect_all_over();
}

// It waits for work of its own that never ends: the close was not said yet.
TEST_F(IpcKilledImporter, while_it_closed_holds_nothing) {
  importer_.connect(shared_.handle);
  importer_.say_open(shared_.handle);
  EXPECT_EQ(importer_.hear().kind, MessageKind::granted);
  for (std::uint32_t taken = 0; taken < 32; taken += ipc::kBatch) {
    EXPECT_EQ(importer_.hear().kind, MessageKind::batch);
    importer_.say_received(taken + ipc::kBatch);
  }
  let_go();
  exporter_.signal(SIGSTOP);
  importer_.say_close();  // which nobody hears yet
  importer_.kill();
  exporter_.signal(SIGCONT);
  expect_all_over();
}

TEST_F(IpcKilledImporter, one_of_two_leaves_the_lease_to_the_other) {
  Process other;
  importer_.open(shared_.handle);
  const Address opened = other.open(shared_.handle);
  let_go();
  importer_.kill();
  Process().open(exporter_.allocate_shared(kMiB, kSeed).handle);  // the thread has had its turn
  expect_still_leased();
  other.expect(opened, kSize, kSeed);
  other.close(opened);
  expect_leases_to_end(exporter_);
}

// Its kernels may still run.
TEST_F(IpcKilledImporter, that_only_hung_up_keeps_its_lease_as_long_as_it_lives) {
  importer_.connect(shared_.handle);
  importer_.say_open(shared_.handle);
  EXPECT_EQ(importer_.hear().kind, MessageKind::granted);
  importer_.hang_up();
  let_go();
  Process other;
  for (int i = 0; i < 5; ++i)
    other.close(other.open(exporter_.allocate_shared(kMiB, kSeed).handle));
  expect_still_leased();
  importer_.kill();
  expect_leases_to_end(exporter_);
}

// --- the exporter

TEST(IpcKilledExporter, before_an_opening_is_reported_as_gone) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  exporter.kill();
  importer.belongings();
  const Belongings before = importer.belongings();
  expect_refused(importer.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "is gone");
  EXPECT_EQ(importer.belongings(), before);
}

TEST(IpcKilledExporter, while_its_memory_is_mapped_leaves_it_there) {
  Process exporter(kPageChunks);
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const Shared never_opened = exporter.allocate_shared(kMiB, kSeed);
  importer.belongings();
  const Belongings before = importer.belongings();
  const Address opened = importer.open(shared.handle);
  exporter.kill();
  importer.expect(opened, kSize, kSeed);
  importer.fill(opened, kSize, kSeed + 1);
  importer.expect(opened, kSize, kSeed + 1);
  expect_refused(importer.try_to_open(never_opened.handle), VPMM_ERROR_NOT_SHARED, "is gone");
  expect_refused(importer.try_to_open(never_opened.handle), VPMM_ERROR_NOT_SHARED, "is gone");
  EXPECT_EQ(importer.open(shared.handle), opened) << "what is open needs nobody";
  importer.close(opened);
  importer.close(opened);
  EXPECT_EQ(importer.belongings(), before);
}

TEST(IpcKilledExporter, that_only_exited_is_the_same) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kSize, kSeed);
  const Address opened = importer.open(shared.handle);
  exporter.exit();
  importer.expect(opened, kSize, kSeed);
  importer.close(opened);
  expect_refused(importer.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "is gone");
}

// The importer is in the middle of an opening; `die` says where.
void expect_opening_to_fail(void (*until_it_dies)(HandExporter&)) {
  Process importer;
  importer.belongings();
  const Belongings before = importer.belongings();
  {
    HandExporter exporter;
    importer.begin_to_open(exporter.listen(20));
    EXPECT_EQ(exporter.hear().kind, MessageKind::open);
    until_it_dies(exporter);
    exporter.kill();
    expect_refused(importer.finish(), VPMM_ERROR_NOT_SHARED, "gone");
  }
  EXPECT_EQ(importer.belongings(), before);
  Process other;
  const Shared shared = other.allocate_shared(kMiB, kSeed);
  importer.expect(importer.open(shared.handle), kMiB, kSeed);
}

TEST(IpcKilledExporter, after_it_was_asked_fails_the_opening) {
  expect_opening_to_fail([](HandExporter&) {});
}

TEST(IpcKilledExporter, after_it_granted_fails_the_opening) {
  expect_opening_to_fail([](HandExporter& exporter) { exporter.grant(1); });
}

TEST(IpcKilledExporter, between_two_batches_fails_the_opening) {
  expect_opening_to_fail([](HandExporter& exporter) {
    exporter.grant(1);
    for (std::uint32_t batch = 1; batch <= 3; ++batch) {
      exporter.send_batch(1, 4);
      EXPECT_EQ(exporter.hear().count, batch * 4);
    }
  });
}

TEST(IpcKilledExporter, while_the_importer_closes_lets_it_close) {
  Process importer;
  importer.belongings();
  const Belongings before = importer.belongings();
  HandExporter exporter;
  importer.begin_to_open(exporter.listen(4));
  EXPECT_EQ(exporter.hear().kind, MessageKind::open);
  exporter.grant(1);
  exporter.send_batch(1, 4);
  EXPECT_EQ(exporter.hear().kind, MessageKind::received);
  const Parcel opened = importer.finish();
  expect_ok(opened);
  exporter.signal(SIGSTOP);
  importer.close(opened.words[0]);  // said to nobody
  exporter.kill();
  EXPECT_EQ(importer.belongings(), before);
}

}  // namespace
}  // namespace vpmm::ipc_test::killing_test
