// pool: figures and text of a plan.
#include "pool/plan.hpp"

#include "base/host_memory.hpp"
#include "base/message.hpp"

namespace vpmm::pool {

Bytes Plan::moved_bytes() const {
  Bytes bytes = 0;
  for (const Move& move : moves) bytes += move.range.size;
  return bytes;
}

Bytes Plan::created_bytes() const {
  Bytes bytes = 0;
  for (const Bytes size : creates) bytes += size;
  return bytes;
}

std::uint64_t Plan::pieces() const {
  std::uint64_t pieces = creates.size() + (first ? 1U : 0U) + (last ? 1U : 0U);
  for (const Move& move : moves) pieces += move.chunks.size();
  return pieces;
}

Bytes Plan::end_chunk_bytes() const {
  return (first ? first->mapping.chunk->size : 0) + (last ? last->mapping.chunk->size : 0);
}

Vector<time::Stamp> Plan::moved_stamps() const {
  Vector<time::Stamp> stamps;
  if (first) stamps.push_back(first->stamp);
  for (const Move& move : moves) stamps.push_back(move.stamp);
  if (last) stamps.push_back(last->stamp);
  return stamps;
}

std::string to_string(const Plan& plan, Bytes unit) {
  std::string text = message_of("{} =", plan.request / unit);
  if (plan.kept != nullptr) text += message_of(" keep {}", plan.kept_range.size / unit);
  if (plan.first)
    text += message_of(" back {} of {}", plan.first->range.size / unit, plan.first->mapping.chunk->size / unit);
  for (const Move& move : plan.moves)
    text += message_of(" move {} of [-{}]", move.range.size / unit, move.from->range.size / unit);
  for (const Bytes size : plan.creates) text += message_of(" create {}", size / unit);
  if (plan.last)
    text += message_of(" front {} of {}", plan.last->range.size / unit, plan.last->mapping.chunk->size / unit);
  if (!plan.waits.empty()) text += message_of(" after {} waits", plan.waits.size());
  return text;
}

}  // namespace vpmm::pool
