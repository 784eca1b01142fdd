// SPDX-License-Identifier: Apache-2.0
// small: memory between streams: what is used on several, freed on another or by a thread without
// one, and when others get it.
#include <algorithm>
#include <set>
#include <thread>

#include "small/small_world.hpp"

namespace vpmm::test {
namespace {

// What is not a whole page, and a page.
constexpr std::array<Bytes, 5> kShared{100, 5000, 100 * kKiB, 200 * kKiB, kMiB};

class Sharing : public SmallTest {
 protected:
  StreamHandle c = world.stream();

  // Requests of the size on every stream, each used at once: the hazard checker sees whoever gets
  // `ptr` too early.
  void everybody_allocates(Bytes bytes) {
    for (int i = 0; i < 3; ++i)
      for (const pool::Stream stream : {pool::Stream(a), pool::Stream(b), pool::Stream(c)}) {
        const DevicePtr ptr = world.allocate(bytes, stream);
        world.use(ptr, bytes, *stream);
        given.insert(ptr);
      }
  }
  std::set<DevicePtr> given;
};

TEST_P(Sharing, a_free_on_another_stream_waits_for_both) {
  for (const Bytes bytes : kShared) {
    const DevicePtr ptr = world.allocate(bytes, a);
    world.use(ptr, bytes, a, kLongNs);
    world.deallocate(ptr, b);  // nothing orders b behind a
    everybody_allocates(bytes);
    EXPECT_EQ(world.statistics().host_waits, 0u);
  }
}

TEST_P(Sharing, a_free_on_another_stream_waits_for_that_stream_too) {
  for (const Bytes bytes : kShared) {
    const DevicePtr ptr = world.allocate(bytes, a);
    order(world, a, b);
    world.use(ptr, bytes, b, kLongNs);
    world.deallocate(ptr, b);
    everybody_allocates(bytes);
  }
}

TEST_P(Sharing, a_use_on_another_stream_is_waited_for_when_it_was_recorded) {
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = world.allocate(bytes, a);
    world.use(ptr, bytes, a);
    order(world, a, b);
    ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
    world.use(ptr, bytes, b, kLongNs);
    world.deallocate(ptr, a);
    everybody_allocates(bytes);
  }
}

TEST_P(Sharing, uses_on_two_other_streams_are_waited_for) {
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = world.allocate(bytes, a);
    order(world, a, b);
    ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
    ASSERT_TRUE(world.pool().record_use(ptr, c).ok());
    ASSERT_TRUE(world.pool().record_use(ptr, c).ok()) << "twice changes nothing";
    world.use(ptr, bytes, b, kLongNs);
    order(world, b, c);
    world.use(ptr, bytes, c, kLongNs);
    world.deallocate(ptr, a);
    everybody_allocates(bytes);
  }
}

// The mark of a recorded use belongs to the allocation, not to its place.
TEST_P(Sharing, a_recorded_use_is_forgotten_with_its_allocation) {
  for (const Bytes bytes : kShared) {
    const DevicePtr ptr = world.allocate(bytes, a);
    ASSERT_TRUE(world.pool().record_use(ptr, b).ok());
    world.deallocate(ptr, a);
    world.wait();
    std::vector<DevicePtr> live;
    for (int i = 0; i < 70; ++i) live.push_back(world.allocate(bytes, a));
    const std::uint64_t slow = world.calls().count(Call::ctx_get_current);
    for (const DevicePtr one : live) world.deallocate(one, a);
    EXPECT_EQ(world.calls().count(Call::ctx_get_current), slow)
        << bytes << ": nobody else uses any of them";
    world.wait();
  }
}

TEST_P(Sharing, a_stream_is_forgotten_though_it_used_much_that_lived_on_another) {
  for (int i = 0; i < 200; ++i) {
    const StreamHandle other = world.stream();
    for (const Bytes bytes : {Bytes{5000}, 200 * kKiB}) {
      const DevicePtr ptr = world.allocate(bytes, a);
      ASSERT_TRUE(world.pool().record_use(ptr, other).ok());
      world.deallocate(ptr, a);
    }
    ASSERT_EQ(world.sim().stream_destroy(other), CuResult::success);
    world.sim().advance_host_ns(1'000'000);
  }
  world.wait();
  for (Bytes pages = 9; pages < 40; ++pages) world.deallocate(world.allocate(pages * kPage, b), b);
  EXPECT_LE(world.statistics().timelines, 70u);
}

TEST_P(Sharing, a_record_of_the_streams_own_use_changes_nothing) {
  warm(5000, a);
  const DevicePtr ptr = world.allocate(5000, a);
  ASSERT_TRUE(world.pool().record_use(ptr, a).ok());
  world.use(ptr, 5000, a, kLongNs);
  world.deallocate(ptr, a);
  EXPECT_EQ(world.allocate(5000, a), ptr);
}

TEST_P(Sharing, two_part_memory_is_anybodys_once_both_are_complete) {
  for (const Bytes bytes : kShared) {
    const DevicePtr ptr = world.allocate(bytes, a);
    world.use(ptr, bytes, a, kLongNs);
    world.deallocate(ptr, b);
    world.wait();
    const Bytes mapped = world.statistics().mapped_bytes;
    const DevicePtr next = world.allocate(bytes, c);
    world.use(next, bytes, c);
    EXPECT_EQ(world.statistics().mapped_bytes, mapped) << bytes;
    world.deallocate(next, c);
  }
}

TEST_P(Sharing, what_a_stream_freed_is_used_by_others_without_growth_once_it_is_complete) {
  for (const Bytes bytes : kSizes) {
    std::vector<DevicePtr> live;
    const Bytes count = std::max<Bytes>(1, 8 * kMiB / bytes);
    for (Bytes i = 0; i < count; ++i) {
      live.push_back(world.pool().allocate({bytes, 0, a}).value());
      world.use(live.back(), bytes, a);
    }
    for (const DevicePtr ptr : live) ASSERT_TRUE(world.pool().deallocate(ptr, a).ok());
    world.wait();
    const Bytes mapped = world.statistics().mapped_bytes;
    live.clear();
    for (Bytes i = 0; i < count; ++i) {
      live.push_back(world.pool().allocate({bytes, 0, b}).value());
      world.use(live.back(), bytes, b);
    }
    EXPECT_EQ(world.statistics().mapped_bytes, mapped) << bytes;
    for (const DevicePtr ptr : live) world.pool().deallocate_deferred(ptr);
    world.wait();
  }
}

// Of the same pages: what a has left in pages where b lives on.
TEST_P(Sharing, a_block_of_a_page_that_others_use_too_finds_a_new_user) {
  std::vector<DevicePtr> of_a;
  std::vector<DevicePtr> of_b;
  for (int i = 0; i < 40; ++i) {
    of_a.push_back(world.allocate(100 * kKiB, a));
    of_b.push_back(world.allocate(200 * kKiB, b));
  }
  for (const DevicePtr ptr : of_a) world.use(ptr, 100 * kKiB, a);
  for (const DevicePtr ptr : of_a) world.deallocate(ptr, a);
  world.wait();
  const Bytes mapped = world.statistics().mapped_bytes;
  for (int i = 0; i < 20; ++i) {
    const DevicePtr ptr = world.allocate(190 * kKiB, b);
    world.use(ptr, 190 * kKiB, b);
  }
  EXPECT_EQ(world.statistics().mapped_bytes, mapped);
}

TEST_P(Sharing, memory_of_a_stream_that_works_on_is_not_given_to_others) {
  for (const Bytes bytes : kSizes) {
    std::vector<DevicePtr> busy;
    for (int i = 0; i < 10; ++i) {
      busy.push_back(world.allocate(bytes, a));
      world.use(busy.back(), bytes, a, kLongNs);
    }
    for (const DevicePtr ptr : busy) world.deallocate(ptr, a);
    everybody_allocates(bytes);
  }
}

TEST_P(Sharing, a_free_that_names_no_stream_waits_for_all_of_them) {
  for (const Bytes bytes : kSizes) {
    const DevicePtr ptr = world.allocate(bytes, a);
    order(world, a, b);
    world.use(ptr, bytes, b, kLongNs);
    order(world, b, c);
    world.use(ptr, bytes, c, kLongNs);
    world.deallocate(ptr, std::nullopt);
    everybody_allocates(bytes);
  }
}

TEST_P(Sharing, a_thread_without_a_context_frees_by_deferring) {
  for (const Bytes bytes : kSizes) {
    std::vector<DevicePtr> live;
    for (int i = 0; i < 20; ++i) {
      live.push_back(world.allocate(bytes, a));
      world.use(live.back(), bytes, a, kLongNs);
    }
    const std::uint64_t calls = world.calls().total_count();
    std::thread([&] {
      for (const DevicePtr ptr : live) world.pool().deallocate_deferred(ptr);
    }).join();
    EXPECT_EQ(world.calls().total_count(), calls);
    EXPECT_EQ(world.statistics().live_allocations, 20u) << "until somebody passes by";
    everybody_allocates(bytes);
    for (const DevicePtr ptr : given) world.pool().deallocate_deferred(ptr);
    given.clear();
    world.wait();
    EXPECT_EQ(world.statistics().live_allocations, 0u);
    ASSERT_TRUE(world.pool().limits().trim(0).ok());
    EXPECT_EQ(world.statistics().mapped_bytes, 0u);
  }
}

// A finalizer may free what was freed, or what never was: the next call does not fail for it.
TEST_P(Sharing, a_deferred_free_of_nothing_is_counted_as_a_mistake) {
  const DevicePtr ptr = world.allocate(5000, a);
  world.deallocate(ptr, a);
  world.pool().deallocate_deferred(ptr);
  world.pool().deallocate_deferred(ptr + 7);
  world.wait();
  EXPECT_EQ(world.statistics().caller_mistakes, 2u);
  EXPECT_EQ(world.statistics().live_allocations, 0u);
}

TEST_P(Sharing, a_stream_frees_warm_what_it_allocated_in_another_thread) {
  driver::ContextHandle context{};
  ASSERT_EQ(world.sim().ctx_get_current(context), CuResult::success);
  for (const Bytes bytes : kSizes) {
    warm(bytes, a);
    DevicePtr ptr{};
    std::thread([&] {
      ASSERT_EQ(world.sim().ctx_set_current(context), CuResult::success);
      ptr = world.allocate(bytes, a);
      world.use(ptr, bytes, a, kLongNs);
    }).join();
    world.deallocate(ptr, a);
    EXPECT_EQ(world.allocate(bytes, a), ptr);
    world.use(ptr, bytes, a);
    world.deallocate(ptr, a);
  }
}

TEST_P(Sharing, after_everything_is_freed_and_complete_nothing_stays_mapped) {
  std::vector<DevicePtr> live;
  const std::array<pool::Stream, 4> streams{a, b, c, std::nullopt};
  for (std::size_t i = 0; i < 400; ++i) {
    live.push_back(world.allocate(kSizes[i % kSizes.size()] - i % 100, streams[i % 4]));
    if (i % 4 != 3) world.use(live.back(), 100, *streams[i % 4]);
    ASSERT_TRUE(i % 5 != 0 || world.pool().record_use(live.back(), c).ok());
  }
  for (std::size_t i = 0; i < live.size(); ++i) world.deallocate(live[i], streams[i / 3 % 4]);
  world.wait();
  ASSERT_TRUE(world.pool().limits().trim(0).ok());
  EXPECT_EQ(world.statistics().mapped_bytes, 0u);
}

// With it streams take nothing from each other at first: tests/context/side_by_side_test.cpp.
WorldOptions without_early_growth() {
  WorldOptions options = adaptive_world();
  options.config.prefer = settings::Prefer::footprint;
  return options;
}

// Of ten allocations that A freed and is done with, B's miss brings one and half of the others into
// B's cache.
TEST(SharingPages, who_takes_one_takes_half) {
  PoolWorld world(without_early_growth());
  const StreamHandle a = world.stream();
  const StreamHandle b = world.stream();
  constexpr Bytes kBytes = 2 * kPage;
  const DevicePtr missed = world.allocate(kBytes, b);
  std::set<DevicePtr> of_a;
  for (int i = 0; i < 10; ++i) of_a.insert(world.allocate(kBytes, a));
  ASSERT_EQ(world.pool().allocate({100 * kPage, 0, b}).ok(), true)
      << "which makes events worth while";
  for (const DevicePtr ptr : of_a) {
    world.use(ptr, kBytes, a);
    world.deallocate(ptr, a);
    world.sim().advance_host_ns(1'000'000);
  }
  const observe::Statistics before = world.statistics();
  std::vector<DevicePtr> taken;
  const auto take = [&] {
    taken.push_back(world.allocate(kBytes, b));
    world.use(taken.back(), kBytes, b);
    EXPECT_TRUE(of_a.contains(taken.back()));
  };
  take();
  EXPECT_EQ(world.pool().reports().validate(), "");
  const std::uint64_t calls =
      world.calls().count(Call::ctx_set_current) + world.calls().count(Call::ctx_get_current);
  for (int i = 0; i < 4; ++i) take();
  EXPECT_EQ(world.calls().count(Call::ctx_set_current) + world.calls().count(Call::ctx_get_current),
            calls)
      << "without the pool's lock";
  const observe::Statistics after = world.statistics();
  EXPECT_EQ(after.mapped_bytes, before.mapped_bytes);
  EXPECT_EQ(after.live_bytes, before.live_bytes + 5 * kBytes);
  EXPECT_EQ(after.allocations, before.allocations + 5);
  EXPECT_EQ(after.deallocations, before.deallocations);
  EXPECT_EQ(after.hits, before.hits + 5);
  EXPECT_EQ(after.live_allocations, before.live_allocations + 5);
  for (const DevicePtr ptr : taken) world.deallocate(ptr, b);
  world.deallocate(missed, b);
  EXPECT_EQ(world.pool().reports().validate(), "");
}

// A keeps two allocations and C ten: B's miss is C's to help, whoever of them became known first.
TEST(SharingPages, who_keeps_most_gives) {
  for (const bool is_a_first : {true, false}) {
    PoolWorld world(without_early_growth());
    const StreamHandle a = world.stream();
    const StreamHandle b = world.stream();
    const StreamHandle c = world.stream();
    constexpr Bytes kBytes = 2 * kPage;
    world.allocate(kBytes, b);
    std::set<DevicePtr> of_a, of_c;
    const auto fill = [&](std::set<DevicePtr>& of, std::size_t count, StreamHandle stream) {
      while (of.size() < count) of.insert(world.allocate(kBytes, stream));
    };
    if (is_a_first) fill(of_a, 2, a);
    fill(of_c, 10, c);
    fill(of_a, 2, a);
    ASSERT_TRUE(world.pool().allocate({100 * kPage, 0, b}).ok())
        << "which makes events worth while";
    const auto end = [&](const std::set<DevicePtr>& of, StreamHandle stream) {
      for (const DevicePtr ptr : of) {
        world.deallocate(ptr, stream);
        world.sim().advance_host_ns(1'000'000);
      }
    };
    end(of_a, a);
    end(of_c, c);
    EXPECT_TRUE(of_c.contains(world.allocate(kBytes, b)));
    EXPECT_EQ(world.pool().reports().validate(), "");
  }
}

// A has spans in 300 pages, so its share, a 64th of that, is four pages. A third of them lie two in
// a page: with large ones alone they would begin in one page and end in the next.
class SharingParts : public ::testing::Test {
 protected:
  static constexpr Bytes kRun = kPage - 4 * small::kUnit;  // one in a page
  struct World : PoolWorld {
    explicit World(int pages = 300) : PoolWorld(page_by_page_world()) {
      allocate_mixed(pages, a);
      use_up(a);
    }
    const StreamHandle a = stream();
    const StreamHandle b = stream();

    std::vector<DevicePtr> allocate_runs(int count, StreamHandle stream) {
      std::vector<DevicePtr> spans;
      for (int i = 0; i < count; ++i) spans.push_back(allocate(kRun, stream));
      return spans;
    }
    void allocate_mixed(int pages, StreamHandle stream) {
      for (int i = 0; i < pages; ++i) {
        if (i % 3 != 0)
          allocate_runs(1, stream);
        else
          for (int half = 0; half < 2; ++half) allocate(kPage / 2, stream);
      }
    }
    void deallocate_on_b(const std::vector<DevicePtr>& spans) {
      for (const DevicePtr span : spans) deallocate(span, b);
    }
    // All that is idle: from then on a span takes new memory each time.
    void use_up(StreamHandle stream) {
      for (int grown = 0; grown < 3;) {
        const Bytes mapped = statistics().mapped_bytes;
        allocate_runs(1, stream);
        grown = statistics().mapped_bytes > mapped ? grown + 1 : 0;
      }
    }
    // A asks for one span and, without the pool's lock, for all others but the last. Nothing is
    // mapped for them.
    std::vector<DevicePtr> take_at_once(int count) {
      const Bytes mapped = statistics().mapped_bytes;
      const auto visits = [&] { return calls().count(Call::ctx_get_current); };
      std::vector<DevicePtr> taken = allocate_runs(1, a);
      const std::uint64_t after_one = visits();
      for (const DevicePtr span : allocate_runs(count - 1, a)) taken.push_back(span);
      EXPECT_EQ(visits(), after_one) << count << " without the pool's lock";
      allocate_runs(1, a);
      EXPECT_GT(visits(), after_one) << "and no more than " << count;
      EXPECT_EQ(statistics().mapped_bytes, mapped);
      EXPECT_EQ(pool().reports().validate(), "");
      return taken;
    }
  };
};

TEST_F(SharingParts, a_stream_that_has_much_takes_several_idle_pages_at_once) {
  World world;
  world.deallocate_on_b(world.allocate_runs(16, world.b));
  world.wait();
  ASSERT_TRUE(world.pool().streams().synchronize().ok()) << "which takes them back into the pool";
  world.take_at_once(4);
}

// A 64th of its pages, as soon as that is a page more.
TEST_F(SharingParts, a_stream_takes_its_share_to_the_page) {
  for (const auto& [pages, taken] : {std::pair{Bytes{191}, 2}, {192, 3}, {255, 3}, {256, 4}}) {
    SCOPED_TRACE(pages);
    World world(0);  // as little as there is
    const auto has = [&] { return world.statistics().small_bytes / kPage; };
    while (has() < 128) world.allocate(kPage / 2, world.a);
    while (has() < pages) world.allocate_runs(1, world.a);
    while (world.statistics().small_free_bytes > 0)
      ASSERT_TRUE(world.pool().allocate({small::kUnit, 0, world.a}).ok());
    ASSERT_EQ(has(), pages);
    const DevicePtr large = world.allocate(16 * kPage, world.b);
    world.deallocate(large, world.b);
    world.wait();
    world.take_at_once(taken);
  }
}

// Of ten pages that B cut, freed and is done with, A takes its share, and no more than half; of two
// it takes one.
TEST_F(SharingParts, cut_pages_that_another_stream_keeps_come_several_at_a_time) {
  for (const auto& [kept, taken] : {std::pair{10, 4}, {4, 2}, {2, 1}}) {
    World world;
    world.allocate_mixed(200, world.b);  // it has much, too, and takes whole pages
    const std::vector<DevicePtr> of_b = world.allocate_runs(kept, world.b);
    world.use_up(world.b);
    const DevicePtr last = world.allocate(4 * kPage, world.b);
    ASSERT_TRUE(world.pool().allocate({100 * kPage, 0, world.a}).ok())
        << "which makes events worth while";
    world.use_up(world.a);
    world.deallocate_on_b(of_b);
    world.sim().advance_host_ns(1'000'000);
    const std::uint64_t recorded = world.calls().count(Call::event_record);
    world.deallocate(last, world.b);
    ASSERT_EQ(world.calls().count(Call::event_record), recorded + 1) << "behind all of them";
    world.sim().advance_host_ns(1'000'000);
    for (const DevicePtr span : world.take_at_once(taken))
      EXPECT_NE(std::find(of_b.begin(), of_b.end(), span), of_b.end()) << kept;
  }
}

// What A has no use for at once stays with B.
TEST_F(SharingParts, no_more_pages_leave_another_stream_than_are_taken) {
  World world;
  world.allocate_mixed(200, world.b);
  const std::vector<DevicePtr> of_b = world.allocate_runs(20, world.b);
  world.use_up(world.b);
  const DevicePtr last = world.allocate(4 * kPage, world.b);
  ASSERT_TRUE(world.pool().allocate({100 * kPage, 0, world.a}).ok())
      << "which makes events worth while";
  world.use_up(world.a);
  world.deallocate_on_b(of_b);
  world.sim().advance_host_ns(1'000'000);
  world.deallocate(last, world.b);
  world.sim().advance_host_ns(1'000'000);
  const Bytes cached = world.statistics().cached_bytes;
  world.allocate_runs(1, world.a);
  EXPECT_GT(world.statistics().cached_bytes, cached - kRun - kPage / 2);
}

// Though B has pages that are all free and large enough, its work may still use them.
TEST_F(SharingParts, cut_pages_that_another_stream_still_uses_stay_with_it) {
  World world;
  world.allocate_mixed(200, world.b);
  const std::vector<DevicePtr> of_b = world.allocate_runs(10, world.b);
  world.use_up(world.b);
  ASSERT_TRUE(world.pool().allocate({100 * kPage, 0, world.a}).ok())
      << "which makes events worth while";
  world.use_up(world.a);
  for (const DevicePtr span : of_b) world.use(span, kRun, world.b, kLongNs);
  world.deallocate_on_b(of_b);
  for (int i = 0; i < 8; ++i) {
    const DevicePtr other = world.allocate(kPage, world.a);
    world.use(other, kPage, world.a);
    const DevicePtr span = world.allocate(kRun, world.a);
    EXPECT_EQ(std::find(of_b.begin(), of_b.end(), span), of_b.end());
    world.use(span, kRun, world.a);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, Sharing, ::testing::Bool(), name_of_policy);

}  // namespace
}  // namespace vpmm::test
