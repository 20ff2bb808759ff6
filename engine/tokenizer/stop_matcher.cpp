// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"

namespace sluice {

bool StopMatcher::Pattern::advance(char byte) {
  // `matched` is below the pattern's size here: a full match ends the text or is skipped.
  while (matched > 0 && text[matched] != byte) matched = fallbacks[matched - 1];
  if (text[matched] == byte) ++matched;
  return matched == text.size();
}

StopMatcher::StopMatcher(StopConfig stop) : stop_(std::move(stop)) {
  patterns_.reserve(stop_.strings.size());
  for (const std::string& text : stop_.strings) {
    CHECK(!text.empty());
    Pattern pattern{text, {}};
    std::vector<uint32_t> fallbacks(text.size(), 0);
    for (size_t i = 1; i < text.size(); ++i) {
      uint32_t border = fallbacks[i - 1];
      while (border > 0 && text[border] != text[i]) border = fallbacks[border - 1];
      fallbacks[i] = border + (text[border] == text[i] ? 1 : 0);
    }
    pattern.fallbacks = std::move(fallbacks);
    patterns_.push_back(std::move(pattern));
  }
}

// Returns the pattern that ends with this byte; -1: none does or may.
int StopMatcher::find_end(char byte, bool may_end) {
  int found = -1;
  for (size_t i = 0; i < patterns_.size(); ++i) {
    if (!patterns_[i].advance(byte)) continue;
    if (!may_end) {
      patterns_[i].pass_match();
    } else if (found < 0 || patterns_[i].text.size() > patterns_[found].text.size()) {
      found = static_cast<int>(i);
    }
  }
  return found;
}

StopMatcher::Result StopMatcher::append(std::string_view text, int64_t num_tokens) {
  if (patterns_.empty()) return {std::string(text), -1};
  const bool may_end = num_tokens > stop_.min_tokens;
  for (size_t i = 0; i < text.size(); ++i) {
    const int found = find_end(text[i], may_end);
    if (found < 0) continue;
    Result result{held_.append(text.substr(0, i + 1)), found};
    if (!stop_.include_in_output) {
      result.text.resize(result.text.size() - patterns_[found].text.size());
    }
    held_.clear();
    return result;
  }
  size_t undecided = 0;
  for (const Pattern& pattern : patterns_) undecided = std::max<size_t>(undecided, pattern.matched);
  held_ += text;
  Result result{held_.substr(0, held_.size() - undecided), -1};
  held_.erase(0, held_.size() - undecided);
  return result;
}

int StopMatcher::find_name(std::string_view name, int64_t num_tokens) const {
  if (num_tokens <= stop_.min_tokens) return -1;
  const auto found = std::ranges::find(stop_.strings, name);
  return found == stop_.strings.end() ? -1 : static_cast<int>(found - stop_.strings.begin());
}

std::string StopMatcher::release() {
  for (Pattern& pattern : patterns_) pattern.matched = 0;
  return std::exchange(held_, {});
}

}  // namespace sluice
