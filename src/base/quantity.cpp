// base: the units of sizes.
#include "base/quantity.hpp"

#include <charconv>
#include <limits>
#include <utility>

#include "base/message.hpp"

namespace vpmm {
namespace {

constexpr Bytes kMaxBytes = std::numeric_limits<Bytes>::max();
constexpr std::pair<Bytes, const char*> kBinaryUnits[] = {{kTiB, "TiB"}, {kGiB, "GiB"}, {kMiB, "MiB"}, {kKiB, "KiB"}};

std::optional<Bytes> unit_of(std::string_view unit) {
  constexpr std::pair<std::string_view, Bytes> kUnits[] = {
      {"", 1},       {"B", 1},      {"KiB", kKiB},     {"MiB", kMiB},         {"GiB", kGiB},
      {"TiB", kTiB}, {"KB", 1'000}, {"MB", 1'000'000}, {"GB", 1'000'000'000}, {"TB", 1'000'000'000'000}};
  for (const auto& [name, bytes] : kUnits) {
    if (name == unit) return bytes;
  }
  return std::nullopt;
}

Error bad_size(std::string_view text) {
  return {ErrorCode::invalid_argument,
          message_of("'{}' is not a size: a whole number and B, KiB, MiB, GiB, TiB, KB, MB, GB, TB or no unit", text)};
}

}  // namespace

Result<Bytes> parse_bytes(std::string_view text) {
  Bytes number = 0;
  const char* const end = text.data() + text.size();
  const auto [unit, problem] = std::from_chars(text.data(), end, number);
  if (problem == std::errc::result_out_of_range) {
    return Error{ErrorCode::invalid_argument, message_of("'{}' is larger than any size", text)};
  }
  if (problem != std::errc{}) return bad_size(text);
  const auto factor = unit_of(text.substr(static_cast<std::size_t>(unit - text.data())));
  if (!factor) return bad_size(text);
  if (number > kMaxBytes / *factor) {
    return Error{ErrorCode::invalid_argument, message_of("'{}' is larger than any size", text)};
  }
  return number * *factor;
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
