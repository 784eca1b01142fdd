// SPDX-License-Identifier: Apache-2.0
// tests: a C++ program that does with memory managers what its first argument says, and prints what
// came of it.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>
#include <vpmm/emm.hpp>

namespace {

using namespace vpmm::emm;

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::string name_of(const Context& context) {
  return dynamic_cast<const PluginMemoryManager&>(context.memory_manager()).name();
}

// Round trips of device memory through a view, and through pinned memory where there is any.
void use(const vpmm_emm_plugin* plugin) {
  const Context context = Context::create(0, plugin);
  const CurrentContext current(Driver::of_process(), context.cuda_context());
  const Capabilities has = context.memory_manager().capabilities();
  std::printf("%s: host %d, managed %d, stream %d, ipc %d, info %d\n", name_of(context).c_str(),
              has.host_memory, has.managed_memory, has.stream_order, has.ipc, has.memory_info);
  std::vector<unsigned char> out(kMiB, 42);
  std::vector<unsigned char> back(kMiB, 0);
  const PinnedMemory pinned = has.host_memory ? context.allocate_pinned(kMiB) : PinnedMemory();
  void* const through = pinned ? pinned.host_pointer() : back.data();
  {
    const MemoryPointer part = context.memalloc(3 * kMiB).view(kMiB, kMiB);
    context.memory_manager().driver().memcpy_host_to_device(part.device_pointer(), out.data(),
                                                            kMiB);
    context.memory_manager().driver().memcpy_device_to_host(through, part.device_pointer(), kMiB);
  }
  if (std::memcmp(through, out.data(), kMiB) != 0)
    throw std::runtime_error("the data came back wrong");
  { const DeferCleanup deferred = context.defer_cleanup(); }
  context.reset();
  std::printf("the data is right\n");
}

// What a request of each of a few sizes throws here.
void let_throw(const vpmm_emm_plugin* plugin) {
  const Context context = Context::create(0, plugin);
  for (std::size_t bytes = 1; bytes <= 6; ++bytes) {
    try {
      (void)context.memalloc(bytes);
      std::printf("%zu: nothing\n", bytes);
    } catch (const vpmm::error& error) {
      const bool is_about_memory = dynamic_cast<const std::bad_alloc*>(&error) != nullptr;
      std::printf("%zu: %s %d: %s\n", bytes, is_about_memory ? "out_of_memory" : "failure",
                  error.status(), error.what());
    }
  }
  use(plugin);
}

class Own : public DefaultMemoryManager {
 public:
  using DefaultMemoryManager::DefaultMemoryManager;
};

void exchange() {
  const Context before = Context::create();
  set_memory_manager<Own>("own");
  const Context after = Context::create();
  const MemoryPointer old_memory = before.memalloc(kMiB);
  const MemoryPointer new_memory = after.memalloc(kMiB);
  std::printf("before: %s, after: %s\n", name_of(before).c_str(), name_of(after).c_str());
}

int run(const std::string& verb, const std::vector<std::string>& paths) {
  if (verb == "use") {
    for (const std::string& path : paths) use(load_plugin(path));
  } else if (verb == "throw") {
    let_throw(load_plugin(paths.at(0)));
  } else if (verb == "use-default") {
    use(nullptr);
  } else if (verb == "exchange") {
    exchange();
  } else {
    std::fprintf(stderr, "there is no verb %s\n", verb.c_str());
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "", {argv + (argc > 1 ? 2 : argc), argv + argc});
  } catch (const vpmm::error& error) {
    std::printf("refused with %d: %s\n", error.status(), error.what());
    return 1;
  }
}
