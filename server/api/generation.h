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
#include "server/front/front_end.h"
#include "server/front/output_receiver.h"
#include "server/traces/request_span.h"

namespace sluice {

class Generation final : public OutputReceiver, public std::enable_shared_from_this<Generation> {
 public:
  // The answer is shared with the callbacks of its client's connection.
  Generation(FrontEnd& front_end, std::shared_ptr<Answer> answer, GenerationRequest request);
  ~Generation() override;

  // Submits all choices, or answers with the first error of a submission.
  void start();

  // Implements OutputReceiver; fail() ends the answer.
  void accept(size_t choice_idx, const TokenOutput& output) override;
  void flush() override;
  void fail(const Error& error) override;

  // Ends the answer with the text so far: open choices finish with kAbort.
  void abort();
  // Ends the generation without an answer, because the client is gone.
  void cancel();

  // Returns the model that the request was read for.
  [[nodiscard]] const ServedModel& served() const { return *request_.served; }

  // Returns the context of its span, or the client's if no span is recorded.
  [[nodiscard]] const TraceContext& trace() const { return span_.context(); }

 private:
  struct Choice {
    Choice(const Tokenizer& tokenizer, const GenerationRequest& request);

    RequestId id;
    bool submitted = false;
    FinishReason finish_reason = FinishReason::kNone;  // kNone: open
    ChoiceOutput output;
    std::string echoed;             // prompt to repeat before the first text
    std::string_view matched_stop;  // view into the request
    TokenId stop_token = kInvalidToken;
    int64_t num_tokens = 0;
    double sum_logprobs = 0;  // sum over its tokens, if they are known
    int64_t num_cached = 0;
    int64_t num_accepted_predictions = 0;
    int64_t num_rejected_predictions = 0;
    std::string prompt_digest;  // a prompt offered to other workers; empty: not offered
    std::string kv_params;      // JSON that its answer tells other workers
    RequestTimings timings;
  };

  void submit_choices();
  void append_token(size_t choice_idx, const TokenOutput& output, Pieces& pieces);
  void note_offer(Choice& choice, const HandoffOffer& offer);
  void finish_choice(Choice& choice, FinishReason reason);
  void count_choices() const;
  void end();
  // Returns false if the request is read again.
  bool send_error(const Error& error);
  void send_delta(size_t choice_idx, std::span<const Piece> pieces);
  void abort_open_choices(FinishReason reason);
  [[nodiscard]] std::vector<size_t> returned_choices() const;
  [[nodiscard]] Usage usage() const;

  FrontEnd& front_end_;
  const std::shared_ptr<Answer> answer_;
  GenerationRequest request_;
  RequestSpan span_;
  Engine& engine_;  // the request's version
  const Tokenizer& tokenizer_;

  std::vector<Choice> choices_;
  size_t num_open_ = 0;
  int64_t prompt_tokens_ = 0;
  const int32_t max_tokens_;  // of each choice
  // Stop tokens of a request with ignore_eos: an end token among them is the client's own. Any
  // other end token ends a text that a grammar constrains.
  std::vector<TokenId> own_end_tokens_;
  bool done_ = false;
};

}  // namespace sluice
