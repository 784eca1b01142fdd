// SPDX-License-Identifier: Apache-2.0
// report: names of tags.
#include "report/tags.hpp"

#include <map>
#include <set>

#include "base/message.hpp"

namespace vpmm::report {
namespace {

// Tags made for names are above those that programs number themselves.
constexpr std::uint32_t kBeforeMade = 0x7fffffff;

struct Names {
  Mutex mutex;
  std::set<std::string> texts VPMM_GUARDED_BY(mutex);  // only grows
  std::map<std::uint32_t, const char*> by_tag VPMM_GUARDED_BY(mutex);
  std::uint32_t last_made VPMM_GUARDED_BY(mutex) = kBeforeMade;
  std::map<std::string, bool> libraries VPMM_GUARDED_BY(mutex);  // true: tagged
};

// Stays for good: static objects may still read names.
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

std::string described_tag(std::uint32_t tag) {
  const char* const name = tag_name(tag);
  return *name == '\0' ? message_of("tag {}", tag) : message_of("the tag \"{}\"", name);
}

std::uint32_t tag_with_name(const char* name) {
  Names& all = names();
  const MutexLock lock(all.mutex);
  const char* const text = all.texts.insert(name).first->c_str();
  for (const auto& [tag, each] : all.by_tag)
    if (each == text) return tag;
  while (all.by_tag.contains(all.last_made + 1)) ++all.last_made;
  all.by_tag[all.last_made + 1] = text;
  return ++all.last_made;
}

void note_library(const char* library, bool is_tagged) {
  Names& all = names();
  const MutexLock lock(all.mutex);
  all.libraries[library] = is_tagged;
}

std::string untagged_libraries() {
  Names& all = names();
  const MutexLock lock(all.mutex);
  if (all.libraries.size() < 2) return {};
  std::string list;
  for (const auto& [library, is_tagged] : all.libraries)
    if (!is_tagged) list += list.empty() ? library : ", " + library;
  return list;
}

}  // namespace vpmm::report
