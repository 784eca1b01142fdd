// SPDX-License-Identifier: Apache-2.0
// observe: quotes for JSON.
#include "observe/json_text.hpp"

#include <fmt/format.h>

#include <iterator>

namespace vpmm::observe {
namespace {

// Bytes of the first character of `text`; 0: not UTF-8.
std::size_t length_of_character(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xc2 && first < 0xe0   ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                                                             : 4;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  const auto second = static_cast<unsigned char>(text[1]);
  const bool is_too_long = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool is_beyond = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return is_too_long || is_beyond ? 0 : length;
}

}  // namespace

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const std::size_t length = length_of_character(text);
    const char first = text[0];
    if (length == 0)
      out += '?';
    else if (first == '"' || first == '\\')
      out.append("\\").append(1, first);
    else if (static_cast<unsigned char>(first) < 0x20)
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(first));
    else
      out.append(text.substr(0, length));
    text.remove_prefix(length == 0 ? 1 : length);
  }
  return out += '"';
}

}  // namespace vpmm::observe
