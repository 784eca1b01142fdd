// SPDX-License-Identifier: Apache-2.0
// replay: the words and columns of a report.
#include "replay/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "base/quantity.hpp"
#include "replay/fit.hpp"

namespace vpmm::replay {
namespace {

double microseconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e3; }

// Uses the largest unit with a value of 1 or more.
std::string size_text(Bytes bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, kUnits[unit]);
}

std::string milliseconds(std::uint64_t ns) {
  return fmt::format("{:.1f} ms", static_cast<double>(ns) / 1e6);
}

std::string duration(std::uint64_t ns) {
  return ns < 1'000'000 ? fmt::format("{:.1f} us", microseconds(ns))
                        : fmt::format("{:.2f} ms", microseconds(ns) / 1e3);
}

// The simulator's imitation of the driver's pool says little about the real one.
bool is_stand_in(const ReplayResult& result) {
  return result.driver == "sim" && result.allocator == to_string(AllocatorKind::cuda_async);
}

double over_live(const ReplayResult& result, Bytes bytes) {
  return result.peak_live_bytes == 0
             ? 1.0
             : static_cast<double>(bytes) / static_cast<double>(result.peak_live_bytes);
}

double ratio(const ReplayResult& result) { return over_live(result, result.peak_mapped_bytes); }

double over_rounded(const ReplayResult& result, double bytes) {
  return result.peak_rounded_bytes == 0 ? 1.0
                                        : bytes / static_cast<double>(result.peak_rounded_bytes);
}

double mapped_over_rounded(const ReplayResult& result) {
  return over_rounded(result, static_cast<double>(result.peak_mapped_bytes));
}

double fit_over_rounded(const ReplayResult& result) {
  return over_rounded(result, static_cast<double>(result.fit->capacity));
}

// Ratio of the fit without kFitAllowance.
double fit_less_allowance_over_rounded(const ReplayResult& result) {
  return over_rounded(
      result, static_cast<double>(result.fit->capacity) - static_cast<double>(kFitAllowance));
}

using Row = std::vector<std::string>;
constexpr std::size_t kTextColumns = 3;  // flush left; the others are figures

Row header() {
  return {"trace",        "driver",       "allocator", "peak live", "rounded",  "peak mapped",
          "ratio",        "over rounded", "driver",    "1st half",  "2nd half", "worst allocate",
          "p99 allocate", "chunks",       "failed",    "corrupt",   "hazards"};
}

Row row(const ReplayResult& result) {
  const bool counts = !is_stand_in(result);
  return {result.trace,
          result.driver,
          result.allocator,
          size_text(result.peak_live_bytes),
          size_text(result.peak_rounded_bytes),
          counts ? size_text(result.peak_mapped_bytes) : "-",
          counts ? fmt::format("{:.4f}", ratio(result)) : "-",
          counts ? fmt::format("{:.4f}", mapped_over_rounded(result)) : "-",
          milliseconds(result.driver_ns),
          milliseconds(result.driver_first_half_ns),
          milliseconds(result.driver_ns - result.driver_first_half_ns),
          duration(result.worst_allocate_ns),
          duration(result.p99_allocate_ns),
          result.mapped_chunks_peak == 0 ? "-" : fmt::format("{}", result.mapped_chunks_peak),
          fmt::format("{}", result.failed_allocations),
          fmt::format("{}", result.corruptions),
          result.hazards ? fmt::format("{}", *result.hazards) : "-"};
}

Row fit_header() {
  return {"trace", "driver", "allocator", "peak live", "smallest GPU", "over live"};
}

Row fit_row(const ReplayResult& result) {
  return {result.trace,
          result.driver,
          result.allocator,
          size_text(result.peak_live_bytes),
          result.fit ? size_text(result.fit->capacity) : "none",
          result.fit ? fmt::format("{:.3f}", over_live(result, result.fit->capacity)) : "-"};
}

Row calls_header() {
  return {"trace",  "allocator", "call",   "calls",  "total",     "mean us",
          "p50 us", "p90 us",    "p99 us", "max us", "MiB a call"};
}

double mean(std::uint64_t total, std::uint64_t count) {
  return static_cast<double>(total) / static_cast<double>(count);
}

Row calls_row(const ReplayResult& result, const driver::CallTimes& times) {
  const auto us = [](double ns) { return fmt::format("{:.1f}", ns / 1e3); };
  return {result.trace,
          result.allocator,
          driver::to_string(times.call),
          fmt::format("{}", times.count),
          milliseconds(times.total_ns),
          us(mean(times.total_ns, times.count)),
          us(static_cast<double>(times.p50_ns)),
          us(static_cast<double>(times.p90_ns)),
          us(static_cast<double>(times.p99_ns)),
          us(static_cast<double>(times.max_ns)),
          times.bytes
              ? fmt::format("{:.1f}", mean(*times.bytes, times.count) / static_cast<double>(kMiB))
              : "-"};
}

nlohmann::ordered_json to_json_object(const driver::CallTimes& times) {
  nlohmann::ordered_json json;
  json["count"] = times.count;
  json["total_us"] = microseconds(times.total_ns);
  json["mean_us"] =
      microseconds(static_cast<std::uint64_t>(std::llround(mean(times.total_ns, times.count))));
  json["p50_us"] = microseconds(times.p50_ns);
  json["p90_us"] = microseconds(times.p90_ns);
  json["p99_us"] = microseconds(times.p99_ns);
  json["max_us"] = microseconds(times.max_ns);
  json["bytes"] =
      times.bytes ? nlohmann::ordered_json(*times.bytes) : nlohmann::ordered_json(nullptr);
  return json;
}

std::string aligned(const Row& row, const std::vector<std::size_t>& widths) {
  std::string line;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (i != 0) line += "  ";
    line += i < kTextColumns ? fmt::format("{:<{}}", row[i], widths[i])
                             : fmt::format("{:>{}}", row[i], widths[i]);
  }
  return line + "\n";
}

// "gnn.csv  sim  vpmm" and below it "  peak live 17.19 GiB, rounded 17.36 GiB, ...".
std::string paragraph(const Row& names, const Row& row, std::size_t columns) {
  std::string out;
  for (std::size_t i = 0; i < kTextColumns; ++i) out += (i == 0 ? "" : "  ") + row[i];
  std::size_t used = columns;
  for (std::size_t i = kTextColumns; i < row.size(); ++i) {
    const bool is_last = i + 1 == row.size();
    const std::string figure = fmt::format(" {} {}{}", names[i], row[i], is_last ? "" : ",");
    const bool fits = used + figure.size() <= columns;
    if (!fits) out += "\n ";
    out += figure;
    used = (fits ? used : 1) + figure.size();
  }
  return out + "\n";
}

// Rows below their header, the first row.
std::string laid_out(const std::vector<Row>& rows, Columns columns) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& each : rows) {
    for (std::size_t i = 0; i < each.size(); ++i) widths[i] = std::max(widths[i], each[i].size());
  }
  std::string out;
  const std::size_t gaps = 2 * (widths.size() - 1);
  if (!columns || std::accumulate(widths.begin(), widths.end(), gaps) <= *columns) {
    for (const Row& each : rows) out += aligned(each, widths);
  } else {
    for (std::size_t i = 1; i < rows.size(); ++i)
      out += (i == 1 ? "" : "\n") + paragraph(rows.front(), rows[i], *columns);
  }
  return out;
}

bool is_pool(const ReplayResult& result) {
  return result.allocator == to_string(AllocatorKind::vpmm) ||
         result.allocator == to_string(AllocatorKind::vpmm_page);
}

// "; cuda held 30.10 GB (1.020x) and spent 80.2 ms in the driver, 3.9x as much"
std::string comparison(const ReplayResult& pool, const ReplayResult& other) {
  std::string out =
      fmt::format("; {} held {} ({:.3f}x) and spent {} in the driver", other.allocator,
                  size_text(other.peak_mapped_bytes), ratio(other), milliseconds(other.driver_ns));
  if (pool.driver_ns != 0) {
    const double factor =
        static_cast<double>(other.driver_ns) / static_cast<double>(pool.driver_ns);
    out += fmt::format(", {:.1f}x as much", factor);
  }
  return out;
}

std::string sentence(const ReplayResult& pool, std::span<const ReplayResult> results) {
  std::string out =
      fmt::format("{}: {} held {} for {} of live memory ({:.3f}x) and spent {} in the driver",
                  pool.trace, pool.allocator, size_text(pool.peak_mapped_bytes),
                  size_text(pool.peak_live_bytes), ratio(pool), milliseconds(pool.driver_ns));
  for (const ReplayResult& other : results) {
    const bool same_run = other.trace == pool.trace && other.driver == pool.driver;
    if (same_run && other.allocator != pool.allocator && !is_stand_in(other))
      out += comparison(pool, other);
  }
  return out + ".\n";
}

// Sentence on failed requests, in the program or now; empty: none.
std::string failures(const ReplayResult& result) {
  if (result.first_failure)
    return fmt::format(
        "{}: {} had no memory for {}, the first of {} at event {}; {} failed when it was "
        "recorded.\n",
        result.trace, result.allocator, counted(result.failed_allocations, "request"),
        size_text(result.first_failure->bytes), result.first_failure->event,
        result.recorded_failures);
  if (result.recorded_failures == 0) return {};
  return fmt::format("{}: {} had memory for the {} that failed when it was recorded.\n",
                     result.trace, result.allocator, counted(result.recorded_failures, "request"));
}

}  // namespace

std::string to_json(const ReplayResult& result) {
  nlohmann::ordered_json json;
  json["trace"] = result.trace;
  json["driver"] = result.driver;
  json["allocator"] = result.allocator;
  json["operations"] = result.operations;
  json["allocations"] = result.allocations;
  json["failed_allocations"] = result.failed_allocations;
  json["recorded_failures"] = result.recorded_failures;
  const nlohmann::ordered_json none(nullptr);
  json["first_failed_event"] =
      result.first_failure ? nlohmann::ordered_json(result.first_failure->event) : none;
  json["first_failed_bytes"] =
      result.first_failure ? nlohmann::ordered_json(result.first_failure->bytes) : none;
  json["peak_live_bytes"] = result.peak_live_bytes;
  json["peak_mapped_bytes"] = result.peak_mapped_bytes;
  json["driver_calls"] = result.driver_calls;
  json["driver_time_us"] = microseconds(result.driver_ns);
  json["worst_allocate_us"] = microseconds(result.worst_allocate_ns);
  json["p99_allocate_us"] = microseconds(result.p99_allocate_ns);
  json["corruptions"] = result.corruptions;
  json["hazards"] =
      result.hazards ? nlohmann::ordered_json(*result.hazards) : nlohmann::ordered_json(nullptr);
  json["mapped_chunks_peak"] = result.mapped_chunks_peak;
  json["plans"] = result.plans;
  json["seconds"] = result.seconds;
  json["peak_rounded_bytes"] = result.peak_rounded_bytes;
  json["driver_time_first_half_us"] = microseconds(result.driver_first_half_ns);
  json["driver_time_second_half_us"] = microseconds(result.driver_ns - result.driver_first_half_ns);
  json["fit_bytes"] = result.fit ? nlohmann::ordered_json(result.fit->capacity) : none;
  json["fit_ratio"] = result.fit ? nlohmann::ordered_json(fit_over_rounded(result)) : none;
  json["fit_less_64mib_ratio"] =
      result.fit ? nlohmann::ordered_json(fit_less_allowance_over_rounded(result)) : none;
  auto& calls = json["driver_calls_by_kind"] = nlohmann::ordered_json::object();
  for (const driver::CallTimes& times : result.calls)
    calls[driver::to_string(times.call)] = to_json_object(times);
  // Repairs a file name of invalid UTF-8, and throws no exception for it.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string table(std::span<const ReplayResult> results, Columns columns) {
  std::vector<Row> rows{header()};
  for (const ReplayResult& result : results) rows.push_back(row(result));
  return laid_out(rows, columns);
}

std::string calls_table(std::span<const ReplayResult> results, Columns columns) {
  std::vector<Row> rows{calls_header()};
  for (const ReplayResult& result : results) {
    for (const driver::CallTimes& times : result.calls) rows.push_back(calls_row(result, times));
  }
  return laid_out(rows, columns);
}

std::string fit_table(std::span<const ReplayResult> results, Columns columns) {
  std::vector<Row> rows{fit_header()};
  for (const ReplayResult& result : results) rows.push_back(fit_row(result));
  return laid_out(rows, columns);
}

std::string summary(std::span<const ReplayResult> results) {
  std::string out;
  std::string last_trace;
  // The first pool of each trace speaks for it.
  for (const ReplayResult& result : results) {
    if (!is_pool(result) || result.trace == last_trace) continue;
    out += sentence(result, results);
    last_trace = result.trace;
  }
  for (const ReplayResult& result : results) out += failures(result);
  return out;
}

}  // namespace vpmm::replay
