/* SPDX-License-Identifier: Apache-2.0 */
/* vpmm: the C ABI. One GPU memory pool for everything in a process.
 *
 * Rules for all functions, unless a function states otherwise:
 * - Every function is thread-safe. Any CUDA context may be current, or none. A call leaves the
 * current context as it found it.
 * - Sizes are bytes. Device pointers are CUdeviceptr values as void*.
 * - A stream is a CUstream / cudaStream_t value (0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD
 * included). The pool does not keep the handle after the call returns.
 * - No function waits for the GPU unless memory would otherwise run out, or too much any-stream
 * memory is pending. By default, an allocation that would raise mapped memory to a new peak may
 * poll for up to 12 ms whether the GPU has finished with freed memory.
 * - Idle memory in one pool never makes another pool run out. When the GPU is full and no stream is
 * known to be capturing, the pools of the process give back idle and complete memory, including
 * memory mapped ahead, before a call fails.
 * - A call that fails changes nothing; vpmm_last_error() describes the failure. Output parameters
 * are written on success only.
 * - Structs begin with `size`, but for elements of arrays and plain bytes: set it to sizeof the
 * struct as you compiled it. Older, shorter structs keep working.
 */
#ifndef VPMM_VPMM_H
#define VPMM_VPMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define VPMM_API __attribute__((visibility("default")))
#else
#define VPMM_API
#endif

#define VPMM_VERSION_MAJOR 0
#define VPMM_VERSION_MINOR 1
#define VPMM_VERSION_PATCH 0

typedef enum vpmm_status {
  VPMM_OK = 0,
  VPMM_ERROR_INVALID_ARGUMENT =
      1, /* a size, alignment, ordinal, stream or null pointer that is not allowed */
  VPMM_ERROR_INVALID_POINTER = 2, /* not a live allocation of this pool, or not the start of one */
  VPMM_ERROR_OUT_OF_MEMORY =
      3, /* device memory: live memory and the request do not fit, see vpmm_allocate */
  VPMM_ERROR_HOST_OUT_OF_MEMORY =
      4, /* of the process itself; nothing has changed: repeat a free that returns this */
  VPMM_ERROR_BAD_CONFIGURATION =
      5,                      /* a setting has a value that is not allowed; the message names it */
  VPMM_ERROR_UNSUPPORTED = 6, /* this device or driver cannot do it */
  VPMM_ERROR_NO_DRIVER = 7,   /* no CUDA driver on this machine */
  VPMM_ERROR_DRIVER_FAILED = 8, /* a driver call failed */
  VPMM_ERROR_POISONED = 9, /* a sticky error broke the GPU context; no more driver calls are made */
  VPMM_ERROR_PROCESS_ENDING = 10, /* the process is exiting, or this is a forked child */
  VPMM_ERROR_CAPTURE_ACTIVE = 11, /* not possible while a stream is being captured */
  VPMM_ERROR_BAD_FILE = 12,       /* a file is missing, malformed or cannot be written */
  VPMM_WOULD_BLOCK = 13, /* not an error: the call would block; use the ordinary function */
  VPMM_ERROR_NOT_SHARED =
      14, /* another process's memory: it is gone, does not answer, or revoked the memory */
  VPMM_ERROR_SUSPENDED = 15 /* memory of a suspended tag or arena: resume it first */
} vpmm_status;

typedef struct vpmm_pool vpmm_pool;                 /* opaque */
typedef struct vpmm_bound_stream vpmm_bound_stream; /* opaque */
typedef struct vpmm_arena vpmm_arena;               /* opaque */
typedef void* vpmm_stream;

/* As a capacity: `percent`, 1 to 100, of the memory that the device has, in whole pages. Another
 * percentage is refused, as 0 is. */
#define VPMM_SHARE_OF_GPU(percent) ((percent) == 0 ? 0 : UINT64_MAX - (uint64_t)(percent))

/* Settings of a pool. vpmm_config_init fills in the defaults, vpmm_config_from_environment the
 * environment's values. */
typedef struct vpmm_config {
  size_t size;
  uint64_t page_size; /* VPMM_PAGE_SIZE; 0: the device's granularity; UINT64_MAX: off, all
                         stream-ordered */
  uint64_t pages;     /* VPMM_PAGES: preallocated at the first allocation, best effort */
  uint64_t va_size;   /* VPMM_VA_SIZE: bytes of one reservation */
  uint64_t chunk_max; /* VPMM_CHUNK_MAX: bytes of the largest chunk; 0: `page`, the specification's
                         policy */
  uint64_t release_threshold; /* VPMM_RELEASE_THRESHOLD; UINT64_MAX: keep idle memory */
  uint64_t max_mappings;      /* VPMM_MAX_MAPPINGS */
  uint64_t capacity;          /* VPMM_CAPACITY: most bytes the pool may map, or VPMM_SHARE_OF_GPU;
                                 UINT64_MAX: what the GPU has */
  const char* small; /* VPMM_SMALL: "pool" or "stream_ordered". Null, here and below: the built-in
                        default */
  const char* any_stream; /* VPMM_ANY_STREAM: "context", "legacy" or "park" */
  const char* log;        /* VPMM_LOG: "quiet", "error", "warning", "info" or "debug" */
  const char* driver;     /* VPMM_DRIVER: "cuda", "sim" or "auto" */
  int unnamed_free_on_allocating_stream; /* 1: vpmm_deallocate_any_stream frees on the stream of the
                                            allocation */
  const char* prefer;                    /* VPMM_PREFER: "footprint", "balanced" or "latency" */
  int ipc_isolate;  /* VPMM_IPC_ISOLATE: 1: every allocation has its own pages and chunks */
  uint64_t guard;   /* VPMM_GUARD: guards one allocation in so many; 0: none */
  const char* fill; /* VPMM_FILL: "new", "freed", "new,freed" or "none" */
} vpmm_config;

/* Figures of a pool; docs/reference/statistics.md explains each. */
typedef struct vpmm_statistics {
  size_t size;
  uint32_t version; /* 1 */
  uint32_t reserved;
  uint64_t mapped_bytes;
  uint64_t peak_mapped_bytes;
  uint64_t live_bytes;
  uint64_t peak_live_bytes;
  uint64_t allocated_bytes;
  uint64_t free_bytes;
  uint64_t pending_bytes;
  uint64_t largest_free_bytes;
  uint64_t reserved_bytes;
  uint64_t hole_bytes;
  uint64_t zombie_bytes;
  uint64_t stream_ordered_bytes;
  uint64_t small_bytes;
  uint64_t small_free_bytes;
  uint64_t quarantined_bytes;
  uint64_t live_allocations;
  uint64_t free_regions;
  uint64_t zombie_regions;
  uint64_t chunks;
  uint64_t peak_chunks;
  uint64_t mappings;
  uint64_t peak_mappings;
  uint64_t timelines;
  uint64_t outstanding_events;
  uint64_t allocations;
  uint64_t deallocations;
  uint64_t failed_allocations;
  uint64_t caller_mistakes;
  uint64_t hits;
  uint64_t plans;
  uint64_t failed_plans;
  uint64_t chunks_created;
  uint64_t chunks_released;
  uint64_t chunks_moved;
  uint64_t bytes_moved;
  uint64_t gpu_waits;
  uint64_t host_waits;
  uint64_t events_recorded;
  uint64_t driver_calls;
  uint64_t driver_ns;
  uint64_t pauses;
  uint64_t leased_bytes;
  uint64_t cached_bytes;
  uint64_t trapped_bytes;
  uint64_t suspended_bytes;
  uint64_t host_copy_bytes;
  uint64_t guarded_bytes;
  uint64_t guarded_allocations;
  uint64_t unguarded_allocations;
  uint64_t damaged_allocations;
} vpmm_statistics;

enum {
  VPMM_ALLOCATE_ANY_STREAM = 1, /* as vpmm_allocate_any_stream; `stream` is ignored */
  VPMM_ALLOCATE_ONE_CHUNK =
      2 /* backed by one physical chunk that nothing else shares: for registration, RDMA */
};

/* Set unused fields to 0. */
typedef struct vpmm_request {
  size_t size;
  size_t bytes;
  size_t alignment; /* 0: the default */
  vpmm_stream stream;
  uint32_t flags; /* VPMM_ALLOCATE_ */
  uint32_t tag; /* the caller's label, for events, layouts and reports; 0: that of the arena, or for
                     a request without one that of vpmm_tag_enter, or none */
  uint32_t library; /* the tag if there is none otherwise, from vpmm_library_tag; 0: none */
} vpmm_request;

typedef enum vpmm_region_state {
  VPMM_REGION_HOLE = 0,
  VPMM_REGION_FREE = 1,
  VPMM_REGION_ALLOCATED = 2,
  VPMM_REGION_ZOMBIE = 3,
  VPMM_REGION_IN_FLIGHT = 4,
  VPMM_REGION_SUSPENDED = 5 /* the address of allocated memory that is suspended; not mapped */
} vpmm_region_state;

typedef struct vpmm_region {
  void* begin;
  uint64_t bytes;
  uint64_t requested; /* allocated: bytes requested; for a page cut into small blocks, by all live
                         blocks in it */
  int state;          /* vpmm_region_state */
  int complete;       /* free, zombie: 1 when no pending work uses it */
} vpmm_region;

/* Memory in one state; see docs/reference/c-abi.md. `reserved` is for later versions. */
typedef struct vpmm_block {
  void* begin;
  uint64_t bytes;
  uint64_t requested; /* allocated: bytes requested */
  uint64_t stream_id; /* cuStreamGetId. Allocated: its stream; free: the stream that may reuse it
                         now. 0: none, many */
  uint64_t arena;     /* id of its arena; 0: none */
  uint32_t tag;       /* allocated: tag of the request; 0: none */
  uint8_t state;      /* vpmm_region_state, never VPMM_REGION_HOLE */
  uint8_t complete;   /* free, zombie: 1 when no work is known to use it any more */
  uint8_t is_small;   /* 1: in a page that is cut for requests below a page */
  uint8_t reserved;
} vpmm_block;

/* Where a physical chunk is mapped. */
typedef struct vpmm_chunk {
  void* begin;
  uint64_t bytes;
} vpmm_chunk;

typedef struct vpmm_layout {
  size_t size;
  const vpmm_block* blocks; /* ascending addresses */
  size_t block_count;
  const vpmm_chunk* chunks; /* ascending addresses */
  size_t chunk_count;
  void* owner;            /* owns both arrays; vpmm_layout_release frees them */
  uint64_t largest_small; /* the largest request in bytes that is served from pages that are cut; 0:
                             none is */
} vpmm_layout;

typedef struct vpmm_allocation_info {
  size_t size;
  void* begin;
  uint64_t requested;
  uint64_t usable;
} vpmm_allocation_info;

typedef enum vpmm_ipc_kind {
  VPMM_IPC_LEGACY = 1, /* plain driver memory: the token is a CUipcMemHandle */
  VPMM_IPC_POOL = 2    /* memory of a pool */
} vpmm_ipc_kind;

/* Names memory to another process. It is plain bytes, all of them set: copy, store, compare or send
 * it. The token alone is enough to open memory of a pool; vpmm_ipc_read_token makes a handle from
 * it. */
typedef struct vpmm_ipc_handle {
  uint32_t kind;     /* vpmm_ipc_kind */
  uint32_t reserved; /* 0 */
  unsigned char token[64];
  uint64_t bytes;                /* size of the memory named */
  uint64_t offset;               /* bytes from the start of its allocation */
  unsigned char device_uuid[16]; /* of the device that holds it; all 0: not known */
} vpmm_ipc_handle;

/* Called when an allocation of `bytes` would fail, without any lock held. It may free memory of the
 * pool and call any vpmm function. Returns nonzero when it freed memory: the pool then tries again.
 */
typedef int (*vpmm_out_of_memory_callback)(void* argument, int device, uint64_t bytes);

typedef enum vpmm_event_kind {
  VPMM_EVENT_ALLOCATE = 0, /* a caller got memory */
  VPMM_EVENT_FREE = 1,     /* a caller freed memory */
  VPMM_EVENT_MAP = 2,      /* a physical chunk was mapped at an address */
  VPMM_EVENT_UNMAP =
      3, /* a physical chunk left its address: it was released to the driver, or moved */
  VPMM_EVENT_OUT_OF_MEMORY = 4, /* a request failed; out-of-memory callbacks did not help */
  VPMM_EVENT_RECORD_USE = 5,    /* vpmm_record_use named another stream */
  VPMM_EVENT_TRIM =
      6, /* vpmm_trim, or a release threshold, released idle memory: after its UNMAPs */
  VPMM_EVENT_ARENA_GROW = 7,   /* an arena got a stretch of memory of its own: after its MAPs */
  VPMM_EVENT_ARENA_SHRINK = 8, /* an arena gives a stretch back, or chunks of one: after the last
                                  FREE there, before UNMAPs */
  VPMM_EVENT_SUSPEND = 9,      /* an arena was suspended: after its UNMAPs */
  VPMM_EVENT_RESUME = 10       /* an arena was resumed: after its MAPs */
} vpmm_event_kind;

enum { VPMM_EVENT_NO_STREAM = 1 /* the call named no stream */ };

typedef struct vpmm_event {
  size_t size;   /* of the struct in the library's version */
  uint32_t kind; /* vpmm_event_kind */
  uint32_t tag;  /* of the allocation or the request; 0: none */
  void* ptr; /* the allocation; MAP, UNMAP: the chunk's address; ARENA_: the stretch; otherwise null
              */
  uint64_t bytes; /* of the chunk or the stretch; TRIM: total released; SUSPEND, RESUME: unmapped,
                     mapped; otherwise bytes requested */
  vpmm_stream stream; /* the stream that the call named */
  uint64_t arena;     /* id of the memory's arena; 0: none */
  uint64_t time_ns;   /* from a monotonic clock; the simulator's clock is virtual */
  int32_t device;     /* ordinal of the pool's device */
  uint32_t flags;     /* VPMM_EVENT_NO_STREAM */
} vpmm_event;

typedef enum vpmm_log_level {
  VPMM_LOG_ERROR = 1,
  VPMM_LOG_WARNING = 2,
  VPMM_LOG_INFO = 3,
  VPMM_LOG_DEBUG = 4
} vpmm_log_level;

/* `level` is a vpmm_log_level. `text` is one message without a trailing line break, valid during
 * the call. */
typedef void (*vpmm_log_callback)(void* argument, int level, const char* text);

/* `event` is valid during the call. */
typedef void (*vpmm_event_callback)(void* argument, const vpmm_event* event);

/* --- versions and errors --- */
VPMM_API const char* vpmm_version(void); /* "0.1.0" */
VPMM_API const char* vpmm_last_error(
    void); /* of the calling thread; valid until its next vpmm call */
VPMM_API const char* vpmm_status_string(vpmm_status status);

/* --- pools --- */
VPMM_API vpmm_status vpmm_config_init(vpmm_config* config); /* the built-in defaults */
VPMM_API vpmm_status
vpmm_config_from_environment(vpmm_config* config); /* the defaults, then the VPMM_ variables */
/* Parses a size in the syntax of the variables: "4096", "64MiB", "2GB".
 * VPMM_ERROR_INVALID_ARGUMENT: not a size. */
VPMM_API vpmm_status vpmm_parse_bytes(const char* text, uint64_t* bytes);
VPMM_API vpmm_status vpmm_device_count(int* count); /* with the driver that VPMM_DRIVER names */
/* The process-wide pool of a device. The first call opens it with the settings of the environment.
 * Never destroyed. */
VPMM_API vpmm_status vpmm_default_pool(int device, vpmm_pool** pool);
/* The same pool with your settings. If it is already open with other settings, the error names the
 * difference. */
VPMM_API vpmm_status vpmm_default_pool_open(int device, const vpmm_config* config,
                                            vpmm_pool** pool);
/* A private pool. `config` null: settings from the environment. Destroy it when none of its memory
 * is in use. */
VPMM_API vpmm_status vpmm_pool_create(int device, const vpmm_config* config, vpmm_pool** pool);
VPMM_API vpmm_status vpmm_pool_destroy(vpmm_pool* pool); /* waits for the GPU; null does nothing */

/* --- allocating --- */
/* Memory for work queued on `stream` after the call. It is aligned to 256 bytes, from 128 KiB to 16
 * KiB, from 512 KiB to 64 KiB, and from one page up to a 32nd of a page, at least 64 KiB; to a
 * whole page with VPMM_CHUNK_MAX=page. Zero bytes give null. The promise: the call succeeds
 * whenever the following fits into the capacity (vpmm_set_capacity, or what the GPU has for this
 * process): all live allocations and the request, each rounded up (vpmm_usable_size), and
 * trapped_bytes, which is idle memory that cannot move because live memory shares its chunks. Other
 * idle memory is never the reason for VPMM_ERROR_OUT_OF_MEMORY. From one page up a request is
 * rounded up by less than a 32nd. With VPMM_CHUNK_MAX=page nothing is trapped, and sizes are
 * rounded up to pages. A guarded allocation (VPMM_GUARD) is aligned to 256 bytes, whatever its
 * size, and is rounded up to pages of 2 MiB. The following counts as live:
 * - memory leased to other processes;
 * - memory that belongs to a captured graph;
 * - all memory of a pinned arena, and every chunk of another arena that holds a live allocation;
 * - freed memory that the GPU still uses, if neither the host nor `stream` is allowed to wait for
 * it. A request below a page counts as the pages it is cut from; so does one of up to four pages of
 * a stream that often found the pool busy with other threads. */
VPMM_API vpmm_status vpmm_allocate(vpmm_pool* pool, size_t bytes, vpmm_stream stream, void** ptr);
VPMM_API vpmm_status vpmm_allocate_aligned(vpmm_pool* pool, size_t bytes, size_t alignment,
                                           vpmm_stream stream, void** ptr);
/* Memory for any work queued on any stream after the call. `alignment` 0: the default. */
VPMM_API vpmm_status vpmm_allocate_any_stream(vpmm_pool* pool, size_t bytes, size_t alignment,
                                              void** ptr);
/* Allocates with all options of a request. With VPMM_ALLOCATE_ONE_CHUNK the allocation takes at
 * least a page and is never stitched from idle chunks; if memory is short, the pool releases idle
 * chunks to the driver to create the one. VPMM_ERROR_UNSUPPORTED: an unknown flag, or one chunk
 * without a virtual memory pool. */
VPMM_API vpmm_status vpmm_allocate_with(vpmm_pool* pool, const vpmm_request* request, void** ptr);
/* As vpmm_allocate_any_stream, but only if it needs no driver call and does not wait for a lock
 * that another thread holds across one. Otherwise, and for an invalid request, it returns
 * VPMM_WOULD_BLOCK: call vpmm_allocate_any_stream, which allocates or reports the error. For
 * callers that hold a lock of their own, such as an interpreter's. */
VPMM_API vpmm_status vpmm_try_allocate_any_stream(vpmm_pool* pool, size_t bytes, size_t alignment,
                                                  void** ptr);
/* As vpmm_allocate_aligned and vpmm_deallocate, but only through the cache of memory that `stream`
 * itself freed. They wait for no lock that another thread holds across a driver call, for no GPU
 * work and for no room in a recording, and ask the driver only which stream it is and whether it
 * captures. VPMM_WOULD_BLOCK: nothing happened; call vpmm_allocate_aligned or vpmm_deallocate,
 * which does it or reports the error. That is also the answer when the stream owes the pool an
 * event, or its cache may keep no more: the ordinary call settles that. */
VPMM_API vpmm_status vpmm_try_allocate(vpmm_pool* pool, size_t bytes, size_t alignment,
                                       vpmm_stream stream, void** ptr);
VPMM_API vpmm_status vpmm_try_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream);
/* Frees memory; work queued on `stream` before the call is the last to use it. Null does nothing.
 */
VPMM_API vpmm_status vpmm_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream);
/* Frees memory; work queued on any stream before the call may be the last to use it. Null does
 * nothing. */
VPMM_API vpmm_status vpmm_deallocate_any_stream(vpmm_pool* pool, void* ptr);
/* The same for finalizers and callbacks: takes no lock, makes no driver call, does not wait. Errors
 * are counted, not reported. */
VPMM_API void vpmm_deallocate_deferred(vpmm_pool* pool, void* ptr);
/* Work on `stream` uses the memory too: a later free also waits for the work queued on `stream` by
 * then. `ptr` is the start of the allocation, as for a free. An address inside one is
 * VPMM_ERROR_INVALID_POINTER; vpmm_query finds the start. Null does nothing. */
VPMM_API vpmm_status vpmm_record_use(vpmm_pool* pool, void* ptr, vpmm_stream stream);
/* Work queued on `waiting` after the call waits for the work already queued on `first`. `first` is
 * a stream of the primary context of the pool's device. */
VPMM_API vpmm_status vpmm_stream_wait(vpmm_pool* pool, vpmm_stream waiting, vpmm_stream first);
/* Finds the allocation around any address inside it. */
VPMM_API vpmm_status vpmm_query(vpmm_pool* pool, const void* ptr, vpmm_allocation_info* info);
VPMM_API vpmm_status vpmm_usable_size(vpmm_pool* pool, const void* ptr, size_t* bytes);

/* --- many at once --- */
/* ptrs[i] gets bytes[i] for work queued on `stream`; all succeed or none. The stream is looked up
 * once. */
VPMM_API vpmm_status vpmm_allocate_many(vpmm_pool* pool, const size_t* bytes, size_t count,
                                        vpmm_stream stream, void** ptrs);
/* Frees every pointer that it can; the status is that of the first failure. Nulls are skipped.
 * After VPMM_ERROR_HOST_OUT_OF_MEMORY repeat the call: pointers that were freed are then
 * VPMM_ERROR_INVALID_POINTER. */
VPMM_API vpmm_status vpmm_deallocate_many(vpmm_pool* pool, void* const* ptrs, size_t count,
                                          vpmm_stream stream);

/* --- bound streams --- */
/* Binds a stream to an object, which saves the lookup at each call: the fastest way in. Any thread
 * may use it. The object must not outlive its stream or the pool. Announce captures on the stream
 * with vpmm_capture_begin. After a reset of the CUDA context the object is dead: requests fail, and
 * frees count as any-stream. `stream` may not be capturing. */
VPMM_API vpmm_status vpmm_stream_bind(vpmm_pool* pool, vpmm_stream stream,
                                      vpmm_bound_stream** bound);
VPMM_API void vpmm_stream_unbind(vpmm_bound_stream* bound); /* null does nothing */
/* `alignment` 0: the default. */
VPMM_API vpmm_status vpmm_bound_allocate(vpmm_bound_stream* bound, size_t bytes, size_t alignment,
                                         void** ptr);
VPMM_API vpmm_status vpmm_bound_deallocate(vpmm_bound_stream* bound, void* ptr);

/* --- arenas ---
 * An arena keeps memory of a program together: for captured graphs, for a phase of the program, for
 * registration. It takes stretches of whole pages from its pool and divides them into blocks, whose
 * sizes are multiples of 512 bytes. The functions above free, query and export memory of an arena
 * and record its use on other streams, as for all memory of the pool. A freed block goes back to
 * the arena. Requests of half a page or less share pages, those of up to five pages share stretches
 * of up to ten, which are at most a 16th of what the arena holds.
 *
 * Reuse of a freed block. The stream for which it was allocated and on which it was freed may reuse
 * it at once, also during a capture. Other streams may reuse it once the pool knows that the work
 * is over, unless the arena is pinned. If vpmm_record_use named other streams for it, or it was
 * freed on another stream or on none, nothing reuses it before all of that work is over; the stream
 * of the allocation then has the first claim. Chunks of an arena that is not pinned in which
 * nothing is live go back to the pool in a shortage and in vpmm_trim; above release_threshold whole
 * stretches.
 *
 * Captures. A request or a free on a capturing stream pins the arena; it queues nothing on the GPU
 * and asks it nothing. Graphs that use the same arena may share memory with each other, and with
 * work of their streams outside captures. Order the launches of such graphs one after another, and
 * order them with the work of those streams on memory of the arena. A capturing stream is
 * identified by its handle: it is the stream that last called with this handle outside a capture.
 */
enum {
  VPMM_ARENA_ONE_CHUNK = 1, /* each stretch from the pool is one physical chunk: for registration */
  VPMM_ARENA_NO_SPLIT = 2,  /* each allocation has its own stretch */
  VPMM_ARENA_EXTERNAL = 4   /* its memory comes only from vpmm_arena_add_memory */
};
/* `flags`: bits of the above. `tag` is the caller's label in reports. End the arena with
 * vpmm_arena_release, before its pool. VPMM_ERROR_UNSUPPORTED: there is no virtual memory pool. */
VPMM_API vpmm_status vpmm_arena_create(vpmm_pool* pool, uint32_t flags, uint32_t tag,
                                       vpmm_arena** arena);
VPMM_API vpmm_status vpmm_arena_id(vpmm_arena* arena,
                                   uint64_t* id); /* never 0, never used twice in a process */
/* From here on, requests in the arena are the library's, as with vpmm_request::library. */
VPMM_API vpmm_status vpmm_arena_set_library(vpmm_arena* arena, uint32_t library);
/* Memory of the arena for work queued on `stream` after the call. `alignment` 0: 512 bytes. Zero
 * bytes give null. */
VPMM_API vpmm_status vpmm_arena_allocate(vpmm_arena* arena, size_t bytes, size_t alignment,
                                         vpmm_stream stream, void** ptr);
/* Allocates [ptr, ptr + bytes) inside the arena if it is free, whichever stream freed it: the
 * caller guarantees that no work uses it. `ptr` is a multiple of 512 bytes from the start of the
 * pool's memory, as is every block of an arena. VPMM_ERROR_INVALID_POINTER: not in this arena.
 * VPMM_ERROR_INVALID_ARGUMENT: not free, or, with VPMM_ARENA_NO_SPLIT, not at the start of a
 * stretch. */
VPMM_API vpmm_status vpmm_arena_allocate_at(vpmm_arena* arena, void* ptr, size_t bytes,
                                            vpmm_stream stream);
/* Pins the arena: until its release, its present and future memory keeps its addresses and its
 * physical memory, and only the stream that freed a block reuses it. May be called again. */
VPMM_API vpmm_status vpmm_arena_pin(vpmm_arena* arena);
/* Gives chunks in which nothing is live back to the pool; does nothing while the arena is pinned.
 * `released` (bytes) may be null. */
VPMM_API vpmm_status vpmm_arena_trim(vpmm_arena* arena, size_t* released);
/* Gives your memory to an arena with VPMM_ARENA_EXTERNAL: device memory that is not this pool's and
 * that nothing uses; address and size are multiples of 512 bytes. The memory appears in no figure
 * of the pool and stays yours. You have it back after vpmm_arena_take_memory, or after the arena is
 * released, nothing in it is live and its work is over. A request that does not fit there returns
 * VPMM_ERROR_OUT_OF_MEMORY. VPMM_ERROR_INVALID_ARGUMENT: not such memory, or a part of it already
 * belongs to the pool or to an arena. */
VPMM_API vpmm_status vpmm_arena_add_memory(vpmm_arena* arena, void* ptr, size_t bytes);
/* Waits for the work queued in the device's context. Then gives back one piece of memory, as it was
 * added, in which nothing is live and no work is under way. Null: there is none, or the arena is
 * pinned. `bytes` may be null. VPMM_ERROR_CAPTURE_ACTIVE: a stream is being captured. */
VPMM_API vpmm_status vpmm_arena_take_memory(vpmm_arena* arena, void** ptr, size_t* bytes);
/* Copies the addresses of up to `capacity` live allocations, in ascending order; *count is their
 * number. */
VPMM_API vpmm_status vpmm_arena_live(vpmm_arena* arena, void** ptrs, size_t capacity,
                                     size_t* count);
/* Ends the arena: it accepts no more requests, and the arena pointer is dead. Idle memory becomes
 * available to everyone at once; that of a pinned arena only after all work queued on any stream so
 * far, so do not launch its graphs again. The rest follows when its live allocations are freed.
 * Null does nothing. */
VPMM_API vpmm_status vpmm_arena_release(vpmm_arena* arena);

/* --- stream capture --- */
/* Bracket captures on streams that are never passed to the pool. Pairs nest. */
VPMM_API vpmm_status vpmm_capture_begin(vpmm_pool* pool);
VPMM_API vpmm_status vpmm_capture_end(vpmm_pool* pool);
/* `capture_id` is cuStreamGetCaptureInfo's. Normally the destruction of the graph does this. */
VPMM_API vpmm_status vpmm_capture_release(vpmm_pool* pool, uint64_t capture_id);

/* --- deferring cleanup --- */
/* Between begin and end, the pool does not unmap or release memory on its own account and does not
 * wait on the host: no trim by release_threshold, no delay before growth, no wait for pending
 * any-stream memory. It still reuses complete memory. It still releases memory rather than run out,
 * and your calls (vpmm_trim, vpmm_synchronize) still work. Pairs may nest and overlap, on any
 * threads; calls after the last end catch up. While the process exits they do nothing. */
VPMM_API vpmm_status vpmm_defer_cleanup_begin(vpmm_pool* pool);
VPMM_API vpmm_status vpmm_defer_cleanup_end(vpmm_pool* pool);

/* --- limits --- */
/* Releases idle memory until at most `bytes_to_keep` are mapped. `bytes_released` may be null. */
VPMM_API vpmm_status vpmm_trim(vpmm_pool* pool, size_t bytes_to_keep, size_t* bytes_released);
VPMM_API vpmm_status vpmm_preallocate(vpmm_pool* pool, size_t bytes);
/* Bytes, or VPMM_SHARE_OF_GPU. UINT64_MAX: no limit besides the GPU's. 0 is an error, as in the
 * settings. Memory above the limit stays mapped. */
VPMM_API vpmm_status vpmm_set_capacity(vpmm_pool* pool, uint64_t bytes);
/* The capacity that was set last, at first VPMM_CAPACITY, in bytes. UINT64_MAX: no limit besides
 * the GPU's. */
VPMM_API vpmm_status vpmm_get_capacity(vpmm_pool* pool, uint64_t* bytes);
/* Out-of-memory callbacks are called in turn until one returns nonzero. The request is then tried
 * again; if it fails again, the first callback is called again, at most until callbacks returned
 * nonzero 10000 times for the request. This function sets the first callback, or removes it with
 * null. The previous one may still be running when the call returns.
 */
VPMM_API vpmm_status vpmm_set_out_of_memory_callback(vpmm_pool* pool,
                                                     vpmm_out_of_memory_callback callback,
                                                     void* argument);
/* Adds a further callback. They are called in the order in which they were added. */
VPMM_API vpmm_status vpmm_add_out_of_memory_callback(vpmm_pool* pool,
                                                     vpmm_out_of_memory_callback callback,
                                                     void* argument, uint64_t* id);
/* Ends the call for which an out-of-memory callback or a hook of a suspend runs on this thread,
 * once that returns, with this error and a copy of `text`; a request asks no further callbacks.
 * For languages with exceptions: none may cross from a C++ runtime into another.
 * VPMM_ERROR_INVALID_ARGUMENT: neither runs on this thread, `text` is null, or `status` is VPMM_OK
 * or VPMM_WOULD_BLOCK. */
VPMM_API vpmm_status vpmm_callback_fail(vpmm_status status, const char* text);
/* Once this returns, the callback is not running and will not be called again. A callback may
 * remove itself; it then runs to its end. VPMM_ERROR_INVALID_ARGUMENT: no such id. */
VPMM_API vpmm_status vpmm_remove_out_of_memory_callback(vpmm_pool* pool, uint64_t id);
VPMM_API vpmm_status
vpmm_synchronize(vpmm_pool* pool); /* waits for the device's context, and peers' */
/* Waits, then resets the device's primary context; allocations survive, streams do not. Other
 * threads may make calls that name no stream meanwhile. */
VPMM_API vpmm_status vpmm_reset(vpmm_pool* pool);

/* --- other devices --- */
/* Gives work on another GPU, `device`, access to all present and future memory of the pool, for the
 * life of the pool. The pool's own device always has access. From then on, a wait for "all work"
 * (frees without a stream, vpmm_synchronize) includes the primary context of `device`.
 * cudaDeviceEnablePeerAccess neither applies to this memory nor is needed. Does not wait for the
 * GPU. VPMM_ERROR_INVALID_ARGUMENT: no such device. VPMM_ERROR_UNSUPPORTED: the devices cannot
 * access each other's memory, or a setting takes memory from the driver's pool, which is not
 * covered. After a failure `device` may not use the pool's memory, although some of it may be
 * accessible; call again to complete the change. */
VPMM_API vpmm_status vpmm_set_peer_access(vpmm_pool* pool, int device);

/* --- other processes ---
 * Other processes of the same user on the same machine can open memory of a pool; see
 * docs/guides/multi-process.md. Memory that is freed while another process has it open, or before
 * its export has ended, is reused only afterwards. */
/* Makes a handle for `bytes` bytes at `ptr`. The memory is a whole allocation of any pool of this
 * process, a part of one, or plain driver memory, which uses CUDA's legacy IPC. The first export of
 * a process starts a thread that answers other processes; a later one makes the folder and the
 * socket anew if they were removed. VPMM_ERROR_BAD_CONFIGURATION, VPMM_ERROR_BAD_FILE: the folder
 * must not be used, or holds no socket. The memory can be opened while it is allocated or this
 * export has not ended. End each export once.
 */
VPMM_API vpmm_status vpmm_ipc_export(const void* ptr, size_t bytes, vpmm_ipc_handle* handle);
VPMM_API vpmm_status vpmm_ipc_export_end(const vpmm_ipc_handle* handle);
/* Maps memory of another process for work on `device`; -1: the device that holds it. Opening the
 * same handle again for the same device returns the same address and is counted; close each opening
 * once. Waits at most VPMM_IPC_TIMEOUT for each answer of the exporter.
 * VPMM_ERROR_INVALID_ARGUMENT: a damaged handle, or one of this process. VPMM_ERROR_NOT_SHARED: the
 * exporter is gone, does not answer or serves its maximum of processes, or the memory is freed.
 * VPMM_ERROR_UNSUPPORTED: `device` cannot access the memory; vpmm_ipc_open_staged can.
 * VPMM_ERROR_SUSPENDED: the exporter has suspended the memory, and can resume it. After a failure
 * nothing stays mapped; the next opening or closing repeats what the driver refused to undo. */
VPMM_API vpmm_status vpmm_ipc_open(const vpmm_ipc_handle* handle, int device, void** ptr);
/* Copies the memory into `pool`, on any device, through peer access or host memory. The caller owns
 * the copy and frees it. When the call returns, the copy is complete and the source is closed.
 * While a stream is being captured, the source is closed as by vpmm_ipc_close_deferred. The handle
 * must name its device. Fails as vpmm_ipc_open and vpmm_allocate. */
VPMM_API vpmm_status vpmm_ipc_open_staged(const vpmm_ipc_handle* handle, vpmm_pool* pool,
                                          void** ptr);
/* Waits for the work of the device's context, then unmaps the memory. Call it once for each
 * opening, with the address that the opening returned. Memory of a process that has ended stays
 * valid until then. VPMM_ERROR_CAPTURE_ACTIVE: a stream is being captured, and the wait would break
 * the capture; the memory stays open. */
VPMM_API vpmm_status vpmm_ipc_close(void* ptr);
/* The same for destructors and finalizers. If a capture prevents the closing, a later call that
 * opens or closes memory of other processes completes it. */
VPMM_API void vpmm_ipc_close_deferred(void* ptr);
/* Makes a handle, without its device, from a token of a pool's memory. VPMM_ERROR_INVALID_ARGUMENT:
 * not such a token (perhaps a CUipcMemHandle), or a damaged one. Contacts no process. */
VPMM_API vpmm_status vpmm_ipc_read_token(const unsigned char token[64], vpmm_ipc_handle* handle);

/* --- events --- */
/* Calls `callback` for each event whose bit (1u << kind) is set in `kinds`, in the order of the
 * events, until it is removed. The callback runs on the thread that causes the event, under the
 * pool's lock: it must be short and call no vpmm function. MAP precedes the ALLOCATE of memory
 * there; UNMAP follows the FREE, except for a SUSPEND. A chunk that moves has an UNMAP for its old
 * address, then a MAP for the new one; the old address stays reserved until the work queued before
 * is over. A failed call leaves no events for steps that were undone. The end of a pool has no
 * events. While ALLOCATE or FREE is enabled, all calls take the pool's lock. Allocations made
 * before this call, or concurrently with it, have no ALLOCATE. VPMM_ERROR_INVALID_ARGUMENT: no
 * kind; VPMM_ERROR_UNSUPPORTED: an unknown kind. */
VPMM_API vpmm_status vpmm_add_event_callback(vpmm_pool* pool, uint32_t kinds,
                                             vpmm_event_callback callback, void* argument,
                                             uint64_t* id);
/* Once this returns, the callback is not running and will not be called.
 * VPMM_ERROR_INVALID_ARGUMENT: no such id. */
VPMM_API vpmm_status vpmm_remove_event_callback(vpmm_pool* pool, uint64_t id);

/* --- messages --- */
/* Sends the messages that VPMM_LOG enables to `callback`; null: back to standard error. There is
 * one callback for the process. Any thread calls it where the message arises, several threads at
 * once, and locks of the library may be held. So it must be short, must not wait for a thread that
 * calls the library, and must call no vpmm function. Messages also arise while the process exits.
 * The previous callback may still be running when the call returns. */
VPMM_API vpmm_status vpmm_set_log_callback(vpmm_log_callback callback, void* argument);

/* --- observing --- */
VPMM_API vpmm_status vpmm_pool_device(vpmm_pool* pool, int* device);
/* Bytes that the pool can serve in one request now, after waits if need be, within its capacity:
 * what can be mapped, and idle memory that can move. A request that fits into trapped memory may be
 * larger. And the memory of the device, or the capacity if that is less. Asks the driver. */
VPMM_API vpmm_status vpmm_memory_info(vpmm_pool* pool, uint64_t* free_bytes, uint64_t* total_bytes);
VPMM_API vpmm_status vpmm_get_statistics(vpmm_pool* pool, vpmm_statistics* statistics);
VPMM_API vpmm_status vpmm_reset_peaks(vpmm_pool* pool);
/* Copies up to `capacity` regions in ascending address order; *count is the number of regions. */
VPMM_API vpmm_status vpmm_snapshot(vpmm_pool* pool, vpmm_region* regions, size_t capacity,
                                   size_t* count);
/* A snapshot of all memory of the pool, down to blocks below a page, and of its physical chunks.
 * Concurrent allocations and frees through stream caches may or may not appear. Release it with
 * vpmm_layout_release. */
VPMM_API vpmm_status vpmm_layout_take(vpmm_pool* pool, vpmm_layout* layout);
VPMM_API void vpmm_layout_release(
    vpmm_layout* layout); /* does nothing for null or a layout already released */
/* Text or JSON; the caller frees it with vpmm_string_free. */
VPMM_API vpmm_status vpmm_dump_text(vpmm_pool* pool, char** text);
VPMM_API vpmm_status vpmm_dump_json(vpmm_pool* pool, char** text);
/* Which guarded allocation holds `address`, ends before it or begins behind it: its size, stream,
 * tag, times and stacks, live or freed. With VPMM_GUARD only, also after the GPU has failed. */
VPMM_API vpmm_status vpmm_explain(vpmm_pool* pool, const void* address, char** text);
VPMM_API void vpmm_string_free(char* text);
/* Records the pool to a file that `vpmm replay` reads. A name that ends in .csv or .csv.gz records
 * allocations and frees as lines, plain or compressed; any other name records all events, in
 * blocks. A recording that is not stopped is finished when the process exits; if the process
 * aborts, the file lacks the last calls. A file that stops accepting data delays calls once, for at
 * most a second; then calls are dropped, and vpmm_record_stop returns VPMM_ERROR_BAD_FILE and
 * reports the number dropped, or, after ten seconds, that the file is not finished. A call that
 * writes lines to a pipe waits until the pipe has a reader. */
VPMM_API vpmm_status vpmm_record_start(vpmm_pool* pool, const char* path);
VPMM_API vpmm_status vpmm_record_stop(vpmm_pool* pool);

typedef struct vpmm_record_options {
  size_t size; /* sizeof(vpmm_record_options) */
  const char* path;
  const char* stacks; /* for allocations: "native", "python" or "both"; null or "none": none */
  uint64_t sample;    /* records one allocation in so many, and its free; 0 and 1: all */
  uint64_t limit; /* bytes of the file, at least 65536; a longer recording drops its oldest part; 0:
                     no limit */
  uint64_t window_ns; /* how far back the file must reach; events more than twice as old are
                         dropped; 0: keep all */
} vpmm_record_options;
/* Records with options. `limit` and `window_ns` need a regular file. They, `stacks` and `sample`
 * apply only to events in blocks: with a name that ends in .csv or .csv.gz each of them is
 * VPMM_ERROR_INVALID_ARGUMENT. */
VPMM_API vpmm_status vpmm_record_start_with(vpmm_pool* pool, const vpmm_record_options* options);
/* Adds a text to the recording of the pool, or of each pool of the process if `pool` is null,
 * between the events before the call and those after it. Without a recording it does nothing, with
 * one exception: if `pool` is null, no pool is open and VPMM_RECORD requests recordings, the next
 * recording begins with the text. */
VPMM_API vpmm_status vpmm_record_mark(vpmm_pool* pool, const char* text);
/* Supplies frames of another language for the stacks "python" and "both". An allocation calls
 * `capture` on its thread, without a lock of the pool: `capture` writes up to `most` frame numbers,
 * innermost first, and returns how many. A number identifies the same frame for the life of the
 * process. `describe` follows on the same thread, for each frame of a stack not seen before: it
 * returns file, line and function as texts that are valid until its next call. Both may call vpmm
 * functions, but must not allocate. Null functions remove the provider; a call in progress may
 * still use it.
 */
typedef size_t (*vpmm_stack_capture)(void* argument, uint64_t* frames, size_t most);
typedef void (*vpmm_stack_describe)(void* argument, uint64_t frame, const char** file,
                                    uint64_t* line, const char** function);
VPMM_API vpmm_status vpmm_set_stack_callback(vpmm_stack_capture capture,
                                             vpmm_stack_describe describe, void* argument);

#ifdef __cplusplus
}
#endif

#include "vpmm/tags.h"

#endif
