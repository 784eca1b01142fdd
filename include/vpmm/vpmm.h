/* vpmm: the C ABI. One GPU memory pool for everything in a process.
 *
 * Rules for all functions, unless said otherwise:
 * - Thread-safe. Any CUDA context, or none, may be current; it is left as it was.
 * - Sizes are bytes. Device pointers are CUdeviceptr values as void*.
 * - A stream is a CUstream / cudaStream_t value (0, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD included). The pool never
 *   keeps it beyond the call.
 * - No function waits for the GPU unless memory would otherwise run out, or too much any-stream memory is pending. By
 *   default an allocation that would map more than was ever mapped may look for up to 12 ms whether the GPU is done
 *   with what was freed.
 * - What one pool holds idle is no reason for another to run out: where the GPU is full, and no stream is known to be
 *   captured, the pools of the process give back what they hold idle and what is complete before a call fails, also
 *   what was mapped ahead.
 * - On failure nothing has changed; vpmm_last_error() describes it. Output parameters are written on success only.
 * - Structs begin with `size`: set it to sizeof the struct as you compiled it. Older, shorter structs keep working.
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
  VPMM_ERROR_INVALID_ARGUMENT = 1,   /* a size, alignment, ordinal, stream or null pointer that is not allowed */
  VPMM_ERROR_INVALID_POINTER = 2,    /* not a live allocation of this pool, or not where it starts */
  VPMM_ERROR_OUT_OF_MEMORY = 3,      /* device memory: what lives and the request do not fit, see vpmm_allocate */
  VPMM_ERROR_HOST_OUT_OF_MEMORY = 4, /* of the process itself; nothing has changed: a free is to be made again */
  VPMM_ERROR_BAD_CONFIGURATION = 5,  /* a setting has a value that is not allowed; the message names it */
  VPMM_ERROR_UNSUPPORTED = 6,        /* this device or driver cannot do it */
  VPMM_ERROR_NO_DRIVER = 7,          /* no CUDA driver on this machine */
  VPMM_ERROR_DRIVER_FAILED = 8,      /* a driver call failed */
  VPMM_ERROR_POISONED = 9,           /* the GPU context is broken by a sticky error; no more driver calls are made */
  VPMM_ERROR_PROCESS_ENDING = 10,    /* the process exits, or this is a forked child */
  VPMM_ERROR_CAPTURE_ACTIVE = 11,    /* not possible while a stream is being captured */
  VPMM_ERROR_BAD_FILE = 12,          /* a file is missing, malformed or cannot be written */
  VPMM_WOULD_BLOCK = 13,             /* no error: not possible at once; call the ordinary function */
  VPMM_ERROR_NOT_SHARED = 14         /* memory of another process that is gone, does not answer, or took it back */
} vpmm_status;

typedef struct vpmm_pool vpmm_pool;                 /* opaque */
typedef struct vpmm_bound_stream vpmm_bound_stream; /* opaque */
typedef struct vpmm_arena vpmm_arena;               /* opaque */
typedef void* vpmm_stream;

/* Settings of a pool; vpmm_config_init fills in the defaults or the environment's values. */
typedef struct vpmm_config {
  size_t size;
  uint64_t page_size;         /* VPMM_PAGE_SIZE; 0: the device's granularity; UINT64_MAX: off, all stream-ordered */
  uint64_t pages;             /* VPMM_PAGES: preallocated at the first allocation, best effort */
  uint64_t va_size;           /* VPMM_VA_SIZE: bytes of one reservation */
  uint64_t chunk_max;         /* VPMM_CHUNK_MAX: bytes of the largest chunk; 0: `page`, the specification's policy */
  uint64_t release_threshold; /* VPMM_RELEASE_THRESHOLD; UINT64_MAX: keep memory for life */
  uint64_t max_mappings;      /* VPMM_MAX_MAPPINGS */
  uint64_t capacity;          /* VPMM_CAPACITY: most bytes the pool may map; UINT64_MAX: what the GPU has */
  const char* small;          /* VPMM_SMALL: "pool" or "stream_ordered". Null, here and below: the built-in default */
  const char* any_stream;     /* VPMM_ANY_STREAM: "context", "legacy" or "park" */
  const char* log;            /* VPMM_LOG: "quiet", "error", "warning", "info" or "debug" */
  const char* driver;         /* VPMM_DRIVER: "cuda", "sim" or "auto" */
  int unnamed_free_on_allocating_stream; /* 1: vpmm_deallocate_any_stream means the stream it was allocated on */
  const char* prefer;                    /* VPMM_PREFER: "footprint", "balanced" or "latency" */
  int ipc_isolate;                       /* VPMM_IPC_ISOLATE: 1: every allocation has pages and chunks of its own */
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
} vpmm_statistics;

enum {
  VPMM_ALLOCATE_ANY_STREAM = 1, /* as vpmm_allocate_any_stream; `stream` is not looked at */
  VPMM_ALLOCATE_ONE_CHUNK = 2   /* backed by one physical chunk that nothing else shares: for registration, RDMA */
};

/* Set what is not needed to 0. */
typedef struct vpmm_request {
  size_t size;
  size_t bytes;
  size_t alignment; /* 0: the default */
  vpmm_stream stream;
  uint32_t flags; /* VPMM_ALLOCATE_ */
  uint32_t tag;   /* what the caller calls it, for events, layouts and reports; 0: nothing */
} vpmm_request;

typedef enum vpmm_region_state {
  VPMM_REGION_HOLE = 0,
  VPMM_REGION_FREE = 1,
  VPMM_REGION_ALLOCATED = 2,
  VPMM_REGION_ZOMBIE = 3,
  VPMM_REGION_IN_FLIGHT = 4
} vpmm_region_state;

typedef struct vpmm_region {
  void* begin;
  uint64_t bytes;
  uint64_t requested; /* allocated: what was asked for; in a page cut for smaller requests, by all that live there */
  int state;          /* vpmm_region_state */
  int complete;       /* free, zombie: 1 when nothing pending stands against it */
} vpmm_region;

/* Memory in one state, docs/reference/c-abi.md. Later versions use `reserved`. */
typedef struct vpmm_block {
  void* begin;
  uint64_t bytes;
  uint64_t requested; /* allocated: as asked for */
  uint64_t stream_id; /* cuStreamGetId. Allocated: of the allocation; free: may have it at once. 0: none, several */
  uint64_t arena;     /* that it belongs to; 0: none */
  uint32_t tag;       /* allocated: of the request; 0: none */
  uint8_t state;      /* vpmm_region_state, never VPMM_REGION_HOLE */
  uint8_t complete;   /* free, zombie: 1 when it is known that no work uses it any more */
  uint8_t is_small;   /* 1: lies in a page that is cut for requests below a page */
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
  const vpmm_chunk* chunks; /* likewise */
  size_t chunk_count;
  void* owner; /* of both; for vpmm_layout_release */
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

/* Names memory to another process. Plain bytes, all of them set: copy, store, compare or send it. The token alone is
 * enough to open memory of a pool; vpmm_ipc_read_token makes a handle of it. */
typedef struct vpmm_ipc_handle {
  uint32_t kind;     /* vpmm_ipc_kind */
  uint32_t reserved; /* 0 */
  unsigned char token[64];
  uint64_t bytes;                /* of the memory that is meant */
  uint64_t offset;               /* of that memory in its allocation */
  unsigned char device_uuid[16]; /* of the device that it is on; all 0: not known */
} vpmm_ipc_handle;

/* Called without any lock held when an allocation of `bytes` would fail; may free memory of the pool and call any vpmm
 * function. Returns nonzero: memory was freed, try again. */
typedef int (*vpmm_out_of_memory_callback)(void* argument, int device, uint64_t bytes);

typedef enum vpmm_event_kind {
  VPMM_EVENT_ALLOCATE = 0,      /* memory was given to a caller */
  VPMM_EVENT_FREE = 1,          /* a caller gave it back */
  VPMM_EVENT_MAP = 2,           /* a physical chunk came to an address */
  VPMM_EVENT_UNMAP = 3,         /* a physical chunk left it: given back to the driver, or moved */
  VPMM_EVENT_OUT_OF_MEMORY = 4, /* a request failed; out-of-memory callbacks did not help */
  VPMM_EVENT_RECORD_USE = 5,    /* vpmm_record_use named another stream */
  VPMM_EVENT_TRIM = 6,          /* vpmm_trim, or a release threshold, gave idle memory back: after its UNMAPs */
  VPMM_EVENT_ARENA_GROW = 7,    /* an arena has a stretch of memory that is its own from now on: after its MAPs */
  VPMM_EVENT_ARENA_SHRINK = 8   /* it gives the stretch back: after the last FREE in it, before its UNMAPs */
} vpmm_event_kind;

enum { VPMM_EVENT_NO_STREAM = 1 /* the call named no stream */ };

typedef struct vpmm_event {
  size_t size;        /* of the struct as the library has it */
  uint32_t kind;      /* vpmm_event_kind */
  uint32_t tag;       /* of the allocation or the request; 0: none */
  void* ptr;          /* of the allocation; MAP, UNMAP: where the chunk is or was; ARENA_: of the stretch; else null */
  uint64_t bytes;     /* of the chunk, or the stretch; TRIM: given back in all; others: as asked for */
  vpmm_stream stream; /* that the call named */
  uint64_t arena;     /* that the memory belongs to; 0: none */
  uint64_t time_ns;   /* of a clock that never goes back; the simulator's is virtual */
  int32_t device;     /* of the pool */
  uint32_t flags;     /* VPMM_EVENT_NO_STREAM */
} vpmm_event;

typedef enum vpmm_log_level {
  VPMM_LOG_ERROR = 1,
  VPMM_LOG_WARNING = 2,
  VPMM_LOG_INFO = 3,
  VPMM_LOG_DEBUG = 4
} vpmm_log_level;

/* `level` is a vpmm_log_level, `text` one message without a line break at its end, valid for the call. */
typedef void (*vpmm_log_callback)(void* argument, int level, const char* text);

/* `event` is valid for the call. */
typedef void (*vpmm_event_callback)(void* argument, const vpmm_event* event);

/* --- versions and errors --- */
VPMM_API const char* vpmm_version(void);    /* "0.1.0" */
VPMM_API const char* vpmm_last_error(void); /* of the calling thread; valid until its next vpmm call */
VPMM_API const char* vpmm_status_string(vpmm_status status);

/* --- pools --- */
VPMM_API vpmm_status vpmm_config_init(vpmm_config* config);             /* the built-in defaults */
VPMM_API vpmm_status vpmm_config_from_environment(vpmm_config* config); /* and what the VPMM_ variables change */
/* A size as text, as the variables take it: "4096", "64MiB", "2GB". VPMM_ERROR_INVALID_ARGUMENT: it is none. */
VPMM_API vpmm_status vpmm_parse_bytes(const char* text, uint64_t* bytes);
VPMM_API vpmm_status vpmm_device_count(int* count); /* with the driver that VPMM_DRIVER names */
/* The process-wide pool of a device, opened from the environment at the first call. Never destroyed. */
VPMM_API vpmm_status vpmm_default_pool(int device, vpmm_pool** pool);
/* The same pool with settings of your own. When it is open already with others: an error that names the difference. */
VPMM_API vpmm_status vpmm_default_pool_open(int device, const vpmm_config* config, vpmm_pool** pool);
/* A private pool. `config` null: from the environment. Destroy it when nothing of it is in use any more. */
VPMM_API vpmm_status vpmm_pool_create(int device, const vpmm_config* config, vpmm_pool** pool);
VPMM_API vpmm_status vpmm_pool_destroy(vpmm_pool* pool); /* waits for the GPU; null does nothing */

/* --- allocating --- */
/* Memory that work queued on `stream` after the call may use. Aligned to 256 bytes; from one page up to pages (the
 * largest power of two that divides one). Zero bytes give null.
 * The promise: the call succeeds whenever the capacity (vpmm_set_capacity, or what the GPU has for this process) holds
 * all live allocations, each rounded up to pages, the request likewise, and slack, which is at most a hundredth of the
 * capacity. Nothing idle is ever the reason for VPMM_ERROR_OUT_OF_MEMORY. These count as live: memory leased to other
 * processes; memory that belongs to a captured graph; what a pinned arena has, and of others the stretches in which
 * something lives; freed memory that the GPU still uses, where nothing allows the host or `stream` to wait for it.
 * Requests below a page count with the pages that they are cut from. */
VPMM_API vpmm_status vpmm_allocate(vpmm_pool* pool, size_t bytes, vpmm_stream stream, void** ptr);
VPMM_API vpmm_status vpmm_allocate_aligned(vpmm_pool* pool, size_t bytes, size_t alignment, vpmm_stream stream,
                                           void** ptr);
/* Memory that any work queued on any stream after the call may use. `alignment` 0: the default. */
VPMM_API vpmm_status vpmm_allocate_any_stream(vpmm_pool* pool, size_t bytes, size_t alignment, void** ptr);
/* The same with all that can be said of a request. One with VPMM_ALLOCATE_ONE_CHUNK takes at least a page. It is never
 * put together from idle chunks; where memory is short, idle chunks are given back to the driver to make the one.
 * VPMM_ERROR_UNSUPPORTED: a flag that is not known, or one chunk where there is no virtual memory pool. */
VPMM_API vpmm_status vpmm_allocate_with(vpmm_pool* pool, const vpmm_request* request, void** ptr);
/* The same, if it takes no driver call and no wait for a lock that others hold across one; otherwise VPMM_WOULD_BLOCK,
 * also when the request is wrong: vpmm_allocate_any_stream then does it or says why not. For callers that hold a lock
 * of their own, such as an interpreter's. */
VPMM_API vpmm_status vpmm_try_allocate_any_stream(vpmm_pool* pool, size_t bytes, size_t alignment, void** ptr);
/* The same for memory that `stream` freed itself and that is kept for it, and for a free that keeps it: no lock is
 * waited for, and the driver is asked about the stream only. VPMM_WOULD_BLOCK: nothing happened; vpmm_allocate_aligned
 * and vpmm_deallocate do it or say why not. */
VPMM_API vpmm_status vpmm_try_allocate(vpmm_pool* pool, size_t bytes, size_t alignment, vpmm_stream stream, void** ptr);
VPMM_API vpmm_status vpmm_try_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream);
/* Work queued on `stream` before the call is the last to use the memory. Null does nothing. */
VPMM_API vpmm_status vpmm_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream);
/* Work queued on any stream before the call may be the last to use it. */
VPMM_API vpmm_status vpmm_deallocate_any_stream(vpmm_pool* pool, void* ptr);
/* The same for finalizers and callbacks: no lock, no driver call, no wait. Mistakes are counted, not reported. */
VPMM_API void vpmm_deallocate_deferred(vpmm_pool* pool, void* ptr);
/* Work on `stream` uses the memory too; freeing it will wait for what is queued there by then. `ptr` is where the
 * allocation starts, as for freeing it: an address inside is VPMM_ERROR_INVALID_POINTER, and vpmm_query says where it
 * starts. Null does nothing. */
VPMM_API vpmm_status vpmm_record_use(vpmm_pool* pool, void* ptr, vpmm_stream stream);
/* Work queued on `waiting` after the call waits for what is queued on `first` by now. `first` is a stream of the
 * primary context of the pool's device. */
VPMM_API vpmm_status vpmm_stream_wait(vpmm_pool* pool, vpmm_stream waiting, vpmm_stream first);
/* Any address inside an allocation. */
VPMM_API vpmm_status vpmm_query(vpmm_pool* pool, const void* ptr, vpmm_allocation_info* info);
VPMM_API vpmm_status vpmm_usable_size(vpmm_pool* pool, const void* ptr, size_t* bytes);

/* --- many at once --- */
/* ptrs[i] gets bytes[i] for work queued on `stream`; all or none. The stream is looked up once. */
VPMM_API vpmm_status vpmm_allocate_many(vpmm_pool* pool, const size_t* bytes, size_t count, vpmm_stream stream,
                                        void** ptrs);
/* Frees all that it can; the error is that of the first that it could not. Nulls are passed over. After
 * VPMM_ERROR_HOST_OUT_OF_MEMORY make it again: those that were freed are then VPMM_ERROR_INVALID_POINTER. */
VPMM_API vpmm_status vpmm_deallocate_many(vpmm_pool* pool, void* const* ptrs, size_t count, vpmm_stream stream);

/* --- bound streams --- */
/* A stream that the pool knows by an object: no look-up at each call, the fastest way in. Any thread may use it. It
 * must not outlive its stream or the pool, and captures on the stream must be announced with vpmm_capture_begin. After
 * a reset of the CUDA context it is dead: requests fail, frees count as any-stream. `stream` may not be capturing. */
VPMM_API vpmm_status vpmm_stream_bind(vpmm_pool* pool, vpmm_stream stream, vpmm_bound_stream** bound);
VPMM_API void vpmm_stream_unbind(vpmm_bound_stream* bound); /* null does nothing */
/* `alignment` 0: the default. */
VPMM_API vpmm_status vpmm_bound_allocate(vpmm_bound_stream* bound, size_t bytes, size_t alignment, void** ptr);
VPMM_API vpmm_status vpmm_bound_deallocate(vpmm_bound_stream* bound, void* ptr);

/* --- arenas ---
 * Memory that a program keeps together: for captured graphs, for a phase of the program, for registration. An arena
 * takes stretches of whole pages from its pool, and divides them by itself into blocks of whole multiples of 512 bytes.
 * What it hands out is freed, used on other streams, queried and exported by the functions above, like all memory of
 * the pool; what is freed goes back to the arena. Requests of half a page and less share pages.
 *
 * Who may have what was freed: the stream that it was allocated for and freed on, at once, also while it is captured.
 * Others, once the pool knows that the work is over, as long as the arena is not pinned. What vpmm_record_use named
 * other streams for, or what was freed on another stream or on none, serves nobody before all of that work is over;
 * then first of all the stream that it was allocated for. Idle stretches of an arena that is not pinned go back to the
 * pool in a shortage, by vpmm_trim, and above release_threshold.
 *
 * Captures: a request or a free of a capturing stream pins the arena, and nothing is queued or asked of the GPU for it.
 * Graphs that use one arena may use the same memory, also that which their streams use outside captures: order their
 * launches behind each other, and behind and before what those streams do with memory of the arena. A capturing stream
 * is known by its handle: it is the stream that called last with that handle outside a capture. */
enum {
  VPMM_ARENA_ONE_CHUNK = 1, /* each stretch that it takes from the pool is one physical chunk: for registration */
  VPMM_ARENA_NO_SPLIT = 2,  /* each allocation has a stretch of its own */
  VPMM_ARENA_EXTERNAL = 4   /* its memory is what vpmm_arena_add_memory gives it, and no other */
};
/* `flags`: bits of the above. `tag` is yours, and reports name it. The arena ends with vpmm_arena_release, before its
 * pool. VPMM_ERROR_UNSUPPORTED: there is no virtual memory pool. */
VPMM_API vpmm_status vpmm_arena_create(vpmm_pool* pool, uint32_t flags, uint32_t tag, vpmm_arena** arena);
VPMM_API vpmm_status vpmm_arena_id(vpmm_arena* arena, uint64_t* id); /* never 0, never used twice in a process */
/* Memory inside the arena that work queued on `stream` after the call may use. `alignment` 0: 512 bytes. Zero bytes
 * give null. */
VPMM_API vpmm_status vpmm_arena_allocate(vpmm_arena* arena, size_t bytes, size_t alignment, vpmm_stream stream,
                                         void** ptr);
/* [ptr, ptr + bytes) inside the arena, where it is free, whoever freed it: you know that nothing uses it. `ptr` is a
 * whole multiple of 512 bytes from where the pool's memory begins, as all that an arena hands out.
 * VPMM_ERROR_INVALID_POINTER: not of this arena. VPMM_ERROR_INVALID_ARGUMENT: not free, or, with VPMM_ARENA_NO_SPLIT,
 * not at the begin of a stretch. */
VPMM_API vpmm_status vpmm_arena_allocate_at(vpmm_arena* arena, void* ptr, size_t bytes, vpmm_stream stream);
/* From now on all that the arena has, and gets, keeps its address and its memory until it is released, and what a
 * stream freed serves that stream alone. May be called again. */
VPMM_API vpmm_status vpmm_arena_pin(vpmm_arena* arena);
/* Idle stretches go back to the pool; nothing while it is pinned. `released` may be null. */
VPMM_API vpmm_status vpmm_arena_trim(vpmm_arena* arena, size_t* released);
/* Memory of yours for an arena with VPMM_ARENA_EXTERNAL to divide: device memory that is not this pool's, at a whole
 * multiple of 512 bytes and as long, which nothing uses. It counts in no figure of the pool and stays yours: take it
 * back with the next function, or, once its work is over, when the arena is released and nothing in it lives. A request
 * that finds no room there is VPMM_ERROR_OUT_OF_MEMORY. VPMM_ERROR_INVALID_ARGUMENT: no such memory, or part of it is
 * the pool's or an arena's already. */
VPMM_API vpmm_status vpmm_arena_add_memory(vpmm_arena* arena, void* ptr, size_t bytes);
/* Waits for the work that is queued in the device's context, then gives back a piece in which nothing lives and no work
 * is under way, as it was added; null: there is none, or the arena is pinned. `bytes` may be null.
 * VPMM_ERROR_CAPTURE_ACTIVE: not now. */
VPMM_API vpmm_status vpmm_arena_take_memory(vpmm_arena* arena, void** ptr, size_t* bytes);
/* Copies up to `capacity` of the live allocations, in ascending order; *count is how many there are. */
VPMM_API vpmm_status vpmm_arena_live(vpmm_arena* arena, void** ptrs, size_t capacity, size_t* count);
/* No more requests. Its memory is everybody's again: what is idle now (of a pinned arena behind all work that is queued
 * on any stream by now: its graphs are not launched again), the rest when what is live in it is freed. The arena
 * pointer is dead. Null does nothing. */
VPMM_API vpmm_status vpmm_arena_release(vpmm_arena* arena);

/* --- stream capture --- */
/* Bracket captures on streams that are never passed to the pool. */
VPMM_API vpmm_status vpmm_capture_begin(vpmm_pool* pool);
VPMM_API vpmm_status vpmm_capture_end(vpmm_pool* pool);
/* `capture_id` as cuStreamGetCaptureInfo gave it. Normally the graph's destruction does this. */
VPMM_API vpmm_status vpmm_capture_release(vpmm_pool* pool, uint64_t capture_id);

/* --- putting off what takes time --- */
/* Between them the pool unmaps and releases nothing by itself, and does not wait on the host: no trim by
 * release_threshold, no delay before growth, no wait for any-stream memory that is pending. What is complete is used
 * again all the same. Running out of memory comes first, and so does what you call (vpmm_trim, vpmm_synchronize). Pairs
 * may nest and overlap, on any threads; calls after the last end catch up. While the process ends they do nothing. */
VPMM_API vpmm_status vpmm_defer_cleanup_begin(vpmm_pool* pool);
VPMM_API vpmm_status vpmm_defer_cleanup_end(vpmm_pool* pool);

/* --- limits --- */
/* Gives idle memory back until at most `bytes_to_keep` are mapped. `bytes_released` may be null. */
VPMM_API vpmm_status vpmm_trim(vpmm_pool* pool, size_t bytes_to_keep, size_t* bytes_released);
VPMM_API vpmm_status vpmm_preallocate(vpmm_pool* pool, size_t bytes);
/* UINT64_MAX: no limit of ours. 0 is an error, as in the settings; what is mapped stays, whatever the limit. */
VPMM_API vpmm_status vpmm_set_capacity(vpmm_pool* pool, uint64_t bytes);
/* Callbacks are asked one after the other until one returns nonzero; then the request is tried again, and if that fails
 * the first is asked again. This sets, or with null takes away, the one that is asked first; it may still be running
 * when the call returns. */
VPMM_API vpmm_status vpmm_set_out_of_memory_callback(vpmm_pool* pool, vpmm_out_of_memory_callback callback,
                                                     void* argument);
/* Others, asked in the order in which they were added. */
VPMM_API vpmm_status vpmm_add_out_of_memory_callback(vpmm_pool* pool, vpmm_out_of_memory_callback callback,
                                                     void* argument, uint64_t* id);
/* Once it has returned, the callback is not running and will not be called; from inside a callback, it may be the
 * caller itself, which then goes on to its end. VPMM_ERROR_INVALID_ARGUMENT: no such id. */
VPMM_API vpmm_status vpmm_remove_out_of_memory_callback(vpmm_pool* pool, uint64_t id);
VPMM_API vpmm_status vpmm_synchronize(vpmm_pool* pool); /* waits for the device's context, and peers' */
/* Waits, then resets the device's primary context; allocations survive, streams do not. Other threads may make calls
 * that name no stream meanwhile. On failure nothing has changed. */
VPMM_API vpmm_status vpmm_reset(vpmm_pool* pool);

/* --- other devices --- */
/* Lets work on `device`, another GPU, use all memory of the pool, present and future, for the pool's life. The pool's
 * own device may use it anyway. From then on what waits for "all work" (frees without a stream, vpmm_synchronize)
 * waits for the primary context of `device` as well. cudaDeviceEnablePeerAccess does not apply to this memory, and is
 * not needed. Does not wait for the GPU. VPMM_ERROR_INVALID_ARGUMENT: no such device; VPMM_ERROR_UNSUPPORTED: the two
 * cannot reach each other's memory, or a setting takes memory from the driver's own pool, which is not covered. On
 * failure `device` may not use the pool's memory, although it may reach some of it; calling again completes that. */
VPMM_API vpmm_status vpmm_set_peer_access(vpmm_pool* pool, int device);

/* --- other processes ---
 * Memory of a pool opens in other processes of the same user on the same machine, docs/guides/multi-process.md. Memory
 * that is freed while another process has it open, or while its export has not ended, is used again only afterwards. */
/* A handle for `bytes` bytes at `ptr`: of any pool of this process, at the begin of an allocation or inside, or of
 * plain driver memory, which goes by CUDA's legacy IPC. The first export of a process starts a thread that answers
 * others. The memory can be opened as long as it is allocated or this export has not ended. Each export ends once. */
VPMM_API vpmm_status vpmm_ipc_export(const void* ptr, size_t bytes, vpmm_ipc_handle* handle);
VPMM_API vpmm_status vpmm_ipc_export_end(const vpmm_ipc_handle* handle);
/* Maps memory of another process for work on `device`; -1: the one that it is on. Opening the same handle again for the
 * same device gives the same address and is counted; each opening is closed once. Each answer of the exporter is waited
 * for, VPMM_IPC_TIMEOUT at most. VPMM_ERROR_INVALID_ARGUMENT: a damaged handle, or one of this process itself.
 * VPMM_ERROR_NOT_SHARED: its process is gone, does not answer or serves as many others as it may, or the memory is
 * freed. VPMM_ERROR_UNSUPPORTED: `device` cannot reach it, and vpmm_ipc_open_staged can. On failure nothing stays
 * mapped; what the driver does not take back is tried again at the next opening or closing. */
VPMM_API vpmm_status vpmm_ipc_open(const vpmm_ipc_handle* handle, int device, void** ptr);
/* A copy in `pool`, on any device, which is the caller's to free: through peer access or host memory. Complete, and the
 * source closed, when it returns; while a stream is being captured the source is closed as by vpmm_ipc_close_deferred.
 * The handle must name its device. */
VPMM_API vpmm_status vpmm_ipc_open_staged(const vpmm_ipc_handle* handle, vpmm_pool* pool, void** ptr);
/* Waits for the work of the device's context, then gives the memory back: to be called once for each opening, with what
 * it gave. Memory of a process that ended meanwhile stays valid until then. VPMM_ERROR_CAPTURE_ACTIVE: not while a
 * stream is being captured, which the wait would break; the memory stays open. */
VPMM_API vpmm_status vpmm_ipc_close(void* ptr);
/* The same for destructors and finalizers: what cannot be closed now, because a stream is being captured, is closed by
 * a later call that opens or closes memory of other processes. */
VPMM_API void vpmm_ipc_close_deferred(void* ptr);
/* The handle that a token of a pool's memory stands for, without its device. VPMM_ERROR_INVALID_ARGUMENT: it is none,
 * but perhaps a CUipcMemHandle, or it is damaged. Asks nobody. */
VPMM_API vpmm_status vpmm_ipc_read_token(const unsigned char token[64], vpmm_ipc_handle* handle);

/* --- events --- */
/* Calls `callback` for each event of the `kinds` that are wanted, a bit (1u << kind) for each, in the order in which
 * they happen, until it is taken away. It is called on the thread that makes the event, under the pool's lock: it must
 * be short and call no vpmm function.
 * MAP comes before the ALLOCATE of what lies there, UNMAP after the FREE. A chunk that moves has an UNMAP of its old
 * place, then a MAP of the new one; the old address stays reserved until work queued before is over. A call that fails
 * leaves no event of what was undone. The end of a pool has no events.
 * While ALLOCATE or FREE is wanted all calls take the pool's lock. Allocations from before, and from calls at the same
 * time, have no ALLOCATE. VPMM_ERROR_INVALID_ARGUMENT: no kind; VPMM_ERROR_UNSUPPORTED: one that is not known. */
VPMM_API vpmm_status vpmm_add_event_callback(vpmm_pool* pool, uint32_t kinds, vpmm_event_callback callback,
                                             void* argument, uint64_t* id);
/* Once it has returned, the callback is not running and will not be called. VPMM_ERROR_INVALID_ARGUMENT: no such id. */
VPMM_API vpmm_status vpmm_remove_event_callback(vpmm_pool* pool, uint64_t id);

/* --- messages --- */
/* Has the messages that VPMM_LOG lets through go to `callback`; null: to standard error again. One for the process.
 * It is called by any thread, several at once, where the message arises: locks of the library may be held, so it must
 * be short, must not wait for a thread that calls the library, and calls no vpmm function. Messages also arise while
 * the process exits. The one that was set before may still be running when the call returns. */
VPMM_API vpmm_status vpmm_set_log_callback(vpmm_log_callback callback, void* argument);

/* --- tags --- */
/* What reports call a tag; process-wide. The text is copied. "" takes it away. */
VPMM_API vpmm_status vpmm_set_tag_name(uint32_t tag, const char* name);
/* "": none was given. Valid as long as the process. */
VPMM_API const char* vpmm_tag_name(uint32_t tag);

/* --- observing --- */
VPMM_API vpmm_status vpmm_pool_device(vpmm_pool* pool, int* device);
VPMM_API vpmm_status vpmm_memory_info(vpmm_pool* pool, uint64_t* free_bytes, uint64_t* total_bytes);
VPMM_API vpmm_status vpmm_get_statistics(vpmm_pool* pool, vpmm_statistics* statistics);
VPMM_API vpmm_status vpmm_reset_peaks(vpmm_pool* pool);
/* Copies up to `capacity` regions in ascending address order; *count is how many there are. */
VPMM_API vpmm_status vpmm_snapshot(vpmm_pool* pool, vpmm_region* regions, size_t capacity, size_t* count);
/* Everything that lies in the pool at one moment, down to blocks below a page, and where its physical chunks are. What
 * threads allocate and free meanwhile from what their streams keep may be in it or not. To be released. */
VPMM_API vpmm_status vpmm_layout_take(vpmm_pool* pool, vpmm_layout* layout);
VPMM_API void vpmm_layout_release(vpmm_layout* layout); /* null, and one that was released, do nothing */
/* Text or JSON; the caller frees it with vpmm_string_free. */
VPMM_API vpmm_status vpmm_dump_text(vpmm_pool* pool, char** text);
VPMM_API vpmm_status vpmm_dump_json(vpmm_pool* pool, char** text);
VPMM_API void vpmm_string_free(char* text);
/* Records what happens in the pool to a file that `vpmm replay` reads: allocations and frees as lines where the name
 * ends in .csv or .csv.gz, else everything, as events in blocks. A recording that is not stopped is finished when the
 * process exits; when it aborts, the file lacks the last calls. A file that takes no bytes holds calls up for a second
 * at most, once: after that calls are left out, and vpmm_record_stop gives VPMM_ERROR_BAD_FILE and says how many, or
 * after ten seconds that the file is not finished. Lines to a pipe wait here until somebody reads it. */
VPMM_API vpmm_status vpmm_record_start(vpmm_pool* pool, const char* path);
VPMM_API vpmm_status vpmm_record_stop(vpmm_pool* pool);

typedef struct vpmm_record_options {
  size_t size; /* sizeof(vpmm_record_options) */
  const char* path;
  const char* stacks; /* of allocations: "native", "python" or "both"; null or "none": none */
  uint64_t sample;    /* one allocation in so many, and its free, is in the file; 0 and 1: all */
  uint64_t limit;     /* bytes of the file, at least 65536; when it has more, its older part is left out; 0: none */
  uint64_t window_ns; /* how far back the file must reach; what is more than twice as old is left out; 0: all of it */
} vpmm_record_options;
/* The same with options. A limit or a window needs a regular file; they, stacks and samples are for events in blocks,
 * so a name that ends in .csv or .csv.gz with any of them is VPMM_ERROR_INVALID_ARGUMENT. */
VPMM_API vpmm_status vpmm_record_start_with(vpmm_pool* pool, const vpmm_record_options* options);
/* Puts a text of the program's between the events before this call and those after it, in the recording of the pool,
 * or of each pool of the process where `pool` is null. Without a recording: nothing; but where `pool` is null, no pool
 * is open and VPMM_RECORD asks for recordings, it is at the begin of the next one. */
VPMM_API vpmm_status vpmm_record_mark(vpmm_pool* pool, const char* text);
/* Frames of another language for the stacks "python" and "both". `capture` is called by an allocation, on its thread
 * and without a lock of the pool: it writes up to `most` numbers of frames, innermost first, and returns how many; a
 * number means the same frame as long as the process runs. `describe` follows on the same thread, for each frame of a
 * stack that was not seen before: it gives file, line and function as texts that are valid until it is called again.
 * Both may call vpmm functions, but not allocate. Null functions take the provider away; a call that is under way may
 * still use it. */
typedef size_t (*vpmm_stack_capture)(void* argument, uint64_t* frames, size_t most);
typedef void (*vpmm_stack_describe)(void* argument, uint64_t frame, const char** file, uint64_t* line,
                                    const char** function);
VPMM_API vpmm_status vpmm_set_stack_callback(vpmm_stack_capture capture, vpmm_stack_describe describe, void* argument);

#ifdef __cplusplus
}
#endif

#endif
