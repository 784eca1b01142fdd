// SPDX-License-Identifier: Apache-2.0
// tests: messages of the log.
#pragma once

#include <string>
#include <string_view>

#include "observe/log.hpp"

namespace vpmm::test {

// Collects messages of the log while it lives.
class Told {
 public:
  Told() {
    observe::set_log_sink(
        [this](observe::LogLevel, std::string_view text) { lines_ += std::string(text) + "\n"; });
  }
  ~Told() { observe::set_log_sink({}); }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;
  const std::string& lines() const { return lines_; }

 private:
  std::string lines_;
};

}  // namespace vpmm::test
