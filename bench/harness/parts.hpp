// bench/harness: the parts of the benchmark as verbs of one program, each in a file of its own.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "peers/peer.hpp"

namespace vpmm::bench {

// What every part is told. The peer is open and the context entered.
struct Run {
  Peer& peer;
  std::string peer_name;
  double seconds = 0;  // of wall-clock time; cases that no longer fit are left out, and said to be
};

// Registers its options with `part`; what it returns runs the part.
using Part = std::function<void(const Run&)>;
Part add_hot_path(CLI::App& part);
Part add_growth(CLI::App& part);
Part add_random_allocations(CLI::App& part);
Part add_multi_stream(CLI::App& part);
Part add_replay(CLI::App& part);
Part add_serve(CLI::App& part);

}  // namespace vpmm::bench
