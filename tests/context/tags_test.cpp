// SPDX-License-Identifier: Apache-2.0
// context: tags of allocations: where they are seen, and that none outlives its allocation.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "report/tags.hpp"
#include "support/event_log.hpp"
#include "support/pool_world_words.hpp"

namespace vpmm::test {
namespace {

using report::bit_of;

DevicePtr allocate_tagged(PoolWorld& world, Bytes bytes, pool::Stream stream, std::uint32_t tag) {
  pool::Request request{bytes, 0, stream};
  request.tag = tag;
  const auto result = world.pool().allocate(request);
  EXPECT_TRUE(result.ok()) << message_of(result);
  EXPECT_EQ(world.pool().reports().validate(), "");
  return result ? result.value() : DevicePtr{};
}

// None: nothing live begins there.
std::optional<std::uint32_t> tag_at(PoolWorld& world, DevicePtr ptr) {
  for (const report::LayoutBlock& block : world.pool().reports().layout().blocks)
    if (block.range.begin == ptr && block.state == region::RegionState::allocated) return block.tag;
  return std::nullopt;
}

// Of a block, a span, a page that streams keep, and pages that they do not.
class Tags : public ::testing::TestWithParam<Bytes> {};

TEST_P(Tags, are_in_events_and_layouts_until_the_allocation_is_freed) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  std::vector<ReportedEvent> told;
  const report::EventKinds kinds =
      bit_of(EventKind::allocate) | bit_of(EventKind::free) | bit_of(EventKind::record_use);
  const auto id = world.pool().reports().add_event_callback(
      kinds, [&](const ReportedEvent& event) { told.push_back(event); });
  const DevicePtr ptr = allocate_tagged(world, GetParam(), stream, 7);
  ASSERT_TRUE(world.pool().record_use(ptr, world.stream()).ok());
  EXPECT_EQ(tag_at(world, ptr), 7u);
  world.deallocate(ptr, stream);
  ASSERT_EQ(told.size(), 3u);
  for (const ReportedEvent& event : told) EXPECT_EQ(event.tag, 7u);
  EXPECT_TRUE(world.pool().reports().remove_event_callback(id).ok());
}

TEST_P(Tags, do_not_outlive_their_allocation_whoever_frees_it) {
  for (const bool is_named : {true, false}) {
    PoolWorld world(adaptive_world());
    const StreamHandle stream = world.stream();
    world.deallocate(world.allocate(GetParam(), stream),
                     stream);  // what a cache could serve from now on
    const DevicePtr ptr = allocate_tagged(world, GetParam(), stream, 7);
    EXPECT_EQ(tag_at(world, ptr), 7u);
    world.deallocate(ptr, is_named ? pool::Stream(stream) : std::nullopt);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(tag_at(world, world.allocate(GetParam(), stream)), 0u);
  }
}

TEST_P(Tags, of_a_bound_streams_frees_and_of_finalizers_end_too) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  auto bound = world.pool().bind(stream);
  ASSERT_TRUE(bound.ok());
  const DevicePtr first = allocate_tagged(world, GetParam(), stream, 7);
  ASSERT_TRUE(bound.value()->deallocate(first).ok());
  const DevicePtr second = allocate_tagged(world, GetParam(), stream, 8);
  world.pool().deallocate_deferred(second);
  world.wait();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(tag_at(world, world.allocate(GetParam(), stream)), 0u);
}

TEST_P(Tags, cost_the_stream_no_proof_of_its_own_frees) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const DevicePtr first = allocate_tagged(world, GetParam(), stream, 7);
  world.use(first, GetParam(), stream, kLongNs);
  world.deallocate(first, stream);
  EXPECT_EQ(allocate_tagged(world, GetParam(), stream, 8), first);
  EXPECT_EQ(world.statistics().host_waits, 0u);
}

INSTANTIATE_TEST_SUITE_P(Sizes, Tags, ::testing::Values(1000, 300'000, kPage, 12 * kPage));

TEST(Tag, of_memory_that_a_reset_took_away_is_forgotten) {
  WorldOptions options = adaptive_world();
  options.config.small = settings::SmallRequests::stream_ordered;
  PoolWorld world(options);
  const DevicePtr lost = allocate_tagged(world, 1000, world.stream(), 7);
  EXPECT_EQ(tag_at(world, lost), 7u);
  const DevicePtr kept = allocate_tagged(world, 4 * kPage, std::nullopt, 8);
  ASSERT_TRUE(world.pool().streams().reset().ok());
  EXPECT_EQ(tag_at(world, lost), std::nullopt);
  EXPECT_EQ(tag_at(world, kept), 8u);
  const StreamHandle stream = world.stream();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(tag_at(world, world.allocate(1000, stream)), 0u);
}

TEST(Tag, names_what_lives_in_the_report_of_a_shortage) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.pool().limits().set_capacity(8 * kPage);
  report::set_tag_name(41, "weights");
  allocate_tagged(world, 2 * kPage, stream, 41);
  allocate_tagged(world, 1 * kPage, stream, 41);
  allocate_tagged(world, 1000, stream, 42);
  pool::Request request{8 * kPage, 0, stream};
  request.tag = 43;
  const EventLog log(world.pool(), bit_of(EventKind::out_of_memory));
  expect_error(world.pool().allocate(request), ErrorCode::out_of_memory,
               {"by tag     weights: 6 MiB, 42: 1000 bytes", ", tag 43\n"});
  ASSERT_EQ(log.events().size(), 1u);
  EXPECT_EQ(log.events()[0].tag, 43u);
}

// Of memory that the library asked for, each in another way.
TEST(LibraryOfMemory, counts_whichever_tag_it_has_until_it_is_freed) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  const std::uint32_t cupy = report::tag_with_name("cupy");
  report::set_tag_name(44, "kv-cache");
  std::vector<DevicePtr> all;
  const auto allocate = [&](Bytes bytes, std::uint32_t tag, std::uint32_t library) {
    pool::Request request{bytes, 0, stream};
    request.tag = tag;
    request.library = library;
    const auto result = world.pool().allocate(request);
    ASSERT_TRUE(result.ok()) << message_of(result);
    all.push_back(result.value());
  };
  const auto info = [&](std::uint32_t tag) { return world.pool().suspension().info(tag); };
  allocate(kPage, 0, cupy);
  allocate(2 * kPage, 44, cupy);
  ASSERT_TRUE(world.pool().suspension().enter(44, context::TagScope::process).ok());
  allocate(1000, 0, cupy);
  ASSERT_TRUE(world.pool().suspension().leave(44, context::TagScope::process).ok());
  allocate(4 * kPage, 44, 0);
  EXPECT_EQ(info(cupy).amounts.live, kPage);
  EXPECT_EQ(info(cupy).of_library, 3 * kPage + 1000);
  EXPECT_EQ(info(44).amounts.live, 6 * kPage + 1000);
  EXPECT_EQ(info(44).of_library, 0u);
  world.deallocate(all.front(), stream);
  EXPECT_THAT(world.pool().suspension().all_tags(), ::testing::ElementsAre(44u, cupy))
      << "the library has memory, its tag none";
  world.pool().limits().set_capacity(8 * kPage);
  expect_error(world.pool().allocate(pool::Request{8 * kPage, 0, stream}), ErrorCode::out_of_memory,
               {"by library no library known: 8 MiB, cupy: 4", "by tag     kv-cache: 12"});
  for (std::size_t i = 1; i < all.size(); ++i) world.deallocate(all[i], stream);
  EXPECT_EQ(info(cupy).of_library, 0u);
  EXPECT_THAT(world.pool().suspension().all_tags(), ::testing::IsEmpty());
}

TEST(Shortage, names_the_default_stream_and_the_handles_of_others) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.pool().limits().set_capacity(8 * kPage);
  world.allocate(2 * kPage, driver::kNullStream);
  world.allocate(kPage, stream);
  world.allocate(kPage, driver::kPerThreadStream);
  const std::string handle = fmt::format("({:#x}): 2 MiB", static_cast<std::uint64_t>(stream));
  expect_error(world.pool().allocate(pool::Request{8 * kPage, 0, driver::kLegacyStream}),
               ErrorCode::out_of_memory,
               {") on default stream (", "by stream  default stream (", "): 4 MiB, stream ", handle,
                "a thread's default stream ("});
}

TEST(Tag, names_are_the_processs_and_their_texts_stay) {
  EXPECT_STREQ(report::tag_name(1001), "");
  report::set_tag_name(1001, "cache");
  const char* const first = report::tag_name(1001);
  EXPECT_STREQ(first, "cache");
  report::set_tag_name(1001, "other");
  EXPECT_STREQ(first, "cache");
  EXPECT_STREQ(report::tag_name(1001), "other");
  report::set_tag_name(1001, "");
  EXPECT_STREQ(report::tag_name(1001), "");
}

std::string report_of_a_shortage(PoolWorld& world) {
  const auto refused = world.pool().allocate({64 * kPage, 0, std::nullopt});
  EXPECT_FALSE(refused.ok());
  return refused ? "" : refused.error().message;
}

TEST(Tag, and_library_divide_the_report_of_a_shortage_where_any_are_known) {
  PoolWorld world(adaptive_world());
  const StreamHandle stream = world.stream();
  world.pool().limits().set_capacity(32 * kPage);
  const DevicePtr plain = world.allocate(kPage, stream);
  std::string report = report_of_a_shortage(world);
  EXPECT_EQ(report.find("by tag"), std::string::npos) << report;
  EXPECT_EQ(report.find("by library"), std::string::npos) << report;
  pool::Request request{2 * kPage, 0, stream};
  request.tag = 52;
  request.library = 53;
  const auto marked = world.pool().allocate(request);
  ASSERT_TRUE(marked.ok());
  report = report_of_a_shortage(world);
  EXPECT_NE(report.find("by tag     52: 4 MiB, no tag: 2 MiB"), std::string::npos) << report;
  EXPECT_NE(report.find("by library 53: 4 MiB, no library known: 2 MiB"), std::string::npos)
      << report;
  world.deallocate(plain, stream);
  const DevicePtr unnamed = world.allocate(3 * kPage, std::nullopt);
  report = report_of_a_shortage(world);
  EXPECT_NE(report.find("by stream  no stream: 6 MiB"), std::string::npos) << report;
  world.deallocate(unnamed, std::nullopt);
  report = report_of_a_shortage(world);
  EXPECT_NE(report.find("by tag     52: 4 MiB\n"), std::string::npos) << report;
  EXPECT_NE(report.find("by library 53: 4 MiB\n"), std::string::npos) << report;
}

}  // namespace
}  // namespace vpmm::test
