// SPDX-License-Identifier: Apache-2.0
// observe: numbers of a recording for streams, threads, tags, stacks and texts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "observe/json_text.hpp"
#include "observe/stack_table.hpp"
#include "observe/window.hpp"

namespace vpmm::observe {

// Finds or gives out numbers; a definition is in the file before the events that use it. After
// std::bad_alloc no number was given.
class Definitions {
 public:
  Definitions(const char* (*tag_name)(std::uint32_t), StackTable& stacks)
      : tag_name_(tag_name), stacks_(stacks), first_stack_(stacks.begin_anew()) {}

  std::uint32_t stream(std::uint64_t key, std::optional<std::uint64_t> handle);
  std::uint32_t thread(std::uint32_t number);
  std::uint32_t tag(std::uint32_t tag);
  // From 1 on, by its tag. 0: it has no name, or there are too many.
  std::uint16_t library(std::uint32_t tag);
  // 0 for stacks of an earlier recording: the file lacks their definition.
  std::uint32_t stack(std::uint32_t stack) const { return stack < first_stack_ ? 0 : stack; }
  std::uint64_t string(const std::string& text);
  // Tells if a write is due.
  bool is_full() const { return new_strings_.size() >= kMostText; }
  // False: some definitions are not in the file.
  bool write_to(Window& window);

 private:
  static constexpr std::size_t kLongestString = std::size_t{256} << 10;
  static constexpr std::size_t kMostText = std::size_t{4} << 20;  // text that waits; a block holds
                                                                  // it in any notation
  static constexpr std::size_t kMostLibraries = 0xffff;

  const FrameText& native(std::uint64_t return_address);
  bool write_stacks(Window& window);

  const char* (*const tag_name_)(std::uint32_t);
  StackTable& stacks_;
  const std::uint32_t first_stack_;
  std::vector<StackTable::Stack> fresh_stacks_;  // not in the file, or only in part
  std::unordered_map<std::uint64_t, std::uint32_t> streams_;
  std::unordered_map<std::uint32_t, std::uint32_t> threads_;
  std::unordered_set<std::uint32_t> tags_;
  std::unordered_map<std::uint32_t, std::uint32_t> libraries_;
  std::unordered_map<std::uint64_t, FrameText> native_;  // by return address
  std::uint64_t strings_ = 0;
  std::string last_string_;
  // --- not in the file yet ---
  JsonObject new_streams_;
  JsonObject new_threads_;
  JsonObject new_tags_;
  JsonObject new_libraries_;
  JsonObject new_strings_;
};

}  // namespace vpmm::observe
