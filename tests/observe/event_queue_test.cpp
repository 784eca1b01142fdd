// SPDX-License-Identifier: Apache-2.0
// tests: events of many threads come out of the queue in the order in which places were claimed,
// none lost or twice.
#include "observe/event_queue.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace vpmm::observe {
namespace {

QueuedEvent numbered(std::uint64_t number) {
  QueuedEvent event;
  event.kind = RecordedKind::mark;
  event.value = number;
  return event;
}

// What comes out until the queue is closed and empty.
std::vector<QueuedEvent> drained(EventQueue& queue) {
  std::vector<QueuedEvent> events;
  while (queue.take([&](QueuedEvent& event) { events.push_back(std::move(event)); }))
    if (queue.is_open()) queue.wait(std::chrono::milliseconds(1));
  return events;
}

TEST(EventQueue, of_one_thread_gives_what_was_put_in) {
  EventQueue queue;
  queue.open();
  for (std::uint64_t i = 0; i < 100; ++i) queue.put(numbered(i));
  queue.close();
  const auto events = drained(queue);
  ASSERT_EQ(events.size(), 100u);
  for (std::uint64_t i = 0; i < 100; ++i) EXPECT_EQ(events[i].value, i);
}

TEST(EventQueue, that_is_closed_takes_nothing_and_loses_nothing) {
  EventQueue queue;
  queue.put(numbered(1));
  EXPECT_EQ(queue.lost(), 0u);
  queue.close();
  EXPECT_TRUE(drained(queue).empty());
}

TEST(EventQueue, keeps_the_order_of_claims_and_not_that_of_publishing) {
  EventQueue queue;
  queue.open();
  EventQueue::Claim first = queue.claim();
  queue.put(numbered(2));
  std::vector<std::uint64_t> seen;
  EXPECT_TRUE(queue.take([&](const QueuedEvent& event) { seen.push_back(event.value); }));
  EXPECT_TRUE(seen.empty()) << "the first place is not published";
  first.publish(numbered(1));
  queue.close();
  for (const QueuedEvent& event : drained(queue)) seen.push_back(event.value);
  EXPECT_EQ(seen, (std::vector<std::uint64_t>{1, 2}));
}

TEST(EventQueue, passes_over_a_place_that_was_left_void) {
  EventQueue queue;
  queue.open();
  { const EventQueue::Claim given_up = queue.claim(); }
  queue.put(numbered(7));
  queue.close();
  const auto events = drained(queue);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].value, 7u);
}

TEST(EventQueue, that_is_full_holds_up_one_call_for_a_moment_and_then_counts) {
  EventQueue queue;
  queue.open();
  const auto began = std::chrono::steady_clock::now();
  for (std::uint64_t i = 0; i < 3 * EventQueue::kPlaces; ++i) queue.put(numbered(i));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60))
      << "each call waited";
  queue.close();
  const auto events = drained(queue);
  EXPECT_EQ(events.size() + queue.lost(), 3 * EventQueue::kPlaces);
  EXPECT_GT(queue.lost(), 0u);
  for (std::uint64_t i = 0; i < events.size(); ++i) ASSERT_EQ(events[i].value, i);
}

TEST(EventQueue, has_room_again_when_something_was_taken) {
  EventQueue queue;
  queue.open();
  for (std::uint64_t i = 0; i < EventQueue::kPlaces; ++i) queue.put(numbered(i));
  const std::uint64_t lost = queue.lost();
  EXPECT_GT(lost, 0u);
  queue.take([](const QueuedEvent&) {});
  queue.put(numbered(1));
  EXPECT_EQ(queue.lost(), lost);
}

// Eight threads hand cells to each other as a pool does: who takes a cell says so afterwards, who
// gives it back claims before others can take it.
TEST(EventQueue, of_eight_threads_that_hand_things_to_each_other_is_in_an_order_that_is_true) {
  constexpr int kThreads = 8;
  constexpr int kTurns = 40'000;
  EventQueue queue;
  queue.open();
  std::array<std::atomic<bool>, 4> taken{};
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kTurns; ++i) {
        const std::size_t cell = static_cast<std::size_t>(i + t) % taken.size();
        if (taken[cell].exchange(true)) continue;
        QueuedEvent event = numbered(cell);
        event.kind = RecordedKind::allocate;
        queue.put(std::move(event));
        EventQueue::Claim place = queue.claim();
        taken[cell].store(false);
        event = numbered(cell);
        event.kind = RecordedKind::free;
        place.publish(std::move(event));
      }
      if (--running == 0) queue.close();
    });
  }
  const auto events = drained(queue);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(queue.lost(), 0u);
  std::array<bool, 4> is_live{};
  for (const QueuedEvent& event : events) {
    ASSERT_EQ(is_live[event.value], event.kind == RecordedKind::free);
    is_live[event.value] = !is_live[event.value];
  }
  EXPECT_GT(events.size(), std::size_t{2} * kTurns / 10);
}

}  // namespace
}  // namespace vpmm::observe
