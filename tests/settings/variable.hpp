// SPDX-License-Identifier: Apache-2.0
// context tests: a variable of the environment that is set for one test.
#pragma once

#include <cstdlib>

namespace vpmm::settings {

class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

}  // namespace vpmm::settings
