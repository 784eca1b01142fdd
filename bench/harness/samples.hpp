// SPDX-License-Identifier: Apache-2.0
// bench/harness: what a benchmark prints: one line of CSV for each measured value, to be summed up
// by others.
#pragma once

#include <string>

namespace vpmm::bench {

// part,case,peer,threads,metric,unit,repeat,value
class Samples {
 public:
  Samples(std::string part, std::string peer) : part_(std::move(part)), peer_(std::move(peer)) {}

  struct Sample {
    std::string name;  // of the case
    std::string metric;
    std::string unit;
    double value = 0;
    int repeat = 0;
    int threads = 1;
  };
  void add(const Sample& sample) const;
  // A case that was not measured, and why.
  void left_out(const std::string& name, const std::string& reason) const;

 private:
  std::string part_;
  std::string peer_;
};

}  // namespace vpmm::bench
