// SPDX-License-Identifier: Apache-2.0
// capi: names of tags.
#include "report/tags.hpp"

#include "capi/call.hpp"

using namespace vpmm;
using namespace vpmm::capi;

vpmm_status vpmm_set_tag_name(uint32_t tag, const char* name) {
  return gated(WhenEnding::do_nothing, [&]() -> Result<void> {
    VPMM_TRY(require(name, "name"));
    if (tag == 0)
      return Error{ErrorCode::invalid_argument, "tag 0 stands for none and has no name"};
    report::set_tag_name(tag, name);
    return {};
  });
}

// In a forked child the lock of the names may be held for ever.
const char* vpmm_tag_name(uint32_t tag) {
  const process::GateEntry entry;
  return entry.open() ? report::tag_name(tag) : "";
}
