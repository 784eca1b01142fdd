// SPDX-License-Identifier: Apache-2.0
// cli: usage and help of the verbs, between the edges of the terminal.
#include "cli/help.hpp"

#include <cstddef>
#include <optional>

#include "cli/terminal.hpp"

namespace vpmm::cli {
namespace {

constexpr std::size_t kColumn = 20;  // of descriptions

std::string row(const std::string& name, const std::string& description) {
  const std::optional<std::size_t> columns = columns_of_output();
  std::string lines = wrapped("  " + name, columns, 2);
  if (description.empty()) return lines + "\n";
  std::string text = wrapped(std::string(kColumn, ' ') + description, columns, kColumn);
  if (lines.size() + 2 > kColumn) return lines + "\n" + text + "\n";
  return text.replace(0, lines.size(), lines) + "\n";
}

}  // namespace

Help::Help() {
  label("Usage", "usage");
  label("SUBCOMMAND", "VERB");
}

std::string Help::make_option(const CLI::Option* option, bool is_positional) const {
  return row(make_option_name(option, is_positional) + make_option_opts(option),
             make_option_desc(option));
}

std::string Help::make_subcommand(const CLI::App* verb) const {
  return row(verb->get_name(), verb->get_description());
}

}  // namespace vpmm::cli
