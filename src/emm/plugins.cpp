// SPDX-License-Identifier: Apache-2.0
// emm: plugins: built in or from libraries, and the choice of a process.
#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "base/mutex.hpp"
#include "capi/call.hpp"
#include "observe/log.hpp"
#include "settings/config.hpp"
#include "vpmm/emm.hpp"

namespace vpmm::emm {
namespace {

constexpr const char* kVariable = "VPMM_MEMORY_MANAGER";
constexpr const char* kDefault = "vpmm";

const vpmm_emm_plugin* find_builtin(std::string_view name) {
  static const vpmm_emm_plugin* const all[] = {
      new_plugin<VpmmMemoryManager>(kDefault),
      new_plugin<StreamOrderedMemoryManager>("stream_ordered"),
      new_plugin<DefaultMemoryManager>("default")};
  for (const vpmm_emm_plugin* const plugin : all) {
    if (name == plugin->name) return plugin;
  }
  return nullptr;
}

// --- is it usable ---

Error bad_plugin(std::string message) { return {ErrorCode::bad_configuration, std::move(message)}; }

// Reads slots within the author's table size; those beyond count as null.
template <typename Function>
bool has(const vpmm_emm_plugin& plugin, Function vpmm_emm_plugin::*slot) {
  const auto* const at = reinterpret_cast<const unsigned char*>(&(plugin.*slot));
  const auto offset =
      static_cast<std::size_t>(at - reinterpret_cast<const unsigned char*>(&plugin));
  return offset + sizeof(Function) <= plugin.size && plugin.*slot != nullptr;
}

Result<void> check(const vpmm_emm_plugin& plugin) {
  // Checks the version first: of another version even the name's place is unknown.
  if (plugin.interface_version != VPMM_EMM_INTERFACE_VERSION)
    return bad_plugin(fmt::format(
        "the plugin implements version {} of the interface, this library has version {}",
        plugin.interface_version, VPMM_EMM_INTERFACE_VERSION));
  if (plugin.size < VPMM_EMM_PLUGIN_LEAST_SIZE)
    return bad_plugin(
        fmt::format("the plugin's table is {} bytes long, the shortest that there is has {}",
                    plugin.size, VPMM_EMM_PLUGIN_LEAST_SIZE));
  if (plugin.name == nullptr || *plugin.name == '\0') return bad_plugin("the plugin has no name");
  const std::pair<const char*, bool> needed[] = {
      {"create", has(plugin, &vpmm_emm_plugin::create)},
      {"destroy", has(plugin, &vpmm_emm_plugin::destroy)},
      {"last_error", has(plugin, &vpmm_emm_plugin::last_error)},
      {"initialize", has(plugin, &vpmm_emm_plugin::initialize)},
      {"reset", has(plugin, &vpmm_emm_plugin::reset)},
      {"allocate", has(plugin, &vpmm_emm_plugin::allocate)},
      {"release", has(plugin, &vpmm_emm_plugin::release)}};
  for (const auto& [slot, is_there] : needed) {
    if (!is_there) return bad_plugin(fmt::format("the plugin `{}` lacks `{}`", plugin.name, slot));
  }
  struct Pair {
    const char* first;
    bool has_first;
    const char* second;
    bool has_second;
  };
  const Pair pairs[] = {
      {"defer_cleanup_begin", has(plugin, &vpmm_emm_plugin::defer_cleanup_begin),
       "defer_cleanup_end", has(plugin, &vpmm_emm_plugin::defer_cleanup_end)},
      {"allocate_host", has(plugin, &vpmm_emm_plugin::allocate_host), "register_host",
       has(plugin, &vpmm_emm_plugin::register_host)},
      {"allocate_on_stream", has(plugin, &vpmm_emm_plugin::allocate_on_stream), "release_on_stream",
       has(plugin, &vpmm_emm_plugin::release_on_stream)},
  };
  for (const Pair& pair : pairs) {
    if (pair.has_first == pair.has_second) continue;
    return bad_plugin(fmt::format("the plugin `{}` has `{}` without `{}`: both or neither",
                                  plugin.name, pair.has_first ? pair.first : pair.second,
                                  pair.has_first ? pair.second : pair.first));
  }
  return {};
}

// --- libraries ---

// Loads for good: memory, threads and exit handlers of a library may outlive every user.
Result<const vpmm_emm_plugin*> load(const std::string& path) {
  const std::string text =
      path.find('/') == std::string::npos ? "./" + path : path;  // a file, no search
  void* const library = ::dlopen(text.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr)
    return Error{ErrorCode::bad_file,
                 fmt::format("the memory manager {} cannot be loaded: {}", path, ::dlerror())};
  using Entry = const vpmm_emm_plugin* (*)(void);
  const auto entry = reinterpret_cast<Entry>(::dlsym(library, VPMM_EMM_PLUGIN_SYMBOL));
  if (entry == nullptr)
    return bad_plugin(
        fmt::format("{} is no memory manager: it has no symbol {}", path, VPMM_EMM_PLUGIN_SYMBOL));
  const vpmm_emm_plugin* const plugin = entry();
  if (plugin == nullptr) return bad_plugin(fmt::format("{} gave no plugin", path));
  if (Result<void> usable = check(*plugin); !usable)
    return bad_plugin(fmt::format("{} cannot be used: {}", path, usable.error().message));
  return plugin;
}

// --- choice of the process ---

struct Registry {
  Mutex mutex;
  const vpmm_emm_plugin* set VPMM_GUARDED_BY(mutex) = nullptr;
  // Plugin and value of the variable: fixed from the first use by a context.
  const vpmm_emm_plugin* from_variable VPMM_GUARDED_BY(mutex) = nullptr;
  std::string variable VPMM_GUARDED_BY(mutex);
};

Registry& registry() {
  static auto* const one = new Registry;  // contexts may be made while statics are destroyed
  return *one;
}

Result<const vpmm_emm_plugin*> find(const std::string& name) {
  if (const vpmm_emm_plugin* const builtin = find_builtin(name)) return builtin;
  return load(name);
}

// Empty: the variable is unset.
std::string variable_in_force() {
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  return all.from_variable != nullptr ? all.variable : settings::memory_manager_from_environment();
}

// Tries to make a manager, never initialized, so without a CUDA call.
Result<void> try_out(const vpmm_emm_plugin& plugin) {
  const vpmm_emm_driver* driver = nullptr;
  vpmm_emm_manager* manager = nullptr;
  if (vpmm_emm_process_driver(&driver) != VPMM_OK)
    return Error{ErrorCode::host_out_of_memory, "no memory for the driver's table"};
  const vpmm_status made = plugin.create(&plugin, driver, 0, &manager);
  if (made == VPMM_OK) return plugin.destroy(manager), Result<void>();
  const char* const reason = plugin.last_error();
  return bad_plugin(fmt::format("the plugin `{}` makes no memory manager: {}", plugin.name,
                                reason == nullptr ? "it gives no reason" : reason));
}

Result<void> set(const vpmm_emm_plugin* plugin) {
  if (const std::string variable = variable_in_force(); !variable.empty()) {
    observe::log(observe::LogLevel::warning, "set_memory_manager does nothing: {}={} is set",
                 kVariable, variable);
    return {};
  }
  if (plugin != nullptr) {
    VPMM_TRY(check(*plugin));
    VPMM_TRY(try_out(*plugin));
  }
  Registry& all = registry();
  const MutexLock lock(all.mutex);
  all.set = plugin;
  return {};
}

Result<const vpmm_emm_plugin*> get() {
  Registry& all = registry();
  {
    const MutexLock lock(all.mutex);
    if (all.from_variable != nullptr) return all.from_variable;
  }
  const std::string variable = settings::memory_manager_from_environment();
  if (variable.empty()) {
    const MutexLock lock(all.mutex);
    return all.set != nullptr ? all.set : find_builtin(kDefault);
  }
  // Releases the lock: loading a library may run any code. Concurrent threads load the same one.
  Result<const vpmm_emm_plugin*> found = find(variable);
  if (!found) {
    found.error().message = fmt::format("{}={}: {}", kVariable, variable, found.error().message);
    return found;
  }
  const MutexLock lock(all.mutex);
  if (all.from_variable == nullptr) {
    all.from_variable = found.value();
    all.variable = variable;
  }
  return all.from_variable;
}

}  // namespace
}  // namespace vpmm::emm

using namespace vpmm;
using capi::gated;
using capi::guarded;
using capi::require;
using capi::WhenEnding;

vpmm_status vpmm_emm_builtin_plugin(const char* name, const vpmm_emm_plugin** plugin) {
  return guarded([&]() -> Result<void> {
    VPMM_TRY(require(name, "name"));
    VPMM_TRY(require(plugin, "plugin"));
    const vpmm_emm_plugin* const found = emm::find_builtin(name);
    if (found == nullptr)
      return Error{
          ErrorCode::invalid_argument,
          fmt::format("there is no memory manager `{}`: vpmm, stream_ordered or default", name)};
    *plugin = found;
    return {};
  });
}

vpmm_status vpmm_emm_load_plugin(const char* path, const vpmm_emm_plugin** plugin) {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(path, "path"));
    VPMM_TRY(require(plugin, "plugin"));
    VPMM_TRY_ASSIGN(*plugin, emm::load(path));
    return {};
  });
}

vpmm_status vpmm_emm_check_plugin(const vpmm_emm_plugin* plugin) {
  return guarded([&]() -> Result<void> {
    VPMM_TRY(require(plugin, "plugin"));
    return emm::check(*plugin);
  });
}

vpmm_status vpmm_emm_set_memory_manager(const vpmm_emm_plugin* plugin) {
  return gated(WhenEnding::fail, [&] { return emm::set(plugin); });
}

vpmm_status vpmm_emm_get_memory_manager(const vpmm_emm_plugin** plugin) {
  return gated(WhenEnding::fail, [&]() -> Result<void> {
    VPMM_TRY(require(plugin, "plugin"));
    VPMM_TRY_ASSIGN(*plugin, emm::get());
    return {};
  });
}
