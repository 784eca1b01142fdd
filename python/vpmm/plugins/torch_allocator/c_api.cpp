// torch_allocator: asks libvpmm, and throws if it fails.
#include "c_api.hpp"

#include <c10/util/Exception.h>

namespace vpmm::torch_plugin {

void check(vpmm_status status, const char* purpose) {
  TORCH_CHECK(status == VPMM_OK, "VPMM: ", purpose, ": ", vpmm_last_error());
}

std::optional<vpmm_statistics> figures_of(vpmm_pool* pool) {
  vpmm_statistics figures{};
  figures.size = sizeof figures;
  if (vpmm_get_statistics(pool, &figures) != VPMM_OK) return std::nullopt;
  return figures;
}

Layout::Layout(vpmm_pool* pool) {
  layout_.size = sizeof layout_;
  check(vpmm_layout_take(pool, &layout_), "a layout");
}

}  // namespace vpmm::torch_plugin
