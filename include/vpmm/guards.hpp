// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: states and callbacks of a pool that last for a scope.
// vpmm.hpp includes it.
#ifndef VPMM_GUARDS_HPP
#define VPMM_GUARDS_HPP

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "vpmm/enums.hpp"
#include "vpmm/pool.hpp"
#include "vpmm/result.hpp"
#include "vpmm/vpmm.h"

namespace vpmm {

// The tag with this name; a new one if there is none.
inline std::uint32_t tag_with_name(const std::string& name) {
  std::uint32_t tag = 0;
  check(vpmm_tag_with_name(name.c_str(), &tag));
  return tag;
}

// Gives requests of a scope a tag, of all threads or of this one.
class [[nodiscard]] tag_guard {
 public:
  tag_guard(pool_ref pool, std::uint32_t tag, tag_scope scope = tag_scope::process)
      : pool_(pool), tag_(tag), scope_(scope) {
    check(vpmm_tag_enter(pool_.handle(), tag_, static_cast<vpmm_tag_scope>(scope_)));
  }
  // Fails only if it was left before.
  ~tag_guard() { (void)vpmm_tag_leave(pool_.handle(), tag_, static_cast<vpmm_tag_scope>(scope_)); }
  tag_guard(const tag_guard&) = delete;
  tag_guard& operator=(const tag_guard&) = delete;

 private:
  pool_ref pool_;
  std::uint32_t tag_;
  tag_scope scope_;
};

// Announces, for a scope, captures on streams that are never passed to the pool.
class [[nodiscard]] capture_guard {
 public:
  explicit capture_guard(pool_ref pool) : pool_(pool) { check(vpmm_capture_begin(pool_.handle())); }
  // Fails only without a begin; without a begin, the constructor threw.
  ~capture_guard() { (void)vpmm_capture_end(pool_.handle()); }
  capture_guard(const capture_guard&) = delete;
  capture_guard& operator=(const capture_guard&) = delete;

 private:
  pool_ref pool_;
};

// Defers, for a scope, the slow work that the pool does on its own account: unmapping and releasing
// memory, and waiting on the host.
class [[nodiscard]] defer_cleanup_guard {
 public:
  explicit defer_cleanup_guard(pool_ref pool) : pool_(pool) {
    check(vpmm_defer_cleanup_begin(pool_.handle()));
  }
  // Fails only without a begin; without a begin, the constructor threw.
  ~defer_cleanup_guard() { (void)vpmm_defer_cleanup_end(pool_.handle()); }
  defer_cleanup_guard(const defer_cleanup_guard&) = delete;
  defer_cleanup_guard& operator=(const defer_cleanup_guard&) = delete;

 private:
  pool_ref pool_;
};

// Keeps a callback registered with a pool for a scope, and owns the function. Movable. Its end
// waits until no other thread runs the callback: do not end it under a lock that the callback
// takes. Keeps a memory_pool that it was made from.
class [[nodiscard]] callback_guard {
 public:
  callback_guard(callback_guard&& other) noexcept { swap(other); }
  callback_guard& operator=(callback_guard&& other) noexcept {
    callback_guard(std::move(other)).swap(*this);
    return *this;
  }
  // Fails only for an unknown number.
  ~callback_guard() {
    if (remove_ != nullptr) (void)remove_(pool_.handle(), id_);
  }
  void swap(callback_guard& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(function_, other.function_);
    std::swap(remove_, other.remove_);
    std::swap(id_, other.id_);
  }

  friend callback_guard on_out_of_memory(shared_pool pool,
                                         std::function<bool(std::uint64_t)> function);
  friend callback_guard on_event(shared_pool pool, std::uint32_t kinds,
                                 std::function<void(const vpmm_event&)> function);
  friend callback_guard on_suspend(shared_pool pool, std::uint32_t tag,
                                   std::function<void()> before_unmap,
                                   std::function<void()> after_map);

 private:
  using remover = vpmm_status (*)(vpmm_pool*, std::uint64_t);
  callback_guard(shared_pool pool, std::shared_ptr<void> function)
      : pool_(std::move(pool)), function_(std::move(function)) {}
  // Runs part of a callback. An exception ends the call that runs the callback with its status and
  // text: the library may have another C++ runtime.
  template <typename Callback>
  static int failing(Callback&& callback) {
    const auto fails = [](vpmm_status status, const char* text) {
      (void)vpmm_callback_fail(status, text);
      return 0;
    };
    try {
      return callback();
    } catch (const error& thrown) {
      return fails(thrown.status(), thrown.what());
    } catch (const std::bad_alloc&) {
      return fails(VPMM_ERROR_HOST_OUT_OF_MEMORY, "the process itself is out of memory");
    } catch (const std::exception& thrown) {
      return fails(VPMM_ERROR_DRIVER_FAILED, thrown.what());
    } catch (...) {
      return fails(VPMM_ERROR_DRIVER_FAILED, "an exception of unknown type was thrown");
    }
  }
  void registered(remover remove, std::uint64_t id) noexcept {
    remove_ = remove;
    id_ = id;
  }

  shared_pool pool_{pool_ref(nullptr)};
  std::shared_ptr<void> function_;
  remover remove_ = nullptr;  // null: not registered
  std::uint64_t id_ = 0;
};

// Calls `function(bytes)` when an allocation of `bytes` bytes would fail, after the callbacks added
// before, on the thread of the request and without any lock. It may free memory of the pool, call
// any function and end its guard. It must not end the pool: who allocates owns the pool for the
// call, since the guard may be the last other owner. It returns true if it freed memory: the pool
// then tries again, at most 10000 times. An exception ends the allocation and becomes its error: a
// vpmm::error with its status, another with VPMM_ERROR_DRIVER_FAILED and its text.
[[nodiscard]] inline callback_guard on_out_of_memory(shared_pool pool,
                                                     std::function<bool(std::uint64_t)> function) {
  struct shared : std::enable_shared_from_this<shared> {
    std::function<bool(std::uint64_t)> call;
  };
  const auto owned = std::make_shared<shared>();
  owned->call = std::move(function);
  callback_guard guard(std::move(pool), owned);
  const auto call = [](void* argument, int, std::uint64_t bytes) -> int {
    const std::shared_ptr<shared> kept = static_cast<shared*>(argument)->shared_from_this();
    return callback_guard::failing([&] { return kept->call(bytes) ? 1 : 0; });
  };
  const std::uint64_t id = guard.pool_.add_out_of_memory_callback(call, owned.get());
  guard.registered(&vpmm_remove_out_of_memory_callback, id);
  return guard;
}

// Calls `function` for each event whose bit (1u << kind) is set in `kinds`, on the thread that
// causes the event, under the pool's lock: it must be short, call no function of this library and
// not end its guard. Exceptions are dropped.
[[nodiscard]] inline callback_guard on_event(shared_pool pool, std::uint32_t kinds,
                                             std::function<void(const vpmm_event&)> function) {
  using owned_function = std::function<void(const vpmm_event&)>;
  const auto owned = std::make_shared<owned_function>(std::move(function));
  callback_guard guard(std::move(pool), owned);
  const auto call = [](void* argument, const vpmm_event* event) {
    try {
      (*static_cast<owned_function*>(argument))(*event);
    } catch (...) {  // NOLINT(bugprone-empty-catch): documented as dropped
    }
  };
  const std::uint64_t id = guard.pool_.add_event_callback(kinds, call, owned.get());
  guard.registered(&vpmm_remove_event_callback, id);
  return guard;
}

// Calls `before_unmap()` before the first memory of `tag` is suspended, in the order in which hooks
// were added, and `after_map()` in the reverse order when all of it is back, or when the suspend
// failed and left none of it suspended. Either may be empty. They run on the thread that suspends
// or resumes, without any lock, and may call any function but those that suspend or resume, and end
// their guard. An exception of `before_unmap` refuses the suspend and becomes its error; one of
// `after_map` becomes the error of the call, and the memory is back all the same. The errors are as
// on_out_of_memory's.
[[nodiscard]] inline callback_guard on_suspend(shared_pool pool, std::uint32_t tag,
                                               std::function<void()> before_unmap,
                                               std::function<void()> after_map = {}) {
  struct hooks : std::enable_shared_from_this<hooks> {
    std::function<void()> before_unmap;
    std::function<void()> after_map;
  };
  const auto owned = std::make_shared<hooks>();
  owned->before_unmap = std::move(before_unmap);
  owned->after_map = std::move(after_map);
  callback_guard guard(std::move(pool), owned);
  const auto before = [](void* argument, int, std::uint32_t) -> int {
    const std::shared_ptr<hooks> kept = static_cast<hooks*>(argument)->shared_from_this();
    return callback_guard::failing([&] { return kept->before_unmap(), 0; });
  };
  const auto after = [](void* argument, int, std::uint32_t) -> int {
    const std::shared_ptr<hooks> kept = static_cast<hooks*>(argument)->shared_from_this();
    return callback_guard::failing([&] { return kept->after_map(), 0; });
  };
  const std::uint64_t id = guard.pool_.add_suspend_hooks(
      tag, owned->before_unmap ? vpmm_suspend_hook(before) : nullptr,
      owned->after_map ? vpmm_suspend_hook(after) : nullptr, owned.get());
  guard.registered(&vpmm_remove_suspend_hooks, id);
  return guard;
}

}  // namespace vpmm

#endif
