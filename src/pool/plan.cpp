// SPDX-License-Identifier: Apache-2.0
// pool: figures and text of a plan.
#include "pool/plan.hpp"

#include <algorithm>
#include <numeric>

#include "base/host_memory.hpp"
#include "base/message.hpp"

namespace vpmm::pool {

namespace {

// Mean microseconds of driver calls in a process that keeps the GPU busy
// (docs/design/chunk-policy.md). Only the proportions affect decisions.
constexpr std::uint64_t kCreateUs = 22;
constexpr std::uint64_t kMapUs = 9;
constexpr std::uint64_t kAccessUs = 45;  // per mapping
constexpr std::uint64_t kUnmapUs = 47;

}  // namespace

Bytes Plan::kept_bytes() const {
  Bytes bytes = 0;
  for (const Part& part : kept) bytes += part.range.size;
  return bytes;
}

Bytes Plan::moved_bytes() const {
  Bytes bytes = 0;
  for (const Move& move : moves) bytes += move.part.range.size;
  return bytes;
}

Bytes Plan::growth() const { return std::accumulate(creates.begin(), creates.end(), Bytes{0}); }

std::uint64_t Plan::pieces() const {
  std::uint64_t pieces = creates.size();
  for (const Move& move : moves) pieces += move.chunks.size();
  return pieces;
}

bool Plan::is_complete() const {
  const auto is_over = [](const Part& part) { return part.stamp.is_complete(); };
  return std::all_of(kept.begin(), kept.end(), is_over) &&
         std::all_of(moves.begin(), moves.end(),
                     [&](const Move& move) { return is_over(move.part); });
}

std::uint64_t Plan::driver_us() const {
  const std::uint64_t moved = pieces() - creates.size();
  return creates.size() * (kCreateUs + kMapUs + kAccessUs) +
         moved * (kMapUs + kAccessUs + kUnmapUs);
}

std::string to_string(const Plan& plan, Bytes unit) {
  std::string text = message_of("{} =", plan.request / unit);
  if (!plan.kept.empty()) text += message_of(" keep {}", plan.kept_bytes() / unit);
  for (const Move& move : plan.moves)
    text += message_of(" move {} of [-{}]", move.part.range.size / unit,
                       move.part.from->range.size / unit);
  for (const Bytes size : plan.creates) text += message_of(" create {}", size / unit);
  if (!plan.waits.empty()) text += message_of(" after {} waits", plan.waits.size());
  return text;
}

}  // namespace vpmm::pool
