// SPDX-License-Identifier: Apache-2.0
// Parses one HTTP/1.1 response from bytes in any pieces; the body is passed on as it arrives. The
// one parser of all that asks another server.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/core/status.h"

namespace sluice::client {

struct ResponseHead {
  int status = 0;
  std::string reason = {};  // the status line's words
  std::map<std::string, std::string, std::less<>> fields =
      {};  // names in lower case; the first of each

  // Returns the field's value; empty: absent.
  [[nodiscard]] std::string_view field(std::string_view name) const;
};

// Takes a response as it arrives. An Error ends it: the parser's status is kBad, its refusal the
// Error.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual Expected<void> on_head(const ResponseHead& head) = 0;
  virtual Expected<void> on_body(std::string_view bytes) = 0;
};

class ResponseParser {
 public:
  enum class Status { kMore, kDone, kBad };

  // Limit of the head of a response or chunk; a longer one is an error.
  static constexpr size_t kMaxUnparsedBytes = 64 << 10;

  // `has_no_body`: the request was HEAD.
  explicit ResponseParser(ResponseSink& sink, bool has_no_body = false);
  ~ResponseParser();

  // Consumes a part of `bytes` (pass the rest first next time); `consumed`: its size.
  Status feed(std::string_view bytes, size_t& consumed);
  // The connection has ended: kDone if that ends the message in order.
  Status end_of_file();

  [[nodiscard]] bool has_begun() const;
  [[nodiscard]] bool keeps_alive() const;  // after kDone
  [[nodiscard]] std::string error() const;
  // Returns the sink's Error, if it refused the response.
  [[nodiscard]] const std::optional<Error>& refusal() const;
  // Returns the head, complete once the sink has had it.
  [[nodiscard]] const ResponseHead& head() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::client
