// SPDX-License-Identifier: Apache-2.0
// property tests: memory that goes through the exporter of this process to another process.
//
// After each exchange the world waits for the exporter's thread, so that a program runs alike each
// time. What that thread does to the pool, it does while nothing else runs, and meets no fault.
#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>

#include "context/context.hpp"
#include "ipc/exporter.hpp"
#include "property/other_process.hpp"
#include "property/world.hpp"

namespace vpmm::property {

Result<context::SharedRange> World::export_part(Device& at, AddressRange part,
                                                ipc::IpcHandle& handle) {
  VPMM_TRY_ASSIGN(handle, ipc::Exporter::of_process().share(*at.pool, part));
  VPMM_TRY_ASSIGN(const ipc::Token token, ipc::decode(handle.token));
  exporter_ = token.process;
  return context::SharedRange{context::ShareId{token.generation}, DevicePtr{token.allocation},
                              token.offset};
}

Result<void> World::import(const Shared& shared, const Export& of, Importer& importer) {
  importer.part = {shared.range.begin + of.handle.offset, of.handle.size};
  importer.token = of.handle.token;
  say("/* another process opens {} bytes at {:#x} */", importer.part.size,
      to_integer(importer.part.begin));
  VPMM_TRY_ASSIGN(importer.there, OtherProcess::instance().open(of.handle));
  return {};
}

// Opens and closes memory once more that is open there: that asks no exporter.
bool World::is_open_there(const Shared& shared, const Export& of) {
  const auto open =
      std::find_if(shared.importers.begin(), shared.importers.end(),
                   [&](const Importer& importer) { return importer.token == of.handle.token; });
  if (open == shared.importers.end()) return false;
  acted_ = true;
  Importer again;
  if (!expect(import(shared, of, again), "open again")) return true;
  if (again.there != open->there) fail("open memory has another address when it is opened again");
  expect(OtherProcess::instance().close(again.there), "close once");
  return true;
}

void World::read_there(const Shared& shared, const Importer& importer) {
  if (!shared.content || !scene_.sim.has_aliases || is_broken_) return;
  wait_for_other_process(shared.device);
  std::vector<Bytes> offsets;
  for (const std::uint8_t* const byte : samples(shared.range.begin, shared.bytes)) {
    const DevicePtr at{reinterpret_cast<std::uint64_t>(byte)};
    if (importer.part.contains(at)) offsets.push_back(at - importer.part.begin);
  }
  const auto read = OtherProcess::instance().reads(importer.there, offsets, *shared.content);
  if (expect(read, "the other process compares") && !read.value())
    fail("the other process reads what nobody had written");
}

void World::end_export(Shared& shared, std::uint64_t number) {
  Export& ended = shared.exports[number % shared.exports.size()];
  const auto is_same = [&](const Export& each) {
    return each.is_open && each.handle.token == ended.handle.token;
  };
  const auto open = std::find_if(shared.exports.begin(), shared.exports.end(), is_same);
  const auto result = call(Bears::nothing, [&]() -> Result<void> {
    VPMM_TRY_ASSIGN(const ipc::Token token, ipc::decode(ended.handle.token));
    return ipc::Exporter::of_process().end(token);
  });
  if (open == shared.exports.end()) {
    if (result || result.error().code != ErrorCode::invalid_argument)
      fail("an export ends twice: " + (result ? "done" : result.error().message));
    return;
  }
  if (!expect(result, "end an export")) return;
  open->is_open = false;
  --shared.handles;
}

void World::settle_exporter() {
  if (exporter_ && failure_.empty()) expect(wait_for_exporter(*exporter_), "hang: the exporter");
}

void World::operator()(const KillImporter& o) {
  if (!scene_.has_importer) return;
  acted_ = true;
  Shared* opening = nullptr;
  if (o.is_opening && !shared_.empty()) {
    Shared& shared = shared_[o.share % shared_.size()];
    const ipc::IpcHandle& handle = shared.exports[o.handle % shared.exports.size()].handle;
    say("/* another process begins to open {} bytes at {:#x} */", handle.size,
        to_integer(shared.range.begin) + handle.offset);
    const auto begun = OtherProcess::instance().begin_to_open(handle);
    const AddressRange part{shared.range.begin + handle.offset, handle.size};
    if (is_leased(shared, part, error_of(begun))) opening = &shared;
  }
  for (std::size_t number = 0; number < devices_.size(); ++number) wait_for_other_process(number);
  say("/* another process is killed */");
  OtherProcess::instance().kill();
  settle_exporter();
  for (Shared& shared : shared_) {
    if (shared.importers.empty() && &shared != opening) continue;
    shared.importers.clear();
    if (!shared.is_held()) reference(shared.device).end_keeping(shared.number);
  }
  expect(OtherProcess::instance().start(), "start another process");
}

// Of pools that are gone, and of a process that exits. What is open asks no exporter.
void World::check_that_nothing_opens() {
  for (const Shared& shared : shared_) {
    if (!shared.importers.empty()) continue;
    for (const Export& of : shared.exports) {
      if (!failure_.empty()) return;
      Importer importer;
      const auto imported = import(shared, of, importer);
      if (imported || !says_not_shared(imported.error()))
        fail("opened after the end of its pool: " + (imported ? "done" : imported.error().message));
    }
  }
}

// Leaves nothing open for the next program.
void World::leave_importer() {
  ipc::Exporter& exporter = ipc::Exporter::of_process();
  for (const Device& each : devices_)
    if (each.pool != nullptr) exporter.forget(*each.pool);
  bool is_any_open = false;
  for (const Shared& shared : shared_) {
    for (const Export& each : shared.exports)
      if (const auto token = ipc::decode(each.handle.token); token && each.is_open)
        static_cast<void>(exporter.end(token.value()));  // of a failed program, perhaps
    for (const Importer& importer : shared.importers)
      is_any_open = !OtherProcess::instance().close(importer.there) || is_any_open;
  }
  if (is_any_open || !failure_.empty()) OtherProcess::instance().kill();
}

}  // namespace vpmm::property
