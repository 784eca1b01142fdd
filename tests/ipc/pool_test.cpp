// SPDX-License-Identifier: Apache-2.0
// ipc tests: a pool that goes while its memory is being delivered, and another one in its place.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "context/context.hpp"
#include "driver/forwarding.hpp"
#include "driver/recording.hpp"
#include "ipc/exporter.hpp"
#include "ipc/raw.hpp"
#include "settings/config.hpp"

namespace vpmm::ipc_test::pool_test {
namespace {

using driver::Call;
using driver::RecordingDriver;
using ipc::MessageKind;

constexpr Bytes kSize = 100 * kMiB;  // 50 chunks, more than are on their way at once

RecordingDriver& recording_of_actor() {
  static auto* const recording = new RecordingDriver(driver_of_actor());
  return *recording;
}

// Always at the same address, as the heap may have it.
std::optional<context::Context>& pool_of_its_own() {
  static std::optional<context::Context> pool;
  return pool;
}

// Out: the handle.
void share_a_new_pool(Parcel& parcel) {
  settings::Config config = settings::config_from_environment().value();
  config.page_chunks = true;
  pool_of_its_own().emplace(recording_of_actor(), 0, config,
                            context::DeviceTraits{true, false, 2 * kMiB, {0, true, false}},
                            context::AtEnd::nothing);
  const DevicePtr memory = pool_of_its_own()->allocate({kSize, 0, std::nullopt}).value();
  const ipc::IpcHandle handle =
      ipc::Exporter::of_process().share(*pool_of_its_own(), {memory, kSize}).value();
  parcel.handle = handle_of(ipc::decode(handle.token).value());
}

void end_the_pool(Parcel&) {
  ipc::Exporter::of_process().forget(*pool_of_its_own());
  pool_of_its_own().reset();
}

void replace_the_pool(Parcel& parcel) {
  end_the_pool(parcel);
  share_a_new_pool(parcel);
  recording_of_actor().start_listing();
}

void say_what_was_exported(Parcel& parcel) {
  for (const std::string& call : recording_of_actor().stop_listing())
    if (call.starts_with(driver::to_string(Call::mem_export_to_shareable_handle))) parcel.say(call);
}

TEST(IpcPool, that_goes_in_the_middle_of_a_delivery_is_not_mixed_up_with_the_next_one) {
  Process exporter;
  HandImporter importer;
  const vpmm_ipc_handle handle = exporter.call(share_a_new_pool).handle;
  importer.connect(handle);
  importer.say_open(handle);
  EXPECT_EQ(importer.hear().kind, MessageKind::granted);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(importer.hear().kind, MessageKind::batch);
  const vpmm_ipc_handle next = exporter.call(replace_the_pool).handle;
  importer.say_received(ipc::kMostInFlight);
  const ipc::Message heard = importer.hear();
  EXPECT_EQ(heard.kind, MessageKind::refused);
  EXPECT_EQ(heard.number, 1U);
  EXPECT_NE(heard.said().find("the pool that the memory was of is gone"), std::string::npos)
      << heard.said();
  EXPECT_EQ(exporter.call(say_what_was_exported).said(), "") << "of chunks that there are no more";
  // The connection is as good as before, and what is let go of is nobody else's.
  importer.say_close(1);
  importer.say_open(handle, 2);
  EXPECT_EQ(importer.hear().kind, MessageKind::refused);
  Process other;
  other.close(other.open(next));
  importer.say_open(next, 3);
  EXPECT_EQ(importer.hear().kind, MessageKind::granted);
  exporter.call(end_the_pool);
}

// --- a pool that goes while a chunk is exported

// In the actor; none is set back.
std::atomic<bool> export_has_begun{false};
std::atomic<bool> is_forgetting{false};
std::atomic<bool> export_has_ended{false};

class SlowDriver final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  driver::CuResult mem_export_to_shareable_handle(driver::ChunkHandle chunk, int& file) override {
    export_has_begun = true;
    while (!is_forgetting) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    const auto result = ForwardingDriver::mem_export_to_shareable_handle(chunk, file);
    export_has_ended = true;
    return result;
  }
};

std::optional<context::Context>& slow_pool() {
  static std::optional<context::Context> pool;
  return pool;
}

TEST(IpcPool, that_goes_waits_for_the_export_of_its_chunks) {
  Process exporter;
  HandImporter importer;
  const Parcel shared = exporter.call([](Parcel& parcel) {
    static SlowDriver driver(driver_of_actor());
    slow_pool().emplace(driver, 0, settings::config_from_environment().value(),
                        context::DeviceTraits{true, false, 2 * kMiB, {0, true, false}},
                        context::AtEnd::nothing);
    const DevicePtr memory = slow_pool()->allocate({kMiB, 0, std::nullopt}).value();
    const auto handle = ipc::Exporter::of_process().share(*slow_pool(), {memory, kMiB}).value();
    parcel.handle = handle_of(ipc::decode(handle.token).value());
  });
  importer.connect(shared.handle);
  importer.say_open(shared.handle);
  EXPECT_EQ(importer.hear().kind, MessageKind::granted);
  const Parcel forgotten = exporter.call([](Parcel& parcel) {
    while (!export_has_begun) std::this_thread::yield();
    is_forgetting = true;
    ipc::Exporter::of_process().forget(*slow_pool());
    parcel.words[0] = export_has_ended ? 0 : 1;
    slow_pool().reset();
  });
  EXPECT_EQ(forgotten.words[0], 0U);
  EXPECT_EQ(importer.hear().kind, MessageKind::batch);
  importer.say_received(1);
  importer.say_open(shared.handle, 2);
  EXPECT_EQ(importer.hear().kind, MessageKind::refused) << "it is gone";
}

}  // namespace
}  // namespace vpmm::ipc_test::pool_test
