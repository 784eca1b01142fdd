// SPDX-License-Identifier: Apache-2.0
// python: keyword arguments as the settings of a pool.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::python {

// The environment's settings, overridden by the caller's. Its texts stay valid as long as the
// object.
class Settings {
 public:
  explicit Settings(const nanobind::kwargs& given);
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

  // Runs `work` with the settings, as call() does. Errors name the caller's keywords, not
  // variables.
  template <typename Work>
  void call_with(Work&& work) const {
    const Failure failure = attempt([&] { return work(&config_); });
    if (failure.status != VPMM_OK) raise(failure.status, in_keywords(failure.message));
  }

  // As parameters in a signature: "page_size: int | str = ..., pages: int = ...".
  static std::string parameters();
  // A line for each, for docstrings.
  static std::string described();

 private:
  void set(const std::string& name, nanobind::handle value);
  std::string in_keywords(std::string message) const;

  vpmm_config config_{};
  std::deque<std::string> texts_;
  std::vector<std::string> given_;
};

}  // namespace vpmm::python
