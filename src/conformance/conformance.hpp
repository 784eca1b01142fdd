// conformance: checks that every memory manager must pass, whoever wrote it, over the public
// interface alone.
#pragma once

#include <string>
#include <vector>

#include "vpmm/emm.hpp"

namespace vpmm::conformance {

// What a check works on.
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
  // Throws what is wrong.
  void (*run)(const Subject& subject);
  // The check is skipped for managers that lack it; null: it is for all.
  bool emm::Capabilities::*needs = nullptr;
};

enum class Verdict { passed, failed, skipped };
const char* to_string(Verdict verdict);  // "passed" and so on

struct Finding {
  const char* check;
  Verdict verdict;
  std::string text;  // what was expected and what came, or why it was skipped; empty when it passed
};

// All checks, in the order in which they are best run: what others rely on comes first.
std::vector<Check> all_checks();

// Runs checks on managers of one plugin. Not thread-safe. A manager that throws or gives wrong
// memory is reported; one that crashes takes the process along.
class Suite {
 public:
  // Keeps the device's primary context while it lives. The plugin must be one that
  // vpmm_emm_check_plugin accepts. Throws vpmm::error when there is no such device or no driver.
  Suite(const vpmm_emm_plugin* plugin, int device);
  ~Suite();
  Suite(const Suite&) = delete;
  Suite& operator=(const Suite&) = delete;

  Finding run(const Check& check) const;

 private:
  Subject subject_;
};

}  // namespace vpmm::conformance
