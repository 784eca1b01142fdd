/* SPDX-License-Identifier: Apache-2.0 */
/* examples: uses a pool from C: allocate, free, and make room in a callback when memory runs out.
 */
#include <stdio.h>
#include <string.h>
#include <vpmm/vpmm.h>

#define MIB ((size_t)1 << 20)

/* Prints the reason and returns from main when a call fails. */
#define TRY(call)                                 \
  do {                                            \
    if ((call) != VPMM_OK) {                      \
      fprintf(stderr, "%s\n", vpmm_last_error()); \
      return 1;                                   \
    }                                             \
  } while (0)

struct cache {
  vpmm_pool* pool;
  void* data; /* null: nothing to free */
};

/* Called before an allocation fails. Holds no lock, so it may call any function. */
static int free_cache(void* argument, int device, uint64_t bytes) {
  struct cache* cache = argument;
  if (cache->data == NULL) return 0;
  printf("device %d needs %llu MiB: freeing the cache\n", device,
         (unsigned long long)(bytes / MIB));
  vpmm_deallocate(cache->pool, cache->data, NULL);
  cache->data = NULL;
  return 1;
}

int main(void) {
  vpmm_config config;
  vpmm_statistics statistics;
  vpmm_pool* pool = NULL;
  struct cache cache;
  void* batch = NULL;
  char* dump = NULL;

  memset(&config, 0, sizeof config);
  config.size = sizeof config; /* tells the library which version of the struct the program was
                                  compiled with */
  TRY(vpmm_config_from_environment(&config));
  config.capacity = 64 * MIB;
  TRY(vpmm_pool_create(0, &config, &pool));

  cache.pool = pool;
  cache.data = NULL;
  TRY(vpmm_set_out_of_memory_callback(pool, free_cache, &cache));
  TRY(vpmm_allocate(pool, 48 * MIB, NULL, &cache.data)); /* NULL: the default stream */
  TRY(vpmm_allocate(pool, 32 * MIB, NULL, &batch));

  memset(&statistics, 0, sizeof statistics);
  statistics.size = sizeof statistics;
  TRY(vpmm_get_statistics(pool, &statistics));
  printf("live %llu MiB, mapped %llu MiB\n", (unsigned long long)(statistics.live_bytes / MIB),
         (unsigned long long)(statistics.mapped_bytes / MIB));
  TRY(vpmm_dump_text(pool, &dump));
  fputs(dump, stdout);
  vpmm_string_free(dump);

  TRY(vpmm_deallocate(pool, batch, NULL));
  TRY(vpmm_pool_destroy(pool));
  return 0;
}
