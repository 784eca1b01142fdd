// SPDX-License-Identifier: Apache-2.0
// ipc tests: what an importer can read and write beside what it opened, without isolation, with it,
// and of one chunk.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/address.hpp"
#include "ipc/process.hpp"

namespace vpmm::ipc_test::reach_test {
namespace {

constexpr Bytes kPage = 2 * kMiB;
constexpr std::uint64_t kAttack = 666;

// How the exporter allocates what it shares.
enum class Kind { shared, isolated, one_chunk, arena };

struct Reach {
  Address begin = 0;
  Address end = 0;
  bool contains(Address from, Bytes bytes) const { return begin <= from && from + bytes <= end; }
};

// In an importer: what its driver has mapped around an address without a gap. A hostile one looks
// no further than that.
Reach reach_around(Process& importer, Address opened) {
  Parcel asked;
  asked.words[0] = opened;
  const Parcel answer = importer.call(
      [](Parcel& parcel) {
        driver::Driver& driver = driver_of_actor();
        Address begin = parcel.words[0], end = begin;
        AddressRange mapping;
        const auto is_mapped = [&](Address at) {
          return driver.mem_get_address_range(DevicePtr{at}, mapping) == driver::CuResult::success;
        };
        for (Address at = begin; is_mapped(at); at = begin - 1) begin = to_integer(mapping.begin);
        for (Address at = end; is_mapped(at); at = end) end = to_integer(mapping.end());
        parcel.words[0] = begin;
        parcel.words[1] = end;
      },
      asked);
  return {answer.words[0], answer.words[1]};
}

Address allocate(Process& exporter, Kind kind, Bytes bytes) {
  if (kind == Kind::shared || kind == Kind::isolated) return exporter.allocate(bytes);
  Parcel asked;
  asked.words[1] = bytes;
  const Work in_one_chunk = [](Parcel& parcel) {
    void* ptr = nullptr;
    vpmm_request request{};
    request.size = sizeof request;
    request.bytes = parcel.words[1];
    request.flags = VPMM_ALLOCATE_ANY_STREAM | VPMM_ALLOCATE_ONE_CHUNK;
    parcel.take(vpmm_allocate_with(pool_of_actor(), &request, &ptr));
    parcel.words[0] = reinterpret_cast<Address>(ptr);
  };
  const Work in_an_arena = [](Parcel& parcel) {
    driver_of_actor();
    static vpmm_arena* arena = nullptr;
    if (arena == nullptr) parcel.take(vpmm_arena_create(pool_of_actor(), 0, 0, &arena));
    void* ptr = nullptr;
    if (parcel.status == VPMM_OK)
      parcel.take(vpmm_arena_allocate(arena, parcel.words[1], 0, nullptr, &ptr));
    parcel.words[0] = reinterpret_cast<Address>(ptr);
  };
  const Parcel answer = exporter.call(kind == Kind::arena ? in_an_arena : in_one_chunk, asked);
  expect_ok(answer);
  return answer.words[0];
}

// An exporter's memory: what it shares, and what is its own, before, beside and behind it.
struct Estate {
  struct Plot {
    Address address = 0;
    Bytes bytes = 0;
    std::uint64_t seed = 0;
  };
  Process& exporter;
  std::vector<Plot> plots{};

  void settle(Bytes bytes) {
    plots.push_back({exporter.allocate(bytes), bytes, plots.size() + 1});
    write(plots.back());
  }
  void write(const Plot& plot) { exporter.fill(plot.address, plot.bytes, plot.seed); }
  void expect_untouched() {
    for (const Plot& plot : plots) exporter.expect(plot.address, plot.bytes, plot.seed);
  }
};

class IpcReach : public testing::TestWithParam<std::pair<Kind, Bytes>> {
 protected:
  static std::vector<std::string> settings() {
    return GetParam().first == Kind::isolated ? std::vector<std::string>{"VPMM_IPC_ISOLATE=1"}
                                              : std::vector<std::string>{};
  }
  static Bytes bytes() { return GetParam().second; }

  // Idle memory of all sizes, so that what follows could be cut from it.
  static void leave_idle(Process& exporter) {
    std::vector<Address> idle;
    for (const Bytes size : {64 * kMiB, 2 * kMiB, 10 * kMiB, 2 * kMiB})
      idle.push_back(exporter.allocate(size));
    for (const Address address : idle) exporter.free(address);
  }
};

TEST_P(IpcReach, is_the_neighbours_too_or_nothing_but_the_allocation) {
  const Kind kind = GetParam().first;
  Process exporter(settings());
  Process importer;
  leave_idle(exporter);
  Estate estate{exporter};
  for (int i = 0; i < 3; ++i) estate.settle(bytes());
  const Address shared = allocate(exporter, kind, bytes());
  exporter.fill(shared, bytes(), 99);
  for (int i = 0; i < 3; ++i) estate.settle(bytes());
  const vpmm_ipc_handle handle = exporter.share(shared, bytes());
  const Address opened = importer.open(handle);
  estate.settle(bytes());  // later, too
  const Reach reach = reach_around(importer, opened);
  ASSERT_TRUE(reach.contains(opened, bytes()));

  // What of it others have, in the exporter; the same there and here.
  const Address here_less_there = opened - shared;
  const Reach there{reach.begin - here_less_there, reach.end - here_less_there};
  std::vector<std::pair<Address, Bytes>> exposed;
  for (const Estate::Plot& plot : estate.plots) {
    const Address begin = std::max(plot.address, there.begin),
                  end = std::min(plot.address + plot.bytes, there.end);
    if (begin < end) exposed.emplace_back(begin, end - begin);
  }
  if (kind == Kind::shared) {
    ASSERT_FALSE(exposed.empty()) << "SECURITY.md says that neighbours are exposed";
    for (const auto& [address, size] : exposed) {
      exporter.fill(address, size, 7);
      importer.expect(address + here_less_there, size, 7);
      importer.fill(address + here_less_there, size, kAttack);
      exporter.expect(address, size, kAttack);
    }
  } else {
    EXPECT_EQ(exposed.size(), 0u);
    const Bytes pages = (bytes() + kPage - 1) / kPage * kPage;
    EXPECT_LE(reach.end - reach.begin, pages + pages / 8)
        << "whole pages, and what a hit may have too much";
    // Everything that it can write, it writes.
    importer.fill(reach.begin, reach.end - reach.begin, kAttack);
    estate.expect_untouched();
    exporter.fill(shared, bytes(), 99);
    for (int i = 0; i < 3; ++i) estate.settle(bytes());  // nothing is put there that it reaches
    importer.fill(reach.begin, reach.end - reach.begin, kAttack);
    estate.expect_untouched();
    exporter.fill(shared, bytes(), 99);
  }
  importer.expect(opened, bytes(), 99);
  importer.close(opened);
  exporter.end(handle);
  exporter.free(shared);
  for (const Estate::Plot& plot : estate.plots) exporter.free(plot.address);
  expect_leases_to_end(exporter);
}

std::vector<std::pair<Kind, Bytes>> all_kinds() {
  std::vector<std::pair<Kind, Bytes>> all;
  for (const Kind kind : {Kind::shared, Kind::isolated, Kind::one_chunk, Kind::arena})
    for (const Bytes bytes : {Bytes{1000}, 300 * kKiB, kPage, 3 * kMiB, 9 * kMiB})
      all.emplace_back(kind, bytes);
  return all;
}

std::string name_of(const testing::TestParamInfo<std::pair<Kind, Bytes>>& tested) {
  static constexpr const char* kNames[] = {"shared", "isolated", "one_chunk", "arena"};
  return kNames[static_cast<int>(tested.param.first)] +
         ("_of_" + std::to_string(tested.param.second / 1000)) + "_kB";
}

INSTANTIATE_TEST_SUITE_P(All, IpcReach, testing::ValuesIn(all_kinds()), name_of);

}  // namespace
}  // namespace vpmm::ipc_test::reach_test
