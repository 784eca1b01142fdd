// observe: JSON as text, piece by piece. A tree of it cannot be taken apart where the process has
// no memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vpmm::observe {

// In quotes; what is no UTF-8 becomes a question mark.
std::string json_quoted(std::string_view text);

// An object as it grows. std::bad_alloc: it is as it was.
class JsonObject {
 public:
  // `value`: JSON.
  void add(std::string_view key, std::string_view value) {
    std::string member = members_.empty() ? "" : ",";
    member.append(json_quoted(key)).append(":").append(value);
    members_ += member;
  }
  bool is_empty() const { return members_.empty(); }
  std::size_t size() const { return members_.size(); }
  void clear() { members_.clear(); }
  std::string text() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

}  // namespace vpmm::observe
