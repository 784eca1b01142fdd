// SPDX-License-Identifier: Apache-2.0
// property tests: draws machines, settings and programs.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "property/world.hpp"

namespace vpmm::property {

// Numbers of a generator, or of bytes, two for each, while they last; then 0.
class Numbers {
 public:
  using result_type = std::uint64_t;
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return ~result_type{0}; }

  using Bytes = std::optional<std::span<const std::uint8_t>>;  // that are left, for all numbers
  Numbers(std::uint64_t seed, Bytes& bytes) : generator_(seed), bytes_(bytes) {}
  result_type operator()();

 private:
  std::mt19937_64 generator_;
  Bytes& bytes_;
};

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : Dice(seed, std::nullopt) {}
  // Every program has its bytes, and a change of a few bytes changes it a little.
  explicit Dice(std::span<const std::uint8_t> bytes)
      : Dice(bytes.empty() ? 0 : bytes.front(), bytes) {}
  Dice(const Dice&) = delete;
  Dice& operator=(const Dice&) = delete;

  Scene scene();
  bool takes_turns() const { return takes_turns_; }  // of several threads
  // Of the operations that all suites share.
  std::vector<Operation> program(std::size_t length);
  // With faults, recordings, listeners, callbacks, forks and an exit in between.
  std::vector<Operation> whole_program(std::size_t length);
  // A machine and a program that neither leaves the process nor writes files.
  Program program_within(std::size_t length);
  // Places in the bytes where steps of the last whole program begin, and where the last one ends. A
  // step is an operation and all that comes with it: elsewhere in the bytes it is nearly the same.
  const std::vector<std::size_t>& borders() const { return borders_; }

 private:
  Dice(std::uint64_t seed, const Numbers::Bytes& bytes);
  bool is_over() const { return bytes_ && bytes_->empty(); }
  void note_border() {
    if (bytes_) borders_.push_back(size_ - bytes_->size());
  }
  void draw_step(std::vector<Operation>& operations);
  void draw_whole_step(std::vector<Operation>& operations);
  void make_roomy(Scene& scene);
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  std::uint64_t below_for_sleeps(std::uint64_t n) { return sleeps_() % n; }
  std::uint64_t below_for_others(std::uint64_t n) { return others_() % n; }
  std::uint64_t any() { return below(1 << 16); }
  Bytes size(Bytes least, Bytes most);  // log-uniform
  Bytes border();                       // where another class, or another way, begins
  Bytes request();
  Bytes alignment();
  void draw_config(settings::Config& config);
  Operation operation();
  Operation usual();
  Operation rare();
  Operation capturing();
  Operation with_others();
  Operation with_tags();
  Operation rarity();
  Operation with_arenas();
  Operation extra();
  Allocate allocate();

  Numbers::Bytes bytes_;
  std::size_t size_;  // of all bytes
  std::vector<std::size_t> borders_;
  Numbers random_;
  // What other processes and devices do comes in between and has numbers of its own: the rest of
  // the program is the same with it as without, so that seeds that are known for something stay
  // what they are.
  Numbers others_;
  std::uint64_t others_one_in_;    // 0: they do nothing
  Numbers sleeps_;                 // likewise: memory that suspends
  std::uint64_t sleeps_one_in_;    // 0: there is none
  Numbers rarities_;               // likewise: what only whole programs have
  std::uint64_t rarities_one_in_;  // 0: there is none
  Numbers extras_;                 // likewise: what came last
  std::uint64_t extras_one_in_;    // 0: there is none
  Numbers guards_;                 // likewise: kernels that leave guarded memory
  std::uint64_t guard_every_;      // 0: none is guarded
  bool shares_gpu_;                // two pools
  bool is_roomy_;
  // What takes long comes in a few programs alone.
  bool backs_up_;  // tags, with a copy on the host
  bool records_;   // into files
  bool takes_turns_;
  // Of this program: it has its own habits.
  Bytes largest_ = 256 * kMiB;
  Bytes page_ = 2 * kMiB;
  std::uint64_t small_one_in_ = 3;
  std::uint64_t allocates_of_16_ = 7;
  std::uint64_t any_stream_one_in_ = 6;
  bool captures_ = true;
  bool resets_ = true;
};

// Gives the program a process that imports, with operations of it in between. The rest of the
// program stays what it is.
void add_importer(Program& program, std::uint64_t seed);

}  // namespace vpmm::property
