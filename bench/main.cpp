// bench: `vpmm_bench PART --peer NAME`: one part of the benchmark with one peer, in a process of its own.
#include <fmt/format.h>

#include <cstdio>

#include "harness/open_peer.hpp"
#include "harness/parts.hpp"

namespace vpmm::bench {
namespace {

constexpr int kUnavailable = 3;  // exit code: this peer cannot be measured here

struct Arguments {
  PeerOptions peer;
  Library library = Library::real;
  std::string library_name = "cuda";
  double seconds = 60;
};

void add_common(CLI::App& part, Arguments& arguments) {
  part.add_option("--peer", arguments.peer.name, "what to measure")->required();
  part.add_option("--driver", arguments.library_name, "libcuda of this machine, or one that does nothing")
      ->check(CLI::IsMember({"cuda", "zero-cost"}));
  part.add_option("--pool-bytes", arguments.peer.pool_bytes, "what pools of a fixed size begin with");
  part.add_option("--seconds", arguments.seconds, "cases that begin later than this are left out");
}

int run(const Part& part, Arguments& arguments) {
  const std::string& name = arguments.peer.name;
  const bool is_free = arguments.library_name == "zero-cost" || is_host_peer(name);
  open_cuda(is_free ? Library::zero_cost : Library::real);
  arguments.peer.cuda = &cuda();
  const std::unique_ptr<Peer> peer = open_peer(arguments.peer);
  fmt::print("# version,{},{}\n", name, peer->version());
  part(Run{*peer, name, arguments.seconds});
  return 0;
}

}  // namespace

int main_of(int argc, char** argv) {
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
    if (verb->parsed()) return run(part, arguments);
  }
  return 1;
}

}  // namespace vpmm::bench

int main(int argc, char** argv) {
  try {
    return vpmm::bench::main_of(argc, argv);
  } catch (const vpmm::bench::Unavailable& reason) {
    std::fprintf(stderr, "unavailable: %s\n", reason.what());
    return vpmm::bench::kUnavailable;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
