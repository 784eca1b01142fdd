// SPDX-License-Identifier: Apache-2.0
// observe: gives out numbers, and writes their definitions.
#include "observe/definitions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

namespace vpmm::observe {
namespace {

std::string name_of_thread(std::uint32_t number) {
  std::ifstream file(fmt::format("/proc/self/task/{}/comm", number));
  std::string name;
  std::getline(file, name);
  return name.empty() ? std::to_string(number) : fmt::format("{} {}", name, number);
}

std::string json_of(const FrameText& frame) {
  return fmt::format("[{},{},{}]", json_quoted(frame.file), frame.line,
                     json_quoted(frame.function));
}

// If `define` throws, no number is given.
template <typename Map, typename Define>
std::uint32_t number_in(Map& map, const typename Map::key_type& key, Define&& define) {
  const auto [entry, is_new] = map.try_emplace(key, static_cast<std::uint32_t>(map.size()));
  if (!is_new) return entry->second;
  try {
    define(std::to_string(entry->second));
  } catch (...) {
    map.erase(entry);
    throw;
  }
  return entry->second;
}

}  // namespace

std::uint32_t Definitions::stream(std::uint64_t key, std::optional<std::uint64_t> handle) {
  return number_in(streams_, key, [&](const std::string& number) {
    const std::string called = handle ? fmt::format(" ({:#x})", *handle) : "";
    new_streams_.add(number, json_quoted(fmt::format("stream {}{}", key, called)));
  });
}

std::uint32_t Definitions::thread(std::uint32_t number) {
  return number_in(threads_, number, [&](const std::string& in_file) {
    new_threads_.add(in_file, json_quoted(name_of_thread(number)));
  });
}

std::uint32_t Definitions::tag(std::uint32_t tag) {
  if (tag == 0 || tag_name_ == nullptr || tags_.contains(tag)) return tag;
  const char* const name = tag_name_(tag);
  if (*name == '\0') return tag;  // it may be named later
  const auto known = tags_.insert(tag).first;
  try {
    new_tags_.add(std::to_string(tag), json_quoted(name));
  } catch (...) {
    tags_.erase(known);
    throw;
  }
  return tag;
}

std::uint16_t Definitions::library(std::uint32_t tag) {
  const char* const name = tag_name_ == nullptr ? "" : tag_name_(tag);
  const bool is_known = libraries_.contains(tag);
  if (!is_known && (*name == '\0' || libraries_.size() == kMostLibraries)) return 0;
  const std::uint32_t before = number_in(libraries_, tag, [&](const std::string&) {
    new_libraries_.add(std::to_string(libraries_.size()), json_quoted(name));
  });
  return static_cast<std::uint16_t>(before + 1);
}

std::uint64_t Definitions::string(const std::string& text) {
  // A text in the file already may be in a block that a window leaves out.
  if (!new_strings_.is_empty() && text == last_string_) return strings_;
  std::string last = text;
  new_strings_.add(std::to_string(strings_ + 1),
                   json_quoted(std::string_view(text).substr(0, kLongestString)));
  last_string_ = std::move(last);
  return ++strings_;
}

bool Definitions::write_to(Window& window) {
  if (!write_stacks(window)) return false;
  JsonObject lasting;
  if (!new_streams_.is_empty()) lasting.add("streams", new_streams_.text());
  if (!new_threads_.is_empty()) lasting.add("threads", new_threads_.text());
  if (!new_tags_.is_empty()) lasting.add("tags", new_tags_.text());
  if (!new_libraries_.is_empty()) lasting.add("libraries", new_libraries_.text());
  if (!lasting.is_empty() && !window.write_lasting(lasting.text())) return false;
  for (JsonObject* const table : {&new_streams_, &new_threads_, &new_tags_, &new_libraries_})
    table->clear();
  if (new_strings_.is_empty()) return true;
  JsonObject strings;
  strings.add("strings", new_strings_.text());
  if (!window.write(BlockKind::definitions, strings.text())) return false;
  new_strings_.clear();
  return true;
}

const FrameText& Definitions::native(std::uint64_t return_address) {
  const auto found = native_.find(return_address);
  if (found != native_.end()) return found->second;
  return native_.emplace(return_address, describe_native(return_address)).first->second;
}

// After a failure writes all again: a stack may be in the file twice, always under its own number.
bool Definitions::write_stacks(Window& window) {
  JsonObject stacks;
  const auto write = [&] {
    if (stacks.is_empty()) return true;
    JsonObject block;
    block.add("stacks", stacks.text());
    stacks.clear();
    return window.write_lasting(block.text());
  };
  stacks_.take_new(fresh_stacks_);  // behind those not written yet
  for (const StackTable::Stack& stack : fresh_stacks_) {
    std::string frames;
    const auto add = [&](const FrameText& frame) {
      frames += (frames.empty() ? "" : ",") + json_of(frame);
    };
    for (const std::uint64_t address : stack.native) add(native(address));
    for (const FrameText& frame : stack.foreign) add(frame);
    stacks.add(std::to_string(stack.number), "[" + frames + "]");
    if (stacks.size() >= kMostText && !write()) return false;
  }
  if (!write()) return false;
  fresh_stacks_.clear();
  return true;
}

}  // namespace vpmm::observe
