// SPDX-License-Identifier: Apache-2.0
// cli: a progress bar on a terminal; elsewhere nothing is printed.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "base/mutex.hpp"

namespace vpmm::cli {

// On stderr. Thread-safe.
class ProgressBar {
 public:
  ProgressBar(std::string label, std::size_t total);
  ~ProgressBar();  // wipes the bar away
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void add(std::size_t done) VPMM_EXCLUDES(mutex_);

 private:
  void draw() VPMM_REQUIRES(mutex_);
  std::string time_left() const VPMM_REQUIRES(mutex_);

  const std::string label_;
  const std::size_t total_;
  const bool on_terminal_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  Mutex mutex_;
  std::size_t done_ VPMM_GUARDED_BY(mutex_) = 0;
  int drawn_percent_ VPMM_GUARDED_BY(mutex_) = -1;
};

}  // namespace vpmm::cli
