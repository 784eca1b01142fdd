// SPDX-License-Identifier: Apache-2.0
// ipc tests: a thousand openings and closings leave both processes with what they had.
#include <gtest/gtest.h>

#include "ipc/process.hpp"

namespace vpmm::ipc_test::leak_test {
namespace {

// An exporter lets go of a connection when it hears of its end.
Belongings without_importers(Process& exporter) {
  constexpr std::uint64_t kOwnSockets = 2;  // to the test, and the one that listens
  Belongings now = exporter.belongings();
  for (int i = 0; i < 10'000 && (now.sockets != kOwnSockets || now.watches != 0); ++i)
    now = exporter.belongings();
  EXPECT_EQ(now.sockets, kOwnSockets);
  return now;
}

TEST(IpcLeaks, a_thousand_openings_and_closings_leave_nothing_on_either_side) {
  Process exporter({"VPMM_CHUNK_MAX=page"});
  Process importer;
  const Shared large = exporter.allocate_shared(12 * kMiB, 1);
  const Shared small = exporter.allocate_shared(1000, 2);
  // `words`: how often.
  const auto open_and_close = [&](const vpmm_ipc_handle& handle, std::uint64_t times) {
    Parcel parcel;
    parcel.handle = handle;
    parcel.words[0] = times;
    expect_ok(importer.call(
        [](Parcel& asked) {
          for (std::uint64_t i = 0; i < asked.words[0]; ++i) {
            void* ptr = nullptr;
            asked.take(vpmm_ipc_open(&asked.handle, -1, &ptr));
            if (asked.status == VPMM_OK) asked.take(vpmm_ipc_close(ptr));
            if (asked.status != VPMM_OK) return;
          }
        },
        parcel));
  };
  open_and_close(large.handle, 1);
  const Belongings exporter_before = without_importers(exporter);
  const Belongings importer_before = importer.belongings();
  const auto names_before = names_in(socket_folder_of_tests());
  const std::uint64_t chunks = exporter.statistics().chunks;
  open_and_close(large.handle, 500);
  open_and_close(small.handle, 500);
  EXPECT_EQ(without_importers(exporter), exporter_before);
  EXPECT_EQ(importer.belongings(), importer_before);
  EXPECT_EQ(names_in(socket_folder_of_tests()), names_before);
  EXPECT_EQ(exporter.statistics().chunks, chunks);
}

TEST(IpcLeaks, a_thousand_exports_are_ended_and_leave_nothing) {
  Process exporter;
  Process importer;
  const Shared first = exporter.allocate_shared(kMiB, 0);
  importer.close(importer.open(first.handle));
  const Belongings before = without_importers(exporter);
  expect_ok(exporter.call([](Parcel& parcel) {
    for (int i = 0; i < 1000 && parcel.status == VPMM_OK; ++i) {
      void* ptr = nullptr;
      parcel.take(vpmm_allocate_any_stream(pool_of_actor(), 1000, 0, &ptr));
      if (parcel.status == VPMM_OK) parcel.take(vpmm_ipc_export(ptr, 1000, &parcel.handle));
      if (parcel.status == VPMM_OK) parcel.take(vpmm_deallocate_any_stream(pool_of_actor(), ptr));
      if (parcel.status == VPMM_OK) parcel.take(vpmm_ipc_export_end(&parcel.handle));
    }
  }));
  EXPECT_EQ(exporter.leased(), 0U);
  const Belongings after = without_importers(exporter);
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
  EXPECT_EQ(exporter.statistics().live_allocations, 1U);
}

}  // namespace
}  // namespace vpmm::ipc_test::leak_test
