// SPDX-License-Identifier: Apache-2.0
// emm: memory is given back exactly once, whoever comes first: the last value, a release, a reset,
// the end.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "emm/emm_world.hpp"

namespace vpmm::emm_test {
namespace {

using emm::Block;
using emm::MemoryPointer;

// Host memory that stands for device memory, and how often each piece was given back.
class Counting : public emm::MemoryManager {
 public:
  using MemoryManager::MemoryManager;
  int releases() const { return releases_; }
  int twice() const { return twice_; }
  int resets() const { return resets_; }
  int deferrals() const { return deferrals_; }
  bool is_busy() const { return busy_ != 0; }
  bool was_busy_at_reset() const { return was_busy_at_reset_; }
  emm::Capabilities capabilities() const noexcept override {
    emm::Capabilities has;
    has.stream_order = has.host_memory = true;
    return has;
  }
  bool refuses_streams = false;
  std::atomic<bool> is_slow = false;

 private:
  Block do_allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    Block block{};
    block.pointer = ::operator new(bytes);
    block.cookie = reinterpret_cast<void*>(++last_);
    live_[block.cookie] = true;
    return block;
  }
  void do_release(const Block& block) noexcept override {
    ++busy_;
    while (is_slow) std::this_thread::yield();
    {
      const std::lock_guard lock(mutex_);
      ++releases_;
      if (!std::exchange(live_[block.cookie], false))
        ++twice_;
      else
        ::operator delete(block.pointer);
    }
    --busy_;
  }
  Block do_allocate_on_stream(std::size_t bytes, stream_ref) override { return do_allocate(bytes); }
  void do_release_on_stream(const Block& block, stream_ref) override {
    ++busy_;
    while (is_slow) std::this_thread::yield();
    --busy_;
    if (refuses_streams) throw_error(VPMM_ERROR_DRIVER_FAILED, "no");
    do_release(block);
  }
  Block do_register_host(void* ptr, std::size_t, unsigned) override {
    Block block = do_allocate(1);
    ::operator delete(block.pointer);
    block.pointer = ptr;
    const std::lock_guard lock(mutex_);
    live_[block.cookie] = false;
    --twice_;  // released once, which counts as twice
    return block;
  }
  void do_defer_cleanup_begin() override { ++deferrals_; }
  void do_reset() override {
    ++resets_;
    if (busy_ != 0) was_busy_at_reset_ = true;
  }

  std::mutex mutex_;
  std::uintptr_t last_ = 0;
  std::map<void*, bool> live_;
  std::atomic<int> releases_ = 0;
  std::atomic<int> twice_ = 0;
  std::atomic<int> resets_ = 0;
  std::atomic<int> deferrals_ = 0;
  std::atomic<int> busy_ = 0;
  std::atomic<bool> was_busy_at_reset_ = false;
};

class Finalizer : public testing::Test {
 protected:
  EmmWorld world;
  std::shared_ptr<Counting> manager = world.make<Counting>();
};

TEST_F(Finalizer, runs_when_the_last_of_copies_and_views_goes) {
  MemoryPointer whole = manager->memalloc(1000);
  MemoryPointer part = whole.view(100, 10);
  EXPECT_EQ(part.device_pointer(), static_cast<char*>(whole.device_pointer()) + 100);
  EXPECT_EQ(part.size(), 10u);
  MemoryPointer part_of_part = part.view(5);
  EXPECT_EQ(part_of_part.size(), 5u);
  whole.reset();
  part.reset();
  EXPECT_EQ(manager->releases(), 0) << "a slice keeps its root alive";
  part_of_part.reset();
  EXPECT_EQ(manager->releases(), 1);
}

TEST_F(Finalizer, a_view_beyond_the_memory_is_refused_with_the_numbers) {
  const MemoryPointer memory = manager->memalloc(1000);
  struct Part {
    std::size_t offset;
    std::size_t bytes;
  };
  for (const Part part : {Part{0, 1001}, {1001, 0}, {999, 2}, {1, SIZE_MAX}}) {
    const Thrown thrown = thrown_by([&] { (void)memory.view(part.offset, part.bytes); });
    EXPECT_EQ(thrown.status, VPMM_ERROR_INVALID_ARGUMENT);
    EXPECT_TRUE(thrown.names(std::to_string(part.offset)) && thrown.names("1000 bytes"))
        << thrown.text;
  }
  EXPECT_EQ(memory.view(1000).size(), 0u);
  EXPECT_EQ(memory.view(0).device_pointer(), memory.device_pointer());
}

TEST_F(Finalizer, a_reset_gives_everything_back_and_later_finalizers_do_nothing) {
  MemoryPointer memory = manager->memalloc(1000);
  const MemoryPointer other = manager->memalloc(10);
  manager->reset();
  EXPECT_EQ(manager->releases(), 2);
  EXPECT_EQ(manager->resets(), 1);
  const MemoryPointer later = manager->memalloc(1000);
  memory.reset();
  EXPECT_EQ(manager->releases(), 2);
  manager->reset();
  manager->reset();
  EXPECT_EQ(manager->releases(), 3);
  EXPECT_EQ(manager->twice(), 0);
}

TEST_F(Finalizer, a_reset_before_the_first_use_asks_the_manager_nothing) {
  manager->reset();
  EXPECT_EQ(manager->resets(), 0);
}

TEST_F(Finalizer, a_reset_waits_for_finalizers_that_have_begun) {
  MemoryPointer memory = manager->memalloc(1000);
  manager->is_slow = true;
  std::thread finalizer([&] { memory.reset(); });
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    manager->is_slow = false;
  });
  // The finalizer has taken the memory, or the reset does; either way both are done before the
  // manager resets itself.
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  manager->reset();
  EXPECT_FALSE(manager->was_busy_at_reset());
  finalizer.join();
  waker.join();
  EXPECT_EQ(manager->releases(), 1);
}

TEST_F(Finalizer, a_reset_waits_for_a_release_on_a_stream_and_takes_what_it_refused) {
  MemoryPointer memory = manager->memalloc(1000);
  manager->refuses_streams = true;
  manager->is_slow = true;
  std::thread releaser(
      [&] { EXPECT_NE(thrown_by([&] { memory.release_on(default_stream); }).status, VPMM_OK); });
  while (!manager->is_busy()) std::this_thread::yield();
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    manager->is_slow = false;
  });
  manager->reset();
  EXPECT_FALSE(manager->was_busy_at_reset());
  releaser.join();
  waker.join();
  memory.reset();
  EXPECT_EQ(manager->releases(), 1) << "by the reset";
}

TEST_F(Finalizer, eight_threads_drop_while_resets_come_and_each_piece_is_given_back_once) {
  constexpr int kThreads = 8;
  constexpr int kEach = 500;
  std::vector<std::vector<MemoryPointer>> memory(kThreads);
  for (auto& mine : memory)
    for (int i = 0; i < kEach; ++i) mine.push_back(manager->memalloc(16));
  std::vector<std::thread> threads;
  for (auto& mine : memory) threads.emplace_back([&mine] { mine.clear(); });
  for (int i = 0; i < 3; ++i) manager->reset();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(manager->releases(), kThreads * kEach);
  EXPECT_EQ(manager->twice(), 0);
}

TEST_F(Finalizer, a_release_on_a_stream_is_the_one_release) {
  MemoryPointer memory = manager->memalloc(1000, default_stream);
  const MemoryPointer copy = memory;
  memory.release_on(default_stream);
  EXPECT_EQ(manager->releases(), 1);
  EXPECT_FALSE(memory);
  MemoryPointer again = copy;
  const Thrown thrown = thrown_by([&] { again.release_on(default_stream); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_INVALID_POINTER);
  again.reset();
  EXPECT_EQ(manager->releases(), 1);
}

TEST_F(Finalizer, a_refused_release_on_a_stream_leaves_the_memory_as_it_was) {
  MemoryPointer memory = manager->memalloc(1000, default_stream);
  manager->refuses_streams = true;
  EXPECT_EQ(thrown_by([&] { memory.release_on(default_stream); }).status, VPMM_ERROR_DRIVER_FAILED);
  EXPECT_TRUE(memory);
  memory.reset();
  EXPECT_EQ(manager->releases(), 1);
}

TEST_F(Finalizer, memory_whose_release_was_refused_is_again_one_among_others) {
  MemoryPointer first = manager->memalloc(10, default_stream);
  MemoryPointer second = manager->memalloc(10, default_stream);
  manager->refuses_streams = true;
  EXPECT_EQ(thrown_by([&] { first.release_on(default_stream); }).status, VPMM_ERROR_DRIVER_FAILED);
  first.reset();
  const MemoryPointer third = manager->memalloc(10);
  second.reset();
  manager->reset();
  EXPECT_EQ(manager->releases(), 3);
  EXPECT_EQ(manager->twice(), 0);
}

TEST_F(Finalizer, the_manager_lives_as_long_as_its_memory) {
  MemoryPointer memory = manager->memalloc(1000);
  const std::weak_ptr<Counting> watched = manager;
  manager.reset();
  EXPECT_FALSE(watched.expired());
  memory.reset();
  EXPECT_TRUE(watched.expired());
}

TEST_F(Finalizer, the_owner_of_pinned_memory_lives_until_it_is_unpinned) {
  auto owner = std::make_shared<std::vector<char>>(4096);
  emm::PinnedMemory pinned = manager->pin(owner, {owner->data(), owner->size()});
  const std::weak_ptr<std::vector<char>> watched = owner;
  EXPECT_EQ(pinned.owner(), owner);
  owner.reset();
  EXPECT_FALSE(watched.expired());
  const emm::PinnedMemory part = pinned.view(1);
  pinned.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_EQ(manager->releases(), 0);
}

TEST_F(Finalizer, memory_of_no_bytes_asks_nobody) {
  const MemoryPointer none = manager->memalloc(0);
  EXPECT_FALSE(none);
  EXPECT_EQ(none.device_pointer(), nullptr);
  EXPECT_EQ(none.view(0).size(), 0u);
  EXPECT_EQ(manager->cuda_context(), nullptr) << "not even initialized";
}

TEST_F(Finalizer, in_a_forked_child_the_manager_is_asked_nothing) {
  MemoryPointer memory = manager->memalloc(1000);
  MemoryPointer on_stream = manager->memalloc(1000);
  const MemoryPointer left = manager->memalloc(1000);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const emm::DeferCleanup guard = manager->defer_cleanup();
    on_stream.release_on(default_stream);
    memory.reset();
    manager->reset();
    _exit(manager->releases() + manager->resets() + manager->deferrals());
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Constructed before anything of the library, so destroyed after it has closed.
MemoryPointer last_pointer;
EmmWorld* last_world = nullptr;  // the simulator is not told of the end, as a GPU is not

class FinalizerDeathTest : public testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(FinalizerDeathTest, memory_and_guards_that_outlive_main_end_silently) {
  EXPECT_EXIT(
      {
        last_world = new EmmWorld;
        static std::shared_ptr<emm::DefaultMemoryManager> manager =
            last_world->make<emm::DefaultMemoryManager>();
        static emm::MappedMemory mapped = manager->allocate_mapped(100);
        static emm::DeferCleanup guard = manager->defer_cleanup();
        last_pointer = manager->memalloc(1000);
        std::exit(0);
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(FinalizerOwner, a_manager_on_the_stack_is_refused_with_a_reason) {
  EmmWorld world;
  Counting manager(world.creation());
  const Thrown thrown = thrown_by([&] { (void)manager.memalloc(1); });
  EXPECT_EQ(thrown.status, VPMM_ERROR_INVALID_ARGUMENT);
  EXPECT_TRUE(thrown.names("shared_ptr")) << thrown.text;
}

}  // namespace
}  // namespace vpmm::emm_test
