// SPDX-License-Identifier: Apache-2.0
// Token ids to streamed text: never a broken character, stop strings end exactly. One instance per
// stream, one thread at a time (the stream's I/O thread).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "engine/core/types.h"
#include "engine/tokenizer/tokenizer.h"

namespace sluice {

struct StopConfig {
  std::vector<std::string> strings;  // not empty ones
  bool include_in_output = false;
};

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, StopConfig stop, bool skip_special_tokens);

  // What a token made ready to send.
  struct Result {
    std::string text;           // valid UTF-8; empty while a character or a stop is undecided
    int matched_stop = -1;      // index into StopConfig::strings: the stream is over
  };

  // Appends one token. After a match, further calls return nothing.
  Result append(TokenId token);

  // End of stream: whatever was held back; incomplete bytes become U+FFFD, one for each maximal
  // invalid part.
  std::string finish();

 private:
  std::string take_ready(std::string text, int& matched_stop);

  const Tokenizer& tokenizer_;
  StopConfig stop_;
  bool skip_special_tokens_;
  bool ended_ = false;
  std::string partial_;   // trailing bytes that do not yet form a character
  std::string held_;      // text that may turn out to be the start of a stop string
};

}  // namespace sluice
