// SPDX-License-Identifier: Apache-2.0
// bench/workloads: a server: threads with a stream each do at the same time what a trace's streams
// did, with GPU work.
//
// Stream 0 of the trace is what the program loaded before; streams 1, 2, ... are dealt to the
// threads in turn, and the threads begin each round of streams together, as the program did. Each
// allocation is written to in full, `--work` times, on its stream, so that the GPU is busy in
// proportion to the bytes. At the recorded pace nobody is ahead of the trace's clock; without it
// each thread goes as fast as it can, and the GPU runs behind.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "harness/clock.hpp"
#include "harness/latencies.hpp"
#include "harness/parts.hpp"
#include "harness/trace.hpp"

namespace vpmm::bench {
namespace {

// Live bytes of all threads, as requested. Counted from after the allocation until before the
// deallocation, so that memory which passes from thread to thread never counts twice.
class Live {
 public:
  void add(std::size_t bytes) {
    const std::size_t now = now_.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    std::size_t peak = peak_.load(std::memory_order_relaxed);
    while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
    }
  }
  void remove(std::size_t bytes) { now_.fetch_sub(bytes, std::memory_order_relaxed); }
  std::size_t peak() const { return peak_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::size_t> now_{0};
  std::atomic<std::size_t> peak_{0};
};

// What all threads share.
struct Server {
  Peer& peer;
  const ServeSettings& settings;
  Live live;
  Clock::time_point start = Clock::now();
};

// One stream of the trace, from its first event to its last.
class Client {
 public:
  Client(Server& server, const std::vector<Event>& events)
      : server_(server), events_(events), lane_(server.peer.open_lane(stream_.handle())) {}

  // Events before `until_us` by the trace's clock.
  void run(std::uint64_t until_us = std::numeric_limits<std::uint64_t>::max()) {
    for (; next_ < events_.size() && events_[next_].time_us < until_us; ++next_) {
      const Event& event = events_[next_];
      if (server_.settings.is_paced) {
        std::this_thread::sleep_until(server_.start + std::chrono::microseconds(event.time_us));
      }
      event.operation == 'a' ? allocate(event) : deallocate(event.id);
    }
  }
  void finish() {
    while (!blocks_.empty()) deallocate(blocks_.back().id);
    must(cuda().cuStreamSynchronize(stream_.handle()), "cuStreamSynchronize");
  }
  const Latencies& latencies() const { return latencies_; }
  std::uint64_t refused() const { return refused_; }

 private:
  struct Block {
    std::size_t id;
    void* ptr;
    std::size_t bytes;
  };

  void allocate(const Event& event) {
    const auto start = Clock::now();
    void* const ptr = lane_->allocate(event.bytes);
    latencies_.add(ns_since(start));
    if (ptr == nullptr) {
      ++refused_;
      return;
    }
    server_.live.add(event.bytes);
    blocks_.push_back({event.id, ptr, event.bytes});
    const auto address = static_cast<DevicePtr>(reinterpret_cast<std::uintptr_t>(ptr));
    for (int i = 0; i < server_.settings.work; ++i) {
      must(cuda().cuMemsetD8Async(address, static_cast<unsigned char>(i), event.bytes,
                                  stream_.handle()),
           "cuMemsetD8Async");
    }
  }
  // Most die young, so the search begins at the end.
  void deallocate(std::size_t id) {
    const auto found = std::find_if(blocks_.rbegin(), blocks_.rend(),
                                    [id](const Block& block) { return block.id == id; });
    if (found == blocks_.rend()) return;
    server_.live.remove(found->bytes);
    lane_->deallocate(found->ptr, found->bytes);
    *found = blocks_.back();
    blocks_.pop_back();
  }

  Server& server_;
  const std::vector<Event>& events_;
  const Stream stream_;
  const std::unique_ptr<Lane> lane_;
  std::vector<Block> blocks_;
  std::size_t next_ = 0;
  Latencies latencies_;
  std::uint64_t refused_ = 0;
};

std::vector<std::vector<Event>> by_stream(const Trace& trace) {
  std::vector<std::vector<Event>> streams(trace.streams);
  for (const Event& event : trace.events) streams[event.stream].push_back(event);
  streams.erase(std::remove_if(streams.begin() + 1, streams.end(),
                               [](const auto& events) { return events.empty(); }),
                streams.end());
  return streams;
}

struct Totals {
  Latencies latencies;
  std::uint64_t refused = 0;
  void add(const Client& client) {
    latencies.add(client.latencies());
    refused += client.refused();
  }
};

// Streams [first, last) side by side, a thread each.
void run_round(Server& server, const std::vector<std::vector<Event>>& streams, std::size_t first,
               std::size_t last, Totals& totals) {
  std::barrier<> ready(static_cast<std::ptrdiff_t>(last - first));
  std::vector<std::unique_ptr<Client>> clients(last - first);
  std::vector<std::thread> threads;
  for (std::size_t i = first; i < last; ++i) {
    threads.emplace_back([&, i] {
      enter_context();
      auto& client = clients[i - first] = std::make_unique<Client>(server, streams[i]);
      ready.arrive_and_wait();
      client->run();
      client->finish();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& client : clients) totals.add(*client);
}

void report(const Server& server, Totals& totals, const Samples& samples, const std::string& name) {
  const int threads = static_cast<int>(server.settings.threads);
  const auto live = static_cast<double>(server.live.peak());
  samples.add({name, "seconds", "s", seconds_since(server.start), 0, threads});
  samples.add({name, "peak live", "bytes", live, 0, threads});
  if (const auto footprint = server.peer.footprint()) {
    const auto held = static_cast<double>(footprint->peak_bytes);
    samples.add({name, "peak held", "bytes", held, 0, threads});
    samples.add({name, "peak held / peak live", "x", held / live, 0, threads});
  }
  samples.add({name, "refused", "allocations", static_cast<double>(totals.refused), 0, threads});
  totals.latencies.report(samples, name, threads, 0);
}

}  // namespace

void run_serve(const Run& run, const ServeSettings& settings) {
  const std::vector<std::vector<Event>> streams = by_stream(read_trace(settings.trace));
  Server server{run.peer, settings, {}, Clock::now()};
  Totals totals;
  {
    Client program(server, streams.front());
    for (std::size_t first = 1; first < streams.size(); first += settings.threads) {
      program.run(streams[first].front().time_us);
      run_round(server, streams, first, std::min(first + settings.threads, streams.size()), totals);
    }
    program.run();
    program.finish();
    totals.add(program);
  }
  must(cuda().cuCtxSynchronize(), "cuCtxSynchronize");
  const Samples samples("serve", run.peer_name);
  report(server, totals, samples, settings.is_paced ? "recorded pace" : "as fast as possible");
}

}  // namespace vpmm::bench
