// pool: figures and text of a plan.
#include "pool/plan.hpp"

#include <algorithm>

#include "base/host_memory.hpp"
#include "base/message.hpp"

namespace vpmm::pool {

namespace {

// Microseconds that driver calls take in a process that keeps the GPU busy, in the mean. What they are is measured
// (docs/design/chunk-policy.md); only their proportions decide anything.
constexpr std::uint64_t kCreateUs = 22;
constexpr std::uint64_t kMapUs = 9;
constexpr std::uint64_t kAccessUs = 45;  // for each mapping
constexpr std::uint64_t kUnmapUs = 47;
constexpr std::uint64_t kReleaseUs = 46;

Bytes sum(const Vector<Bytes>& sizes) {
  Bytes bytes = 0;
  for (const Bytes size : sizes) bytes += size;
  return bytes;
}

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

Bytes Plan::created_bytes() const { return sum(creates); }

Bytes Plan::growth() const { return created_bytes() - (split ? split->part.range.size - split->left.size : 0); }

std::uint64_t Plan::pieces() const {
  std::uint64_t pieces = creates.size() + (split ? split->left_chunks.size() : 0);
  for (const Move& move : moves) pieces += move.chunks.size();
  return pieces;
}

bool Plan::is_complete() const {
  const auto is_over = [](const Part& part) { return part.stamp.is_complete(); };
  return std::all_of(kept.begin(), kept.end(), is_over) &&
         std::all_of(moves.begin(), moves.end(), [&](const Move& move) { return is_over(move.part); });
}

Price Plan::price() const {
  std::uint64_t moved = 0;
  for (const Move& move : moves) moved += move.chunks.size();
  const std::uint64_t created = creates.size() + (split ? split->left_chunks.size() : 0);
  constexpr std::uint64_t kNewChunkUs = kCreateUs + kMapUs + kAccessUs;
  const std::uint64_t us =
      created * kNewChunkUs + moved * (kMapUs + kAccessUs + kUnmapUs) + (split ? kUnmapUs + kReleaseUs : 0);
  const Bytes all_created = created_bytes();
  const std::uint64_t growth_us = all_created == 0 ? 0 : creates.size() * kNewChunkUs * growth() / all_created;
  return {us, slack, growth(), growth_us, !waits.empty()};
}

std::string to_string(const Plan& plan, Bytes unit) {
  std::string text = message_of("{} =", plan.request / unit);
  if (!plan.kept.empty()) text += message_of(" keep {}", plan.kept_bytes() / unit);
  for (const Move& move : plan.moves)
    text += message_of(" move {} of [-{}]", move.part.range.size / unit, move.part.from->range.size / unit);
  if (plan.split) text += message_of(" split {}", plan.split->part.range.size / unit);
  for (const Bytes size : plan.creates) text += message_of(" create {}", size / unit);
  if (plan.slack > 0) text += message_of(" slack {}", plan.slack / unit);
  if (!plan.waits.empty()) text += message_of(" after {} waits", plan.waits.size());
  return text;
}

}  // namespace vpmm::pool
