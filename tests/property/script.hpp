// SPDX-License-Identifier: Apache-2.0
// property tests: a program as text in C, written call by call while it runs.
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

namespace vpmm::property {

struct Scene;

// Lines go to a file at once, so that a crash loses none. Calls of the pool are those of
// vpmm/vpmm.h; simulated work and streams are calls of tests/hunt/stage/stage.h. Other operations
// appear as comments.
class Script {
 public:
  explicit Script(int file) : file_(file) {}

  void begin(const Scene& scene);
  template <typename... Args>
  void line(fmt::format_string<Args...> text, Args&&... args) {
    write("  " + fmt::format(text, std::forward<Args>(args)...) + "\n");
  }
  void end(const std::string& failure);

 private:
  void write(const std::string& text);

  int file_;
};

}  // namespace vpmm::property
