// judge: delta debugging over operations, then over the setting, then over numbers.
#include "judge/shrink.hpp"

#include <algorithm>

#include "support/drop_pieces.hpp"

namespace vpmm::judge {
namespace {

class Shrinker {
 public:
  Shrinker(Program program, const Verdict& verdict)
      : program_(std::move(program)), verdict_(verdict), kind_(kind_of(verdict(program_))) {}

  Program run() {
    if (kind_.empty()) return program_;
    for (std::size_t before = ~std::size_t{0}; program_.operations.size() < before;) {
      before = program_.operations.size();
      drop_operations();
      simplify_setting();
      simplify_numbers();
    }
    return program_;
  }

 private:
  bool accepts(Program candidate) {
    if (kind_of(verdict_(candidate)) != kind_) return false;
    program_ = std::move(candidate);
    return true;
  }

  void drop_operations() {
    drop_pieces(program_.operations, [this](auto fewer) {
      Program candidate = program_;
      candidate.operations = std::move(fewer);
      accepts(std::move(candidate));
    });
  }

  void simplify_setting() {
    const Setting usual;
    for (std::uint64_t Setting::*knob :
         {&Setting::pools, &Setting::threads, &Setting::streams, &Setting::schedule,
          &Setting::lag_ns, &Setting::has_vmm, &Setting::has_driver_pool,
          &Setting::has_context_events, &Setting::frees_when_short, &Setting::frees_on_allocating,
          &Setting::listens, &Setting::crowds, &Setting::seed}) {
      Program simpler = program_;
      simpler.setting.*knob = usual.*knob;
      accepts(std::move(simpler));
    }
    for (std::size_t i = program_.setting.variables.size(); i-- > 0;) {
      Program simpler = program_;
      simpler.setting.variables.erase(simpler.setting.variables.begin() +
                                      static_cast<std::ptrdiff_t>(i));
      accepts(std::move(simpler));
    }
  }

  void simplify_numbers() {
    for (std::size_t i = 0; i < program_.operations.size(); ++i) {
      for (std::uint64_t Operation::*field :
           {&Operation::alignment, &Operation::flag, &Operation::arena, &Operation::pool,
            &Operation::ns, &Operation::other}) {
        if (program_.operations[i].*field == 0) continue;
        Program simpler = program_;
        simpler.operations[i].*field = 0;
        accepts(std::move(simpler));
      }
      for (const Bytes unit : {kGiB, 64 * kMiB, 2 * kMiB, 4 * kKiB}) {
        Program rounder = program_;
        Bytes& bytes = rounder.operations[i].bytes;
        if (bytes < unit || bytes % unit == 0) continue;
        bytes -= bytes % unit;
        if (accepts(std::move(rounder))) break;
      }
    }
  }

  Program program_;
  const Verdict& verdict_;
  const std::string kind_;
};

}  // namespace

std::string kind_of(const std::string& failure) { return failure.substr(0, failure.find(':')); }

Program shrunk(Program program, const Verdict& verdict) {
  return Shrinker(std::move(program), verdict).run();
}

}  // namespace vpmm::judge
