// SPDX-License-Identifier: Apache-2.0
// arena: keys of streams that call, and which of them are forgotten.
#include "arena/stream_names.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <set>
#include <thread>

#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "settings/config.hpp"
#include "support/page_size.hpp"

namespace vpmm::arena {
namespace {

using driver::StreamHandle;
using driver::StreamId;
using pool::Caller;

class StreamNamesTest : public ::testing::Test {
 protected:
  static StreamHandle handle(std::uint64_t number) { return StreamHandle{0x10000 + number}; }
  // Of a stream whose id the driver does not tell, as in a capture.
  static Caller unknown(StreamHandle stream) { return {stream}; }
  Caller known(StreamHandle stream, std::uint64_t id) {
    timeline.stream = StreamId{id};
    return {stream, &timeline};
  }
  Arena& make_arena(std::uint64_t id) {
    auto entry =
        std::make_unique<ArenaEntry>(pool::ArenaId{id}, ArenaOptions{}, kPage, Splitting::yes);
    Arena& made = entry->arena;
    table.by_id.emplace(entry->id, std::move(entry));
    return made;
  }
  // So many other streams call.
  void call_others(std::uint64_t count, bool are_known) {
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint64_t number = ++last_other;
      names.key_of(are_known ? known(handle(number), number) : unknown(handle(number)));
    }
  }

  driver::sim::SimDriver sim{{}};
  driver::RecordingDriver driver{sim};
  settings::Config config;
  time::Timelines timelines{driver, {}};
  pool::Stamper stamper{timelines, config};
  report::Recorder recorder{driver, 0};
  ArenaTable table{nullptr, nullptr, timelines, stamper, recorder};
  StreamNames names{table};
  time::Timeline timeline;
  std::uint64_t last_other = 1000;
};

TEST_F(StreamNamesTest, a_stream_has_the_key_of_its_id_and_no_stream_is_everybody) {
  EXPECT_EQ(names.key_of({}), kEverybody);
  const StreamKey seven = names.key_of(known(handle(1), 7));
  EXPECT_EQ(stream_id_of(seven), 7u);
  EXPECT_EQ(names.key_of(known(handle(1), 7)), seven);
  EXPECT_EQ(names.key_of(known(handle(2), 7)), seven) << "by its id, not by its handle";
  EXPECT_EQ(names.key_of(unknown(handle(1))), seven) << "in a capture";
  EXPECT_NE(names.key_of(known(handle(1), 8)), seven) << "the handle is another stream's now";
  EXPECT_EQ(stream_id_of(names.key_of(unknown(handle(1)))), 8u);
}

TEST_F(StreamNamesTest, streams_without_an_id_have_keys_of_their_own) {
  std::set<StreamKey> keys{kEverybody};
  for (const std::uint64_t number : {1U, 2U, 3U}) {
    const StreamKey key = names.key_of(unknown(handle(number)));
    EXPECT_TRUE(keys.insert(key).second);
    EXPECT_EQ(stream_id_of(key), 0u);
    EXPECT_EQ(names.key_of(unknown(handle(number))), key);
  }
  time::Timeline of_all;  // closed by events of the whole context
  EXPECT_EQ(names.key_of({handle(1), &of_all}), names.key_of(unknown(handle(1))));
}

TEST_F(StreamNamesTest, both_names_of_the_legacy_stream_are_one_and_of_a_threads_one_each) {
  EXPECT_EQ(names.key_of(unknown(driver::kNullStream)),
            names.key_of(unknown(driver::kLegacyStream)));
  const StreamKey own = names.key_of(unknown(driver::kPerThreadStream));
  EXPECT_NE(own, names.key_of(unknown(driver::kLegacyStream)));
  EXPECT_EQ(names.key_of(unknown(driver::kPerThreadStream)), own);
  StreamKey other{};
  std::thread([&] { other = names.key_of(unknown(driver::kPerThreadStream)); }).join();
  EXPECT_NE(other, own);
}

TEST_F(StreamNamesTest, a_stream_that_becomes_known_takes_its_blocks_along_in_all_arenas) {
  const StreamKey before = names.key_of(unknown(handle(1)));
  for (const std::uint64_t id : {1U, 2U}) {
    Arena& in = make_arena(id);
    in.add({DevicePtr{id * kPage}, kPage}, kEverybody);
    in.take({DevicePtr{id * kPage}, kGrain}, {kGrain, before, std::nullopt});
  }
  const StreamKey after = names.key_of(known(handle(1), 7));
  for (const auto& [id, each] : table.by_id) {
    EXPECT_FALSE(each->arena.is_used_by(before));
    EXPECT_TRUE(each->arena.is_used_by(after));
  }
  const StreamKey later = names.key_of(known(handle(1), 8));
  for (const auto& [id, each] : table.by_id)
    EXPECT_FALSE(each->arena.is_used_by(later)) << "memory of a stream that was known stays its";
}

TEST_F(StreamNamesTest, among_a_thousand_those_without_a_block_are_forgotten) {
  for (const bool are_known : {false, true}) {
    SCOPED_TRACE(are_known ? "the others have ids" : "the others have none");
    names.clear();
    const StreamKey idle = names.key_of(unknown(handle(1)));
    const StreamKey busy = names.key_of(unknown(handle(2)));
    Arena& in = make_arena(are_known ? 1 : 2);
    in.add({DevicePtr{kPage}, kPage}, kEverybody);
    in.take({DevicePtr{kPage}, kGrain}, {kGrain, busy, std::nullopt});
    call_others(1100, are_known);
    EXPECT_EQ(names.key_of(unknown(handle(2))), busy);
    EXPECT_NE(names.key_of(unknown(handle(1))), idle);
    names.clear();
    EXPECT_NE(names.key_of(unknown(handle(2))), busy) << "all streams are gone";
    table.by_id.clear();
  }
}

TEST_F(StreamNamesTest, a_few_are_kept) {
  const StreamKey key = names.key_of(unknown(handle(1)));
  call_others(500, false);
  call_others(500, true);
  EXPECT_EQ(names.key_of(unknown(handle(1))), key);
}

}  // namespace
}  // namespace vpmm::arena
