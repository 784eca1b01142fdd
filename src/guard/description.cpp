// SPDX-License-Identifier: Apache-2.0
// guard: sentences about guarded allocations.
#include "guard/description.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/message.hpp"
#include "report/tags.hpp"

namespace vpmm::guard {

namespace {

constexpr std::size_t kNewest = 5;
constexpr std::size_t kMostFrames = 8;  // innermost, of a stack

std::string on(std::optional<driver::StreamId> stream) {
  return stream ? message_of("on stream {}", static_cast<std::uint64_t>(*stream))
                : "without a stream";
}

const char* state_of(const Block& block) {
  switch (block.stage) {
    case Block::Stage::live: return "live";
    case Block::Stage::gone: return "freed and unmapped";
    default: return "freed, and not unmapped yet";
  }
}

// Where `address` is: beside, in or behind the allocation.
std::string place_of(const Block& block, DevicePtr address) {
  const bool is_step = is_aligned(address, kLoggedStep);
  if (block.range.contains(address)) {
    const Bytes offset = address - block.range.begin;
    return block.stage == Block::Stage::live
               ? message_of("{:#x} is inside a live allocation, at byte {}", to_integer(address),
                            offset)
               : message_of(
                     "{:#x} is inside an allocation that was freed, at byte {}: a use after "
                     "its free",
                     to_integer(address), offset);
  }
  if (address < block.range.begin) {
    const Bytes gap = block.range.begin - address;
    if (is_step && gap < kLoggedStep)
      return message_of("{:#x} is in an allocation, or up to {} bytes before its begin",
                        to_integer(address), gap);
    return is_step ? message_of("{:#x} is {} to {} bytes before the begin of an allocation",
                                to_integer(address), gap - kLoggedStep + 1, gap)
                   : message_of("{:#x} is {} bytes before the begin of an allocation",
                                to_integer(address), gap);
  }
  const Bytes beyond = address - block.range.end();
  return is_step ? message_of("{:#x} is {} to {} bytes beyond the end of an allocation",
                              to_integer(address), beyond, beyond + kLoggedStep - 1)
                 : message_of("{:#x} is {} bytes beyond the end of an allocation",
                              to_integer(address), beyond);
}

}  // namespace

std::string describe(const Block& block) noexcept {
  try {
    std::string text = message_of("{} bytes at {:#x}, allocated {}", block.range.size,
                                  to_integer(block.range.begin), on(block.allocated.stream));
    if (block.tag != 0) text += message_of(" with {}", report::described_tag(block.tag));
    if (block.freed.at_ns != 0) text += message_of(", freed {}", on(block.freed.stream));
    return text;
  } catch (...) {
    return kNoMemoryForMessage;
  }
}

Vector<Paragraph> explain(const Guarded& guarded, DevicePtr address, std::uint64_t now_ns) {
  Vector<Paragraph> paragraphs;
  const auto add = [&](const Block& block, const std::string& place) {
    const auto ago = [&](std::uint64_t then) {
      return static_cast<double>(now_ns - std::min(now_ns, then)) / 1e6;
    };
    std::string text =
        place + message_of("  {}\n  {}; allocated {:.3f} ms ago as guarded allocation {}",
                           describe(block), state_of(block), ago(block.allocated.at_ns),
                           block.number);
    if (block.freed.at_ns != 0) text += message_of(", freed {:.3f} ms ago", ago(block.freed.at_ns));
    text += block.is_damaged() ? "; memory beside it was overwritten\n" : "\n";
    paragraphs.push_back({std::move(text), block.allocated.stack, block.freed.stack});
  };
  const Block* const around = guarded.known_around(address);
  if (around != nullptr) add(*around, place_of(*around, address) + "\n");
  // Behind the unmapped addresses of one allocation the pages of the next begin.
  const Block* const behind = guarded.known_behind(address);
  if (behind != nullptr && (around == nullptr || !around->range.contains(address)) &&
      behind->range.begin - address <= behind->slot.size)
    add(*behind, place_of(*behind, address) + "\n");
  if (!paragraphs.empty()) return paragraphs;
  const Vector<const Block*> newest = guarded.newest(kNewest);
  paragraphs.push_back(
      {message_of("{:#x} is in or near no guarded allocation that is known{}\n",
                  to_integer(address), newest.empty() ? "" : "; the newest ones:")});
  for (const Block* const block : newest) add(*block, "");
  return paragraphs;
}

std::string with_stacks(const Vector<Paragraph>& paragraphs, const observe::StackTable& stacks) {
  std::string text;
  const auto add = [&](const char* what, std::uint32_t number) {
    const auto stack = stacks.find(number);
    if (!stack) return;
    text += message_of("  {}\n", what);
    std::vector<observe::FrameText> frames = stack->foreign;
    if (frames.empty())
      for (const std::uint64_t address : stack->native)
        frames.push_back(observe::describe_native(address));
    frames.resize(std::min(frames.size(), kMostFrames));
    for (const observe::FrameText& frame : frames)
      text += frame.line == 0
                  ? message_of("    {} {}\n", frame.file, frame.function)
                  : message_of("    {}:{} {}\n", frame.file, frame.line, frame.function);
  };
  for (const Paragraph& paragraph : paragraphs) {
    text += paragraph.text;
    add("allocated by", paragraph.allocated_by);
    add("freed by", paragraph.freed_by);
  }
  return text;
}

}  // namespace vpmm::guard
