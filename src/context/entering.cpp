// context: opening a device, noticing that its CUDA context died, and finding out who calls.
#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "base/host_memory.hpp"
#include "base/message.hpp"
#include "context/bound.hpp"
#include "context/config.hpp"
#include "context/neighbours.hpp"
#include "context/process_gate.hpp"
#include "context/visit.hpp"
#include "driver/driver_error.hpp"
#include "observe/log.hpp"

namespace vpmm::context {

using driver::Call;
using driver::CuResult;
using pool::Caller;

namespace {

time::ClosingRule closing_rule(const Config& config) {
  time::ClosingRule rule;
  if (!config.page_chunks) return rule;
  rule.frees = 1;  // the specification closes every free
  rule.even_alone = true;
  return rule;
}

constexpr std::size_t kTimelinesKept = 64;  // more than this many, and idle ones are forgotten

// Pages beyond any usual size are how the specification switches the pool off: what is below them is the driver's.
constexpr Bytes kLargestPageCut = 64 * kMiB;

bool cuts_pages(const Config& config, const DeviceTraits& traits) {
  const Bytes page = config.page_size.value_or(traits.granularity);
  return !config.ipc_isolate && traits.has_vmm && config.pool_enabled && config.small == SmallRequests::pool &&
         small::SmallPool::can_cut(page) && page <= kLargestPageCut;
}

// Note [An allocation with chunks of its own]
// Another process gets whole chunks. Where it must not see what else is in them, nothing else may be in them: requests
// are whole pages, and a page is a chunk.
bool keeps_apart(const Config& config) { return config.ipc_isolate && config.small == SmallRequests::pool; }

Config in_force(Config config) {
  config.page_chunks = config.page_chunks || config.ipc_isolate;
  return config;
}

Result<bool> device_can(driver::Driver& driver, driver::DeviceAttribute attribute, driver::DeviceOrdinal device) {
  int value = 0;
  VPMM_TRY(driver::checked(Call::device_get_attribute, driver.device_get_attribute(attribute, device, value)));
  return value != 0;
}

// On WSL the RDMA attribute reads 1, and memory created with the flag cannot be made accessible.
bool runs_on_wsl() {
  std::ifstream version("/proc/version");
  std::string text;
  std::getline(version, text);
  return text.find("microsoft") != std::string::npos || text.find("Microsoft") != std::string::npos;
}

Result<DeviceTraits> traits_of(driver::Driver& driver, driver::DeviceOrdinal device) {
  DeviceTraits traits;
  traits.chunk.device = device;
  VPMM_TRY_ASSIGN(traits.has_vmm,
                  device_can(driver, driver::DeviceAttribute::virtual_memory_management_supported, device));
  VPMM_TRY_ASSIGN(traits.has_memory_pools, device_can(driver, driver::DeviceAttribute::memory_pools_supported, device));
  if (!traits.has_vmm) return traits;
  VPMM_TRY_ASSIGN(traits.chunk.posix_file_descriptor,
                  device_can(driver, driver::DeviceAttribute::posix_file_descriptor_supported, device));
  VPMM_TRY_ASSIGN(const bool has_rdma,
                  device_can(driver, driver::DeviceAttribute::gpu_direct_rdma_with_vmm_supported, device));
  traits.chunk.gpu_direct_rdma_capable = has_rdma && !runs_on_wsl();
  VPMM_TRY(driver::checked(
      Call::mem_get_allocation_granularity,
      driver.mem_get_allocation_granularity(traits.chunk, driver::Granularity::minimum, traits.granularity)));
  return traits;
}

}  // namespace

Result<std::unique_ptr<Context>> Context::create(driver::Driver& driver, driver::DeviceOrdinal device,
                                                 const Config& config) {
  VPMM_TRY(driver::checked(Call::init, driver.init()));
  int count = 0;
  VPMM_TRY(driver::checked(Call::device_get_count, driver.device_get_count(count)));
  if (device < 0 || device >= count)
    return Error{ErrorCode::invalid_argument, message_of("device {} does not exist: there are {}", device, count)};
  VPMM_TRY_ASSIGN(const DeviceTraits traits, traits_of(driver, device));
  if (!traits.has_vmm && !traits.has_memory_pools)
    return Error{ErrorCode::unsupported,
                 message_of("device {} supports neither virtual memory management nor memory pools", device)};
  VPMM_TRY(vpmm::context::validate(config, traits.granularity));
  auto context = std::make_unique<DeviceContext>(driver, device, in_force(config), traits);
  context->prepare();
  enter_neighbourhood(*context);
  return std::unique_ptr<Context>(std::move(context));
}

// What the first request would pay for otherwise. Best effort: it asks again for what failed, and reports it.
void DeviceContext::prepare() {
  bool is_active = false;
  if (pool_ == nullptr || page_size_ > kLargestPageCut || config_.pages > kAddressSpace / page_size_) return;
  if (driver_.device_primary_ctx_get_state(device(), is_active) != CuResult::success || !is_active) return;
  Visit visit(*this);
  if (!visit.status() || !primary_.noted(pool_->prepare(visit.lock()))) return;
  small_->prepare();
}

DeviceContext::DeviceContext(driver::Driver& driver, driver::DeviceOrdinal device, const Config& config,
                             const DeviceTraits& traits)
    : inner_driver_(driver),
      config_(config),
      observer_(driver.memory_observer()),
      page_size_(config.page_size.value_or(traits.granularity)),
      driver_(driver),
      timelines_(driver_, closing_rule(config)),
      primary_(driver_, device),
      captures_(driver_),
      peers_(driver_, device, timelines_),
      callers_(driver_, timelines_, captures_) {
  observe::set_log_level(config.log);
  capacity_ = config.capacity;
  if (traits.has_vmm && config.pool_enabled)
    pool_ = std::make_unique<pool::Pool>(driver_, traits.chunk, config, page_size_, timelines_);
  const bool cuts = cuts_pages(config, traits);
  const bool has_whole_pages_only = pool_ != nullptr && keeps_apart(config);
  const bool has_driver_pool = traits.has_memory_pools && !cuts && !has_whole_pages_only;
  using BelowAPage = small::SmallPool::BelowAPage;
  const BelowAPage below_a_page = cuts              ? BelowAPage::cut
                                  : has_driver_pool ? BelowAPage::driver_pool
                                                    : BelowAPage::whole_pages;
  if (pool_ != nullptr)
    small_ = std::make_unique<small::SmallPool>(inner_driver_, *pool_, timelines_,
                                                small::SmallPool::Serving{below_a_page, !config.page_chunks});
  if (has_driver_pool) driver_pool_ = std::make_unique<driver_pool::DriverPool>(driver_, device, timelines_);
}

// Waits for the GPU, then gives everything back in the order of dependence. At exit and after a sticky error the driver
// may not be called any more; the system takes the memory back.
DeviceContext::~DeviceContext() {
  leave_neighbourhood(*this);
  if (primary_.openings() == 0 || primary_.is_poisoned() || process_is_ending()) return;
  if (!check_alive() || primary_.is_poisoned()) return;
  {
    const driver::ContextScope scope(driver_, primary_.handle());
    PoolLock lock(mutex_);
    if (scope.result() != CuResult::success || !forget_dead_others() || !peers_.find_contexts()) return;
    if (wait_for_contexts(lock) != CuResult::success) return;
    if (driver_pool_ != nullptr) driver_pool_->release_everything();
    if (pool_ != nullptr) pool_->release_everything();
    timelines_.destroy_events();
    peers_.release();
  }
  primary_.release();
}

bool DeviceContext::trim_driver_pool(MutexLock& lock) {
  if (driver_pool_ == nullptr) return false;
  const Result<Bytes> freed = primary_.noted(driver_pool_->trim(lock));
  driver_pool_bytes_ = driver_pool_->reserved_bytes();
  if (pool_ != nullptr) pool_->set_other_bytes(driver_pool_bytes_);
  return freed && freed.value() > 0;
}

// --- entering -------------------------------------------------------------------------------------------------------

// Note [A reset has nobody beside it]: who made the old context current and then waited for the lock enters again.
DeviceContext::Visit::Visit(DeviceContext& context) : context_(context) {
  while (!enter()) {
    lock_.reset();
    scope_.reset();
  }
}

// False: a reset came in between.
bool DeviceContext::Visit::enter() {
  if (context_.primary_.is_poisoned()) {
    const PoolLock lock(context_.mutex_);
    status_ = *context_.primary_.poison();
    return true;
  }
  // Note [Host memory in reserve]
  {
    const HostPromise opening_may_need;
    status_ = opening_may_need.is_cached() ? context_.check_alive() : no_host_memory();
  }
  if (!status_) return true;
  const std::uint64_t opening = context_.primary_.openings();
  scope_.emplace(context_.driver_, context_.primary_.handle());
  lock_.emplace(context_.mutex_);
  context_.visits_.wait_to_enter(*lock_);
  if (context_.primary_.handle() == driver::ContextHandle{} || context_.primary_.openings() != opening) return false;
  promise_.emplace();  // not before: those that wait for the lock need nothing yet
  if (!promise_->is_cached()) {
    status_ = no_host_memory();
    return true;
  }
  status_ = context_.primary_.noted(driver::checked(Call::ctx_set_current, scope_->result()));
  if (status_) status_ = context_.primary_.noted(context_.forget_dead_others());
  is_inside_ = true;
  context_.visits_.begin();
  return true;
}

DeviceContext::Visit::~Visit() {
  if (pinned_ != nullptr) --pinned_->callers;
  if (!is_inside_) return;
  context_.visits_.end();
  context_.refresh_fast_path();
}

Result<Caller> DeviceContext::Visit::identify(const Stream& stream, const time::TimelineId* bound) {
  Result<Caller> caller = context_.primary_.noted(context_.callers_.identify(stream, bound));
  // So that what was cached is not pending for want of an event. Not before: the caller's stream may be capturing.
  if (caller && context_.has_noticed_reset_ && context_.may_record_context_event()) {
    context_.has_noticed_reset_ = false;
    context_.prove_everything();
  }
  if (!caller || caller.value().timeline == nullptr) return caller;
  pinned_ = caller.value().timeline;
  ++pinned_->callers;
  context_.note_peaks(caller.value());  // of its warm calls, while the pool's index still says what it said beside them
  return caller;
}

Result<void> DeviceContext::check_alive() {
  const CuResult seen = primary_.look();
  if (seen == CuResult::success) return {};
  const PoolLock lock(mutex_);
  const Result<void> result = is_gone(seen) ? open() : primary_.noted(driver::checked(Call::ctx_get_id, seen));
  refresh_fast_path();
  return result;
}

// The first time, or again after a reset.
Result<void> DeviceContext::open() {
  VPMM_TRY_ASSIGN(const std::optional<time::KnownContext> found, primary_.retain());
  if (!found) return {};
  timelines_.set_primary(found->handle, found->id);
  if (primary_.openings() != 0) forget_dead(primary_.id());
  primary_.adopt(*found);
  return {};
}

// The old context's streams and events are gone; all work on them is over. Chunks and their contents are kept.
void DeviceContext::forget_dead(driver::ContextId dead) {
  observe::log(observe::LogLevel::info,
               "device {}: its CUDA context was reset; chunks are kept, streams and small memory are gone", device());
  forget_work_of(dead);
  for (const std::uint64_t capture : captures_.all()) release_capture(capture);
  if (driver_pool_ != nullptr) driver_pool_->forget();
  driver_pool_bytes_ = 0;
  captures_.forget_streams();
  has_noticed_reset_ = true;
}

void DeviceContext::forget_work_of(driver::ContextId dead) {
  advance(timelines_.forget_context(dead));
  if (small_ != nullptr) small_->retire_idle();
}

// Their events die with them, those of peers' contexts and of contexts whose streams called.
Result<void> DeviceContext::forget_dead_others() {
  VPMM_TRY_ASSIGN(const Vector<time::KnownContext> dead, peers_.dead_contexts());
  for (const time::KnownContext& context : dead) {
    forget_work_of(context.id);
    peers_.forget(context);
  }
  return {};
}

// Closes the caller's timeline when that is due: here its stream is surely alive.
void DeviceContext::leave(const Caller& caller) {
  run_pending_requests(caller);
  if (caller.may_queue()) {
    // Without the event the timeline stays due, and a later call tries again; the call itself has done its work.
    if (timelines_.is_due(*caller.timeline))
      static_cast<void>(primary_.noted(timelines_.close(*caller.timeline, *caller.stream)));
  } else if (caller.timeline == nullptr && is_proof_due()) {
    prove_everything();
  }
  if (timelines_.count() <= kTimelinesKept) return;
  if (small_ != nullptr) small_->retire_idle();
  timelines_.retire_idle(kTimelinesKept);
}

}  // namespace vpmm::context
