// context: names of tags, and the sum of each for reports.
#include "context/tags.hpp"

#include <map>
#include <set>

#include "base/message.hpp"

namespace vpmm::context {
namespace {

struct Names {
  Mutex mutex;
  std::set<std::string> texts VPMM_GUARDED_BY(mutex);  // every one that there ever was
  std::map<std::uint32_t, const char*> by_tag VPMM_GUARDED_BY(mutex);
};

// Never destroyed: static objects may still ask.
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

std::string Tags::report() const noexcept {
  try {
    std::map<std::uint32_t, Bytes> sums;
    for (const auto& [begin, tagged] : tagged_) sums[tagged.tag] += tagged.requested;
    std::string text;
    for (const auto& [tag, bytes] : sums) {
      const char* const name = tag_name(tag);
      text += text.empty() ? "; of what lives, tagged " : ", ";
      text += *name == '\0' ? message_of("{} {}", tag, bytes) : message_of("{} {}", name, bytes);
    }
    return text;
  } catch (...) {
    return {};
  }
}

}  // namespace vpmm::context
