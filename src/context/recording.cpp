// context: beginning and ending a recording, and what it says of the pool as a whole.
#include <utility>

#include "base/message.hpp"
#include "base/scope_exit.hpp"
#include "context/visit.hpp"
#include "process/process_gate.hpp"
#include "process/recordings.hpp"
#include "settings/config.hpp"

namespace vpmm::context {
namespace {

constexpr Bytes kLeastLimit = 64 * kKiB;

Result<observe::StackKinds> check(const std::string& path, const settings::RecordOptions& options) {
  const std::optional<observe::StackKinds> stacks = observe::stack_kinds_of(options.stacks);
  if (!stacks)
    return Error{ErrorCode::invalid_argument,
                 message_of("stacks `{}`: must be none, native, python or both", options.stacks)};
  if (options.sample == 0 || options.sample > UINT32_MAX)
    return Error{
        ErrorCode::invalid_argument,
        message_of("a sample of {}: must be a number from 1 to {}", options.sample, UINT32_MAX)};
  if (options.limit != 0 && options.limit < kLeastLimit)
    return Error{ErrorCode::invalid_argument,
                 message_of("a limit of {} bytes: must be 0, for none, or at least {}",
                            options.limit, kLeastLimit)};
  const bool is_plain =
      !stacks->any() && options.sample == 1 && options.limit == 0 && options.window_ns == 0;
  if (!is_plain && observe::is_csv(path))
    return Error{
        ErrorCode::invalid_argument,
        message_of(
            "{}: stacks, samples, limits and windows are not for .csv files; name it otherwise",
            path)};
  return *stacks;
}

}  // namespace

observe::RecordingHeader DeviceContext::header() const {
  observe::RecordingHeader header;
  header.device = static_cast<std::uint32_t>(device_.primary.device());
  static_cast<void>(device_.inner.device_get_name(device_.primary.device(), header.device_name));
  static_cast<void>(device_.inner.device_total_mem(device_.primary.device(), header.device_bytes));
  header.page_size = device_.page_size;
  header.grain = device_.pool == nullptr ? device_.page_size : device_.pool->grain();
  for (const settings::SettingInForce& setting : settings::list_settings(device_.config))
    header.settings.emplace_back(setting.name, setting.value);
  header.tag_name = &report::tag_name;
  return header;
}

std::vector<observe::LiveAllocation> DeviceContext::live_allocations() const {
  std::vector<observe::LiveAllocation> live;
  for (const report::LayoutBlock& block : drawn_layout().blocks) {
    if (block.state != region::RegionState::allocated) continue;
    observe::LiveAllocation allocation;
    allocation.address = block.range.begin;
    allocation.requested = block.requested;
    allocation.taken = block.range.size;
    allocation.arena = block.arena;
    allocation.tag = block.tag;
    if (block.stream_id != 0) {
      allocation.stream = block.stream_id;
      if (const auto handle = device_.timelines.handle_of(driver::StreamId{block.stream_id}))
        allocation.stream_handle = static_cast<std::uint64_t>(*handle);
    }
    live.push_back(allocation);
  }
  return live;
}

// What lives is listed once warm calls are told of: those that run meanwhile may be in the list and
// in the events, and the writer puts that right.
Result<void> DeviceContext::start_recording(const std::string& path,
                                            const settings::RecordOptions& options) {
  if (process::is_ending()) return process::ending_error();
  VPMM_TRY_ASSIGN(const observe::StackKinds stacks, check(path, options));
  observe::RecordingOptions how{header(), static_cast<std::uint32_t>(options.sample), options.limit,
                                options.window_ns};
  how.header.stacks = options.stacks;
  const MutexLock one_at_a_time(starting_recordings_);
  report::CallLog* log = nullptr;
  {
    const PoolLock lock(mutex_);
    // Before a file is replaced, perhaps the one that is being written.
    if (recorder_.is_recording())
      return Error{ErrorCode::invalid_argument, "a recording is running already"};
    how.header.capacity = footprint_.capacity();
    log = &recorder_.provide_log();
  }
  log->set_stacks(stacks);
  const std::uint64_t now_ns = device_.driver.now_ns();
  VPMM_TRY_ASSIGN(auto created, observe::TraceWriter::create(path, now_ns, log->channel(), how));
  const std::shared_ptr<observe::TraceWriter> writer = std::move(created);
  process::finish_at_exit(writer);
  return begin_recording(writer, now_ns);
}

Result<void> DeviceContext::begin_recording(const std::shared_ptr<observe::TraceWriter>& writer,
                                            std::uint64_t now_ns) {
  const PoolLock lock(mutex_);
  bool has_begun = false;
  const ScopeExit undo([&]() VPMM_REQUIRES(pool_lock) {
    if (!has_begun) recorder_.stop();
    front_.refresh();
  });
  recorder_.start(writer);
  front_.refresh();
  VPMM_TRY(writer->begin(live_allocations(), now_ns));
  has_begun = true;
  sample_figures();
  return {};
}

// Frees that finalizers deferred happened while it ran. Where the device cannot be entered any more
// they stay out.
Result<void> DeviceContext::stop_recording() {
  if (allocations_.has_deferred()) {
    Visit visit(*this);
    if (visit.status()) allocations_.drain(visit.lock());
  }
  std::shared_ptr<observe::TraceWriter> writer;
  {
    const PoolLock lock(mutex_);
    sample_figures();
    writer = recorder_.stop();
    front_.refresh();
  }
  if (!writer) return Error{ErrorCode::invalid_argument, "no recording is running"};
  return writer->close();
}

void DeviceContext::mark(const std::string& text) {
  if (report::CallLog* const log = front_.way().log) log->put(report::CallLog::Kind::mark, text);
}

void DeviceContext::sample_figures() {
  if (!recorder_.is_recording()) return;
  const observe::Statistics now = figures();
  recorder_.sample(now.mapped_bytes, now.pending_bytes, now.free_bytes);
}

}  // namespace vpmm::context
