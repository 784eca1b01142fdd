// SPDX-License-Identifier: Apache-2.0
// tests: a plugin of a C++ class that throws, by the size of the request: something else for each
// size of a few bytes.
#include <new>
#include <stdexcept>
#include <vpmm/emm.hpp>

#ifndef NAME
#define NAME "throwing"
#endif

namespace sample {

// A name that other plugins may have, too: it is in no anonymous namespace.
class Manager : public vpmm::emm::HostOnlyMemoryManager {
 public:
  using HostOnlyMemoryManager::HostOnlyMemoryManager;

 private:
  vpmm::emm::Block do_allocate(std::size_t bytes) override {
    switch (bytes) {
      case 1: vpmm::throw_error(VPMM_ERROR_UNSUPPORTED, NAME " does not do 1 byte");
      case 2: vpmm::throw_error(VPMM_ERROR_OUT_OF_MEMORY, NAME " has no 2 bytes left");
      case 3: throw std::runtime_error("3 bytes are an odd size");
      case 4: throw std::bad_alloc();
      case 5: throw 5;
      case 6: return {};
      default: break;
    }
    vpmm::emm::Block block{};
    block.pointer = deallocations().attempt([&] { return driver().mem_alloc(bytes); });
    return block;
  }
  void do_release_device(const vpmm::emm::Block& block) noexcept override {
    deallocations().add(block.pointer, block.bytes, &vpmm::emm::Driver::mem_free);
  }
};

}  // namespace sample

VPMM_EMM_EXPORT_PLUGIN(sample::Manager, NAME);
