// SPDX-License-Identifier: Apache-2.0
// host_copy tests: memory of the process, pinned or given back, and how much the process may take.
#include "host_copy/host_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>

#include "base/scope_exit.hpp"
#include "host_copy/copy_world.hpp"

namespace vpmm::host_copy {
namespace {

constexpr Bytes kSystemPage = 4 * kKiB;
constexpr Bytes kHugePage = 2 * kMiB;

bool is_resident(const HostMemory& memory) {
  std::vector<unsigned char> pages((memory.size() + kSystemPage - 1) / kSystemPage);
  EXPECT_EQ(::mincore(memory.begin(), memory.size(), pages.data()), 0);
  return std::all_of(pages.begin(), pages.end(),
                     [](unsigned char page) { return (page & 1) != 0; });
}

// By several threads, and by one.
class HostCopyMemory : public ::testing::TestWithParam<Bytes> {};

TEST_P(HostCopyMemory, is_resident_once_it_was_touched_and_keeps_its_contents) {
  const Bytes size = GetParam();
  const HostMemory memory(size);
  for (const Bytes at : {Bytes{0}, size / 2, size - 1}) memory.begin()[at] = std::byte{7};
  memory.touch();
  for (const Bytes at : {Bytes{0}, size / 2, size - 1})
    EXPECT_EQ(memory.begin()[at], std::byte{7}) << at;
  EXPECT_TRUE(is_resident(memory));
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostCopyMemory,
                         ::testing::Values(kSystemPage + 1, kHugePage, 300 * kMiB + 1));

class HostMemoryTest : public CopyWorld {
 protected:
  std::uint64_t pinned() const { return sim.census().pinned; }
  static constexpr driver::ContextId kOther{12345};
};

TEST_F(HostMemoryTest, begins_at_a_huge_page) {
  const HostMemory none;
  EXPECT_EQ(none.begin(), nullptr);
  EXPECT_EQ(none.size(), 0u);
  const HostMemory memory(5000);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.begin()) % kHugePage, 0u);
  EXPECT_EQ(memory.size(), 5000u);
  EXPECT_FALSE(memory.is_pinned_in(id));
  EXPECT_FALSE(memory.is_pinned_in({}));
}

TEST_F(HostMemoryTest, is_pinned_whole_once_for_a_context) {
  HostMemory memory(kHugePage + 5000);
  EXPECT_FALSE(is_resident(memory)) << "nothing is taken before the first write";
  memory.begin()[4999] = std::byte{7};
  ASSERT_TRUE(memory.pin(pins, id).ok());
  ASSERT_EQ(pins.asked.size(), 1u);
  EXPECT_EQ(pins.asked[0], (PinningDriver::Asked{memory.begin(), 2 * kHugePage, 0}));
  EXPECT_EQ(memory.begin()[4999], std::byte{7});
  EXPECT_TRUE(is_resident(memory)) << "the driver does it with one thread";
  EXPECT_TRUE(memory.is_pinned_in(id));
  EXPECT_FALSE(memory.is_pinned_in(kOther));
  ASSERT_TRUE(memory.pin(pins, id).ok());
  EXPECT_EQ(pins.asked.size(), 1u);
  EXPECT_EQ(count(Call::mem_host_unregister), 0u);
  ASSERT_TRUE(memory.pin(pins, kOther).ok());
  EXPECT_EQ(pins.asked.size(), 2u);
  EXPECT_EQ(count(Call::mem_host_unregister), 1u);
  EXPECT_TRUE(memory.is_pinned_in(kOther));
  EXPECT_FALSE(memory.is_pinned_in(id));
  EXPECT_EQ(pinned(), 1u);
  for (int i = 0; i < 2; ++i) {
    memory.unpin();
    EXPECT_FALSE(memory.is_pinned_in(kOther));
    EXPECT_EQ(count(Call::mem_host_unregister), 2u);
  }
  EXPECT_EQ(pinned(), 0u);
}

TEST_F(HostMemoryTest, a_registration_that_was_left_behind_serves) {
  HostMemory memory(5000);
  ASSERT_EQ(sim.mem_host_register(memory.begin(), kHugePage, 0), CuResult::success);
  ASSERT_TRUE(memory.pin(pins, id).ok());
  EXPECT_TRUE(memory.is_pinned_in(id));
  memory.unpin();
  EXPECT_EQ(pinned(), 0u);
}

TEST_F(HostMemoryTest, that_cannot_be_pinned_is_not) {
  HostMemory memory(5000);
  fail({Call::mem_host_register});
  expect_failed(memory.pin(pins, id), Call::mem_host_register);
  EXPECT_FALSE(memory.is_pinned_in(id));
  memory.unpin();
  EXPECT_EQ(count(Call::mem_host_unregister), 0u);
}

TEST_F(HostMemoryTest, stays_pinned_until_it_is_unpinned_or_its_context_took_that_along) {
  HostMemory memory(5000);
  ASSERT_TRUE(memory.pin(pins, id).ok());
  fail({Call::mem_host_unregister});
  memory.unpin();
  EXPECT_TRUE(memory.is_pinned_in(id));
  EXPECT_EQ(pinned(), 1u);
  fail({Call::mem_host_unregister}, 1, CuResult::host_memory_not_registered);
  memory.unpin();
  EXPECT_FALSE(memory.is_pinned_in(id));
  EXPECT_EQ(sim.mem_host_unregister(memory.begin()), CuResult::success);
}

TEST_F(HostMemoryTest, is_pinned_and_unpinned_while_a_stream_captures) {
  StreamHandle stream{};
  ASSERT_EQ(sim.stream_create(driver::StreamFlags::non_blocking, stream), CuResult::success);
  ASSERT_EQ(sim.stream_begin_capture(stream, driver::CaptureMode::global), CuResult::success);
  HostMemory memory(5000);
  EXPECT_TRUE(memory.pin(pins, id).ok());
  memory.unpin();
  driver::GraphHandle graph{};
  EXPECT_EQ(sim.stream_end_capture(stream, graph), CuResult::success);
  EXPECT_EQ(sim.graph_destroy(graph), CuResult::success);
  EXPECT_EQ(sim.stream_destroy(stream), CuResult::success);
}

TEST_F(HostMemoryTest, goes_from_hand_to_hand_with_its_registration) {
  HostMemory first(5000);
  std::byte* const begin = first.begin();
  ASSERT_TRUE(first.pin(pins, id).ok());
  HostMemory second(std::move(first));
  EXPECT_EQ(first.begin(), nullptr);
  EXPECT_EQ(first.size(), 0u);
  EXPECT_FALSE(first.is_pinned_in(id));
  EXPECT_EQ(second.begin(), begin);
  EXPECT_EQ(second.size(), 5000u);
  EXPECT_TRUE(second.is_pinned_in(id));
  HostMemory third(7000);
  std::byte* const other = third.begin();
  ASSERT_TRUE(third.pin(pins, kOther).ok());
  third = std::move(second);
  EXPECT_EQ(third.begin(), begin);
  EXPECT_EQ(third.size(), 5000u);
  EXPECT_TRUE(third.is_pinned_in(id));
  EXPECT_EQ(second.begin(), other);
  EXPECT_EQ(second.size(), 7000u);
  EXPECT_TRUE(second.is_pinned_in(kOther));
  second = HostMemory();
  EXPECT_EQ(pinned(), 2u) << "memory that ends while it is pinned stays";
  EXPECT_EQ(sim.mem_host_unregister(other), CuResult::success);
  ::operator delete (other, std::align_val_t{kHugePage});
  third.unpin();
}

TEST_F(HostMemoryTest, that_ends_while_it_is_pinned_stays_allocated) {
  std::byte* begin = nullptr;
  {
    HostMemory memory(5000);
    begin = memory.begin();
    begin[4999] = std::byte{7};
    ASSERT_TRUE(memory.pin(pins, id).ok());
  }
  const HostMemory next(5000);
  EXPECT_NE(next.begin(), begin);
  EXPECT_EQ(begin[4999], std::byte{7}) << "the GPU may use it";
  EXPECT_EQ(sim.mem_host_unregister(begin), CuResult::success);
  ::operator delete (begin, std::align_val_t{kHugePage});
}

TEST_F(HostMemoryTest, forgets_the_whole_pages_inside_a_range) {
  HostMemory memory(64 * kSystemPage);
  const auto fill = [&] { std::memset(memory.begin(), 7, memory.size()); };
  struct Range {
    Bytes begin, size, from, to;  // what reads as zero afterwards
  };
  for (const Range& each : {Range{0, 64 * kSystemPage, 0, 64 * kSystemPage},
                            Range{10, 2 * kSystemPage, kSystemPage, 2 * kSystemPage},
                            Range{kSystemPage, kSystemPage, kSystemPage, 2 * kSystemPage},
                            Range{kSystemPage, 3 * kSystemPage - 1, kSystemPage, 3 * kSystemPage},
                            Range{kSystemPage + 1, 2 * kSystemPage - 2, 0, 0}, Range{5, 10, 0, 0},
                            Range{kSystemPage, 0, 0, 0}}) {
    fill();
    EXPECT_TRUE(memory.forget(memory.begin() + each.begin, each.size));
    for (Bytes at = 0; at < memory.size(); ++at)
      ASSERT_EQ(memory.begin()[at] == std::byte{0}, at >= each.from && at < each.to)
          << at << " after " << each.begin << " with " << each.size;
  }
  fill();
  ASSERT_TRUE(memory.pin(pins, id).ok());
  EXPECT_FALSE(memory.forget(memory.begin(), memory.size()));
  EXPECT_FALSE(memory.forget(memory.begin() + 5, 10));
  EXPECT_EQ(memory.begin()[0], std::byte{7});
  memory.unpin();
  EXPECT_TRUE(memory.forget(memory.begin(), memory.size()));
  EXPECT_EQ(memory.begin()[0], std::byte{0});
}

// --- how much is left

class AvailableHostBytes : public ::testing::Test {
 protected:
  AvailableHostBytes() {
    std::string name = ::testing::TempDir() + "/vpmm_host_XXXXXX";
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    root = name;
    std::filesystem::create_directories(root + "/proc");
    std::filesystem::create_directories(root + "/sys/fs/cgroup");
  }
  ~AvailableHostBytes() override { std::filesystem::remove_all(root); }
  // Without a text there is no such file.
  void write(const std::string& name, const std::optional<std::string>& text) const {
    std::filesystem::remove(root + name);
    if (text) std::ofstream(root + name) << *text;
  }
  std::string root;
};

TEST_F(AvailableHostBytes, are_what_the_machine_and_the_control_group_leave) {
  using Text = std::optional<std::string>;
  const Text machine = "MemTotal:  900 kB\nMemFree:  100 kB\nMemAvailable:  500 kB\nCached: 7 kB\n";
  const Text stat = "anon 1000\nfile 70000\ninactive_file 6000\nactive_file 64000\n";
  const Bytes whole = 500 * kKiB;
  struct Case {
    Text machine, most, used, stat;
    std::optional<Bytes> expected;
  };
  for (const Case& each :
       {Case{machine, {}, {}, {}, whole}, Case{machine, "max\n", "9000\n", stat, whole},
        Case{machine, "20000\n", {}, stat, whole}, Case{machine, {}, "9000\n", stat, whole},
        Case{machine, "20000\n", "9000\n", {}, 11000},
        Case{machine, "20000\n", "9000\n", stat, 17000},
        Case{machine, "20000\n", "5000\n", stat, 20000},
        Case{machine, "20000\n", "30000\n", stat, 0}, Case{machine, "20000\n", "26000\n", stat, 0},
        Case{machine, "20000\n", "25999\n", stat, 1},
        Case{machine, "900000\n", "9000\n", stat, whole},
        Case{{}, "20000\n", "9000\n", stat, 17000}, Case{{}, "max\n", "9000\n", stat, {}},
        Case{{}, {}, {}, {}, {}}, Case{"MemFree: 5 kB\n", {}, {}, {}, {}},
        Case{"MemAvailable: many kB\n", {}, {}, {}, {}},
        Case{machine, "20000\n", "9000\n", "anon 1000\n", 11000}}) {
    write("/proc/meminfo", each.machine);
    write("/sys/fs/cgroup/memory.max", each.most);
    write("/sys/fs/cgroup/memory.current", each.used);
    write("/sys/fs/cgroup/memory.stat", each.stat);
    EXPECT_EQ(available_host_bytes(root), each.expected)
        << each.machine.value_or("-") << each.most.value_or("-") << each.used.value_or("-")
        << each.stat.value_or("-");
  }
}

TEST_F(AvailableHostBytes, can_be_set_and_are_real_again) {
  write("/proc/meminfo", "MemAvailable: 3 kB\n");
  const ScopeExit real([] { set_available_host_bytes(std::nullopt); });
  for (const Bytes bytes : {Bytes{0}, Bytes{1}, kGiB}) {
    set_available_host_bytes(bytes);
    EXPECT_EQ(available_host_bytes(root), bytes);
  }
  set_available_host_bytes(std::nullopt);
  EXPECT_EQ(available_host_bytes(root), 3 * kKiB);
}

TEST_F(AvailableHostBytes, of_this_machine_are_known) { EXPECT_TRUE(available_host_bytes()); }

}  // namespace
}  // namespace vpmm::host_copy
