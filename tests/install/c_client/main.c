/* SPDX-License-Identifier: Apache-2.0 */
/* tests: a C11 program allocates from a simulated GPU through the installed package, and sees a
 * mistake reported. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <vpmm/vpmm.h>

#define REQUIRE(condition)                                                      \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%d: %s: %s\n", __LINE__, #condition, vpmm_last_error()); \
      return 1;                                                                 \
    }                                                                           \
  } while (0)

int main(void) {
  vpmm_config config;
  vpmm_pool* pool = NULL;
  void* ptr = NULL;
  size_t usable = 0;

  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  REQUIRE(vpmm_config_init(&config) == VPMM_OK);
  config.driver = "sim";
  REQUIRE(vpmm_pool_create(0, &config, &pool) == VPMM_OK);

  REQUIRE(vpmm_allocate(pool, (size_t)5 << 20, NULL, &ptr) == VPMM_OK);
  REQUIRE((uintptr_t)ptr % 256 == 0);
  REQUIRE(vpmm_usable_size(pool, ptr, &usable) == VPMM_OK);
  REQUIRE(usable >= (size_t)5 << 20);
  REQUIRE(vpmm_deallocate(pool, ptr, NULL) == VPMM_OK);

  REQUIRE(vpmm_deallocate(pool, &config, NULL) == VPMM_ERROR_INVALID_POINTER);
  REQUIRE(strlen(vpmm_last_error()) > 0);
  REQUIRE(vpmm_pool_destroy(pool) == VPMM_OK);
  printf("vpmm %s\n", vpmm_version());
  return 0;
}
