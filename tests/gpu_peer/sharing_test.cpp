// SPDX-License-Identifier: Apache-2.0
// tests/gpu_peer: memory of another process on one GPU opens for this one and for another, as it is
// and as a copy; on two simulated and on two real GPUs.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>

#include "driver/forwarding.hpp"
#include "gpu_peer/two_gpus.hpp"
#include "ipc/exporter.hpp"
#include "ipc/importer.hpp"
#include "ipc/staged.hpp"

namespace vpmm::test {
namespace {

constexpr const char* kHandle = "VPMM_TEST_SHARED_HANDLE";
constexpr int kDone = 42;  // what the other process ends with; less: the step that went wrong
constexpr Bytes kSize = 34_MiB;
constexpr std::uint32_t kOurs = 0x0EA7'0001;
constexpr std::uint32_t kTheirs = 0x0EA7'0002;

using HandleBytes = std::array<std::uint8_t, sizeof(ipc::IpcHandle)>;

std::string to_text(const ipc::IpcHandle& handle) {
  std::string text;
  for (const std::uint8_t byte : std::bit_cast<HandleBytes>(handle))
    text += fmt::format("{:02x}", byte);
  return text;
}

ipc::IpcHandle from_text(const std::string& text) {
  HandleBytes bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  return std::bit_cast<ipc::IpcHandle>(bytes);
}

// Says that no GPU reaches another's memory.
class NoPeers final : public driver::ForwardingDriver {
 public:
  using ForwardingDriver::ForwardingDriver;
  CuResult device_can_access_peer(driver::DeviceOrdinal, driver::DeviceOrdinal,
                                  bool& can) override {
    can = false;
    return CuResult::success;
  }
};

class SharingBetweenGpus : public TwoGpus {
 protected:
  void SetUp() override {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    TwoGpus::SetUp();
  }
  bool holds(int device, AddressRange range, std::uint32_t pattern) {
    std::vector<std::uint32_t> words(range.size / sizeof pattern);
    EXPECT_OK(world_->enter(device));
    EXPECT_OK(driver().memcpy_device_to_host(words.data(), range.begin, range.size));
    EXPECT_OK(world_->enter(0));
    return std::all_of(words.begin(), words.end(),
                       [&](std::uint32_t word) { return word == pattern; });
  }
  // By a kernel of `device`; complete when it returns.
  void fill(int device, AddressRange range, std::uint32_t pattern) {
    StreamHandle stream{};
    EXPECT_OK(world_->enter(device));
    EXPECT_OK(driver().stream_create(StreamFlags::non_blocking, stream));
    EXPECT_OK(world_->launch_fill(stream, range, pattern));
    EXPECT_OK(driver().stream_synchronize(stream));
    EXPECT_OK(driver().stream_destroy(stream));
    EXPECT_OK(world_->enter(0));
  }
  // Runs `import` in another process on memory of GPU 0 that holds kOurs, and expects it to hold
  // `after` then.
  void expect_shared(const std::function<int(const ipc::IpcHandle&)>& import, std::uint32_t after) {
    if (world_ == nullptr) return;
    // The other process begins this test anew, and finds the handle there.
    const char* const text = std::getenv(kHandle);
    std::unique_ptr<context::Context> pool;
    AddressRange range;
    ipc::IpcHandle shared;
    if (text != nullptr) {
      shared = from_text(text);
    } else {
      pool = pool_of(driver(), 0);
      range = {pool->allocate({kSize, 0, std::nullopt}).value(), kSize};
      fill(0, range, kOurs);
      const auto exported = ipc::Exporter::of_process().share(*pool, range);
      ASSERT_TRUE(exported.ok()) << exported.error().message;
      shared = exported.value();
      setenv(kHandle, to_text(shared).c_str(), 1);
    }
    EXPECT_EXIT(std::_Exit(import(shared)), ::testing::ExitedWithCode(kDone), "");
    if (pool == nullptr) return;
    unsetenv(kHandle);
    EXPECT_TRUE(holds(0, range, after));
    EXPECT_TRUE(ipc::Exporter::of_process().end(ipc::decode(shared.token).value()).ok());
    EXPECT_TRUE(pool->deallocate(range.begin, std::nullopt).ok());
    ipc::Exporter::of_process().forget(*pool);
  }
  std::optional<AddressRange> open(driver::Driver& on, const ipc::IpcHandle& handle,
                                   std::optional<int> device) {
    const auto opened = ipc::Importer::of_process().open(on, handle, device);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    if (!opened) return std::nullopt;
    return AddressRange{opened.value(), handle.size};
  }
  bool close(AddressRange range) { return ipc::Importer::of_process().close(range.begin).ok(); }
};
VPMM_ON_BOTH_DRIVERS(SharingBetweenGpus);

TEST_P(SharingBetweenGpus, memory_opens_for_the_gpu_that_it_is_on_and_for_the_other) {
  expect_shared(
      [&](const ipc::IpcHandle& handle) {
        const auto here = open(driver(), handle, std::nullopt);
        const auto there = open(driver(), handle, 1);
        if (!here || !there) return 1;
        if (here->begin == there->begin) return 2;
        if (!holds(0, *here, kOurs) || !holds(1, *there, kOurs)) return 3;
        fill(1, *there, kTheirs);
        if (!holds(0, *here, kTheirs)) return 4;
        return close(*here) && close(*there) && !close(*there) ? kDone : 5;
      },
      kTheirs);
}

TEST_P(SharingBetweenGpus, a_staged_copy_comes_through_peer_access_and_is_its_owners_alone) {
  expect_shared(
      [&](const ipc::IpcHandle& handle) {
        const auto pool = pool_of(driver(), 1);
        const auto copy = ipc::open_staged(*pool, handle);
        if (!copy) return 1;
        const AddressRange range{copy.value(), handle.size};
        if (!holds(1, range, kOurs)) return 2;
        fill(1, range, kTheirs);
        const bool is_freed = pool->deallocate(range.begin, std::nullopt).ok();
        return is_freed && pool->reports().validate().empty() ? kDone : 3;
      },
      kOurs);
}

TEST_P(SharingBetweenGpus, without_peer_access_memory_is_not_opened_but_copied_through_the_host) {
  expect_shared(
      [&](const ipc::IpcHandle& handle) {
        NoPeers apart(driver());
        const auto refused = ipc::Importer::of_process().open(apart, handle, 1);
        if (refused || refused.error().code != ErrorCode::unsupported) return 1;
        if (refused.error().message.find("staged") == std::string::npos) return 2;
        const auto pool = pool_of(apart, 1);
        const auto copy = ipc::open_staged(*pool, handle);
        if (!copy) return 3;
        const AddressRange range{copy.value(), handle.size};
        if (!holds(1, range, kOurs)) return 4;
        fill(1, range, kTheirs);
        return pool->deallocate(range.begin, std::nullopt).ok() ? kDone : 5;
      },
      kOurs);
}

}  // namespace
}  // namespace vpmm::test
