// SPDX-License-Identifier: Apache-2.0
// hunt: delta debugging over operations, then the scene, then arguments.
#include "hunt/program/shrink.hpp"

#include <algorithm>
#include <array>
#include <concepts>
#include <utility>
#include <variant>
#include <vector>

#include "support/drop_pieces.hpp"

namespace vpmm::hunt {
namespace {

using property::Operation;

// Arguments of an operation that are numbers of something, and those that are sizes.
struct Arguments {
  std::vector<std::uint64_t*> numbers;
  std::vector<std::uint64_t*> sizes;
};

Arguments arguments_of(Operation& operation) {
  Arguments found;
  std::visit(
      [&found](auto& o) {
        const auto number = [&found](std::uint64_t& value) { found.numbers.push_back(&value); };
        const auto size = [&found](std::uint64_t& value) { found.sizes.push_back(&value); };
        if constexpr (requires {
                        { o.device } -> std::same_as<std::uint64_t&>;
                      })
          number(o.device);
        if constexpr (requires { o.peer; }) number(o.peer);
        if constexpr (requires { o.allocation; }) number(o.allocation);
        if constexpr (requires { o.stream; }) number(o.stream);
        if constexpr (requires { o.first; }) number(o.first);
        if constexpr (requires { o.second; }) number(o.second);
        if constexpr (requires { o.graph; }) number(o.graph);
        if constexpr (requires { o.arena; }) number(o.arena);
        if constexpr (requires { o.share; }) number(o.share);
        if constexpr (requires { o.handle; }) number(o.handle);
        if constexpr (requires { o.place; }) number(o.place);
        if constexpr (requires { o.offset; }) number(o.offset);
        if constexpr (requires { o.alignment; }) size(o.alignment);
        if constexpr (requires { o.count; }) size(o.count);
        if constexpr (requires { o.ns; }) size(o.ns);
        if constexpr (requires { o.duration_ns; }) size(o.duration_ns);
        if constexpr (requires {
                        { o.bytes } -> std::same_as<Bytes&>;
                      })
          size(o.bytes);
      },
      operation);
  return found;
}

class Shrinker {
 public:
  Shrinker(Program program, std::string kind, const Verdict& verdict, std::size_t most_runs)
      : program_(std::move(program)),
        kind_(std::move(kind)),
        verdict_(verdict),
        runs_left_(most_runs) {}

  Program run() {
    for (std::size_t before = ~std::size_t{0}; before != changes_ && runs_left_ > 0;) {
      before = changes_;
      drop_operations();
      simplify_scene();
      simplify_arguments();
    }
    return program_;
  }

 private:
  bool accepts(Program candidate) {
    if (runs_left_ == 0) return false;
    --runs_left_;
    if (kind_of(verdict_(candidate)) != kind_) return false;
    program_ = std::move(candidate);
    ++changes_;
    return true;
  }

  void drop_operations() {
    drop_pieces(program_.operations, [this](auto fewer) {
      Program candidate = program_;
      candidate.operations = std::move(fewer);
      accepts(std::move(candidate));
    });
  }

  template <typename T>
  void try_value(T& (*field)(property::Scene&), T value) {
    if (field(program_.scene) == value) return;
    Program simpler = program_;
    field(simpler.scene) = value;
    accepts(std::move(simpler));
  }

  void simplify_scene() {
    using property::Scene;
    const Scene usual;
    try_value<int>([](Scene& s) -> int& { return s.sim.device_count; }, 1);
    try_value<std::uint64_t>([](Scene& s) -> std::uint64_t& { return s.sim.lag_ns; }, 0);
    try_value<std::uint64_t>([](Scene& s) -> std::uint64_t& { return s.sim.seed; }, 1);
    try_value<bool>([](Scene& s) -> bool& { return s.frees_when_short; }, false);
    try_value<bool>([](Scene& s) -> bool& { return s.has_importer; }, false);
    try_value<bool>([](Scene& s) -> bool& { return s.sim.vmm_supported; }, true);
    try_value<bool>([](Scene& s) -> bool& { return s.sim.memory_pools_supported; }, true);
    try_value<bool>([](Scene& s) -> bool& { return s.sim.context_events_supported; }, true);
    try_value<Bytes>([](Scene& s) -> Bytes& { return s.sim.capacity; }, kGiB);
    const auto guard_every = [](Scene& s) -> std::uint64_t& { return s.config.checks.guard_every; };
    if (program_.scene.config.checks.guard_every != 0) try_value<std::uint64_t>(guard_every, 1);
    try_value<std::uint64_t>(guard_every, 0);
    Program plain = program_;
    plain.scene.config = usual.config;
    plain.scene.config.checks = program_.scene.config.checks;
    plain.scene.config.page_size = 2 * kMiB;
    plain.scene.config.va_size = 16 * kGiB;
    plain.scene.config.log = observe::LogLevel::quiet;
    if (plain.scene.config != program_.scene.config) accepts(std::move(plain));
  }

  void simplify_arguments() {
    constexpr std::array<std::uint64_t, 16> kNumbers = {0, 1, 2,  3,  4,  5,  6,  7,
                                                        8, 9, 10, 11, 12, 13, 14, 15};
    constexpr std::array<std::uint64_t, 5> kSizes = {0, 1, 1000, 2 * kMiB, 32 * kMiB};
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      open_nothing(i);
      const Arguments arguments = arguments_of(program_.operations[i]);
      for (std::size_t n = 0; n < arguments.numbers.size(); ++n)
        try_values(i, kNumbers, [n](const Arguments& of) { return of.numbers[n]; });
      for (std::size_t n = 0; n < arguments.sizes.size(); ++n)
        try_values(i, kSizes, [n](const Arguments& of) { return of.sizes[n]; });
    }
  }

  // A process is killed outside an opening, if that does.
  void open_nothing(std::size_t operation) {
    Program simpler = program_;
    auto* const kill = std::get_if<property::KillImporter>(&simpler.operations[operation]);
    if (kill == nullptr || !std::exchange(kill->is_opening, false)) return;
    accepts(std::move(simpler));
  }

  // The first of `values` with which the program still fails, below the present one.
  template <typename Values, typename Get>
  void try_values(std::size_t operation, const Values& values, Get&& get) {
    for (const std::uint64_t value : values) {
      if (*get(arguments_of(program_.operations[operation])) <= value) return;
      Program simpler = program_;
      *get(arguments_of(simpler.operations[operation])) = value;
      if (accepts(std::move(simpler))) return;
    }
  }

  Program program_;
  const std::string kind_;
  const Verdict& verdict_;
  std::size_t runs_left_;
  std::size_t changes_ = 0;
};

}  // namespace

std::string kind_of(const std::string& failure) { return failure.substr(0, failure.find(':')); }

Program shrunk(Program program, const std::string& failure, const Verdict& verdict,
               std::size_t most_runs) {
  return Shrinker(std::move(program), kind_of(failure), verdict, most_runs).run();
}

}  // namespace vpmm::hunt
