// pool: chunk policy: when to move idle chunks, when to create new ones, of what size, and where requests are put.
#pragma once

#include <cstdint>
#include <memory>

#include "base/bytes.hpp"
#include "base/host_memory.hpp"
#include "pool/config.hpp"

namespace vpmm::pool {

// What the policy may look at, in bytes; all but what users asked for is rounded to pages.
struct Demand {
  Bytes request = 0;     // the span asked for
  Bytes missing = 0;     // part of it that no free range in place covers
  Bytes mapped = 0;      // all chunks
  Bytes peak_used = 0;   // largest sum of allocated ranges so far, this request included
  Bytes peak_asked = 0;  // most that users asked for at once, before this request
};

// Where in free memory a request goes.
enum class Placement {
  front,     // the front of the best fit
  ends,      // that end of the best fit which leaves less memory in chunks partly in use
  anywhere,  // the ends of any range, and where its chunks begin and end
};

// Whether memory that other streams still use is taken, behind a wait of the GPU, while new memory is to be had.
enum class Waiting {
  never,         // it grows
  before_moves,  // before anything is moved or created
  after_moves,   // when complete memory is not enough, and before anything is created
};

class ChunkPolicy {
 public:
  virtual ~ChunkPolicy() = default;
  virtual const char* name() const = 0;
  // How many of `demand.missing` bytes to cover with new chunks even though idle ones could be moved.
  virtual Bytes grow_first(const Demand& demand) const = 0;
  // Sizes of new chunks that together cover `shortfall` exactly.
  virtual Vector<Bytes> chunk_sizes(Bytes shortfall, Bytes mapped) const = 0;
  // The least part of a chunk that is worth a mapping of its own: where memory would be created, an end of a chunk in
  // use; where an idle chunk would be partly used, what is left of it.
  virtual Bytes least_part(const Demand& demand) const = 0;
  // Is it worth driver calls that a request is not put where it would pin `pinned` bytes of idle chunks?
  virtual bool spares(const Demand& demand, std::int64_t pinned) const = 0;
  virtual Waiting waiting() const = 0;
  // How long to look, before `demand.missing` bytes are created, whether what other streams freed becomes complete,
  // which would spare so many of them.
  virtual std::uint64_t patience_ns(const Demand& demand, Bytes spared) const = 0;
  // The same where nothing is known to become complete, but other threads may free what they use.
  virtual std::uint64_t hope_ns(const Demand& demand) const = 0;
  // Is pending memory that no event covers worth an event of the whole context at once?
  virtual bool wants_proof_now(const Demand& demand) const = 0;
  virtual Placement placement(Bytes mapped, Bytes peak_used) const = 0;
  // Is a request that fits given a chunk of its own, because its best place would pin `pinned` bytes?
  virtual bool sets_apart(const Demand& demand, std::int64_t pinned) const = 0;
};

// `page`: the specification read literally. `adaptive`: chunks sized by the shortfall within a footprint budget.
std::unique_ptr<ChunkPolicy> make_chunk_policy(const Config& config, Bytes page_size);

}  // namespace vpmm::pool
