// SPDX-License-Identifier: Apache-2.0
// emm: converts between C++ and the table of emm.h: a plugin from a class of memory managers, a
// manager from a plugin.
#ifndef VPMM_EMM_PLUGIN_HPP
#define VPMM_EMM_PLUGIN_HPP

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "vpmm/emm/manager.hpp"

namespace vpmm::emm {
inline namespace v1 {

// Makes a manager for one CUDA context.
using Factory = std::function<std::shared_ptr<MemoryManager>(const Creation&)>;

namespace detail {

// Text without a std type: the dynamic linker may share one instance among a process's libraries.
struct ErrorText {
  char text[1024];
  void set(const char* message) noexcept {
    std::strncpy(text, message, sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
  }
};
inline ErrorText& last_error() noexcept {
  static thread_local ErrorText last{};
  return last;
}

// Catches every exception: it becomes a status, and its text the thread's last error.
template <typename Work>
vpmm_status guarded(Work&& work) noexcept {
  try {
    work();
    return VPMM_OK;
  } catch (const vpmm::error& error) {
    last_error().set(error.what());
    return error.status();
  } catch (const std::bad_alloc& error) {
    const bool says_nothing = std::strcmp(error.what(), std::bad_alloc().what()) == 0;
    last_error().set(says_nothing ? "the process itself is out of memory" : error.what());
    return VPMM_ERROR_HOST_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    last_error().set(error.what());
    return VPMM_ERROR_DRIVER_FAILED;
  } catch (...) {
    last_error().set("the memory manager threw something that is no std::exception");
    return VPMM_ERROR_DRIVER_FAILED;
  }
}

// The slots of a table made from a class. They call the authors' methods directly: the user of the
// table keeps the list of live allocations. A vpmm_emm_manager is a std::shared_ptr<MemoryManager>
// here.
class Slots {
 public:
  static vpmm_status create(const vpmm_emm_plugin* plugin, const vpmm_emm_driver* driver,
                            int device, vpmm_emm_manager** manager) noexcept {
    return guarded([&] {
      const Factory& make = *static_cast<const Factory*>(plugin->argument);
      auto made =
          std::make_unique<std::shared_ptr<MemoryManager>>(make(Creation{Driver(driver), device}));
      if (*made == nullptr)
        throw_error(VPMM_ERROR_DRIVER_FAILED, "the factory made no memory manager");
      if (const int version = (*made)->interface_version(); version != VPMM_EMM_INTERFACE_VERSION)
        throw_error(VPMM_ERROR_UNSUPPORTED, "the memory manager implements version " +
                                                std::to_string(version) +
                                                " of the interface, this header has version " +
                                                std::to_string(VPMM_EMM_INTERFACE_VERSION));
      *manager = reinterpret_cast<vpmm_emm_manager*>(made.release());
    });
  }
  static void destroy(vpmm_emm_manager* manager) noexcept {
    delete reinterpret_cast<std::shared_ptr<MemoryManager>*>(manager);
  }
  static const char* last_error() noexcept { return detail::last_error().text; }
  static vpmm_status initialize(vpmm_emm_manager* manager) noexcept {
    return guarded([&] { get(manager).initialize(); });
  }
  static vpmm_status reset(vpmm_emm_manager* manager) noexcept {
    return guarded([&] { get(manager).reset(); });
  }
  static vpmm_status allocate(vpmm_emm_manager* manager, std::size_t bytes, Block* block) noexcept {
    return give(block, bytes, VPMM_EMM_DEVICE, [&] { return get(manager).do_allocate(bytes); });
  }
  static void release(vpmm_emm_manager* manager, const Block* block) noexcept {
    get(manager).do_release(*block);
  }
  static std::uint32_t capabilities(vpmm_emm_manager* manager) noexcept {
    return get(manager).capabilities().bits();
  }
  static vpmm_status get_memory_info(vpmm_emm_manager* manager, std::uint64_t* free,
                                     std::uint64_t* total) noexcept {
    return guarded([&] {
      const MemoryInfo info = get(manager).do_get_memory_info();
      *free = info.free;
      *total = info.total;
    });
  }
  static vpmm_status defer_cleanup_begin(vpmm_emm_manager* manager) noexcept {
    return guarded([&] {
      get(manager).initialize();
      get(manager).begin_deferring();
    });
  }
  static vpmm_status defer_cleanup_end(vpmm_emm_manager* manager) noexcept {
    get(manager).end_deferring();
    return VPMM_OK;
  }
  static vpmm_status allocate_host(vpmm_emm_manager* manager, std::size_t bytes, unsigned flags,
                                   Block* block) noexcept {
    const vpmm_emm_kind kind =
        (flags & VPMM_EMM_DEVICE_MAPPED) != 0 ? VPMM_EMM_MAPPED : VPMM_EMM_PINNED;
    return give(block, bytes, kind, [&] { return get(manager).do_allocate_host(bytes, flags); });
  }
  static vpmm_status register_host(vpmm_emm_manager* manager, void* ptr, std::size_t bytes,
                                   unsigned flags, Block* block) noexcept {
    const bool is_mapped = (flags & VPMM_EMM_DEVICE_MAPPED) != 0;
    const vpmm_emm_kind kind = is_mapped ? VPMM_EMM_REGISTERED_MAPPED : VPMM_EMM_REGISTERED;
    return give(block, bytes, kind,
                [&] { return get(manager).do_register_host(ptr, bytes, flags); });
  }
  static vpmm_status get_ipc_handle(vpmm_emm_manager* manager, const void* ptr, std::size_t bytes,
                                    vpmm_emm_ipc_handle* handle) noexcept {
    return guarded(
        [&] { *handle = get(manager).do_get_ipc_handle(const_cast<void*>(ptr), bytes); });
  }
  static vpmm_status allocate_managed(vpmm_emm_manager* manager, std::size_t bytes, unsigned flags,
                                      Block* block) noexcept {
    return give(block, bytes, VPMM_EMM_MANAGED,
                [&] { return get(manager).do_allocate_managed(bytes, flags); });
  }
  static vpmm_status allocate_on_stream(vpmm_emm_manager* manager, std::size_t bytes,
                                        vpmm_stream stream, Block* block) noexcept {
    return give(block, bytes, VPMM_EMM_DEVICE, [&] {
      return get(manager).do_allocate_on_stream(bytes, stream_ref::from_handle(stream));
    });
  }
  static vpmm_status release_on_stream(vpmm_emm_manager* manager, const Block* block,
                                       vpmm_stream stream) noexcept {
    return guarded(
        [&] { get(manager).do_release_on_stream(*block, stream_ref::from_handle(stream)); });
  }

 private:
  static MemoryManager& get(vpmm_emm_manager* manager) {
    return **reinterpret_cast<std::shared_ptr<MemoryManager>*>(manager);
  }
  template <typename Allocate>
  static vpmm_status give(Block* block, std::size_t bytes, vpmm_emm_kind kind,
                          Allocate&& allocate) noexcept {
    return guarded([&] { *block = MemoryManager::filled_in(allocate(), bytes, kind); });
  }
};

}  // namespace detail

// A plugin whose factory makes the managers. `name` and the factory must stay valid for the life of
// the process.
inline vpmm_emm_plugin make_plugin(const char* name, const Factory* factory) noexcept {
  using detail::Slots;
  vpmm_emm_plugin plugin{};
  plugin.size = sizeof(plugin);
  plugin.interface_version = VPMM_EMM_INTERFACE_VERSION;
  plugin.name = name;
  plugin.argument = const_cast<Factory*>(factory);
  plugin.create = Slots::create;
  plugin.destroy = Slots::destroy;
  plugin.last_error = Slots::last_error;
  plugin.initialize = Slots::initialize;
  plugin.reset = Slots::reset;
  plugin.allocate = Slots::allocate;
  plugin.release = Slots::release;
  plugin.capabilities = Slots::capabilities;
  plugin.get_memory_info = Slots::get_memory_info;
  plugin.defer_cleanup_begin = Slots::defer_cleanup_begin;
  plugin.defer_cleanup_end = Slots::defer_cleanup_end;
  plugin.allocate_host = Slots::allocate_host;
  plugin.register_host = Slots::register_host;
  plugin.get_ipc_handle = Slots::get_ipc_handle;
  plugin.allocate_managed = Slots::allocate_managed;
  plugin.allocate_on_stream = Slots::allocate_on_stream;
  plugin.release_on_stream = Slots::release_on_stream;
  return plugin;
}

// A plugin for a class whose constructor takes a Creation; valid for the life of the process. To
// have only one, keep it in a static variable, but not inside a template or an inline function: the
// dynamic linker may share that variable among all libraries, so that two classes of the same name
// would get the first one's plugin.
template <typename Manager>
const vpmm_emm_plugin* new_plugin(const char* name) {
  const auto make = [](const Creation& creation) { return std::make_shared<Manager>(creation); };
  return new vpmm_emm_plugin(make_plugin(name, new Factory(make)));
}

// Stands in for an error text that the plugin does not supply.
inline constexpr const char* kNoReason = "the memory manager gives no reason";

// A manager that forwards to a plugin.
class PluginMemoryManager : public MemoryManager {
 public:
  // Throws if the table is not usable.
  PluginMemoryManager(const Creation& creation, const vpmm_emm_plugin* plugin)
      : MemoryManager(creation), plugin_(plugin) {
    check(vpmm_emm_check_plugin(plugin_));
    done(plugin_->create(plugin_, creation.driver.table(), creation.device, &manager_));
  }
  ~PluginMemoryManager() override {
    if (!driver().process_is_ending()) plugin_->destroy(manager_);
  }
  const char* name() const noexcept { return plugin_->name; }

  int interface_version() const noexcept override {
    return static_cast<int>(plugin_->interface_version);
  }
  Capabilities capabilities() const noexcept override {
    const auto ask = slot(&vpmm_emm_plugin::capabilities);
    const std::uint32_t bits = ask == nullptr ? ~std::uint32_t{0} : ask(manager_);
    Capabilities found;
    found.host_memory =
        (bits & VPMM_EMM_HAS_HOST_MEMORY) != 0 && has(&vpmm_emm_plugin::allocate_host);
    found.managed_memory =
        (bits & VPMM_EMM_HAS_MANAGED_MEMORY) != 0 && has(&vpmm_emm_plugin::allocate_managed);
    found.stream_order =
        (bits & VPMM_EMM_HAS_STREAM_ORDER) != 0 && has(&vpmm_emm_plugin::allocate_on_stream);
    found.ipc = (bits & VPMM_EMM_HAS_IPC) != 0 && has(&vpmm_emm_plugin::get_ipc_handle);
    found.memory_info =
        (bits & VPMM_EMM_HAS_MEMORY_INFO) != 0 && has(&vpmm_emm_plugin::get_memory_info);
    return found;
  }

 private:
  // A slot beyond the end of an older plugin's table counts as null.
  template <typename Function>
  Function slot(Function vpmm_emm_plugin::*member) const noexcept {
    const auto* const begin = reinterpret_cast<const unsigned char*>(plugin_);
    const auto* const at = reinterpret_cast<const unsigned char*>(&(plugin_->*member));
    return static_cast<std::size_t>(at - begin) + sizeof(Function) <= plugin_->size
               ? plugin_->*member
               : nullptr;
  }
  template <typename Function>
  bool has(Function vpmm_emm_plugin::*member) const noexcept {
    return slot(member) != nullptr;
  }
  void done(vpmm_status status) const {
    if (status == VPMM_OK) return;
    const char* const reason = plugin_->last_error();
    throw_error(status, reason != nullptr && *reason != '\0' ? reason : kNoReason);
  }
  // The block that the plugin filled in; other fields are zero.
  template <typename Allocate>
  Block block_from(Allocate&& allocate) const {
    Block block{};
    done(allocate(&block));
    return block;
  }

  void do_initialize() override { done(plugin_->initialize(manager_)); }
  void do_reset() override { done(plugin_->reset(manager_)); }
  void do_defer_cleanup_begin() override {
    if (const auto begin = slot(&vpmm_emm_plugin::defer_cleanup_begin)) done(begin(manager_));
  }
  void do_defer_cleanup_end() noexcept override {
    if (const auto end = slot(&vpmm_emm_plugin::defer_cleanup_end)) (void)end(manager_);
  }
  Block do_allocate(std::size_t bytes) override {
    return block_from([&](Block* block) { return plugin_->allocate(manager_, bytes, block); });
  }
  void do_release(const Block& block) noexcept override { plugin_->release(manager_, &block); }
  Block do_allocate_on_stream(std::size_t bytes, stream_ref stream) override {
    return block_from([&](Block* block) {
      return plugin_->allocate_on_stream(manager_, bytes, stream.handle(), block);
    });
  }
  void do_release_on_stream(const Block& block, stream_ref stream) override {
    done(plugin_->release_on_stream(manager_, &block, stream.handle()));
  }
  Block do_allocate_managed(std::size_t bytes, unsigned flags) override {
    return block_from(
        [&](Block* block) { return plugin_->allocate_managed(manager_, bytes, flags, block); });
  }
  Block do_allocate_host(std::size_t bytes, unsigned flags) override {
    return block_from(
        [&](Block* block) { return plugin_->allocate_host(manager_, bytes, flags, block); });
  }
  Block do_register_host(void* ptr, std::size_t bytes, unsigned flags) override {
    return block_from(
        [&](Block* block) { return plugin_->register_host(manager_, ptr, bytes, flags, block); });
  }
  IpcHandle do_get_ipc_handle(void* ptr, std::size_t bytes) override {
    IpcHandle handle;
    done(plugin_->get_ipc_handle(manager_, ptr, bytes, &handle));
    return handle;
  }
  MemoryInfo do_get_memory_info() override {
    MemoryInfo info;
    done(plugin_->get_memory_info(manager_, &info.free, &info.total));
    return info;
  }

  const vpmm_emm_plugin* plugin_;
  vpmm_emm_manager* manager_ = nullptr;
};

}  // namespace v1
}  // namespace vpmm::emm

// Exports a class of memory managers as the plugin of the enclosing library. Use it once, at file
// scope: VPMM_EMM_EXPORT_PLUGIN(mylib::Manager, "mylib"); The constructor takes a
// vpmm::emm::Creation.
#define VPMM_EMM_EXPORT_PLUGIN(Manager, name)                                            \
  extern "C" VPMM_API const vpmm_emm_plugin* vpmm_emm_plugin_v1(void) {                  \
    static const vpmm_emm_plugin* const plugin = ::vpmm::emm::new_plugin<Manager>(name); \
    return plugin;                                                                       \
  }                                                                                      \
  static_assert(true, "so that a semicolon follows")

#endif
