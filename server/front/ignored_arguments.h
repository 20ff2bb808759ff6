// SPDX-License-Identifier: Apache-2.0
// The arguments of a request that the server does not know. Either they are left out and the answer
// names them, or the request is refused: --unknown-arguments decides. One instance per request, on
// the thread that validates it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

struct Config;

enum class UnknownArguments : uint8_t { kIgnore, kRefuse };

UnknownArguments unknown_arguments_rule(const Config& config);

// Header of an HTTP answer, and key of a gRPC call's initial metadata, which must be lower case.
inline constexpr const char* kIgnoredArgumentsHeader = "x-sluice-ignored-arguments";

class IgnoredArguments {
 public:
  explicit IgnoredArguments(UnknownArguments rule) : rule_(rule) {}

  // `name`: the client's spelling, any bytes; "stream_options.x" is a member of an object.
  // kInvalidArgument: the argument is refused.
  Expected<void> add(std::string_view name);

  // Names what is left out by design, whatever --unknown-arguments says.
  void note(std::string_view name);

  // Returns the number of names, including those that are not kept.
  [[nodiscard]] size_t size() const { return size_; }

  // Returns each name once, at most 16, in characters that a header and a log line may hold: other
  // bytes become %XX, and a name longer than 64 bytes ends with "...".
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  // Returns the names with commas between them; "..." replaces names that are not kept.
  [[nodiscard]] std::string header_value() const;

 private:
  UnknownArguments rule_;
  size_t size_ = 0;
  bool lacks_names_ = false;
  std::vector<std::string> names_;
};

}  // namespace sluice
