// SPDX-License-Identifier: Apache-2.0
// The arguments of a request that the server does not know. They are left out and the answer says
// so, or the request is refused: --unknown-arguments decides. One instance a request, on the thread
// that validates it.
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

// Of an HTTP answer and of a gRPC call's initial metadata, which takes small letters only.
inline constexpr const char* kIgnoredArgumentsHeader = "x-sluice-ignored-arguments";

class IgnoredArguments {
 public:
  explicit IgnoredArguments(UnknownArguments rule) : rule_(rule) {}

  // `name` as the client wrote it, any bytes; "stream_options.x" is a member of an object.
  // kInvalidArgument: it is refused.
  Expected<void> add(std::string_view name);

  // Also counts names that are not kept.
  [[nodiscard]] size_t size() const { return size_; }

  // Each name once, at most 16 of them, in characters that a header and a log line may hold: other
  // bytes are %XX, and what is longer than 64 bytes ends with "...".
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }

  // The names with commas between them; "..." stands for those that are not kept.
  [[nodiscard]] std::string header_value() const;

 private:
  UnknownArguments rule_;
  size_t size_ = 0;
  bool lacks_names_ = false;
  std::vector<std::string> names_;
};

}  // namespace sluice
