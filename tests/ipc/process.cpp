// SPDX-License-Identifier: Apache-2.0
// ipc tests: what the words of a test are in the actor.
#include "ipc/process.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "context/open_driver.hpp"
#include "driver/sim/sim_driver.hpp"
#include "settings/config.hpp"

namespace vpmm::ipc_test {
namespace {

namespace fs = std::filesystem;

void must(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "actor %d: %s\n", getpid(), what.c_str());
  std::abort();
}
void must(driver::CuResult result) {
  must(result == driver::CuResult::success, driver::to_string(result));
}

void* to_pointer(Address address) { return reinterpret_cast<void*>(address); }
Address to_address(const void* pointer) { return reinterpret_cast<Address>(pointer); }

std::vector<std::uint64_t> pattern(Bytes bytes, std::uint64_t seed, Bytes from) {
  std::vector<std::uint64_t> words((bytes + 7) / 8);
  for (std::size_t i = 0; i < words.size(); ++i)
    words[i] = (seed + 1) * 0x9E3779B97F4A7C15 ^ (from / 8 + i) * 0xC2B2AE3D27D4EB4F;
  return words;
}

constexpr Bytes kPiece = 4 * kMiB;

template <typename Visit>
void for_each_piece(Bytes bytes, Visit&& visit) {
  for (Bytes done = 0; done < bytes; done += kPiece) visit(done, std::min(kPiece, bytes - done));
}

std::uint64_t entries_of(const char* folder) {
  std::error_code failed;
  fs::directory_iterator all(folder, failed);
  return failed ? 0 : static_cast<std::uint64_t>(std::distance(begin(all), end(all)));
}

Parcel with(Address address, Bytes bytes = 0, std::uint64_t more = 0) {
  Parcel parcel;
  parcel.words = {address, bytes, more};
  return parcel;
}

Parcel with(const vpmm_ipc_handle& handle, int device = -1) {
  Parcel parcel;
  parcel.handle = handle;
  parcel.words[0] = static_cast<std::uint64_t>(device);
  return parcel;
}

void open_here(Parcel& parcel) {
  void* ptr = nullptr;
  parcel.take(vpmm_ipc_open(&parcel.handle, static_cast<int>(parcel.words[0]), &ptr));
  parcel.words[0] = to_address(ptr);
}

}  // namespace

// --- in an actor

driver::Driver& driver_of_actor() {
  const Result<settings::Config> config = settings::config_from_environment();
  must(config.ok(), "settings");
  const Result<driver::Driver*> driver = context::process_driver(config.value().driver);
  must(driver.ok(), "driver");
  must(driver.value()->init());
  driver::ContextHandle current{};
  must(driver.value()->ctx_get_current(current));
  if (current == driver::ContextHandle{}) {
    must(driver.value()->device_primary_ctx_retain(0, current));
    must(driver.value()->ctx_set_current(current));
  }
  return *driver.value();
}

vpmm_pool* pool_of_actor(int device) {
  vpmm_pool* pool = nullptr;
  must(vpmm_default_pool(device, &pool) == VPMM_OK, vpmm_last_error());
  return pool;
}

Descriptors own_descriptors() {
  Descriptors own;
  for (const auto& file : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // that of the folder
    const std::string what = fs::read_symlink(file, gone).string();
    own.sockets += what.starts_with("socket:") ? 1U : 0U;
    own.watches += what.find("pidfd") != std::string::npos ? 1U : 0U;
    own.all += gone ? 0U : 1U;
  }
  --own.all;  // of the folder
  return own;
}

Belongings own_belongings() {
  Belongings own;
  const Descriptors files = own_descriptors();
  own.descriptors = files.all;
  own.sockets = files.sockets;
  own.watches = files.watches;
  own.threads = entries_of("/proc/self/task");
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    own.areas += line.find("memfd:") != std::string::npos ? 1U : 0U;
  if (const auto* const sim = dynamic_cast<driver::sim::SimDriver*>(&driver_of_actor())) {
    const driver::sim::Census census = sim->census();
    own.chunks = census.chunks;
    own.mappings = census.mappings;
    own.reservations = census.reservations;
  }
  return own;
}

// --- the exporter's side

Address Process::allocate(Bytes bytes, int device) {
  const Parcel answer = call(
      [](Parcel& parcel) {
        void* ptr = nullptr;
        parcel.take(vpmm_allocate_any_stream(pool_of_actor(static_cast<int>(parcel.words[2])),
                                             parcel.words[1], 0, &ptr));
        parcel.words[0] = to_address(ptr);
      },
      with(0, bytes, static_cast<std::uint64_t>(device)));
  expect_ok(answer);
  return answer.words[0];
}

Parcel Process::try_to_free(Address address) {
  return call(
      [](Parcel& parcel) {
        parcel.take(vpmm_deallocate_any_stream(pool_of_actor(), to_pointer(parcel.words[0])));
      },
      with(address));
}

void Process::free(Address address) { expect_ok(try_to_free(address)); }

Parcel Process::try_to_share(Address address, Bytes bytes) {
  return call(
      [](Parcel& parcel) {
        driver_of_actor();
        parcel.take(vpmm_ipc_export(to_pointer(parcel.words[0]), parcel.words[1], &parcel.handle));
      },
      with(address, bytes));
}

vpmm_ipc_handle Process::share(Address address, Bytes bytes) {
  const Parcel answer = try_to_share(address, bytes);
  expect_ok(answer);
  return answer.handle;
}

Shared Process::allocate_shared(Bytes bytes, std::uint64_t seed) {
  const Address address = allocate(bytes);
  fill(address, bytes, seed);
  return {address, share(address, bytes)};
}

Parcel Process::try_to_end(const vpmm_ipc_handle& handle) {
  return call([](Parcel& parcel) { parcel.take(vpmm_ipc_export_end(&parcel.handle)); },
              with(handle));
}

void Process::end(const vpmm_ipc_handle& handle) { expect_ok(try_to_end(handle)); }

void Process::trim() {
  expect_ok(call([](Parcel& parcel) {
    parcel.take(vpmm_synchronize(pool_of_actor()));
    if (parcel.status == VPMM_OK) parcel.take(vpmm_trim(pool_of_actor(), 0, nullptr));
  }));
}

vpmm_statistics Process::statistics() {
  const Parcel answer = call([](Parcel& parcel) {
    vpmm_statistics statistics{};
    statistics.size = sizeof statistics;
    parcel.take(vpmm_get_statistics(pool_of_actor(), &statistics));
    static_assert(sizeof statistics <= sizeof parcel.text);
    std::memcpy(parcel.text.data(), &statistics, sizeof statistics);
  });
  EXPECT_EQ(answer.status, VPMM_OK);
  vpmm_statistics statistics{};
  std::memcpy(&statistics, answer.text.data(), sizeof statistics);
  return statistics;
}

Bytes Process::leased() { return statistics().leased_bytes; }

// --- the importer's side

Parcel Process::try_to_open(const vpmm_ipc_handle& handle, int device) {
  return call(open_here, with(handle, device));
}

Address Process::open(const vpmm_ipc_handle& handle, int device) {
  const Parcel answer = try_to_open(handle, device);
  expect_ok(answer);
  return answer.words[0];
}

void Process::begin_to_open(const vpmm_ipc_handle& handle) { begin(open_here, with(handle)); }

Address Process::open_staged(const vpmm_ipc_handle& handle, int device) {
  const Parcel answer = call(
      [](Parcel& parcel) {
        void* ptr = nullptr;
        parcel.take(vpmm_ipc_open_staged(&parcel.handle,
                                         pool_of_actor(static_cast<int>(parcel.words[0])), &ptr));
        parcel.words[0] = to_address(ptr);
      },
      with(handle, device));
  expect_ok(answer);
  return answer.words[0];
}

Parcel Process::try_to_close(Address address) {
  return call([](Parcel& parcel) { parcel.take(vpmm_ipc_close(to_pointer(parcel.words[0]))); },
              with(address));
}

void Process::close(Address address) { expect_ok(try_to_close(address)); }

// --- bytes

void Process::fill(Address address, Bytes bytes, std::uint64_t seed) {
  expect_ok(call(
      [](Parcel& parcel) {
        driver::Driver& driver = driver_of_actor();
        for_each_piece(parcel.words[1], [&](Bytes done, Bytes now) {
          const DevicePtr to{parcel.words[0] + done};
          must(driver.memcpy_host_to_device(to, pattern(now, parcel.words[2], done).data(), now));
        });
      },
      with(address, bytes, seed)));
}

void Process::expect(Address address, Bytes bytes, std::uint64_t seed) {
  expect_ok(call(
      [](Parcel& parcel) {
        const auto [begin, size, kind] =
            std::tuple(parcel.words[0], parcel.words[1], parcel.words[2]);
        driver::Driver& driver = driver_of_actor();
        for_each_piece(size, [&, &seed = kind, &start = begin](Bytes done, Bytes now) {
          std::vector<std::uint64_t> found((now + 7) / 8);
          must(driver.memcpy_device_to_host(found.data(), DevicePtr{start + done}, now));
          if (std::memcmp(found.data(), pattern(now, seed, done).data(), now) == 0) return;
          parcel.status = VPMM_ERROR_INVALID_ARGUMENT;
          parcel.say("other bytes than expected in the 4 MiB from offset " + std::to_string(done));
        });
      },
      with(address, bytes, seed)));
}

// --- what it has

Belongings Process::belongings() {
  const Parcel answer = call([](Parcel& parcel) {
    const Belongings own = own_belongings();
    static_assert(sizeof own <= sizeof parcel.words);
    std::memcpy(parcel.words.data(), &own, sizeof own);
  });
  Belongings own;
  std::memcpy(static_cast<void*>(&own), answer.words.data(), sizeof own);
  return own;
}

double Process::share_of_a_core() {
  const Parcel used = call([](Parcel& parcel) {
    const std::array clocks{CLOCK_PROCESS_CPUTIME_ID, CLOCK_MONOTONIC};
    for (std::size_t i = 0; i < 4; ++i) {
      timespec now{};
      clock_gettime(clocks[i % 2], &now);
      parcel.words[i] = static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
                        static_cast<std::uint64_t>(now.tv_nsec);
      if (i == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
    }
  });
  return static_cast<double>(used.words[2] - used.words[0]) /
         static_cast<double>(used.words[3] - used.words[1]);
}

void PrintTo(const Belongings& belongings, std::ostream* out) {
  *out << belongings.descriptors << " descriptors, " << belongings.sockets << " of them sockets, "
       << belongings.threads << " threads, " << belongings.areas << " areas, " << belongings.chunks
       << " chunks, " << belongings.mappings << " mappings, " << belongings.reservations
       << " reservations";
}

void Process::limit_descriptors(std::uint64_t most) {
  expect_ok(call(
      [](Parcel& parcel) {
        const rlimit limit{parcel.words[0], parcel.words[0]};
        must(setrlimit(RLIMIT_NOFILE, &limit) == 0, "setrlimit");
      },
      with(most)));
}

// --- in the test

void expect_leases_to_end(Process& exporter) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (exporter.leased() != 0 && std::chrono::steady_clock::now() < give_up)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_EQ(exporter.leased(), 0U);
}

void expect_refused(const Parcel& answer, vpmm_status status, const std::string& words) {
  EXPECT_EQ(answer.status, status) << answer.said();
  EXPECT_NE(answer.said().find(words), std::string::npos) << answer.said();
}

std::string socket_folder_of_tests() { return std::getenv("VPMM_IPC_DIR"); }

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace vpmm::ipc_test
