/* SPDX-License-Identifier: Apache-2.0 */
/* tests: a plugin in C99: each block is an allocation of the driver.
 *
 * For plugins that are older, newer or wrong, tests define TABLE_SIZE, INTERFACE_VERSION, LACKS (a
 * slot to leave out) or DEFERS (one of a pair that is null here). What lies behind a table that is
 * shorter is no pointer to anything. */
#include <stdlib.h>
#include <string.h>
#include <vpmm/emm.h>

#ifndef TABLE_SIZE
#define TABLE_SIZE sizeof(vpmm_emm_plugin)
#endif
#ifndef INTERFACE_VERSION
#define INTERFACE_VERSION VPMM_EMM_INTERFACE_VERSION
#endif

struct vpmm_emm_manager {
  const vpmm_emm_driver* driver;
  vpmm_cuda_context context; /* null: not initialized */
};

static __thread const char* last = "";
static const char* last_error(void) { return last; }

/* The status of a call of the driver, whose text is kept. */
static vpmm_status done(const vpmm_emm_manager* manager, vpmm_status status) {
  if (status != VPMM_OK) last = manager->driver->last_error(manager->driver);
  return status;
}

static vpmm_status create(const vpmm_emm_plugin* plugin, const vpmm_emm_driver* driver, int device,
                          vpmm_emm_manager** manager) {
  vpmm_emm_manager* const made = malloc(sizeof *made);
  (void)plugin;
  (void)device;
  if (made == NULL) {
    last = "no memory for the manager itself";
    return VPMM_ERROR_HOST_OUT_OF_MEMORY;
  }
  made->driver = driver;
  made->context = NULL;
  *manager = made;
  return VPMM_OK;
}

static void destroy(vpmm_emm_manager* manager) { free(manager); }

static vpmm_status initialize(vpmm_emm_manager* manager) {
  return manager->context != NULL
             ? VPMM_OK
             : done(manager, manager->driver->ctx_get_current(manager->driver, &manager->context));
}

static vpmm_status reset(vpmm_emm_manager* manager) {
  (void)manager;
  return VPMM_OK;
}

static vpmm_status allocate(vpmm_emm_manager* manager, size_t bytes, vpmm_emm_block* block) {
  const vpmm_emm_block empty = {0};
  void* ptr = NULL;
  const vpmm_status status =
      done(manager, manager->driver->mem_alloc(manager->driver, bytes, &ptr));
  if (status != VPMM_OK) return status;
  *block = empty;
  block->pointer = block->device_pointer = ptr;
  block->bytes = bytes;
  block->kind = VPMM_EMM_DEVICE;
  return VPMM_OK;
}

static vpmm_status allocate_host(vpmm_emm_manager* manager, size_t bytes, unsigned flags,
                                 vpmm_emm_block* block) {
  const vpmm_emm_driver* const driver = manager->driver;
  vpmm_emm_block made = {0};
  const int is_mapped = (flags & VPMM_EMM_DEVICE_MAPPED) != 0;
  vpmm_status status = done(manager, driver->mem_host_alloc(driver, bytes, flags, &made.pointer));
  if (status == VPMM_OK && is_mapped) {
    status = done(manager,
                  driver->mem_host_get_device_pointer(driver, made.pointer, &made.device_pointer));
    if (status != VPMM_OK) (void)driver->mem_free_host(driver, made.pointer);
  }
  if (status != VPMM_OK) return status;
  made.bytes = bytes;
  made.kind = is_mapped ? VPMM_EMM_MAPPED : VPMM_EMM_PINNED;
  *block = made;
  return VPMM_OK;
}

static vpmm_status register_host(vpmm_emm_manager* manager, void* ptr, size_t bytes, unsigned flags,
                                 vpmm_emm_block* block) {
  const vpmm_emm_driver* const driver = manager->driver;
  vpmm_emm_block made = {0};
  const int is_mapped = (flags & VPMM_EMM_DEVICE_MAPPED) != 0;
  vpmm_status status = done(manager, driver->mem_host_register(driver, ptr, bytes, flags));
  if (status == VPMM_OK && is_mapped) {
    status = done(manager, driver->mem_host_get_device_pointer(driver, ptr, &made.device_pointer));
    if (status != VPMM_OK) (void)driver->mem_host_unregister(driver, ptr);
  }
  if (status != VPMM_OK) return status;
  made.pointer = ptr;
  made.bytes = bytes;
  made.kind = is_mapped ? VPMM_EMM_REGISTERED_MAPPED : VPMM_EMM_REGISTERED;
  *block = made;
  return VPMM_OK;
}

static void release(vpmm_emm_manager* manager, const vpmm_emm_block* block) {
  const vpmm_emm_driver* const driver = manager->driver;
  vpmm_cuda_context before = NULL;
  (void)driver->ctx_get_current(driver, &before);
  (void)driver->ctx_set_current(driver, manager->context);
  switch (block->kind) {
    case VPMM_EMM_PINNED:
    case VPMM_EMM_MAPPED: (void)driver->mem_free_host(driver, block->pointer); break;
    case VPMM_EMM_REGISTERED:
    case VPMM_EMM_REGISTERED_MAPPED:
      (void)driver->mem_host_unregister(driver, block->pointer);
      break;
    default:
      (void)driver->mem_free(driver, block->pointer);
      break; /* waits for work that may use the memory */
  }
  (void)driver->ctx_set_current(driver, before);
}

static vpmm_status get_memory_info(vpmm_emm_manager* manager, uint64_t* free_bytes,
                                   uint64_t* total_bytes) {
  return done(manager, manager->driver->mem_get_info(manager->driver, free_bytes, total_bytes));
}

#ifdef DEFERS
static vpmm_status defer_cleanup(vpmm_emm_manager* manager) {
  (void)manager;
  return VPMM_OK;
}
#endif

const VPMM_API vpmm_emm_plugin* vpmm_emm_plugin_v1(void) {
  static vpmm_emm_plugin plugin;
  plugin.size = TABLE_SIZE;
  plugin.interface_version = INTERFACE_VERSION;
  plugin.name = "plain";
  plugin.create = create;
  plugin.destroy = destroy;
  plugin.last_error = last_error;
  plugin.initialize = initialize;
  plugin.reset = reset;
  plugin.allocate = allocate;
  plugin.release = release;
  plugin.get_memory_info = get_memory_info;
  plugin.allocate_host = allocate_host;
  plugin.register_host = register_host;
#ifdef DEFERS
  plugin.DEFERS = defer_cleanup;
#endif
#ifdef LACKS
  plugin.LACKS = NULL;
#endif
  if (plugin.size < sizeof plugin)
    memset((char*)&plugin + plugin.size, 0xEE, sizeof plugin - plugin.size);
  return &plugin;
}
