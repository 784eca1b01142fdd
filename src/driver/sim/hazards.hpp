// SPDX-License-Identifier: Apache-2.0
// driver/sim: finds unordered accesses to device memory, and uses of memory without ownership.
//
// Operations are shown in queueing order. Edges of order lead only to operations queued later, so a
// check of each new access against earlier ones in the shadow finds every unordered pair, in any
// order of running. Single-threaded: the machine's lock is held.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/address.hpp"
#include "driver/sim/shadow.hpp"
#include "driver/sim/sim_types.hpp"
#include "driver/sim/vector_clock.hpp"
#include "driver/types.hpp"

namespace vpmm::driver::sim {

// An operation about to be queued, with all operations ordered before it, itself included.
struct Actor {
  Position at;
  const VectorClock& clock;
};

constexpr NameId kAllocateName{0};
constexpr NameId kDeallocateName{1};

class HazardChecker {
 public:
  // `host`: operations known to the host as complete; their records order before all later
  // operations, and may be forgotten. At most `max_records` segments and reads are kept; more
  // pending ones are forgotten and counted.
  HazardChecker(std::uint64_t max_records, const VectorClock& host);

  void add(Shadow& shadow);
  void remove(Shadow& shadow);

  // A piece of a chunk and the address through which it is reached.
  struct AccessPiece {
    Shadow& shadow;
    Bytes offset = 0;
    AddressRange range;
  };
  void access(const AccessPiece& piece, MemoryAccess::Kind kind, const Actor& actor);
  enum class Allocator { observed, driver };
  void allocate(const AccessPiece& piece, Allocator allocator, const Actor& actor);
  // Makes later accesses a use after free; earlier ones must be ordered before.
  void deallocate(const AccessPiece& piece, const Actor& actor);
  // All work queued so far may be the last use: its records stay in the shadow, and the next
  // allocation must be ordered after them.
  void deallocate_after_all(const AccessPiece& piece);
  void deallocate_in_capture(const AccessPiece& piece);
  void unmapped_access(AddressRange range, MemoryAccess::Kind kind, const Actor& actor);
  void unmapped_annotation(AddressRange range, const Actor& actor);
  void unmapped_too_early(AddressRange range, const Position& use, const Actor& host);

  NameId intern(std::string_view name);
  // Names the slot's operations from `first` on after this stream.
  void name_stream(Slot slot, std::uint64_t first, StreamId id);

  std::uint64_t count() const { return count_; }
  const std::vector<Hazard>& first_hazards() const { return hazards_; }
  std::uint64_t records() const { return records_; }
  std::uint64_t dropped_records() const { return dropped_; }

 private:
  struct StreamName {
    std::uint64_t first;
    StreamId id;
  };
  // Changes the history of the piece's bytes: `update(segment, range)` sees and changes each.
  template <typename Update>
  void change(const AccessPiece& piece, Shadow::Cover cover, Update&& update);
  template <typename Update>
  void replace(Segments& segments, std::uint32_t begin, std::uint32_t end, TouchRight blank,
               Update& update);
  void append(ShadowSegment&& segment);
  void splice(Segments& segments, Segments::iterator first, Segments::iterator last);

  bool owned(const ShadowSegment& segment, const AccessPiece& piece, AddressRange range,
             const Actor& actor);
  bool ordered(const Position& earlier, const Actor& actor) const {
    return !earlier.exists() || actor.clock.covers(earlier.slot, earlier.n);
  }
  // Reports the first record of the segment that is not ordered before `actor`.
  void check_order(const ShadowSegment& segment, AddressRange range, const Actor& actor,
                   std::string_view verb);
  void report_unordered(const Position& earlier, std::string_view earlier_verb, AddressRange range,
                        const Actor& actor, std::string_view verb);
  void add_read(ShadowSegment& segment, const Actor& actor);
  void report(Hazard::Kind kind, AddressRange range, const Position& first, const Position& second,
              std::string first_text, std::string second_text, std::string missing);
  std::string describe(const Position& position, std::string_view verb) const;
  std::string describe_place(const Position& position) const;

  void collect_if_due();
  void collect();
  void coarsen();
  void forget_what_the_host_knows(ShadowSegment& segment) const;
  static void merge_neighbours(Segments& segments, TouchRight blank);

  std::uint64_t max_records_;
  const VectorClock& host_;
  std::vector<Shadow*> shadows_;
  std::uint64_t records_ = 0;  // = sum of ShadowSegment::records() over all shadows
  std::uint64_t next_collect_;
  std::uint64_t dropped_ = 0;
  std::size_t next_coarsened_ = 0;
  Segments scratch_;

  std::uint64_t count_ = 0;
  std::vector<Hazard> hazards_;
  // The pair reported last: one bad pair often touches many segments and counts once.
  Hazard::Kind last_kind_{};
  std::pair<Position, Position> last_pair_;

  std::vector<std::string> names_;
  std::map<std::string, NameId, std::less<>> name_ids_;
  std::vector<std::vector<StreamName>> stream_names_;  // by slot, ascending `first`
};

}  // namespace vpmm::driver::sim
