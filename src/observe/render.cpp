// observe: the notation of regions, and the layout of the text and JSON dumps.
#include "observe/render.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>

#include "observe/statistic_list.hpp"

namespace vpmm::observe {
namespace {

using Json = nlohmann::ordered_json;
using Regions = std::span<const RegionSnapshot>;

std::string notation(const RegionSnapshot& region, Bytes page_size) {
  const std::string_view sign = region.kind == ' ' ? std::string_view() : std::string_view(&region.kind, 1);
  if (page_size == 0 || !is_multiple(region.range.size, page_size))
    return fmt::format("[{}{}B]", sign, region.range.size);
  return fmt::format("[{}{}]", sign, region.range.size / page_size);
}

const char* state_name(char kind) {
  switch (kind) {
    case ' ': return "allocated";
    case '-': return "free";
    case '*': return "hole";
    case '~': return "zombie";
    case '#': return "in flight";
    case '^': return "shadow";
    default: return "unknown";
  }
}

Regions without_trailing_holes(Regions regions) {
  while (!regions.empty() && regions.back().kind == '*') regions = regions.first(regions.size() - 1);
  return regions;
}

// The regions inside `reservation`. Requires: regions ascend.
Regions regions_in(Regions regions, const AddressRange& reservation) {
  const auto before = [](const RegionSnapshot& region, DevicePtr address) { return region.range.begin < address; };
  const auto first = std::lower_bound(regions.begin(), regions.end(), reservation.begin, before);
  const auto last = std::lower_bound(first, regions.end(), reservation.end(), before);
  return Regions(first, last);
}

std::string picture_of(Regions regions, Bytes page_size) {
  std::string out;
  for (const RegionSnapshot& region : without_trailing_holes(regions)) out += notation(region, page_size);
  return out.empty() ? "[]" : out;
}

bool has_stamp(const RegionSnapshot& region) { return region.kind == '-' || region.kind == '~' || region.kind == '^'; }

std::string stamp_text(const RegionSnapshot& region) {
  if (has_stamp(region)) {
    if (region.complete) return "complete";
    return region.stamp.empty() ? "pending" : "pending: " + region.stamp;
  }
  if (region.kind != ' ') return region.stamp;
  if (region.small_allocations)
    return fmt::format("cut for requests below a page: {} live, asked for {}", *region.small_allocations,
                       region.requested);
  return fmt::format("asked for {}{}{}", region.requested, region.stamp.empty() ? "" : ", ", region.stamp);
}

Json json_of(const Statistics& statistics) {
  Json json = Json::object();
  for (const StatisticEntry& entry : statistic_list()) json[std::string(entry.name)] = statistics.*entry.member;
  return json;
}

std::string hex(DevicePtr address) { return fmt::format("0x{:x}", to_integer(address)); }

Json json_of(const AddressRange& range) { return Json{{"address", hex(range.begin)}, {"bytes", range.size}}; }

Json json_of(const RegionSnapshot& region) {
  Json json = json_of(region.range);
  json["state"] = state_name(region.kind);
  if (region.kind == ' ') json["requested_bytes"] = region.requested;
  if (region.small_allocations) json["small_allocations"] = *region.small_allocations;
  if (has_stamp(region)) json["complete"] = region.complete;
  if (!region.stamp.empty()) json["stamp"] = region.stamp;
  return json;
}

// A stamp or name that is no valid UTF-8 is repaired, never an exception.
std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

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
    fmt::format_to(std::back_inserter(out), "  {:<{}}  {:>20}  {}\n", entry.name, width, statistics.*entry.member,
                   entry.meaning);
  }
  return out;
}

std::string to_text(const PoolSnapshot& snapshot) {
  std::string out = fmt::format("pool on device {} (driver {}, policy {}, pages of {} bytes)\n", snapshot.device,
                                snapshot.driver, snapshot.policy, snapshot.page_size);
  out += to_text(snapshot.statistics);
  out += fmt::format("picture, in pages: {}\n", picture(snapshot));
  out += fmt::format("{} regions\n", snapshot.regions.size());
  for (const RegionSnapshot& region : snapshot.regions) {
    std::string line = fmt::format("  {}  {:>16}  {:<10}  {}", hex(region.range.begin), region.range.size,
                                   notation(region, snapshot.page_size), stamp_text(region));
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string to_json(const Statistics& statistics) { return dump(json_of(statistics)); }

std::string to_json(const PoolSnapshot& snapshot) {
  Json json{{"device", snapshot.device},     {"driver", snapshot.driver},
            {"policy", snapshot.policy},     {"page_size", snapshot.page_size},
            {"picture", picture(snapshot)},  {"statistics", json_of(snapshot.statistics)},
            {"reservations", Json::array()}, {"regions", Json::array()}};
  for (const AddressRange& reservation : snapshot.reservations) json["reservations"].push_back(json_of(reservation));
  for (const RegionSnapshot& region : snapshot.regions) json["regions"].push_back(json_of(region));
  return dump(json);
}

}  // namespace vpmm::observe
