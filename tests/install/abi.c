/* SPDX-License-Identifier: Apache-2.0 */
/* tests: the C ABI of version 0; tests/install/abi.py writes this. */
/* clang-format off */
#include <stddef.h>
#include <vpmm/vpmm.h>
#include <vpmm/tags.h>
#include <vpmm/emm.h>

#define VALUE(expression, value) _Static_assert(expression == value, #expression)
#define FIELD(type, field, offset, bytes) \
  _Static_assert(offsetof(struct type, field) == offset && \
                 sizeof(((struct type*)0)->field) == bytes, #type "." #field)
// the list

VALUE(VPMM_OK, 0);
VALUE(VPMM_ERROR_INVALID_ARGUMENT, 1);
VALUE(VPMM_ERROR_INVALID_POINTER, 2);
VALUE(VPMM_ERROR_OUT_OF_MEMORY, 3);
VALUE(VPMM_ERROR_HOST_OUT_OF_MEMORY, 4);
VALUE(VPMM_ERROR_BAD_CONFIGURATION, 5);
VALUE(VPMM_ERROR_UNSUPPORTED, 6);
VALUE(VPMM_ERROR_NO_DRIVER, 7);
VALUE(VPMM_ERROR_DRIVER_FAILED, 8);
VALUE(VPMM_ERROR_POISONED, 9);
VALUE(VPMM_ERROR_PROCESS_ENDING, 10);
VALUE(VPMM_ERROR_CAPTURE_ACTIVE, 11);
VALUE(VPMM_ERROR_BAD_FILE, 12);
VALUE(VPMM_WOULD_BLOCK, 13);
VALUE(VPMM_ERROR_NOT_SHARED, 14);
VALUE(VPMM_ERROR_SUSPENDED, 15);
VALUE(VPMM_ALLOCATE_ANY_STREAM, 1);
VALUE(VPMM_ALLOCATE_ONE_CHUNK, 2);
VALUE(VPMM_REGION_HOLE, 0);
VALUE(VPMM_REGION_FREE, 1);
VALUE(VPMM_REGION_ALLOCATED, 2);
VALUE(VPMM_REGION_ZOMBIE, 3);
VALUE(VPMM_REGION_IN_FLIGHT, 4);
VALUE(VPMM_REGION_SUSPENDED, 5);
VALUE(VPMM_IPC_LEGACY, 1);
VALUE(VPMM_IPC_POOL, 2);
VALUE(VPMM_EVENT_ALLOCATE, 0);
VALUE(VPMM_EVENT_FREE, 1);
VALUE(VPMM_EVENT_MAP, 2);
VALUE(VPMM_EVENT_UNMAP, 3);
VALUE(VPMM_EVENT_OUT_OF_MEMORY, 4);
VALUE(VPMM_EVENT_RECORD_USE, 5);
VALUE(VPMM_EVENT_TRIM, 6);
VALUE(VPMM_EVENT_ARENA_GROW, 7);
VALUE(VPMM_EVENT_ARENA_SHRINK, 8);
VALUE(VPMM_EVENT_SUSPEND, 9);
VALUE(VPMM_EVENT_RESUME, 10);
VALUE(VPMM_EVENT_NO_STREAM, 1);
VALUE(VPMM_LOG_ERROR, 1);
VALUE(VPMM_LOG_WARNING, 2);
VALUE(VPMM_LOG_INFO, 3);
VALUE(VPMM_LOG_DEBUG, 4);
VALUE(VPMM_ARENA_ONE_CHUNK, 1);
VALUE(VPMM_ARENA_NO_SPLIT, 2);
VALUE(VPMM_ARENA_EXTERNAL, 4);
VALUE(VPMM_TAG_BACKUP, 1);
VALUE(VPMM_TAG_KEEP_HOST_COPY, 2);
VALUE(VPMM_TAG_OF_PROCESS, 0);
VALUE(VPMM_TAG_OF_THREAD, 1);
VALUE(VPMM_SUSPEND_BACKUP, 1);
VALUE(VPMM_SUSPEND_DISCARD, 2);
VALUE(VPMM_SUSPEND_KEEP_HOST_COPY, 4);
VALUE(VPMM_SUSPEND_TO_DRIVER, 8);
VALUE(VPMM_SUSPEND_AFTER_STREAM, 16);
VALUE(VPMM_RESUME_ZERO, 1);
VALUE(VPMM_RESUME_WITHOUT_COPY, 2);
VALUE(VPMM_TAG_LIVE, 0);
VALUE(VPMM_TAG_SUSPENDED, 1);
VALUE(VPMM_TAG_DISCARDED, 2);
VALUE(VPMM_TAG_CHANGING, 3);
VALUE(VPMM_EMM_DEVICE, 0);
VALUE(VPMM_EMM_MANAGED, 1);
VALUE(VPMM_EMM_PINNED, 2);
VALUE(VPMM_EMM_MAPPED, 3);
VALUE(VPMM_EMM_REGISTERED, 4);
VALUE(VPMM_EMM_REGISTERED_MAPPED, 5);
VALUE(VPMM_EMM_PORTABLE, 1);
VALUE(VPMM_EMM_DEVICE_MAPPED, 2);
VALUE(VPMM_EMM_WRITE_COMBINED, 4);
VALUE(VPMM_EMM_ATTACH_GLOBAL, 1);
VALUE(VPMM_EMM_ATTACH_HOST, 2);
VALUE(VPMM_EMM_IPC_LEGACY, 1);
VALUE(VPMM_EMM_IPC_POOL, 2);
VALUE(VPMM_EMM_HAS_HOST_MEMORY, 1);
VALUE(VPMM_EMM_HAS_MANAGED_MEMORY, 2);
VALUE(VPMM_EMM_HAS_STREAM_ORDER, 4);
VALUE(VPMM_EMM_HAS_IPC, 8);
VALUE(VPMM_EMM_HAS_MEMORY_INFO, 16);
FIELD(vpmm_config, size, 0, 8);
FIELD(vpmm_config, page_size, 8, 8);
FIELD(vpmm_config, pages, 16, 8);
FIELD(vpmm_config, va_size, 24, 8);
FIELD(vpmm_config, chunk_max, 32, 8);
FIELD(vpmm_config, release_threshold, 40, 8);
FIELD(vpmm_config, max_mappings, 48, 8);
FIELD(vpmm_config, capacity, 56, 8);
FIELD(vpmm_config, small, 64, 8);
FIELD(vpmm_config, any_stream, 72, 8);
FIELD(vpmm_config, log, 80, 8);
FIELD(vpmm_config, driver, 88, 8);
FIELD(vpmm_config, unnamed_free_on_allocating_stream, 96, 4);
FIELD(vpmm_config, prefer, 104, 8);
FIELD(vpmm_config, ipc_isolate, 112, 4);
FIELD(vpmm_statistics, size, 0, 8);
FIELD(vpmm_statistics, version, 8, 4);
FIELD(vpmm_statistics, reserved, 12, 4);
FIELD(vpmm_statistics, mapped_bytes, 16, 8);
FIELD(vpmm_statistics, peak_mapped_bytes, 24, 8);
FIELD(vpmm_statistics, live_bytes, 32, 8);
FIELD(vpmm_statistics, peak_live_bytes, 40, 8);
FIELD(vpmm_statistics, allocated_bytes, 48, 8);
FIELD(vpmm_statistics, free_bytes, 56, 8);
FIELD(vpmm_statistics, pending_bytes, 64, 8);
FIELD(vpmm_statistics, largest_free_bytes, 72, 8);
FIELD(vpmm_statistics, reserved_bytes, 80, 8);
FIELD(vpmm_statistics, hole_bytes, 88, 8);
FIELD(vpmm_statistics, zombie_bytes, 96, 8);
FIELD(vpmm_statistics, stream_ordered_bytes, 104, 8);
FIELD(vpmm_statistics, small_bytes, 112, 8);
FIELD(vpmm_statistics, small_free_bytes, 120, 8);
FIELD(vpmm_statistics, quarantined_bytes, 128, 8);
FIELD(vpmm_statistics, live_allocations, 136, 8);
FIELD(vpmm_statistics, free_regions, 144, 8);
FIELD(vpmm_statistics, zombie_regions, 152, 8);
FIELD(vpmm_statistics, chunks, 160, 8);
FIELD(vpmm_statistics, peak_chunks, 168, 8);
FIELD(vpmm_statistics, mappings, 176, 8);
FIELD(vpmm_statistics, peak_mappings, 184, 8);
FIELD(vpmm_statistics, timelines, 192, 8);
FIELD(vpmm_statistics, outstanding_events, 200, 8);
FIELD(vpmm_statistics, allocations, 208, 8);
FIELD(vpmm_statistics, deallocations, 216, 8);
FIELD(vpmm_statistics, failed_allocations, 224, 8);
FIELD(vpmm_statistics, caller_mistakes, 232, 8);
FIELD(vpmm_statistics, hits, 240, 8);
FIELD(vpmm_statistics, plans, 248, 8);
FIELD(vpmm_statistics, failed_plans, 256, 8);
FIELD(vpmm_statistics, chunks_created, 264, 8);
FIELD(vpmm_statistics, chunks_released, 272, 8);
FIELD(vpmm_statistics, chunks_moved, 280, 8);
FIELD(vpmm_statistics, bytes_moved, 288, 8);
FIELD(vpmm_statistics, gpu_waits, 296, 8);
FIELD(vpmm_statistics, host_waits, 304, 8);
FIELD(vpmm_statistics, events_recorded, 312, 8);
FIELD(vpmm_statistics, driver_calls, 320, 8);
FIELD(vpmm_statistics, driver_ns, 328, 8);
FIELD(vpmm_statistics, pauses, 336, 8);
FIELD(vpmm_statistics, leased_bytes, 344, 8);
FIELD(vpmm_statistics, cached_bytes, 352, 8);
FIELD(vpmm_statistics, trapped_bytes, 360, 8);
FIELD(vpmm_statistics, suspended_bytes, 368, 8);
FIELD(vpmm_statistics, host_copy_bytes, 376, 8);
FIELD(vpmm_request, size, 0, 8);
FIELD(vpmm_request, bytes, 8, 8);
FIELD(vpmm_request, alignment, 16, 8);
FIELD(vpmm_request, stream, 24, 8);
FIELD(vpmm_request, flags, 32, 4);
FIELD(vpmm_request, tag, 36, 4);
FIELD(vpmm_request, library, 40, 4);
FIELD(vpmm_region, begin, 0, 8);
FIELD(vpmm_region, bytes, 8, 8);
FIELD(vpmm_region, requested, 16, 8);
FIELD(vpmm_region, state, 24, 4);
FIELD(vpmm_region, complete, 28, 4);
VALUE(sizeof(struct vpmm_region), 32);
FIELD(vpmm_block, begin, 0, 8);
FIELD(vpmm_block, bytes, 8, 8);
FIELD(vpmm_block, requested, 16, 8);
FIELD(vpmm_block, stream_id, 24, 8);
FIELD(vpmm_block, arena, 32, 8);
FIELD(vpmm_block, tag, 40, 4);
FIELD(vpmm_block, state, 44, 1);
FIELD(vpmm_block, complete, 45, 1);
FIELD(vpmm_block, is_small, 46, 1);
FIELD(vpmm_block, reserved, 47, 1);
VALUE(sizeof(struct vpmm_block), 48);
FIELD(vpmm_chunk, begin, 0, 8);
FIELD(vpmm_chunk, bytes, 8, 8);
VALUE(sizeof(struct vpmm_chunk), 16);
FIELD(vpmm_layout, size, 0, 8);
FIELD(vpmm_layout, blocks, 8, 8);
FIELD(vpmm_layout, block_count, 16, 8);
FIELD(vpmm_layout, chunks, 24, 8);
FIELD(vpmm_layout, chunk_count, 32, 8);
FIELD(vpmm_layout, owner, 40, 8);
FIELD(vpmm_layout, largest_small, 48, 8);
FIELD(vpmm_allocation_info, size, 0, 8);
FIELD(vpmm_allocation_info, begin, 8, 8);
FIELD(vpmm_allocation_info, requested, 16, 8);
FIELD(vpmm_allocation_info, usable, 24, 8);
FIELD(vpmm_ipc_handle, kind, 0, 4);
FIELD(vpmm_ipc_handle, reserved, 4, 4);
FIELD(vpmm_ipc_handle, token, 8, 64);
FIELD(vpmm_ipc_handle, bytes, 72, 8);
FIELD(vpmm_ipc_handle, offset, 80, 8);
FIELD(vpmm_ipc_handle, device_uuid, 88, 16);
VALUE(sizeof(struct vpmm_ipc_handle), 104);
FIELD(vpmm_event, size, 0, 8);
FIELD(vpmm_event, kind, 8, 4);
FIELD(vpmm_event, tag, 12, 4);
FIELD(vpmm_event, ptr, 16, 8);
FIELD(vpmm_event, bytes, 24, 8);
FIELD(vpmm_event, stream, 32, 8);
FIELD(vpmm_event, arena, 40, 8);
FIELD(vpmm_event, time_ns, 48, 8);
FIELD(vpmm_event, device, 56, 4);
FIELD(vpmm_event, flags, 60, 4);
FIELD(vpmm_record_options, size, 0, 8);
FIELD(vpmm_record_options, path, 8, 8);
FIELD(vpmm_record_options, stacks, 16, 8);
FIELD(vpmm_record_options, sample, 24, 8);
FIELD(vpmm_record_options, limit, 32, 8);
FIELD(vpmm_record_options, window_ns, 40, 8);
FIELD(vpmm_tag_info, size, 0, 8);
FIELD(vpmm_tag_info, flags, 8, 4);
FIELD(vpmm_tag_info, state, 12, 4);
FIELD(vpmm_tag_info, live_bytes, 16, 8);
FIELD(vpmm_tag_info, mapped_bytes, 24, 8);
FIELD(vpmm_tag_info, suspended_bytes, 32, 8);
FIELD(vpmm_tag_info, host_bytes, 40, 8);
FIELD(vpmm_tag_info, limit_bytes, 48, 8);
FIELD(vpmm_emm_block, pointer, 0, 8);
FIELD(vpmm_emm_block, device_pointer, 8, 8);
FIELD(vpmm_emm_block, bytes, 16, 8);
FIELD(vpmm_emm_block, cookie, 24, 8);
FIELD(vpmm_emm_block, kind, 32, 4);
FIELD(vpmm_emm_block, reserved, 36, 4);
VALUE(sizeof(struct vpmm_emm_block), 40);
FIELD(vpmm_emm_driver, size, 0, 8);
FIELD(vpmm_emm_driver, self, 8, 8);
FIELD(vpmm_emm_driver, last_error, 16, 8);
FIELD(vpmm_emm_driver, process_is_ending, 24, 8);
FIELD(vpmm_emm_driver, max_pending_deallocs, 32, 8);
FIELD(vpmm_emm_driver, ctx_get_current, 40, 8);
FIELD(vpmm_emm_driver, ctx_set_current, 48, 8);
FIELD(vpmm_emm_driver, ctx_get_device, 56, 8);
FIELD(vpmm_emm_driver, ctx_synchronize, 64, 8);
FIELD(vpmm_emm_driver, device_primary_ctx_retain, 72, 8);
FIELD(vpmm_emm_driver, device_primary_ctx_release, 80, 8);
FIELD(vpmm_emm_driver, device_get_attribute, 88, 8);
FIELD(vpmm_emm_driver, device_get_uuid, 96, 8);
FIELD(vpmm_emm_driver, mem_get_info, 104, 8);
FIELD(vpmm_emm_driver, mem_alloc, 112, 8);
FIELD(vpmm_emm_driver, mem_alloc_managed, 120, 8);
FIELD(vpmm_emm_driver, mem_free, 128, 8);
FIELD(vpmm_emm_driver, mem_host_alloc, 136, 8);
FIELD(vpmm_emm_driver, mem_free_host, 144, 8);
FIELD(vpmm_emm_driver, mem_host_register, 152, 8);
FIELD(vpmm_emm_driver, mem_host_unregister, 160, 8);
FIELD(vpmm_emm_driver, mem_host_get_device_pointer, 168, 8);
FIELD(vpmm_emm_driver, mem_get_address_range, 176, 8);
FIELD(vpmm_emm_driver, memcpy_host_to_device, 184, 8);
FIELD(vpmm_emm_driver, memcpy_device_to_host, 192, 8);
FIELD(vpmm_emm_driver, ipc_get_mem_handle, 200, 8);
FIELD(vpmm_emm_driver, ipc_open_mem_handle, 208, 8);
FIELD(vpmm_emm_driver, ipc_close_mem_handle, 216, 8);
FIELD(vpmm_emm_plugin, size, 0, 8);
FIELD(vpmm_emm_plugin, interface_version, 8, 4);
FIELD(vpmm_emm_plugin, reserved, 12, 4);
FIELD(vpmm_emm_plugin, name, 16, 8);
FIELD(vpmm_emm_plugin, argument, 24, 8);
FIELD(vpmm_emm_plugin, create, 32, 8);
FIELD(vpmm_emm_plugin, destroy, 40, 8);
FIELD(vpmm_emm_plugin, last_error, 48, 8);
FIELD(vpmm_emm_plugin, initialize, 56, 8);
FIELD(vpmm_emm_plugin, reset, 64, 8);
FIELD(vpmm_emm_plugin, allocate, 72, 8);
FIELD(vpmm_emm_plugin, release, 80, 8);
FIELD(vpmm_emm_plugin, capabilities, 88, 8);
FIELD(vpmm_emm_plugin, get_memory_info, 96, 8);
FIELD(vpmm_emm_plugin, defer_cleanup_begin, 104, 8);
FIELD(vpmm_emm_plugin, defer_cleanup_end, 112, 8);
FIELD(vpmm_emm_plugin, allocate_host, 120, 8);
FIELD(vpmm_emm_plugin, register_host, 128, 8);
FIELD(vpmm_emm_plugin, get_ipc_handle, 136, 8);
FIELD(vpmm_emm_plugin, allocate_managed, 144, 8);
FIELD(vpmm_emm_plugin, allocate_on_stream, 152, 8);
FIELD(vpmm_emm_plugin, release_on_stream, 160, 8);
FIELD(vpmm_config, guard, 120, 8);
FIELD(vpmm_config, fill, 128, 8);
FIELD(vpmm_statistics, guarded_bytes, 384, 8);
FIELD(vpmm_statistics, guarded_allocations, 392, 8);
FIELD(vpmm_statistics, unguarded_allocations, 400, 8);
FIELD(vpmm_statistics, damaged_allocations, 408, 8);
VALUE(VPMM_SHARE_OF_GPU(25), -26);
VALUE(VPMM_NO_LIMIT, -1);
VALUE(VPMM_EMM_INTERFACE_VERSION, 1);
VALUE(__builtin_strcmp(VPMM_EMM_PLUGIN_SYMBOL, "vpmm_emm_plugin_v1"), 0);
VALUE(VPMM_EMM_PLUGIN_LEAST_SIZE, 88);
FIELD(vpmm_tag_info, library_bytes, 56, 8);
VALUE(VPMM_SHARE_OF_CAPACITY(25), -26);

const char* vpmm_version(void);
const char* vpmm_last_error( void);
const char* vpmm_status_string(vpmm_status status);
vpmm_status vpmm_config_init(vpmm_config* config);
vpmm_status vpmm_config_from_environment(vpmm_config* config);
vpmm_status vpmm_parse_bytes(const char* text, uint64_t* bytes);
vpmm_status vpmm_device_count(int* count);
vpmm_status vpmm_default_pool(int device, vpmm_pool** pool);
vpmm_status vpmm_default_pool_open(int device, const vpmm_config* config, vpmm_pool** pool);
vpmm_status vpmm_pool_create(int device, const vpmm_config* config, vpmm_pool** pool);
vpmm_status vpmm_pool_destroy(vpmm_pool* pool);
vpmm_status vpmm_allocate(vpmm_pool* pool, size_t bytes, vpmm_stream stream, void** ptr);
vpmm_status vpmm_allocate_aligned(vpmm_pool* pool, size_t bytes, size_t alignment, vpmm_stream
    stream, void** ptr);
vpmm_status vpmm_allocate_any_stream(vpmm_pool* pool, size_t bytes, size_t alignment, void** ptr);
vpmm_status vpmm_allocate_with(vpmm_pool* pool, const vpmm_request* request, void** ptr);
vpmm_status vpmm_try_allocate_any_stream(vpmm_pool* pool, size_t bytes, size_t alignment, void**
    ptr);
vpmm_status vpmm_try_allocate(vpmm_pool* pool, size_t bytes, size_t alignment, vpmm_stream stream,
    void** ptr);
vpmm_status vpmm_try_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream);
vpmm_status vpmm_deallocate(vpmm_pool* pool, void* ptr, vpmm_stream stream);
vpmm_status vpmm_deallocate_any_stream(vpmm_pool* pool, void* ptr);
void vpmm_deallocate_deferred(vpmm_pool* pool, void* ptr);
vpmm_status vpmm_record_use(vpmm_pool* pool, void* ptr, vpmm_stream stream);
vpmm_status vpmm_stream_wait(vpmm_pool* pool, vpmm_stream waiting, vpmm_stream first);
vpmm_status vpmm_query(vpmm_pool* pool, const void* ptr, vpmm_allocation_info* info);
vpmm_status vpmm_usable_size(vpmm_pool* pool, const void* ptr, size_t* bytes);
vpmm_status vpmm_allocate_many(vpmm_pool* pool, const size_t* bytes, size_t count, vpmm_stream
    stream, void** ptrs);
vpmm_status vpmm_deallocate_many(vpmm_pool* pool, void* const* ptrs, size_t count, vpmm_stream
    stream);
vpmm_status vpmm_stream_bind(vpmm_pool* pool, vpmm_stream stream, vpmm_bound_stream** bound);
void vpmm_stream_unbind(vpmm_bound_stream* bound);
vpmm_status vpmm_bound_allocate(vpmm_bound_stream* bound, size_t bytes, size_t alignment, void**
    ptr);
vpmm_status vpmm_bound_deallocate(vpmm_bound_stream* bound, void* ptr);
vpmm_status vpmm_arena_create(vpmm_pool* pool, uint32_t flags, uint32_t tag, vpmm_arena** arena);
vpmm_status vpmm_arena_id(vpmm_arena* arena, uint64_t* id);
vpmm_status vpmm_arena_allocate(vpmm_arena* arena, size_t bytes, size_t alignment, vpmm_stream
    stream, void** ptr);
vpmm_status vpmm_arena_allocate_at(vpmm_arena* arena, void* ptr, size_t bytes, vpmm_stream stream);
vpmm_status vpmm_arena_pin(vpmm_arena* arena);
vpmm_status vpmm_arena_trim(vpmm_arena* arena, size_t* released);
vpmm_status vpmm_arena_add_memory(vpmm_arena* arena, void* ptr, size_t bytes);
vpmm_status vpmm_arena_take_memory(vpmm_arena* arena, void** ptr, size_t* bytes);
vpmm_status vpmm_arena_live(vpmm_arena* arena, void** ptrs, size_t capacity, size_t* count);
vpmm_status vpmm_arena_release(vpmm_arena* arena);
vpmm_status vpmm_capture_begin(vpmm_pool* pool);
vpmm_status vpmm_capture_end(vpmm_pool* pool);
vpmm_status vpmm_capture_release(vpmm_pool* pool, uint64_t capture_id);
vpmm_status vpmm_defer_cleanup_begin(vpmm_pool* pool);
vpmm_status vpmm_defer_cleanup_end(vpmm_pool* pool);
vpmm_status vpmm_trim(vpmm_pool* pool, size_t bytes_to_keep, size_t* bytes_released);
vpmm_status vpmm_preallocate(vpmm_pool* pool, size_t bytes);
vpmm_status vpmm_set_capacity(vpmm_pool* pool, uint64_t bytes);
vpmm_status vpmm_get_capacity(vpmm_pool* pool, uint64_t* bytes);
vpmm_status vpmm_set_out_of_memory_callback(vpmm_pool* pool, vpmm_out_of_memory_callback callback,
    void* argument);
vpmm_status vpmm_add_out_of_memory_callback(vpmm_pool* pool, vpmm_out_of_memory_callback callback,
    void* argument, uint64_t* id);
vpmm_status vpmm_remove_out_of_memory_callback(vpmm_pool* pool, uint64_t id);
vpmm_status vpmm_synchronize(vpmm_pool* pool);
vpmm_status vpmm_reset(vpmm_pool* pool);
vpmm_status vpmm_set_peer_access(vpmm_pool* pool, int device);
vpmm_status vpmm_ipc_export(const void* ptr, size_t bytes, vpmm_ipc_handle* handle);
vpmm_status vpmm_ipc_export_end(const vpmm_ipc_handle* handle);
vpmm_status vpmm_ipc_open(const vpmm_ipc_handle* handle, int device, void** ptr);
vpmm_status vpmm_ipc_open_staged(const vpmm_ipc_handle* handle, vpmm_pool* pool, void** ptr);
vpmm_status vpmm_ipc_close(void* ptr);
void vpmm_ipc_close_deferred(void* ptr);
vpmm_status vpmm_ipc_read_token(const unsigned char token[64], vpmm_ipc_handle* handle);
vpmm_status vpmm_add_event_callback(vpmm_pool* pool, uint32_t kinds, vpmm_event_callback callback,
    void* argument, uint64_t* id);
vpmm_status vpmm_remove_event_callback(vpmm_pool* pool, uint64_t id);
vpmm_status vpmm_set_log_callback(vpmm_log_callback callback, void* argument);
vpmm_status vpmm_pool_device(vpmm_pool* pool, int* device);
vpmm_status vpmm_memory_info(vpmm_pool* pool, uint64_t* free_bytes, uint64_t* total_bytes);
vpmm_status vpmm_get_statistics(vpmm_pool* pool, vpmm_statistics* statistics);
vpmm_status vpmm_reset_peaks(vpmm_pool* pool);
vpmm_status vpmm_snapshot(vpmm_pool* pool, vpmm_region* regions, size_t capacity, size_t* count);
vpmm_status vpmm_layout_take(vpmm_pool* pool, vpmm_layout* layout);
void vpmm_layout_release( vpmm_layout* layout);
vpmm_status vpmm_dump_text(vpmm_pool* pool, char** text);
vpmm_status vpmm_dump_json(vpmm_pool* pool, char** text);
void vpmm_string_free(char* text);
vpmm_status vpmm_record_start(vpmm_pool* pool, const char* path);
vpmm_status vpmm_record_stop(vpmm_pool* pool);
vpmm_status vpmm_record_start_with(vpmm_pool* pool, const vpmm_record_options* options);
vpmm_status vpmm_record_mark(vpmm_pool* pool, const char* text);
vpmm_status vpmm_set_stack_callback(vpmm_stack_capture capture, vpmm_stack_describe describe, void*
    argument);
vpmm_status vpmm_set_tag_name(uint32_t tag, const char* name);
const char* vpmm_tag_name(uint32_t tag);
vpmm_status vpmm_tag_with_name(const char* name, uint32_t* tag);
vpmm_status vpmm_library_tag(const char* library, uint32_t* tag);
vpmm_status vpmm_tag_make_suspendable(vpmm_pool* pool, uint32_t tag, uint32_t flags);
vpmm_status vpmm_tag_enter(vpmm_pool* pool, uint32_t tag, vpmm_tag_scope scope);
vpmm_status vpmm_tag_leave(vpmm_pool* pool, uint32_t tag, vpmm_tag_scope scope);
vpmm_status vpmm_tag_entered(vpmm_pool* pool, uint32_t* tag, uint64_t* entry);
uint64_t vpmm_tag_entries(void);
vpmm_status vpmm_suspend(vpmm_pool* pool, uint32_t tag, uint32_t flags, vpmm_stream stream);
vpmm_status vpmm_arena_suspend(vpmm_arena* arena, uint32_t flags, vpmm_stream stream);
vpmm_status vpmm_prepare_suspend(vpmm_pool* pool, uint32_t tag);
vpmm_status vpmm_resume(vpmm_pool* pool, uint32_t tag, uint32_t flags);
vpmm_status vpmm_arena_resume(vpmm_arena* arena, uint32_t flags);
vpmm_status vpmm_tag_set_limit(vpmm_pool* pool, uint32_t tag, uint64_t bytes);
vpmm_status vpmm_tag_get_info(vpmm_pool* pool, uint32_t tag, vpmm_tag_info* info);
vpmm_status vpmm_tags(vpmm_pool* pool, uint32_t* tags, size_t capacity, size_t* count);
vpmm_status vpmm_suspendable_tags(vpmm_pool* pool, uint32_t* tags, size_t capacity, size_t* count);
vpmm_status vpmm_is_suspended(vpmm_pool* pool, const void* ptr, int* is_suspended);
vpmm_status vpmm_host_copy(vpmm_pool* pool, const void* ptr, size_t bytes, void** host);
vpmm_status vpmm_add_suspend_hooks(vpmm_pool* pool, uint32_t tag, vpmm_suspend_hook before_unmap,
    vpmm_suspend_hook after_map, void* argument, uint64_t* id);
vpmm_status vpmm_remove_suspend_hooks(vpmm_pool* pool, uint64_t id);
vpmm_status vpmm_emm_process_driver(const vpmm_emm_driver** driver);
vpmm_status vpmm_emm_builtin_plugin(const char* name, const vpmm_emm_plugin** plugin);
vpmm_status vpmm_emm_load_plugin(const char* path, const vpmm_emm_plugin** plugin);
vpmm_status vpmm_emm_check_plugin(const vpmm_emm_plugin* plugin);
vpmm_status vpmm_emm_set_memory_manager(const vpmm_emm_plugin* plugin);
vpmm_status vpmm_emm_get_memory_manager(const vpmm_emm_plugin** plugin);
typedef int (*vpmm_out_of_memory_callback)(void* argument, int device, uint64_t bytes);
typedef void (*vpmm_log_callback)(void* argument, int level, const char* text);
typedef void (*vpmm_event_callback)(void* argument, const vpmm_event* event);
typedef size_t (*vpmm_stack_capture)(void* argument, uint64_t* frames, size_t most);
typedef void (*vpmm_stack_describe)(void* argument, uint64_t frame, const char** file, uint64_t*
    line, const char** function);
typedef int (*vpmm_suspend_hook)(void* argument, int device, uint32_t tag);
vpmm_status vpmm_explain(vpmm_pool* pool, const void* address, char** text);
vpmm_status vpmm_arena_set_library(vpmm_arena* arena, uint32_t library);
vpmm_status vpmm_callback_fail(vpmm_status status, const char* text);

typedef void (*address)(void);
static const address all[] = {
  (address)vpmm_version,
  (address)vpmm_last_error,
  (address)vpmm_status_string,
  (address)vpmm_config_init,
  (address)vpmm_config_from_environment,
  (address)vpmm_parse_bytes,
  (address)vpmm_device_count,
  (address)vpmm_default_pool,
  (address)vpmm_default_pool_open,
  (address)vpmm_pool_create,
  (address)vpmm_pool_destroy,
  (address)vpmm_allocate,
  (address)vpmm_allocate_aligned,
  (address)vpmm_allocate_any_stream,
  (address)vpmm_allocate_with,
  (address)vpmm_try_allocate_any_stream,
  (address)vpmm_try_allocate,
  (address)vpmm_try_deallocate,
  (address)vpmm_deallocate,
  (address)vpmm_deallocate_any_stream,
  (address)vpmm_deallocate_deferred,
  (address)vpmm_record_use,
  (address)vpmm_stream_wait,
  (address)vpmm_query,
  (address)vpmm_usable_size,
  (address)vpmm_allocate_many,
  (address)vpmm_deallocate_many,
  (address)vpmm_stream_bind,
  (address)vpmm_stream_unbind,
  (address)vpmm_bound_allocate,
  (address)vpmm_bound_deallocate,
  (address)vpmm_arena_create,
  (address)vpmm_arena_id,
  (address)vpmm_arena_allocate,
  (address)vpmm_arena_allocate_at,
  (address)vpmm_arena_pin,
  (address)vpmm_arena_trim,
  (address)vpmm_arena_add_memory,
  (address)vpmm_arena_take_memory,
  (address)vpmm_arena_live,
  (address)vpmm_arena_release,
  (address)vpmm_capture_begin,
  (address)vpmm_capture_end,
  (address)vpmm_capture_release,
  (address)vpmm_defer_cleanup_begin,
  (address)vpmm_defer_cleanup_end,
  (address)vpmm_trim,
  (address)vpmm_preallocate,
  (address)vpmm_set_capacity,
  (address)vpmm_get_capacity,
  (address)vpmm_set_out_of_memory_callback,
  (address)vpmm_add_out_of_memory_callback,
  (address)vpmm_remove_out_of_memory_callback,
  (address)vpmm_synchronize,
  (address)vpmm_reset,
  (address)vpmm_set_peer_access,
  (address)vpmm_ipc_export,
  (address)vpmm_ipc_export_end,
  (address)vpmm_ipc_open,
  (address)vpmm_ipc_open_staged,
  (address)vpmm_ipc_close,
  (address)vpmm_ipc_close_deferred,
  (address)vpmm_ipc_read_token,
  (address)vpmm_add_event_callback,
  (address)vpmm_remove_event_callback,
  (address)vpmm_set_log_callback,
  (address)vpmm_pool_device,
  (address)vpmm_memory_info,
  (address)vpmm_get_statistics,
  (address)vpmm_reset_peaks,
  (address)vpmm_snapshot,
  (address)vpmm_layout_take,
  (address)vpmm_layout_release,
  (address)vpmm_dump_text,
  (address)vpmm_dump_json,
  (address)vpmm_string_free,
  (address)vpmm_record_start,
  (address)vpmm_record_stop,
  (address)vpmm_record_start_with,
  (address)vpmm_record_mark,
  (address)vpmm_set_stack_callback,
  (address)vpmm_set_tag_name,
  (address)vpmm_tag_name,
  (address)vpmm_tag_with_name,
  (address)vpmm_library_tag,
  (address)vpmm_tag_make_suspendable,
  (address)vpmm_tag_enter,
  (address)vpmm_tag_leave,
  (address)vpmm_tag_entered,
  (address)vpmm_tag_entries,
  (address)vpmm_suspend,
  (address)vpmm_arena_suspend,
  (address)vpmm_prepare_suspend,
  (address)vpmm_resume,
  (address)vpmm_arena_resume,
  (address)vpmm_tag_set_limit,
  (address)vpmm_tag_get_info,
  (address)vpmm_tags,
  (address)vpmm_suspendable_tags,
  (address)vpmm_is_suspended,
  (address)vpmm_host_copy,
  (address)vpmm_add_suspend_hooks,
  (address)vpmm_remove_suspend_hooks,
  (address)vpmm_emm_process_driver,
  (address)vpmm_emm_builtin_plugin,
  (address)vpmm_emm_load_plugin,
  (address)vpmm_emm_check_plugin,
  (address)vpmm_emm_set_memory_manager,
  (address)vpmm_emm_get_memory_manager,
  (address)vpmm_explain,
  (address)vpmm_arena_set_library,
  (address)vpmm_callback_fail,
};
int main(void) {
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i)
    if (all[i] == NULL) return 1;
  return 0;
}
