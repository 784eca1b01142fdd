// SPDX-License-Identifier: Apache-2.0
// cli: the width of the terminal, and texts that fit it and command nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace vpmm::cli {

// Width of standard output: COLUMNS, else the terminal's. Nullopt for a file or a pipe.
std::optional<std::size_t> columns_of_output();

// Removes commands to the terminal: names and contents of files may hold some. Keeps line feeds.
std::string printable(std::string_view text);

// printable(), and breaks lines between words, where they are longer than `columns`. A continued
// line begins with `indent` blanks, at most 20. A word that is longer than a line stays whole.
std::string wrapped(std::string_view text, std::optional<std::size_t> columns,
                    std::size_t indent = 0);

}  // namespace vpmm::cli
