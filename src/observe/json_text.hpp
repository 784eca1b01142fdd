// SPDX-License-Identifier: Apache-2.0
// observe: JSON as text, piece by piece, as a tree of JSON objects needs memory for its
// destruction.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vpmm::observe {

// Quotes `text`; bytes that are not UTF-8 become question marks.
std::string json_quoted(std::string_view text);

// A growing object; unchanged by std::bad_alloc.
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
