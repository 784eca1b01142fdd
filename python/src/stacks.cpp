// SPDX-License-Identifier: Apache-2.0
// python: walks the Python stack of a thread, and stores its frames.
#include "stacks.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "gil.hpp"
#include "vpmm/vpmm.h"

namespace vpmm::python {
namespace {

namespace nb = nanobind;

constexpr std::size_t kMostFrames = std::size_t{1} << 20;  // that are kept

// A line of a code object. The object is kept alive, so that its address stays unique.
using Key = std::pair<PyObject*, int>;

struct Frame {
  std::string file;
  std::uint64_t line = 0;
  std::string function;
};

struct Frames {
  std::map<Key, std::uint64_t> numbers;  // from 1
  std::mutex mutex;                      // held for the deque alone, and over no call of Python
  std::deque<Frame>
      frames;  // by number less 1; who reads one holds the mutex, not the interpreter's lock
  PyObject* const back = PyUnicode_InternFromString("f_back");  // null: there was no memory for it
};

// Holds: the GIL. Never destroyed: threads may still allocate when the interpreter exits.
Frames& known() {
  static auto* const frames = new Frames;
  return *frames;
}

std::atomic<bool> is_over{false};

std::string text_of(PyObject* code, const char* attribute) {
  PyObject* const value = PyObject_GetAttrString(code, attribute);
  const char* const text = value == nullptr ? nullptr : PyUnicode_AsUTF8AndSize(value, nullptr);
  std::string out = text == nullptr ? "" : text;
  Py_XDECREF(value);
  PyErr_Clear();
  return out;
}

// 0: there are too many.
std::uint64_t number_of(PyObject* code, int line) {
  Frames& all = known();
  const auto found = all.numbers.find({code, line});
  if (found != all.numbers.end()) return found->second;
  if (all.frames.size() == kMostFrames) return 0;
  std::string function = text_of(code, "co_qualname");  // since Python 3.11
  if (function.empty()) function = text_of(code, "co_name");
  Frame made{text_of(code, "co_filename"), static_cast<std::uint64_t>(line), std::move(function)};
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.frames.push_back(std::move(made));
  }
  all.numbers.emplace(Key{code, line}, all.frames.size());
  Py_INCREF(code);
  return all.frames.size();
}

// The frame that called this one, or null. The stable ABI has no function for it.
PyObject* caller_of(PyObject* frame) {
  PyObject* const back = known().back == nullptr ? nullptr : PyObject_GetAttr(frame, known().back);
  if (back != Py_None) return back;
  Py_DECREF(back);
  return nullptr;
}

std::size_t walk(std::uint64_t* frames, std::size_t most) {
  const nb::error_scope under_way;  // a finalizer may allocate while an exception is
  std::size_t count = 0;
  auto* frame = reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get()));
  while (frame != nullptr && count < most) {
    auto* const opaque = reinterpret_cast<PyFrameObject*>(frame);
    auto* const code = reinterpret_cast<PyObject*>(PyFrame_GetCode(opaque));
    const std::uint64_t number = number_of(code, PyFrame_GetLineNumber(opaque));
    Py_DECREF(code);
    if (number != 0) frames[count++] = number;
    PyObject* const back = caller_of(frame);
    Py_DECREF(frame);
    frame = back;
  }
  Py_XDECREF(frame);
  PyErr_Clear();
  return count;
}

// If the caller, or a library called from Python, has released the GIL, it is taken briefly. No
// lock of the pool is held, so the GIL's holder waits for nothing here. A thread that Python does
// not know has no frames.
std::size_t capture(void* /*argument*/, std::uint64_t* frames, std::size_t most) try {
  if (is_over || Py_IsInitialized() == 0 || PyGILState_GetThisThreadState() == nullptr) return 0;
  const WithLock taken;
  return is_over ? 0 : walk(frames, most);
} catch (const std::bad_alloc&) {
  return 0;
}

// Called right after capture(), on the same thread; entries do not move and are not removed.
void describe(void* /*argument*/, std::uint64_t frame, const char** file, std::uint64_t* line,
              const char** function) {
  std::unique_lock<std::mutex> lock(known().mutex);
  const Frame& found = known().frames[frame - 1];
  lock.unlock();
  *file = found.file.c_str();
  *line = found.line;
  *function = found.function.c_str();
}

}  // namespace

void provide_stacks() {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function([] { is_over = true; }));
  static_cast<void>(vpmm_set_stack_callback(capture, describe, nullptr));
}

}  // namespace vpmm::python
