// SPDX-License-Identifier: Apache-2.0
// settings: an amount of memory, in bytes or as a share.
#pragma once

#include <cstdint>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "base/result.hpp"

namespace vpmm::settings {

struct Portion {
  Bytes bytes = 0;
  std::uint32_t percent = 0;  // 1 to 100: of another amount, instead of `bytes`
  Bytes of(Bytes whole) const {
    return percent == 0 ? bytes : whole / 100 * percent + whole % 100 * percent / 100;
  }
  friend bool operator==(const Portion&, const Portion&) = default;
};

// Parses "8GiB", "25%".
Result<Portion> parse_portion(std::string_view text);

// VPMM_LIMITS: "cupy=8GiB,rmm=25%", of tags by name. Shares are of the capacity.
struct NamedLimit {
  std::string tag;
  Portion limit;
};
Result<Vector<NamedLimit>> tag_limits_from_environment();
// Tells if requests of a library have its name as their tag: VPMM_TAG_LIBRARIES, or a limit.
Result<bool> is_library_tagged(std::string_view library);

}  // namespace vpmm::settings
