// SPDX-License-Identifier: Apache-2.0
// ipc tests: processes with few descriptors, on both sides.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "ipc/kernel.hpp"
#include "ipc/raw.hpp"

namespace vpmm::ipc_test::limit_test {
namespace {

constexpr std::uint64_t kSeed = 2;
constexpr std::uint64_t kMost = 256;
const std::vector<std::string> kPageChunks = {"VPMM_CHUNK_MAX=page"};

TEST(IpcLimit, a_thousand_chunks_open_with_256_descriptors_on_either_side) {
  Process exporter(kPageChunks);
  Process importer;
  exporter.limit_descriptors(kMost);
  importer.limit_descriptors(kMost);
  constexpr Bytes kSize = 1000 * 2 * kMiB;
  const Address address = exporter.allocate(kSize);
  for (const Bytes at : {Bytes{0}, kSize / 2, kSize - kMiB}) exporter.fill(address + at, kMiB, at);
  importer.belongings();
  const Belongings before = importer.belongings();
  const Address opened = importer.open(exporter.share(address, kSize));
  EXPECT_EQ(importer.belongings().descriptors, before.descriptors + 1) << "the connection";
  EXPECT_GE(importer.belongings().mappings, before.mappings + 1000);
  for (const Bytes at : {Bytes{0}, kSize / 2, kSize - kMiB}) importer.expect(opened + at, kMiB, at);
  importer.close(opened);
  EXPECT_EQ(importer.belongings(), before);
}

TEST(IpcLimit, three_hundred_handles_are_open_at_once_with_256_descriptors) {
  Process exporter;
  Process importer;
  exporter.limit_descriptors(kMost);
  importer.limit_descriptors(kMost);
  std::vector<Address> opened;
  for (std::uint64_t i = 0; i < 300; ++i) {
    opened.push_back(importer.open(exporter.allocate_shared(1000, i).handle));
    importer.expect(opened.back(), 1000, i);
  }
  for (const Address address : opened) importer.close(address);
}

std::vector<int>& used_up_by_actor() {
  static std::vector<int> files;
  return files;
}

void use_up_descriptors(Process& process, std::uint64_t left) {
  Parcel parcel;
  parcel.words[0] = left;
  expect_ok(process.call(
      [](Parcel& asked) {
        std::vector<int>& files = used_up_by_actor();
        for (int file = 0; (file = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;)
          files.push_back(file);
        for (std::uint64_t i = 0; i < asked.words[0]; ++i) {
          ::close(files.back());
          files.pop_back();
        }
      },
      parcel));
}

void free_descriptors(Process& process) {
  expect_ok(process.call([](Parcel&) {
    for (const int file : used_up_by_actor()) ::close(file);
    used_up_by_actor().clear();
  }));
}

// The exporter's thread has closed what it sent: it answers this importer again. Requires: they are
// connected.
void wait_until_all_is_sent(Process& exporter, Process& importer) {
  const Shared gone = exporter.allocate_shared(kMiB, kSeed);
  exporter.free(gone.address);
  exporter.end(gone.handle);
  expect_refused(importer.try_to_open(gone.handle), VPMM_ERROR_NOT_SHARED, "freed");
}

class IpcNoDescriptors : public testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "the undefined-behaviour sanitizer needs descriptors for its checks";
#endif
  }
};

TEST_F(IpcNoDescriptors, an_importer_without_descriptors_is_told_so_and_loses_none) {
  Process exporter(kPageChunks);
  Process importer;
  const Shared shared = exporter.allocate_shared(64 * kMiB, kSeed);
  importer.limit_descriptors(kMost);
  importer.belongings();
  const Belongings before = importer.belongings();
  for (const std::uint64_t left : {0U, 1U, 2U, 3U}) {
    SCOPED_TRACE(left);
    use_up_descriptors(importer, left);
    const Parcel refused = importer.try_to_open(shared.handle);
    EXPECT_NE(refused.status, VPMM_OK);
    EXPECT_EQ(refused.status, VPMM_ERROR_HOST_OUT_OF_MEMORY) << refused.said();
    EXPECT_TRUE(refused.said().find("ulimit") != std::string::npos ||
                refused.said().find("Too many open files") != std::string::npos)
        << refused.said();
    free_descriptors(importer);
    EXPECT_EQ(importer.belongings(), before);
  }
  const Address opened = importer.open(shared.handle);
  importer.expect(opened, 64 * kMiB, kSeed);
  importer.close(opened);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

TEST_F(IpcNoDescriptors, an_importer_that_ran_out_once_goes_on_with_the_connection_that_it_has) {
  Process exporter(kPageChunks);
  Process importer;
  const Shared kept = exporter.allocate_shared(kMiB, kSeed);
  const Shared shared = exporter.allocate_shared(64 * kMiB, kSeed);
  importer.limit_descriptors(kMost);
  const Address open = importer.open(kept.handle);
  use_up_descriptors(importer, 2);
  EXPECT_NE(importer.try_to_open(shared.handle).status, VPMM_OK);
  free_descriptors(importer);
  const Address opened = importer.open(shared.handle);
  importer.expect(opened, 64 * kMiB, kSeed);
  importer.close(opened);
  importer.close(open);
  for (const Shared& each : {kept, shared}) {
    exporter.free(each.address);
    exporter.end(each.handle);
  }
  expect_leases_to_end(exporter);
}

TEST_F(IpcNoDescriptors, an_exporter_without_descriptors_says_so_and_recovers) {
  Process exporter({"VPMM_CHUNK_MAX=page", "VPMM_IPC_TIMEOUT=500"});
  Process connected({"VPMM_IPC_TIMEOUT=500"});
  Process stranger({"VPMM_IPC_TIMEOUT=500"});
  const Shared shared = exporter.allocate_shared(64 * kMiB, kSeed);
  const Shared kept = exporter.allocate_shared(kMiB, kSeed);
  const Address open = connected.open(kept.handle);
  exporter.limit_descriptors(kMost);
  const Belongings before = connected.belongings();
  wait_until_all_is_sent(exporter, connected);
  use_up_descriptors(exporter, 0);
  const Parcel refused = connected.try_to_open(shared.handle);
  EXPECT_EQ(refused.status, VPMM_ERROR_NOT_SHARED) << refused.said();
  EXPECT_EQ(connected.belongings(), before);
  expect_refused(stranger.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED, "does not answer");
  EXPECT_LT(exporter.share_of_a_core(), 0.125) << "while one waits to be let in";
  free_descriptors(exporter);
  for (Process* const importer : {&connected, &stranger}) {
    const Address opened = importer->open(shared.handle);
    importer->expect(opened, 64 * kMiB, kSeed);
    importer->close(opened);
  }
  connected.close(open);
  for (const Shared& each : {kept, shared}) {
    exporter.free(each.address);
    exporter.end(each.handle);
  }
  expect_leases_to_end(exporter);
}

// It could not be told from one that has ended.
TEST_F(IpcNoDescriptors,
       an_exporter_that_cannot_watch_an_importer_turns_it_away_and_keeps_the_leases_of_others) {
  Process exporter({"VPMM_CHUNK_MAX=page", "VPMM_IPC_GRACE=1"});
  Process connected;
  Process stranger;
  const Shared shared = exporter.allocate_shared(4 * kMiB, kSeed);
  const Address open = connected.open(shared.handle);
  stranger.belongings();
  const Belongings before = stranger.belongings();
  exporter.limit_descriptors(kMost);
  wait_until_all_is_sent(exporter, connected);
  use_up_descriptors(exporter, 1);  // for the connection
  for (int i = 0; i < 5; ++i)
    expect_refused(stranger.try_to_open(shared.handle), VPMM_ERROR_NOT_SHARED,
                   "as many descriptors open as it may");
  EXPECT_EQ(stranger.belongings(), before);
  free_descriptors(exporter);
  exporter.free(shared.address);
  const Address opened = stranger.open(shared.handle);
  exporter.end(shared.handle);
  stranger.expect(opened, 4 * kMiB, kSeed);
  connected.close(open);
  for (int i = 0; i < 5; ++i) Process().open(exporter.allocate_shared(kMiB, kSeed).handle);
  EXPECT_GE(exporter.leased(), 4 * kMiB);
  stranger.close(opened);
  expect_leases_to_end(exporter);
}

TEST_F(IpcNoDescriptors, an_exporter_that_was_short_of_one_looks_again_without_an_event) {
  Process exporter;
  Process importer;
  const Shared shared = exporter.allocate_shared(kMiB, kSeed);
  expect_ok(exporter.call([](Parcel&) { fail_kernel_call(KernelCall::accept, EMFILE); }));
  importer.expect(importer.open(shared.handle), kMiB, kSeed);
  const Parcel asked =
      exporter.call([](Parcel& parcel) { parcel.words[0] = kernel_calls(KernelCall::accept); });
  EXPECT_GE(asked.words[0], 2U) << "the first failed";
  EXPECT_LE(asked.words[0], 20U) << "after a pause";
}

TEST_F(IpcNoDescriptors, a_first_export_without_descriptors_fails_and_the_next_one_works) {
  Process exporter;
  Process importer;
  const Address address = exporter.allocate(kMiB);
  exporter.fill(address, kMiB, kSeed);
  exporter.limit_descriptors(kMost);
  use_up_descriptors(exporter, 0);
  EXPECT_NE(exporter.try_to_share(address, kMiB).status, VPMM_OK);
  free_descriptors(exporter);
  importer.expect(importer.open(exporter.share(address, kMiB)), kMiB, kSeed);
}

TEST_F(IpcNoDescriptors,
       an_export_without_descriptors_for_a_removed_socket_fails_and_the_next_one_works) {
  Process exporter;
  Process importer;
  const Shared first = exporter.allocate_shared(kMiB, kSeed);
  unlink(ipc::socket_path(socket_folder_of_tests(), parts_of(first.handle).process).c_str());
  exporter.limit_descriptors(kMost);
  use_up_descriptors(exporter, 0);
  EXPECT_NE(exporter.try_to_share(first.address, kMiB).status, VPMM_OK);
  free_descriptors(exporter);
  importer.expect(importer.open(exporter.share(first.address, kMiB)), kMiB, kSeed);
}

}  // namespace
}  // namespace vpmm::ipc_test::limit_test
