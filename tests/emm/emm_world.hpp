// emm tests: a simulated GPU of their own, whose calls can be made to fail, and managers on it.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "capi/pool.hpp"
#include "driver/faulting.hpp"
#include "driver/recording.hpp"
#include "driver/sim/sim_driver.hpp"
#include "emm/driver_table.hpp"
#include "vpmm/emm.hpp"

namespace vpmm::emm_test {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class EmmWorld {
 public:
  explicit EmmWorld(const driver::sim::SimOptions& options = {}) : sim_(options), faulting_(sim_), calls_(faulting_) {
    EXPECT_EQ(sim_.init(), driver::CuResult::success);
    EXPECT_EQ(sim_.device_primary_ctx_retain(0, context_), driver::CuResult::success);
    EXPECT_EQ(sim_.ctx_set_current(context_), driver::CuResult::success);
  }
  ~EmmWorld() {
    sim_.run_until_idle();
    for (const driver::sim::Hazard& hazard : sim_.hazards()) ADD_FAILURE() << hazard.describe();
  }
  EmmWorld(const EmmWorld&) = delete;
  EmmWorld& operator=(const EmmWorld&) = delete;

  template <typename Manager, typename... Arguments>
  std::shared_ptr<Manager> make(Arguments&&... arguments) {
    return std::make_shared<Manager>(creation(), std::forward<Arguments>(arguments)...);
  }
  emm::Creation creation() { return {emm::Driver(table_.table()), 0}; }
  emm::Driver driver() { return emm::Driver(table_.table()); }
  driver::sim::SimDriver& sim() { return sim_; }
  driver::FaultingDriver& faulting() { return faulting_; }
  driver::RecordingDriver& calls() { return calls_; }
  vpmm_cuda_context context() const {
    return reinterpret_cast<vpmm_cuda_context>(static_cast<std::uintptr_t>(context_));
  }

 private:
  driver::sim::SimDriver sim_;
  driver::FaultingDriver faulting_;
  driver::RecordingDriver calls_;
  emm::DriverTable table_{calls_};
  driver::ContextHandle context_{};
};

// A pool on a driver of the test's, as the C ABI has it.
inline std::unique_ptr<vpmm_pool> make_pool(driver::Driver& driver, const pool::Config& config) {
  Result<std::unique_ptr<context::Context>> context = context::Context::create(driver, 0, config);
  if (!context) throw_error(VPMM_ERROR_DRIVER_FAILED, context.error().message);
  return std::unique_ptr<vpmm_pool>(new vpmm_pool{std::move(context).value(), capi::Ownership::of_the_caller, config});
}

// VPMM's manager, on a pool of the test's.
class OnPool : public emm::PoolMemoryManager {
 public:
  OnPool(const emm::Creation& creation, driver::Driver& driver, const pool::Config& config)
      : PoolMemoryManager(creation), driver_(driver), config_(config) {}

 private:
  pool_ref open_pool() override {
    pool_ = make_pool(driver_, config_);
    return pool_ref(pool_.get());
  }
  driver::Driver& driver_;
  pool::Config config_;
  std::unique_ptr<vpmm_pool> pool_;
};

inline pool::Config pool_config() {
  pool::Config config;
  config.va_size = Bytes{1} << 30;
  config.log = pool::LogLevel::quiet;
  return config;
}
inline pool::Config stream_ordered_config() {
  pool::Config config = pool_config();
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
