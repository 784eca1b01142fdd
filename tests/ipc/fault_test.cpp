// SPDX-License-Identifier: Apache-2.0
// ipc tests: each driver call of an opening, of a closing and of an export is made to fail in turn.
#include <gtest/gtest.h>
#include <unistd.h>

#include "driver/faulting.hpp"
#include "ipc/exporter.hpp"
#include "ipc/importer.hpp"
#include "ipc/raw.hpp"
#include "settings/config.hpp"

namespace vpmm::ipc_test::fault_test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultingDriver;

constexpr std::uint64_t kSeed = 1;
constexpr Bytes kSize = 12 * kMiB;  // 6 chunks, in 2 batches

FaultingDriver& faulting_of_actor() {
  static auto* const faulting = new FaultingDriver(driver_of_actor());
  return *faulting;
}

void note(Parcel& parcel, const Result<void>& outcome) {
  parcel.status = outcome ? VPMM_OK : static_cast<vpmm_status>(outcome.error().code);
  if (!outcome) parcel.say(outcome.error().message);
}

driver::FaultPlan plan_in(const Parcel& parcel) {
  driver::FaultPlan plan;
  plan.calls = {static_cast<Call>(parcel.words[1])};
  plan.nth = parcel.words[2];
  plan.result = CuResult::out_of_memory;
  return plan;
}

Parcel plan_for(Call call, std::uint64_t nth) {
  Parcel parcel;
  parcel.words = {0, static_cast<std::uint64_t>(call), nth};
  return parcel;
}

// words[0]: the address; words[1], [2]: the call that fails, and which of them. Out: words[0], and
// words[3]: how many failed.
void open_with_fault(Parcel& parcel) {
  FaultingDriver& driver = faulting_of_actor();
  driver.set_plan(plan_in(parcel));
  ipc::IpcHandle handle;
  handle.token = token_in(parcel.handle);
  const Result<DevicePtr> opened = ipc::Importer::of_process().open(driver, handle, std::nullopt);
  driver.clear_plan();
  parcel.words[3] = driver.fired();
  parcel.words[0] = opened ? to_integer(opened.value()) : 0;
  note(parcel, opened ? Result<void>() : Result<void>(opened.error()));
}

void close_with_fault(Parcel& parcel) {
  FaultingDriver& driver = faulting_of_actor();
  driver.set_plan(plan_in(parcel));
  const Result<void> closed = ipc::Importer::of_process().close(DevicePtr{parcel.words[0]});
  driver.clear_plan();
  parcel.words[3] = driver.fired();
  note(parcel, closed);
}

class IpcFault : public testing::Test {
 protected:
  Parcel open_failing(Call call, std::uint64_t nth) {
    Parcel parcel = plan_for(call, nth);
    parcel.handle = shared_.handle;
    return importer_.call(open_with_fault, parcel);
  }
  Parcel close_failing(Address address, Call call, std::uint64_t nth) {
    Parcel parcel = plan_for(call, nth);
    parcel.words[0] = address;
    return importer_.call(close_with_fault, parcel);
  }
  void expect_leases_over() {
    exporter_.free(shared_.address);
    exporter_.end(shared_.handle);
    expect_leases_to_end(exporter_);
  }
  void SetUp() override {
    importer_.close(importer_.open(shared_.handle));
    before_ = importer_.belongings();
  }

  Process exporter_{{"VPMM_CHUNK_MAX=page"}};
  Process importer_;
  const Shared shared_ = exporter_.allocate_shared(kSize, kSeed);
  Belongings before_;
};

TEST_F(IpcFault, in_any_call_of_an_opening_leaves_nothing_and_the_next_one_works) {
  std::uint64_t failures = 0;
  for (const Call call :
       {Call::init, Call::device_get_count, Call::device_get_uuid, Call::device_primary_ctx_retain,
        Call::ctx_get_id, Call::ctx_get_current, Call::ctx_set_current, Call::mem_address_reserve,
        Call::mem_import_from_shareable_handle, Call::mem_map, Call::mem_set_access}) {
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(std::string(driver::to_string(call)) + " " + std::to_string(nth));
      const Parcel answer = open_failing(call, nth);
      if (answer.words[3] == 0) {
        expect_ok(answer);
        importer_.expect(answer.words[0], kSize, kSeed);
        importer_.close(answer.words[0]);
        EXPECT_EQ(importer_.belongings(), before_);
        break;
      }
      ++failures;
      // Memory whose context is not known would be unmapped without a wait.
      EXPECT_FALSE(call == Call::ctx_get_id && answer.status == VPMM_OK);
      if (answer.status == VPMM_OK) {  // of leaving a context
        importer_.close(answer.words[0]);
      }
      EXPECT_EQ(importer_.belongings(), before_);
    }
  }
  EXPECT_GT(failures, 15U);
  expect_leases_over();
}

// What the driver does not take back is lost; nothing else may be.
TEST_F(IpcFault, in_giving_back_a_chunk_fails_the_opening) {
  for (std::uint64_t nth = 1; nth <= 6; ++nth) {
    SCOPED_TRACE(nth);
    const Parcel answer = open_failing(Call::mem_release, nth);
    EXPECT_EQ(answer.words[3], 1U);
    EXPECT_NE(answer.status, VPMM_OK);
    const Belongings after = importer_.belongings();
    EXPECT_EQ(after.mappings, before_.mappings);
    EXPECT_EQ(after.reservations, before_.reservations);
    EXPECT_EQ(after.sockets, before_.sockets);
  }
  expect_leases_over();
}

TEST_F(IpcFault, in_any_call_of_a_closing_leaves_it_open_and_the_next_close_works) {
  std::uint64_t failures = 0;
  for (const Call call : {Call::device_primary_ctx_retain, Call::ctx_synchronize, Call::mem_unmap,
                          Call::mem_address_free}) {
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(std::string(driver::to_string(call)) + " " + std::to_string(nth));
      const Parcel opened = open_failing(Call::mem_unmap, 1'000'000);
      expect_ok(opened);
      const Parcel closed = close_failing(opened.words[0], call, nth);
      if (closed.status != VPMM_OK) {
        ++failures;
        importer_.close(opened.words[0]);
      }
      expect_refused(importer_.try_to_close(opened.words[0]), VPMM_ERROR_INVALID_POINTER,
                     "not open");
      EXPECT_EQ(importer_.belongings(), before_);
      if (closed.words[3] == 0) break;
    }
  }
  EXPECT_EQ(failures, 3U)
      << "address space that is not taken back is no reason to keep the memory open";
  expect_leases_over();
}

// As after a kernel with an illegal access, where no capture is to blame.
TEST_F(IpcFault, in_the_look_for_captures_of_a_closing_is_no_capture) {
  const Parcel opened = open_failing(Call::mem_unmap, 1'000'000);
  expect_ok(opened);
  expect_refused(close_failing(opened.words[0], Call::stream_is_capturing, 1),
                 VPMM_ERROR_OUT_OF_MEMORY, "stream_is_capturing");
  importer_.close(opened.words[0]);
  EXPECT_EQ(importer_.belongings(), before_);
  expect_leases_over();
}

// --- the exporter

// A pool of its own behind a driver that fails. words[0]: its memory.
context::Context& context_of_actor() {
  static context::Context* const made = [] {
    settings::Config config = settings::config_from_environment().value();
    config.page_chunks = true;
    auto created = context::Context::create(faulting_of_actor(), 0, config);
    if (!created) std::abort();
    return std::move(created).value().release();
  }();
  return *made;
}

TEST(IpcFaultOfExporter, in_an_export_fails_that_opening_alone) {
  Process exporter;
  Process importer;
  const Parcel made = exporter.call([](Parcel& parcel) {
    const DevicePtr memory = context_of_actor().allocate({kSize, 0, std::nullopt}).value();
    const Result<ipc::IpcHandle> handle =
        ipc::Exporter::of_process().share(context_of_actor(), {memory, kSize});
    if (!handle) return note(parcel, handle.error());
    parcel.words[0] = to_integer(memory);
    parcel.handle = handle_of(ipc::decode(handle.value().token).value());
  });
  expect_ok(made);
  exporter.fill(made.words[0], kSize, kSeed);
  importer.close(importer.open(made.handle));
  exporter.belongings();
  const Belongings importer_before = importer.belongings();
  std::uint64_t failures = 0;
  for (const Call call : {Call::device_get_uuid, Call::mem_export_to_shareable_handle}) {
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(std::string(driver::to_string(call)) + " " + std::to_string(nth));
      exporter.call([](Parcel& parcel) { faulting_of_actor().set_plan(plan_in(parcel)); },
                    plan_for(call, nth));
      const Parcel answer = importer.try_to_open(made.handle);
      const bool has_failed =
          exporter.call([](Parcel& parcel) { parcel.words[0] = faulting_of_actor().fired(); })
              .words[0] != 0;
      if (has_failed) {
        expect_refused(answer, VPMM_ERROR_NOT_SHARED, driver::to_string(CuResult::out_of_memory));
        ++failures;
      } else {
        expect_ok(answer);
        importer.expect(answer.words[0], kSize, kSeed);
        importer.close(answer.words[0]);
      }
      EXPECT_EQ(importer.belongings(), importer_before);
      if (!has_failed) break;
    }
  }
  EXPECT_EQ(failures, 7U);
  const Parcel ended = exporter.call(
      [](Parcel& parcel) {
        faulting_of_actor().clear_plan();
        const Result<void> freed =
            context_of_actor().deallocate(DevicePtr{parcel.words[0]}, std::nullopt);
        note(parcel, freed ? ipc::Exporter::of_process().end(parts_of(parcel.handle)) : freed);
        for (int i = 0; context_of_actor().reports().statistics().leased_bytes != 0 && i < 20'000;
             ++i)
          usleep(1000);
        parcel.words[0] = context_of_actor().reports().statistics().leased_bytes;
      },
      made);
  expect_ok(ended);
  EXPECT_EQ(ended.words[0], 0U);
}

// It cannot tell if the memory was its own.
TEST(IpcFaultOfExporter, in_one_of_its_pools_is_why_memory_that_no_other_has_is_refused) {
  Process exporter;
  Process importer;
  const Parcel broken = exporter.call([](Parcel& parcel) {
    const DevicePtr memory = context_of_actor().allocate({kSize, 0, std::nullopt}).value();
    const Result<ipc::IpcHandle> handle =
        ipc::Exporter::of_process().share(context_of_actor(), {memory, kSize});
    if (!handle) return note(parcel, handle.error());
    driver::FaultPlan plan;
    plan.calls = {Call::mem_create};
    plan.nth = 1;
    plan.result = CuResult::illegal_address;
    faulting_of_actor().set_plan(plan);
    const Result<DevicePtr> more = context_of_actor().allocate({kGiB, 0, std::nullopt});
    if (!more) note(parcel, more.error());
  });
  EXPECT_EQ(broken.status, VPMM_ERROR_POISONED) << broken.said();
  const Shared whole = exporter.allocate_shared(kSize, kSeed);  // of another pool
  ipc::Token unknown = parts_of(whole.handle);
  unknown.generation = 999'999;
  expect_refused(importer.try_to_open(handle_of(unknown)), VPMM_ERROR_NOT_SHARED,
                 driver::to_string(CuResult::illegal_address));
  importer.expect(importer.open(whole.handle), kSize, kSeed);
}

}  // namespace
}  // namespace vpmm::ipc_test::fault_test
