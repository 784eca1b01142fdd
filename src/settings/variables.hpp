// SPDX-License-Identifier: Apache-2.0
// settings: variables of the environment, and the settings of the process.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "base/result.hpp"

namespace vpmm::settings {

// Empty: unset. An empty variable counts as unset.
std::string_view value_of(const char* variable);
// bad_configuration: "VPMM_PAGES=x: must be ...", and if something was `meant`, "; did you mean
// it?".
Error bad_setting(std::string_view name, std::string_view value, std::string_view allowed,
                  std::string_view meant = {});

struct SettingInForce {
  std::string name;  // of the variable, or of a config field without one
  std::string value;
  std::string allowed;
  std::string meaning;
  bool is_from_environment = false;
  std::string problem;  // error of the environment's value; empty: none
};

// VPMM_MAX_PENDING_DEALLOCS_COUNT and VPMM_MAX_PENDING_DEALLOCS_RATIO, with Numba's defaults.
struct PendingLimits {
  std::uint64_t count = 10;  // most pending frees
  double ratio = 0.2;        // most pending bytes, as a share of the device's memory
};
Result<PendingLimits> pending_limits_from_environment();
// VPMM_IPC_DIR, VPMM_IPC_TIMEOUT and VPMM_IPC_GRACE.
struct IpcSettings {
  std::string folder;                 // of the sockets; empty: the user's folder under /tmp
  std::uint64_t timeout_ms = 10'000;  // longest wait for another process
  std::uint64_t grace_ms = 10'000;    // of memory for a process that is gone and cannot be watched
};
Result<IpcSettings> ipc_settings_from_environment();
// VPMM_MEMORY_MANAGER: the path of a library, or the name of an own memory manager; empty: unset.
std::string memory_manager_from_environment();
struct RecordOptions {
  std::string stacks = "none";  // of allocations: "native", "python" or "both"
  std::uint64_t sample = 1;     // records one allocation in `sample`
  Bytes limit = 0;              // of the file; 0: none
  std::uint64_t window_ns = 0;  // time that the file must cover, up to now; 0: all
};

// VPMM_RECORD, VPMM_RECORD_STACKS, VPMM_RECORD_SAMPLE, VPMM_RECORD_LIMIT and VPMM_RECORD_WINDOW.
struct RecordSettings {
  std::string file;  // as given; empty: no recording
  RecordOptions options;
};
Result<RecordSettings> record_settings_from_environment();
// VPMM_STATS: tells if each pool prints a summary at its end.
Result<bool> wants_summary_from_environment();

// VPMM_TOP: tells if `vpmm top` and `vpmm ps` may ask this process for figures.
Result<bool> answers_top_from_environment();

// Lists the variables that are no setting of a pool.
Vector<SettingInForce> list_process_settings();

// A sentence for each unknown variable of the environment that begins with VPMM_: "VPMM_PAGE_SZE is
// not a setting; did you mean VPMM_PAGE_SIZE?" And for each tag of VPMM_LIMITS that is nearly a
// library's.
Vector<std::string> misspelt_variables();
// A sentence for each option of recordings if no file is set.
Vector<std::string> idle_variables();
// Writes both to the log, once in a process.
void warn_of_variables();

}  // namespace vpmm::settings
