/* emm: the plugin interface for external memory managers, as a C table that crosses the line between libraries.
 *
 * What NBEP 7 describes for Numba, for C and C++ programs: a program asks a memory manager for all the memory it needs
 * on a GPU, and who that manager is can be exchanged. A manager comes as a vpmm_emm_plugin: a table of functions. No
 * virtual function, no type of a standard library and no exception crosses the line, so plugin and program may be built
 * by different compilers. C++ is in vpmm/emm.hpp, which makes the table from a class and a class from the table.
 *
 * Rules for all slots of a plugin, unless said otherwise:
 * - Thread-safe. Sizes are bytes. Output parameters are written on success only, and on failure nothing has changed.
 * - A request is never of 0 bytes: the caller answers that with a null pointer by itself.
 * - A slot returns VPMM_OK or a vpmm_status; last_error() then says more. Nothing is thrown, nothing is printed.
 * - The CUDA context that the manager was initialized in is current. In release, reset and destroy any context may be
 *   current, or none; they leave it as it was.
 * - Libraries are never unloaded: functions and strings stay valid for the life of the process.
 * - While the process exits, and in a forked child, no slot is called any more.
 */
#ifndef VPMM_EMM_H
#define VPMM_EMM_H

#include "vpmm/vpmm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What NBEP 7 calls interface_version. A plugin of another version is refused. */
#define VPMM_EMM_INTERFACE_VERSION 1
/* The symbol that a plugin's library exports: const vpmm_emm_plugin* vpmm_emm_plugin_v1(void). */
#define VPMM_EMM_PLUGIN_SYMBOL "vpmm_emm_plugin_v1"

typedef void* vpmm_cuda_context;                  /* a CUcontext */
typedef struct vpmm_emm_manager vpmm_emm_manager; /* opaque: a plugin's own */

typedef enum vpmm_emm_kind {
  VPMM_EMM_DEVICE = 0,           /* device memory */
  VPMM_EMM_MANAGED = 1,          /* shared by host and device, moved by the driver */
  VPMM_EMM_PINNED = 2,           /* page-locked host memory */
  VPMM_EMM_MAPPED = 3,           /* page-locked host memory that the device sees */
  VPMM_EMM_REGISTERED = 4,       /* the user's host memory, page-locked */
  VPMM_EMM_REGISTERED_MAPPED = 5 /* the same, seen by the device */
} vpmm_emm_kind;

/* Options of host memory; the numbers are CUDA's. */
enum {
  VPMM_EMM_PORTABLE = 1,      /* page-locked for all contexts, not only for the current one */
  VPMM_EMM_DEVICE_MAPPED = 2, /* the device sees it */
  VPMM_EMM_WRITE_COMBINED = 4 /* fast to write for the host, slow to read; not for memory that is registered */
};
/* Who may use managed memory at first; CUDA's numbers. */
enum { VPMM_EMM_ATTACH_GLOBAL = 1, VPMM_EMM_ATTACH_HOST = 2 };

/* One piece of memory. The manager fills it in, whoever asked for it hands it back to `release` unchanged, once. */
typedef struct vpmm_emm_block {
  void* pointer;        /* host memory: its host address; anything else: its device address */
  void* device_pointer; /* where the device sees it; null: it does not */
  size_t bytes;         /* as asked for */
  void* cookie;         /* the manager's own: to know one use of an address from the next */
  uint32_t kind;        /* vpmm_emm_kind */
  uint32_t reserved;    /* 0 */
} vpmm_emm_block;

/* Names memory to another process: vpmm_ipc_handle. */
typedef vpmm_ipc_handle vpmm_emm_ipc_handle;
enum { VPMM_EMM_IPC_LEGACY = VPMM_IPC_LEGACY, VPMM_EMM_IPC_POOL = VPMM_IPC_POOL };

/* What a manager offers beyond device memory. */
enum {
  VPMM_EMM_HAS_HOST_MEMORY = 1,
  VPMM_EMM_HAS_MANAGED_MEMORY = 2,
  VPMM_EMM_HAS_STREAM_ORDER = 4,
  VPMM_EMM_HAS_IPC = 8,
  VPMM_EMM_HAS_MEMORY_INFO = 16
};

/* --- the driver, for managers ---
 * The calls that a manager needs of CUDA, under CUDA's names, so that a plugin links no CUDA library and runs on the
 * simulator too. Each slot's first argument is the table itself. They act on the calling thread's current context, as
 * CUDA does; out of device memory is VPMM_ERROR_OUT_OF_MEMORY, and while the process exits or in a forked child all of
 * them fail with VPMM_ERROR_PROCESS_ENDING. No slot is null. Later versions append slots: see `size`. */
typedef struct vpmm_emm_driver vpmm_emm_driver;
struct vpmm_emm_driver {
  size_t size; /* of the table as this library knows it */
  void* self;
  /* The calling thread's last failure of a slot of this table; valid until its next call. */
  const char* (*last_error)(const vpmm_emm_driver*);
  /* 1: the process exits, or this is a forked child; memory is the system's to take back. No lock, no driver call. */
  int (*process_is_ending)(const vpmm_emm_driver*);
  /* VPMM_MAX_PENDING_DEALLOCS_COUNT and VPMM_MAX_PENDING_DEALLOCS_RATIO, read from the environment at each call. */
  vpmm_status (*max_pending_deallocs)(const vpmm_emm_driver*, uint64_t* count, double* ratio);

  /* --- contexts --- */
  vpmm_status (*ctx_get_current)(const vpmm_emm_driver*, vpmm_cuda_context* context); /* null: none is */
  vpmm_status (*ctx_set_current)(const vpmm_emm_driver*, vpmm_cuda_context context);
  vpmm_status (*ctx_get_device)(const vpmm_emm_driver*, int* device);
  vpmm_status (*ctx_synchronize)(const vpmm_emm_driver*);
  vpmm_status (*device_primary_ctx_retain)(const vpmm_emm_driver*, int device, vpmm_cuda_context* context);
  vpmm_status (*device_primary_ctx_release)(const vpmm_emm_driver*, int device);
  vpmm_status (*device_get_attribute)(const vpmm_emm_driver*, int attribute, int device, int* value); /* CUDA's */
  vpmm_status (*device_get_uuid)(const vpmm_emm_driver*, int device, unsigned char uuid[16]);

  /* --- memory --- */
  vpmm_status (*mem_get_info)(const vpmm_emm_driver*, uint64_t* free_bytes, uint64_t* total_bytes);
  vpmm_status (*mem_alloc)(const vpmm_emm_driver*, size_t bytes, void** ptr);
  vpmm_status (*mem_alloc_managed)(const vpmm_emm_driver*, size_t bytes, unsigned flags, void** ptr);
  vpmm_status (*mem_free)(const vpmm_emm_driver*, void* ptr);
  vpmm_status (*mem_host_alloc)(const vpmm_emm_driver*, size_t bytes, unsigned flags, void** ptr);
  vpmm_status (*mem_free_host)(const vpmm_emm_driver*, void* ptr);
  vpmm_status (*mem_host_register)(const vpmm_emm_driver*, void* ptr, size_t bytes, unsigned flags);
  vpmm_status (*mem_host_unregister)(const vpmm_emm_driver*, void* ptr);
  vpmm_status (*mem_host_get_device_pointer)(const vpmm_emm_driver*, void* ptr, void** device_pointer);
  /* The allocation, or the mapping, around a device address. */
  vpmm_status (*mem_get_address_range)(const vpmm_emm_driver*, const void* ptr, void** begin, size_t* bytes);
  vpmm_status (*memcpy_host_to_device)(const vpmm_emm_driver*, void* to, const void* from, size_t bytes);
  vpmm_status (*memcpy_device_to_host)(const vpmm_emm_driver*, void* to, const void* from, size_t bytes);

  /* --- legacy IPC: for memory of mem_alloc only --- */
  vpmm_status (*ipc_get_mem_handle)(const vpmm_emm_driver*, const void* ptr, unsigned char token[64]);
  vpmm_status (*ipc_open_mem_handle)(const vpmm_emm_driver*, const unsigned char token[64], void** ptr);
  vpmm_status (*ipc_close_mem_handle)(const vpmm_emm_driver*, void* ptr);
};

/* --- a plugin --- */
typedef struct vpmm_emm_plugin vpmm_emm_plugin;
struct vpmm_emm_plugin {
  size_t size;                /* sizeof the struct as the plugin was compiled; slots beyond it count as null */
  uint32_t interface_version; /* VPMM_EMM_INTERFACE_VERSION */
  uint32_t reserved;          /* 0 */
  const char* name;           /* for people: "arena" */
  void* argument;             /* the plugin's own; `create` finds it here */

  /* --- never null --- */
  /* A manager for one CUDA context on `device`, before anything else; makes no CUDA call. Called once per context, and
   * when the plugin is set as the memory manager, for a manager that is destroyed at once. */
  vpmm_status (*create)(const vpmm_emm_plugin* plugin, const vpmm_emm_driver* driver, int device,
                        vpmm_emm_manager** manager);
  /* Every block has been released, or the process does not mind. Last call for this manager; not thread-safe. */
  void (*destroy)(vpmm_emm_manager* manager);
  /* The calling thread's last failure of a slot of this table, valid until its next call; "" if there was none. */
  const char* (*last_error)(void);
  /* Comes before the first allocation, and again as often as the caller likes: then it changes nothing. */
  vpmm_status (*initialize)(vpmm_emm_manager* manager);
  /* Back to what it was after `initialize`. The caller has released every block. May come before `initialize`. */
  vpmm_status (*reset)(vpmm_emm_manager* manager);
  /* Device memory that any stream may use at once. At least 256-byte aligned. */
  vpmm_status (*allocate)(vpmm_emm_manager* manager, size_t bytes, vpmm_emm_block* block);
  /* Exactly once for each block of any kind; from any thread. Work that is queued on any stream may still use device
   * memory, so it must be done before the memory serves anybody else. Cannot fail. */
  void (*release)(vpmm_emm_manager* manager, const vpmm_emm_block* block);

  /* --- may be null: the manager does not do that --- */
  /* VPMM_EMM_HAS_...; null: what the slots below say. A bit without its slots counts as not there. */
  uint32_t (*capabilities)(vpmm_emm_manager* manager);
  /* Free for the next allocation, and the device's total. */
  vpmm_status (*get_memory_info)(vpmm_emm_manager* manager, uint64_t* free_bytes, uint64_t* total_bytes);
  /* Both or neither. Between them nothing that takes long is given back; pairs nest and overlap, on any threads. */
  vpmm_status (*defer_cleanup_begin)(vpmm_emm_manager* manager);
  vpmm_status (*defer_cleanup_end)(vpmm_emm_manager* manager);
  /* Both or neither. `flags`: VPMM_EMM_PORTABLE and so on. Registered memory is unlocked as soon as it is released,
   * for it may be registered again at once. */
  vpmm_status (*allocate_host)(vpmm_emm_manager* manager, size_t bytes, unsigned flags, vpmm_emm_block* block);
  vpmm_status (*register_host)(vpmm_emm_manager* manager, void* ptr, size_t bytes, unsigned flags,
                               vpmm_emm_block* block);
  /* `ptr` may lie inside a block; `bytes` from there on are meant. */
  vpmm_status (*get_ipc_handle)(vpmm_emm_manager* manager, const void* ptr, size_t bytes, vpmm_emm_ipc_handle* handle);
  vpmm_status (*allocate_managed)(vpmm_emm_manager* manager, size_t bytes, unsigned flags, vpmm_emm_block* block);
  /* Both or neither. Memory for work that is queued on `stream` from now on; released in the order of `stream`. Its
   * blocks may go to `release` instead, and those of `allocate` may come here. */
  vpmm_status (*allocate_on_stream)(vpmm_emm_manager* manager, size_t bytes, vpmm_stream stream, vpmm_emm_block* block);
  vpmm_status (*release_on_stream)(vpmm_emm_manager* manager, const vpmm_emm_block* block, vpmm_stream stream);
};
/* The least that is accepted: a table that ends before the slots that may be null. */
#define VPMM_EMM_PLUGIN_LEAST_SIZE offsetof(vpmm_emm_plugin, capabilities)

/* --- what libvpmm has --- */
/* The driver that the process shares, as VPMM_DRIVER names it. It is never closed. */
VPMM_API vpmm_status vpmm_emm_process_driver(const vpmm_emm_driver** driver);
/* "vpmm" (the process-wide pool), "stream_ordered" (the driver's asynchronous pool) or "default" (plain driver
 * allocations and Numba's pending deallocations). */
VPMM_API vpmm_status vpmm_emm_builtin_plugin(const char* name, const vpmm_emm_plugin** plugin);
/* Loads a library and checks its plugin; a library that is loaded already gives the same one. */
VPMM_API vpmm_status vpmm_emm_load_plugin(const char* path, const vpmm_emm_plugin** plugin);
/* Whether this library can use a plugin; the error says what is wrong with the table. */
VPMM_API vpmm_status vpmm_emm_check_plugin(const vpmm_emm_plugin* plugin);

/* What contexts that are made from now on use; contexts that exist keep theirs. Null: "vpmm" again. The table must
 * live as long as the process. With VPMM_MEMORY_MANAGER set it warns in the log and does nothing. */
VPMM_API vpmm_status vpmm_emm_set_memory_manager(const vpmm_emm_plugin* plugin);
/* The plugin for a new context: the library that VPMM_MEMORY_MANAGER names, a path or the name of a builtin one, else
 * what was set, else "vpmm". */
VPMM_API vpmm_status vpmm_emm_get_memory_manager(const vpmm_emm_plugin** plugin);

#ifdef __cplusplus
}
#endif

#endif
