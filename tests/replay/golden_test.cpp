// SPDX-License-Identifier: Apache-2.0
// tests: the pool does with the recorded traces, call by call and address by address, what
// golden.txt says it did.
//
// A line that differs is no mistake by itself: it says that a change, meant to or not, reached what
// the pool does.
// `./dev golden` writes the file anew; the figures of a line say whether the change was for the
// better.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>

#include "replay/fingerprint.hpp"
#include "replay/replay.hpp"
#include "support/repository_path.hpp"

namespace vpmm::replay {
namespace {

using observe::Trace;
using observe::TraceEvent;

const std::string kTraces[] = {"gnn", "gpt_train", "serve_streams", "gpt_ckpt", "moe_train"};
const std::string kSettings[] = {"balanced", "footprint", "latency", "page"};

// The finaliser of splitmix64.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// What becomes of each event of a trace. Equal sizes stay equal, and nothing becomes a request for
// no bytes.
struct Variant {
  const char* name;
  void (*change)(TraceEvent& event);
};
constexpr Variant kVariants[] = {
    {"recorded", [](TraceEvent&) {}},
    {"scaled", [](TraceEvent& event) { event.bytes = event.bytes - event.bytes / 5; }},
    {"jitter",
     [](TraceEvent& event) {
       event.bytes = (event.bytes * (600 + mix(event.bytes) % 901) + 999) / 1000;
     }},
    {"spread", [](TraceEvent& event) { event.stream = event.allocation % 4; }},
};

// All variants take minutes; the other settings differ from the default in what it takes to move or
// create a chunk.
std::span<const Variant> variants_of(const std::string& setting) {
  return std::span(kVariants).first(setting == "balanced" ? std::size(kVariants) : 1);
}

Trace changed(Trace trace, const Variant& variant) {
  for (TraceEvent& event : trace.events) {
    variant.change(event);
    trace.streams = std::max(trace.streams, event.stream + 1);
  }
  return trace;
}

AllocatorRecipe recipe_of(const std::string& setting) {
  settings::Config config;
  if (setting == "footprint") config.prefer = settings::Prefer::footprint;
  if (setting == "latency") config.prefer = settings::Prefer::latency;
  return allocator_recipe(setting == "page" ? AllocatorKind::vpmm_page : AllocatorKind::vpmm,
                          config);
}

std::string key_of(const std::string& trace, const std::string& setting, const Variant& variant) {
  return fmt::format("{} {} {}", trace, setting, variant.name);
}

// What stands behind the key: driver calls, peak mapped, time in the driver, worst allocate,
// refused, fingerprint.
std::string figures_of(const Trace& trace, const std::string& setting) {
  FingerprintMachine machine(make_sim_machine({}));
  const auto result = replay(trace, machine, machine.watched(recipe_of(setting)), {});
  EXPECT_TRUE(result.ok()) << result.error().message;
  if (!result) return {};
  EXPECT_EQ(result.value().corruptions, 0u);
  EXPECT_EQ(result.value().hazards, 0u);
  return fmt::format("calls={} mapped={} driver_us={} worst_us={} failed={} {:016x}",
                     result.value().driver_calls, result.value().peak_mapped_bytes,
                     result.value().driver_ns / 1000, result.value().worst_allocate_ns / 1000,
                     result.value().failed_allocations, machine.fingerprint());
}

Trace read(const std::string& name) {
  auto trace = observe::read_trace(repository_path("bench/traces/" + name + ".csv.gz"));
  EXPECT_TRUE(trace.ok()) << trace.error().message;
  return trace ? std::move(trace).value() : Trace{};
}

// Figures by key.
std::map<std::string, std::string> golden() {
  std::ifstream file(repository_path("tests/replay/golden.txt"));
  std::map<std::string, std::string> lines;
  for (std::string line; std::getline(file, line);) {
    const std::size_t figures = line.find(" calls=");
    if (figures != std::string::npos) lines[line.substr(0, figures)] = line.substr(figures + 1);
  }
  return lines;
}

class Golden : public testing::TestWithParam<std::tuple<std::string, std::string>> {};
INSTANTIATE_TEST_SUITE_P(, Golden,
                         testing::Combine(testing::ValuesIn(kTraces), testing::ValuesIn(kSettings)),
                         [](const auto& parameter) {
                           return std::get<0>(parameter.param) + "_" + std::get<1>(parameter.param);
                         });

// With VPMM_GOLDEN=FILE the lines are added to the file, and not compared.
TEST_P(Golden, lines_are_what_the_pool_does) {
  const auto& [name, setting] = GetParam();
  const Trace trace = read(name);
  const auto expected = golden();
  const char* const out = std::getenv("VPMM_GOLDEN");
  std::string differences;
  for (const Variant& variant : variants_of(setting)) {
    const std::string key = key_of(name, setting, variant);
    const std::string now = figures_of(changed(trace, variant), setting);
    if (out != nullptr) {
      std::ofstream(out, std::ios::app) << key << ' ' << now << '\n';
    } else if (const auto line = expected.find(key);
               line == expected.end() || line->second != now) {
      differences += fmt::format("- {} {}\n+ {} {}\n", key,
                                 line == expected.end() ? "is missing" : line->second, key, now);
    }
  }
  if (!differences.empty())
    ADD_FAILURE() << differences << "if that is what was meant: ./dev golden";
}

TEST(GoldenFile, has_a_line_for_every_trace_setting_and_variant_and_no_other) {
  std::set<std::string> keys;
  for (const std::string& trace : kTraces) {
    for (const std::string& setting : kSettings) {
      for (const Variant& variant : variants_of(setting))
        keys.insert(key_of(trace, setting, variant));
    }
  }
  std::set<std::string> found;
  for (const auto& [key, figures] : golden()) found.insert(key);
  EXPECT_EQ(found, keys);
}

TEST(GoldenFile, holds_nothing_that_depends_on_where_the_system_puts_memory) {
  const Trace trace = read("gnn");
  const std::string here = figures_of(trace, "balanced");
  constexpr std::size_t kElsewhere = kTiB + 12 * kKiB;
  void* const pushed_away =
      mmap(nullptr, kElsewhere, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pushed_away, MAP_FAILED);
  EXPECT_EQ(figures_of(trace, "balanced"), here);
  munmap(pushed_away, kElsewhere);
}

}  // namespace
}  // namespace vpmm::replay
