// SPDX-License-Identifier: Apache-2.0
// cli: silence about shortages, for verbs that provoke them.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "observe/log.hpp"

namespace vpmm::cli {

// Running out of memory is what the verb is about. While it lives, that is not worth a warning.
class NoShortages {
 public:
  NoShortages() {
    observe::set_log_sink([](observe::LogLevel level, std::string_view message) {
      if (message.starts_with("out of device memory")) return;
      fmt::print(stderr, "vpmm: {}: {}\n", observe::to_string(level), message);
    });
  }
  ~NoShortages() { observe::set_log_sink({}); }
  NoShortages(const NoShortages&) = delete;
  NoShortages& operator=(const NoShortages&) = delete;
};

}  // namespace vpmm::cli
