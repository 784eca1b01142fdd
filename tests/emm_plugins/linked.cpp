// SPDX-License-Identifier: Apache-2.0
// emm_plugins: a memory manager that is linked against libvpmm.so, because it takes its memory from
// the pool.
#include <vpmm/emm.hpp>

namespace {

class Linked : public vpmm::emm::VpmmMemoryManager {
 public:
  using VpmmMemoryManager::VpmmMemoryManager;
};

}  // namespace

VPMM_EMM_EXPORT_PLUGIN(Linked, "linked");
