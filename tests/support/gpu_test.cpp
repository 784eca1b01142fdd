// SPDX-License-Identifier: Apache-2.0
// tests: how scenarios on a GPU are set up and tidied away.
#include "support/gpu_test.hpp"

#include <algorithm>

namespace vpmm::test {
namespace {

using SharedWorld = Result<std::shared_ptr<GpuWorld>>;

SharedWorld share(Result<std::unique_ptr<GpuWorld>> world) {
  if (!world) return std::move(world.error());
  return std::shared_ptr<GpuWorld>(std::move(world).value());
}

SharedWorld world_for_a_test(WorldKind kind) {
  if (kind == WorldKind::sim) return share(open_sim_world());
  static const auto* cuda =
      new SharedWorld(share(open_cuda_world()));  // never destroyed: no CUDA call at exit
  return *cuda;
}

}  // namespace

void GpuTest::SetUp() {
  SharedWorld world = world_for_a_test(GetParam());
  if (world) {
    world_ = world.value();
  } else if (world.error().code == ErrorCode::no_driver && !gpu_is_required()) {
    GTEST_SKIP() << world.error().message;  // no GPU: the simulator alone answers
  } else {
    FAIL() << world.error().message;
  }
}

void GpuTest::TearDown() {
  if (world_ == nullptr) return;
  world_->settle();
  for (const StreamHandle stream : streams_) EXPECT_OK(driver().stream_destroy(stream));
  for (const EventHandle event : events_) EXPECT_OK(driver().event_destroy(event));
  give_back_memory();
  EXPECT_EQ(world_->complaints(), "");
}

void GpuTest::give_back_memory() {
  for (const auto& [begin, size] : mappings_) EXPECT_OK(driver().mem_unmap({begin, size}));
  for (const ChunkHandle chunk : chunks_) EXPECT_OK(driver().mem_release(chunk));
  for (const AddressRange& reservation : reservations_)
    EXPECT_OK(driver().mem_address_free(reservation));
}

Bytes GpuTest::granularity() {
  Bytes bytes = 0;
  EXPECT_OK(driver().mem_get_allocation_granularity(ChunkProperties{}, driver::Granularity::minimum,
                                                    bytes));
  return bytes;
}

AddressRange GpuTest::reserve(Bytes size) {
  AddressRange range{DevicePtr{}, size};
  EXPECT_OK(driver().mem_address_reserve(size, 0, DevicePtr{}, range.begin));
  reservations_.push_back(range);
  return range;
}

ChunkHandle GpuTest::create(Bytes size) {
  ChunkHandle chunk{};
  EXPECT_OK(driver().mem_create(size, ChunkProperties{}, chunk));
  chunks_.insert(chunk);
  return chunk;
}

void GpuTest::map(AddressRange range, ChunkHandle chunk) {
  EXPECT_OK(driver().mem_map(range, 0, chunk));
  mappings_.emplace(range.begin, range.size);
  allow(range);
}

void GpuTest::allow(AddressRange range) {
  const driver::AccessDescriptor access[] = {{0}};
  EXPECT_OK(driver().mem_set_access(range, access));
}

void GpuTest::unmap(AddressRange range) {
  EXPECT_OK(driver().mem_unmap(range));
  mappings_.erase(mappings_.lower_bound(range.begin), mappings_.lower_bound(range.end()));
}

void GpuTest::release(ChunkHandle chunk) {
  EXPECT_OK(driver().mem_release(chunk));
  chunks_.erase(chunk);
}

AddressRange GpuTest::memory(Bytes size) {
  const AddressRange range = reserve(size);
  map(range, create(size));
  return range;
}

StreamHandle GpuTest::stream(StreamFlags flags) {
  StreamHandle made{};
  EXPECT_OK(driver().stream_create(flags, made));
  streams_.insert(made);
  return made;
}

void GpuTest::destroy(StreamHandle stream) {
  EXPECT_OK(driver().stream_destroy(stream));
  streams_.erase(stream);
}

StreamId GpuTest::id_of(StreamHandle stream) {
  StreamId id{};
  EXPECT_OK(driver().stream_get_id(stream, id));
  return id;
}

EventHandle GpuTest::event() {
  EventHandle made{};
  EXPECT_OK(driver().event_create(made));
  events_.push_back(made);
  return made;
}

EventHandle GpuTest::recorded_event(StreamHandle stream) {
  const EventHandle made = event();
  EXPECT_OK(driver().event_record(made, stream));
  return made;
}

void GpuTest::fill(AddressRange range, std::uint32_t pattern) {
  EXPECT_OK(world().launch_fill(driver::kNullStream, range, pattern));
  EXPECT_OK(driver().stream_synchronize(driver::kNullStream));
}

std::vector<std::uint32_t> GpuTest::words_of(AddressRange range) {
  std::vector<std::uint32_t> words(range.size / sizeof(std::uint32_t));
  EXPECT_OK(driver().memcpy_device_to_host(words.data(), range.begin, range.size));
  return words;
}

bool GpuTest::holds(AddressRange range, std::uint32_t pattern) {
  const std::vector<std::uint32_t> words = words_of(range);
  const auto other =
      std::find_if(words.begin(), words.end(), [&](std::uint32_t word) { return word != pattern; });
  if (other == words.end()) return true;
  ADD_FAILURE() << "word " << other - words.begin() << " is " << std::hex << *other << ", not "
                << pattern;
  return false;
}

}  // namespace vpmm::test
