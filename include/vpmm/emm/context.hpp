// SPDX-License-Identifier: Apache-2.0
// emm: the choice of a process's memory manager, and the contexts that forward requests to their
// managers.
#ifndef VPMM_EMM_CONTEXT_HPP
#define VPMM_EMM_CONTEXT_HPP

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "vpmm/emm/plugin.hpp"

namespace vpmm::emm {
inline namespace v1 {

// --- the registry ---

// Sets the memory manager for contexts created from now on; existing contexts keep theirs. Call it
// once, before the first context: one program, one memory manager. Each context calls the factory,
// which is kept for the life of the process. If VPMM_MEMORY_MANAGER is set, this warns and does
// nothing. Throws if the factory's managers implement another version of the interface; to find
// out, it makes one manager that is never initialized.
inline void set_memory_manager(Factory factory,
                               std::string name = "a memory manager of the program") {
  if (!factory) throw_error(VPMM_ERROR_INVALID_ARGUMENT, "the factory of memory managers is empty");
  // Stays for good: earlier contexts still use their factories. The list keeps all reachable.
  struct Kept {
    Factory factory;
    std::string name;
    vpmm_emm_plugin plugin{};
    Kept* before = nullptr;
  };
  static std::atomic<Kept*> last{nullptr};
  auto kept = std::make_unique<Kept>();
  kept->factory = std::move(factory);
  kept->name = std::move(name);
  kept->plugin = make_plugin(kept->name.c_str(), &kept->factory);
  check(vpmm_emm_set_memory_manager(&kept->plugin));
  Kept* const made = kept.release();
  made->before = last.load();
  while (!last.compare_exchange_weak(made->before, made)) continue;
}
template <typename Manager>
void set_memory_manager(std::string name = "a memory manager of the program") {
  set_memory_manager([](const Creation& creation) { return std::make_shared<Manager>(creation); },
                     std::move(name));
}
// Sets a plugin by its table, which must stay valid for the life of the process.
inline void set_memory_manager(const vpmm_emm_plugin* plugin) {
  check(vpmm_emm_set_memory_manager(plugin));
}

// "vpmm", "stream_ordered" or "default".
inline const vpmm_emm_plugin* builtin_plugin(const std::string& name) {
  const vpmm_emm_plugin* plugin = nullptr;
  check(vpmm_emm_builtin_plugin(name.c_str(), &plugin));
  return plugin;
}
// Loads a library for the life of the process.
inline const vpmm_emm_plugin* load_plugin(const std::string& path) {
  const vpmm_emm_plugin* plugin = nullptr;
  check(vpmm_emm_load_plugin(path.c_str(), &plugin));
  return plugin;
}
// The plugin for a context created now.
inline const vpmm_emm_plugin* get_memory_manager() {
  const vpmm_emm_plugin* plugin = nullptr;
  check(vpmm_emm_get_memory_manager(&plugin));
  return plugin;
}

// A CUDA context and its memory manager, which is chosen when this object is made and does not
// change. It forwards requests for memory; it does not handle streams, events or modules. Movable.
// Thread-safe, except for moves, close() and destruction. Each call leaves the caller's current
// CUDA context unchanged.
class Context {
 public:
  // The primary context of a device, with the process's memory manager or another. The context is
  // retained until close(), and longer while a value or a guard keeps the manager alive.
  static Context create(int device = 0, const vpmm_emm_plugin* plugin = nullptr) {
    const Driver driver = Driver::of_process();
    const vpmm_cuda_context context = driver.device_primary_ctx_retain(device);
    // While the process exits, the driver refuses, and the context ends with the process.
    std::shared_ptr<void> retained(context, [driver, device](void*) {
      (void)driver.table()->device_primary_ctx_release(driver.table(), device);
    });
    return Context(driver, context, device, plugin, std::move(retained));
  }
  // Another owner's CUDA context, which must outlive this object or its close().
  static Context wrap(vpmm_cuda_context context, const vpmm_emm_plugin* plugin = nullptr) {
    if (context == nullptr)
      throw_error(VPMM_ERROR_INVALID_ARGUMENT, "the CUDA context to wrap is null");
    const Driver driver = Driver::of_process();
    const CurrentContext current(driver, context);
    return Context(driver, context, driver.ctx_get_device(), plugin, nullptr);
  }
  Context(Context&& other) noexcept
      : driver_(other.driver_),
        context_(std::exchange(other.context_, nullptr)),
        device_(other.device_),
        manager_(std::move(other.manager_)) {}
  Context& operator=(Context&& other) noexcept {
    std::swap(driver_, other.driver_);
    std::swap(context_, other.context_);
    std::swap(device_, other.device_);
    std::swap(manager_, other.manager_);
    return *this;
  }
  // As close(), but cannot report errors.
  ~Context() {
    if (manager_ == nullptr || driver_.process_is_ending()) return;
    try {
      close();
    } catch (...) {
      // The driver reclaims the memory with the context.
    }
  }

  vpmm_cuda_context cuda_context() const { return require(), context_; }
  int device() const noexcept { return device_; }
  MemoryManager& memory_manager() const { return *require(); }
  std::shared_ptr<MemoryManager> shared_memory_manager() const { return require(); }

  // Initializes the manager; the first request does so too.
  void initialize() const {
    if (require()->cuda_context() != nullptr) return;
    const CurrentContext current(driver_, cuda_context());
    require()->initialize();
  }
  MemoryPointer memalloc(std::size_t bytes) const { return ready().memalloc(bytes); }
  MemoryPointer memalloc(std::size_t bytes, stream_ref stream) const {
    return ready().memalloc(bytes, stream);
  }
  ManagedMemory allocate_managed(std::size_t bytes,
                                 ManagedAttach attach = ManagedAttach::global) const {
    return ready().allocate_managed(bytes, attach);
  }
  PinnedMemory allocate_pinned(std::size_t bytes, HostOptions options = {}) const {
    return ready().allocate_pinned(bytes, options);
  }
  MappedMemory allocate_mapped(std::size_t bytes, HostOptions options = {}) const {
    return ready().allocate_mapped(bytes, options);
  }
  PinnedMemory pin(std::shared_ptr<const void> owner, HostSpan span,
                   HostOptions options = {}) const {
    return ready().pin(std::move(owner), span, options);
  }
  MappedMemory pin_mapped(std::shared_ptr<const void> owner, HostSpan span,
                          HostOptions options = {}) const {
    return ready().pin_mapped(std::move(owner), span, options);
  }
  IpcHandle get_ipc_handle(const MemoryPointer& memory) const {
    return ready().get_ipc_handle(memory);
  }
  MemoryInfo get_memory_info() const { return ready().get_memory_info(); }
  DeferCleanup defer_cleanup() const { return ready().defer_cleanup(); }

  // Releases all memory that came through the manager; values that refer to it must not be used any
  // more.
  void reset() const { require()->reset(); }
  // Waits for all work in the context.
  void synchronize() const {
    const CurrentContext current(driver_, cuda_context());
    driver_.ctx_synchronize();
  }
  // Resets, then releases the CUDA context. Every later call fails, except close(), which does
  // nothing.
  void close() {
    if (manager_ == nullptr) return;
    const std::shared_ptr<MemoryManager> manager = std::move(manager_);
    manager->reset();
  }

 private:
  // The manager keeps `retained` until its destructor has returned, because the destructor may
  // still free memory.
  Context(const Driver& driver, vpmm_cuda_context context, int device,
          const vpmm_emm_plugin* plugin, std::shared_ptr<void> retained)
      : driver_(driver), context_(context), device_(device) {
    if (plugin == nullptr) plugin = emm::get_memory_manager();
    auto made = std::make_unique<PluginMemoryManager>(Creation{driver, device}, plugin);
    manager_ = std::shared_ptr<MemoryManager>(
        made.release(), [kept = std::move(retained)](MemoryManager* manager) { delete manager; });
  }
  const std::shared_ptr<MemoryManager>& require() const {
    if (manager_ == nullptr) throw_error(VPMM_ERROR_INVALID_ARGUMENT, "this context is closed");
    return manager_;
  }
  MemoryManager& ready() const {
    initialize();
    return *manager_;
  }

  Driver driver_;
  vpmm_cuda_context context_;
  int device_;
  std::shared_ptr<MemoryManager> manager_;
};

}  // namespace v1
}  // namespace vpmm::emm

#endif
