// SPDX-License-Identifier: Apache-2.0
// fuzz tests: changes of programs of the hunt keep their bounds, and programs stay programs.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "fuzz/program_mutator.hpp"
#include "property/dice.hpp"

namespace vpmm::fuzz::program_mutator_test {
namespace {

constexpr std::size_t kMost = 4096;

Contents numbers(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  Contents bytes(size);
  std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<std::uint8_t>(random()); });
  return bytes;
}

// Draws of each step, and those before them.
std::pair<Contents, std::vector<Contents>> parts_of(const Contents& bytes) {
  property::Dice dice(bytes);
  dice.program_within(kMostSteps);
  const auto at = [&](std::size_t i) {
    return bytes.begin() + static_cast<std::ptrdiff_t>(dice.borders()[i]);
  };
  std::vector<Contents> steps;
  for (std::size_t i = 1; i < dice.borders().size(); ++i) steps.emplace_back(at(i - 1), at(i));
  return {{bytes.begin(), at(0)}, steps};
}

void expect_within(const Contents& bytes, std::size_t most) {
  EXPECT_LE(bytes.size(), most);
  EXPECT_GE(bytes.size(), kDraw);
  EXPECT_EQ(bytes.size() % kDraw, 0U);
}

TEST(ProgramMutator, programs_are_whole_draws_within_the_limit) {
  for (const std::size_t size : {0U, 1U, 2U, 3U, 77U, 600U, 2000U, 9001U}) {
    const Contents program = numbers(size, 1);
    for (const std::size_t most : {std::size_t{2}, std::size_t{3}, std::size_t{250}, kMost}) {
      for (std::uint32_t seed = 0; seed < 60; ++seed) {
        expect_within(changed_program(program, most, seed), most);
        expect_within(crossed_programs(program, numbers(500, seed), most, seed), most);
      }
    }
    EXPECT_TRUE(changed_program(program, 1, 1).empty());
    EXPECT_TRUE(crossed_programs(program, program, 1, 1).empty());
  }
}

TEST(ProgramMutator, a_seed_makes_the_same_change_each_time_and_another_seed_another) {
  const Contents program = numbers(600, 2);
  const Contents other = numbers(600, 3);
  std::set<Contents> changed;
  std::set<Contents> crossed;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const Contents once = changed_program(program, kMost, seed);
    EXPECT_EQ(once, changed_program(program, kMost, seed));
    changed.insert(once);
    const Contents mixed = crossed_programs(program, other, kMost, seed);
    EXPECT_EQ(mixed, crossed_programs(program, other, kMost, seed));
    crossed.insert(mixed);
  }
  EXPECT_GT(changed.size(), 95U);
  EXPECT_GT(crossed.size(), 80U);
}

TEST(ProgramMutator, a_crossed_program_has_the_scene_of_one_and_whole_steps_of_both) {
  const Contents one = numbers(600, 4);
  const Contents other = numbers(600, 5);
  const auto [scene, steps] = parts_of(one);
  const std::vector<Contents> others = parts_of(other).second;
  ASSERT_GT(steps.size(), 10U);
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    Contents left = crossed_programs(one, other, kMost, seed);
    ASSERT_TRUE(std::equal(scene.begin(), scene.end(), left.begin()));
    left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(scene.size()));
    std::size_t from_other = 0;
    while (!left.empty()) {
      const auto begins = [&](const Contents& step) {
        return step.size() <= left.size() && std::equal(step.begin(), step.end(), left.begin());
      };
      auto step = std::find_if(steps.begin(), steps.end(), begins);
      if (step == steps.end()) {
        step = std::find_if(others.begin(), others.end(), begins);
        ASSERT_NE(step, others.end()) << "a part of a step";
        ++from_other;
      }
      left.erase(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(step->size()));
    }
    EXPECT_GT(from_other, 0U);
  }
}

TEST(ProgramMutator, most_changes_keep_most_steps) {
  const Contents program = numbers(600, 6);
  const std::vector<Contents> steps = parts_of(program).second;
  const std::set<Contents> known(steps.begin(), steps.end());
  int alike = 0;
  for (std::uint32_t seed = 0; seed < 100; ++seed) {
    const std::vector<Contents> after = parts_of(changed_program(program, kMost, seed)).second;
    const auto kept = static_cast<std::size_t>(std::count_if(
        after.begin(), after.end(), [&](const Contents& step) { return known.contains(step); }));
    alike += 2 * kept > after.size() ? 1 : 0;
  }
  EXPECT_GT(alike, 50);
}

}  // namespace
}  // namespace vpmm::fuzz::program_mutator_test
