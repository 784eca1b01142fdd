// SPDX-License-Identifier: Apache-2.0
// tests: where the files of the repository lie. Only one source knows, so that all others are the
// same in every clone.
#pragma once

#include <string>

namespace vpmm {

std::string repository_path(const std::string& relative);

}  // namespace vpmm
