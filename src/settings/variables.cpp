// SPDX-License-Identifier: Apache-2.0
// settings: the table of the process's variables, and the search for misspelt ones.
#include "settings/variables.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "base/message.hpp"
#include "base/quantity.hpp"
#include "observe/log.hpp"
#include "settings/config.hpp"
#include "settings/portion.hpp"

namespace vpmm::settings {
namespace {

constexpr std::uint64_t kLongestMs = 3'600'000;
constexpr std::uint64_t kLongestSeconds = 3'600'000;
constexpr std::size_t kLongestFolder = 65;  // ipc: the system's limit minus a socket's name

std::optional<double> parse_ratio(std::string_view text) {
  double ratio = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), ratio);
  if (problem != std::errc{} || end != text.data() + text.size() || !(ratio >= 0 && ratio <= 1))
    return std::nullopt;
  return ratio;
}

std::optional<Portion> parse_percent(std::string_view digits) {
  const std::optional<std::uint64_t> percent = parse_count(digits);
  if (!percent || *percent < 1 || *percent > 100) return std::nullopt;
  return Portion{0, static_cast<std::uint32_t>(*percent)};
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") + 1 - begin);
}

Result<NamedLimit> parse_limit(std::string_view text) {
  const std::size_t sign = text.rfind('=');
  const std::string_view tag = without_blanks(text.substr(0, sign));
  if (sign == std::string_view::npos || tag.empty())
    return Error{ErrorCode::bad_configuration, message_of("'{}' is not NAME=LIMIT", text)};
  VPMM_TRY_ASSIGN(const Portion limit, parse_portion(without_blanks(text.substr(sign + 1))));
  return NamedLimit{std::string(tag), limit};
}

Result<Vector<NamedLimit>> parse_limits(std::string_view text) {
  Vector<NamedLimit> limits;
  if (text == "none" || text.empty()) return limits;
  for (;;) {
    const std::size_t comma = text.find(',');
    VPMM_TRY_ASSIGN(NamedLimit limit, parse_limit(text.substr(0, comma)));
    const bool is_named = std::any_of(limits.begin(), limits.end(), [&](const NamedLimit& each) {
      return each.tag == limit.tag;
    });
    if (is_named)
      return Error{ErrorCode::bad_configuration, message_of("{} has two limits", limit.tag)};
    limits.push_back(std::move(limit));
    if (comma == std::string_view::npos) return limits;
    text.remove_prefix(comma + 1);
  }
}

std::string fault_of_limits(std::string_view text) { return parse_limits(text).error().message; }

bool is_count_in(std::string_view text, std::uint64_t least, std::uint64_t most) {
  const std::optional<std::uint64_t> count = parse_count(text);
  return count && *count >= least && *count <= most;
}

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool is_blank(char letter) { return letter == ' ' || letter == '\t'; }

// Tells if all words of a list with commas are known. Ignores blanks and case, like the Python
// part.
bool are_all_of(std::string_view text, std::initializer_list<std::string_view> words) {
  std::string word;
  const auto is_known = [&] { return word.empty() || is_one_of(std::exchange(word, {}), words); };
  for (const char letter : text) {
    if (letter == ',' && !is_known()) return false;
    if (letter != ',' && !is_blank(letter))
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return is_known();
}

bool is_anything(std::string_view /*text*/) { return true; }
bool is_switch(std::string_view text) { return is_one_of(text, {"0", "1"}); }
// Ignores case and blanks around it, like the Python part.
bool is_answer(std::string_view text) {
  return are_all_of(text, {"1", "true", "yes", "on", "0", "false", "no", "off"}) &&
         text.find(',') == std::string_view::npos;
}
bool is_answer_or_require(std::string_view text) {
  return is_answer(text) ||
         (are_all_of(text, {"require"}) && text.find(',') == std::string_view::npos);
}
bool is_number(std::string_view text) { return parse_count(text).has_value(); }

struct ProcessVariable {
  const char* name;
  const char* fallback;  // as the user would write it
  const char* allowed;   // reads well after "must be"
  const char* meaning;
  bool (*is_allowed)(std::string_view text);
  // Which part of a text that is not allowed is wrong; null: not said.
  std::string (*fault_of)(std::string_view text) = nullptr;
};

constexpr ProcessVariable kStats{"VPMM_STATS", "0", "0 or 1",
                                 "1: each pool prints a summary to standard error when it ends",
                                 is_switch};
constexpr ProcessVariable kTop{
    "VPMM_TOP", "1", "0 or 1",
    "0: `vpmm top` and `vpmm ps` have no figures of this process, unless it is recorded",
    is_switch};
constexpr ProcessVariable kIpcFolder{
    "VPMM_IPC_DIR", "/tmp/vpmm-UID", "an absolute path of at most 65 characters",
    "folder of the sockets through which processes share memory and tell figures",
    [](std::string_view text) { return text.front() == '/' && text.size() <= kLongestFolder; }};
constexpr ProcessVariable kIpcTimeout{
    "VPMM_IPC_TIMEOUT", "10000", "a number of milliseconds from 1 to 3600000",
    "longest wait for one answer of another process, in milliseconds",
    [](std::string_view text) { return is_count_in(text, 1, kLongestMs); }};
constexpr ProcessVariable kIpcGrace{
    "VPMM_IPC_GRACE", "10000", "a number of milliseconds from 0 to 3600000",
    "milliseconds that memory stays open for a process that is gone and cannot be watched",
    [](std::string_view text) { return is_count_in(text, 0, kLongestMs); }};
constexpr ProcessVariable kMemoryManager{
    "VPMM_MEMORY_MANAGER", "vpmm",
    "\"vpmm\", \"stream_ordered\", \"default\" or the path of a library",
    "memory manager of programs that use the interface for memory managers", is_anything};
constexpr ProcessVariable kPendingCount{"VPMM_MAX_PENDING_DEALLOCS_COUNT", "10",
                                        "a number, 0 or more",
                                        "most pending frees of a memory manager", is_number};
constexpr ProcessVariable kPendingRatio{
    "VPMM_MAX_PENDING_DEALLOCS_RATIO", "0.2", "a number from 0 to 1",
    "most pending bytes of a memory manager, as a share of the device's memory",
    [](std::string_view text) { return parse_ratio(text).has_value(); }};
constexpr ProcessVariable kRecord{
    "VPMM_RECORD", "none", "the path of a file",
    "the file that each pool records to; %p is the process number, %d the device", is_anything};
constexpr ProcessVariable kRecordStacks{
    "VPMM_RECORD_STACKS", "none", "\"none\", \"native\", \"python\" or \"both\"",
    "which call stacks are recorded with each allocation", [](std::string_view text) {
      return is_one_of(text, {"none", "native", "python", "both"});
    }};
constexpr ProcessVariable kRecordLimit{
    "VPMM_RECORD_LIMIT", "none", "a size such as 1GiB, or \"none\"",
    "most bytes of the file; beyond it the older half is dropped",
    [](std::string_view text) { return text == "none" || parse_bytes(text).ok(); }};
constexpr ProcessVariable kRecordWindow{
    "VPMM_RECORD_WINDOW", "none", "a number of seconds from 1 to 3600000, or \"none\"",
    "length of the most recent time that the file keeps",
    [](std::string_view text) { return text == "none" || is_count_in(text, 1, kLongestSeconds); }};
constexpr ProcessVariable kRecordSample{
    "VPMM_RECORD_SAMPLE", "1", "a number, 1 or more", "records one allocation in so many",
    [](std::string_view text) { return is_count_in(text, 1, UINT64_MAX); }};

constexpr ProcessVariable kLimits{
    "VPMM_LIMITS",
    "none",
    "limits such as cupy=8GiB,rmm=25%, or \"none\"",
    "the most memory of each named tag, as a size or as a share of the capacity",
    [](std::string_view text) { return parse_limits(text).ok(); },
    fault_of_limits};
constexpr ProcessVariable kTagLibraries{
    "VPMM_TAG_LIBRARIES", "0", "0 or 1",
    "1: memory has the name of its library as its tag, such as cupy, unless it has another tag",
    is_switch};

// All variables of the process: error texts, `vpmm info` and the search for misspelt ones derive
// from this list.
constexpr ProcessVariable kVariables[] = {
    kStats,
    kLimits,
    kTagLibraries,
    kRecord,
    kRecordStacks,
    kRecordLimit,
    kRecordWindow,
    kRecordSample,
    kTop,
    kIpcFolder,
    kIpcTimeout,
    kIpcGrace,
    kMemoryManager,
    kPendingCount,
    kPendingRatio,
    {"VPMM_TORCH", "0", "1, true, yes, on or require; 0, false, no or off",
     "Python: PyTorch takes its GPU memory from the pools as soon as it is imported",
     is_answer_or_require},
    {"VPMM_TORCH_MEMORY_SAVER", "0", "1, true, yes or on; 0, false, no or off",
     "Python: an object of VPMM takes the place of the package torch_memory_saver when PyTorch is "
     "imported",
     is_answer},
    {"VPMM_VLLM", "0", "1, true, yes or on; 0, false, no or off",
     "Python: vLLM's sleep mode takes its memory from tags of the pools", is_answer},
    {"VPMM_CUPY", "0", "1, true, yes, on or require; 0, false, no or off",
     "Python: CuPy takes its GPU memory from the pools as soon as it is imported",
     is_answer_or_require},
    {"VPMM_RMM", "0", "1, true, yes, on or require; 0, false, no or off",
     "Python: RMM takes its GPU memory from the pools as soon as it is imported",
     is_answer_or_require},
    {"VPMM_USE", "none",
     "none, or names of libraries, separated by commas: torch, cupy, rmm, numba",
     "Python: these libraries take their GPU memory from the pools",
     [](std::string_view text) {
       return text == "none" || are_all_of(text, {"torch", "cupy", "rmm", "numba"});
     }},
    {"VPMM_NUMBA_KERNEL_ARGUMENTS", "on", "\"on\" or \"off\"",
     "Python: whether Numba's plugin passes arrays to kernels in its own, faster way",
     [](std::string_view text) {
       return is_one_of(text, {"on", "off"});
     }},
    {"VPMM_CACHE_DIR", "~/.cache/vpmm", "the path of a folder",
     "Python: folder of libraries that are compiled at their first use", is_anything},
    {"VPMM_PAGES_PID", "none", "left alone",
     "set by a process that mapped pages ahead, for its children", is_anything},
};

// Variables of the repository's tests and tools: begins of their names behind "VPMM_".
constexpr std::string_view kOfTests[] = {
    "BENCH_",   "BUILD_FOLDER", "BUSY_FACTOR", "CLI",      "CUDA_INCLUDE", "GOLDEN",
    "HERE",     "HOST_FAULTS",  "PACKAGE_",    "PROGRAMS", "REQUIRE_GPU",  "SEED",
    "SIM_GPU_", "SOAK_",        "STRESS_",     "TEST_",    "THERE",        "TORCH_PYTHON"};

constexpr std::string_view kPrefix = "VPMM_";

// bad_configuration: the value is not allowed.
Result<std::string_view> allowed_value(const ProcessVariable& variable) {
  const std::string_view text = value_of(variable.name);
  if (text.empty() || variable.is_allowed(text)) return text;
  std::string meant = size_meant_by(text);
  if (!meant.empty() && !variable.is_allowed(meant)) meant.clear();
  Error error = bad_setting(variable.name, text, variable.allowed, meant);
  if (variable.fault_of == nullptr) return error;
  return Error{error.code, message_of("{} ({})", error.message, variable.fault_of(text))};
}

// Least number of letters to insert, remove, replace or swap with a neighbour.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> least(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) {
    for (std::size_t j = 0; j <= b.size(); ++j) {
      std::size_t& here = least[i][j];
      here = i + j;
      if (i == 0 || j == 0) continue;
      here = std::min({least[i - 1][j] + 1, least[i][j - 1] + 1,
                       least[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) here = std::min(here, least[i - 2][j - 2] + 1);
    }
  }
  return least[a.size()][b.size()];
}

Vector<std::string> known_variables() {
  Vector<std::string> names;
  for (const SettingInForce& setting : list_settings(Config{})) names.push_back(setting.name);
  for (const ProcessVariable& variable : kVariables) names.emplace_back(variable.name);
  return names;
}

// Finds the most similar name that begins with `prefix`, too. A third of the other letters may
// differ, at least one. Empty: none.
std::string most_like(std::string_view name, const Vector<std::string>& known,
                      std::string_view prefix) {
  std::string best;
  std::size_t least = std::max<std::size_t>(1, (name.size() - prefix.size()) / 3) + 1;
  for (const std::string& candidate : known) {
    const std::size_t letters = distance(name, candidate);
    if (letters >= least) continue;
    least = letters;
    best = candidate;
  }
  return best;
}

// Sentences about tags of VPMM_LIMITS. Tags of programs are allowed there, too.
void add_misspelt_libraries(Vector<std::string>& sentences) {
  static const Vector<std::string> libraries{"torch", "cupy", "rmm", "numba"};
  const auto limits = tag_limits_from_environment();
  if (!limits) return;
  for (const NamedLimit& limit : limits.value()) {
    std::string name = limit.tag;
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
    const std::string meant = most_like(name, libraries, "");
    if (meant.empty() || meant == limit.tag) continue;
    sentences.push_back(message_of("{} limits the tag {}, which is no library's; did you mean {}?",
                                   kLimits.name, limit.tag, meant));
  }
}

bool is_of_tests(std::string_view name) {
  name.remove_prefix(kPrefix.size());
  return std::any_of(std::begin(kOfTests), std::end(kOfTests),
                     [&](std::string_view start) { return name.starts_with(start); });
}

}  // namespace

// A program that runs with more rights than its user has (setuid, file capabilities) gets nothing:
// its environment is the user's, and a variable may name a file to write or a library to load.
std::string_view value_of(const char* variable) {
  const char* const text = secure_getenv(variable);
  return text == nullptr ? std::string_view() : std::string_view(text);
}

Error bad_setting(std::string_view name, std::string_view value, std::string_view allowed,
                  std::string_view meant) {
  std::string message = message_of("{}={}: must be {}", name, value, allowed);
  if (!meant.empty()) message += message_of("; did you mean {}?", meant);
  return {ErrorCode::bad_configuration, std::move(message)};
}

Result<PendingLimits> pending_limits_from_environment() {
  PendingLimits limits;
  VPMM_TRY_ASSIGN(const std::string_view count, allowed_value(kPendingCount));
  VPMM_TRY_ASSIGN(const std::string_view ratio, allowed_value(kPendingRatio));
  limits.count = parse_count(count).value_or(limits.count);
  limits.ratio = parse_ratio(ratio).value_or(limits.ratio);
  return limits;
}

// The folder is checked by its user.
Result<IpcSettings> ipc_settings_from_environment() {
  IpcSettings settings;
  settings.folder = value_of(kIpcFolder.name);
  VPMM_TRY_ASSIGN(const std::string_view timeout, allowed_value(kIpcTimeout));
  VPMM_TRY_ASSIGN(const std::string_view grace, allowed_value(kIpcGrace));
  settings.timeout_ms = parse_count(timeout).value_or(settings.timeout_ms);
  settings.grace_ms = parse_count(grace).value_or(settings.grace_ms);
  return settings;
}

std::string memory_manager_from_environment() { return std::string(value_of(kMemoryManager.name)); }

Result<RecordSettings> record_settings_from_environment() {
  RecordSettings settings;
  settings.file = value_of(kRecord.name);
  if (settings.file == kRecord.fallback) settings.file.clear();
  if (settings.file.empty()) return settings;
  RecordOptions& options = settings.options;
  VPMM_TRY_ASSIGN(const std::string_view stacks, allowed_value(kRecordStacks));
  VPMM_TRY_ASSIGN(const std::string_view sample, allowed_value(kRecordSample));
  VPMM_TRY_ASSIGN(const std::string_view limit, allowed_value(kRecordLimit));
  VPMM_TRY_ASSIGN(const std::string_view window, allowed_value(kRecordWindow));
  if (!stacks.empty()) options.stacks = stacks;
  options.sample = parse_count(sample).value_or(options.sample);
  if (!limit.empty() && limit != "none") {
    VPMM_TRY_ASSIGN(options.limit, parse_bytes(limit));
  }
  options.window_ns = parse_count(window).value_or(0) * 1'000'000'000;
  return settings;
}

Result<bool> wants_summary_from_environment() {
  VPMM_TRY_ASSIGN(const std::string_view text, allowed_value(kStats));
  return text == "1";
}

Result<bool> answers_top_from_environment() {
  VPMM_TRY_ASSIGN(const std::string_view text, allowed_value(kTop));
  return text != "0";
}

Result<Portion> parse_portion(std::string_view text) {
  if (text.ends_with('%')) {
    if (const std::optional<Portion> share = parse_percent(text.substr(0, text.size() - 1)))
      return *share;
    return Error{ErrorCode::bad_configuration, message_of("{} is no share: 1% to 100% are", text)};
  }
  VPMM_TRY_ASSIGN(const Bytes bytes, parse_bytes(text));
  return Portion{bytes, 0};
}

Result<Vector<NamedLimit>> tag_limits_from_environment() {
  VPMM_TRY_ASSIGN(const std::string_view text, allowed_value(kLimits));
  return parse_limits(text);
}

Result<bool> is_library_tagged(std::string_view library) {
  VPMM_TRY_ASSIGN(const std::string_view all, allowed_value(kTagLibraries));
  VPMM_TRY_ASSIGN(const auto limits, tag_limits_from_environment());
  return all == "1" || std::any_of(limits.begin(), limits.end(),
                                   [&](const NamedLimit& each) { return each.tag == library; });
}

Vector<SettingInForce> list_process_settings() {
  Vector<SettingInForce> list;
  for (const ProcessVariable& variable : kVariables) {
    const Result<std::string_view> text = allowed_value(variable);
    const bool is_set = text && !text.value().empty();
    list.push_back({variable.name, std::string(is_set ? text.value() : variable.fallback),
                    variable.allowed, variable.meaning, is_set,
                    text ? std::string() : text.error().message});
  }
  return list;
}

Vector<std::string> misspelt_variables() {
  Vector<std::string> sentences;
  const Vector<std::string> known = known_variables();
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with(kPrefix) || name.size() + 1 >= text.size() || is_of_tests(name)) continue;
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::string meant = most_like(name, known, kPrefix);
    sentences.push_back(
        meant.empty()
            ? message_of("{} is not a setting; `vpmm info` lists all that there are", name)
            : message_of("{} is not a setting; did you mean {}?", name, meant));
  }
  add_misspelt_libraries(sentences);
  return sentences;
}

Vector<std::string> idle_variables() {
  const std::string_view file = value_of(kRecord.name);
  if (!file.empty() && file != kRecord.fallback) return {};
  Vector<std::string> sentences;
  for (const ProcessVariable* how :
       {&kRecordStacks, &kRecordSample, &kRecordLimit, &kRecordWindow}) {
    const std::string_view text = value_of(how->name);
    if (!text.empty() && text != how->fallback)
      sentences.push_back(
          message_of("{} has no effect without {}, {}", how->name, kRecord.name, kRecord.allowed));
  }
  return sentences;
}

void warn_of_variables() {
  static std::atomic<bool> has_warned{false};
  if (has_warned.exchange(true)) return;
  for (const auto& sentences : {misspelt_variables(), idle_variables()})
    for (const std::string& sentence : sentences)
      observe::log(observe::LogLevel::warning, "{}", sentence);
}

}  // namespace vpmm::settings
