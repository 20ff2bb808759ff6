// SPDX-License-Identifier: Apache-2.0
// Errors as values, and checks for our own bugs. Three classes, one rule each: a caller's mistake
// is an Expected<T> with a message; scarcity is a return value; our own bug is a CHECK.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>

namespace sluice {

// The kind of a mistake; server/ maps each kind to an HTTP status in one table.
enum class ErrorCode : uint8_t {
  kInvalidArgument,     // a value breaks a stated rule
  kNotFound,            // names something that does not exist
  kUnauthenticated,     // no or wrong key
  kPermissionDenied,    // known, but not allowed
  kResourceExhausted,   // a queue or a rate is full; retry later
  kUnavailable,         // loading, draining or stopped; retry elsewhere
  kDeadlineExceeded,    // the request's time ran out
  kUnsupported,         // understood, and not offered
  kDataLoss,            // a file is truncated, corrupt or hostile
  kInternal,            // our bug or a broken device
};

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;            // rule, found value and place, in one line
  std::string param;              // request field or flag at fault; empty when none
  std::string machine_code = {};  // e.g. "context_length_exceeded"; empty when none
  int32_t retry_after_s = 0;      // with scarcity: when to retry; 0: not known
};

template <typename T>
using Expected = tl::expected<T, Error>;

[[nodiscard]] inline tl::unexpected<Error> make_error(ErrorCode code,
                                                      std::string message,
                                                      std::string param = {},
                                                      std::string machine_code = {}) {
  return tl::unexpected<Error>(
      Error{code, std::move(message), std::move(param), std::move(machine_code), 0});
}

std::string_view to_string(ErrorCode code);

namespace detail {
// Prints the message with a backtrace to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const std::string& what);

template <typename A, typename B>
[[noreturn]] void check_op_failed(
    const char* file, int line, const char* expression, const A& a, const B& b) {
  std::ostringstream out;
  out << expression << " (" << a << " vs " << b << ")";
  check_failed(file, line, out.str());
}
}  // namespace detail
}  // namespace sluice

// Always active. Must be unreachable by the contents of clients' requests and files.
#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      ::sluice::detail::check_failed(__FILE__, __LINE__, #condition); \
  } while (0)

#define SLUICE_CHECK_OP(a, op, b)                                                            \
  do {                                                                                       \
    const auto& check_a = (a);                                                               \
    const auto& check_b = (b);                                                               \
    if (!(check_a op check_b)) [[unlikely]]                                                  \
      ::sluice::detail::check_op_failed(__FILE__, __LINE__, #a " " #op " " #b, check_a, check_b); \
  } while (0)
#define CHECK_EQ(a, b) SLUICE_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) SLUICE_CHECK_OP(a, !=, b)
#define CHECK_LE(a, b) SLUICE_CHECK_OP(a, <=, b)
#define CHECK_LT(a, b) SLUICE_CHECK_OP(a, <, b)
#define CHECK_GE(a, b) SLUICE_CHECK_OP(a, >=, b)
#define CHECK_GT(a, b) SLUICE_CHECK_OP(a, >, b)

// For the step path: active only in debug and sanitizer builds.
#ifdef NDEBUG
#define DCHECK(condition) \
  do {                    \
  } while (false && (condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif

#define SLUICE_UNREACHABLE(what) ::sluice::detail::check_failed(__FILE__, __LINE__, what)

#define SLUICE_CONCAT_INNER(a, b) a##b
#define SLUICE_CONCAT(a, b) SLUICE_CONCAT_INNER(a, b)

// Declares `decl` from an Expected, or returns its Error: SLUICE_TRY(auto file, GgufFile::open(p));
#define SLUICE_TRY(decl, expression)                                              \
  auto SLUICE_CONCAT(try_result_, __LINE__) = (expression);                        \
  if (!SLUICE_CONCAT(try_result_, __LINE__)) [[unlikely]]                          \
    return tl::unexpected(std::move(SLUICE_CONCAT(try_result_, __LINE__)).error()); \
  decl = std::move(*SLUICE_CONCAT(try_result_, __LINE__))

// SLUICE_TRY for Expected<void>.
#define SLUICE_TRY_VOID(expression)                                       \
  do {                                                                    \
    if (auto try_result = (expression); !try_result) [[unlikely]]         \
      return tl::unexpected(std::move(try_result).error());               \
  } while (0)
