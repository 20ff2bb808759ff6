// SPDX-License-Identifier: Apache-2.0
// Parses one HTTP/1.1 response from bytes in any pieces; the body is passed on as it comes.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace sluice::load {

struct ResponseHead {
  int status = 0;
  bool is_event_stream = false;
  double retry_after = -1;  // seconds; -1: not given, or a date
};

class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  virtual void on_head(const ResponseHead& head) = 0;
  virtual void on_body(std::string_view bytes) = 0;
};

class ResponseParser {
 public:
  enum class Status { kMore, kDone, kBad };

  // Limit of the head of a response or chunk; a longer one is an error.
  static constexpr size_t kMaxUnparsedBytes = 64 << 10;

  explicit ResponseParser(ResponseSink& sink);
  ~ResponseParser();

  // Consumes a part of `bytes` (the rest comes first next time); `consumed`: its size.
  Status feed(std::string_view bytes, size_t& consumed);
  // The connection has ended: kDone if that ends the message in order.
  Status end_of_file();

  [[nodiscard]] bool has_begun() const;
  [[nodiscard]] bool keeps_alive() const;  // after kDone
  [[nodiscard]] std::string error() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::load
