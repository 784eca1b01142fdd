// cli: options that more than one verb has, as CLI11 checks and converts them.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>

#include "base/bytes.hpp"
#include "context/config.hpp"

namespace vpmm::cli {

inline CLI::CheckedTransformer driver_names() {
  return CLI::CheckedTransformer(std::map<std::string, pool::DriverKind>{
      {"auto", pool::DriverKind::automatic}, {"cuda", pool::DriverKind::cuda}, {"sim", pool::DriverKind::sim}});
}

// Turns "64MiB" into the number of bytes.
inline CLI::Validator size_with_unit() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const Result<Bytes> bytes = context::parse_bytes(text);
        if (!bytes) return bytes.error().message;
        text = std::to_string(bytes.value());
        return {};
      },
      "SIZE");
}

}  // namespace vpmm::cli
