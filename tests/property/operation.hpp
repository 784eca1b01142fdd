// SPDX-License-Identifier: Apache-2.0
// property tests: what a program may do with pools and a GPU, as values that run and print
// themselves as code.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "base/bytes.hpp"
#include "context/context.hpp"
#include "driver/types.hpp"

namespace vpmm::property {

// Numbers name things modulo how many there are, so that any sequence runs, also one with
// operations left out. What cannot be done, or would break a rule of CUDA or of the pool, is passed
// over.
constexpr std::uint64_t kAnyStream = ~std::uint64_t{0};

struct Allocate {
  std::uint64_t device = 0;
  std::uint64_t stream = 0;  // kAnyStream: none is named
  Bytes bytes = 0;
  Bytes alignment = 0;
};
struct AllocateMany {  // of `bytes`, half of it, a quarter, `bytes` again and so on
  std::uint64_t device = 0;
  std::uint64_t stream = 0;
  Bytes bytes = 0;
  std::uint64_t count = 0;
};
struct Write {  // on the stream that the allocation is used on
  std::uint64_t allocation = 0;
};
struct Read {
  std::uint64_t allocation = 0;
};
struct ReadElsewhere {  // on a stream that waits for the first one; the pool is told by record_use
  std::uint64_t allocation = 0;
  std::uint64_t stream = 0;
};
struct Move {  // used on another stream from now on, which waits for the first
  std::uint64_t allocation = 0;
  std::uint64_t stream = 0;
  bool is_recorded = false;
};
struct Free {
  std::uint64_t allocation = 0;
};
struct FreeElsewhere {
  std::uint64_t allocation = 0;
  std::uint64_t stream = 0;
  bool is_ordered = false;
};
struct FreeMany {  // as many that may be freed on the stream, from one on
  std::uint64_t allocation = 0;
  std::uint64_t stream = 0;
  std::uint64_t count = 0;
};
struct FreeAnyStream {
  std::uint64_t allocation = 0;
  bool is_deferred = false;
};
struct FreeWrongly {  // an address inside an allocation
  std::uint64_t allocation = 0;
};
struct FreeTwice {  // what was freed a while ago and is no user's now, on any stream
  std::uint64_t freed = 0;
  std::uint64_t stream = 0;
};
struct Bind {  // or unbind, where it is bound. Two of three calls on the stream go through the
               // object then
  std::uint64_t device = 0;
  std::uint64_t stream = 0;
};
struct Spin {
  std::uint64_t device = 0;
  std::uint64_t stream = 0;
  std::uint64_t duration_ns = 0;
};
struct Order {
  std::uint64_t device = 0;
  std::uint64_t first = 0;
  std::uint64_t second = 0;
};
struct ReplaceStream {  // destroyed, and another created, with the same handle often
  std::uint64_t device = 0;
  std::uint64_t stream = 0;
  driver::StreamFlags flags = driver::StreamFlags::non_blocking;
  bool takes_allocations = false;  // what was used on the old one is used on another, which waits
};
struct BeginCapture {
  std::uint64_t device = 0;
  std::uint64_t stream = 0;
  driver::CaptureMode mode = driver::CaptureMode::global;
  bool is_announced = false;
};
struct EndCapture {
  std::uint64_t capture = 0;
  bool is_kept = true;  // a graph is made of it
};
struct Launch {
  std::uint64_t graph = 0;
  std::uint64_t stream = 0;
};
struct DestroyGraph {
  std::uint64_t graph = 0;
  bool frees_first = false;  // what was allocated in its capture
  bool is_told = false;      // the pool, before
};
struct Share {  // for another process: one handle more
  std::uint64_t allocation = 0;
  std::uint64_t begin = 0;  // see part_of()
  std::uint64_t size = 0;
};
struct Lease {  // an importer more, also of what is not shared any more: that is refused
  std::uint64_t share = 0;
  std::uint64_t begin = 0;  // with a process as importer: number of the handle, perhaps ended
  std::uint64_t size = 0;
};
struct ReadLease {  // by another process
  std::uint64_t share = 0;
  std::uint64_t importer = 0;
};
struct EndLease {  // or what is none, or not any more
  std::uint64_t share = 0;
  std::uint64_t importer = 0;
  context::Holder holder = context::Holder::handle;
};
struct KillImporter {  // the process, with all that it has open; another begins
  std::uint64_t share = 0;
  std::uint64_t handle = 0;
  bool is_opening = false;  // this memory, when it is killed
};
struct SetPeerAccess {
  std::uint64_t device = 0;
  std::uint64_t peer = 0;
};
struct ReadOnPeer {  // as ReadElsewhere, on a stream of another device
  std::uint64_t allocation = 0;
  std::uint64_t peer = 0;
  std::uint64_t stream = 0;
};
struct Trim {
  std::uint64_t device = 0;
  Bytes bytes_to_keep = 0;
};
struct Preallocate {
  std::uint64_t device = 0;
  Bytes bytes = 0;
};
struct SetCapacity {
  std::uint64_t device = 0;
  std::optional<Bytes> bytes;
};
struct Synchronize {
  std::uint64_t device = 0;
};
struct Pass {  // time on the host
  std::uint64_t ns = 0;
};
struct Step {  // of the GPU
  std::uint64_t count = 0;
};
struct AllocateTagged {  // memory that suspends, with a copy on the host or without
  std::uint64_t device = 0;
  std::uint64_t stream = 0;  // kAnyStream: none is named
  Bytes bytes = 0;
  bool has_backup = false;
  bool one_chunk = false;
};
struct Suspend {
  std::uint64_t device = 0;
  std::uint64_t tags = 0;  // modulo 3: both, or the first, or the second
  bool keeps_host_copy = false;
  bool to_driver = false;
  std::uint64_t after = kAnyStream;  // a stream that waits for all others first
  std::optional<Bytes> host_bytes;   // that the host has
};
struct Resume {
  std::uint64_t device = 0;
  std::uint64_t tags = 0;
  bool clears = false;
  bool drops_copy = false;
};
struct Reset {
  std::uint64_t device = 0;
  bool is_foreign = false;  // by somebody else, without a word to the pool
};

struct Fault {               // strikes in the next call that allocates, frees, trims or suspends
  std::uint64_t call = 0;    // of the driver, see kFaultingCalls
  std::uint64_t result = 0;  // of those that it may give
  std::uint64_t nth = 0;     // such call, from 0
  bool is_of_host = false;   // the nth allocation of host memory fails instead
};
struct Record {  // into a file, or no longer; the file is read then
  std::uint64_t device = 0;
};
struct Listen {  // to events, or no longer
  std::uint64_t device = 0;
  std::uint64_t kinds = 0;  // bits of report::EventKinds
};
struct CallBack {  // what out-of-memory callbacks do from now on
  std::uint64_t device = 0;
  std::uint64_t how = 0;  // modulo 4: nothing, free, trim, allocate
};
struct Hook {  // of a tag, which calls the pool; or no longer
  std::uint64_t device = 0;
  std::uint64_t tag = 0;
  bool refuses = false;
};
struct MakeArena {
  std::uint64_t device = 0;
  bool one_chunk = false;
  bool splits = true;
};
struct AllocateInArena {
  std::uint64_t arena = 0;
  std::uint64_t stream = 0;
  Bytes bytes = 0;
};
struct PinArena {
  std::uint64_t arena = 0;
};
struct TrimArena {
  std::uint64_t arena = 0;
};
struct ReleaseArena {
  std::uint64_t arena = 0;
};
struct AllocateSpecial {  // of one chunk, or with a tag that never suspends
  std::uint64_t device = 0;
  std::uint64_t stream = 0;  // kAnyStream: none is named
  Bytes bytes = 0;
  bool one_chunk = false;
  bool is_tagged = false;
};
struct TryAllocate {  // where nothing is to be mapped or waited for
  std::uint64_t device = 0;
  std::uint64_t stream = 0;  // kAnyStream: none is named
  Bytes bytes = 0;
};
struct TryFree {
  std::uint64_t allocation = 0;
};
struct OthersUse {  // of the GPU's memory, from now on
  std::uint64_t device = 0;
  Bytes bytes = 0;
};
struct DeferCleanup {  // or no longer
  std::uint64_t device = 0;
};
struct Overrun {  // a kernel leaves a guarded allocation, beyond its end or before its begin
  std::uint64_t allocation = 0;
  std::uint64_t place = 0;  // modulo 4: margin behind, margin before, behind the pages, before them
  std::uint64_t offset = 0;  // in the margin
};
struct Turn {  // another thread runs what follows, outside of captures
  std::uint64_t thread = 0;
};
struct Ask {};  // `vpmm top` asks over the socket of the process
struct Fork {   // and calls in the child
  std::uint64_t device = 0;
  std::uint64_t allocation = 0;
};
struct Break {  // of the GPU's context, for good; then every kind of call. Only at the end
  std::uint64_t device = 0;
  std::uint64_t result = 0;  // of sticky ones
  std::uint64_t first = 0;   // kind of call
};
struct Exit {  // of the process, with all that lives; only at the end
  std::uint64_t device = 0;
};

using Operation =
    std::variant<Allocate, AllocateMany, Write, Read, ReadElsewhere, Move, Free, FreeElsewhere,
                 FreeMany, FreeAnyStream, FreeWrongly, FreeTwice, Bind, Spin, Order, ReplaceStream,
                 BeginCapture, EndCapture, Launch, DestroyGraph, Share, Lease, ReadLease, EndLease,
                 KillImporter, SetPeerAccess, ReadOnPeer, Trim, Preallocate, SetCapacity,
                 Synchronize, Pass, Step, AllocateTagged, Suspend, Resume, Reset, Fault, Record,
                 Listen, CallBack, Hook, MakeArena, AllocateInArena, PinArena, TrimArena,
                 ReleaseArena, AllocateSpecial, TryAllocate, TryFree, OthersUse, DeferCleanup,
                 Overrun, Turn, Ask, Fork, Break, Exit>;

std::string to_code(const Operation& operation);  // "Free{3}"
std::string name_of(std::size_t kind);            // of an alternative of Operation: "Free"
constexpr std::size_t kOperationKinds = std::variant_size_v<Operation>;

}  // namespace vpmm::property
