/* SPDX-License-Identifier: Apache-2.0 */
/* hunt: the simulated GPU for programs in C that vpmm_hunt prints.
 *
 * libvpmm_stage.so has these functions beside those of vpmm/vpmm.h. Streams, kernels and graphs are
 * simulated, and the hazard checker watches. */
#ifndef VPMM_HUNT_STAGE_H_
#define VPMM_HUNT_STAGE_H_

#include <stddef.h>
#include <stdint.h>
#include <vpmm/vpmm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Counts a call that fails for another reason than memory. */
VPMM_API void stage_check(vpmm_status expected, vpmm_status status, const char* call);
#define CALL(call) stage_check(VPMM_OK, (call), #call)
#define EXPECT(status, call) stage_check((status), (call), #call)

/* After stage_break(): counts a call that fails for another reason. */
VPMM_API void stage_check_broken(vpmm_status status, const char* call);
#define BROKEN(call) stage_check_broken((call), #call)

VPMM_API void stage_open(int devices, uint64_t capacity, uint64_t seed, int schedule,
                         uint64_t lag_ns, int has_virtual_memory, int has_memory_pools,
                         int has_context_events);
/* The `nth` driver call of that kind gives `result`, in the next call of the pool alone. */
VPMM_API void stage_fault(int call, int result, uint64_t nth);
/* Each driver call on the device's context gives `result` from now on. */
VPMM_API void stage_break(int device, int result);
/* Pools after it cut own pages for each stream at once. */
VPMM_API void stage_crowd(void);
VPMM_API vpmm_pool* stage_pool(int device, const vpmm_config* config);
VPMM_API void stage_pool_close(vpmm_pool* pool);
VPMM_API void stage_allocate_many_any_stream(vpmm_pool* pool, const size_t* bytes, size_t count,
                                             void** ptrs);
VPMM_API void stage_allocate_tagged(vpmm_pool* pool, size_t bytes, uint32_t tag, int one_chunk,
                                    vpmm_stream stream, int is_named, void** ptr);
VPMM_API void stage_synchronize(vpmm_pool* pool, int is_refused);

VPMM_API vpmm_stream stage_stream(int device, int is_blocking);
VPMM_API void stage_stream_destroy(int device, vpmm_stream stream);
/* `second` waits for the work on `first`. */
VPMM_API void stage_order(int device, vpmm_stream first, vpmm_stream second);
/* Kernels. A read that finds another value counts as a failure. Null memory: nothing is done. */
VPMM_API void stage_write(int device, void* ptr, size_t bytes, int value, vpmm_stream stream);
VPMM_API void stage_read(int device, void* ptr, size_t bytes, int value, vpmm_stream stream);
VPMM_API void stage_spin(int device, vpmm_stream stream, uint64_t ns);
VPMM_API void stage_capture_begin(int device, vpmm_stream stream, int mode);
VPMM_API int stage_capture_end(int device, vpmm_stream stream); /* the number of a graph */
VPMM_API void stage_launch(int device, int graph, vpmm_stream stream);
VPMM_API void stage_capture_release(vpmm_pool* pool, int graph);
VPMM_API void stage_graph_destroy(int graph);

VPMM_API void stage_others_use(int device, uint64_t bytes); /* of its memory */
VPMM_API void stage_pass(uint64_t ns);                      /* time on the host */
VPMM_API void stage_step(uint64_t count);                   /* operations of the GPU */
VPMM_API void stage_run_until_idle(void);
VPMM_API void stage_reset(int device, int waits_first); /* of the context, by others */
/* Prints hazards and other failures. Returns their number, at most 100. */
VPMM_API int stage_end(void);

#ifdef __cplusplus
}
#endif

#endif
