// SPDX-License-Identifier: Apache-2.0
// python: the queue between the library, which may hold locks when it has a message, and a thread
// that has the GIL.
//
// Note [Messages wait for the GIL in a queue]
// A message arises anywhere, with or without the GIL and under the pool's lock. Taking the GIL
// there could deadlock with a thread that holds it and waits for the pool's lock. So messages go
// into a queue. The queue's own lock is held for a few instructions, never while taking the GIL,
// and a Python thread takes the messages out.
#include "messages.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "errors.hpp"
#include "gil.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::python {

namespace nb = nanobind;

namespace {

using Message = std::pair<int, std::string>;
constexpr std::size_t kMostWaiting = 1000;

struct Queue {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Message> waiting;
  std::uint64_t left_out = 0;
  bool is_open = true;
};

// Leaked: threads may still have messages when the process exits.
Queue* queue = nullptr;

void put(void* argument, int level, const char* text) {
  auto& into = *static_cast<Queue*>(argument);
  try {
    const std::lock_guard<std::mutex> lock(into.mutex);
    if (into.waiting.size() < kMostWaiting)
      into.waiting.emplace_back(level, text);
    else
      ++into.left_out;
  } catch (...) {  // no memory: the message is lost
    return;
  }
  into.changed.notify_one();
}

// Also in a forked child, where a lock of the parent's queue may be held forever.
void open_messages() {
  queue = new Queue;
  call([] { return vpmm_set_log_callback(put, queue); });
}

void close_messages() {
  if (queue == nullptr) return;
  call([] { return vpmm_set_log_callback(nullptr, nullptr); });
  {
    const std::lock_guard<std::mutex> lock(queue->mutex);
    queue->is_open = false;
  }
  queue->changed.notify_all();
}

std::optional<Message> wait_for_message() {
  const WithoutLock released;
  std::unique_lock<std::mutex> lock(queue->mutex);
  queue->changed.wait(lock, [] { return !queue->waiting.empty() || !queue->is_open; });
  if (queue->waiting.empty()) return std::nullopt;
  Message message = std::move(queue->waiting.front());
  queue->waiting.pop_front();
  if (queue->left_out != 0)  // they would have come behind what waits now
    queue->waiting.emplace_back(
        VPMM_LOG_WARNING,
        std::to_string(std::exchange(queue->left_out, 0)) + " messages were left out");
  return message;
}

// Waits for a message. None: there will be no more.
std::optional<std::pair<int, nb::str>> next_message() {
  if (queue == nullptr) return std::nullopt;
  const std::optional<Message> message = wait_for_message();
  if (!message) return std::nullopt;
  return std::pair(message->first, text_of(message->second));
}

// Calls sys.unraisablehook for an exception that has no caller to go to.
void write_unraisable(nb::handle error, nb::handle where) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.ptr())), error.ptr());
  PyErr_WriteUnraisable(where.ptr());
}

}  // namespace

void bind_messages(nb::module_& module) {
  module.def("open_messages", &open_messages);
  module.def("close_messages", &close_messages);
  module.def("next_message", &next_message);
  module.def("write_unraisable", &write_unraisable, nb::arg("error"), nb::arg("where"),
             nb::sig("def write_unraisable(error: BaseException, where: object) -> None"));
}

}  // namespace vpmm::python
