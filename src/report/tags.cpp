// SPDX-License-Identifier: Apache-2.0
// report: names of tags.
#include "report/tags.hpp"

#include <map>
#include <set>

namespace vpmm::report {
namespace {

struct Names {
  Mutex mutex;
  std::set<std::string> texts VPMM_GUARDED_BY(mutex);  // only grows
  std::map<std::uint32_t, const char*> by_tag VPMM_GUARDED_BY(mutex);
};

// Never destroyed: static objects may still read names.
Names& names() {
  static auto* const all = new Names;
  return *all;
}

}  // namespace

void set_tag_name(std::uint32_t tag, const char* name) {
  Names& all = names();
  const MutexLock lock(all.mutex);
  all.by_tag[tag] = all.texts.insert(name).first->c_str();
}

const char* tag_name(std::uint32_t tag) {
  Names& all = names();
  const MutexLock lock(all.mutex);
  const auto found = all.by_tag.find(tag);
  return found == all.by_tag.end() ? "" : found->second;
}

}  // namespace vpmm::report
