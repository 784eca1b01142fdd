// ipc tests: an exporter that hangs holds up whoever asks it something, and nobody else.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

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

// More than its socket holds.
TEST(IpcHangingExporter, hears_of_all_that_was_closed_meanwhile_when_it_goes_on) {
  constexpr std::uint64_t kMany = 300;
  Process exporter;
  Process other;
  Process importer;
  importer.close(importer.open(exporter.allocate_shared(kMiB, kSeed).handle));
  importer.belongings();
  const Belongings before = importer.belongings();
  std::vector<Address> opened;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    const Shared shared = exporter.allocate_shared(1000, kSeed);
    opened.push_back(importer.open(shared.handle));
    exporter.free(shared.address);
    exporter.end(shared.handle);
  }
  const Bytes leased = exporter.leased();
  exporter.signal(SIGSTOP);
  for (const Address address : opened) importer.close(address);
  const Belongings closed = importer.belongings();
  EXPECT_EQ(closed.mappings, before.mappings);
  EXPECT_EQ(closed.reservations, before.reservations);
  exporter.signal(SIGCONT);
  for (int i = 0; exporter.leased() == leased && i < 20'000;
       ++i) {  // then it reads, and there is room again
  }
  importer.close(importer.open(other.allocate_shared(kMiB, kSeed).handle));
  expect_leases_to_end(exporter);
  EXPECT_EQ(importer.belongings(), before);
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

TEST(IpcHangingExporter, holds_up_nobody_who_uses_memory_of_another) {
  HandExporter hanging;
  Process exporter({"VPMM_CHUNK_MAX=page"});
  Process importer;
  const Shared kept = exporter.allocate_shared(kMiB, kSeed);
  const Shared shared = exporter.allocate_shared(64 * kMiB, kSeed);
  const Address open = importer.open(kept.handle);
  Parcel asked;
  asked.handle = hanging.listen(4);
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
  EXPECT_EQ(hanging.hear().kind, MessageKind::open);  // and is not answered
  for (int i = 0; i < 3; ++i) {
    const Address opened = importer.open(shared.handle);
    importer.expect(opened, 64 * kMiB, kSeed);
    importer.close(opened);
  }
  importer.close(open);
  const auto is_answered = [&] {
    return importer
        .call([](Parcel& parcel) { parcel.words[0] = asking_of_actor().is_answered ? 1 : 0; })
        .words[0];
  };
  EXPECT_EQ(is_answered(), 0U);
  hanging.hang_up();
  const Parcel answer = importer.call([](Parcel& parcel) {
    asking_of_actor().thread.join();
    parcel = asking_of_actor().parcel;
  });
  expect_refused(answer, VPMM_ERROR_NOT_SHARED, "gone");
  for (const Shared& each : {kept, shared}) {
    exporter.free(each.address);
    exporter.end(each.handle);
  }
  expect_leases_to_end(exporter);
}

}  // namespace
}  // namespace vpmm::ipc_test::hanging_test
