/* SPDX-License-Identifier: Apache-2.0 */
/* tests: a C99 program that uses a plugin through its table: statuses for what is thrown inside,
 * and whole blocks. */
#include <stdio.h>
#include <string.h>
#include <vpmm/emm.h>

#define REQUIRE(condition)                                                              \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      fprintf(stderr, "%d: not so: %s; %s\n", __LINE__, #condition, vpmm_last_error()); \
      return 1;                                                                         \
    }                                                                                   \
  } while (0)

int main(int argc, char** argv) {
  const vpmm_emm_driver* driver = NULL;
  const vpmm_emm_plugin* plugin = NULL;
  vpmm_cuda_context context = NULL;
  vpmm_emm_manager* manager = NULL;
  vpmm_emm_block block;
  vpmm_emm_block untouched;
  static char registered[4096];
  size_t bytes;

  memset(&untouched, 0xAB, sizeof untouched);
  REQUIRE(argc == 2);
  REQUIRE(vpmm_emm_process_driver(&driver) == VPMM_OK);
  REQUIRE(vpmm_emm_load_plugin(argv[1], &plugin) == VPMM_OK);
  REQUIRE(driver->device_primary_ctx_retain(driver, 0, &context) == VPMM_OK);
  REQUIRE(plugin->create(plugin, driver, 0, &manager) == VPMM_OK);
  REQUIRE(plugin->initialize(manager) == VPMM_ERROR_INVALID_ARGUMENT); /* no context is current */
  REQUIRE(driver->ctx_set_current(driver, context) == VPMM_OK);
  REQUIRE(plugin->initialize(manager) == VPMM_OK);
  REQUIRE(plugin->initialize(manager) == VPMM_OK);

  for (bytes = 1; bytes <= 6; ++bytes) {
    block = untouched;
    printf("%d: status %d: ", (int)bytes, (int)plugin->allocate(manager, bytes, &block));
    printf("%s\n", plugin->last_error());
    REQUIRE(memcmp(&block, &untouched, sizeof block) == 0);
  }

  memset(&block, 0, sizeof block);
  REQUIRE(plugin->allocate(manager, 1000, &block) == VPMM_OK);
  REQUIRE(block.bytes == 1000 && block.kind == VPMM_EMM_DEVICE &&
          block.device_pointer == block.pointer);
  REQUIRE(driver->memcpy_host_to_device(driver, block.pointer, registered, 1000) == VPMM_OK);
  plugin->release(manager, &block);
  REQUIRE(plugin->allocate_host(manager, 1000, 0, &block) == VPMM_OK);
  REQUIRE(block.bytes == 1000 && block.kind == VPMM_EMM_PINNED && block.device_pointer == NULL);
  plugin->release(manager, &block);
  REQUIRE(plugin->allocate_host(manager, 1000, VPMM_EMM_DEVICE_MAPPED, &block) == VPMM_OK);
  REQUIRE(block.bytes == 1000 && block.kind == VPMM_EMM_MAPPED && block.device_pointer != NULL);
  plugin->release(manager, &block);
  /* Unlocked at once: or else it could not be locked again. */
  for (bytes = 0; bytes < 2; ++bytes) {
    REQUIRE(plugin->register_host(manager, registered, sizeof registered, 0, &block) == VPMM_OK);
    REQUIRE(block.bytes == sizeof registered && block.kind == VPMM_EMM_REGISTERED &&
            block.pointer == registered);
    plugin->release(manager, &block);
  }
  REQUIRE(plugin->register_host(manager, registered, sizeof registered, VPMM_EMM_DEVICE_MAPPED,
                                &block) == VPMM_OK);
  REQUIRE(block.kind == VPMM_EMM_REGISTERED_MAPPED && block.device_pointer != NULL);
  plugin->release(manager, &block);

  REQUIRE(plugin->reset(manager) == VPMM_OK);
  plugin->destroy(manager);
  REQUIRE(driver->device_primary_ctx_release(driver, 0) == VPMM_OK);
  printf("blocks are whole\n");
  return 0;
}
