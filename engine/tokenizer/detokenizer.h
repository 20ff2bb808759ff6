// SPDX-License-Identifier: Apache-2.0
// Converts token ids to streamed text: never a broken character, and stop strings end exactly. One
// instance per stream, one thread at a time (the stream's I/O thread).
//
// Stop strings are matched in the visible text; one equal to the name of a hidden token also
// matches at that token.
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
  // `tokenizer` must outlive the instance.
  Detokenizer(const Tokenizer& tokenizer, StopConfig stop, bool skip_special_tokens);
  Detokenizer(const Detokenizer&) = delete;
  Detokenizer(Detokenizer&&) = default;

  // Text that a token made ready to send: valid UTF-8, empty while a character or a stop is
  // undecided.
  using Result = StopMatcher::Result;

  // Appends one token, which counts toward min_tokens whether visible or not. After a match,
  // further calls return nothing.
  Result append(TokenId token);

  // Ends the stream and returns held-back text; incomplete bytes become one U+FFFD, in which a stop
  // string may still match. Further calls return nothing.
  std::string finish();

 private:
  // Handles a hidden token, whose name may match a stop string.
  Result pass_hidden(TokenId token);
  // Moves the decided part of partial_ to valid UTF-8, all of it at the end of the stream.
  std::string take_characters(bool at_end);
  Result take_ready(std::string_view text);

  const Tokenizer& tokenizer_;
  StopMatcher stops_;
  bool skip_special_tokens_;
  bool ended_ = false;
  int64_t num_tokens_ = 0;  // appended so far
  std::string partial_;     // trailing bytes that do not yet form a character, at most 3
};

// Decodes a whole text to the bytes that were encoded, also if a model puts a space in front.
std::string decode_tokens(const Tokenizer& tokenizer, std::span<const TokenId> tokens);

}  // namespace sluice
