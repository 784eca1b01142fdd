// SPDX-License-Identifier: Apache-2.0
// base: the units of sizes.
#include "base/quantity.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "base/message.hpp"

namespace vpmm {
namespace {

constexpr Bytes kMaxBytes = std::numeric_limits<Bytes>::max();
constexpr std::pair<Bytes, const char*> kBinaryUnits[] = {
    {kTiB, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}};

constexpr std::pair<std::string_view, Bytes> kUnits[] = {{"B", 1},
                                                         {"byte", 1},
                                                         {"bytes", 1},
                                                         {"KiB", kKiB},
                                                         {"MiB", kMiB},
                                                         {"GiB", kGiB},
                                                         {"TiB", kTiB},
                                                         {"KB", 1'000},
                                                         {"MB", 1'000'000},
                                                         {"GB", 1'000'000'000},
                                                         {"TB", 1'000'000'000'000}};

std::optional<Bytes> unit_of(std::string_view unit) {
  for (const auto& [name, bytes] : kUnits) {
    if (name == unit) return bytes;
  }
  return std::nullopt;
}

// The unit that `text` is but for cases of letters, or whose first letter it is. Empty: none.
std::string_view unit_like(std::string_view text) {
  const auto is_like = [](char a, char b) { return (a | ' ') == (b | ' '); };
  for (const auto& [name, bytes] : kUnits) {
    const std::string_view begin = text.size() == 1 ? name.substr(0, 1) : name;
    if (bytes != 1 && !text.empty() &&
        std::equal(text.begin(), text.end(), begin.begin(), begin.end(), is_like))
      return name;
  }
  return {};
}

Error bad_size(std::string_view text) {
  const std::string meant = size_meant_by(text);
  return {
      ErrorCode::invalid_argument,
      message_of("'{}' is not a size: a number such as 16 or 1.5 "
                 "and KiB, MiB, GiB, TiB, KB, MB, GB or TB, or a "
                 "whole number of bytes{}",
                 text, meant.empty() ? std::string() : message_of("; did you mean {}?", meant))};
}

Error too_large(std::string_view text) {
  return {ErrorCode::invalid_argument, message_of("'{}' is larger than any size", text)};
}

std::size_t digits_at_the_start_of(std::string_view text) {
  return std::min(text.find_first_not_of("0123456789"), text.size());
}

// Returns `factor` times 0.digits, rounded down. Exact: the last digit comes first, and no dropped
// remainder can carry.
Bytes part_of(Bytes factor, std::string_view digits) {
  Bytes part = 0;
  for (; !digits.empty(); digits.remove_suffix(1))
    part = (part + factor * static_cast<Bytes>(digits.back() - '0')) / 10;
  return part;
}

}  // namespace

std::string size_meant_by(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789. "), text.size());
  const std::string_view unit = unit_like(text.substr(digits));
  std::string meant = message_of("{}{}", text.substr(0, digits), unit);
  if (unit.empty() || meant == text || !parse_bytes(meant)) return {};
  return meant;
}

Result<Bytes> parse_bytes(std::string_view text) {
  const std::string_view whole = text.substr(0, digits_at_the_start_of(text));
  std::string_view rest = text.substr(whole.size());
  const bool has_point = rest.starts_with('.');
  if (has_point) rest.remove_prefix(1);
  const std::string_view fraction = rest.substr(0, has_point ? digits_at_the_start_of(rest) : 0);
  rest.remove_prefix(fraction.size());
  if (whole.empty() || has_point != !fraction.empty()) return bad_size(text);
  const bool is_bare = rest.empty();
  if (rest.starts_with(' ')) rest.remove_prefix(1);
  const std::optional<Bytes> factor = is_bare ? 1 : unit_of(rest);
  if (!factor || (has_point && *factor == 1)) return bad_size(text);

  Bytes number = 0;
  const auto [end, problem] = std::from_chars(whole.data(), whole.data() + whole.size(), number);
  const Bytes part = part_of(*factor, fraction);
  if (problem != std::errc{} || number > (kMaxBytes - part) / *factor) return too_large(text);
  return number * *factor + part;
}

std::string format_bytes(Bytes bytes) {
  for (const auto& [unit, name] : kBinaryUnits) {
    if (bytes != 0 && is_multiple(bytes, unit)) return message_of("{}{}", bytes / unit, name);
  }
  return message_of("{}B", bytes);
}

std::string readable_bytes(Bytes bytes) {
  for (const auto& [unit, name] : kBinaryUnits) {
    if (bytes < unit) continue;
    if (is_multiple(bytes, unit)) return message_of("{} {}", bytes / unit, name);
    const double number = static_cast<double>(bytes) / static_cast<double>(unit);
    return message_of("{:.{}f} {}", number, number < 10 ? 2 : number < 100 ? 1 : 0, name);
  }
  return counted(bytes, "byte");
}

std::string readable_and_exact_bytes(Bytes bytes) {
  std::string text = readable_bytes(bytes);
  return bytes < kKiB ? text : message_of("{} ({} bytes)", text, bytes);
}

std::string counted(std::uint64_t count, std::string_view thing) {
  return message_of("{} {}{}", count, thing, count == 1 ? "" : "s");
}

std::optional<std::uint64_t> parse_count(std::string_view text) {
  std::uint64_t count = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (problem != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return count;
}

}  // namespace vpmm
