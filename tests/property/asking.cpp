// SPDX-License-Identifier: Apache-2.0
// property tests: the question of `vpmm top`, over the socket of this process.
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/mutex.hpp"
#include "ipc/channel.hpp"
#include "ipc/top_socket.hpp"
#include "property/world.hpp"
#include "settings/variables.hpp"

namespace vpmm::property {
namespace {

constexpr std::chrono::seconds kPatience{5};
constexpr std::size_t kMostText = std::size_t{1} << 18;

using Visit = std::function<void(context::Context&)>;

// The pools that the socket tells of, while a program asks. An exporter of this process that starts
// connects, too, to see which sockets are in use.
Mutex telling;
std::function<void(const Visit&)> pools_to_tell VPMM_GUARDED_BY(telling);
bool has_told_nobody VPMM_GUARDED_BY(telling) = false;

void for_each_told_pool(const Visit& visit) {
  const MutexLock lock(telling);
  if (pools_to_tell) return pools_to_tell(visit);
  has_told_nobody = true;
}

// Returns whether no pools were told since the last call.
bool tell(std::function<void(const Visit&)> pools) {
  const MutexLock lock(telling);
  pools_to_tell = std::move(pools);
  return std::exchange(has_told_nobody, false);
}

Result<std::string> path_of_socket() {
  VPMM_TRY_ASSIGN(const settings::IpcSettings settings, settings::ipc_settings_from_environment());
  VPMM_TRY_ASSIGN(const std::string folder, ipc::socket_folder(settings.folder));
  const std::string own = fmt::format("top-{}-", getpid());
  for (const auto& file : std::filesystem::directory_iterator(folder))
    if (file.path().filename().string().starts_with(own)) return file.path().string();
  return ipc::not_shared("no socket of this process is in " + folder);
}

Result<std::string> answer() {
  VPMM_TRY_ASSIGN(const std::string path, path_of_socket());
  const ipc::Deadline deadline = ipc::Clock::now() + kPatience;
  VPMM_TRY_ASSIGN(const ipc::Channel channel, ipc::connect_to(path, deadline));
  if (!channel.wait_to_receive(deadline)) return ipc::not_shared("nothing came");
  std::string text(kMostText, '\0');
  const ssize_t got = recv(channel.get(), text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

}  // namespace

// The socket tells an answer again for some milliseconds; its age shows that.
void World::operator()(const Ask& /*o*/) {
  static std::uint64_t last_age_ns = 0;
  acted_ = true;
  say("/* `vpmm top` asks */");
  const bool was_asked_by_exporter = tell([this](const Visit& visit) {
    for (const Device& each : devices_) visit(*each.pool);
  });
  ipc::answer_top({for_each_told_pool, "hunt"});
  const Result<std::string> text = answer();
  tell(nullptr);
  if (!text) return fail("top: " + text.error().message);
  const nlohmann::json told = nlohmann::json::parse(text.value(), nullptr, false);
  if (!told.is_object()) return fail("top: the answer is no object: " + text.value());
  const auto age_ns = told.at("age_ns").get<std::uint64_t>();
  const bool is_told_again =
      last_age_ns == age_ns || (was_asked_by_exporter && told.at("pools").empty());
  last_age_ns = age_ns;
  if (is_told_again) {
    // A new answer calls the driver, and real time decides which answers are new. With the same
    // calls here the program runs alike each time.
    for (const Device& each : devices_) static_cast<void>(each.pool->reports().try_figures());
    for (const Device& each : devices_) static_cast<void>(each.pool->reports().statistics());
    return;
  }
  if (told.at("pools").size() != devices_.size()) return fail("top: not all pools are told");
  for (std::size_t number = 0; number < devices_.size(); ++number) {
    const nlohmann::json& pool = told.at("pools").at(number);
    const observe::Statistics is = devices_[number].pool->reports().statistics();
    if (pool.at("is_busy") == true) return fail("top: a pool that nobody uses is busy");
    const std::pair<const char*, std::uint64_t> figures[] = {
        {"live_bytes", is.live_bytes},           {"mapped_bytes", is.mapped_bytes},
        {"free_bytes", is.free_bytes},           {"pending_bytes", is.pending_bytes},
        {"suspended_bytes", is.suspended_bytes}, {"allocations", is.allocations},
        {"deallocations", is.deallocations},     {"failed_allocations", is.failed_allocations}};
    for (const auto& [name, value] : figures)
      if (pool.at(name) != value)
        return fail(fmt::format("top: {} is {}, not {}", name, pool.at(name).dump(), value));
  }
}

}  // namespace vpmm::property
