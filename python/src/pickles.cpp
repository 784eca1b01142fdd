// SPDX-License-Identifier: Apache-2.0
// python: reads pickles as data, dictionaries, lists, numbers and texts: never imports, calls or
// looks up anything.
#include "pickles.hpp"

#include <nanobind/stl/string.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vpmm::python {

namespace nb = nanobind;
using namespace nb::literals;

namespace {

// Opcode that would import, call or look something up, by its name in the error; null: another.
const char* name_of_code(unsigned char opcode) {
  switch (opcode) {
    case 'P': return "PERSID";
    case 'Q': return "BINPERSID";
    case 'R': return "REDUCE";
    case 'b': return "BUILD";
    case 'c': return "GLOBAL";
    case 'i': return "INST";
    case 'o': return "OBJ";
    case 0x81: return "NEWOBJ";
    case 0x82: return "EXT1";
    case 0x83: return "EXT2";
    case 0x84: return "EXT4";
    case 0x92: return "NEWOBJ_EX";
    case 0x93: return "STACK_GLOBAL";
    default: return nullptr;
  }
}

// A new object, or the exception of the call that should have made it.
nb::object made(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

void check(int result) {
  if (result != 0) throw nb::python_error();
}

std::string kind_of(nb::handle object) {
  return nb::cast<std::string>(object.type().attr("__name__"));
}

// Objects by number. The numbers of a file may be anything: far ones take no room between.
// Invariant: the keys of far_ are not below near_.size().
class Memo {
 public:
  std::size_t size() const { return near_.size() + far_.size(); }
  void put(std::size_t number, nb::object object) {
    if (number < near_.size()) {
      near_[number] = std::move(object);
    } else if (number == near_.size()) {
      far_.erase(number);
      near_.push_back(std::move(object));
    } else {
      far_[number] = std::move(object);
    }
  }
  nb::handle find(std::size_t number) const {  // invalid: not defined
    if (number < near_.size()) return near_[number];
    const auto found = far_.find(number);
    return found == far_.end() ? nb::handle() : nb::handle(found->second);
  }

 private:
  std::vector<nb::object> near_;
  std::map<std::size_t, nb::object> far_;
};

// A stack machine. Each opcode makes one object at most, so the length of the file bounds the cost.
class Reader {
 public:
  explicit Reader(const nb::bytes& data)
      : data_(static_cast<const unsigned char*>(data.data())), size_(data.size()) {}

  nb::object read() {
    for (std::size_t count = 1;; ++count) {
      if (count % kOpcodesPerSignalCheck == 0) check(PyErr_CheckSignals());
      start_ = at_;
      if (at_ == size_) fail("the pickle is cut", start_);
      const unsigned char opcode = data_[at_++];
      if (opcode == '.') return end();
      run(opcode);
    }
  }

 private:
  static constexpr std::size_t kOpcodesPerSignalCheck = 1 << 20;
  using Items = std::vector<nb::object>;

  // Raises ValueError(reason, offset).
  [[noreturn]] void fail(const std::string& reason, std::size_t at) const {
    PyErr_SetObject(PyExc_ValueError, nb::make_tuple(reason, at).ptr());
    throw nb::python_error();
  }

  [[noreturn]] void fail_for_too_few() const {
    fail(at_ >= size_ ? "the pickle is cut" : "the pickle takes more than it has put down", start_);
  }

  // --- the file ---

  const unsigned char* take(std::uint64_t count, std::size_t error_at) {
    if (count > size_ - at_) fail("the pickle is cut", error_at);
    const unsigned char* const taken = data_ + at_;
    at_ += count;
    return taken;
  }

  std::uint64_t number(std::size_t width, std::size_t error_at) {
    const unsigned char* const bytes = take(width, error_at);
    std::uint64_t value = 0;
    for (std::size_t i = width; i-- > 0;) value = value << 8 | bytes[i];
    return value;
  }
  std::uint64_t number(std::size_t width) { return number(width, at_); }

  std::string_view text(std::size_t width) {
    const std::uint64_t length = number(width);
    return {reinterpret_cast<const char*>(take(length, at_)), length};
  }

  // --- the stack ---

  std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  void push(nb::object object) { stack_.push_back(std::move(object)); }
  nb::handle top() const {
    if (stack_.size() <= floor()) fail_for_too_few();
    return stack_.back();
  }
  nb::object pop() {
    if (stack_.size() <= floor()) fail_for_too_few();
    nb::object object = std::move(stack_.back());
    stack_.pop_back();
    return object;
  }
  Items pop_from(std::size_t first) {
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(first);
    Items items(std::make_move_iterator(begin), std::make_move_iterator(stack_.end()));
    stack_.erase(begin, stack_.end());
    return items;
  }
  Items pop_to_mark() {
    if (marks_.empty()) fail_for_too_few();
    const std::size_t mark = marks_.back();
    marks_.pop_back();
    return pop_from(mark);
  }
  Items pop_last(std::size_t count) {
    if (stack_.size() - floor() < count) fail_for_too_few();
    return pop_from(stack_.size() - count);
  }

  nb::object end() {
    if (stack_.size() != 1 || !marks_.empty())
      fail("the pickle ends with other than one object", start_);
    return pop();
  }

  // --- containers ---

  static nb::object list_of(Items items) {
    nb::object list = made(PyList_New(static_cast<Py_ssize_t>(items.size())));
    Py_ssize_t index = 0;
    for (nb::object& item : items) PyList_SetItem(list.ptr(), index++, item.release().ptr());
    return list;
  }

  static nb::object tuple_of(Items items) {
    nb::object tuple = made(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
    Py_ssize_t index = 0;
    for (nb::object& item : items) PyTuple_SetItem(tuple.ptr(), index++, item.release().ptr());
    return tuple;
  }

  void fill_list(const Items& items) const {
    const nb::handle list = top();
    if (!PyList_Check(list.ptr())) fail("the pickle appends to a " + kind_of(list), start_);
    for (const nb::object& item : items) check(PyList_Append(list.ptr(), item.ptr()));
  }

  // Keys are texts, whose hashes are unpredictable: no file can make them collide.
  void fill_dictionary(const Items& items) const {
    const nb::handle dictionary = top();
    if (!PyDict_Check(dictionary.ptr()))
      fail("the pickle puts a key into a " + kind_of(dictionary), start_);
    if (items.size() % 2 != 0) fail("a key has no value", start_);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!PyUnicode_Check(items[i].ptr())) {
        fail("a " + kind_of(items[i]) + " is the key of a dictionary: only texts may be", start_);
      }
    }
    for (std::size_t i = 0; i < items.size(); i += 2)
      check(PyDict_SetItem(dictionary.ptr(), items[i].ptr(), items[i + 1].ptr()));
  }

  // --- opcodes ---

  void get(std::size_t width) {
    const nb::handle object = memo_.find(number(width, start_));
    if (!object.is_valid()) fail("the pickle refers to what it has not defined", start_);
    push(nb::borrow(object));
  }

  void put(std::size_t width) {
    const nb::object object = nb::borrow(top());
    memo_.put(number(width), object);
  }

  void push_integer(std::int64_t value) { push(made(PyLong_FromLongLong(value))); }

  // A number of any length, of which a bit of the last byte is the sign.
  void push_long() {
    const std::uint64_t length = number(1);
    const unsigned char* const bytes = take(length, at_);
    if (length > sizeof(std::uint64_t)) {
      const nb::handle type(reinterpret_cast<PyObject*>(&PyLong_Type));
      push(type.attr("from_bytes")(nb::bytes(bytes, length), "little", "signed"_a = true));
      return;
    }
    std::uint64_t value = length != 0 && (bytes[length - 1] & 0x80) != 0 ? ~std::uint64_t{0} : 0;
    for (std::size_t i = length; i-- > 0;) value = value << 8 | bytes[i];
    push_integer(static_cast<std::int64_t>(value));
  }

  void push_float() {
    const unsigned char* const bytes = take(8, at_);
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 8; ++i) bits = bits << 8 | bytes[i];
    push(made(PyFloat_FromDouble(std::bit_cast<double>(bits))));
  }

  void push_text(std::size_t width) {
    const std::string_view utf8 = text(width);
    push(made(PyUnicode_DecodeUTF8(utf8.data(), static_cast<Py_ssize_t>(utf8.size()), "replace")));
  }

  void push_bytes(std::size_t width) {
    const std::string_view bytes = text(width);
    push(nb::bytes(bytes.data(), bytes.size()));
  }

  void check_protocol() {
    const std::uint64_t version = number(1);
    if (version < 2 || version > 5) {
      fail("pickle protocol " + std::to_string(version) + " is none of 2 to 5", start_ + 1);
    }
  }

  void check_frame() {
    if (number(8) > size_ - at_) fail("the pickle is cut", start_ + 1);
  }

  void set_item() {
    nb::object value = pop();
    nb::object key = pop();
    Items items;
    items.push_back(std::move(key));
    items.push_back(std::move(value));
    fill_dictionary(items);
  }

  void push_dictionary() {
    const Items items = pop_to_mark();
    push(made(PyDict_New()));
    fill_dictionary(items);
  }

  void append() {
    Items items;
    items.push_back(pop());
    fill_list(items);
  }

  [[noreturn]] void refuse(unsigned char opcode) const {
    if (const char* const code = name_of_code(opcode)) {
      fail(std::string("the pickle would run code (") + code + "), which is never done", start_);
    }
    constexpr std::string_view kDigits = "0123456789abcdef";
    fail(std::string("0x") + kDigits[opcode / 16] + kDigits[opcode % 16] + " is no opcode for data",
         start_);
  }

  void run(unsigned char opcode) {
    switch (opcode) {
      case 0x80: return check_protocol();
      case 0x95: return check_frame();
      case 'N': return push(nb::none());
      case 0x88: return push(nb::bool_(true));
      case 0x89: return push(nb::bool_(false));
      case 'K': return push_integer(static_cast<std::int64_t>(number(1, start_)));
      case 'M': return push_integer(static_cast<std::int64_t>(number(2, start_)));
      case 'J': return push_integer(static_cast<std::int32_t>(number(4, start_)));
      case 0x8A: return push_long();
      case 'G': return push_float();
      case 0x8C: return push_text(1);
      case 'X': return push_text(4);
      case 0x8D: return push_text(8);
      case 'C': return push_bytes(1);
      case 'B': return push_bytes(4);
      case 0x8E: return push_bytes(8);
      case ']': return push(made(PyList_New(0)));
      case ')': return push(made(PyTuple_New(0)));
      case '}': return push(made(PyDict_New()));
      case '(': return marks_.push_back(stack_.size());
      case 'l': return push(list_of(pop_to_mark()));
      case 't': return push(tuple_of(pop_to_mark()));
      case 0x85: return push(tuple_of(pop_last(1)));
      case 0x86: return push(tuple_of(pop_last(2)));
      case 0x87: return push(tuple_of(pop_last(3)));
      case 'd': return push_dictionary();
      case 'a': return append();
      case 'e': return fill_list(pop_to_mark());
      case 's': return set_item();
      case 'u': return fill_dictionary(pop_to_mark());
      case 'h': return get(1);
      case 'j': return get(4);
      case 'q': return put(1);
      case 'r': return put(4);
      case 0x94: return memo_.put(memo_.size(), nb::borrow(top()));
      default: refuse(opcode);
    }
  }

  const unsigned char* const data_;
  const std::size_t size_;
  std::size_t at_ = 0;     // behind what was read
  std::size_t start_ = 0;  // the opcode
  Items stack_;
  std::vector<std::size_t> marks_;  // heights of the stack, ascending
  Memo memo_;
};

}  // namespace

void bind_pickles(nb::module_& module) {
  module.def(
      "read_pickle", [](const nb::bytes& data) { return Reader(data).read(); }, "data"_a,
      nb::sig("def read_pickle(data: bytes) -> object"),
      "The object in a pickle of protocol 2 to 5 that holds only plain data. Raises "
      "ValueError(reason, offset) for any "
      "other.");
}

}  // namespace vpmm::python
