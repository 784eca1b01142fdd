// SPDX-License-Identifier: Apache-2.0
// emm: memory of a manager opens in another process, at a view's offset, and both see what the
// other wrote.
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "emm/emm_world.hpp"

namespace vpmm::emm_test {
namespace {

using emm::Context;

constexpr const char* kHandle = "VPMM_TEST_IPC_HANDLE";
constexpr std::size_t kBytes = 3 * kMiB;
constexpr std::size_t kOffset = kMiB + 256;

std::string to_text(const emm::IpcHandle& handle) {
  std::string text;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&handle);
  for (std::size_t i = 0; i < sizeof(handle); ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", bytes[i]);
    text += digits;
  }
  return text;
}

emm::IpcHandle from_text(const std::string& text) {
  emm::IpcHandle handle;
  auto* const bytes = reinterpret_cast<unsigned char*>(&handle);
  for (std::size_t i = 0; i < sizeof(handle); ++i)
    bytes[i] = static_cast<unsigned char>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  return handle;
}

// 0, or which step went wrong.
int answer_at(const emm::Driver& driver, void* memory) {
  std::vector<char> found(kBytes - kOffset);
  driver.memcpy_device_to_host(found.data(), memory, found.size());
  if (found != std::vector<char>(found.size(), 'e')) return 2;
  std::memset(found.data(), 'i', found.size());
  driver.memcpy_host_to_device(memory, found.data(), found.size());
  return 0;
}

// 42, or which step went wrong.
int import_and_answer() {
  const Context context = Context::create(0, emm::builtin_plugin("default"));
  const emm::Driver driver = emm::Driver::of_process();
  const emm::CurrentContext current(driver, context.cuda_context());
  emm::LegacyIpcMemory memory(driver, from_text(std::getenv(kHandle)));
  if (memory.size() != kBytes - kOffset) return 1;
  if (const int wrong = answer_at(driver, memory.device_pointer()); wrong != 0) return wrong;
  memory.close();
  if (memory.device_pointer() != nullptr) return 3;
  return thrown_by([&] { memory.close(); }).names("not open") ? 42 : 4;
}

// The same by the handle that opens memory of every kind.
int import_any_and_answer() {
  const Context context = Context::create(0, emm::builtin_plugin("vpmm"));
  const emm::Driver driver = emm::Driver::of_process();
  const emm::CurrentContext current(driver, context.cuda_context());
  ipc_handle memory(from_text(std::getenv(kHandle)));
  if (memory.size() != kBytes - kOffset) return 1;
  buffer copy = memory.open_staged(default_pool());
  if (memory.data() != nullptr || copy.size() != memory.size()) return 5;
  if (const int wrong = answer_at(driver, copy.data()); wrong != 0) return 10 + wrong;
  if (const int wrong = answer_at(driver, memory.open()); wrong != 0) return wrong;
  if (!thrown_by([&] { (void)memory.open(); }).names("already open")) return 6;
  memory.close();
  if (memory.data() != nullptr) return 3;
  return thrown_by([&] { memory.close(); }).names("not open") ? 42 : 4;
}

class IpcDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  void expect_answer(const char* manager, int (*import)());
};

TEST_F(IpcDeathTest, memory_of_the_default_manager_opens_in_another_process) {
  expect_answer("default", import_and_answer);
}

TEST_F(IpcDeathTest, memory_of_the_default_manager_opens_as_memory_of_any_kind_does) {
  expect_answer("default", import_any_and_answer);
}

TEST_F(IpcDeathTest, memory_of_the_vpmm_manager_opens_in_another_process) {
  expect_answer("vpmm", import_any_and_answer);
}

TEST_F(IpcDeathTest, memory_is_not_opened_where_it_was_exported) {
  for (const char* const name : {"default", "vpmm"}) {
    const Context context = Context::create(0, emm::builtin_plugin(name));
    const emm::MemoryPointer memory = context.memalloc(kBytes);
    const emm::CurrentContext current(emm::Driver::of_process(), context.cuda_context());
    ipc_handle received(context.get_ipc_handle(memory));
    EXPECT_TRUE(thrown_by([&] { (void)received.open(); }).names("in the process that exported it"))
        << name;
    EXPECT_TRUE(thrown_by([&] {
                  (void)received.open_staged(default_pool());
                }).names("in the process that exported it"))
        << name;
    ipc_handle exported = export_memory(memory.device_pointer(), kBytes);
    EXPECT_TRUE(thrown_by([&] { (void)exported.open(); }).names("in the process that exported it"))
        << name;
  }
}

void IpcDeathTest::expect_answer(const char* manager, int (*import)()) {
  const Context context = Context::create(0, emm::builtin_plugin(manager));
  const emm::Driver driver = emm::Driver::of_process();
  const emm::MemoryPointer memory = context.memalloc(kBytes);
  const emm::CurrentContext current(driver, context.cuda_context());
  std::vector<char> bytes(kBytes, 'e');
  driver.memcpy_host_to_device(memory.device_pointer(), bytes.data(), kBytes);
  // The other process begins this test anew, and finds the handle there.
  if (std::getenv(kHandle) == nullptr)
    setenv(kHandle, to_text(context.get_ipc_handle(memory.view(kOffset))).c_str(), 1);
  EXPECT_EXIT(std::_Exit(import()), testing::ExitedWithCode(42), "");
  unsetenv(kHandle);
  driver.memcpy_device_to_host(bytes.data(), memory.device_pointer(), kBytes);
  EXPECT_EQ(std::string(bytes.begin(), bytes.begin() + kOffset), std::string(kOffset, 'e'));
  EXPECT_EQ(std::string(bytes.begin() + kOffset, bytes.end()), std::string(kBytes - kOffset, 'i'));
}

}  // namespace
}  // namespace vpmm::emm_test
