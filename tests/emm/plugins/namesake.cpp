// SPDX-License-Identifier: Apache-2.0
// emm tests: a plugin that is built twice, under two names, with one name of its class.
#include "vpmm/emm.hpp"

class Namesake : public vpmm::emm::MemoryManager {
 public:
  using MemoryManager::MemoryManager;

 private:
  vpmm::emm::Block do_allocate(std::size_t) override {
    vpmm::throw_error(VPMM_ERROR_OUT_OF_MEMORY, "this is " VPMM_TEST_NAME);
  }
  void do_release(const vpmm::emm::Block&) noexcept override {}
};

VPMM_EMM_EXPORT_PLUGIN(Namesake, VPMM_TEST_NAME);
