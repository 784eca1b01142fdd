// SPDX-License-Identifier: Apache-2.0
// hunt: the figures of a course as text.
#pragma once

#include <string>

#include "hunt/program/course.hpp"

namespace vpmm::hunt {

std::string summary_of(const Outcome& outcome);

}  // namespace vpmm::hunt
