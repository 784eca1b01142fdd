/* SPDX-License-Identifier: Apache-2.0 */
/* vpmm: tags of memory, and memory that is suspended and resumed. Part of vpmm.h, whose rules
 * apply.
 */
#ifndef VPMM_TAGS_H
#define VPMM_TAGS_H

#include "vpmm/vpmm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- tags ---
 * A tag is a label of memory, a number other than 0, with a name for people. Tags are of the whole
 * process; the memory of a tag is of one pool. */
/* Names a tag in reports, for the whole process. The text is copied. "" removes the name. */
VPMM_API vpmm_status vpmm_set_tag_name(uint32_t tag, const char* name);
/* "": the tag has no name. The text stays valid for the life of the process. */
VPMM_API const char* vpmm_tag_name(uint32_t tag);
/* The tag with this name. If there is none, a new tag gets the name: 2^31 and above.
 * VPMM_ERROR_INVALID_ARGUMENT: the name is "". */
VPMM_API vpmm_status vpmm_tag_with_name(const char* name, uint32_t* tag);
/* For a library that allocates from pools: the tag with the library's name, if VPMM_TAG_LIBRARIES=1
 * or VPMM_LIMITS asks for it; 0: its requests need no tag, and are faster without one. Pass it as
 * vpmm_request::library: the library's memory is then counted, also where it has another tag.
 * VPMM_ERROR_BAD_CONFIGURATION: a variable has another value. */
VPMM_API vpmm_status vpmm_library_tag(const char* library, uint32_t* tag);

/* --- suspend and resume ---
 * Memory of a suspendable tag lies in an arena of its own, in chunks that no other memory shares.
 * Suspended, it keeps its addresses and gives up its physical memory; resumed, it has physical
 * memory at the same addresses again, with its contents if they were copied to the host. Any arena
 * can be suspended, except an external one. An arena created with a suspendable tag is suspended
 * and resumed with the tag.
 *
 * While memory is suspended:
 * - Work on the GPU must not touch it: the access is a fault, as to any address that is not mapped.
 *   Captured graphs stay valid, but must not be launched.
 * - Requests in the tag or arena fail with VPMM_ERROR_SUSPENDED; so do exports to other
 *   processes, and their openings of it.
 * - Frees succeed. They drop the host copy of the memory, and its address when its stretch is idle.
 * - It is live to vpmm_query, vpmm_arena_live and layouts, and counts in suspended_bytes only: not
 *   in mapped_bytes, live_bytes or the capacity, nor as free memory of the pool.
 * - vpmm_reset and a reset by others keep its host copy.
 * The end of the process and vpmm_pool_destroy drop it. */
enum {
  VPMM_TAG_BACKUP = 1,        /* suspended, its contents are kept on the host */
  VPMM_TAG_KEEP_HOST_COPY = 2 /* the host copy stays allocated and pinned after a resume, for the
                                 next suspend */
};
/* Makes memory of `tag` in this pool suspendable. `flags`: VPMM_TAG_BACKUP or none: its contents
 * are discarded. Call it before the tag is entered or requested; memory that has the tag already
 * stays as it is. Repeated calls change the flags,
 * VPMM_TAG_KEEP_HOST_COPY for resumes from then on. VPMM_ERROR_INVALID_ARGUMENT: tag 0, unknown
 * flags. VPMM_ERROR_UNSUPPORTED: there is no virtual memory pool. */
VPMM_API vpmm_status vpmm_tag_make_suspendable(vpmm_pool* pool, uint32_t tag, uint32_t flags);
typedef enum vpmm_tag_scope {
  VPMM_TAG_OF_PROCESS = 0, /* requests of all threads, such as those of loaders and autograd */
  VPMM_TAG_OF_THREAD = 1   /* requests of the calling thread */
} vpmm_tag_scope;
/* From here on, requests in the pool that name no arena and no tag have this tag, until
 * vpmm_tag_leave. An arena created without a tag has it, too. Tags nest. Of the tags that the
 * calling thread entered, for itself or for the process, the last one serves; of a thread that
 * entered none, the last one of the process. A tag of the process takes memory of all libraries on
 * this device. While a tag is entered, all calls take the pool's lock. */
VPMM_API vpmm_status vpmm_tag_enter(vpmm_pool* pool, uint32_t tag, vpmm_tag_scope scope);
/* Ends the last entry of the tag with this scope. Any thread may end one of the process.
 * VPMM_ERROR_INVALID_ARGUMENT: not entered. */
VPMM_API vpmm_status vpmm_tag_leave(vpmm_pool* pool, uint32_t tag, vpmm_tag_scope scope);
/* The tag that a request of the calling thread would have, 0: none; and the number of its entry,
 * higher for later ones. `entry` may be null. */
VPMM_API vpmm_status vpmm_tag_entered(vpmm_pool* pool, uint32_t* tag, uint64_t* entry);
/* A number between those of the entries so far and those to come, to compare with `entry`; 0: no
 * tag was entered yet in this process. Takes no lock. */
VPMM_API uint64_t vpmm_tag_entries(void);

enum {
  VPMM_SUSPEND_BACKUP = 1,  /* copies the contents to the host, */
  VPMM_SUSPEND_DISCARD = 2, /* or does not. Neither: as the tag says; an arena without a suspendable
                               tag: copies */
  VPMM_SUSPEND_KEEP_HOST_COPY = 4, /* as VPMM_TAG_KEEP_HOST_COPY */
  VPMM_SUSPEND_TO_DRIVER = 8, /* the physical memory goes back to the driver, for other processes;
                                 otherwise it stays idle in the pool, for its next requests */
  VPMM_SUSPEND_AFTER_STREAM = 16 /* waits for the work queued on `stream`, and for that of freed
                                    memory; otherwise for all work of the device's context */
};
/* Suspends all memory of the tag in this pool, all of it or none; tag 0: of all suspendable tags.
 * Memory that is suspended already stays so. Waits for the GPU. With VPMM_SUSPEND_AFTER_STREAM the
 * caller states that all work that uses the memory is queued on `stream`, or is ordered before it;
 * memory of captured graphs waits for the whole context nevertheless. Then copies through pinned
 * buffers, by several threads, only what is live. Errors leave the memory as it was; but if the
 * driver refuses to unmap, and refuses the undo as well, what it did unmap stays suspended with its
 * copy, and a resume brings it back:
 * VPMM_ERROR_INVALID_ARGUMENT: no suspendable tag, or unknown flags.
 * VPMM_ERROR_CAPTURE_ACTIVE: a stream is being captured.
 * VPMM_ERROR_NOT_SHARED: another process, or a handle for one, holds memory of it; the message has
 * address and counts, not the number of the process.
 * VPMM_ERROR_HOST_OUT_OF_MEMORY: the host has less free memory than the copy takes. Host copies are
 * as they were then, too.
 * VPMM_ERROR_SUSPENDED: another thread is suspending or resuming it. */
VPMM_API vpmm_status vpmm_suspend(vpmm_pool* pool, uint32_t tag, uint32_t flags,
                                  vpmm_stream stream);
VPMM_API vpmm_status vpmm_arena_suspend(vpmm_arena* arena, uint32_t flags, vpmm_stream stream);
/* Takes the host memory for the next copy now, as much as is live in the tag with backup now, and
 * pins it if copies are kept; tag 0: of all suspendable tags. The first suspend is then as fast as
 * later ones: taking fresh memory from the system can last longer than the copy. A resume that does
 * not keep the copy gives it back. Does not wait for the GPU. Errors of vpmm_suspend for tag, host
 * memory and other threads; nothing has changed then. */
VPMM_API vpmm_status vpmm_prepare_suspend(vpmm_pool* pool, uint32_t tag);
enum {
  VPMM_RESUME_ZERO = 1, /* sets memory without a host copy to zero; otherwise its contents are
                           undefined */
  VPMM_RESUME_WITHOUT_COPY = 2 /* does not copy back, and drops the contents of the host copy: for
                                  memory that the caller overwrites */
};
/* Gives suspended memory physical memory again, at its addresses, all of it or none; tag 0: of all
 * suspendable tags. The contents are there when the call returns. VPMM_ERROR_OUT_OF_MEMORY: it does
 * not fit; the message is a request's, and everything stays suspended. VPMM_ERROR_CAPTURE_ACTIVE
 * and VPMM_ERROR_SUSPENDED: as above. */
VPMM_API vpmm_status vpmm_resume(vpmm_pool* pool, uint32_t tag, uint32_t flags);
VPMM_API vpmm_status vpmm_arena_resume(vpmm_arena* arena, uint32_t flags);

/* Limits the memory of a tag in this pool: a request that would bring the bytes that its live
 * allocations asked for above `bytes` fails with VPMM_ERROR_OUT_OF_MEMORY, after the out-of-memory
 * callbacks. Suspended memory counts. What the tag has already stays. VPMM_NO_LIMIT ends the limit,
 * VPMM_SHARE_OF_CAPACITY is a share, 1 to 100 percent, of the capacity at the time of a request, or
 * of the GPU's memory without one. VPMM_LIMITS sets limits by name when a pool is made.
 * VPMM_ERROR_INVALID_ARGUMENT: tag 0, or another share. */
#define VPMM_NO_LIMIT UINT64_MAX
#define VPMM_SHARE_OF_CAPACITY(percent) \
  ((percent) >= 1 && (percent) <= 100 ? UINT64_MAX - (uint64_t)(percent) : UINT64_MAX - 101)
VPMM_API vpmm_status vpmm_tag_set_limit(vpmm_pool* pool, uint32_t tag, uint64_t bytes);

typedef enum vpmm_tag_state {
  VPMM_TAG_LIVE = 0,
  VPMM_TAG_SUSPENDED = 1, /* with a host copy */
  VPMM_TAG_DISCARDED = 2, /* suspended without one */
  VPMM_TAG_CHANGING = 3   /* another thread is suspending or resuming it */
} vpmm_tag_state;
typedef struct vpmm_tag_info {
  size_t size;
  uint32_t flags;           /* VPMM_TAG_; 0: not suspendable, or without a copy */
  int state;                /* vpmm_tag_state; of the first arena that is not live */
  uint64_t live_bytes;      /* of its allocations as requested, suspended or not */
  uint64_t mapped_bytes;    /* of its physical memory */
  uint64_t suspended_bytes; /* of its addresses without physical memory */
  uint64_t host_bytes;      /* of its host copies, kept ones included */
  uint64_t limit_bytes;     /* VPMM_NO_LIMIT: none */
  uint64_t library_bytes;   /* of live allocations of the library with the tag's name, as requested,
                               whichever tags they have */
} vpmm_tag_info;
/* A tag that is not suspendable has mapped_bytes 0: its memory shares chunks with others.
 * VPMM_ERROR_INVALID_ARGUMENT: tag 0. */
VPMM_API vpmm_status vpmm_tag_get_info(vpmm_pool* pool, uint32_t tag, vpmm_tag_info* info);
/* Copies up to `capacity` tags, ascending: those with live_bytes or library_bytes in this pool,
 * with a limit, or suspendable. *count is their number. */
VPMM_API vpmm_status vpmm_tags(vpmm_pool* pool, uint32_t* tags, size_t capacity, size_t* count);
/* Copies up to `capacity` suspendable tags, ascending; *count is their number. */
VPMM_API vpmm_status vpmm_suspendable_tags(vpmm_pool* pool, uint32_t* tags, size_t capacity,
                                           size_t* count);
/* 1: `ptr` is in live memory that is suspended. VPMM_ERROR_INVALID_POINTER: not in live memory. */
VPMM_API vpmm_status vpmm_is_suspended(vpmm_pool* pool, const void* ptr, int* is_suspended);
/* Where `bytes` bytes at `ptr`, inside one allocation, are on the host. While the allocation is
 * suspended the caller may read and write them, until it is resumed or freed. After a resume that
 * kept the host copy the caller may read them, as they were when the resume ended, until the next
 * suspend or free. VPMM_ERROR_INVALID_POINTER: no host copy. */
VPMM_API vpmm_status vpmm_host_copy(vpmm_pool* pool, const void* ptr, size_t bytes, void** host);
/* Called without a lock, on the thread that suspends or resumes. It may call any vpmm function but
 * those that suspend or resume. Nonzero from `before_unmap`: the suspend fails with
 * VPMM_ERROR_INVALID_ARGUMENT, or the error of vpmm_callback_fail, and `after_map` is called for
 * those that succeeded. After vpmm_callback_fail in `after_map` the others are called, and the
 * call fails with the first such error; what it did stays done. */
typedef int (*vpmm_suspend_hook)(void* argument, int device, uint32_t tag);
/* For users who registered memory of the tag elsewhere. `before_unmap` is called once, before the
 * first memory of `tag` is suspended since the hooks were added, in the order in which they were;
 * `after_map` in the reverse order when all its contents are back, or when the suspend failed and
 * left none of it suspended. If what slept was released, the next resume calls it. While
 * `after_map` runs, another thread may suspend the tag, and `before_unmap` may begin: threads that
 * share a tag with hooks take turns. Either may be null. */
VPMM_API vpmm_status vpmm_add_suspend_hooks(vpmm_pool* pool, uint32_t tag,
                                            vpmm_suspend_hook before_unmap,
                                            vpmm_suspend_hook after_map, void* argument,
                                            uint64_t* id);
/* Once this returns, the hooks are not running and will not be called. A hook may remove itself.
 * VPMM_ERROR_INVALID_ARGUMENT: no such id. */
VPMM_API vpmm_status vpmm_remove_suspend_hooks(vpmm_pool* pool, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
