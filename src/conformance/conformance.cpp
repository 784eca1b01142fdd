// SPDX-License-Identifier: Apache-2.0
// conformance: runs one check and turns any exception into a verdict.
#include "conformance/conformance.hpp"

#include <array>
#include <exception>
#include <utility>

#include "conformance/trial.hpp"

namespace vpmm::conformance {
namespace {

const char* name_of(bool emm::Capabilities::*capability) {
  static constexpr std::array kNames{
      std::pair{&emm::Capabilities::host_memory, "host memory"},
      std::pair{&emm::Capabilities::managed_memory, "managed memory"},
      std::pair{&emm::Capabilities::stream_order, "memory in the order of a stream"},
      std::pair{&emm::Capabilities::ipc, "IPC handles"},
      std::pair{&emm::Capabilities::memory_info, "figures of free memory"},
  };
  for (const auto& [member, name] : kNames) {
    if (member == capability) return name;
  }
  return "?";
}

void run_where_possible(const Check& check, const Subject& subject) {
  if (check.needs != nullptr && !(subject.context().memory_manager().capabilities().*check.needs))
    throw Skipped{fmt::format("the manager does not offer {}", name_of(check.needs))};
  check.run(subject);
}

}  // namespace

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::passed: return "passed";
    case Verdict::failed: return "failed";
    case Verdict::skipped: return "skipped";
  }
  return "?";
}

std::vector<Check> all_checks() {
  std::vector<Check> all;
  for (const auto& list : {life_checks(), device_memory_checks(), cleanup_checks(),
                           host_memory_checks(), capability_checks()})
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

Suite::Suite(const vpmm_emm_plugin* plugin, int device)
    : subject_{plugin, emm::Driver::of_process(), device, nullptr} {
  subject_.primary = subject_.driver.device_primary_ctx_retain(device);
}

Suite::~Suite() {
  (void)subject_.driver.table()->device_primary_ctx_release(subject_.driver.table(),
                                                            subject_.device);
}

Finding Suite::run(const Check& check) const {
  try {
    run_where_possible(check, subject_);
    return {check.name, Verdict::passed, ""};
  } catch (const Failed& failed) {
    return {check.name, Verdict::failed, failed.text};
  } catch (const Skipped& skipped) {
    return {check.name, Verdict::skipped, skipped.text};
  } catch (const vpmm::error& error) {
    return {check.name, Verdict::failed,
            fmt::format("an error came that nothing calls for, with status {}: {}",
                        static_cast<int>(error.status()), error.what())};
  } catch (const std::exception& exception) {
    return {check.name, Verdict::failed,
            fmt::format("an exception came through: {}", exception.what())};
  } catch (...) {
    return {check.name, Verdict::failed,
            "something came through that is no exception of the standard library"};
  }
}

}  // namespace vpmm::conformance
