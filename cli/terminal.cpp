// SPDX-License-Identifier: Apache-2.0
// cli: asks the environment and the terminal, replaces control characters, and breaks lines.
#include "cli/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/quantity.hpp"
#include "settings/variables.hpp"

namespace vpmm::cli {
namespace {

constexpr std::size_t kLeastColumns = 40;

void add_wrapped(std::string& out, std::string_view line, std::size_t columns, std::size_t indent) {
  std::size_t room = columns;
  while (line.size() > room) {
    const std::size_t word = line.find_first_not_of(' ');
    std::size_t gap = line.rfind(' ', room);
    if (gap == std::string_view::npos || gap < word) gap = line.find(' ', word);
    const std::size_t next = line.find_first_not_of(' ', gap);
    if (next == std::string_view::npos) break;
    out += line.substr(0, line.find_last_not_of(' ', gap) + 1);
    out += '\n';
    out.append(indent, ' ');
    line.remove_prefix(next);
    room = columns - indent;
  }
  out += line;
}

}  // namespace

std::optional<std::size_t> columns_of_output() {
  winsize size{};
  std::uint64_t columns = parse_count(settings::value_of("COLUMNS")).value_or(0);
  if (columns == 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  if (columns == 0) return std::nullopt;
  return std::max<std::size_t>(columns, kLeastColumns);
}

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : '\0');
    const bool is_of_two = byte == 0xc2 && next >= 0x80 && next < 0xa0;  // U+0080 to U+009f
    const bool is_control = (byte < 0x20 && byte != '\n') || byte == 0x7f || is_of_two;
    out += is_control ? '?' : text[i];
    if (is_of_two) ++i;
  }
  return out;
}

std::string wrapped(std::string_view text, std::optional<std::size_t> columns, std::size_t indent) {
  std::string shown = printable(text);
  if (!columns) return shown;
  text = shown;
  std::string out;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    add_wrapped(out, line, *columns, std::min(indent, kLeastColumns / 2));
    text.remove_prefix(line.size());
    if (text.empty()) break;
    out += '\n';
    text.remove_prefix(1);
  }
  return out;
}

}  // namespace vpmm::cli
