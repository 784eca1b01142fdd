// SPDX-License-Identifier: Apache-2.0
// region tests: changes of a region index that run on the index and on the model, and print
// themselves as code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "region/reference_model.hpp"
#include "region/region_index.hpp"

namespace vpmm::region {

struct Reserve {
  PageSpan span;
};
struct Unreserve {
  PageSpan span;
};
// Regions are named by any page of theirs.
struct Allocate {
  PageSpan part;
  Bytes requested = 0;
};
struct Release {
  std::uint64_t page = 0;
  time::Stamp stamp;
};
struct Detach {
  PageSpan part;
};
struct AttachFree {
  std::uint64_t page = 0;
  time::Stamp stamp;
};
struct TakeBack {
  std::uint64_t page = 0;
};
struct AttachHole {
  std::uint64_t page = 0;
};
struct AttachZombie {
  std::uint64_t page = 0;
  time::Stamp stamp;
};
struct AttachAllocated {
  std::uint64_t page = 0;
  Bytes requested = 0;
};
struct Split {
  std::uint64_t at = 0;  // first page of the back
};
struct Join {
  std::uint64_t at = 0;  // first page of the back
};
struct Advance {
  time::TimelineId timeline{};
  std::uint64_t sequence = 0;
};

using Operation = std::variant<Reserve, Unreserve, Allocate, Release, Detach, AttachFree, TakeBack,
                               AttachHole, AttachZombie, AttachAllocated, Split, Join, Advance>;

// As a line for a regression test: `run(Release{3, on(A, 7)});`
std::string to_code(const Operation& operation);

// An index and its model, changed alike.
class Twins {
 public:
  // `unit`: the page of the index, of which a page of the model is a multiple.
  explicit Twins(const Vector<PageSpan>& reservations, Bytes unit = kPage);

  void run(const Operation& operation);

  // What validate() says, or where index and model part; empty when all is well. Fits are asked for
  // `fit` pages.
  struct Question {
    std::uint64_t count = 1;
    std::uint64_t alignment = 1;
    std::optional<time::TimelineId> own;
  };
  std::string difference(const Question& fit) const;

  const ReferenceModel& model() const { return model_; }
  // The reservations and all that was run since, as code.
  std::string history() const;

 private:
  std::string region_difference() const;
  std::string owner_difference(const Vector<ModelRegion>& regions) const;
  std::string search_difference(const Question& fit) const;
  std::string figure_difference(const Vector<ModelRegion>& regions) const;

  Vector<PageSpan> reservations_;
  Bytes unit_;
  ReferenceModel model_;
  RegionIndex index_;
  Vector<Operation> history_;
  bool returned_the_named_ = true;  // the last operation did
};

}  // namespace vpmm::region
