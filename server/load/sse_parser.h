// SPDX-License-Identifier: Apache-2.0
// Parses server-sent events from a byte stream that may be cut anywhere. Lines end with LF, CRLF or
// CR, and a byte order mark at the start is dropped. Only the data field is read, the only one that
// the completion APIs send.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::load {

// Returns `text` without a U+FEFF at its beginning, in UTF-8.
std::string_view without_byte_order_mark(std::string_view text);

class SseSink {
 public:
  virtual ~SseSink() = default;
  // Takes the data of one event, its lines joined by LF; valid during the call.
  virtual void on_event(std::string_view data) = 0;
};

class SseParser {
 public:
  static constexpr size_t kMaxEventBytes = 16 << 20;

  // Returns false if an event is longer than kMaxEventBytes. Later calls then do nothing.
  [[nodiscard]] bool feed(std::string_view bytes, SseSink& sink);

  // Tells whether an event has not ended: at the end of a stream, half a frame.
  [[nodiscard]] bool is_inside_event() const { return has_data_ || !line_.empty(); }

  // Returns the data of an unended event so far, including a line that has not ended.
  [[nodiscard]] std::string unended_data() const;

  [[nodiscard]] bool has_failed() const { return failed_; }

  void reset();

 private:
  void take_line(std::string_view line, SseSink& sink);

  std::string line_;  // an unended line
  std::string data_;  // the current event's data, if it has several pieces
  bool is_first_line_ = true;
  bool after_cr_ = false;  // a following LF ends no other line
  bool has_data_ = false;
  bool failed_ = false;
};

}  // namespace sluice::load
