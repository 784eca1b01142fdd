// SPDX-License-Identifier: Apache-2.0
// cli: a progress bar on a terminal; elsewhere nothing is printed.
#include "cli/progress_bar.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

namespace vpmm::cli {
namespace {

constexpr int kCells = 40;
constexpr char kEraseLine[] = "\r\x1b[K";

void print(const std::string& text) {
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace

ProgressBar::ProgressBar(std::string label, std::size_t total)
    : label_(std::move(label)), total_(total), on_terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (on_terminal_) print(kEraseLine);
}

void ProgressBar::add(std::size_t done) {
  MutexLock lock(mutex_);
  done_ += done;
  if (on_terminal_ && total_ != 0) draw();
}

void ProgressBar::draw() {
  const int percent = static_cast<int>(std::min(done_, total_) * 100 / total_);
  if (percent == drawn_percent_) return;
  drawn_percent_ = percent;
  const auto full = static_cast<std::size_t>(percent * kCells / 100);
  print(fmt::format("{}{} [{}{}] {:>3} %{}", kEraseLine, label_, std::string(full, '#'),
                    std::string(kCells - full, '.'), percent, time_left()));
}

// At the speed so far; nothing in the first second, when it would be a guess.
std::string ProgressBar::time_left() const {
  const double spent =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  if (spent < 1 || done_ == 0 || done_ >= total_) return {};
  const double left = spent * static_cast<double>(total_ - done_) / static_cast<double>(done_);
  return left < 100 ? fmt::format(", {:.0f} s left", left)
                    : fmt::format(", {:.0f} min left", left / 60);
}

}  // namespace vpmm::cli
