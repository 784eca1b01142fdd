// python: keyword arguments as the settings of a pool.
#include "settings.hpp"

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "errors.hpp"

namespace vpmm::python {

namespace nb = nanobind;

namespace {

// A number and the word that stands for one of its values, as in the environment; None is "no limit".
struct Number {
  const char* name;
  std::uint64_t vpmm_config::*field;
  const char* word;
  std::uint64_t value_of_word;
};
constexpr std::uint64_t kNone = UINT64_MAX;
constexpr Number kNumbers[] = {
    {"page_size", &vpmm_config::page_size, "max", kNone},
    {"pages", &vpmm_config::pages, nullptr, 0},
    {"va_size", &vpmm_config::va_size, nullptr, 0},
    {"chunk_max", &vpmm_config::chunk_max, "page", 0},
    {"release_threshold", &vpmm_config::release_threshold, "none", kNone},
    {"max_mappings", &vpmm_config::max_mappings, nullptr, 0},
    {"capacity", &vpmm_config::capacity, "none", kNone},
};
struct Text {
  const char* name;
  const char* vpmm_config::*field;
};
constexpr Text kTexts[] = {
    {"small", &vpmm_config::small},   {"any_stream", &vpmm_config::any_stream}, {"log", &vpmm_config::log},
    {"driver", &vpmm_config::driver}, {"prefer", &vpmm_config::prefer},
};
struct Switch {
  const char* name;
  int vpmm_config::*field;
};
constexpr Switch kSwitches[] = {
    {"unnamed_free_on_allocating_stream", &vpmm_config::unnamed_free_on_allocating_stream},
    {"ipc_isolate", &vpmm_config::ipc_isolate},
};

// Raises UnicodeEncodeError for half a surrogate pair, which the environment can hold.
std::string text_of(nb::handle text) {
  Py_ssize_t size = 0;
  const char* const begin = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (begin == nullptr) throw nb::python_error();
  return {begin, static_cast<std::size_t>(size)};
}

std::uint64_t number_of(const Number& setting, nb::handle value) {
  const bool has_none = setting.word != nullptr && std::string_view(setting.word) == "none";
  if (value.is_none() && has_none) return kNone;
  if (nb::isinstance<nb::str>(value) && setting.word != nullptr && text_of(value) == setting.word)
    return setting.value_of_word;
  if (nb::isinstance<nb::int_>(value) && !nb::isinstance<nb::bool_>(value)) {
    const std::uint64_t number = PyLong_AsUnsignedLongLong(value.ptr());
    if (PyErr_Occurred() == nullptr) return number;
    PyErr_Clear();
  }
  std::string message = std::string(setting.name) + " must be a number that is not negative";
  if (setting.word != nullptr) message += std::string(", or \"") + setting.word + "\"";
  raise(VPMM_ERROR_BAD_CONFIGURATION, message + ", not " + nb::repr(value).c_str());
}

}  // namespace

Settings::Settings(const nb::kwargs& given) {
  config_.size = sizeof config_;
  call([&] { return vpmm_config_from_environment(&config_); });
  for (const auto [key, value] : given) {
    const auto name = text_of(key);
    bool is_known = false;
    for (const Number& setting : kNumbers) {
      if (name != setting.name) continue;
      config_.*setting.field = number_of(setting, value);
      is_known = true;
    }
    for (const Text& setting : kTexts) {
      if (name != setting.name) continue;
      if (!nb::isinstance<nb::str>(value))
        raise(VPMM_ERROR_BAD_CONFIGURATION, name + " must be a text, not " + nb::repr(value).c_str());
      config_.*setting.field = texts_.emplace_back(text_of(value)).c_str();
      is_known = true;
    }
    for (const Switch& setting : kSwitches) {
      if (name != setting.name) continue;
      config_.*setting.field = PyObject_IsTrue(value.ptr());
      if (config_.*setting.field < 0) throw nb::python_error();
      is_known = true;
    }
    if (!is_known) raise(VPMM_ERROR_BAD_CONFIGURATION, "there is no setting called " + name);
  }
}

}  // namespace vpmm::python
