// SPDX-License-Identifier: Apache-2.0
// Parses the tokens of one choice into pieces: reasoning, content, calls of tools. One instance per
// choice, one thread at a time (the choice's I/O thread). No clock, no lock, no regular expression;
// buffers are bounded (parse_limits.h).
//
// Promise: the pieces, with neighbours of a kind joined, are a function of the output's bytes and
// special tokens alone: the split of bytes into tokens, and of tokens into calls of feed(), does
// not matter. Text is never lost: text that looked like a call and turns out to be none is content,
// as it was written. White space between a call's markers and other text belongs to the markers, up
// to kMaxSeparatorBytes of it.
//
// The state is a value: a copy is a snapshot, and an instance that is fed the same tokens again has
// the same state, so it need not be kept for a request that is recomputed.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "engine/core/types.h"
#include "server/tools/families.h"
#include "server/tools/parser_options.h"
#include "server/tools/pieces.h"
#include "server/tools/tool_schemas.h"

namespace sluice {

class OutputState;

class OutputParser {
 public:
  // All text is content; special tokens are handled by `skip_special_tokens`.
  explicit OutputParser(bool skip_special_tokens);

  // `format`: from resolve_format, not null. `tools`: of the request; null: none, types are
  // unknown. `prompt_tail`: the rendered prompt after the text of its last message (what the
  // template wrote there), and a last assistant message that is to be continued; it decides whether
  // the output begins inside reasoning. In any rendered prompt without such a message, the text
  // after the last span that came from its inputs.
  OutputParser(std::shared_ptr<const OutputFormat> format,
               std::shared_ptr<const ToolSchemas> tools,
               std::string_view prompt_tail,
               const ParserOptions& options);

  OutputParser(const OutputParser&);
  OutputParser& operator=(const OutputParser&);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  // Appends the pieces that one more token completes. `bytes`: Tokenizer::token_bytes(token), any
  // bytes; `is_special`: Tokenizer::is_special(token). A token that ends the generation may be fed
  // or not.
  void feed(TokenId token, std::string_view bytes, bool is_special, Pieces& pieces);

  // The end of the output: appends what was held back, except a partial marker that would have
  // ended a call or followed one. An open call is closed if `reason` is kStop, and stays without an
  // end otherwise. No further call of feed() or finish().
  void finish(FinishReason reason, Pieces& pieces);

  // Tokens so far whose bytes became reasoning, their markers included.
  [[nodiscard]] int64_t num_reasoning_tokens() const;

  // The text so far ends inside reasoning.
  [[nodiscard]] bool in_reasoning() const;

  // Calls so far that ended (kCallEnd). A generation that may make one call stops when it
  // becomes 1.
  [[nodiscard]] int32_t num_closed_calls() const;

 private:
  std::unique_ptr<OutputState> state_;
};

}  // namespace sluice
