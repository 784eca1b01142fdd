// SPDX-License-Identifier: Apache-2.0
// fuzz tests: messages to an importer of this process, from an exporter that lies, on the simulated
// GPU.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "driver/sim/sim_driver.hpp"
#include "fuzz/targets.hpp"
#include "ipc/channel.hpp"
#include "ipc/importer.hpp"
#include "ipc/message.hpp"
#include "ipc/token.hpp"

namespace vpmm::fuzz::importer_target {
namespace {

using driver::CuResult;
using ipc::Channel;
using ipc::Message;
using ipc::MessageKind;

constexpr Bytes kChunk = 2 * kMiB;
constexpr std::size_t kChunks = 6;  // of the larger memory; more than a batch
constexpr std::array<std::size_t, 2> kChunksOf = {kChunks, 1};
constexpr std::chrono::seconds kPatience{20};
constexpr char kTimeout[] = "30";  // milliseconds that an importer waits for an answer

// An exporter that takes an importer's messages and counts its openings, and answers as a script
// says, or honestly once that is over.
class Liar {
 public:
  static Liar& instance() {
    static Liar one;
    return one;
  }

  driver::sim::SimDriver& driver() { return driver_; }
  ipc::IpcHandle handle(std::size_t memory) const {
    ipc::IpcHandle handle;
    handle.token = ipc::encode(tokens_[memory]);
    handle.size = tokens_[memory].size;
    return handle;
  }

  // Begins to answer, in a thread.
  void begin(Input script) {
    script_.emplace(script);
    is_over_ = false;
    thread_ = std::thread([this] { answer_all(); });
  }
  // Returns once the importer has hung up.
  void end() {
    const std::uint64_t one = 1;
    require(write(wake_.get(), &one, sizeof one) == sizeof one, "the system wakes a thread");
    thread_.join();
  }

 private:
  struct Connection {
    Channel channel;
    std::set<std::uint64_t> open;  // numbers of openings
  };

  Liar();
  void answer_all();
  bool take_message(Connection& connection);
  bool answer(Connection& connection, const Message& question);
  bool answer_once(Connection& connection, const Message& question, std::uint64_t item);
  void answer_honestly(const Channel& channel, const Message& question);
  Message granted(const Message& question) const;
  std::size_t chunks_of(const Message& question) const;
  void send_batch(const Channel& channel, const Message& question, std::size_t chunks);
  void send_lie(const Channel& channel, const Message& question);
  void send(const Channel& channel, const void* bytes, std::size_t size,
            const std::vector<int>& files) const;

  driver::sim::SimDriver driver_;
  std::array<ipc::Token, kChunksOf.size()> tokens_;
  driver::Uuid device_{};
  std::vector<int> chunks_;  // descriptors, for the life of the process
  std::vector<int> others_;  // of no chunks
  ipc::Descriptor listener_;
  ipc::Descriptor wake_;
  std::thread thread_;
  // --- of the thread ---
  std::optional<Taken> script_;
  bool is_over_ = false;
  std::size_t sent_ = 0;  // chunks of the opening that is answered
};

ipc::Descriptor owned(int file) {
  require(file >= 0, "the system gives a descriptor");
  ipc::Descriptor::Making making;
  return making.adopt(file);
}

Liar::Liar() {
  const std::string folder = folder_of_sockets();
  setenv("VPMM_IPC_TIMEOUT", kTimeout, 1);
  const ipc::Identity process = ipc::new_identity();
  for (std::size_t i = 0; i < tokens_.size(); ++i)
    tokens_[i] = {process, 4096 * (i + 1), 1, 512, kChunksOf[i] * kChunk - 4096};
  driver_.init();
  driver_.device_get_uuid(0, device_);
  for (std::size_t i = 0; i < kChunks; ++i) {
    driver::ChunkHandle chunk{};
    int file = -1;
    require(driver_.mem_create(kChunk, {0, true, false}, chunk) == CuResult::success &&
                driver_.mem_export_to_shareable_handle(chunk, file) == CuResult::success,
            "the simulator exports chunks");
    chunks_.push_back(file);
  }
  others_ = {open("/dev/null", O_RDONLY | O_CLOEXEC), eventfd(0, EFD_CLOEXEC)};
  wake_ = owned(eventfd(0, EFD_CLOEXEC));
  Result<ipc::Descriptor> listener = ipc::listen_at(ipc::socket_path(folder, process));
  require(listener.ok(), "an exporter listens");
  listener_ = std::move(listener).value();
}

void Liar::answer_all() {
  std::deque<Connection> connections;
  const ipc::Deadline end = ipc::Clock::now() + kPatience;
  while (!is_over_ || !connections.empty()) {
    require(ipc::Clock::now() < end, "an importer hangs up once it has closed everything");
    std::vector<pollfd> asked = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
    for (const Connection& each : connections) asked.push_back({each.channel.get(), POLLIN, 0});
    poll(asked.data(), asked.size(), 100);
    if (asked[0].revents != 0) {
      std::uint64_t count = 0;
      is_over_ = read(wake_.get(), &count, sizeof count) == sizeof count || is_over_;
    }
    std::size_t at = 2;
    std::erase_if(connections, [&](Connection& each) {
      return asked[at++].revents != 0 && !take_message(each);
    });
    bool is_short = false;
    if (asked[1].revents != 0)
      while (Channel channel = ipc::accept_from(listener_.get(), is_short))
        connections.push_back({std::move(channel), {}});
  }
}

// Returns false if the connection is over: the importer hung up, or the script says so.
bool Liar::take_message(Connection& connection) {
  const auto received = connection.channel.receive(ipc::Clock::now());
  if (!received) {
    require(false, received.error().message.c_str());
    return false;
  }
  if (!received.value()) {
    require(connection.open.empty(), "an importer closes what it opened before it hangs up");
    return false;
  }
  const Message& message = received.value()->message;
  require(received.value()->files.empty(), "an importer sends no descriptors");
  switch (message.kind) {
    case MessageKind::open:
      require(connection.open.insert(message.number).second, "openings have numbers of their own");
      return answer(connection, message);
    case MessageKind::received: return true;
    case MessageKind::close:
      require(connection.open.erase(message.number) == 1, "an importer closes what it opened");
      return true;
    default: require(false, "an importer opens, acknowledges and closes"); return false;
  }
}

// Returns false to hang up.
bool Liar::answer(Connection& connection, const Message& question) {
  sent_ = 0;
  while (!script_->is_empty()) {
    const std::uint64_t item = script_->number(1) % 12;
    if (item == 0) return false;
    if (item == 1) return true;  // and says nothing more
    if (item == 2) break;
    if (!answer_once(connection, question, item)) return true;
  }
  answer_honestly(connection.channel, question);
  return true;
}

// Returns false after the last message of an answer.
bool Liar::answer_once(Connection& connection, const Message& question, std::uint64_t item) {
  const Channel& channel = connection.channel;
  switch (item) {
    case 3: {
      const Message message = granted(question);
      send(channel, &message, sizeof message, {});
      return true;
    }
    case 4: send_batch(channel, question, 1 + script_->number(1) % ipc::kMostInFlight); return true;
    case 5: {
      const Input bytes = script_->bytes(script_->number(2));
      send(channel, bytes.data(), bytes.size(), {});
      return true;
    }
    case 6: {
      Message refused;
      refused.kind = MessageKind::refused;
      refused.number = script_->number(1) % 4 == 0 ? 0 : question.number;
      refused.status = static_cast<std::uint32_t>(script_->number(2));
      const Input text = script_->bytes(script_->number(2));
      std::memcpy(refused.text.data(), text.data(), std::min(text.size(), refused.text.size()));
      send(channel, &refused, sizeof refused, {});
      return false;
    }
    case 7: {  // messages of an opening that was given up
      Message late = granted(question);
      late.number -= script_->number(1);
      for (std::uint64_t i = script_->number(1); i > 0; --i) send(channel, &late, sizeof late, {});
      return true;
    }
    default: send_lie(channel, question); return true;
  }
}

void Liar::answer_honestly(const Channel& channel, const Message& question) {
  if (sent_ == 0) {
    const Message message = granted(question);
    send(channel, &message, sizeof message, {});
  }
  while (sent_ < chunks_of(question)) send_batch(channel, question, ipc::kBatch);
}

std::size_t Liar::chunks_of(const Message& question) const {
  for (std::size_t i = 0; i < tokens_.size(); ++i)
    if (question.token == ipc::encode(tokens_[i])) return kChunksOf[i];
  require(false, "an importer asks for the token that it was given");
  return 0;
}

Message Liar::granted(const Message& question) const {
  Message message;
  message.kind = MessageKind::granted;
  message.number = question.number;
  message.chunks = chunks_of(question);
  message.bytes = message.chunks * kChunk;
  message.offset = 512;
  message.device = device_;
  return message;
}

void Liar::send_batch(const Channel& channel, const Message& question, std::size_t chunks) {
  Message batch;
  batch.kind = MessageKind::batch;
  batch.number = question.number;
  std::vector<int> files;
  for (; files.size() < chunks && sent_ < chunks_of(question); ++sent_) {
    batch.sizes[files.size()] = kChunk;
    files.push_back(chunks_[sent_]);
  }
  batch.count = static_cast<std::uint32_t>(files.size());
  send(channel, &batch, sizeof batch, files);
}

// A message that is nearly right: up to seven bytes anywhere in it are others, and so may be its
// length and its descriptors.
void Liar::send_lie(const Channel& channel, const Message& question) {
  const std::uint64_t what = script_->number(1);
  Message message = granted(question);
  std::vector<int> files;
  if (what % 2 == 0) {
    message.kind = MessageKind::batch;
    message.count = static_cast<std::uint32_t>(script_->number(1) % 8);
    std::fill(message.sizes.begin(), message.sizes.end(), kChunk);
    for (std::uint32_t i = 0; i < message.count; ++i)
      files.push_back(chunks_[(sent_ + i) % chunks_.size()]);
  }
  std::array<std::uint8_t, sizeof message> bytes{};
  std::memcpy(bytes.data(), &message, sizeof message);
  for (std::uint64_t changes = what / 2 % 8; changes > 0; --changes) {
    const std::size_t at = script_->number(2) % bytes.size();
    bytes[at] = static_cast<std::uint8_t>(script_->number(1));
  }
  for (std::uint64_t more = what / 16 % 4; more > 0; --more) {
    const std::uint64_t other = script_->number(1);
    if (other % 4 == 0 && !files.empty())
      files.pop_back();
    else if (other % 4 == 1 && !files.empty())
      files[other / 4 % files.size()] = others_[other / 64 % others_.size()];
    else
      files.resize(files.size() + other / 2, others_[other % others_.size()]);
  }
  const std::size_t size = what / 64 == 3 ? script_->number(2) % sizeof message : sizeof message;
  send(channel, bytes.data(), size, files);
}

// Never waits. A message that the system does not take is lost.
void Liar::send(const Channel& channel, const void* bytes, std::size_t size,
                const std::vector<int>& files) const {
  constexpr std::size_t kMost = 253;  // of the system, with one message
  iovec data{const_cast<void*>(bytes), size};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMost)> room{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (const std::size_t count = std::min(files.size(), kMost); count != 0) {
    header.msg_control = room.data();
    header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* const part = CMSG_FIRSTHDR(&header);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(part), files.data(), sizeof(int) * count);
  }
  static_cast<void>(sendmsg(channel.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT));
}

// --- the importer

std::optional<DevicePtr> open(const ipc::IpcHandle& handle) {
  const Result<DevicePtr> opened =
      ipc::Importer::of_process().open(Liar::instance().driver(), handle, std::nullopt);
  if (opened) return opened.value();
  const std::string& why = opened.error().message;
  require(!why.empty() && std::all_of(why.begin(), why.end(),
                                      [](char each) { return each >= ' ' && each <= '~'; }),
          "an error is a text that can be printed");
  return std::nullopt;
}

void close(DevicePtr ptr) {
  require(ipc::Importer::of_process().close(ptr).ok(), "open memory is closed");
}

// Opens and closes as `acts` say: whatever the exporter answers, what is open is closed in the end.
void act(Input acts) {
  std::vector<DevicePtr> opened;
  for (const std::uint8_t each : acts) {
    if (each % 4 == 3) {
      if (opened.empty()) continue;
      close(opened.back());
      opened.pop_back();
    } else if (const auto ptr = open(Liar::instance().handle(each % 4 % kChunksOf.size()))) {
      opened.push_back(*ptr);
    }
  }
  for (const DevicePtr ptr : opened) close(ptr);
}

void require_served() {
  for (const ipc::Deadline end = ipc::Clock::now() + kPatience;;) {
    if (const auto ptr = open(Liar::instance().handle(0))) return close(*ptr);
    require(ipc::Clock::now() < end, "an importer opens memory whatever others answered");
  }
}

struct Belongings {
  std::ptrdiff_t descriptors = 0;
  driver::sim::Census census = Liar::instance().driver().census();
  Belongings() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    descriptors = std::distance(begin(all), end(all));
  }
  bool is_within(const Belongings& before) const {
    return descriptors <= before.descriptors && census.chunks == before.census.chunks &&
           census.mappings == before.census.mappings &&
           census.reservations == before.census.reservations;
  }
};

// Threads of other targets close theirs meanwhile.
void require_nothing_left(const Belongings& before) {
  for (const ipc::Deadline end = ipc::Clock::now() + kPatience; !Belongings().is_within(before);) {
    require(ipc::Clock::now() < end, "no descriptor, mapping or address space is lost");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// A byte with the number of acts of the importer, the acts, and the script of the exporter.
void read_messages(Input input) {
  constexpr std::size_t kMostActs = 8;
  Taken taken(input);
  const Input acts = taken.bytes(1 + taken.number(1) % kMostActs);
  const Input script = taken.bytes(input.size());
  Liar& liar = Liar::instance();
  const Belongings before;
  liar.begin(script);
  act(acts);
  liar.end();
  liar.begin({});
  require_served();
  liar.end();
  require_nothing_left(before);
}

}  // namespace
}  // namespace vpmm::fuzz::importer_target

void vpmm::fuzz::read_importer_messages(Input input) { importer_target::read_messages(input); }
