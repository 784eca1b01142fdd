// SPDX-License-Identifier: Apache-2.0
// tests/sim: chunks that go from one simulator to another as file descriptors, within a process and
// between two.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <iterator>
#include <vector>

#include "driver/sim/costs.hpp"
#include "sim/other_process.hpp"
#include "sim/sim_fixture.hpp"
#include "support/page_size.hpp"

namespace vpmm::driver::sim {
namespace {

constexpr Bytes kSize = 2 * kPage;

ChunkHandle create(Sim& sim, DeviceOrdinal device = 0) {
  ChunkHandle chunk{};
  ok(sim.driver.mem_create(kSize, ChunkProperties{device, true, false}, chunk));
  return chunk;
}

int export_file(Sim& sim, ChunkHandle chunk) {
  int file = -1;
  ok(sim.driver.mem_export_to_shareable_handle(chunk, file));
  return file;
}

ChunkHandle import_file(Sim& sim, int file) {
  ChunkHandle chunk{};
  ok(sim.driver.mem_import_from_shareable_handle(file, chunk));
  EXPECT_EQ(close(file), 0);
  return chunk;
}

CuResult try_to_import(Sim& sim, int file) {
  ChunkHandle chunk{};
  const CuResult result = sim.driver.mem_import_from_shareable_handle(file, chunk);
  EXPECT_EQ(chunk, ChunkHandle{});
  return result;
}

// Of the chunk only the mapping is left.
AddressRange mapped(Sim& sim, ChunkHandle chunk) {
  const AddressRange range = sim.reserve(kSize);
  sim.map(range, chunk);
  ok(sim.driver.mem_release(chunk));
  return range;
}

void unmap(Sim& sim, AddressRange range) {
  ok(sim.driver.mem_unmap(range));
  ok(sim.driver.mem_address_free(range));
}

auto open_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"),
                       std::filesystem::directory_iterator());
}

Bytes free_bytes(Sim& sim) {
  MemInfo info;
  ok(sim.driver.mem_get_info(info));
  return info.free;
}

TEST(SimChunkSharing, two_processes_use_one_chunk) {
  Exporter exporter([](Sim& sim, Channel& channel) {
    create(sim);  // so that the shared one does not begin the memory file
    const ChunkHandle chunk = create(sim);
    const int file = export_file(sim, chunk);
    const AddressRange range = mapped(sim, chunk);
    fill(sim, range, 7);
    channel.send_file(file);
    close(file);
    channel.wait();
    EXPECT_TRUE(all_are(sim, range, 9));
  });
  Sim sim;
  const AddressRange range = mapped(sim, import_file(sim, exporter.channel().receive_file()));
  EXPECT_TRUE(all_are(sim, range, 7));
  fill(sim, range, 9);
  exporter.channel().signal();
  exporter.end();
  EXPECT_EQ(sim.driver.hazard_count(), 0U) << sim.hazards();
}

TEST(SimChunkSharing, the_descriptor_keeps_the_memory_when_the_exporter_lets_go_and_ends) {
  Exporter exporter([](Sim& sim, Channel& channel) {
    const Bytes before = free_bytes(sim);
    const ChunkHandle chunk = create(sim);
    const int file = export_file(sim, chunk);
    const AddressRange range = mapped(sim, chunk);
    fill(sim, range, 7);
    unmap(sim, range);
    EXPECT_EQ(free_bytes(sim), before);
    EXPECT_EQ(sim.driver.census().physical_bytes, 0U);
    channel.send_file(file);
    close(file);
  });
  const int file = exporter.channel().receive_file();
  exporter.end();
  Sim sim;
  EXPECT_TRUE(all_are(sim, mapped(sim, import_file(sim, file)), 7));
}

TEST(SimChunkSharing, a_mapping_keeps_the_memory_when_the_exporter_lets_go) {
  Sim exporting;
  Sim sim;
  const ChunkHandle chunk = create(exporting);
  const int file = export_file(exporting, chunk);
  const AddressRange lent = mapped(exporting, chunk);
  fill(exporting, lent, 7);
  const AddressRange range = mapped(sim, import_file(sim, file));
  unmap(exporting, lent);
  EXPECT_TRUE(all_are(sim, range, 7));
}

TEST(SimChunkSharing, each_descriptor_is_of_its_own_chunk) {
  Sim exporting;
  Sim sim;
  std::vector<int> files;
  for (std::uint8_t value = 1; value <= 3; ++value) {
    const ChunkHandle chunk = create(exporting);
    files.push_back(export_file(exporting, chunk));
    fill(exporting, mapped(exporting, chunk), value);
  }
  for (std::uint8_t value = 1; value <= 3; ++value) {
    EXPECT_TRUE(all_are(sim, mapped(sim, import_file(sim, files[value - 1u])), value));
  }
}

TEST(SimChunkSharing, the_importer_pays_nothing_and_has_a_chunk_to_let_go_of) {
  Sim exporting;
  Sim sim;
  const Bytes before = free_bytes(sim);
  const ChunkHandle chunk = import_file(sim, export_file(exporting, create(exporting)));
  EXPECT_EQ(sim.driver.census().chunks, 1U);
  const AddressRange range = mapped(sim, chunk);
  EXPECT_EQ(free_bytes(sim), before);
  EXPECT_EQ(sim.driver.census().physical_bytes, 0U);
  EXPECT_EQ(sim.driver.census().chunks, 1U);
  EXPECT_EQ(sim.driver.census().mappings, 1U);
  unmap(sim, range);
  EXPECT_EQ(sim.driver.census().chunks, 0U);
  EXPECT_EQ(free_bytes(sim), before);
}

TEST(SimChunkSharing, a_simulator_imports_its_own_chunk_as_that_of_any_other) {
  Sim sim;
  const ChunkHandle chunk = create(sim);
  const ChunkHandle again = import_file(sim, export_file(sim, chunk));
  const AddressRange own = mapped(sim, chunk);
  const AddressRange alias = mapped(sim, again);
  fill(sim, own, 7);
  EXPECT_TRUE(all_are(sim, alias, 7));
  unmap(sim, own);
  EXPECT_TRUE(all_are(sim, alias, 7));
}

TEST(SimChunkSharing, an_imported_chunk_is_exported_again) {
  Sim first;
  Sim second;
  Sim third;
  const ChunkHandle chunk = create(first);
  const int file = export_file(first, chunk);
  fill(first, mapped(first, chunk), 7);
  const ChunkHandle passed_on = import_file(second, file);
  const int again = export_file(second, passed_on);
  ok(second.driver.mem_release(passed_on));
  EXPECT_TRUE(all_are(third, mapped(third, import_file(third, again)), 7));
}

TEST(SimChunkSharing, only_what_the_caller_has_not_closed_or_released_stays_open) {
  Sim exporting;
  Sim sim;
  const auto before = open_files();
  const ChunkHandle chunk = create(exporting);
  for (int i = 0; i < 1000; ++i) mapped(sim, import_file(sim, export_file(exporting, chunk)));
  EXPECT_EQ(open_files(), before) << "mappings need no descriptor";
  const int file = export_file(exporting, chunk);
  EXPECT_EQ(open_files(), before + 1);
  const ChunkHandle imported = import_file(sim, file);
  EXPECT_EQ(open_files(), before + 1) << "a handle needs one";
  ok(sim.driver.mem_release(imported));
  EXPECT_EQ(open_files(), before);
  {
    Sim ending;
    import_file(ending, export_file(exporting, chunk));
  }
  EXPECT_EQ(open_files(), before);
}

TEST(SimChunkSharing, a_descriptor_is_not_passed_to_programs_that_the_process_starts) {
  Sim sim;
  const int file = export_file(sim, create(sim));
  EXPECT_EQ(fcntl(file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  close(file);
}

TEST(SimChunkSharing, an_imported_chunk_is_its_devices_and_others_get_access) {
  SimOptions options = Sim::manual();
  options.device_count = 2;
  Sim exporting(options);
  Sim sim(options);
  Sim single;
  const int file = export_file(exporting, create(exporting, 1));
  EXPECT_EQ(try_to_import(single, file), CuResult::invalid_device);
  const ChunkHandle chunk = import_file(sim, file);
  const AddressRange range = sim.reserve(kSize);
  ok(sim.driver.mem_map(range, 0, chunk));
  sim.allow(range, {1});
  sim.write(range, sim.stream());
  EXPECT_EQ(sim.kinds(), std::vector{Hazard::Kind::unmapped_access});
  sim.allow(range, {0});
  sim.write(range, sim.stream());
  EXPECT_EQ(sim.kinds().size(), 1U) << sim.hazards();
}

TEST(SimChunkSharing, unmapping_while_work_may_still_use_the_memory_is_a_hazard) {
  Sim exporting;
  Sim sim;
  const AddressRange range =
      mapped(sim, import_file(sim, export_file(exporting, create(exporting))));
  sim.write(range, sim.stream());
  ok(sim.driver.mem_unmap(range));
  EXPECT_EQ(sim.kinds(), std::vector{Hazard::Kind::unmapped_too_early});
}

TEST(SimChunkSharing, a_chunk_is_exported_by_a_live_handle_that_was_made_for_it) {
  Sim sim;
  int file = -7;
  EXPECT_EQ(sim.driver.mem_export_to_shareable_handle(sim.create(kPage), file),
            CuResult::invalid_value);
  const ChunkHandle released = create(sim);
  ok(sim.driver.mem_release(released));
  EXPECT_EQ(sim.driver.mem_export_to_shareable_handle(released, file), CuResult::invalid_value);
  EXPECT_EQ(sim.driver.mem_export_to_shareable_handle(ChunkHandle{}, file),
            CuResult::invalid_value);
  EXPECT_EQ(file, -7);
}

TEST(SimChunkSharing, descriptors_of_anything_else_are_refused) {
  Sim sim;
  const int good = export_file(sim, create(sim));
  const int memory = memfd_create("as large", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(memory, off_t{1} << 60), 0);
  const int device = open("/dev/zero", O_RDWR | O_CLOEXEC);
  const int folder = open("/proc/self", O_RDONLY | O_CLOEXEC);
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(pipe2(pipe_ends.data(), O_CLOEXEC), 0);
  for (const int other : {-1, 100'000, memory, device, folder, pipe_ends[0]}) {
    EXPECT_EQ(try_to_import(sim, other), CuResult::invalid_value) << other;
  }
  for (const off_t elsewhere :
       {off_t{1}, off_t{kPage}, off_t{kSize}, off_t{1} << 59, off_t{3} << 58}) {
    ASSERT_EQ(lseek(good, elsewhere, SEEK_SET), elsewhere);
    EXPECT_EQ(try_to_import(sim, good), CuResult::invalid_value) << elsewhere;
  }
  ASSERT_EQ(lseek(good, 0, SEEK_SET), 0);
  import_file(sim, good);
  for (const int other : {memory, device, folder, pipe_ends[0], pipe_ends[1]})
    EXPECT_EQ(close(other), 0);
}

TEST(SimChunkSharing, machines_of_different_granularity_share_nothing) {
  SimOptions options = Sim::manual();
  options.granularity = 8 * kMiB;
  Sim exporting;
  Sim sim(options);
  const int file = export_file(exporting, create(exporting));
  EXPECT_EQ(try_to_import(sim, file), CuResult::map_failed);
  EXPECT_EQ(sim.driver.census().chunks, 0U);
  close(file);
}

TEST(SimChunkSharing, a_driver_without_descriptors_makes_and_imports_no_such_chunks) {
  SimOptions options = Sim::manual();
  options.posix_file_descriptor_supported = false;
  Sim exporting;
  Sim sim(options);
  ChunkHandle chunk{};
  EXPECT_EQ(sim.driver.mem_create(kSize, ChunkProperties{0, true, false}, chunk),
            CuResult::not_supported);
  const int file = export_file(exporting, create(exporting));
  EXPECT_EQ(try_to_import(sim, file), CuResult::not_supported);
  close(file);
}

TEST(SimChunkSharing, without_a_free_descriptor_nothing_is_shared_and_nothing_is_lost) {
  Sim sim;
  const ChunkHandle chunk = create(sim);
  const int file = export_file(sim, chunk);
  std::vector<int> taken;
  for (int copy = 0; (copy = dup(file)) >= 0;) taken.push_back(copy);
  int none = -7;
  EXPECT_EQ(sim.driver.mem_export_to_shareable_handle(chunk, none), CuResult::operating_system);
  EXPECT_EQ(none, -7);
  EXPECT_EQ(try_to_import(sim, file), CuResult::operating_system);
  for (const int copy : taken) close(copy);
  EXPECT_EQ(sim.driver.census().chunks, 1U);
  import_file(sim, file);
}

TEST(SimChunkSharing, chunks_are_shared_during_a_capture) {
  Sim sim;
  const ChunkHandle chunk = create(sim);
  const StreamHandle stream = sim.stream();
  GraphHandle graph{};
  ok(sim.driver.stream_begin_capture(stream, CaptureMode::global));
  import_file(sim, export_file(sim, chunk));
  ok(sim.driver.stream_end_capture(stream, graph));
}

TEST(SimChunkSharing, an_imported_chunk_survives_a_reset) {
  Sim exporting;
  Sim sim;
  const ChunkHandle chunk = import_file(sim, export_file(exporting, create(exporting)));
  ok(sim.driver.device_primary_ctx_reset(0));
  sim.use_device(0);
  EXPECT_TRUE(all_are(sim, mapped(sim, chunk), 0));
}

TEST(SimChunkSharing, every_chunk_costs_what_was_measured) {
  const auto ns_of = [](Sim& sim, auto&& call) {
    const std::uint64_t begin = sim.driver.now_ns();
    call();
    return sim.driver.now_ns() - begin;
  };
  Sim exporting;
  Sim sim;
  const ChunkHandle chunk = create(exporting);
  int file = -1;
  ChunkHandle imported{};
  const AddressRange range = sim.reserve(kSize);
  EXPECT_EQ(ns_of(exporting, [&] { file = export_file(exporting, chunk); }), kExportCost.at(kSize));
  EXPECT_EQ(ns_of(sim, [&] { imported = import_file(sim, file); }), 17'000U);
  ok(sim.driver.mem_map(range, 0, imported));
  EXPECT_EQ(ns_of(sim, [&] { sim.allow(range, {0}); }), kSetAccessOfImportCost.at(kSize));
}

}  // namespace
}  // namespace vpmm::driver::sim
