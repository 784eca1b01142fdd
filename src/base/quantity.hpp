// SPDX-License-Identifier: Apache-2.0
// base: sizes and numbers as text, for settings and reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/result.hpp"

namespace vpmm {

// Parses "4096", "64MiB", "1.46 GiB", "700 bytes": a number, at most one blank, and a unit: B, byte
// or bytes, KiB to TiB (powers of 1024) or KB to TB (powers of 1000); a whole number needs no unit.
// Drops a fraction of a byte, so every size printed by readable_bytes is accepted. Refuses bare
// letters ("64M"), because programs disagree on their meaning.
Result<Bytes> parse_bytes(std::string_view text);
// The shortest text that parse_bytes turns into exactly `bytes`, in powers of 1024: "64MiB",
// "1500B".
std::string format_bytes(Bytes bytes);
// For people: three digits and a unit, "18 MiB", "1.46 GiB", "700 bytes".
std::string readable_bytes(Bytes bytes);
// For calculations: "18 MiB (18874368 bytes)", "700 bytes".
std::string readable_and_exact_bytes(Bytes bytes);
// "1 free", "2 frees". Requires: the plural of `thing` ends in s.
std::string counted(std::uint64_t count, std::string_view thing);
// "8GiB" for "8G". Empty: nothing is like it, or it is a size.
std::string size_meant_by(std::string_view text);
// Parses digits alone; nullopt: another text, or too large.
std::optional<std::uint64_t> parse_count(std::string_view text);

}  // namespace vpmm
