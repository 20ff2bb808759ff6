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
#include "engine/tokenizer/stop_matcher.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

class Detokenizer {
 public:
  // `tokenizer` outlives the instance.
  Detokenizer(const Tokenizer& tokenizer, StopConfig stop, bool skip_special_tokens);
  Detokenizer(const Detokenizer&) = delete;
  Detokenizer(Detokenizer&&) = default;

  // What a token made ready to send: `text` is valid UTF-8, and empty while a character or a stop
  // is undecided.
  using Result = StopMatcher::Result;

  // Appends one token, which counts toward min_tokens whether it is shown or not. After a match,
  // further calls return nothing.
  Result append(TokenId token);

  // End of stream: whatever was held back; incomplete bytes become one U+FFFD, after which a stop
  // string that contains it still applies. Further calls return nothing.
  std::string finish();

 private:
  // A token that is not shown, but may be what a stop string names.
  Result pass_hidden(TokenId token);
  // Moves what is decided of partial_ to valid UTF-8; at the end of the stream all of it is.
  std::string take_characters(bool at_end);
  Result take_ready(std::string_view text);

  const Tokenizer& tokenizer_;
  StopMatcher stops_;
  bool skip_special_tokens_;
  bool ended_ = false;
  int64_t num_tokens_ = 0;  // appended so far
  std::string partial_;     // trailing bytes that do not yet form a character, at most 3
};

// The bytes of a whole text: what was encoded comes back, also where a model puts a space in front.
std::string decode_tokens(const Tokenizer& tokenizer, std::span<const TokenId> tokens);

}  // namespace sluice
