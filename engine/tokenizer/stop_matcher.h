// SPDX-License-Identifier: Apache-2.0
// Finds stop strings in a text that arrives in pieces. One instance per stream, one thread at a
// time (the stream's I/O thread).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct StopConfig {
  std::vector<std::string> strings;  // valid UTF-8, not empty
  // The matching stop string is the one that ends first; among those that end together the longest,
  // among equal ones the first in the list.
  bool include_in_output = false;
  // No match ends in the text of the first `min_tokens` tokens, but one may begin there and be
  // completed by a later token.
  int32_t min_tokens = 0;
};

class StopMatcher {
 public:
  explicit StopMatcher(StopConfig stop);
  StopMatcher(const StopMatcher&) = delete;
  StopMatcher(StopMatcher&&) = default;

  struct Result {
    std::string text;       // decided text; includes a match if configured
    int matched_stop = -1;  // index into StopConfig::strings: the text has ended
  };

  // `num_tokens` counts the stream's tokens including this text. Not called after a match.
  Result append(std::string_view text, int64_t num_tokens);

  // Returns the stop string equal to `name` if one may match at this token, otherwise -1. For
  // tokens with hidden text.
  [[nodiscard]] int find_name(std::string_view name, int64_t num_tokens) const;

  // Returns the held-back possible beginning of a stop string as text: nothing that follows
  // completes it.
  std::string release();

  [[nodiscard]] const StopConfig& config() const { return stop_; }

 private:
  // One stop string, and the length of its prefix that the text ends with (Knuth, Morris, Pratt).
  struct Pattern {
    std::string_view text;            // into stop_.strings, whose buffer moves along
    std::vector<uint32_t> fallbacks;  // [i]: longest proper border of the first i + 1 bytes
    uint32_t matched = 0;

    // Returns true if the pattern ends with this byte.
    bool advance(char byte);

    // Skips a match that does not count, keeping its suffix that may begin another match.
    void pass_match() { matched = fallbacks[matched - 1]; }
  };

  int find_end(char byte, bool may_end);

  StopConfig stop_;
  std::string held_;  // text that may turn out to be the start of a stop string
  std::vector<Pattern> patterns_;
};

}  // namespace sluice
