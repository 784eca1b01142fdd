// SPDX-License-Identifier: Apache-2.0
// tests: how a random program is made.
#include "replay/random_program.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <deque>
#include <fstream>
#include <random>
#include <vector>

namespace vpmm::replay {
namespace {

using observe::Trace;
using observe::TraceEvent;

class Maker {
 public:
  explicit Maker(const RandomProgram& program) : program_(program), random_(program.seed) {
    trace_.name = fmt::format("random_{}_streams_{}_mib_{}.csv", program.seed, program.streams,
                              program.largest / kMiB);
    trace_.streams = program.streams;
    for (Bytes& size : usual_) size = any_size();
    begin_phase();
  }

  Trace make() {
    while (trace_.events.size() < program_.operations) {
      if (left_in_phase_-- == 0) begin_phase();
      const Bytes bytes = below(2) == 0 ? any_size() : usual_[below(usual_.size())];
      if (live_ + bytes <= level_) {
        allocate(bytes);
      } else if (!free_one()) {
        begin_phase();
      }
      time_us_ += below(64) == 0 ? 5000 : 20;
    }
    return std::move(trace_);
  }

 private:
  struct Allocation {
    std::size_t number = 0;
    Bytes bytes = 0;
    std::size_t stream = 0;
  };
  enum Life : std::size_t { stack, queue, any, kLives };

  // The distributions of the standard library differ from one library to the next.
  std::uint64_t below(std::uint64_t end) { return random_() % end; }
  Bytes any_size() {
    const double share = static_cast<double>(random_() >> 11) * 0x1p-53;
    return static_cast<Bytes>(256 * std::pow(static_cast<double>(program_.largest) / 256, share));
  }

  void begin_phase() {
    left_in_phase_ = 50 + below(250);
    level_ = below(2) == 0 ? program_.most_live : program_.most_live / 8 * (3 + below(5));
    preferred_ = static_cast<Life>(below(kLives));
  }

  void allocate(Bytes bytes) {
    const Allocation allocation{trace_.allocations++, bytes, below(program_.streams)};
    trace_.events.push_back(
        {TraceEvent::TraceKind::allocate, allocation.number, bytes, allocation.stream, time_us_});
    live_ += bytes;
    if (below(50) == 0) {
      live_to_the_end_ += bytes;
      if (live_to_the_end_ <= program_.most_live / 4) return;
      live_to_the_end_ -= bytes;
    }
    lives_[below(2) == 0 ? preferred_ : below(kLives)].push_back(allocation);
  }

  Allocation take(std::deque<Allocation>& lives, Life life) {
    if (life == any) std::swap(lives[below(lives.size())], lives.back());
    const Allocation allocation = life == queue ? lives.front() : lives.back();
    life == queue ? lives.pop_front() : lives.pop_back();
    return allocation;
  }

  // The way that the phase prefers, mostly, or the next one with anything to free.
  bool free_one() {
    for (std::size_t turn = below(4) == 0 ? below(kLives) : preferred_, tried = 0; tried < kLives;
         ++turn, ++tried) {
      auto& lives = lives_[turn % kLives];
      if (lives.empty()) continue;
      const Allocation allocation = take(lives, static_cast<Life>(turn % kLives));
      const std::size_t stream = below(16) == 0 ? below(program_.streams) : allocation.stream;
      trace_.events.push_back({TraceEvent::TraceKind::deallocate, allocation.number,
                               allocation.bytes, stream, time_us_});
      live_ -= allocation.bytes;
      return true;
    }
    return false;
  }

  const RandomProgram program_;
  std::mt19937_64 random_;
  Trace trace_;
  std::array<Bytes, 40> usual_{};
  std::array<std::deque<Allocation>, kLives> lives_;
  Bytes live_ = 0;
  Bytes live_to_the_end_ = 0;
  Bytes level_ = 0;
  Life preferred_ = stack;
  std::size_t left_in_phase_ = 0;
  std::uint64_t time_us_ = 0;
};

}  // namespace

void PrintTo(const RandomProgram& program, std::ostream* out) {
  *out << fmt::format("{} operations on {} streams, {} MiB at most, seed {}", program.operations,
                      program.streams, program.largest / kMiB, program.seed);
}

Trace random_program(const RandomProgram& program) { return Maker(program).make(); }

void write_trace(const Trace& trace, const std::string& path) {
  std::ofstream file(path);
  file << "op,id,bytes,stream,time_us\n";
  for (const TraceEvent& event : trace.events) {
    file << fmt::format("{},{},{},{},{}\n",
                        event.kind == TraceEvent::TraceKind::allocate ? 'a' : 'f', event.allocation,
                        event.bytes, event.stream, event.time_us);
  }
}

}  // namespace vpmm::replay
