// SPDX-License-Identifier: Apache-2.0
// ipc tests: each allocation of host memory in an exchange fails in turn: no process ends, nothing
// is lost, and the next opening works.
#include "ipc/memory.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <set>

#include "driver/sim/sim_driver.hpp"
#include "ipc/exporter.hpp"
#include "ipc/importer.hpp"
#include "ipc/raw.hpp"
#include "settings/config.hpp"

namespace vpmm::ipc_test::memory_test {
namespace {

constexpr std::uint64_t kSeed = 13;
constexpr Bytes kSize = 12 * kMiB;  // 6 chunks, in 2 batches

SparedDriver& spared_of_actor() {
  static auto* const spared = new SparedDriver(driver_of_actor());
  return *spared;
}

context::Context& context_of_actor() {
  static context::Context* const made = [] {
    settings::Config config = settings::config_from_environment().value();
    config.page_chunks = true;
    auto created = context::Context::create(spared_of_actor(), 0, config);
    if (!created) std::abort();
    return std::move(created).value().release();
  }();
  return *made;
}

void note(Parcel& parcel, const Result<void>& outcome) {
  parcel.status = outcome ? VPMM_OK : static_cast<vpmm_status>(outcome.error().code);
  if (!outcome) parcel.say(outcome.error().message);
}

// Runs `work` while the n-th allocation fails (n = words[1]). words[2]: how many failed.
template <typename Work>
void with_failure(Parcel& parcel, Work&& work) {
  Result<void> outcome;
  bool is_out_of_memory = false;
  fail_allocation(parcel.words[1], Of::main_thread);
  try {
    outcome = work();
  } catch (const std::bad_alloc&) {
    is_out_of_memory = true;
  }
  parcel.words[2] = stop_failing();
  if (is_out_of_memory) outcome = Error{ErrorCode::host_out_of_memory, "out of memory"};
  note(parcel, outcome);
}

Parcel nth(std::uint64_t n, const Parcel& given) {
  Parcel parcel = given;
  parcel.words[1] = n;
  return parcel;
}

// --- the exporter's calls

void allocate_here(Parcel& parcel) {
  const DevicePtr memory = context_of_actor().allocate({kSize, 0, std::nullopt}).value();
  parcel.words[0] = to_integer(memory);
}

void share_here(Parcel& parcel) {
  ipc::TokenBytes token{};
  with_failure(parcel, [&]() -> Result<void> {
    VPMM_TRY_ASSIGN(
        const ipc::IpcHandle handle,
        ipc::Exporter::of_process().share(context_of_actor(), {DevicePtr{parcel.words[0]}, kSize}));
    token = handle.token;
    return {};
  });
  if (parcel.status == VPMM_OK) parcel.handle = handle_of(ipc::decode(token).value());
}

void end_here(Parcel& parcel) {
  with_failure(parcel, [&]() -> Result<void> {
    return ipc::Exporter::of_process().end(parts_of(parcel.handle));
  });
}

void free_here(Parcel& parcel) {
  note(parcel, context_of_actor().deallocate(DevicePtr{parcel.words[0]}, std::nullopt));
}

Bytes leased_in(Process& exporter) {
  return exporter
      .call([](Parcel& parcel) {
        parcel.words[0] = context_of_actor().reports().statistics().leased_bytes;
      })
      .words[0];
}

void expect_no_leases(Process& exporter) {
  for (int i = 0; leased_in(exporter) != 0 && i < 20'000; ++i) usleep(1000);
  EXPECT_EQ(leased_in(exporter), 0U);
}

std::uint64_t descriptors_of(Process& process) {
  return process.call([](Parcel& parcel) { parcel.words[0] = own_descriptors().all; }).words[0];
}

std::uint64_t threads_of(Process& process) {
  return process.call([](Parcel& parcel) { parcel.words[0] = own_belongings().threads; }).words[0];
}

void expect_descriptors(Process& process, std::uint64_t expected) {
  for (int i = 0; descriptors_of(process) != expected && i < 20'000; ++i) usleep(1000);
  EXPECT_EQ(descriptors_of(process), expected);
}

TEST(IpcHostMemory, that_is_short_in_a_first_export_leaves_nothing_and_the_next_one_works) {
  const std::string folder = socket_folder_of_tests() + "/first";  // of this exporter's socket
  ASSERT_EQ(mkdir(folder.c_str(), 0700), 0);
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    Process exporter({"VPMM_IPC_DIR=" + folder});
    Parcel memory = exporter.call(allocate_here);
    const std::uint64_t before = descriptors_of(exporter);
    const std::uint64_t threads = threads_of(exporter);
    Parcel shared = exporter.call(share_here, nth(n, memory));
    const bool is_last = shared.words[2] == 0;
    if (shared.status != VPMM_OK) {
      EXPECT_EQ(shared.status, VPMM_ERROR_HOST_OUT_OF_MEMORY) << shared.said();
      const bool has_thread = threads_of(exporter) != threads;
      EXPECT_EQ(descriptors_of(exporter), before + (has_thread ? 1 : 0))
          << "a socket where a thread listens";
      EXPECT_EQ(names_in(folder).size(), has_thread ? 1U : 0U);
      shared = exporter.call(share_here, nth(0, memory));
    }
    expect_ok(shared);
    EXPECT_EQ(descriptors_of(exporter), before + 1) << "the one that listens";
    Process importer({"VPMM_IPC_DIR=" + folder});
    importer.close(importer.open(shared.handle));
    expect_ok(exporter.call(free_here, shared));
    Parcel ended = exporter.call(end_here, nth(n, shared));
    if (ended.status != VPMM_OK) ended = exporter.call(end_here, nth(0, shared));
    EXPECT_NE(ended.status, VPMM_ERROR_HOST_OUT_OF_MEMORY) << ended.said();
    expect_no_leases(exporter);
    if (is_last) break;
    ASSERT_LT(n, 200U);
  }
  std::filesystem::remove_all(folder);
}

TEST(IpcHostMemory,
     that_is_short_while_a_removed_socket_is_made_anew_leaves_nothing_and_the_next_one_works) {
  Process exporter;
  Parcel shared = exporter.call(share_here, exporter.call(allocate_here));
  expect_ok(shared);
  const std::string path =
      ipc::socket_path(socket_folder_of_tests(), parts_of(shared.handle).process);
  const std::uint64_t before = descriptors_of(exporter);
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    unlink(path.c_str());
    Parcel again = exporter.call(share_here, nth(n, shared));
    const bool is_last = again.words[2] == 0;
    if (again.status != VPMM_OK) {
      EXPECT_EQ(again.status, VPMM_ERROR_HOST_OUT_OF_MEMORY) << again.said();
      again = exporter.call(share_here, nth(0, shared));
    }
    expect_ok(again);
    Process importer;
    importer.close(importer.open(again.handle));
    expect_ok(exporter.call(end_here, nth(0, again)));
    expect_descriptors(exporter, before);
    if (is_last) break;
    ASSERT_LT(n, 200U);
  }
}

// --- the exporter's thread

void fail_in_thread(Process& exporter, std::uint64_t n, Repeat repeat) {
  Parcel parcel;
  parcel.words = {n, static_cast<std::uint64_t>(repeat)};
  exporter.call(
      [](Parcel& asked) {
        fail_allocation(asked.words[0], Of::others, static_cast<Repeat>(asked.words[1]));
      },
      parcel);
}

std::uint64_t stop_in_thread(Process& exporter) {
  return exporter.call([](Parcel& parcel) { parcel.words[0] = stop_failing(); }).words[0];
}

class IpcHostMemoryOfThread : public testing::TestWithParam<Repeat> {};

TEST_P(IpcHostMemoryOfThread, that_is_short_fails_an_opening_at_most_and_holds_nothing) {
  Process exporter({"VPMM_IPC_TIMEOUT=200", "VPMM_LOG=quiet"});
  Process importer({"VPMM_IPC_TIMEOUT=200"});
  exporter.call(share_here, exporter.call(allocate_here));
  importer.belongings();
  const Belongings before = importer.belongings();
  const std::uint64_t descriptors = descriptors_of(exporter);
  std::uint64_t failures = 0;
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    const Parcel shared = exporter.call(share_here, exporter.call(allocate_here));
    expect_ok(shared);
    fail_in_thread(exporter, n, GetParam());
    const Parcel opened = importer.try_to_open(shared.handle);
    if (opened.status == VPMM_OK)
      importer.close(opened.words[0]);
    else
      EXPECT_EQ(opened.status, VPMM_ERROR_NOT_SHARED) << opened.said();
    const std::uint64_t failed = stop_in_thread(exporter);
    failures += failed;
    EXPECT_EQ(importer.belongings(), before);
    importer.close(importer.open(shared.handle));
    expect_ok(exporter.call(free_here, shared));
    expect_ok(exporter.call(end_here, shared));
    expect_no_leases(exporter);
    expect_descriptors(exporter, descriptors);
    if (failed == 0) break;
    ASSERT_LT(n, 200U);
  }
  EXPECT_GT(failures, 5U);
}

INSTANTIATE_TEST_SUITE_P(Host, IpcHostMemoryOfThread,
                         testing::Values(Repeat::once, Repeat::from_then_on),
                         [](const auto& repeat) {
                           return repeat.param == Repeat::once ? "once" : "for_a_while";
                         });

// Of a connection, or of an opening alone.
TEST(IpcHostMemoryOfThread, that_is_short_is_why_an_importer_is_refused) {
  Process exporter({"VPMM_LOG=quiet"});
  const Parcel shared = exporter.call(share_here, exporter.call(allocate_here));
  expect_ok(shared);
  std::set<std::uint64_t> refused;
  // Which allocation is of what depends on what else the thread has to do.
  for (std::uint64_t tries = 0; refused.size() < 2 && tries < 300; ++tries) {
    const std::uint64_t n = 1 + tries % 30;
    SCOPED_TRACE(n);
    fail_in_thread(exporter, n, Repeat::once);
    ipc::Channel channel = connect_by_hand(shared.handle);
    static_cast<void>(channel.try_send(open_message(shared.handle, 7), {}, soon()));
    const std::optional<ipc::Message> answer = next_from(channel);
    ASSERT_TRUE(answer);
    if (answer->kind == ipc::MessageKind::refused) {
      refused.insert(answer->number);
      EXPECT_EQ(answer->status, static_cast<std::uint32_t>(VPMM_ERROR_HOST_OUT_OF_MEMORY));
      EXPECT_EQ(answer->said(), "the process that exported the memory is out of host memory");
    } else {
      EXPECT_EQ(answer->kind, ipc::MessageKind::granted);
      send_by_hand(channel, message_of(ipc::MessageKind::close, 7));
    }
    stop_in_thread(exporter);
  }
  EXPECT_EQ(refused, (std::set<std::uint64_t>{0, 7}));
}

// --- the importer

void open_here(Parcel& parcel) {
  ipc::IpcHandle handle;
  handle.token = token_in(parcel.handle);
  driver::Driver& driver = spared_of_actor();
  DevicePtr opened{};
  with_failure(parcel, [&]() -> Result<void> {
    VPMM_TRY_ASSIGN(opened, ipc::Importer::of_process().open(driver, handle, std::nullopt));
    return {};
  });
  parcel.words[0] = to_integer(opened);
}

void close_here(Parcel& parcel) {
  with_failure(parcel, [&]() -> Result<void> {
    return ipc::Importer::of_process().close(DevicePtr{parcel.words[0]});
  });
}

void close_some_time_here(Parcel& parcel) {
  with_failure(parcel, [&]() -> Result<void> {
    ipc::Importer::of_process().close_some_time(DevicePtr{parcel.words[0]});
    return {};
  });
}

class IpcHostMemoryOfImporter : public testing::Test {
 protected:
  void SetUp() override {
    Parcel opened = importer_.call(open_here, nth(0, shared_));
    expect_ok(opened);
    expect_ok(importer_.call(close_here, nth(0, opened)));
    before_ = importer_.belongings();
  }
  // Opens and closes something else, so that whatever was put off is done.
  void expect_as_before() {
    const Parcel opened = importer_.call(open_here, nth(0, other_));
    expect_ok(opened);
    importer_.expect(opened.words[0], kSize, kSeed);
    expect_ok(importer_.call(close_here, nth(0, opened)));
    EXPECT_EQ(importer_.belongings(), before_);
  }
  // Memory that is freed in its own process already, so only the importer's lease holds it.
  void expect_nothing_held() {
    expect_ok(exporter_.try_to_free(address_));
    exporter_.end(shared_.handle);
    expect_leases_to_end(exporter_);
  }

  Process exporter_{{"VPMM_CHUNK_MAX=page"}};
  Process importer_;
  const Shared memory_ = exporter_.allocate_shared(kSize, kSeed);
  const Shared more_ = exporter_.allocate_shared(kSize, kSeed);
  const Address address_ = memory_.address;
  const Parcel shared_ = [this] {
    Parcel parcel;
    parcel.handle = memory_.handle;
    return parcel;
  }();
  const Parcel other_ = [this] {
    Parcel parcel;
    parcel.handle = more_.handle;
    return parcel;
  }();
  Belongings before_;
};

TEST_F(IpcHostMemoryOfImporter, that_is_short_in_an_opening_leaves_nothing) {
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    const Parcel opened = importer_.call(open_here, nth(n, shared_));
    if (opened.status == VPMM_OK)
      expect_ok(importer_.call(close_here, nth(0, opened)));
    else
      EXPECT_EQ(opened.status, VPMM_ERROR_HOST_OUT_OF_MEMORY) << opened.said();
    expect_as_before();
    if (opened.words[2] == 0) break;
    ASSERT_LT(n, 200U);
  }
  expect_nothing_held();
}

TEST_F(IpcHostMemoryOfImporter, that_is_short_in_a_closing_leaves_it_open_or_closed) {
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    const Parcel opened = importer_.call(open_here, nth(0, shared_));
    expect_ok(opened);
    const Parcel closed = importer_.call(close_here, nth(n, opened));
    if (closed.status != VPMM_OK) expect_ok(importer_.call(close_here, nth(0, opened)));
    expect_as_before();
    if (closed.words[2] == 0) break;
    ASSERT_LT(n, 200U);
  }
  expect_nothing_held();
}

// Its caller cannot be told.
TEST_F(IpcHostMemoryOfImporter, that_is_short_in_a_deferred_closing_is_made_up_for) {
  for (std::uint64_t n = 1;; ++n) {
    SCOPED_TRACE(n);
    const Parcel opened = importer_.call(open_here, nth(0, shared_));
    expect_ok(opened);
    const Parcel closed = importer_.call(close_some_time_here, nth(n, opened));
    expect_ok(closed);
    expect_as_before();
    if (closed.words[2] == 0) break;
    ASSERT_LT(n, 200U);
  }
  expect_nothing_held();
}

}  // namespace
}  // namespace vpmm::ipc_test::memory_test
