// judge: programs as text.
#include "judge/program.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>

namespace vpmm::judge {
namespace {

constexpr std::array kVerbs = {
#define VPMM_VERB(name) #name,
#include "judge/verbs.def"
#undef VPMM_VERB
};

template <typename T>
struct Field {
  const char* name;
  std::uint64_t T::*value;
};

constexpr std::array<Field<Operation>, 10> kFields = {{{"id", &Operation::id},
                                                       {"pool", &Operation::pool},
                                                       {"stream", &Operation::stream},
                                                       {"other", &Operation::other},
                                                       {"arena", &Operation::arena},
                                                       {"bytes", &Operation::bytes},
                                                       {"alignment", &Operation::alignment},
                                                       {"count", &Operation::count},
                                                       {"ns", &Operation::ns},
                                                       {"flag", &Operation::flag}}};

constexpr std::array<Field<Setting>, 14> kKnobs = {
    {{"seed", &Setting::seed},
     {"pools", &Setting::pools},
     {"threads", &Setting::threads},
     {"streams", &Setting::streams},
     {"gpu_bytes", &Setting::gpu_bytes},
     {"schedule", &Setting::schedule},
     {"lag_ns", &Setting::lag_ns},
     {"has_vmm", &Setting::has_vmm},
     {"has_driver_pool", &Setting::has_driver_pool},
     {"has_context_events", &Setting::has_context_events},
     {"frees_when_short", &Setting::frees_when_short},
     {"frees_on_allocating", &Setting::frees_on_allocating},
     {"listens", &Setting::listens},
     {"crowds", &Setting::crowds}}};

// "name=value": true if it is one of the fields, and a number.
template <typename T, typename Fields>
bool read_field(const std::string& word, const Fields& fields, T& out) {
  const std::size_t sign = word.find('=');
  const auto field = std::find_if(fields.begin(), fields.end(), [&](const Field<T>& each) {
    return word.substr(0, sign) == each.name;
  });
  if (sign == std::string::npos || field == fields.end()) return false;
  const std::string value = word.substr(sign + 1);
  if (value == "none") return out.*(field->value) = kNoStream, true;
  if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos) return false;
  out.*(field->value) = std::stoull(value);
  return true;
}

bool read_line(const std::string& line, Program& program) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  if (word.rfind("VPMM_", 0) == 0) {
    const std::size_t sign = word.find('=');
    if (sign == std::string::npos) return false;
    program.setting.variables.emplace_back(word.substr(0, sign), word.substr(sign + 1));
    return true;
  }
  const bool is_setting = word == "setting";
  const auto verb = std::find(kVerbs.begin(), kVerbs.end(), word);
  if (!is_setting && verb == kVerbs.end()) return false;
  Operation operation{static_cast<Verb>(std::distance(kVerbs.begin(), verb))};
  while (words >> word)
    if (!(is_setting ? read_field(word, kKnobs, program.setting)
                     : read_field(word, kFields, operation)))
      return false;
  if (!is_setting) program.operations.push_back(operation);
  return true;
}

}  // namespace

std::string to_text(const Operation& operation) {
  std::string text = kVerbs[static_cast<std::size_t>(operation.verb)];
  for (const Field<Operation>& field : kFields) {
    const std::uint64_t value = operation.*field.value;
    if (value == kNoStream)
      text += fmt::format(" {}=none", field.name);
    else if (value != 0)
      text += fmt::format(" {}={}", field.name, value);
  }
  return text;
}

std::string to_text(const Program& program) {
  const Setting usual;
  std::string text = "setting";
  for (const Field<Setting>& field : kKnobs)
    if (program.setting.*field.value != usual.*field.value)
      text += fmt::format(" {}={}", field.name, program.setting.*field.value);
  text += '\n';
  for (const auto& [name, value] : program.setting.variables)
    text += fmt::format("{}={}\n", name, value);
  for (const Operation& operation : program.operations) text += to_text(operation) + '\n';
  return text;
}

std::optional<Program> read_program(const std::string& text, std::string& problem) {
  Program program;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(' ') == std::string::npos || line.front() == '#') continue;
    if (read_line(line, program)) continue;
    problem = "not understood: " + line;
    return std::nullopt;
  }
  return program;
}

}  // namespace vpmm::judge
