// observe: giving out numbers, and writing down what they stand for.
#include "observe/definitions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
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

std::string text_of(const nlohmann::json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

nlohmann::json json_of(const FrameText& frame) {
  return nlohmann::json::array({frame.file, frame.line, frame.function});
}

// `define` may throw; then there is no number.
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

std::uint32_t Definitions::stream(std::uint64_t key, std::uint64_t handle) {
  return number_in(streams_, key, [&](const std::string& number) {
    lasting_["streams"][number] = handle == 0 ? fmt::format("stream {}", key) : fmt::format("{:#x}", handle);
  });
}

std::uint32_t Definitions::thread(std::uint32_t number) {
  return number_in(threads_, number,
                   [&](const std::string& in_file) { lasting_["threads"][in_file] = name_of_thread(number); });
}

std::uint32_t Definitions::tag(std::uint32_t tag) {
  if (tag == 0 || tag_name_ == nullptr || tags_.contains(tag)) return tag;
  const char* const name = tag_name_(tag);
  if (*name == '\0') return tag;  // it may get one
  lasting_["tags"][std::to_string(tag)] = name;
  tags_.insert(tag);
  return tag;
}

std::uint64_t Definitions::string(const std::string& text) {
  if (strings_ != 0 && text == last_string_) return strings_;
  texts_["strings"][std::to_string(strings_ + 1)] = text.substr(0, kLongestString);
  last_string_ = text;
  text_bytes_ += std::min(text.size(), kLongestString);
  return ++strings_;
}

bool Definitions::write_to(Window& window) {
  if (!write_stacks(window)) return false;
  if (!lasting_.empty() && !window.write_lasting(text_of(lasting_))) return false;
  lasting_ = nlohmann::json::object();
  if (!texts_.empty() && !window.write(BlockKind::definitions, text_of(texts_))) return false;
  texts_ = nlohmann::json::object();
  text_bytes_ = 0;
  return true;
}

const FrameText& Definitions::native(std::uint64_t return_address) {
  const auto found = native_.find(return_address);
  if (found != native_.end()) return found->second;
  return native_.emplace(return_address, describe_native(return_address)).first->second;
}

// Where it fails, all are written again: a stack may stand in the file twice, and never stands for another.
bool Definitions::write_stacks(Window& window) {
  nlohmann::json json = nlohmann::json::object();
  std::size_t bytes = 0;
  const auto write = [&] {
    bytes = 0;
    return json.empty() || window.write_lasting(text_of(std::exchange(json, nlohmann::json::object())));
  };
  if (fresh_stacks_.empty()) fresh_stacks_ = stacks_.take_new();
  for (const StackTable::Stack& stack : fresh_stacks_) {
    nlohmann::json frames = nlohmann::json::array();
    const auto add = [&](const FrameText& frame) {
      frames.push_back(json_of(frame));
      bytes += frame.file.size() + frame.function.size() + kBytesOfFrame;
    };
    for (const std::uint64_t address : stack.native) add(native(address));
    for (const FrameText& frame : stack.foreign) add(frame);
    json["stacks"][std::to_string(stack.number)] = std::move(frames);
    if (bytes >= kMostText && !write()) return false;
  }
  if (!write()) return false;
  fresh_stacks_.clear();
  return true;
}

}  // namespace vpmm::observe
