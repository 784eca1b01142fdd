// SPDX-License-Identifier: Apache-2.0
// ipc: the figures that a process tells to `vpmm top`, as one JSON object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "context/reports.hpp"

namespace vpmm::ipc {

// Version of the answer. A reader accepts its own version only, and ignores members that it does
// not know: a new member is no new version.
constexpr int kTopVersion = 1;

struct TopPool {
  int device = 0;
  std::optional<context::FiguresToTell> figures;  // nullopt: the pool's lock was taken
};

struct TopFigures {
  const char* library = "";  // its version
  std::uint64_t age_ns = 0;  // since the socket was made
  std::vector<TopPool> pools;
  std::size_t more_pools = 0;  // that are not among them
};

// Sizes in bytes. Of each pool, the `most_tags` tags and libraries that hold most; names have at
// most 64 bytes.
std::string top_answer(const TopFigures& figures, std::size_t most_tags);

}  // namespace vpmm::ipc
