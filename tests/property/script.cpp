// SPDX-License-Identifier: Apache-2.0
// property tests: the frame of a program in C.
#include "property/script.hpp"

#include <unistd.h>

#include "property/world.hpp"

namespace vpmm::property {
void Script::write(const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t written = ::write(file_, text.data() + done, text.size() - done);
    if (written <= 0) return;
    done += static_cast<std::size_t>(written);
  }
}

void Script::begin(const Scene& scene) {
  const driver::sim::SimOptions& sim = scene.sim;
  const settings::Config& config = scene.config;
  write(
      "#include <vpmm/tags.h>\n#include <vpmm/vpmm.h>\n\n#include \"hunt/stage/stage.h\"\n\n"
      "static vpmm_pool* pool[2];           /* of each device */\n"
      "static vpmm_stream s[100000];        /* streams; a number is used once */\n"
      "static vpmm_bound_stream* b[100000]; /* of a stream */\n"
      "static int g[100000];                /* graphs */\n"
      "static vpmm_arena* a[100000];\n"
      "static void* p[100000];              /* memory */\n\nint main(void) {\n");
  line("stage_open({}, {}u, {}u, {}, {}u, {}, {}, {});", sim.device_count, sim.capacity, sim.seed,
       static_cast<int>(sim.schedule), sim.lag_ns, sim.vmm_supported ? 1 : 0,
       sim.memory_pools_supported ? 1 : 0, sim.context_events_supported ? 1 : 0);
  line("vpmm_config config = {{.size = sizeof(config)}};");
  line("vpmm_config_init(&config);");
  const settings::Config usual;
  if (config.page_size && *config.page_size != 2 * kMiB)
    line("config.page_size = {}u;", *config.page_size);
  if (config.pages != usual.pages) line("config.pages = {}u;", config.pages);
  if (config.va_size != usual.va_size) line("config.va_size = {}u;", config.va_size);
  if (config.page_chunks)
    line("config.chunk_max = 0; /* a page */");
  else if (config.chunk_max != usual.chunk_max)
    line("config.chunk_max = {}u;", config.chunk_max);
  if (config.limits.max_mappings != usual.limits.max_mappings)
    line("config.max_mappings = {}u;", config.limits.max_mappings);
  if (config.limits.release_threshold)
    line("config.release_threshold = {}u;", *config.limits.release_threshold);
  if (config.limits.capacity) line("config.capacity = {}u;", *config.limits.capacity);
  if (config.small == settings::SmallRequests::stream_ordered)
    line("config.small = \"stream_ordered\";");
  if (config.streams.any_stream != usual.streams.any_stream)
    line("config.any_stream = \"{}\";", settings::to_string(config.streams.any_stream));
  if (config.prefer != usual.prefer)
    line("config.prefer = \"{}\";", settings::to_string(config.prefer));
  if (config.checks.guard_every != 0) line("config.guard = {}u;", config.checks.guard_every);
  line("config.log = \"quiet\";");
  if (config.streams.unnamed_free == settings::UnnamedFree::allocating_stream)
    line("config.unnamed_free_on_allocating_stream = 1;");
  if (config.streams.crowded_after == 0)
    line("stage_crowd(); /* streams crowd from the beginning */");
}

void Script::end(const std::string& failure) {
  std::string text;
  for (const char each : failure) text += each == '*' || each == '\n' ? ' ' : each;
  if (!text.empty()) line("/* found here: {} */", text);
  line("return stage_end();");
  write("}\n");
}

}  // namespace vpmm::property
