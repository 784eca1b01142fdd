// SPDX-License-Identifier: Apache-2.0
// vpmm: header-only C++17 over the C ABI: how calls fail, by exceptions or as a vpmm::result.
// vpmm.hpp includes it.
#ifndef VPMM_RESULT_HPP
#define VPMM_RESULT_HPP

// A compiler stops at a missing file. Without that a hundred errors of all headers would hide the
// one that matters.
#if __cplusplus < 201703L
#error "the C++ headers of vpmm need C++17: compile with -std=c++17 or newer"
#include <C++17>
#elif !defined(__cpp_exceptions)
#error "the C++ headers of vpmm need exceptions; C's vpmm/vpmm.h does not"
#include <exceptions>
#endif

#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "vpmm/vpmm.h"

namespace vpmm {

// Base of every exception of this library, beside a standard exception: catch it to get the status.
// It does not derive from std::exception, so that catching std::exception or std::bad_alloc is
// never ambiguous.
class error {
 public:
  virtual ~error() = default;
  virtual const char* what() const noexcept = 0;
  vpmm_status status() const noexcept { return status_; }

 protected:
  explicit error(vpmm_status status) noexcept : status_(status) {}
  error(const error&) = default;
  error& operator=(const error&) = default;

 private:
  vpmm_status status_;
};

// VPMM_ERROR_OUT_OF_MEMORY and VPMM_ERROR_HOST_OUT_OF_MEMORY.
class out_of_memory : public std::bad_alloc, public error {
 public:
  out_of_memory(vpmm_status status, const std::string& message)
      : error(status), message_(message) {}  // NOLINT(bugprone-throw-keyword-missing): a member
  const char* what() const noexcept override { return message_.what(); }

 private:
  std::runtime_error message_;  // copying it cannot throw; copying a string can
};

// Every other status.
class failure : public std::runtime_error, public error {
 public:
  failure(vpmm_status status, const std::string& message)
      : std::runtime_error(message), error(status) {}
  const char* what() const noexcept override { return std::runtime_error::what(); }
};

[[noreturn]] inline void throw_error(vpmm_status status, const std::string& message) {
  if (status == VPMM_ERROR_OUT_OF_MEMORY || status == VPMM_ERROR_HOST_OUT_OF_MEMORY) {
    throw out_of_memory(status, message);
  }
  throw failure(status, message);
}

// For calls into the C ABI: throws unless `status` is VPMM_OK.
inline void check(vpmm_status status) {
  if (status != VPMM_OK) throw_error(status, vpmm_last_error());
}

// A value, or a status and a message.
template <typename T>
class [[nodiscard]] result {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): implicit, for `return value;`
  result(T value) : value_(std::move(value)) {}
  // With the calling thread's last error.
  static result failed(vpmm_status status) { return result(status, vpmm_last_error()); }

  bool ok() const noexcept { return status_ == VPMM_OK; }
  explicit operator bool() const noexcept { return ok(); }
  vpmm_status status() const noexcept { return status_; }
  const std::string& message() const noexcept { return message_; }

  // Throws the error when there is no value.
  T& value() & { return require(), *value_; }
  const T& value() const& { return require(), *value_; }
  T&& value() && { return require(), std::move(*value_); }

 private:
  result(vpmm_status status, const char* message) : status_(status), message_(message) {}
  void require() const {
    if (!ok()) throw_error(status_, message_);
  }

  std::optional<T> value_;
  vpmm_status status_ = VPMM_OK;
  std::string message_;
};

template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  static result failed(vpmm_status status) { return result(status, vpmm_last_error()); }

  bool ok() const noexcept { return status_ == VPMM_OK; }
  explicit operator bool() const noexcept { return ok(); }
  vpmm_status status() const noexcept { return status_; }
  const std::string& message() const noexcept { return message_; }
  void value() const {
    if (!ok()) throw_error(status_, message_);
  }

 private:
  result(vpmm_status status, const char* message) : status_(status), message_(message) {}

  vpmm_status status_ = VPMM_OK;
  std::string message_;
};

}  // namespace vpmm

#endif
