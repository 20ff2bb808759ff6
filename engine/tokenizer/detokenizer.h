// SPDX-License-Identifier: Apache-2.0
// Token ids to streamed text: never a broken character, stop strings end exactly. One instance per
// stream, one thread at a time (the stream's I/O thread).
//
// A stop string is looked for in the text that is shown; one that is the whole name of a hidden
// token is found at that token as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/types.h"
#include "engine/tokenizer/tokenizer.h"

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

class Detokenizer {
 public:
  // `tokenizer` outlives the instance.
  Detokenizer(const Tokenizer& tokenizer, StopConfig stop, bool skip_special_tokens);
  Detokenizer(const Detokenizer&) = delete;
  Detokenizer(Detokenizer&&) = default;

  // What a token made ready to send.
  struct Result {
    std::string text;       // valid UTF-8; empty while a character or a stop is undecided
    int matched_stop = -1;  // index into StopConfig::strings: the stream is over
  };

  // Appends one token, which counts toward min_tokens whether it is shown or not. After a match,
  // further calls return nothing.
  Result append(TokenId token);

  // End of stream: whatever was held back; incomplete bytes become one U+FFFD, after which a stop
  // string that contains it still applies. Further calls return nothing.
  std::string finish();

 private:
  // One stop string and how much of its beginning the text now ends with (Knuth, Morris, Pratt).
  struct Matcher {
    std::string_view pattern;         // into stop_.strings, whose buffer moves along
    std::vector<uint32_t> fallbacks;  // [i]: longest proper border of the first i + 1 bytes
    uint32_t matched = 0;

    // True where the pattern ends with this byte.
    bool advance(char byte);

    // Behind a match that does not count: what of it may begin another one.
    void pass_match() { matched = fallbacks[matched - 1]; }
  };

  // A token that is not shown, but may be what a stop string names.
  Result pass_hidden(TokenId token);
  // Moves what is decided of partial_ to valid UTF-8; at the end of the stream all of it is.
  std::string take_characters(bool at_end);
  Result take_ready(std::string_view text);

  const Tokenizer& tokenizer_;
  StopConfig stop_;
  bool skip_special_tokens_;
  bool ended_ = false;
  int64_t num_tokens_ = 0;  // appended so far
  std::string partial_;     // trailing bytes that do not yet form a character, at most 3
  std::string held_;        // text that may turn out to be the start of a stop string
  std::vector<Matcher> matchers_;
};

// The bytes of a whole text: what was encoded comes back, also where a model puts a space in front.
std::string decode_tokens(const Tokenizer& tokenizer, std::span<const TokenId> tokens);

}  // namespace sluice
