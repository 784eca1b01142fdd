// SPDX-License-Identifier: Apache-2.0
// ipc tests: stream captures of the importer and what it opens and closes meanwhile do not disturb
// each other.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "ipc/process.hpp"
#include "vpmm/vpmm.hpp"

namespace vpmm::ipc_test::capture_test {
namespace {

using driver::CaptureMode;
using driver::CuResult;
using driver::StreamFlags;

constexpr std::uint64_t kSeed = 11;
constexpr Bytes kSize = 3 * kMiB;

void must(CuResult result) {
  if (result != CuResult::success) std::abort();
}

driver::StreamHandle& stream_of_actor() {
  static driver::StreamHandle stream{};
  return stream;
}

void begin_capture(Process& process, StreamFlags flags) {
  Parcel parcel;
  parcel.words[0] = flags == StreamFlags::non_blocking ? 1 : 0;
  process.call(
      [](Parcel& asked) {
        driver::Driver& driver = driver_of_actor();
        must(driver.stream_create(
            asked.words[0] != 0 ? StreamFlags::non_blocking : StreamFlags::blocking,
            stream_of_actor()));
        must(driver.stream_begin_capture(stream_of_actor(), CaptureMode::global));
      },
      parcel);
}

void expect_capture_to_end_well(Process& process) {
  const Parcel answer = process.call([](Parcel& parcel) {
    driver::Driver& driver = driver_of_actor();
    driver::GraphHandle graph{};
    const CuResult ended = driver.stream_end_capture(stream_of_actor(), graph);
    if (ended == CuResult::success) {
      must(driver.graph_destroy(graph));
    } else {
      parcel.status = VPMM_ERROR_DRIVER_FAILED;
      parcel.say(driver::to_string(ended));
    }
    must(driver.stream_destroy(stream_of_actor()));
  });
  expect_ok(answer);
}

void announce(Process& process, bool is_begin) {
  Parcel parcel;
  parcel.words[0] = is_begin ? 1 : 0;
  expect_ok(process.call(
      [](Parcel& asked) {
        vpmm_pool* const pool = pool_of_actor();
        asked.take(asked.words[0] != 0 ? vpmm_capture_begin(pool) : vpmm_capture_end(pool));
      },
      parcel));
}

class IpcCapture : public testing::Test {
 protected:
  void SetUp() override {
    importer_.close(importer_.open(shared_.handle));
    importer_.belongings();
    before_ = importer_.belongings();
  }
  void open_it() { opened_ = importer_.open(shared_.handle); }
  void expect_open() {
    importer_.expect(opened_, kSize, kSeed);
    EXPECT_GT(importer_.belongings().mappings, before_.mappings) << "as many as it has chunks";
  }
  // Everybody else has let go of it.
  void expect_closed_in_a_later_call() {
    exporter_.free(shared_.address);
    exporter_.end(shared_.handle);
    EXPECT_GE(exporter_.leased(), kSize);
    const Address other = importer_.open(other_.handle);
    expect_leases_to_end(exporter_);
    importer_.close(other);
    if (opened_ != 0)
      expect_refused(importer_.try_to_close(opened_), VPMM_ERROR_INVALID_POINTER, "not open");
  }

  Process exporter_;
  Process importer_;
  const Shared shared_ = exporter_.allocate_shared(kSize, kSeed);
  const Shared other_ = exporter_.allocate_shared(kMiB, kSeed);
  Address opened_ = 0;
  Belongings before_;
};

TEST_F(IpcCapture, of_a_blocking_stream_is_not_broken_by_a_close_which_can_be_repeated) {
  open_it();
  begin_capture(importer_, StreamFlags::blocking);
  expect_refused(importer_.try_to_close(opened_), VPMM_ERROR_CAPTURE_ACTIVE, "captured");
  expect_refused(importer_.try_to_close(opened_), VPMM_ERROR_CAPTURE_ACTIVE, "captured");
  expect_capture_to_end_well(importer_);
  expect_open();
  importer_.close(opened_);
  EXPECT_EQ(importer_.belongings(), before_);
}

TEST_F(IpcCapture, of_a_blocking_stream_is_seen_beside_a_pool_as_well) {
  importer_.allocate(kMiB);
  open_it();
  begin_capture(importer_, StreamFlags::blocking);
  expect_refused(importer_.try_to_close(opened_), VPMM_ERROR_CAPTURE_ACTIVE, "captured");
  expect_capture_to_end_well(importer_);
  importer_.expect(opened_, kSize, kSeed);
  importer_.close(opened_);
}

TEST_F(IpcCapture, that_was_announced_is_not_broken_by_a_close) {
  open_it();
  importer_.allocate(kMiB);  // the announcement is the pool's
  announce(importer_, true);
  begin_capture(importer_, StreamFlags::non_blocking);
  expect_refused(importer_.try_to_close(opened_), VPMM_ERROR_CAPTURE_ACTIVE, "captured");
  expect_capture_to_end_well(importer_);
  announce(importer_, false);
  importer_.expect(opened_, kSize, kSeed);
  importer_.close(opened_);
}

TEST_F(IpcCapture, that_was_announced_to_a_pool_of_its_own_is_not_broken_by_a_close) {
  static vpmm_pool* of_its_own = nullptr;
  open_it();
  importer_.allocate(kMiB);
  expect_ok(importer_.call([](Parcel& parcel) {
    parcel.take(vpmm_pool_create(0, nullptr, &of_its_own));
    if (parcel.status == VPMM_OK) parcel.take(vpmm_capture_begin(of_its_own));
  }));
  begin_capture(importer_, StreamFlags::non_blocking);
  expect_refused(importer_.try_to_close(opened_), VPMM_ERROR_CAPTURE_ACTIVE, "captured");
  expect_capture_to_end_well(importer_);
  expect_ok(importer_.call([](Parcel& parcel) { parcel.take(vpmm_capture_end(of_its_own)); }));
  importer_.close(opened_);
}

TEST_F(IpcCapture, lets_memory_be_opened_that_is_open_already_and_closed_once_less) {
  open_it();
  begin_capture(importer_, StreamFlags::blocking);
  EXPECT_EQ(importer_.open(shared_.handle), opened_);
  importer_.close(opened_);
  expect_capture_to_end_well(importer_);
  expect_open();
  importer_.close(opened_);
  EXPECT_EQ(importer_.belongings(), before_);
}

TEST_F(IpcCapture, that_is_over_lets_a_deferred_close_be_done_at_once) {
  open_it();
  begin_capture(importer_, StreamFlags::blocking);
  expect_capture_to_end_well(importer_);
  Parcel parcel;
  parcel.words[0] = opened_;
  importer_.call(
      [](Parcel& asked) { vpmm_ipc_close_deferred(reinterpret_cast<void*>(asked.words[0])); },
      parcel);
  EXPECT_EQ(importer_.belongings(), before_) << "its connection is closed, too";
}

TEST_F(IpcCapture, puts_a_deferred_close_off_until_the_next_call) {
  open_it();
  begin_capture(importer_, StreamFlags::blocking);
  Parcel parcel;
  parcel.words[0] = opened_;
  importer_.call(
      [](Parcel& asked) { vpmm_ipc_close_deferred(reinterpret_cast<void*>(asked.words[0])); },
      parcel);
  expect_capture_to_end_well(importer_);
  expect_open();
  expect_closed_in_a_later_call();
  EXPECT_EQ(importer_.belongings(), before_);
}

TEST_F(IpcCapture, puts_a_deferred_close_off_until_other_memory_is_closed) {
  open_it();
  const Address other = importer_.open(other_.handle);
  begin_capture(importer_, StreamFlags::blocking);
  Parcel parcel;
  parcel.words[0] = opened_;
  importer_.call(
      [](Parcel& asked) { vpmm_ipc_close_deferred(reinterpret_cast<void*>(asked.words[0])); },
      parcel);
  expect_capture_to_end_well(importer_);
  importer_.close(other);
  EXPECT_EQ(importer_.belongings(), before_);
}

TEST_F(IpcCapture, puts_off_what_a_destructor_closes) {
  Parcel parcel;
  parcel.handle = shared_.handle;
  static std::optional<vpmm::ipc_handle> of_actor;
  opened_ = importer_
                .call(
                    [](Parcel& asked) {
                      of_actor.emplace(asked.handle);
                      asked.words[0] = reinterpret_cast<Address>(of_actor->open());
                    },
                    parcel)
                .words[0];
  begin_capture(importer_, StreamFlags::blocking);
  importer_.call([](Parcel&) { of_actor.reset(); });
  expect_capture_to_end_well(importer_);
  expect_open();
  expect_closed_in_a_later_call();
  EXPECT_EQ(importer_.belongings(), before_);
}

TEST_F(IpcCapture, of_another_stream_lets_a_copy_be_made_whose_source_is_closed_later) {
  begin_capture(importer_, StreamFlags::blocking);
  const Address copy = importer_.open_staged(shared_.handle);
  expect_capture_to_end_well(importer_);
  importer_.expect(copy, kSize, kSeed);
  expect_closed_in_a_later_call();
  importer_.expect(copy, kSize, kSeed);
  importer_.free(copy);
}

TEST_F(IpcCapture, of_an_announced_stream_lets_a_copy_be_made_whose_source_is_closed_later) {
  importer_.allocate(kMiB);
  announce(importer_, true);
  begin_capture(importer_, StreamFlags::non_blocking);
  const Address copy = importer_.open_staged(shared_.handle);
  expect_capture_to_end_well(importer_);
  announce(importer_, false);
  importer_.expect(copy, kSize, kSeed);
  expect_closed_in_a_later_call();
  importer_.free(copy);
}

}  // namespace
}  // namespace vpmm::ipc_test::capture_test
