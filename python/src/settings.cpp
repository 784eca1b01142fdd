// SPDX-License-Identifier: Apache-2.0
// python: keyword arguments as the settings of a pool.
#include "settings.hpp"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <string_view>

#include "arguments.hpp"

namespace vpmm::python {

namespace nb = nanobind;

namespace {

constexpr std::uint64_t kNone = UINT64_MAX;
// A setting's keyword, its type for type checkers, and its meaning.
struct About {
  const char* name;
  const char* type;
  const char* meaning;
};
// A size, and the word for one of its values, as in the environment; None is "none".
struct Size {
  About about;
  std::uint64_t vpmm_config::*field;
  const char* word;
  std::uint64_t value_of_word;
};
constexpr Size kSizes[] = {
    {{"page_size", "int | str", "the unit of chunks and mappings; \"max\" switches the pool off"},
     &vpmm_config::page_size,
     "max",
     kNone},
    {{"va_size", "int | str", "address space of one reservation"},
     &vpmm_config::va_size,
     nullptr,
     0},
    {{"chunk_max", "int | str",
      R"(size of the largest chunk of physical memory; "page": one chunk per page)"},
     &vpmm_config::chunk_max,
     "page",
     0},
    {{"release_threshold", "int | str | None",
      "idle memory is released while more than this is mapped; None: it is kept"},
     &vpmm_config::release_threshold,
     "none",
     kNone},
    {{"capacity", "int | str | None",
      "most memory the pool may map, also as a share of the GPU's such as \"80%\"; None: what the "
      "GPU has"},
     &vpmm_config::capacity,
     "none",
     kNone},
};
struct Count {
  About about;
  std::uint64_t vpmm_config::*field;
};
constexpr Count kCounts[] = {
    {{"pages", "int", "pages mapped ahead at the first allocation"}, &vpmm_config::pages},
    {{"max_mappings", "int",
      "number of mappings above which the pool grows instead of moving memory"},
     &vpmm_config::max_mappings},
    {{"guard", "int",
      "guards one allocation in so many, as VPMM_GUARD=1/100 does for 100; 0: none"},
     &vpmm_config::guard},
};
struct Text {
  About about;
  const char* vpmm_config::*field;
};
constexpr Text kTexts[] = {
    {{"small", "typing.Literal['pool', 'stream_ordered']",
      "the allocator for requests below a page"},
     &vpmm_config::small},
    {{"any_stream", "typing.Literal['context', 'legacy', 'park']",
      "the work that must finish before memory freed without a stream is reused"},
     &vpmm_config::any_stream},
    {{"prefer", "typing.Literal['footprint', 'balanced', 'latency']",
      "how much memory the pool may spend to save driver calls"},
     &vpmm_config::prefer},
    {{"fill", "typing.Literal['none', 'new', 'freed', 'new,freed']",
      "memory that is filled with bytes 0xFF"},
     &vpmm_config::fill},
    {{"log", "typing.Literal['quiet', 'error', 'warning', 'info', 'debug']",
      "which messages are written"},
     &vpmm_config::log},
    {{"driver", "typing.Literal['cuda', 'sim', 'auto']", "the driver that the pool uses"},
     &vpmm_config::driver},
};
struct Switch {
  About about;
  int vpmm_config::*field;
};
constexpr Switch kSwitches[] = {
    {{"ipc_isolate", "bool",
      "every allocation has its own pages, so that sharing one exposes no other"},
     &vpmm_config::ipc_isolate},
    {{"unnamed_free_on_allocating_stream", "bool",
      "a free without a stream uses the stream of the allocation"},
     &vpmm_config::unnamed_free_on_allocating_stream},
};

template <typename Visit>
void for_each_setting(Visit&& visit) {
  for (const Size& setting : kSizes) visit(setting.about);
  for (const Count& setting : kCounts) visit(setting.about);
  for (const Text& setting : kTexts) visit(setting.about);
  for (const Switch& setting : kSwitches) visit(setting.about);
}

std::uint64_t size_of(const Size& setting, nb::handle value) {
  const bool has_none =
      setting.value_of_word == kNone && std::string_view(setting.about.type).ends_with("None");
  if (has_none && value.is_none()) return kNone;
  if (setting.word != nullptr && nb::isinstance<nb::str>(value) &&
      text_of(value, setting.about.name) == setting.word)
    return setting.value_of_word;
  if (setting.field == &vpmm_config::capacity)
    return capacity_of(value, setting.about.name, VPMM_ERROR_BAD_CONFIGURATION);
  return bytes_of(value, setting.about.name, VPMM_ERROR_BAD_CONFIGURATION);
}

[[noreturn]] void raise_unknown(const std::string& name) {
  nb::list names;
  for_each_setting([&](const About& about) { names.append(about.name); });
  const nb::object nearest =
      nb::module_::import_("difflib").attr("get_close_matches")(name.c_str(), names, 1);
  std::string message = "there is no setting called " + name;
  if (nb::len(nearest) != 0) message += "; is it " + std::string(nb::str(nearest[0]).c_str()) + "?";
  raise_type_error(message);
}

// The position of `word` in `text` as a whole word.
std::size_t find_word(const std::string& text, const std::string& word) {
  const auto goes_on = [&](std::size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == '_');
  };
  std::size_t at = text.find(word);
  while (at != std::string::npos && goes_on(at + word.size())) at = text.find(word, at + 1);
  return at;
}

}  // namespace

Settings::Settings(const nb::kwargs& given) {
  config_.size = sizeof config_;
  call([&] { return vpmm_config_from_environment(&config_); });
  for (const auto [key, value] : given) set(given_.emplace_back(text_of(key, "a keyword")), value);
}

void Settings::set(const std::string& name, nb::handle value) {
  for (const Size& setting : kSizes)
    if (name == setting.about.name)
      return static_cast<void>(config_.*setting.field = size_of(setting, value));
  for (const Count& setting : kCounts)
    if (name == setting.about.name)
      return static_cast<void>(config_.*setting.field = whole_number_of(
                                   value, setting.about.name, VPMM_ERROR_BAD_CONFIGURATION));
  for (const Text& setting : kTexts)
    if (name == setting.about.name)
      return static_cast<void>(config_.*setting.field =
                                   texts_.emplace_back(text_of(value, setting.about.name)).c_str());
  for (const Switch& setting : kSwitches)
    if (name == setting.about.name)
      return static_cast<void>(config_.*setting.field =
                                   switch_of(value, setting.about.name) ? 1 : 0);
  raise_unknown(name);
}

std::string Settings::in_keywords(std::string message) const {
  for (const std::string& name : given_) {
    std::string variable = "VPMM_";
    for (const char letter : name)
      variable += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    const std::size_t at = find_word(message, variable);
    if (at != std::string::npos) message.replace(at, variable.size(), name);
  }
  return message;
}

std::string Settings::parameters() {
  std::string text;
  for_each_setting([&](const About& about) {
    text += (text.empty() ? "" : ", ") + std::string(about.name) + ": " + about.type + " = ...";
  });
  return text;
}

std::string Settings::described() {
  std::string text;
  for_each_setting([&](const About& about) {
    text += "- ``" + std::string(about.name) + "``: " + about.meaning + "\n";
  });
  return text;
}

}  // namespace vpmm::python
