// property tests: draws machines, settings and programs.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "property/world.hpp"

namespace vpmm::property {

class Dice {
 public:
  explicit Dice(std::uint64_t seed)
      : random_(seed),
        others_(seed),
        others_one_in_(seed % 3 == 1 ? 0 : 2 + others_() % 20),
        sleeps_(seed),
        sleeps_one_in_(seed % 4 == 3 ? 0 : 3 + sleeps_() % 20),
        rarities_(seed),
        rarities_one_in_(seed % 4 == 3 ? 0 : 6 + rarities_() % 20),
        is_roomy_(seed % 5 == 2),
        backs_up_(seed % 8 == 0),
        records_(seed % 8 == 4) {}

  Scene scene();
  // Of the operations that all suites share.
  std::vector<Operation> program(std::size_t length);
  // With faults, recordings, listeners, callbacks, forks and an exit in between.
  std::vector<Operation> whole_program(std::size_t length);

 private:
  void make_roomy(Scene& scene);
  std::uint64_t below(std::uint64_t n) {
    return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random_);
  }
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
  Allocate allocate();

  std::mt19937_64 random_;
  // What other processes and devices do comes in between and has numbers of its own: the rest of
  // the program is the same with it as without, so that seeds that are known for something stay
  // what they are.
  std::mt19937_64 others_;
  std::uint64_t others_one_in_;    // 0: they do nothing
  std::mt19937_64 sleeps_;         // likewise: memory that suspends
  std::uint64_t sleeps_one_in_;    // 0: there is none
  std::mt19937_64 rarities_;       // likewise: what only whole programs have
  std::uint64_t rarities_one_in_;  // 0: there is none
  bool is_roomy_;
  // What takes long comes in a few programs alone.
  bool backs_up_;  // tags, with a copy on the host
  bool records_;   // into files
  // Of this program: it has its own habits.
  Bytes largest_ = 256 * kMiB;
  Bytes page_ = 2 * kMiB;
  std::uint64_t small_one_in_ = 3;
  std::uint64_t allocates_of_16_ = 7;
  std::uint64_t any_stream_one_in_ = 6;
  bool captures_ = true;
  bool resets_ = true;
};

}  // namespace vpmm::property
