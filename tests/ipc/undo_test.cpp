// SPDX-License-Identifier: Apache-2.0
// ipc tests: an opening that fails half-way gives everything back, also where nothing else keeps
// the context alive.
#include <gtest/gtest.h>

#include "context/open_driver.hpp"
#include "driver/faulting.hpp"
#include "driver/sim/sim_driver.hpp"
#include "ipc/importer.hpp"
#include "ipc/raw.hpp"
#include "settings/config.hpp"

namespace vpmm::ipc_test::undo_test {
namespace {

using driver::Call;
using driver::CuResult;
using driver::FaultingDriver;
using ipc::MessageKind;

constexpr Bytes kSize = 12 * kMiB;  // 6 chunks, in 2 batches

// What the simulator holds for this process; `contexts`: whether the primary context of device 0 is
// alive.
struct Held {
  std::uint64_t chunks = 0;
  std::uint64_t mappings = 0;
  std::uint64_t reservations = 0;
  std::uint64_t imports = 0;
  std::uint64_t bytes = 0;
  std::uint64_t contexts = 0;
  friend bool operator==(const Held&, const Held&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Held& held) {
    return out << held.chunks << " chunks, " << held.mappings << " mappings, " << held.reservations
               << " reservations, " << held.imports << " imports, " << held.bytes << " bytes, "
               << held.contexts << " contexts";
  }
};

// Unlike driver_of_actor(): retains no context.
driver::Driver& bare_driver_of_actor() {
  return *context::process_driver(settings::config_from_environment().value().driver).value();
}

FaultingDriver& faulting_of_actor() {
  static auto* const faulting = new FaultingDriver(bare_driver_of_actor());
  return *faulting;
}

// In: words[1], [2]: the call that fails, and which of them. Out: words[0]: how many failed;
// words[1]: the address; words[2]: calls that would have failed if they were so many.
void open_here(Parcel& parcel) {
  FaultingDriver& driver = faulting_of_actor();
  driver.ctx_set_current({});
  driver::FaultPlan plan;
  plan.calls = {static_cast<Call>(parcel.words[1])};
  plan.nth = parcel.words[2];
  driver.set_plan(plan);
  ipc::IpcHandle handle;
  handle.token = token_in(parcel.handle);
  const Result<DevicePtr> opened = ipc::Importer::of_process().open(driver, handle, std::nullopt);
  driver.clear_plan();
  driver.ctx_set_current({});  // which a failed call may have left in place
  parcel.words[0] = driver.fired();
  parcel.words[1] = opened ? to_integer(opened.value()) : 0;
  parcel.words[2] = driver.counted();
  if (opened) return;
  parcel.status = static_cast<vpmm_status>(opened.error().code);
  parcel.say(opened.error().message);
}

enum class Own { nothing, pool };

class IpcUndo : public testing::TestWithParam<Own> {
 protected:
  void SetUp() override {
    if (GetParam() == Own::pool) importer_.allocate(kMiB);
    before_ = held();
  }
  Held held() {
    const Parcel answer = importer_.call([](Parcel& parcel) {
      driver::Driver& driver = bare_driver_of_actor();
      const auto* const sim = dynamic_cast<driver::sim::SimDriver*>(&driver);
      if (sim == nullptr) return;
      const driver::sim::Census census = sim->census();
      bool is_active = false;
      driver.init();
      driver.device_primary_ctx_get_state(0, is_active);
      parcel.words = {census.chunks,  census.mappings,       census.reservations,
                      census.imports, census.physical_bytes, is_active ? 1U : 0U};
    });
    const auto& words = answer.words;
    return {words[0], words[1], words[2], words[3], words[4], words[5]};
  }
  // The exporter dies in the middle of an opening, and the n-th `call` fails, while that is undone.
  void fail_an_undo(Call call, std::uint64_t nth = 1) {
    HandExporter lame;
    importer_.begin(open_here, question(lame.listen(8), call, nth));
    EXPECT_EQ(lame.hear().kind, MessageKind::open);
    lame.grant(1);
    lame.send_batch(1, 4);
    EXPECT_EQ(lame.hear().kind, MessageKind::received);
    lame.kill();
    EXPECT_EQ(importer_.finish().words[0], 1U) << "the undo did not fail";
  }
  static Parcel question(const vpmm_ipc_handle& handle, Call call = Call::mem_unmap,
                         std::uint64_t nth = 1'000'000) {
    Parcel parcel;
    parcel.handle = handle;
    parcel.words = {0, static_cast<std::uint64_t>(call), nth};
    return parcel;
  }

  Process importer_;
  Held before_;
};

TEST_P(IpcUndo, leaves_nothing_whichever_call_of_the_driver_fails) {
  Process exporter({"VPMM_CHUNK_MAX=page"});
  const Shared shared = exporter.allocate_shared(kSize, 1);
  std::uint64_t failures = 0;
  for (const Call call :
       {Call::device_get_uuid, Call::device_primary_ctx_retain, Call::ctx_get_id,
        Call::ctx_get_current, Call::ctx_set_current, Call::mem_address_reserve,
        Call::mem_import_from_shareable_handle, Call::mem_map, Call::mem_set_access}) {
    for (std::uint64_t nth = 1;; ++nth) {
      SCOPED_TRACE(std::string(driver::to_string(call)) + " " + std::to_string(nth));
      const Parcel answer = importer_.call(open_here, question(shared.handle, call, nth));
      if (answer.words[1] != 0) importer_.close(answer.words[1]);
      EXPECT_EQ(held(), before_);
      if (answer.words[0] == 0) break;
      ++failures;
    }
  }
  EXPECT_GT(failures, 15U);
  exporter.free(shared.address);
  exporter.end(shared.handle);
  expect_leases_to_end(exporter);
}

// What cannot be undone at once is undone when something else is opened.
TEST_P(IpcUndo, that_fails_itself_is_done_later) {
  Process exporter({"VPMM_CHUNK_MAX=page"});
  const Shared shared = exporter.allocate_shared(kSize, 1);
  constexpr std::uint64_t kOfTheUndo = 3;  // to enter the context, after those of the opening
  for (const auto& [undo, nth] :
       {std::pair(Call::mem_unmap, std::uint64_t{1}), std::pair(Call::ctx_set_current, kOfTheUndo)})
    // A context that cannot be had puts it off once more.
    for (const Call later : {Call::device_primary_ctx_retain, Call::ctx_get_current,
                             Call::ctx_set_current, Call::mem_unmap}) {
      SCOPED_TRACE(std::string(driver::to_string(undo)) + ", " + driver::to_string(later));
      fail_an_undo(undo, nth);
      const Parcel answer = importer_.call(open_here, question(shared.handle, later, 1));
      expect_ok(answer);
      EXPECT_EQ(answer.words[0], 1U);
      EXPECT_EQ(held().reservations, before_.reservations + 2);
      importer_.close(answer.words[1]);
      EXPECT_EQ(held(), before_);
    }
}

// The address space alone.
TEST_P(IpcUndo, of_memory_that_is_unmapped_needs_no_context) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kMiB, 1);
  fail_an_undo(Call::mem_address_free);
  const Parcel answer =
      importer_.call(open_here, question(shared.handle, Call::device_primary_ctx_retain, 1));
  EXPECT_NE(answer.status, VPMM_OK);
  EXPECT_EQ(answer.words[0], 1U) << "of the opening itself";
  EXPECT_EQ(held(), before_);
}

TEST_P(IpcUndo, of_an_opening_that_reserved_nothing_gives_nothing_back) {
  Process exporter;
  const Shared shared = exporter.allocate_shared(kMiB, 1);
  ipc::Token unknown = parts_of(shared.handle);
  ++unknown.generation;
  for (int i = 0; i < 2; ++i) {
    const Parcel refused =
        importer_.call(open_here, question(handle_of(unknown), Call::mem_address_free, 1'000'000));
    expect_refused(refused, VPMM_ERROR_NOT_SHARED, "freed");
    EXPECT_EQ(refused.words[2], 0U) << "calls";
  }
}

// Of memory that is unmapped, the address space alone.
TEST_P(IpcUndo, that_fails_twice_is_done_by_the_next_call_that_can) {
  Process exporter({"VPMM_CHUNK_MAX=page"});
  const Shared shared = exporter.allocate_shared(kSize, 1);
  fail_an_undo(Call::mem_address_free);
  for (const bool fails : {true, false}) {
    const Parcel answer = importer_.call(
        open_here, question(shared.handle, Call::mem_address_free, fails ? 1 : 1'000'000));
    expect_ok(answer);
    EXPECT_EQ(answer.words[0], fails ? 1U : 0U);
    EXPECT_EQ(held().reservations, before_.reservations + (fails ? 2 : 1));
    importer_.close(answer.words[1]);
    EXPECT_EQ(held(), before_);
  }
}

TEST_P(IpcUndo, leaves_nothing_wherever_the_exporter_dies) {
  for (const int step : {0, 1, 2, 3, 4}) {
    SCOPED_TRACE(step);
    HandExporter exporter;
    importer_.begin(open_here, question(exporter.listen(20)));
    EXPECT_EQ(exporter.hear().kind, MessageKind::open);
    if (step > 0) exporter.grant(1);
    for (int batch = 1; batch < step; ++batch) {
      exporter.send_batch(1, 4);
      EXPECT_EQ(exporter.hear().count, static_cast<unsigned>(batch) * 4U);
    }
    exporter.kill();
    expect_refused(importer_.finish(), VPMM_ERROR_NOT_SHARED, "gone");
    EXPECT_EQ(held(), before_);
  }
}

INSTANTIATE_TEST_SUITE_P(InAProcess, IpcUndo, testing::Values(Own::nothing, Own::pool),
                         [](const auto& own) {
                           return own.param == Own::pool ? "with_a_pool" : "without_a_pool";
                         });

}  // namespace
}  // namespace vpmm::ipc_test::undo_test
