// SPDX-License-Identifier: Apache-2.0
// Server-sent events from a byte stream that may be cut anywhere. Lines end with LF, CRLF or
// CR, a byte order mark before the first is no part of it; only the data field is looked at, which
// is all that the completion APIs send.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace sluice::load {

// `text` less a U+FEFF at its beginning, in UTF-8.
std::string_view without_byte_order_mark(std::string_view text);

class SseSink {
 public:
  virtual ~SseSink() = default;
  // The data of one event, its lines joined by LF; valid during the call.
  virtual void on_event(std::string_view data) = 0;
};

class SseParser {
 public:
  static constexpr size_t kMaxEventBytes = 16 << 20;

  // False: an event is longer than kMaxEventBytes. Later calls then do nothing.
  [[nodiscard]] bool feed(std::string_view bytes, SseSink& sink);

  // Bytes of an event whose end has not come: at the end of a stream, half a frame.
  [[nodiscard]] bool is_inside_event() const { return has_data_ || !line_.empty(); }

  // The data of such an event so far; with a line that has not ended.
  [[nodiscard]] std::string unended_data() const;

  [[nodiscard]] bool has_failed() const { return failed_; }

  void reset();

 private:
  void take_line(std::string_view line, SseSink& sink);

  std::string line_;  // begun, not ended
  std::string data_;  // of the event so far, once it has more than one piece
  bool is_first_line_ = true;
  bool after_cr_ = false;  // an LF that comes next ends no other line
  bool has_data_ = false;
  bool failed_ = false;
};

}  // namespace sluice::load
