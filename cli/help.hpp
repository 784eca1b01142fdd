// SPDX-License-Identifier: Apache-2.0
// cli: usage and help of the verbs, between the edges of the terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace vpmm::cli {

// Layout of CLI11's help with argparse's words, which the verbs of the Python package have. The
// description of an option begins in a column of its own.
class Help : public CLI::Formatter {
 public:
  Help();

  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* verb) const override;
};

}  // namespace vpmm::cli
