// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: recordings with options, and marks in them.
#ifndef VPMM_RECORDING_HPP
#define VPMM_RECORDING_HPP

#include <cstdint>
#include <string>

#include "vpmm/vpmm.hpp"

namespace vpmm {

// The options of vpmm_record_options.
struct record_options {
  std::string stacks = "none";  // "native", "python" or "both"
  std::uint64_t sample = 1;     // records one allocation in so many
  std::uint64_t limit = 0;      // bytes of the file; 0: no limit
  std::uint64_t window_ns = 0;  // how far back the file must reach; 0: keep all
};

// Records a pool from construction to the end of the scope. The pool must outlive the object.
class [[nodiscard]] recording {
 public:
  recording(pool_ref pool, const std::string& path, const record_options& options = {})
      : pool_(pool) {
    vpmm_record_options asked{};
    asked.size = sizeof(asked);
    asked.path = path.c_str();
    asked.stacks = options.stacks.c_str();
    asked.sample = options.sample;
    asked.limit = options.limit;
    asked.window_ns = options.window_ns;
    check(vpmm_record_start_with(pool.handle(), &asked));
  }
  // Ignores errors of the file; stop() reports them.
  ~recording() {
    if (!is_over_) static_cast<void>(vpmm_record_stop(pool_.handle()));
  }
  recording(const recording&) = delete;
  recording& operator=(const recording&) = delete;

  // Adds a text between the calls before and after it.
  void mark(const std::string& text) const {
    check(vpmm_record_mark(pool_.handle(), text.c_str()));
  }
  void stop() {
    is_over_ = true;
    check(vpmm_record_stop(pool_.handle()));
  }

 private:
  pool_ref pool_;
  bool is_over_ = false;
};

// Adds a text to the recording of each pool of the process, as vpmm_record_mark does for a null
// pool.
inline void record_mark(const std::string& text) { check(vpmm_record_mark(nullptr, text.c_str())); }

}  // namespace vpmm

#endif
