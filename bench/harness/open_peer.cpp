// SPDX-License-Identifier: Apache-2.0
// bench/harness: which shared object has which peer.
#include "harness/open_peer.hpp"

#include <dlfcn.h>

namespace vpmm::bench {

std::unique_ptr<Peer> open_peer(const PeerOptions& options) {
  // "rmm-pool" is in rmm.so; never closed, for some libraries cannot be.
  const std::string file =
      VPMM_BENCH_FOLDER "/peers/" + options.name.substr(0, options.name.find('-')) + ".so";
  void* const object = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (object == nullptr) throw Unavailable(dlerror());
  const auto open = reinterpret_cast<OpenPeer>(dlsym(object, "vpmm_bench_open_peer"));
  if (open == nullptr) throw Unavailable(dlerror());
  return std::unique_ptr<Peer>(open(options));
}

bool is_host_peer(const std::string& name) { return name == "none" || name == "mimalloc"; }

}  // namespace vpmm::bench
