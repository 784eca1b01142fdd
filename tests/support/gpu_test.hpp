// SPDX-License-Identifier: Apache-2.0
// tests: the fixture of tests that run on a simulated and on a real GPU: words for scenarios, and
// tidying up after them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "support/gpu_world.hpp"

#define EXPECT_OK(call) EXPECT_EQ((call), ::vpmm::driver::CuResult::success)
#define ASSERT_OK(call) ASSERT_EQ((call), ::vpmm::driver::CuResult::success)

namespace vpmm::test {

using namespace vpmm::literals;
using driver::CaptureInfo;
using driver::CaptureMode;
using driver::CaptureStatus;
using driver::ChunkHandle;
using driver::ChunkProperties;
using driver::ContextHandle;
using driver::ContextId;
using driver::CuResult;
using driver::EventHandle;
using driver::StreamFlags;
using driver::StreamHandle;
using driver::StreamId;

// Everything made through these words is given back at the end of the test, when all work is done,
// unless the test gave it back itself (through these words too). Without a GPU, tests on "cuda" are
// skipped.
class GpuTest : public ::testing::TestWithParam<WorldKind> {
 protected:
  // One world for all tests on a GPU; a new one for each test on the simulator.
  void SetUp() override;
  void TearDown() override;

  GpuWorld& world() { return *world_; }
  driver::Driver& driver() { return world_->driver(); }

  Bytes granularity();
  AddressRange reserve(Bytes size);
  ChunkHandle create(Bytes size);
  void map(AddressRange range, ChunkHandle chunk);  // the whole chunk, and lets device 0 use it
  void allow(AddressRange range);
  void unmap(AddressRange range);  // any run of whole mappings
  void release(ChunkHandle chunk);
  AddressRange memory(Bytes size);  // one chunk in a reservation of its own

  StreamHandle stream(StreamFlags flags = StreamFlags::non_blocking);
  void destroy(StreamHandle stream);
  StreamId id_of(StreamHandle stream);
  EventHandle event();
  EventHandle recorded_event(StreamHandle stream);

  void fill(AddressRange range, std::uint32_t pattern);  // complete on return
  std::vector<std::uint32_t> words_of(AddressRange range);
  // True if every word is `pattern`; else adds a failure that names the first other one.
  bool holds(AddressRange range, std::uint32_t pattern);

 private:
  void give_back_memory();

  std::shared_ptr<GpuWorld> world_;  // null: the test is skipped
  std::map<DevicePtr, Bytes> mappings_;
  std::vector<AddressRange> reservations_;
  std::set<ChunkHandle> chunks_;
  std::set<StreamHandle> streams_;
  std::vector<EventHandle> events_;
};

// For INSTANTIATE_TEST_SUITE_P: "sim" and "cuda" at the end of each name.
inline std::string world_name(const ::testing::TestParamInfo<WorldKind>& info) {
  return to_string(info.param);
}

}  // namespace vpmm::test

#define VPMM_ON_BOTH_DRIVERS(suite)                                                              \
  INSTANTIATE_TEST_SUITE_P(                                                                      \
      On, suite, ::testing::Values(::vpmm::test::WorldKind::sim, ::vpmm::test::WorldKind::cuda), \
      ::vpmm::test::world_name)
