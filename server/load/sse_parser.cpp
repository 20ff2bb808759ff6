// SPDX-License-Identifier: Apache-2.0
#include "server/load/sse_parser.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace sluice::load {
namespace {

// Returns the line's value of the field data; null: another field or a comment.
std::optional<std::string_view> data_of(std::string_view line) {
  constexpr std::string_view kField = "data:";
  if (!line.starts_with(kField)) return std::nullopt;
  line.remove_prefix(kField.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  return line;
}

// Returns the position of the first LF or CR; nothing: there is none.
std::optional<size_t> end_of_line(std::string_view bytes) {
  const auto position = [](std::string_view text, char c) {
    const void* found = std::memchr(text.data(), c, text.size());
    return found == nullptr ? std::string_view::npos
                            : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  };
  const size_t lf = position(bytes, '\n');
  const size_t end = std::min(lf, position(bytes.substr(0, lf), '\r'));
  return end == std::string_view::npos ? std::nullopt : std::optional(end);
}

}  // namespace

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

void SseParser::reset() {
  line_.clear();
  is_first_line_ = true;
  after_cr_ = false;
  data_.clear();
  has_data_ = false;
  failed_ = false;
}

bool SseParser::feed(std::string_view bytes, SseSink& sink) {
  while (!bytes.empty() && !failed_) {
    const bool ends_crlf = after_cr_ && bytes.front() == '\n';
    after_cr_ = false;
    if (ends_crlf) {
      bytes.remove_prefix(1);
      continue;
    }
    const auto end = end_of_line(bytes);
    if (!end) {
      line_ += bytes;
      failed_ = line_.size() + data_.size() > kMaxEventBytes;
      break;
    }
    if (line_.empty()) {
      take_line(bytes.substr(0, *end), sink);
    } else {
      line_ += bytes.substr(0, *end);
      std::string line;
      line.swap(line_);
      take_line(line, sink);
      line.clear();
      line_.swap(line);  // keeps the allocation
    }
    after_cr_ = bytes[*end] == '\r';
    bytes.remove_prefix(*end + 1);
  }
  return !failed_;
}

void SseParser::take_line(std::string_view line, SseSink& sink) {
  if (is_first_line_) line = without_byte_order_mark(line);
  is_first_line_ = false;
  if (line.empty()) {
    if (!has_data_) return;
    has_data_ = false;
    sink.on_event(data_);
    data_.clear();
    return;
  }
  const auto data = data_of(line);
  if (!data) return;
  if (data_.size() + data->size() > kMaxEventBytes) {
    failed_ = true;
    return;
  }
  if (has_data_) data_ += '\n';
  data_ += *data;
  has_data_ = true;
}

std::string SseParser::unended_data() const {
  const auto data = data_of(is_first_line_ ? without_byte_order_mark(line_) : line_);
  if (!data) return data_;
  return has_data_ ? data_ + '\n' + std::string(*data) : std::string(*data);
}

}  // namespace sluice::load
