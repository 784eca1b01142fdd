// SPDX-License-Identifier: Apache-2.0
// ipc: text of an answer to `vpmm top`.
#include "ipc/top_answer.hpp"

#include <algorithm>
#include <string_view>
#include <utility>

#include "observe/json_text.hpp"
#include "report/tags.hpp"

namespace vpmm::ipc {
namespace {

using context::FiguresToTell;
using observe::JsonObject;

constexpr std::size_t kLongestName = 64;

// A character cut in half becomes question marks.
std::string quoted_name(std::string_view text) {
  return observe::json_quoted(text.substr(0, kLongestName));
}

template <typename Number>
void add(JsonObject& object, std::string_view key, Number number) {
  object.add(key, std::to_string(number));
}

std::string list_of(const std::vector<std::string>& values) {
  std::string list;
  for (const std::string& value : values) list += (list.empty() ? "" : ",") + value;
  return "[" + list + "]";
}

std::string largest_of(const report::Tags::Sums& sums, std::size_t most) {
  std::vector<std::pair<std::uint32_t, Bytes>> tags(sums.begin(), sums.end());
  std::stable_sort(tags.begin(), tags.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  tags.resize(std::min(tags.size(), most));
  std::vector<std::string> objects;
  for (const auto& [tag, live] : tags) {
    JsonObject object;
    add(object, "tag", tag);
    object.add("name", quoted_name(report::tag_name(tag)));
    add(object, "live_bytes", live);
    objects.push_back(object.text());
  }
  return list_of(objects);
}

std::string pool_of(const TopPool& pool, std::size_t most_tags) {
  JsonObject object;
  add(object, "device", pool.device);
  object.add("is_busy", pool.figures ? "false" : "true");
  if (!pool.figures) return object.text();
  const FiguresToTell& figures = *pool.figures;
  object.add("device_name", quoted_name(figures.device_name));
  add(object, "device_bytes", figures.device_bytes);
  object.add("capacity", figures.capacity ? std::to_string(*figures.capacity) : "null");
  const observe::Statistics& now = figures.statistics;
  add(object, "live_bytes", now.live_bytes);
  add(object, "peak_live_bytes", now.peak_live_bytes);
  add(object, "mapped_bytes", now.mapped_bytes);
  add(object, "pending_bytes", now.pending_bytes);
  add(object, "free_bytes", now.free_bytes);
  add(object, "suspended_bytes", now.suspended_bytes);
  add(object, "allocations", now.allocations);
  add(object, "deallocations", now.deallocations);
  add(object, "failed_allocations", now.failed_allocations);
  add(object, "driver_calls", now.driver_calls);
  add(object, "pauses", now.pauses);
  Bytes tagged = 0;
  for (const auto& [tag, live] : figures.by_tag) tagged += live;
  add(object, "tagged_bytes", tagged);
  object.add("tags", largest_of(figures.by_tag, most_tags));
  object.add("libraries", largest_of(figures.by_library, most_tags));
  return object.text();
}

}  // namespace

std::string top_answer(const TopFigures& figures, std::size_t most_tags) {
  std::vector<std::string> objects;
  for (const TopPool& pool : figures.pools) objects.push_back(pool_of(pool, most_tags));
  JsonObject answer;
  add(answer, "vpmm_top", kTopVersion);
  answer.add("library", observe::json_quoted(figures.library));
  add(answer, "age_ns", figures.age_ns);
  answer.add("pools", list_of(objects));
  add(answer, "more_pools", figures.more_pools);
  return answer.text();
}

}  // namespace vpmm::ipc
