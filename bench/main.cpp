// SPDX-License-Identifier: Apache-2.0
// bench: `vpmm_bench PART --peer NAME`: one part of the benchmark with one peer, in a process of
// its own.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>

#include "harness/open_peer.hpp"
#include "harness/parts.hpp"

namespace vpmm::bench {
namespace {

constexpr int kUnavailable = 3;  // exit code: this peer cannot be measured here

using Part = std::function<void(const Run&)>;

Part add_hot_path(CLI::App& part) {
  const auto settings = std::make_shared<HotPathSettings>();
  part.add_option("--round-ms", settings->round_ms, "length of one measurement");
  part.add_option("--repeats", settings->repeats, "measurements of each case");
  part.add_option("--threads", settings->threads, "thread counts to measure")->delimiter(',');
  part.add_option("--only", settings->only, "cases whose name holds this");
  part.add_option("--operations", settings->operations,
                  "of each measurement, instead of its length");
  return [settings](const Run& run) { run_hot_path(run, *settings); };
}

Part add_growth(CLI::App& part) {
  const auto settings = std::make_shared<GrowthSettings>();
  part.add_option("--repeats", settings->repeats, "measurements of each size");
  part.add_option("--largest", settings->largest, "bytes of the largest request");
  return [settings](const Run& run) { run_growth(run, *settings); };
}

Part add_random_allocations(CLI::App& part) {
  const auto settings = std::make_shared<RandomAllocationsSettings>();
  part.add_option("--counts", settings->counts, "values of N")->delimiter(',');
  part.add_option("--sizes-mib", settings->sizes_mib, "largest sizes")->delimiter(',');
  part.add_option("--share", settings->share,
                  "of the GPU's memory, live at most; not given: 16,000 MiB, as RMM has it")
      ->check(CLI::Range(0.01, 1.0));
  part.add_option("--loop-seconds", settings->loop_seconds, "of one loop, at most");
  return [settings](const Run& run) { run_random_allocations(run, *settings); };
}

Part add_multi_stream(CLI::App& part) {
  const auto settings = std::make_shared<MultiStreamSettings>();
  part.add_option("--iterations", settings->iterations, "iterations of one measurement");
  part.add_option("--repeats", settings->repeats, "measurements of each case");
  return [settings](const Run& run) { run_multi_stream(run, *settings); };
}

Part add_replay(CLI::App& part) {
  const auto settings = std::make_shared<ReplaySettings>();
  part.add_option("--trace", settings->traces, "trace files")->required();
  part.add_option("--as", settings->part, "part that the samples belong to");
  return [settings](const Run& run) { run_replay(run, *settings); };
}

Part add_serve(CLI::App& part) {
  const auto settings = std::make_shared<ServeSettings>();
  part.add_option("--trace", settings->trace, "trace file with several streams")->required();
  part.add_option("--threads", settings->threads, "streams at a time");
  part.add_option("--work", settings->work, "times that each allocation is written to");
  part.add_flag("--paced", settings->is_paced, "at the recorded pace");
  return [settings](const Run& run) { run_serve(run, *settings); };
}

struct Arguments {
  PeerOptions peer;
  std::string library = "cuda";
  bool is_half_reserved = false;
  double seconds = 60;
};

void add_common(CLI::App& part, Arguments& arguments) {
  part.add_option("--peer", arguments.peer.name, "what to measure")->required();
  part.add_option("--driver", arguments.library,
                  "libcuda of this machine, or one that does nothing")
      ->check(CLI::IsMember({"cuda", "zero-cost"}));
  part.add_flag("--half", arguments.is_half_reserved,
                "pools that ask for a size begin with half of the free memory");
  part.add_option("--seconds", arguments.seconds,
                  "cases that would begin later than this are left out");
}

std::uint64_t half_of_free() {
  std::size_t free = 0, total = 0;
  must(cuda().cuMemGetInfo(&free, &total), "cuMemGetInfo");
  constexpr std::uint64_t kRound = std::uint64_t{256} << 20;
  return free / 2 / kRound * kRound;
}

// Ends the process: what has been measured is printed, and not every library survives its own
// unloading.
[[noreturn]] void run(const Part& part, Arguments& arguments) {
  const std::string& name = arguments.peer.name;
  const bool is_free = arguments.library == "zero-cost" || is_host_peer(name);
  open_cuda(is_free ? Library::zero_cost : Library::real);
  arguments.peer.cuda = &cuda();
  if (arguments.is_half_reserved) arguments.peer.pool_bytes = half_of_free();
  std::unique_ptr<Peer> peer = open_peer(arguments.peer);
  std::printf("# version,%s,%s\n", name.c_str(), peer->version().c_str());
  part(Run{*peer, name, arguments.seconds});
  std::fflush(stdout);
  std::_Exit(0);
}

int run_verb(int argc, char** argv) {
  CLI::App app{"Measures one part of the benchmark with one peer; prints CSV", "vpmm_bench"};
  app.require_subcommand(1);
  Arguments arguments;
  std::vector<std::pair<CLI::App*, Part>> parts;
  const auto add = [&](const char* name, const char* what, Part (*add_part)(CLI::App&)) {
    CLI::App* const part = app.add_subcommand(name, what);
    add_common(*part, arguments);
    parts.emplace_back(part, add_part(*part));
  };
  add("hot-path", "allocate and deallocate, warm", add_hot_path);
  add("growth", "the first allocation, and a request that fits only in pieces", add_growth);
  add("random-allocations", "RMM's workload of this name", add_random_allocations);
  add("multi-stream", "RMM's multi_stream_allocations", add_multi_stream);
  add("replay", "recorded programs", add_replay);
  add("serve", "threads with a stream each, and GPU work", add_serve);
  CLI11_PARSE(app, argc, argv);
  for (const auto& [verb, part] : parts) {
    if (verb->parsed()) run(part, arguments);
  }
  return 1;
}

}  // namespace
}  // namespace vpmm::bench

int main(int argc, char** argv) {
  try {
    return vpmm::bench::run_verb(argc, argv);
  } catch (const vpmm::bench::Unavailable& reason) {
    std::fprintf(stderr, "unavailable: %s\n", reason.what());
    return vpmm::bench::kUnavailable;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
