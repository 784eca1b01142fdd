// SPDX-License-Identifier: Apache-2.0
// bench/harness: reading a trace.
#include "harness/trace.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <unordered_map>

namespace vpmm::bench {
namespace {

struct Closer {
  void operator()(gzFile file) const { gzclose(file); }
};

std::string name_of(const std::string& path) {
  const std::size_t folder = path.rfind('/');
  const std::string file = folder == std::string::npos ? path : path.substr(folder + 1);
  return file.substr(0, file.find('.'));
}

}  // namespace

Trace read_trace(const std::string& path) {
  const std::unique_ptr<gzFile_s, Closer> file(gzopen(path.c_str(), "rb"));
  char line[256];
  if (!file || gzgets(file.get(), line, sizeof(line)) == nullptr)
    throw std::runtime_error("cannot read " + path);
  Trace trace;
  trace.name = name_of(path);
  std::unordered_map<unsigned long long, std::size_t> ids;
  while (gzgets(file.get(), line, sizeof(line)) != nullptr) {
    Event event;
    unsigned long long id = 0;
    if (std::sscanf(line, "%c,%llu,%zu,%zu,%lu", &event.operation, &id, &event.bytes, &event.stream,
                    &event.time_us) != 5) {
      throw std::runtime_error(path + ": this is no line of a trace: " + line);
    }
    if (event.operation != 's') event.id = ids.try_emplace(id, ids.size()).first->second;
    trace.streams = std::max(trace.streams, event.stream + 1);
    trace.events.push_back(event);
  }
  trace.allocations = ids.size();
  return trace;
}

}  // namespace vpmm::bench
