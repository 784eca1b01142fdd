// torch_allocator: answers of libvpmm's C functions, with PyTorch's exceptions for failures.
#pragma once

#include <cstddef>
#include <optional>

#include "vpmm/vpmm.h"

namespace vpmm::torch_plugin {

constexpr std::size_t kGrain = 512;  // PyTorch's own allocator rounds and aligns to this

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// Throws for a failure.
void check(vpmm_status status, const char* purpose);
// Null: the pool does not report them; vpmm_last_error() has the reason.
std::optional<vpmm_statistics> figures_of(vpmm_pool* pool);

// The layout of a pool at one moment.
class Layout {
 public:
  explicit Layout(vpmm_pool* pool);
  ~Layout() { vpmm_layout_release(&layout_); }
  Layout(const Layout&) = delete;
  Layout& operator=(const Layout&) = delete;
  const vpmm_layout* operator->() const { return &layout_; }

 private:
  vpmm_layout layout_{};
};

}  // namespace vpmm::torch_plugin
