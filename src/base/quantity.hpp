// base: sizes and numbers as text: what settings accept, and what reports print.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/result.hpp"

namespace vpmm {

// "4096", "64MiB", "1.46 GiB", "700 bytes": a number, one blank or none, and a unit: B, byte or
// bytes, KiB to TiB (powers of 1024) or KB to TB (powers of 1000); a whole number needs none. A
// fraction of a byte is dropped. So every size that readable_bytes prints is accepted. Bare letters
// ("64M") are refused because programs disagree on what they mean.
Result<Bytes> parse_bytes(std::string_view text);
// The shortest text that parse_bytes turns into exactly `bytes`, in powers of 1024: "64MiB",
// "1500B".
std::string format_bytes(Bytes bytes);
// For people: three digits and a unit, "18 MiB", "1.46 GiB", "700 bytes".
std::string readable_bytes(Bytes bytes);
// For people who may have to calculate: "18 MiB (18874368 bytes)", "700 bytes".
std::string readable_and_exact_bytes(Bytes bytes);
// "1 free", "2 frees". Requires: the plural of `thing` ends in s.
std::string counted(std::uint64_t count, std::string_view thing);
// Digits alone. None: it is something else, or larger than the type.
std::optional<std::uint64_t> parse_count(std::string_view text);

}  // namespace vpmm
