// SPDX-License-Identifier: Apache-2.0
// emm tests: a GPU whose calls can be counted and made to fail, and managers on it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "capi/pool.hpp"
#include "context/open_driver.hpp"
#include "driver/faulting.hpp"
#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "emm/driver_table.hpp"
#include "vpmm/emm.hpp"

namespace vpmm::emm_test {

constexpr std::size_t kMiB = std::size_t{1} << 20;

// The simulator, or the GPU where VPMM_DRIVER says so.
class EmmWorld {
 public:
  explicit EmmWorld() : inner_(open()), faulting_(*inner_), calls_(faulting_) {
    EXPECT_EQ(inner_->init(), driver::CuResult::success);
    EXPECT_EQ(inner_->device_primary_ctx_retain(0, context_), driver::CuResult::success);
    EXPECT_EQ(inner_->ctx_set_current(context_), driver::CuResult::success);
  }
  ~EmmWorld() {
    if (sim_ != nullptr) {
      sim_->run_until_idle();
      for (const driver::sim::Hazard& hazard : sim_->hazards()) ADD_FAILURE() << hazard.describe();
    }
    inner_->ctx_set_current({});
    inner_->device_primary_ctx_release(0);
  }
  EmmWorld(const EmmWorld&) = delete;
  EmmWorld& operator=(const EmmWorld&) = delete;

  template <typename Manager, typename... Arguments>
  std::shared_ptr<Manager> make(Arguments&&... arguments) {
    return std::make_shared<Manager>(creation(), std::forward<Arguments>(arguments)...);
  }
  emm::Creation creation() { return {driver(), 0}; }
  emm::Driver driver() { return emm::Driver(table_.table()); }
  // Requires: the simulator.
  driver::sim::SimDriver& sim() { return *sim_; }
  driver::FaultingDriver& faulting() { return faulting_; }
  driver::RecordingDriver& calls() { return calls_; }
  vpmm_cuda_context context() const {
    return reinterpret_cast<vpmm_cuda_context>(static_cast<std::uintptr_t>(context_));
  }

 private:
  std::unique_ptr<driver::Driver> open() {
    const char* const named = std::getenv("VPMM_DRIVER");
    if (named != nullptr && std::string(named) == "cuda") {
      auto cuda = context::open_driver(settings::DriverKind::cuda);
      if (cuda) return std::move(cuda).value();
      throw std::runtime_error(cuda.error().message);
    }
    driver::sim::SimOptions options;
    options.capacity = Bytes{4} << 30;
    auto sim = std::make_unique<driver::sim::SimDriver>(options);
    sim_ = sim.get();
    return sim;
  }

  driver::sim::SimDriver* sim_ = nullptr;
  std::unique_ptr<driver::Driver> inner_;
  driver::FaultingDriver faulting_;
  driver::RecordingDriver calls_;
  emm::DriverTable table_{calls_};
  driver::ContextHandle context_{};
};

// A pool on a driver of the test's, as the C ABI has it.
inline std::unique_ptr<vpmm_pool> make_pool(driver::Driver& driver,
                                            const settings::Config& config) {
  Result<std::unique_ptr<context::Context>> context = context::Context::create(driver, 0, config);
  if (!context) throw_error(VPMM_ERROR_DRIVER_FAILED, context.error().message);
  return std::unique_ptr<vpmm_pool>(
      new vpmm_pool{std::move(context).value(), capi::PoolLifetime::of_the_caller});
}

// VPMM's manager, on a pool of the test's.
class OnPool : public emm::PoolMemoryManager {
 public:
  OnPool(const emm::Creation& creation, driver::Driver& driver, const settings::Config& config)
      : PoolMemoryManager(creation), driver_(driver), config_(config) {}

 private:
  pool_ref open_pool() override {
    pool_ = make_pool(driver_, config_);
    return pool_ref(pool_.get());
  }
  driver::Driver& driver_;
  settings::Config config_;
  std::unique_ptr<vpmm_pool> pool_;
};

inline settings::Config pool_config() {
  settings::Config config;
  config.va_size = Bytes{1} << 30;
  config.log = observe::LogLevel::quiet;
  return config;
}
inline settings::Config stream_ordered_config() {
  settings::Config config = pool_config();
  config.pool_enabled = false;
  return config;
}

// The status and text of the vpmm::error that `work` throws; VPMM_OK when it throws none.
struct Thrown {
  vpmm_status status = VPMM_OK;
  std::string text;
  bool names(const std::string& words) const { return text.find(words) != std::string::npos; }
};
template <typename Work>
Thrown thrown_by(Work&& work) {
  try {
    work();
    return {};
  } catch (const vpmm::error& error) {
    return {error.status(), error.what()};
  }
}

}  // namespace vpmm::emm_test
