// SPDX-License-Identifier: Apache-2.0
// observe: importance of a message, and the bound on those that are written.
#pragma once

#include <array>

namespace vpmm::observe {

enum class LogLevel { quiet, error, warning, info, debug };
inline constexpr std::array kLogLevels{LogLevel::quiet, LogLevel::error, LogLevel::warning,
                                       LogLevel::info, LogLevel::debug};
const char* to_string(LogLevel level);

}  // namespace vpmm::observe
