// SPDX-License-Identifier: Apache-2.0
// observe: the notation of regions, and the layout of the text and JSON dumps.
#include "observe/render.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "base/quantity.hpp"
#include "observe/statistic_list.hpp"

namespace vpmm::observe {
namespace {

using Regions = std::span<const RegionSnapshot>;

std::string notation(const RegionSnapshot& region, Bytes page_size) {
  const std::string_view sign =
      region.kind == ' ' ? std::string_view() : std::string_view(&region.kind, 1);
  if (page_size == 0 || !is_multiple(region.range.size, page_size))
    return fmt::format("[{}{}]", sign, format_bytes(region.range.size));
  return fmt::format("[{}{}]", sign, region.range.size / page_size);
}

const char* state_name(char kind) {
  switch (kind) {
    case ' ': return "allocated";
    case '-': return "free";
    case '*': return "hole";
    case '~': return "zombie";
    case '#': return "in flight";
    case '^': return "suspended";
    default: return "unknown";
  }
}

Regions without_trailing_holes(Regions regions) {
  while (!regions.empty() && regions.back().kind == '*')
    regions = regions.first(regions.size() - 1);
  return regions;
}

// Returns the regions inside `reservation`. Requires: regions ascend.
Regions regions_in(Regions regions, const AddressRange& reservation) {
  const auto before = [](const RegionSnapshot& region, DevicePtr address) {
    return region.range.begin < address;
  };
  const auto first = std::lower_bound(regions.begin(), regions.end(), reservation.begin, before);
  const auto last = std::lower_bound(first, regions.end(), reservation.end(), before);
  return Regions(first, last);
}

std::string picture_of(Regions regions, Bytes page_size) {
  std::string out;
  for (const RegionSnapshot& region : without_trailing_holes(regions))
    out += notation(region, page_size);
  return out.empty() ? "[]" : out;
}

bool has_stamp(const RegionSnapshot& region) { return region.kind == '-' || region.kind == '~'; }

std::string stamp_text(const RegionSnapshot& region) {
  if (has_stamp(region)) {
    if (region.complete) return "complete";
    return region.stamp.empty() ? "pending" : "pending: " + region.stamp;
  }
  if (region.kind != ' ') return region.stamp;
  if (region.small_allocations)
    return fmt::format("cut for requests below a page: {} live, asked for {}",
                       *region.small_allocations, readable_bytes(region.requested));
  return fmt::format("asked for {}{}{}", readable_and_exact_bytes(region.requested),
                     region.stamp.empty() ? "" : ", ", region.stamp);
}

std::string hex(DevicePtr address) { return fmt::format("0x{:x}", to_integer(address)); }

// Quotes a string for JSON; repairs a stamp or name of invalid UTF-8, and throws no exception for
// it.
std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// One object, written as its members come. Destroying nlohmann's objects allocates, and ends the
// process where memory is short.
class JsonObject {
 public:
  // `value`: JSON.
  JsonObject& add(std::string_view name, std::string_view value) {
    text_ += text_.size() == 1 ? "\"" : ",\"";
    text_ += name;
    text_ += "\":";
    text_ += value;
    return *this;
  }
  JsonObject& add(std::string_view name, std::uint64_t value) {
    return add(name, fmt::format("{}", value));
  }
  std::string done() const { return text_ + "}"; }

 private:
  std::string text_ = "{";
};

std::string json_of(const AddressRange& range);
std::string json_of(const RegionSnapshot& region);

template <typename Range>
std::string array_of(const Range& range) {
  std::string text = "[";
  for (const auto& each : range) {
    if (text.size() > 1) text += ",";
    text += json_of(each);
  }
  return text + "]";
}

std::string json_of(const Statistics& statistics) {
  JsonObject json;
  for (const StatisticEntry& entry : statistic_list())
    json.add(entry.name, statistics.*entry.member);
  return json.done();
}

JsonObject object_of(const AddressRange& range) {
  return JsonObject().add("address", json_string(hex(range.begin))).add("bytes", range.size);
}
std::string json_of(const AddressRange& range) { return object_of(range).done(); }

std::string json_of(const RegionSnapshot& region) {
  JsonObject json = object_of(region.range).add("state", json_string(state_name(region.kind)));
  if (region.kind == ' ') json.add("requested_bytes", region.requested);
  if (region.small_allocations) json.add("small_allocations", *region.small_allocations);
  if (has_stamp(region)) json.add("complete", region.complete ? "true" : "false");
  if (!region.stamp.empty()) json.add("stamp", json_string(region.stamp));
  return json.done();
}

}  // namespace

std::string picture(const PoolSnapshot& snapshot) {
  if (snapshot.reservations.empty()) return picture_of(snapshot.regions, snapshot.page_size);
  std::string out;
  for (const AddressRange& reservation : snapshot.reservations) {
    if (!out.empty()) out += " | ";
    out += picture_of(regions_in(snapshot.regions, reservation), snapshot.page_size);
  }
  return out;
}

std::string to_text(const Statistics& statistics) {
  std::size_t width = 0;
  for (const StatisticEntry& entry : statistic_list()) width = std::max(width, entry.name.size());
  std::string out;
  for (const StatisticEntry& entry : statistic_list()) {
    fmt::format_to(std::back_inserter(out), "  {:<{}}  {:>20}  {}\n", entry.name, width,
                   statistics.*entry.member, entry.meaning);
  }
  return out;
}

std::string to_text(const PoolSnapshot& snapshot) {
  std::string out =
      fmt::format("pool on device {} (driver {}, policy {}, pages of {})\n", snapshot.device,
                  snapshot.driver, snapshot.policy, format_bytes(snapshot.page_size));
  out += to_text(snapshot.statistics);
  out += fmt::format("picture, in pages or with a unit: {}\n", picture(snapshot));
  out += fmt::format("{} regions\n", snapshot.regions.size());
  for (const RegionSnapshot& region : snapshot.regions) {
    std::string line =
        fmt::format("  {}  {:>16}  {:<10}  {}", hex(region.range.begin), region.range.size,
                    notation(region, snapshot.page_size), stamp_text(region));
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string to_json(const Statistics& statistics) { return json_of(statistics); }

std::string to_json(const PoolSnapshot& snapshot) {
  return JsonObject()
      .add("device", fmt::format("{}", snapshot.device))
      .add("driver", json_string(snapshot.driver))
      .add("policy", json_string(snapshot.policy))
      .add("page_size", snapshot.page_size)
      .add("picture", json_string(picture(snapshot)))
      .add("statistics", json_of(snapshot.statistics))
      .add("reservations", array_of(snapshot.reservations))
      .add("regions", array_of(snapshot.regions))
      .done();
}

}  // namespace vpmm::observe
