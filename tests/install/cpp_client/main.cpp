// SPDX-License-Identifier: Apache-2.0
// tests: a C++17 program allocates from a simulated GPU through the installed package, in all three
// forms.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vpmm/vpmm.hpp>

namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

#define REQUIRE(condition)                                    \
  do {                                                        \
    if (!(condition)) {                                       \
      std::fprintf(stderr, "%d: %s\n", __LINE__, #condition); \
      return 1;                                               \
    }                                                         \
  } while (0)

bool refuses_too_much(const vpmm::memory_pool& pool) {
  try {
    (void)pool.allocate(64 * kMegabyte, vpmm::default_stream);
  } catch (const std::bad_alloc& refused) {
    return std::strlen(refused.what()) > 0;
  }
  return false;
}

// The library may have a C++ runtime of its own.
bool hears_why_a_callback_failed(const vpmm::memory_pool& pool) {
  const vpmm::callback_guard throws = vpmm::on_out_of_memory(
      pool, [](std::uint64_t) -> bool { throw std::runtime_error("no cache is left"); });
  const auto refused = pool.try_allocate(64 * kMegabyte, vpmm::default_stream);
  return refused.status() == VPMM_ERROR_DRIVER_FAILED && refused.message() == "no cache is left";
}

bool hears_why_a_hook_failed(const vpmm::memory_pool& pool) {
  const std::uint32_t tag = vpmm::tag_with_name("weights");
  pool.make_suspendable(tag);
  vpmm_request request{};
  request.bytes = kMegabyte;
  request.tag = tag;
  void* const ptr = pool.allocate(request);
  bool is_quiet = false;
  const auto fails = [&] {
    if (!is_quiet) throw std::runtime_error("a peer has it");
  };
  const vpmm::callback_guard throws = vpmm::on_suspend(pool, tag, fails, fails);
  const auto refused = pool.try_suspend(tag);
  is_quiet = true;
  pool.suspend(tag);
  is_quiet = false;
  const auto failed = pool.try_resume(tag);
  pool.deallocate(ptr, vpmm::default_stream);
  return refused.message() == "a peer has it" && failed.message() == "a peer has it";
}

// Its exception crosses into the library.
bool ends_a_resume_by_a_function_that_throws(const vpmm::memory_pool& pool) {
  const std::uint32_t tag = vpmm::tag_with_name("weights");
  vpmm_request request{};
  request.bytes = kMegabyte;
  request.tag = tag;
  void* const ptr = pool.allocate(request);
  const auto throws = [](void*, int, std::uint32_t) -> int { throw std::runtime_error("!"); };
  const std::uint64_t id = pool.add_suspend_hooks(tag, nullptr, throws, nullptr);
  pool.suspend(tag);
  const auto failed = pool.try_resume(tag);
  pool.remove_suspend_hooks(id);
  pool.deallocate(ptr, vpmm::default_stream);
  return failed.status() == VPMM_ERROR_DRIVER_FAILED;
}

int run() {
  vpmm_config settings = vpmm::default_settings();
  settings.driver = "sim";
  settings.capacity = 16 * kMegabyte;
  const vpmm::memory_pool pool(0, settings);
  {
    const vpmm::buffer buffer(pool, 6 * kMegabyte, vpmm::default_stream);
    REQUIRE(buffer.data() != nullptr);
    REQUIRE(pool.statistics().live_allocations == 1);
    REQUIRE(pool.usable_size(buffer.data()) >= buffer.size());
  }
  REQUIRE(pool.statistics().live_allocations == 0);
  REQUIRE(refuses_too_much(pool));
  REQUIRE(pool.try_allocate(64 * kMegabyte, vpmm::default_stream).status() ==
          VPMM_ERROR_OUT_OF_MEMORY);
  REQUIRE(hears_why_a_callback_failed(pool));
  REQUIRE(hears_why_a_hook_failed(pool));
  REQUIRE(ends_a_resume_by_a_function_that_throws(pool));
  std::printf("vpmm %s\n", vpmm_version());
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const vpmm::error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
