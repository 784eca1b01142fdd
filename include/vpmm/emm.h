/* SPDX-License-Identifier: Apache-2.0 */
/* emm: the plugin interface for external memory managers, as a C table that crosses library
 * boundaries.
 *
 * This is NBEP 7, which Numba defines, for C and C++ programs: a program requests all its GPU
 * memory from a memory manager, and the manager can be exchanged. A manager comes as a
 * vpmm_emm_plugin, a table of functions. No virtual function, standard library type or exception
 * crosses the boundary, so different compilers may build plugin and program. The C++ interface is
 * in vpmm/emm.hpp; it makes a table from a class and a class from a table.
 *
 * Rules for all slots of a plugin, unless a slot states otherwise:
 * - Slots are thread-safe. Sizes are bytes. Output parameters are written on success only; a
 * failure changes nothing.
 * - Requests are never of 0 bytes: the caller answers those with a null pointer.
 * - A slot returns VPMM_OK or another vpmm_status, which last_error() then explains. It throws and
 * prints nothing.
 * - The manager's CUDA context, in which it was initialized, is current. In release, reset and
 * destroy any context may be current, or none; these slots leave it unchanged.
 * - Libraries are never unloaded: functions and strings stay valid for the life of the process.
 * - No slot is called while the process exits or in a forked child.
 */
#ifndef VPMM_EMM_H
#define VPMM_EMM_H

#include "vpmm/vpmm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* NBEP 7's interface_version. A plugin with another version is refused. */
#define VPMM_EMM_INTERFACE_VERSION 1
/* The symbol that a plugin's library exports: const vpmm_emm_plugin* vpmm_emm_plugin_v1(void). */
#define VPMM_EMM_PLUGIN_SYMBOL "vpmm_emm_plugin_v1"

typedef void* vpmm_cuda_context;                  /* a CUcontext */
typedef struct vpmm_emm_manager vpmm_emm_manager; /* opaque: a plugin's own */

typedef enum vpmm_emm_kind {
  VPMM_EMM_DEVICE = 0,           /* device memory */
  VPMM_EMM_MANAGED = 1,          /* shared by host and device, moved by the driver */
  VPMM_EMM_PINNED = 2,           /* page-locked host memory */
  VPMM_EMM_MAPPED = 3,           /* page-locked host memory, mapped for the device */
  VPMM_EMM_REGISTERED = 4,       /* the user's host memory, page-locked */
  VPMM_EMM_REGISTERED_MAPPED = 5 /* the same, mapped for the device */
} vpmm_emm_kind;

/* Options of host memory; the numbers are CUDA's. */
enum {
  VPMM_EMM_PORTABLE = 1,      /* page-locked for all contexts, not only the current one */
  VPMM_EMM_DEVICE_MAPPED = 2, /* mapped for the device */
  VPMM_EMM_WRITE_COMBINED =
      4 /* fast for the host to write, slow to read; not for registered memory */
};
/* The initial access to managed memory; CUDA's numbers. */
enum { VPMM_EMM_ATTACH_GLOBAL = 1, VPMM_EMM_ATTACH_HOST = 2 };

/* One piece of memory. The manager fills it in; its owner passes it to `release` unchanged, once.
 */
typedef struct vpmm_emm_block {
  void* pointer;        /* host memory: its host address; other memory: its device address */
  void* device_pointer; /* its address on the device; null: not mapped there */
  size_t bytes;         /* bytes requested */
  void* cookie;         /* the manager's own: distinguishes successive uses of an address */
  uint32_t kind;        /* vpmm_emm_kind */
  uint32_t reserved;    /* 0 */
} vpmm_emm_block;

/* Names memory to another process: vpmm_ipc_handle. */
typedef vpmm_ipc_handle vpmm_emm_ipc_handle;
enum { VPMM_EMM_IPC_LEGACY = VPMM_IPC_LEGACY, VPMM_EMM_IPC_POOL = VPMM_IPC_POOL };

/* Capabilities of a manager beyond device memory. */
enum {
  VPMM_EMM_HAS_HOST_MEMORY = 1,
  VPMM_EMM_HAS_MANAGED_MEMORY = 2,
  VPMM_EMM_HAS_STREAM_ORDER = 4,
  VPMM_EMM_HAS_IPC = 8,
  VPMM_EMM_HAS_MEMORY_INFO = 16
};

/* --- the driver, for managers ---
 * The CUDA calls that a manager needs, under CUDA's names. A plugin needs to link no CUDA library,
 * and it also runs on the simulator. The first argument of each slot is the table itself. As in
 * CUDA, the calls act on the current context of the calling thread. They return
 * VPMM_ERROR_OUT_OF_MEMORY when device memory is exhausted, and VPMM_ERROR_PROCESS_ENDING while the
 * process exits and in a forked child. No slot is null. Later versions append slots: see `size`. */
typedef struct vpmm_emm_driver vpmm_emm_driver;
struct vpmm_emm_driver {
  size_t size; /* of the table in this library's version */
  void* self;
  /* The calling thread's last failure of a slot of this table; valid until its next call of one. */
  const char* (*last_error)(const vpmm_emm_driver*);
  /* 1: the process is exiting, or this is a forked child; the system reclaims memory. No lock, no
   * driver call. */
  int (*process_is_ending)(const vpmm_emm_driver*);
  /* VPMM_MAX_PENDING_DEALLOCS_COUNT and VPMM_MAX_PENDING_DEALLOCS_RATIO, read from the environment
   * at each call. */
  vpmm_status (*max_pending_deallocs)(const vpmm_emm_driver*, uint64_t* count, double* ratio);

  /* --- contexts --- */
  vpmm_status (*ctx_get_current)(const vpmm_emm_driver*,
                                 vpmm_cuda_context* context); /* null: no context is current */
  vpmm_status (*ctx_set_current)(const vpmm_emm_driver*, vpmm_cuda_context context);
  vpmm_status (*ctx_get_device)(const vpmm_emm_driver*, int* device);
  vpmm_status (*ctx_synchronize)(const vpmm_emm_driver*);
  vpmm_status (*device_primary_ctx_retain)(const vpmm_emm_driver*, int device,
                                           vpmm_cuda_context* context);
  vpmm_status (*device_primary_ctx_release)(const vpmm_emm_driver*, int device);
  vpmm_status (*device_get_attribute)(const vpmm_emm_driver*, int attribute, int device,
                                      int* value); /* CUDA's */
  vpmm_status (*device_get_uuid)(const vpmm_emm_driver*, int device, unsigned char uuid[16]);

  /* --- memory --- */
  vpmm_status (*mem_get_info)(const vpmm_emm_driver*, uint64_t* free_bytes, uint64_t* total_bytes);
  vpmm_status (*mem_alloc)(const vpmm_emm_driver*, size_t bytes, void** ptr);
  vpmm_status (*mem_alloc_managed)(const vpmm_emm_driver*, size_t bytes, unsigned flags,
                                   void** ptr);
  vpmm_status (*mem_free)(const vpmm_emm_driver*, void* ptr);
  vpmm_status (*mem_host_alloc)(const vpmm_emm_driver*, size_t bytes, unsigned flags, void** ptr);
  vpmm_status (*mem_free_host)(const vpmm_emm_driver*, void* ptr);
  vpmm_status (*mem_host_register)(const vpmm_emm_driver*, void* ptr, size_t bytes, unsigned flags);
  vpmm_status (*mem_host_unregister)(const vpmm_emm_driver*, void* ptr);
  vpmm_status (*mem_host_get_device_pointer)(const vpmm_emm_driver*, void* ptr,
                                             void** device_pointer);
  /* The allocation or mapping that contains a device address. */
  vpmm_status (*mem_get_address_range)(const vpmm_emm_driver*, const void* ptr, void** begin,
                                       size_t* bytes);
  vpmm_status (*memcpy_host_to_device)(const vpmm_emm_driver*, void* to, const void* from,
                                       size_t bytes);
  vpmm_status (*memcpy_device_to_host)(const vpmm_emm_driver*, void* to, const void* from,
                                       size_t bytes);

  /* --- legacy IPC: for memory of mem_alloc only --- */
  vpmm_status (*ipc_get_mem_handle)(const vpmm_emm_driver*, const void* ptr,
                                    unsigned char token[64]);
  vpmm_status (*ipc_open_mem_handle)(const vpmm_emm_driver*, const unsigned char token[64],
                                     void** ptr);
  vpmm_status (*ipc_close_mem_handle)(const vpmm_emm_driver*, void* ptr);
};

/* --- a plugin --- */
typedef struct vpmm_emm_plugin vpmm_emm_plugin;
struct vpmm_emm_plugin {
  size_t size; /* sizeof the struct as the plugin was compiled; slots beyond it are null */
  uint32_t interface_version; /* VPMM_EMM_INTERFACE_VERSION */
  uint32_t reserved;          /* 0 */
  const char* name;           /* for messages: "arena" */
  void* argument;             /* the plugin's own; `create` reads it here */

  /* --- never null --- */
  /* Creates a manager for one CUDA context on `device`, before any other slot; makes no CUDA call.
   * Called once per context, and when the plugin is set as the memory manager, for a manager that
   * is destroyed at once. */
  vpmm_status (*create)(const vpmm_emm_plugin* plugin, const vpmm_emm_driver* driver, int device,
                        vpmm_emm_manager** manager);
  /* The last call for this manager; not thread-safe. Every block has been released, or need not be.
   */
  void (*destroy)(vpmm_emm_manager* manager);
  /* The calling thread's last failure of a slot of this table, valid until its next call; "" if
   * there was none. */
  const char* (*last_error)(void);
  /* Called before the first allocation. May be called again; then it changes nothing. */
  vpmm_status (*initialize)(vpmm_emm_manager* manager);
  /* Restores the state after `initialize`. The caller has released every block. May precede
   * `initialize`. */
  vpmm_status (*reset)(vpmm_emm_manager* manager);
  /* Device memory for immediate use on any stream. At least 256-byte aligned. */
  vpmm_status (*allocate)(vpmm_emm_manager* manager, size_t bytes, vpmm_emm_block* block);
  /* Called exactly once for each block of any kind, on any thread. Work queued on any stream may
   * still use device memory; do not reuse the memory before that work is done. Cannot fail. */
  void (*release)(vpmm_emm_manager* manager, const vpmm_emm_block* block);

  /* --- may be null: the manager does not support it --- */
  /* VPMM_EMM_HAS_... bits; null: the slots below decide. A bit without its slots is ignored. */
  uint32_t (*capabilities)(vpmm_emm_manager* manager);
  /* Bytes available to the next allocation, and the device's total. */
  vpmm_status (*get_memory_info)(vpmm_emm_manager* manager, uint64_t* free_bytes,
                                 uint64_t* total_bytes);
  /* Both or neither. Between them the manager defers slow releases; pairs nest and overlap, on any
   * threads. */
  vpmm_status (*defer_cleanup_begin)(vpmm_emm_manager* manager);
  vpmm_status (*defer_cleanup_end)(vpmm_emm_manager* manager);
  /* Both or neither. `flags`: VPMM_EMM_PORTABLE and so on. Registered memory is unlocked as soon as
   * it is released, because the user may register it again at once. */
  vpmm_status (*allocate_host)(vpmm_emm_manager* manager, size_t bytes, unsigned flags,
                               vpmm_emm_block* block);
  vpmm_status (*register_host)(vpmm_emm_manager* manager, void* ptr, size_t bytes, unsigned flags,
                               vpmm_emm_block* block);
  /* `ptr` may be inside a block; the handle names `bytes` bytes from there. */
  vpmm_status (*get_ipc_handle)(vpmm_emm_manager* manager, const void* ptr, size_t bytes,
                                vpmm_emm_ipc_handle* handle);
  vpmm_status (*allocate_managed)(vpmm_emm_manager* manager, size_t bytes, unsigned flags,
                                  vpmm_emm_block* block);
  /* Both or neither. Memory for work queued on `stream` after the call; released in the order of
   * `stream`. A block of allocate_on_stream may go to `release`, and a block of `allocate` to
   * release_on_stream. */
  vpmm_status (*allocate_on_stream)(vpmm_emm_manager* manager, size_t bytes, vpmm_stream stream,
                                    vpmm_emm_block* block);
  vpmm_status (*release_on_stream)(vpmm_emm_manager* manager, const vpmm_emm_block* block,
                                   vpmm_stream stream);
};
/* The smallest size accepted: a table that ends before the slots that may be null. */
#define VPMM_EMM_PLUGIN_LEAST_SIZE offsetof(vpmm_emm_plugin, capabilities)

/* --- the library's functions --- */
/* The process-wide driver, chosen by VPMM_DRIVER. It is never closed. */
VPMM_API vpmm_status vpmm_emm_process_driver(const vpmm_emm_driver** driver);
/* "vpmm" (the process-wide pool), "stream_ordered" (the driver's asynchronous pool) or "default"
 * (plain driver allocations and Numba's pending deallocations). */
VPMM_API vpmm_status vpmm_emm_builtin_plugin(const char* name, const vpmm_emm_plugin** plugin);
/* Loads a library and checks its plugin. Loading a library again returns the same plugin. */
VPMM_API vpmm_status vpmm_emm_load_plugin(const char* path, const vpmm_emm_plugin** plugin);
/* Checks whether this library can use a plugin; the error says what is wrong with the table. */
VPMM_API vpmm_status vpmm_emm_check_plugin(const vpmm_emm_plugin* plugin);

/* Sets the plugin for contexts created from now on; existing contexts keep theirs. Null: "vpmm"
 * again. The table must stay valid for the life of the process. If VPMM_MEMORY_MANAGER is set, the
 * call logs a warning and does nothing. */
VPMM_API vpmm_status vpmm_emm_set_memory_manager(const vpmm_emm_plugin* plugin);
/* The plugin for a new context: the one that VPMM_MEMORY_MANAGER names, by path or built-in name;
 * otherwise the one that was set; otherwise "vpmm". */
VPMM_API vpmm_status vpmm_emm_get_memory_manager(const vpmm_emm_plugin** plugin);

#ifdef __cplusplus
}
#endif

#endif
