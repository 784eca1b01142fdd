// SPDX-License-Identifier: Apache-2.0
// base: Result<T>, the return type of every function that can fail, and VPMM_TRY to pass failure
// on.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace vpmm {

// Kind of a failure, by the caller's possible reaction. The C ABI mirrors these (vpmm_status).
enum class ErrorCode {
  invalid_argument = 1,  // a parameter is out of its domain: size, alignment, ordinal
  invalid_pointer = 2,   // the address is not a live allocation of this pool
  out_of_memory = 3,
  host_out_of_memory = 4,
  bad_configuration = 5,  // a setting has a value that is not allowed
  unsupported = 6,        // this device or driver cannot do it
  no_driver = 7,          // no CUDA driver on this machine
  driver_failed = 8,      // a driver call failed; no memory was lost
  poisoned = 9,           // the GPU context is broken (sticky error); no more driver calls are made
  process_ending = 10,    // the process is exiting, or this is a forked child
  capture_active = 11,    // not possible while a stream is being captured
  bad_file = 12,          // a file is missing, malformed or cannot be written
  not_shared = 14,   // memory of another process that is gone, does not answer, or took it back
  suspended = 15,    // memory of a suspended tag or arena
  file_in_use = 16,  // a file with another writer; bad_file to users of the C ABI
};

const char* to_string(ErrorCode code);

// One failure: the code for programs, a complete sentence for people. Making, copying or moving one
// never throws: without memory the sentence says so.
struct Error {
  Error() = default;
  Error(ErrorCode code_of_it, std::string text) noexcept
      : code(code_of_it), message(std::move(text)) {}
  Error(ErrorCode code_of_it, const char* text) noexcept;  // null: no sentence
  Error(const Error& other) noexcept : Error(other.code, other.message.c_str()) {}
  Error(Error&& other) noexcept = default;
  Error& operator=(const Error& other) noexcept { return *this = Error(other); }
  Error& operator=(Error&& other) noexcept = default;
  ~Error() = default;

  ErrorCode code = ErrorCode::invalid_argument;
  std::string message;
};

inline Error no_host_memory() noexcept {
  return {ErrorCode::host_out_of_memory, "the process itself is out of memory"};
}

// Holds a T or an Error. Requires for value(): ok(); for error(): !ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  // NOLINTNEXTLINE(google-explicit-constructor): implicit, for `return value;`
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  // NOLINTNEXTLINE(google-explicit-constructor): implicit, for `return error;`
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return *std::get_if<0>(&state_); }
  const T& value() const& { return *std::get_if<0>(&state_); }
  T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  Error& error() { return *std::get_if<1>(&state_); }
  const Error& error() const { return *std::get_if<1>(&state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): implicit, for `return error;`
  Result(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  Error& error() { return *error_; }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

}  // namespace vpmm

// Passes a failed Result<void> on to the caller.
#define VPMM_TRY(expression)                                   \
  do {                                                         \
    if (auto vpmm_try_result = (expression); !vpmm_try_result) \
      return std::move(vpmm_try_result.error());               \
  } while (false)

#define VPMM_CONCAT_INNER(a, b) a##b
#define VPMM_CONCAT(a, b) VPMM_CONCAT_INNER(a, b)
#define VPMM_TRY_ASSIGN_INNER(result, declaration, expression) \
  auto result = (expression);                                  \
  if (!result) return std::move(result.error());               \
  declaration = std::move(result).value()
// VPMM_TRY_ASSIGN(const auto page, find(p)): declares `page`, or passes the failure on.
#define VPMM_TRY_ASSIGN(declaration, expression) \
  VPMM_TRY_ASSIGN_INNER(VPMM_CONCAT(vpmm_try_result_, __COUNTER__), declaration, expression)
