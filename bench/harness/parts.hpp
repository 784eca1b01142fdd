// SPDX-License-Identifier: Apache-2.0
// bench/harness: the parts of the benchmark, each in a file of its own; main.cpp makes verbs of
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "peers/peer.hpp"

namespace vpmm::bench {

// What every part is told. The peer is open and the context entered.
struct Run {
  Peer& peer;
  std::string peer_name;
  double seconds =
      0;  // of wall-clock time; cases that would begin later are left out, and said to be
};

struct HotPathSettings {  // micro/hot_path.cpp
  double round_ms = 30;
  int repeats = 5;
  double warm_up_seconds = 1;     // at most; less when every allocation has been replaced twice
  double settling_seconds = 0.3;  // of warming up, after that
  double finish_seconds = 3;
  std::vector<int> threads = {1, 2, 4, 8};
  std::string only;  // cases whose name holds this
  std::uint64_t operations =
      0;  // of one measurement, without limits of time; 0: as many as round_ms allows
};
void run_hot_path(const Run& run, const HotPathSettings& settings);

struct GrowthSettings {  // micro/growth.cpp
  int repeats = 5;
  std::size_t largest = std::size_t{8} << 30;
};
void run_growth(const Run& run, const GrowthSettings& settings);

struct RandomAllocationsSettings {  // workloads/random_allocations.cpp
  std::vector<std::size_t> counts = {1'000, 10'000, 100'000};
  std::vector<std::size_t> sizes_mib = {1, 4, 64, 256, 1024, 4096};
  double share = 0;         // of the GPU's memory, that live at most; 0: 16,000 MiB
  double loop_seconds = 3;  // a loop that takes longer is stopped, and said to be
};
void run_random_allocations(const Run& run, const RandomAllocationsSettings& settings);

struct MultiStreamSettings {  // workloads/multi_stream_allocations.cpp
  std::vector<std::size_t> streams = {1, 2, 4};
  int iterations = 20;
  int repeats = 3;
};
void run_multi_stream(const Run& run, const MultiStreamSettings& settings);

struct ReplaySettings {  // workloads/replay_trace.cpp
  std::vector<std::string> traces;
  std::string part = "replay";  // that the samples belong to
};
void run_replay(const Run& run, const ReplaySettings& settings);

struct ServeSettings {  // workloads/serve.cpp
  std::string trace;
  std::size_t threads = 4;
  int work = 2;
  bool is_paced = false;
};
void run_serve(const Run& run, const ServeSettings& settings);

}  // namespace vpmm::bench
