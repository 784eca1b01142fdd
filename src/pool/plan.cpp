// pool: figures and text of a plan.
#include "pool/plan.hpp"

#include <fmt/format.h>

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

std::string to_string(const Plan& plan, Bytes unit) {
  std::string text = fmt::format("{} =", plan.request / unit);
  if (plan.kept != nullptr) text += fmt::format(" keep {}", plan.kept_range.size / unit);
  for (const Move& move : plan.moves)
    text += fmt::format(" move {} of [-{}]", move.range.size / unit, move.from->range.size / unit);
  for (const Bytes size : plan.creates) text += fmt::format(" create {}", size / unit);
  if (!plan.waits.empty()) text += fmt::format(" after {} waits", plan.waits.size());
  return text;
}

}  // namespace vpmm::pool
