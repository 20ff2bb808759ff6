// SPDX-License-Identifier: Apache-2.0
// Turns the tokens of one choice into the pieces that its client gets. Without a parser all
// detokenized text is content; with one, stop strings are searched in content only. One instance
// per choice, on its answer's I/O thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/core/types.h"
#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/stop_matcher.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/api/request_validator.h"
#include "server/front/metrics.h"
#include "server/tools/output_parser.h"

namespace sluice {

class ChoiceOutput {
 public:
  // Tokenizer and request outlive the instance.
  ChoiceOutput(const Tokenizer& tokenizer, const GenerationRequest& request);

  // The reason why a token ended the choice, if it did; nothing is appended after that.
  struct Ending {
    int matched_stop = -1;  // index of the stop string
    bool by_call = false;   // the only call that it may make has ended

    [[nodiscard]] bool is_end() const { return matched_stop >= 0 || by_call; }
  };

  // Counts a token whose text is not part of the output.
  void skip() { ++num_tokens_; }

  // Appends the output that one more token made certain.
  Ending append(TokenId token, Pieces& pieces);
  // Appends the output that was held back.
  void finish(FinishReason reason, Pieces& pieces);

  [[nodiscard]] int64_t num_reasoning_tokens() const;

  // Adds the choice's counts; called once it has ended.
  void count(AnswerCounters& counters) const;

  // Tells whether a call that the client has seen has ended.
  [[nodiscard]] bool has_called() const { return num_closed_calls_ > 0; }

 private:
  Ending pass(const Pieces& parsed, Pieces& pieces);
  Ending pass_piece(const Piece& piece, Pieces& pieces);
  [[nodiscard]] bool may_call(const std::string& name) const;

  const Tokenizer& tokenizer_;
  const GenerationRequest& request_;
  std::optional<Detokenizer> detokenizer_;  // unset: parser_ and stops_ are used
  std::optional<OutputParser> parser_;
  std::optional<StopMatcher> stops_;
  int64_t num_tokens_ = 0;
  int32_t num_calls_ = 0;  // calls that the client has seen
  int32_t num_closed_calls_ = 0;
  int32_t num_refused_calls_ = 0;
  bool drops_call_ = false;  // the current call is of a tool that is not allowed
  bool ended_ = false;
};

}  // namespace sluice
