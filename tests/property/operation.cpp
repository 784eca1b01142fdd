// SPDX-License-Identifier: Apache-2.0
// property tests: operations as code.
#include "property/operation.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace vpmm::property {
namespace {

std::string number(std::uint64_t value) {
  return value == kAnyStream ? "kAnyStream" : fmt::format("{}", value);
}

const char* code(driver::StreamFlags flags) {
  return flags == driver::StreamFlags::blocking ? "driver::StreamFlags::blocking"
                                                : "driver::StreamFlags::non_blocking";
}

const char* code(driver::CaptureMode mode) {
  switch (mode) {
    case driver::CaptureMode::global: return "driver::CaptureMode::global";
    case driver::CaptureMode::thread_local_mode: return "driver::CaptureMode::thread_local_mode";
    case driver::CaptureMode::relaxed: return "driver::CaptureMode::relaxed";
  }
  return "";
}

const char* code(context::Holder holder) {
  return holder == context::Holder::handle ? "context::Holder::handle"
                                           : "context::Holder::importer";
}

struct Printer {
  std::string operator()(const Allocate& o) const {
    return fmt::format("Allocate{{{}, {}, {}, {}}}", o.device, number(o.stream), o.bytes,
                       o.alignment);
  }
  std::string operator()(const AllocateMany& o) const {
    return fmt::format("AllocateMany{{{}, {}, {}, {}}}", o.device, number(o.stream), o.bytes,
                       o.count);
  }
  std::string operator()(const Write& o) const { return fmt::format("Write{{{}}}", o.allocation); }
  std::string operator()(const Read& o) const { return fmt::format("Read{{{}}}", o.allocation); }
  std::string operator()(const ReadElsewhere& o) const {
    return fmt::format("ReadElsewhere{{{}, {}}}", o.allocation, o.stream);
  }
  std::string operator()(const Move& o) const {
    return fmt::format("Move{{{}, {}, {}}}", o.allocation, o.stream, o.is_recorded);
  }
  std::string operator()(const Free& o) const { return fmt::format("Free{{{}}}", o.allocation); }
  std::string operator()(const FreeElsewhere& o) const {
    return fmt::format("FreeElsewhere{{{}, {}, {}}}", o.allocation, o.stream, o.is_ordered);
  }
  std::string operator()(const FreeMany& o) const {
    return fmt::format("FreeMany{{{}, {}, {}}}", o.allocation, o.stream, o.count);
  }
  std::string operator()(const FreeAnyStream& o) const {
    return fmt::format("FreeAnyStream{{{}, {}}}", o.allocation, o.is_deferred);
  }
  std::string operator()(const FreeWrongly& o) const {
    return fmt::format("FreeWrongly{{{}}}", o.allocation);
  }
  std::string operator()(const FreeTwice& o) const {
    return fmt::format("FreeTwice{{{}, {}}}", o.freed, o.stream);
  }
  std::string operator()(const Bind& o) const {
    return fmt::format("Bind{{{}, {}}}", o.device, o.stream);
  }
  std::string operator()(const Spin& o) const {
    return fmt::format("Spin{{{}, {}, {}}}", o.device, o.stream, o.duration_ns);
  }
  std::string operator()(const Order& o) const {
    return fmt::format("Order{{{}, {}, {}}}", o.device, o.first, o.second);
  }
  std::string operator()(const ReplaceStream& o) const {
    return fmt::format("ReplaceStream{{{}, {}, {}, {}}}", o.device, o.stream, code(o.flags),
                       o.takes_allocations);
  }
  std::string operator()(const BeginCapture& o) const {
    return fmt::format("BeginCapture{{{}, {}, {}, {}}}", o.device, o.stream, code(o.mode),
                       o.is_announced);
  }
  std::string operator()(const EndCapture& o) const {
    return fmt::format("EndCapture{{{}, {}}}", o.capture, o.is_kept);
  }
  std::string operator()(const Launch& o) const {
    return fmt::format("Launch{{{}, {}}}", o.graph, o.stream);
  }
  std::string operator()(const DestroyGraph& o) const {
    return fmt::format("DestroyGraph{{{}, {}, {}}}", o.graph, o.frees_first, o.is_told);
  }
  std::string operator()(const Share& o) const {
    return fmt::format("Share{{{}, {}, {}}}", o.allocation, o.begin, o.size);
  }
  std::string operator()(const Lease& o) const {
    return fmt::format("Lease{{{}, {}, {}}}", o.share, o.begin, o.size);
  }
  std::string operator()(const ReadLease& o) const {
    return fmt::format("ReadLease{{{}, {}}}", o.share, o.importer);
  }
  std::string operator()(const EndLease& o) const {
    return fmt::format("EndLease{{{}, {}, {}}}", o.share, o.importer, code(o.holder));
  }
  std::string operator()(const KillImporter& o) const {
    return fmt::format("KillImporter{{{}, {}, {}}}", o.share, o.handle, o.is_opening);
  }
  std::string operator()(const SetPeerAccess& o) const {
    return fmt::format("SetPeerAccess{{{}, {}}}", o.device, o.peer);
  }
  std::string operator()(const ReadOnPeer& o) const {
    return fmt::format("ReadOnPeer{{{}, {}, {}}}", o.allocation, o.peer, o.stream);
  }
  std::string operator()(const Trim& o) const {
    return fmt::format("Trim{{{}, {}}}", o.device, o.bytes_to_keep);
  }
  std::string operator()(const Preallocate& o) const {
    return fmt::format("Preallocate{{{}, {}}}", o.device, o.bytes);
  }
  std::string operator()(const SetCapacity& o) const {
    return fmt::format("SetCapacity{{{}, {}}}", o.device,
                       o.bytes ? fmt::format("{}", *o.bytes) : "std::nullopt");
  }
  std::string operator()(const Synchronize& o) const {
    return fmt::format("Synchronize{{{}}}", o.device);
  }
  std::string operator()(const Pass& o) const { return fmt::format("Pass{{{}}}", o.ns); }
  std::string operator()(const Step& o) const { return fmt::format("Step{{{}}}", o.count); }
  std::string operator()(const AllocateTagged& o) const {
    return fmt::format("AllocateTagged{{{}, {}, {}, {}, {}}}", o.device, number(o.stream), o.bytes,
                       o.has_backup, o.one_chunk);
  }
  std::string operator()(const Suspend& o) const {
    return fmt::format("Suspend{{{}, {}, {}, {}, {}, {}}}", o.device, o.tags, o.keeps_host_copy,
                       o.to_driver, number(o.after),
                       o.host_bytes ? fmt::format("{}", *o.host_bytes) : "std::nullopt");
  }
  std::string operator()(const Resume& o) const {
    return fmt::format("Resume{{{}, {}, {}, {}}}", o.device, o.tags, o.clears, o.drops_copy);
  }
  std::string operator()(const Reset& o) const {
    return fmt::format("Reset{{{}, {}}}", o.device, o.is_foreign);
  }
  std::string operator()(const Fault& o) const {
    return fmt::format("Fault{{{}, {}, {}, {}}}", o.call, o.result, o.nth, o.is_of_host);
  }
  std::string operator()(const Record& o) const { return fmt::format("Record{{{}}}", o.device); }
  std::string operator()(const Listen& o) const {
    return fmt::format("Listen{{{}, {}}}", o.device, o.kinds);
  }
  std::string operator()(const CallBack& o) const {
    return fmt::format("CallBack{{{}, {}}}", o.device, o.how);
  }
  std::string operator()(const Hook& o) const {
    return fmt::format("Hook{{{}, {}, {}}}", o.device, o.tag, o.refuses);
  }
  std::string operator()(const MakeArena& o) const {
    return fmt::format("MakeArena{{{}, {}, {}}}", o.device, o.one_chunk, o.splits);
  }
  std::string operator()(const AllocateInArena& o) const {
    return fmt::format("AllocateInArena{{{}, {}, {}}}", o.arena, o.stream, o.bytes);
  }
  std::string operator()(const PinArena& o) const { return fmt::format("PinArena{{{}}}", o.arena); }
  std::string operator()(const TrimArena& o) const {
    return fmt::format("TrimArena{{{}}}", o.arena);
  }
  std::string operator()(const ReleaseArena& o) const {
    return fmt::format("ReleaseArena{{{}}}", o.arena);
  }
  std::string operator()(const AllocateSpecial& o) const {
    return fmt::format("AllocateSpecial{{{}, {}, {}, {}, {}}}", o.device, number(o.stream), o.bytes,
                       o.one_chunk, o.is_tagged);
  }
  std::string operator()(const TryAllocate& o) const {
    return fmt::format("TryAllocate{{{}, {}, {}}}", o.device, number(o.stream), o.bytes);
  }
  std::string operator()(const TryFree& o) const {
    return fmt::format("TryFree{{{}}}", o.allocation);
  }
  std::string operator()(const OthersUse& o) const {
    return fmt::format("OthersUse{{{}, {}}}", o.device, o.bytes);
  }
  std::string operator()(const DeferCleanup& o) const {
    return fmt::format("DeferCleanup{{{}}}", o.device);
  }
  std::string operator()(const Overrun& o) const {
    return fmt::format("Overrun{{{}, {}, {}}}", o.allocation, o.place, o.offset);
  }
  std::string operator()(const Turn& o) const { return fmt::format("Turn{{{}}}", o.thread); }
  std::string operator()(const Ask& /*o*/) const { return "Ask{}"; }
  std::string operator()(const Fork& o) const {
    return fmt::format("Fork{{{}, {}}}", o.device, o.allocation);
  }
  std::string operator()(const Break& o) const {
    return fmt::format("Break{{{}, {}, {}}}", o.device, o.result, o.first);
  }
  std::string operator()(const Exit& o) const { return fmt::format("Exit{{{}}}", o.device); }
};

template <std::size_t... I>
std::array<std::string, sizeof...(I)> names(std::index_sequence<I...> /*kinds*/) {
  const auto name = [](const Operation& each) {
    const std::string code = std::visit(Printer{}, each);
    return code.substr(0, code.find('{'));
  };
  return {name(Operation(std::in_place_index<I>))...};
}

}  // namespace

std::string to_code(const Operation& operation) { return std::visit(Printer{}, operation); }

std::string name_of(std::size_t kind) {
  static const auto all = names(std::make_index_sequence<kOperationKinds>());
  return all[kind];
}

}  // namespace vpmm::property
