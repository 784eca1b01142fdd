// SPDX-License-Identifier: Apache-2.0
// fuzz tests: bytes of programs of the hunt, changed draw by draw and step by step.
#include "fuzz/program_mutator.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <random>

#include "property/dice.hpp"

namespace vpmm::fuzz {
namespace {

using Step = Contents;  // draws of one operation and all that comes with it

// Bytes by their meaning: the machine and the settings, then steps.
struct Draft {
  Contents scene;
  std::vector<Step> steps;
};

Draft draft_of(Input input) {
  Contents bytes(input.begin(), input.end());
  // The last byte alone is the low half of a number.
  if (bytes.size() % kDraw != 0) bytes.insert(bytes.end() - 1, 0);
  property::Dice dice(bytes);
  dice.program_within(kMostSteps);
  const std::vector<std::size_t>& borders = dice.borders();
  const auto at = [&](std::size_t place) {
    return bytes.begin() + static_cast<std::ptrdiff_t>(place);
  };
  Draft draft{{bytes.begin(), at(borders.front())}, {}};
  for (std::size_t i = 1; i < borders.size(); ++i)
    draft.steps.emplace_back(at(borders[i - 1]), at(borders[i]));
  return draft;
}

Contents bytes_of(const Draft& draft, std::size_t most) {
  Contents bytes = draft.scene;
  for (const Step& step : draft.steps) {
    if (bytes.size() + step.size() > most) break;  // a part of a step would be another one
    bytes.insert(bytes.end(), step.begin(), step.end());
  }
  bytes.resize(std::clamp(bytes.size(), kDraw, most) / kDraw * kDraw);
  return bytes;
}

// Without the distributions of the library, which other libraries draw in another way.
class Chance {
 public:
  explicit Chance(std::uint32_t seed) : random_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  std::uint8_t byte() { return static_cast<std::uint8_t>(random_()); }

 private:
  std::mt19937_64 random_;
};

// Neighbouring steps, mostly few.
struct Run {
  std::size_t begin = 0;
  std::size_t end = 0;
};

Run some_run(const Draft& draft, Chance& chance) {
  const std::size_t begin = chance.below(draft.steps.size());
  const std::size_t left = draft.steps.size() - begin;
  const std::size_t most = chance.one_in(8) ? left : std::min<std::size_t>(left, 4);
  return {begin, begin + 1 + chance.below(most)};
}

std::vector<Step> copy_of(const Draft& draft, const Run& run) {
  const auto begin = draft.steps.begin();
  return {begin + static_cast<std::ptrdiff_t>(run.begin),
          begin + static_cast<std::ptrdiff_t>(run.end)};
}

void leave_out(Draft& draft, const Run& run) {
  const auto begin = draft.steps.begin();
  draft.steps.erase(begin + static_cast<std::ptrdiff_t>(run.begin),
                    begin + static_cast<std::ptrdiff_t>(run.end));
}

void put_in(Draft& draft, const std::vector<Step>& steps, Chance& chance) {
  const std::size_t place = chance.below(draft.steps.size() + 1);
  draft.steps.insert(draft.steps.begin() + static_cast<std::ptrdiff_t>(place), steps.begin(),
                     steps.end());
}

void fill(Contents& bytes, std::size_t begin, Chance& chance) {
  std::generate(bytes.begin() + static_cast<std::ptrdiff_t>(begin), bytes.end(),
                [&] { return chance.byte(); });
}

// Mostly a few; one after the other they are as many as the numbers make.
void make_steps(Draft& draft, Chance& chance) {
  Step made(kDraw * (1 + chance.below(chance.one_in(4) ? 256 : 16)));
  fill(made, 0, chance);
  put_in(draft, {made}, chance);
}

// The machine and the settings from some draw on: other habits of the program.
void make_scene(Draft& draft, Chance& chance) {
  constexpr std::size_t kUsual = 64;  // draws
  if (draft.scene.empty()) draft.scene.resize(kDraw * kUsual);
  fill(draft.scene, kDraw * chance.below(draft.scene.size() / kDraw), chance);
}

void change_draw(Contents& bytes, Chance& chance) {
  if (bytes.empty()) return;
  const std::size_t draws = bytes.size() / kDraw;
  std::uint8_t* const draw = &bytes[kDraw * chance.below(draws)];
  const unsigned before = 256U * draw[0] + draw[1];
  const std::array<unsigned, 5> choices = {
      256U * chance.byte() + chance.byte(), before + 1, before - 1,
      chance.byte() % 16U,  // mostly remainders of small numbers decide
      256U * bytes[kDraw * chance.below(draws)] + chance.byte()};
  const unsigned after = choices[chance.below(choices.size())];
  draw[0] = static_cast<std::uint8_t>(after / 256);
  draw[1] = static_cast<std::uint8_t>(after);
}

void change(Draft& draft, Chance& chance) {
  if (chance.one_in(8)) return make_scene(draft, chance);
  if (chance.one_in(8)) return change_draw(draft.scene, chance);
  if (draft.steps.empty()) return make_steps(draft, chance);
  switch (chance.below(8)) {
    case 0: return leave_out(draft, some_run(draft, chance));
    case 1: return put_in(draft, copy_of(draft, some_run(draft, chance)), chance);
    case 2: {
      const Run run = some_run(draft, chance);
      const std::vector<Step> moved = copy_of(draft, run);
      leave_out(draft, run);
      return put_in(draft, moved, chance);
    }
    case 3: return make_steps(draft, chance);
    case 4:
      return std::swap(draft.steps[chance.below(draft.steps.size())],
                       draft.steps[chance.below(draft.steps.size())]);
    default: return change_draw(draft.steps[chance.below(draft.steps.size())], chance);
  }
}

}  // namespace

Contents changed_program(Input input, std::size_t most, std::uint32_t seed) {
  if (most < kDraw) return {};
  Chance chance(seed);
  Draft draft = draft_of(input);
  for (std::size_t changes = 1 + chance.below(4); changes > 0; --changes) change(draft, chance);
  return bytes_of(draft, most);
}

Contents crossed_programs(Input one, Input other, std::size_t most, std::uint32_t seed) {
  if (most < kDraw) return {};
  Chance chance(seed);
  Draft draft = draft_of(one);
  const Draft source = draft_of(other);
  if (source.steps.empty()) return bytes_of(draft, most);
  const Run run = some_run(source, chance);
  if (!draft.steps.empty() && chance.one_in(2)) leave_out(draft, some_run(draft, chance));
  put_in(draft, copy_of(source, run), chance);
  return bytes_of(draft, most);
}

}  // namespace vpmm::fuzz
