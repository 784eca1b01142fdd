// python: keyword arguments as the settings of a pool.
#pragma once

#include <nanobind/nanobind.h>

#include <deque>
#include <string>

#include "vpmm/vpmm.h"

namespace vpmm::python {

// The environment's settings, and over them what the caller names. Its texts live as long as this.
class Settings {
 public:
  explicit Settings(const nanobind::kwargs& given);
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;
  const vpmm_config* config() const { return &config_; }

 private:
  vpmm_config config_{};
  std::deque<std::string> texts_;
};

}  // namespace vpmm::python
