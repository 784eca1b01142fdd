// SPDX-License-Identifier: Apache-2.0
// conformance: checks for every memory manager, over the public interface alone.
#pragma once

#include <string>
#include <vector>

#include "vpmm/emm.hpp"

namespace vpmm::conformance {

struct Subject {
  const vpmm_emm_plugin* plugin;
  emm::Driver driver;
  int device;
  vpmm_cuda_context primary;  // the device's primary context

  // A new context with a manager of the plugin.
  emm::Context context() const { return emm::Context::create(device, plugin); }
};

struct Check {
  const char* name;  // a sentence, with _ for spaces
  // Throws the fault.
  void (*run)(const Subject& subject);
  // Skips managers that lack it; null: for all.
  bool emm::Capabilities::*needs = nullptr;
};

enum class Verdict { passed, failed, skipped };
const char* to_string(Verdict verdict);

struct Finding {
  const char* check;
  Verdict verdict;
  std::string text;  // expectation and outcome, or the reason of a skip; empty if passed
};

// All checks in the best order: those that others rely on come first.
std::vector<Check> all_checks();

// Runs checks on managers of one plugin. Not thread-safe. Reports a manager that throws or gives
// wrong memory; one that crashes takes the process along.
class Suite {
 public:
  // Keeps the device's primary context while it lives. Requires: vpmm_emm_check_plugin accepts the
  // plugin. Throws vpmm::error if the device or driver is missing.
  Suite(const vpmm_emm_plugin* plugin, int device);
  ~Suite();
  Suite(const Suite&) = delete;
  Suite& operator=(const Suite&) = delete;

  Finding run(const Check& check) const;

 private:
  Subject subject_;
};

}  // namespace vpmm::conformance
