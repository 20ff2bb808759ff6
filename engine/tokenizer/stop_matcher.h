// SPDX-License-Identifier: Apache-2.0
// Stop strings in a text that comes piece by piece. One instance per stream, one thread at a time
// (the stream's I/O thread).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sluice {

struct StopConfig {
  std::vector<std::string> strings;  // valid UTF-8, not empty ones
  // A match is the stop string whose end comes first; of those that end together the longest one,
  // of equal ones the first in the list.
  bool include_in_output = false;
  // No match ends in the text of the first so many tokens. One may begin there: the text of a later
  // token completes it.
  int32_t min_tokens = 0;
};

class StopMatcher {
 public:
  explicit StopMatcher(StopConfig stop);
  StopMatcher(const StopMatcher&) = delete;
  StopMatcher(StopMatcher&&) = default;

  struct Result {
    std::string text;       // what is decided; a match is in it as StopConfig says
    int matched_stop = -1;  // index into StopConfig::strings: the text is over
  };

  // `num_tokens`: of the stream so far, this text's included. Not called after a match.
  Result append(std::string_view text, int64_t num_tokens);

  // The stop string that is `name`, where one may match at this token; -1: none. It is for tokens
  // whose text is not shown.
  [[nodiscard]] int find_name(std::string_view name, int64_t num_tokens) const;

  // What is held back as the possible beginning of a stop string: it is text after all, and nothing
  // that follows completes it.
  std::string release();

  [[nodiscard]] const StopConfig& config() const { return stop_; }

 private:
  // One stop string and how much of its beginning the text now ends with (Knuth, Morris, Pratt).
  struct Pattern {
    std::string_view text;            // into stop_.strings, whose buffer moves along
    std::vector<uint32_t> fallbacks;  // [i]: longest proper border of the first i + 1 bytes
    uint32_t matched = 0;

    // True where the pattern ends with this byte.
    bool advance(char byte);

    // Behind a match that does not count: what of it may begin another one.
    void pass_match() { matched = fallbacks[matched - 1]; }
  };

  int find_end(char byte, bool may_end);

  StopConfig stop_;
  std::string held_;  // text that may turn out to be the start of a stop string
  std::vector<Pattern> patterns_;
};

}  // namespace sluice
