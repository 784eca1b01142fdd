// SPDX-License-Identifier: Apache-2.0
// bench/harness: opening a peer by its name.
#pragma once

#include <memory>

#include "peers/peer.hpp"

namespace vpmm::bench {

// Loads the shared object that has the peer `options.name` and opens it. Throws Unavailable: there
// is no such peer, or not here.
std::unique_ptr<Peer> open_peer(const PeerOptions& options);

// Whether the peer is an allocator for the host, which a GPU is of no use to.
bool is_host_peer(const std::string& name);

}  // namespace vpmm::bench
