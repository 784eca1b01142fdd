// settings: the environment: which variables there are, what they hold, and those that are the
// process's own settings.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "base/result.hpp"

namespace vpmm::settings {

// Empty: the variable is not set, or empty, which counts as not set.
std::string_view value_of(const char* variable);
// bad_configuration: "VPMM_PAGES=x: must be ...".
Error bad_setting(std::string_view name, std::string_view value, std::string_view allowed);

struct SettingInForce {
  std::string name;  // the environment variable, or the field of the config struct where there is
                     // no variable
  std::string value;
  std::string allowed;
  std::string meaning;
  bool is_from_environment = false;
  std::string problem;  // what the environment holds is not allowed: the message; then `value` is
                        // the default
};

// VPMM_MAX_PENDING_DEALLOCS_COUNT and VPMM_MAX_PENDING_DEALLOCS_RATIO, with Numba's defaults.
struct PendingLimits {
  std::uint64_t count = 10;  // most frees that wait
  double ratio = 0.2;        // most bytes that wait, of the device's memory
};
Result<PendingLimits> pending_limits_from_environment();
// VPMM_IPC_DIR, VPMM_IPC_TIMEOUT and VPMM_IPC_GRACE.
struct IpcSettings {
  std::string folder;                 // of the sockets; empty: one of the user's own under /tmp
  std::uint64_t timeout_ms = 10'000;  // most that another process is waited for
  std::uint64_t grace_ms = 10'000;    // that a process has which is gone and cannot be watched
};
Result<IpcSettings> ipc_settings_from_environment();
// VPMM_MEMORY_MANAGER: the path of a library, or the name of a memory manager of ours; empty: not
// set.
std::string memory_manager_from_environment();
// How a recording is made.
struct RecordOptions {
  std::string stacks = "none";  // of allocations: "native", "python" or "both"
  std::uint64_t sample = 1;     // one allocation in so many
  Bytes limit = 0;              // of the file; 0: none
  std::uint64_t window_ns = 0;  // how far back the file must reach; 0: to the beginning
};

// VPMM_RECORD, VPMM_RECORD_STACKS, VPMM_RECORD_SAMPLE, VPMM_RECORD_LIMIT and VPMM_RECORD_WINDOW.
struct RecordSettings {
  std::string file;  // as it was given; empty: nothing is recorded
  RecordOptions options;
};
Result<RecordSettings> record_settings_from_environment();
// VPMM_STATS: whether each pool prints a summary when it ends.
Result<bool> wants_summary_from_environment();

// Of all variables that are not a pool's, whoever reads them.
Vector<SettingInForce> list_process_settings();

// A sentence for each variable of the environment that begins like ours and is none:
// "VPMM_PAGE_SZE is not a setting; did you mean VPMM_PAGE_SIZE?"
Vector<std::string> misspelt_variables();
// A sentence for each variable that says how to record where none says to what file.
Vector<std::string> idle_variables();
// Writes both to the log, once in the life of the process.
void warn_of_variables();

}  // namespace vpmm::settings
