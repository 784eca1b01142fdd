// SPDX-License-Identifier: Apache-2.0
// small: whose an address is: queries, frees and mistakes with addresses inside, outside and no
// longer there.
#include <functional>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

class Ownership : public SmallTest {
 protected:
  // The call fails, names the address, and nothing but the count of mistakes changes.
  void expect_mistake(DevicePtr ptr, const std::function<Result<void>()>& call,
                      const std::string& words = "") {
    const observe::Statistics before = world.statistics();
    expect_error(call(), ErrorCode::invalid_pointer, {hex(ptr), words});
    const observe::Statistics after = world.statistics();
    EXPECT_EQ(after.caller_mistakes, before.caller_mistakes + 1);
    EXPECT_EQ(changes(before, after), "");
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
  void expect_bad_free(DevicePtr ptr, pool::Stream stream, const std::string& words = "") {
    expect_mistake(
        ptr, [&] { return world.pool().deallocate(ptr, stream); }, words);
  }
  void expect_unknown(DevicePtr ptr) {
    expect_error(world.pool().query(ptr), ErrorCode::invalid_pointer, {hex(ptr)});
  }
};

TEST_P(Ownership, every_address_of_an_allocation_is_its_own_and_the_next_is_not) {
  for (const Bytes bytes : kSizes) {
    SCOPED_TRACE(bytes);
    const DevicePtr ptr = world.allocate(bytes, a);
    const auto info = world.pool().query(ptr);
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info.value().requested, bytes);
    EXPECT_GE(info.value().usable, bytes);
    for (const Bytes offset : {Bytes{1}, bytes / 2, bytes - 1, info.value().usable - 1}) {
      const auto inside = world.pool().query(ptr + offset);
      ASSERT_TRUE(inside.ok()) << offset;
      EXPECT_EQ(inside.value().begin, ptr);
      EXPECT_EQ(inside.value().requested, bytes);
    }
    const auto beyond = world.pool().query(ptr + info.value().usable);
    EXPECT_TRUE(!beyond || beyond.value().begin != ptr);
  }
}

TEST_P(Ownership, neighbours_in_a_slab_are_told_apart) {
  std::vector<DevicePtr> blocks;
  for (Bytes i = 0; i < 60; ++i) blocks.push_back(world.allocate(3000 + i, a));
  for (Bytes i = 0; i < 60; ++i)
    for (const Bytes offset : {Bytes{0}, Bytes{1}, Bytes{2999}}) {
      const auto info = world.pool().query(blocks[i] + offset);
      ASSERT_TRUE(info.ok());
      EXPECT_EQ(info.value().begin, blocks[i]);
      EXPECT_EQ(info.value().requested, 3000 + i);
    }
}

// Also in address space that was reserved when there was no more in the first.
TEST_P(Ownership, memory_in_every_reservation_is_found_without_the_pools_lock) {
  WorldOptions options = options_of(false);
  options.config.va_size = 64 * kPage;
  for (const Bytes bytes : kSizes) {
    SCOPED_TRACE(bytes);
    PoolWorld own(options);
    const StreamHandle stream = own.stream();
    ASSERT_FALSE(is_null(own.allocate(62 * kPage, stream)));
    std::vector<DevicePtr> live;
    for (Bytes i = 0; i <= 4 * kPage / bytes && i < 200; ++i)
      live.push_back(own.allocate(std::max(bytes, kMiB), stream));
    live.push_back(own.allocate(bytes, stream));
    EXPECT_GE(own.pool().reports().snapshot().reservations.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(own.pool().deallocate_if_ready(live.back(), stream));
      EXPECT_EQ(own.pool().allocate_if_ready(bytes, 0, stream), live.back());
    }
  }
}

TEST_P(Ownership, an_address_where_nothing_is_live_is_nobodys) {
  const DevicePtr block = world.allocate(5000, a);
  const DevicePtr span = world.allocate(200 * kKiB, a);
  const DevicePtr pages = world.allocate(2 * kPage, a);
  const auto usable = [&](DevicePtr ptr) { return world.pool().query(ptr).value().usable; };
  expect_unknown(block + usable(block));                 // the next block of its slab
  expect_unknown(span + usable(span));                   // units that are in no slab and no span
  expect_unknown(pages + usable(pages) + 4000 * kPage);  // address space without memory
  expect_unknown(DevicePtr{to_integer(block) ^ (1ull << 46)});  // elsewhere
  int host = 0;
  expect_unknown(DevicePtr{reinterpret_cast<std::uintptr_t>(&host)});
}

// The rest of a span that was larger is free beside it.
TEST_P(Ownership, behind_a_span_that_took_the_place_of_a_larger_one_nothing_is_live) {
  const DevicePtr before = world.allocate(200 * kKiB, a);
  world.deallocate(world.allocate(600 * kKiB, a), a);
  const DevicePtr span = world.allocate(200 * kKiB, a);
  const Bytes usable = world.pool().query(span).value().usable;
  for (const Bytes behind : {Bytes{0}, Bytes{1}, 64 * kKiB, 300 * kKiB})
    if (const DevicePtr p = span + (usable + behind); !(p >= before && p < before + 208 * kKiB)) {
      expect_unknown(p);
    }
}

TEST_P(Ownership, a_freed_address_is_nobodys_wherever_it_is_kept) {
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = world.allocate(bytes, a);
    world.deallocate(ptr, a);
    expect_unknown(ptr);  // cached
    expect_unknown(ptr + bytes / 2);
    world.wait();
    expect_unknown(ptr);  // recalled
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    expect_unknown(ptr);  // unmapped
  }
}

TEST_P(Ownership, a_free_inside_an_allocation_is_refused_and_names_both_addresses) {
  for (const Bytes bytes : kSizes) {
    SCOPED_TRACE(bytes);
    warm(bytes, a);
    const DevicePtr ptr = world.allocate(bytes, a);
    for (const Bytes offset : {Bytes{1}, Bytes{64}, bytes - 1}) {
      expect_bad_free(ptr + offset, a, hex(ptr));
      expect_bad_free(ptr + offset, b, hex(ptr));
      expect_bad_free(ptr + offset, std::nullopt, hex(ptr));
    }
    EXPECT_EQ(world.pool().query(ptr).value().requested, bytes) << "it is live still";
    world.deallocate(ptr, a);
  }
}

TEST_P(Ownership, a_second_free_is_refused_whoever_made_the_first_and_whoever_tries) {
  for (const Bytes bytes : kSizes) {
    const std::array<pool::Stream, 3> streams{a, b, std::nullopt};
    for (const pool::Stream first : streams)
      for (const pool::Stream second : streams) {
        const DevicePtr ptr = world.allocate(bytes, a);
        world.deallocate(ptr, first);
        expect_bad_free(ptr, second);
      }
  }
}

TEST_P(Ownership, a_second_free_is_refused_after_the_memory_left_the_streams_hand) {
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = world.allocate(bytes, a);
    world.deallocate(ptr, a);
    world.wait();  // recalls
    expect_bad_free(ptr, a);
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    expect_bad_free(ptr, a);
    expect_bad_free(ptr, std::nullopt);
  }
}

// The record of its segment serves another page by then.
TEST_P(Ownership, an_address_of_a_segment_that_ended_is_nobodys_in_a_page_that_stays) {
  constexpr Bytes kSpan = 300 * kKiB, kMost = kPage - 64 * kKiB;
  const DevicePtr stays = world.allocate(200 * kKiB, b);
  const DevicePtr goes = world.allocate(kSpan, a);
  world.deallocate(goes, a);
  world.wait();  // ends the segment
  const DevicePtr other = world.allocate(kMost, a);
  ASSERT_EQ(world.statistics().small_bytes, 2 * kPage) << "there was no room beside what stays";
  for (const DevicePtr p : {goes, goes + kSpan / 2}) {
    expect_unknown(p);
    for (const pool::Stream stream : {pool::Stream(a), pool::Stream(b), pool::Stream()})
      expect_bad_free(p, stream);
  }
  EXPECT_EQ(world.pool().query(other + kMost - 1).value().begin, other);
  world.deallocate(other, a);
  world.deallocate(stays, b);
}

TEST_P(Ownership, a_second_free_of_a_block_whose_slab_lives_on_is_refused) {
  const DevicePtr stays = world.allocate(5000, a);
  const DevicePtr goes = world.allocate(5000, a);
  world.deallocate(goes, b);  // waits for both streams
  expect_bad_free(goes, a);
  world.wait();
  expect_bad_free(goes, a);
  world.deallocate(stays, a);
}

TEST_P(Ownership, addresses_of_others_are_refused_by_every_call_that_takes_one) {
  warm(5000, a);
  const DevicePtr block = world.allocate(5000, a);
  int host = 0;
  for (const DevicePtr foreign :
       {DevicePtr{reinterpret_cast<std::uintptr_t>(&host)}, DevicePtr{1},
        DevicePtr{~std::uint64_t{0}}, block + 1000 * kPage, block + 256 * kKiB}) {
    SCOPED_TRACE(hex(foreign));
    for (const pool::Stream stream : {pool::Stream(a), pool::Stream()})
      expect_bad_free(foreign, stream);
    expect_mistake(foreign, [&] { return world.pool().record_use(foreign, b); });
    expect_unknown(foreign);
  }
}

TEST_P(Ownership, a_use_of_freed_memory_is_refused) {
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = world.allocate(bytes, a);
    world.deallocate(ptr, a);
    expect_mistake(ptr, [&] { return world.pool().record_use(ptr, b); });
  }
}

TEST_P(Ownership, two_pools_on_one_device_do_not_free_each_others_blocks) {
  auto second = context::Context::create(world.sim(), 0, options_of(GetParam()).config);
  ASSERT_TRUE(second.ok());
  for (const Bytes bytes : kSizes) {
    warm(bytes, a);
    const auto theirs = second.value()->allocate({bytes, 0, a});
    ASSERT_TRUE(theirs.ok());
    expect_bad_free(theirs.value(), a);
    EXPECT_TRUE(second.value()->deallocate(theirs.value(), a).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Ownership, ::testing::Bool(), name_of_policy);

}  // namespace
}  // namespace vpmm::test
