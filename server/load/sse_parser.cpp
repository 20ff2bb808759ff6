// SPDX-License-Identifier: Apache-2.0
#include "server/load/sse_parser.h"

#include <cstring>

namespace sluice::load {
namespace {

constexpr std::string_view kField = "data:";

}  // namespace

std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

void SseParser::reset() {
  line_.clear();
  is_first_line_ = true;
  data_.clear();
  has_data_ = false;
  failed_ = false;
}

bool SseParser::feed(std::string_view bytes, SseSink& sink) {
  while (!bytes.empty() && !failed_) {
    const void* found = std::memchr(bytes.data(), '\n', bytes.size());
    if (found == nullptr) {
      line_ += bytes;
      failed_ = line_.size() + data_.size() > kMaxEventBytes;
      break;
    }
    const auto length = static_cast<size_t>(static_cast<const char*>(found) - bytes.data());
    if (line_.empty()) {
      take_line(bytes.substr(0, length), sink);
    } else {
      line_ += bytes.substr(0, length);
      std::string line;
      line.swap(line_);
      take_line(line, sink);
      line.clear();
      line_.swap(line);  // keeps the allocation
    }
    bytes.remove_prefix(length + 1);
  }
  return !failed_;
}

void SseParser::take_line(std::string_view line, SseSink& sink) {
  if (is_first_line_) line = without_byte_order_mark(line);
  is_first_line_ = false;
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  if (line.empty()) {
    if (!has_data_) return;
    has_data_ = false;
    sink.on_event(data_);
    data_.clear();
    return;
  }
  if (!line.starts_with(kField)) return;  // a comment, or a field without meaning here
  line.remove_prefix(kField.size());
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (data_.size() + line.size() > kMaxEventBytes) {
    failed_ = true;
    return;
  }
  if (has_data_) data_ += '\n';
  data_ += line;
  has_data_ = true;
}

}  // namespace sluice::load
