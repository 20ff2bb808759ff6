// SPDX-License-Identifier: Apache-2.0
#include "server/http/accept.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace sluice {
namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// Up to the next separator, which is taken as well.
std::string_view take(std::string_view& rest, char separator) {
  const size_t at = rest.find(separator);
  const std::string_view item = rest.substr(0, at);
  rest = at == std::string_view::npos ? std::string_view() : rest.substr(at + 1);
  return trimmed(item);
}

bool are_equal(std::string_view text, std::string_view lower) {
  if (text.size() != lower.size()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c) != lower[i]) return false;
  }
  return true;
}

struct MediaRange {
  std::string_view type;
  std::string_view version;  // empty: any
  double weight = 1;         // 0: not that
};

MediaRange parse_range(std::string_view text) {
  MediaRange range;
  range.type = take(text, ';');
  while (!text.empty()) {
    std::string_view value = take(text, ';');
    const std::string_view name = take(value, '=');
    value = trimmed(value);
    if (are_equal(name, "version")) range.version = value;
    if (!are_equal(name, "q")) continue;
    const auto read = std::from_chars(value.data(), value.data() + value.size(), range.weight);
    const bool is_weight = read.ec == std::errc() && read.ptr == value.data() + value.size() &&
                           range.weight >= 0 && range.weight <= 1;
    if (!is_weight) range.weight = 0;
  }
  return range;
}

}  // namespace

double accepted_weight(std::string_view accept, std::string_view type, std::string_view version) {
  double weight = 0;
  while (!accept.empty()) {
    const MediaRange range = parse_range(take(accept, ','));
    const bool is_it =
        are_equal(range.type, type) && (range.version.empty() || range.version == version);
    if (is_it) weight = std::max(weight, range.weight);
  }
  return weight;
}

}  // namespace sluice
