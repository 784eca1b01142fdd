// judge: a program that runs on the simulated GPU by the rules of CUDA and of the pool, with the
// reference beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "context/context.hpp"
#include "driver/sim/sim_driver.hpp"
#include "judge/flaw.hpp"
#include "judge/program.hpp"
#include "judge/reference.hpp"
#include "support/baton.hpp"

namespace vpmm::judge {

// The settings of the program's pools. None: `problem` names the one that is not allowed.
std::optional<settings::Config> config_of(const Setting& setting, std::string& problem);

// Single-threaded for its caller; the threads of the program take turns.
class Trial {
 public:
  Trial(const Setting& setting, const settings::Config& config, Flaw& flaw);
  ~Trial();
  Trial(const Trial&) = delete;
  Trial& operator=(const Trial&) = delete;

  void run(const Operation& operation);
  // Invariants of pools and simulator, and the figures of all pools.
  void check();
  // Ends captures, frees everything, trims, destroys the pools and looks for anything left behind.
  void finish();
  const std::string& failure() const { return failure_; }  // the first; empty: none

 private:
  struct Capture {
    std::uint64_t graph = 0;
    bool is_announced = false;
  };
  struct Stream {
    std::uint64_t key = 0;  // never used again; 0: there is no stream
    driver::StreamHandle handle{};
    std::size_t thread = 0;
    bool is_blocking = false;  // the legacy stream and it wait for each other
    std::optional<Capture> capture;
    std::map<std::size_t, std::unique_ptr<context::BoundStream>> bound;  // by pool
    std::uint64_t bound_calls = 0;
  };
  struct Memory {
    std::size_t pool = 0;
    DevicePtr ptr{};
    Bytes bytes = 0;
    std::uint64_t home = 0;           // key of the stream that its work is ordered on; perhaps gone
    std::set<std::uint64_t> covered;  // keys of streams that the pool itself waits for
    bool is_any_stream = false;       // no stream was named when it was allocated
    std::optional<std::uint8_t> content;
    bool is_shared = false;   // others read it, unordered with home: no more writes
    std::uint64_t graph = 0;  // of the capture in which it was allocated, while it exists
    std::uint64_t arena = 0;
  };
  struct Arena {
    std::size_t pool = 0;
    pool::ArenaId id{};
    std::set<std::uint64_t> users;  // keys of streams
    bool is_for_graphs = false;
  };
  struct Graph {
    driver::GraphHandle graph{};
    driver::GraphExecHandle exec{};
    driver::CaptureId capture{};
    std::set<std::uint64_t> arenas;
  };
  struct Pool {
    std::unique_ptr<context::Context> context;
    bool is_recording = false;
    bool defers_cleanup = false;
    bool had_unannounced_capture =
        false;                    // since the context began: the pool may not have heard of its end
    std::uint64_t allocated = 0;  // events
    std::uint64_t freed = 0;
  };

#define VPMM_VERB(name) void name(const Operation& o);
#include "judge/verbs.def"
#undef VPMM_VERB

  // trial.cpp
  void fail(const std::string& what);
  void expect(driver::CuResult result, const char* what);
  template <typename T>
  bool expect(const Result<T>& result, const char* what);
  void open();
  void listen(std::size_t number);
  void make_streams();
  void make_stream(Stream& place, bool is_blocking);
  // Work given to a thread hands nothing on to another.
  void on(const Stream& stream, const std::function<void()>& work) {
    baton_.on(stream.thread, work);
  }
  void on_thread_of(const Operation& o, const Stream* stream, const std::function<void()>& work);
  Stream* find(std::uint64_t number);  // by place; null: there is none
  Stream* find_key(std::uint64_t key);
  std::size_t pool_number(const Operation& o) const { return o.pool % pools_.size(); }
  context::Context& pool(std::size_t number) { return *pools_[number].context; }
  context::BoundStream* bound(Stream& stream,
                              std::size_t pool);  // for this call; null: it goes by the handle
  bool is_usable(const Stream& stream) const;     // ordinary work may be queued on it
  bool is_capturing() const;
  void wait(const Stream& waiting, const Stream& first);
  void check_pool(std::size_t number);
  void check_snapshot(std::size_t number);
  void check_look_up(std::size_t number);
  void check_simulator();
  void check_left();

  // trial_memory.cpp
  Memory* find_memory(std::uint64_t id);
  Arena* find_arena(std::uint64_t id);  // null: none, or it is released
  Bytes page() const { return config_.page_size.value_or(2 * kMiB); }
  bool is_new(std::uint64_t id) const;
  void leave_to_graphs(Arena& arena);
  bool may_allocate_in(const Operation& o, const Stream* stream);
  void check_prompt(const observe::Statistics& before, const observe::Statistics& after);
  void refuse(const Operation& o, Bytes whole_pages, const Error& error, Bytes made_before);
  bool may_be_lost(const Memory& memory) const;  // with the context
  Result<DevicePtr> request(const Operation& o, Stream* stream);
  void take_over(std::uint64_t id, const Operation& o, Stream* stream, DevicePtr ptr, Bytes bytes);
  Stream* work_stream(const Memory& memory);  // where it may be used now; null: nowhere
  void write_on(Memory& memory, const Stream& stream);
  void read_on(const Memory& memory, const Stream& stream);
  void launch(const Memory& memory, driver::sim::Kernel kernel, const Stream& stream);
  bool may_free_on(Memory& memory, const Stream& stream, bool is_ordered);
  bool may_free_unnamed(const Memory& memory);
  void free_on(std::uint64_t id, Memory& memory, Stream& stream);
  void free_unnamed(std::uint64_t id, Memory& memory);
  void note_freed(std::uint64_t id, Reference::State state, const Stream* stream);
  bool frees_one(std::size_t pool);

  // trial_life.cpp
  bool is_done_with_arenas(const Stream& stream);
  bool may_seem_capturing(std::size_t pool) const;
  void end(Stream& stream, bool is_kept);
  void destroy(std::uint64_t id, const Graph& graph, bool frees_first);
  void end_captures();
  void destroy_graphs();
  void notice_reset();

  const Setting setting_;
  const settings::Config config_;
  Flaw& flaw_;
  driver::sim::SimDriver sim_;
  driver::ContextHandle context_{};
  Reference reference_;
  test::Baton baton_;
  std::vector<Pool> pools_;
  std::vector<Stream> streams_;
  std::map<std::uint64_t, Memory> memory_;  // live, by id
  std::map<std::uint64_t, std::pair<std::size_t, DevicePtr>> freed_;
  std::map<std::uint64_t, Arena> arenas_;
  std::map<std::uint64_t, Graph> graphs_;
  std::uint64_t next_key_ = 1;
  std::uint8_t next_content_ = 1;
  std::uint64_t misread_ = 0;  // by simulated kernels
  std::string failure_;
};

// How often invariants and figures are looked at.
enum class Look { sometimes, always };
// Runs the program and returns its first failure; empty: none.
std::string failure_of(const Program& program, Look look);
std::string failure_of(const Program& program, Look look, Flaw& flaw);

}  // namespace vpmm::judge
