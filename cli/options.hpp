// SPDX-License-Identifier: Apache-2.0
// cli: options that more than one verb has, as CLI11 checks and converts them.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/quantity.hpp"
#include "settings/config.hpp"

namespace vpmm::cli {

constexpr std::uint64_t kLongestLagUs = 3'600'000'000;  // an hour

// Accepts the names alone, and says which there are. CLI11's own takes the numbers behind them,
// too.
template <typename Enum>
CLI::Validator names_only(const std::vector<std::pair<std::string, Enum>>& choices) {
  std::vector<std::string> names;
  names.reserve(choices.size());
  for (const auto& choice : choices) names.push_back(choice.first);
  const std::string all = fmt::format("{{{}}}", fmt::join(names, ","));
  return CLI::Validator(
      [choices, all](std::string& text) -> std::string {
        for (const auto& [name, value] : choices) {
          if (text != name) continue;
          text = std::to_string(static_cast<int>(value));
          return {};
        }
        return fmt::format("`{}` is not in {}", text, all);
      },
      all);
}

inline CLI::Validator driver_names() {
  return names_only<settings::DriverKind>({{"auto", settings::DriverKind::automatic},
                                           {"cuda", settings::DriverKind::cuda},
                                           {"sim", settings::DriverKind::sim}});
}

// Turns "64MiB" into the number of bytes.
inline CLI::Validator size_with_unit() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const Result<Bytes> bytes = parse_bytes(text);
        if (!bytes) return bytes.error().message;
        text = std::to_string(bytes.value());
        return {};
      },
      "SIZE");
}

// CLI11 alone would take -1 for the largest number.
inline CLI::Validator number_up_to(std::uint64_t most) {
  return CLI::Validator(
      [most](std::string& text) -> std::string {
        std::uint64_t number = 0;
        const char* const end = text.data() + text.size();
        const auto [stop, problem] = std::from_chars(text.data(), end, number);
        if (problem == std::errc{} && stop == end && number <= most) {
          text = std::to_string(number);
          return {};
        }
        return fmt::format("`{}` is not a whole number from 0 to {}", text, most);
      },
      "");
}

}  // namespace vpmm::cli
