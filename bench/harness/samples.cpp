// SPDX-License-Identifier: Apache-2.0
// bench/harness: printing samples. Each line goes out at once: a benchmark that is stopped keeps
// what it has.
#include "harness/samples.hpp"

#include <cstdio>

namespace vpmm::bench {

void Samples::add(const Sample& sample) const {
  std::printf("%s,%s,%s,%d,%s,%s,%d,%.9g\n", part_.c_str(), sample.name.c_str(), peer_.c_str(),
              sample.threads, sample.metric.c_str(), sample.unit.c_str(), sample.repeat,
              sample.value);
  std::fflush(stdout);
}

void Samples::left_out(const std::string& name, const std::string& reason) const {
  std::printf("# left out,%s,%s,%s,%s\n", part_.c_str(), name.c_str(), peer_.c_str(),
              reason.c_str());
  std::fflush(stdout);
}

}  // namespace vpmm::bench
