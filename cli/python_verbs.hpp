// SPDX-License-Identifier: Apache-2.0
// cli: verbs of the Python package, which `vpmm` hands on to it.
#pragma once

#include <string_view>

namespace vpmm::cli {

bool is_python_verb(std::string_view verb);

// Becomes `python3 -m vpmm VERB ...`, which takes no module from the current folder. Returns, with
// kCouldNot and a line on stderr, where python3 lacks the package.
int run_in_python(char** argv);

}  // namespace vpmm::cli
