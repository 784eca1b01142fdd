// SPDX-License-Identifier: Apache-2.0
// python: tags of a pool: entering them, suspend and resume, hooks.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "pool.hpp"

namespace vpmm::python {

// The functions of a program around a suspend of a tag.
struct SuspendHooks {
  vpmm_pool* pool = nullptr;
  std::uint64_t id = 0;
  nanobind::object before_unmap;  // None: nothing
  nanobind::object after_map;
};

// The hooks of a pool that ends. Destroy them after the pool. Holds: the GIL.
std::vector<SuspendHooks> take_suspend_hooks(const vpmm_pool* pool);
// For the garbage collector. Holds: the GIL.
int visit_suspend_hooks(const vpmm_pool* pool, visitproc visit, void* arg);

// The tag of a library's requests; 0: none. Throws for a setting that is not allowed.
std::uint32_t library_tag(const char* library);

// Adds the live bytes by tag and by library to a pool's statistics.
void add_tags(const Pool& pool, nanobind::dict& statistics);

void bind_tags(nanobind::module_& module, nanobind::class_<Pool>& type);

}  // namespace vpmm::python
