// SPDX-License-Identifier: Apache-2.0
// One client request from admission to its last byte: submits its choices to the engine, turns
// their tokens into pieces, and tells its Answer. Lives on its answer's I/O thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/api/answer.h"
#include "server/api/choice_output.h"
#include "server/api/request_validator.h"
#include "server/front_end.h"
#include "server/traces/request_span.h"

namespace sluice {

class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // The answer is shared with whatever its client's end of the wire calls back.
  Generation(FrontEnd& front_end, std::shared_ptr<Answer> answer, GenerationRequest request);
  ~Generation();

  // Submits all choices, or answers with the error of the first that is not accepted.
  void start();

  // One output of the engine for `choice_idx`; flush() follows when the step's outputs are through.
  void accept(size_t choice_idx, const TokenOutput& output);
  void flush();

  // Ends the answer with an error.
  void fail(const Error& error);
  // Ends it here, with what there is: open choices finish with kAbort.
  void abort();
  // The client is gone; there is nobody to answer.
  void cancel();

  // Of its span, or the client's where none is recorded.
  [[nodiscard]] const TraceContext& trace() const { return span_.context(); }

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, const GenerationRequest& request);

    RequestId id;
    bool submitted = false;
    FinishReason finish_reason = FinishReason::kNone;  // kNone: open
    ChoiceOutput output;
    std::string echoed;             // prompt to repeat before the first text
    std::string_view matched_stop;  // into the request
    TokenId stop_token = kInvalidToken;
    int64_t num_tokens = 0;
    double sum_logprobs = 0;  // of its tokens, where they are known
    int64_t num_cached = 0;
    int64_t num_accepted_predictions = 0;
    int64_t num_rejected_predictions = 0;
    std::string prompt_digest;  // of a prompt that is offered to other workers; empty: it is not
    std::string kv_params;      // what its answer tells them
    RequestTimings timings;
  };

  void append_token(size_t choice_idx, const TokenOutput& output, Pieces& pieces);
  void note_offer(Choice& choice, const HandoffOffer& offer);
  void finish_choice(Choice& choice, FinishReason reason);
  void end();
  void tell(size_t choice_idx, std::span<const Piece> pieces);
  void abort_open_choices(FinishReason reason);
  [[nodiscard]] std::vector<size_t> returned_choices() const;
  [[nodiscard]] Usage usage() const;

  FrontEnd& front_end_;
  const std::shared_ptr<Answer> answer_;
  GenerationRequest request_;
  RequestSpan span_;
  const Tokenizer& tokenizer_;

  std::vector<Choice> choices_;
  size_t num_open_ = 0;
  int64_t prompt_tokens_ = 0;
  // Stop tokens where ignore_eos is set: an end among them is the client's own. Any other end is
  // that of a text that a grammar binds.
  std::vector<TokenId> own_end_tokens_;
  bool done_ = false;
};

}  // namespace sluice
