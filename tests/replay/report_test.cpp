// SPDX-License-Identifier: Apache-2.0
// tests: the JSON of a result has exactly the promised keys, and the table shows what may be shown.
#include "replay/report.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace vpmm::replay {
namespace {

ReplayResult sample() {
  ReplayResult result;
  result.trace = "gnn.csv.gz";
  result.driver = "sim";
  result.allocator = "vpmm";
  result.operations = 18297;
  result.allocations = 9150;
  result.peak_live_bytes = 18'460'000'000;
  result.peak_rounded_bytes = 18'645'000'000;
  result.peak_mapped_bytes = 18'829'200'000;
  result.driver_calls = 1234;
  result.driver_ns = 82'000'500;
  result.driver_first_half_ns = 50'250'500;
  result.worst_allocate_ns = 5'000'250;
  result.p99_allocate_ns = 40'000;
  result.hazards = 0;
  result.mapped_chunks_peak = 1957;
  result.plans = 151;
  result.seconds = 1.5;
  result.calls = {{.call = driver::Call::mem_map,
                   .count = 3,
                   .total_ns = 4'000,
                   .p50_ns = 1'000,
                   .p90_ns = 1'900,
                   .p99_ns = 1'950,
                   .max_ns = 2'000,
                   .bytes = 6 * kMiB},
                  {.call = driver::Call::event_query,
                   .count = 1,
                   .total_ns = 200,
                   .p50_ns = 200,
                   .p90_ns = 200,
                   .p99_ns = 200,
                   .max_ns = 200,
                   .bytes = {}}};
  return result;
}

TEST(ReplayJson, has_exactly_the_promised_keys_in_their_order) {
  EXPECT_EQ(
      to_json(sample()),
      R"({"trace":"gnn.csv.gz","driver":"sim","allocator":"vpmm","operations":18297,)"
      R"("allocations":9150,"failed_allocations":0,"recorded_failures":0,)"
      R"("first_failed_event":null,"first_failed_bytes":null,)"
      R"("peak_live_bytes":18460000000,"peak_mapped_bytes":18829200000,)"
      R"("driver_calls":1234,"driver_time_us":82000.5,"worst_allocate_us":5000.25,)"
      R"("p99_allocate_us":40.0,)"
      R"("corruptions":0,"hazards":0,"mapped_chunks_peak":1957,"plans":151,"seconds":1.5,)"
      R"("peak_rounded_bytes":18645000000,)"
      R"("driver_time_first_half_us":50250.5,"driver_time_second_half_us":31750.0,)"
      R"("fit_bytes":null,"fit_ratio":null,"fit_less_64mib_ratio":null,"driver_calls_by_kind":{)"
      R"("mem_map":{"count":3,"total_us":4.0,"mean_us":1.333,"p50_us":1.0,"p90_us":1.9,)"
      R"("p99_us":1.95,"max_us":2.0,"bytes":6291456},)"
      R"("event_query":{"count":1,"total_us":0.2,"mean_us":0.2,"p50_us":0.2,"p90_us":0.2,)"
      R"("p99_us":0.2,"max_us":0.2,"bytes":null}}})");
}

TEST(ReplayJson, has_the_fit_where_it_was_looked_for_and_found) {
  ReplayResult result = sample();
  result.peak_rounded_bytes = 1000 * kMiB;
  result.fit = SmallestGpu{.capacity = 1064 * kMiB, .replays = 7};
  const auto json = nlohmann::json::parse(to_json(result));
  EXPECT_EQ(json["fit_bytes"], 1064 * kMiB);
  EXPECT_DOUBLE_EQ(json["fit_ratio"], 1.064);
  EXPECT_DOUBLE_EQ(json["fit_less_64mib_ratio"], 1.0);
}

TEST(ReplayJson, has_null_hazards_where_nobody_checks) {
  ReplayResult result = sample();
  result.hazards.reset();
  const auto json = nlohmann::json::parse(to_json(result));
  EXPECT_TRUE(json["hazards"].is_null());
  EXPECT_EQ(json.size(), 27u);
}

TEST(ReplayJson, survives_a_file_name_that_is_not_text) {
  ReplayResult result = sample();
  result.trace = "\xff.csv";
  EXPECT_TRUE(nlohmann::json::accept(to_json(result)));
}

TEST(ReplayTable, shows_footprint_ratio_and_times) {
  const std::vector<ReplayResult> results{sample()};
  const std::string text = table(results);
  for (const char* cell : {"gnn.csv.gz", "17.19 GiB", "17.36 GiB", "17.54 GiB", "1.0200", "1.0099",
                           "82.0 ms", "50.3 ms", "31.8 ms", "5.00 ms", "40.0 us", "1957"}) {
    EXPECT_NE(text.find(cell), std::string::npos) << cell << " is missing in\n" << text;
  }
}

TEST(ReplayTable, has_lines_of_one_length) {
  std::vector<ReplayResult> results{sample(), sample()};
  results[1].trace = "a_much_longer_name.csv.gz";
  const std::string text = table(results);
  std::size_t length = text.find('\n');
  for (std::size_t begin = 0; begin < text.size(); begin += length + 1)
    EXPECT_EQ(text.find('\n', begin) - begin, length);
}

TEST(ReplayTable, leaves_out_the_footprint_of_the_simulated_async_pool) {
  ReplayResult result = sample();
  result.allocator = "cuda-async";
  EXPECT_EQ(table(std::vector{result}).find("17.54 GiB"), std::string::npos);
  EXPECT_EQ(summary(std::vector{sample(), result}).find("cuda-async"), std::string::npos);
  result.driver = "cuda";
  EXPECT_NE(table(std::vector{result}).find("17.54 GiB"), std::string::npos);
}

TEST(ReplayCallsTable, has_a_row_for_each_kind_of_call_of_each_result) {
  EXPECT_EQ(calls_table(std::vector{sample()}),
            "trace       allocator  call         calls   total  mean us  p50 us  p90 us  p99 us  "
            "max us  MiB a call\n"
            "gnn.csv.gz  vpmm       mem_map          3  0.0 ms      1.3     1.0     1.9     1.9    "
            " 2.0         2.0\n"
            "gnn.csv.gz  vpmm       event_query      1  0.0 ms      0.2     0.2     0.2     0.2    "
            " 0.2           -\n");
}

TEST(ReplayCallsTable, becomes_a_paragraph_for_each_row_where_it_is_too_wide) {
  const std::string table = calls_table(std::vector{sample()});
  EXPECT_EQ(calls_table(std::vector{sample()}, table.find('\n')), table);
  EXPECT_EQ(calls_table(std::vector{sample()}, 50),
            "gnn.csv.gz  vpmm  mem_map\n"
            "  calls 3, total 0.0 ms, mean us 1.3, p50 us 1.0,\n"
            "  p90 us 1.9, p99 us 1.9, max us 2.0,\n"
            "  MiB a call 2.0\n"
            "\n"
            "gnn.csv.gz  vpmm  event_query\n"
            "  calls 1, total 0.0 ms, mean us 0.2, p50 us 0.2,\n"
            "  p90 us 0.2, p99 us 0.2, max us 0.2, MiB a call -\n");
}

TEST(ReplayFitTable, shows_the_smallest_gpu_over_what_lived_and_where_there_is_none) {
  std::vector<ReplayResult> results{sample(), sample()};
  results[0].fit = SmallestGpu{.capacity = 18'831'450'000, .replays = 9};
  EXPECT_EQ(fit_table(results),
            "trace       driver  allocator  peak live  smallest GPU  over live\n"
            "gnn.csv.gz  sim     vpmm       17.19 GiB     17.54 GiB      1.020\n"
            "gnn.csv.gz  sim     vpmm       17.19 GiB          none          -\n");
}

TEST(ReplaySummary, compares_the_pool_with_the_others_of_its_trace) {
  ReplayResult pages = sample();
  pages.allocator = "vpmm-page";
  pages.peak_mapped_bytes = 18'470'000'000;
  pages.driver_ns = 3'942'000'000;
  ReplayResult elsewhere = sample();
  elsewhere.trace = "other.csv";
  EXPECT_EQ(summary(std::vector{sample(), pages, elsewhere}),
            "gnn.csv.gz: vpmm held 17.54 GiB for 17.19 GiB of live memory (1.020x) and spent 82.0 "
            "ms in the driver; "
            "vpmm-page held 17.20 GiB (1.001x) and spent 3942.0 ms in the driver, 48.1x as much.\n"
            "other.csv: vpmm held 17.54 GiB for 17.19 GiB of live memory (1.020x) and spent 82.0 "
            "ms in the driver.\n");
}

TEST(ReplaySummary, has_nothing_to_say_without_a_pool) {
  ReplayResult result = sample();
  result.allocator = "cuda";
  EXPECT_EQ(summary(std::vector{result}), "");
}

}  // namespace
}  // namespace vpmm::replay
