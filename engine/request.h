// SPDX-License-Identifier: Apache-2.0
// A request on its way into the engine and what comes back of it: the values that a front end, the
// engine and another worker share. A ValidRequest and the tokens that were published for it are
// enough to continue the stream anywhere, bit for bit: `generated` takes those tokens, and the seed
// is concrete. A stream's id and time of creation belong to the front end that answers it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/engine_state.h"
#include "engine/core/grammar_spec.h"
#include "engine/core/sampling_params.h"
#include "engine/core/status.h"
#include "engine/core/trace_context.h"
#include "engine/core/types.h"
#include "engine/handoff/handoff_spec.h"

namespace sluice {

// What passed validation; the engine never sees anything else. Every field is in range for the
// model that `Engine::model()` describes.
struct ValidRequest {
  std::vector<TokenId> prompt;  // at least one token
  // Tokens of the answer that another worker has given: they count as output in every respect, are
  // not published again, and are fewer than max_tokens. Empty: the answer begins here.
  std::vector<TokenId> generated;
  SamplingParams sampling;        // max_tokens resolved, seed concrete
  GrammarSpec grammar;            // what the answer must be; compiled before the request waits
  int32_t adapter_id = 0;         // 0: the base model
  uint64_t tenant_salt = 0;       // from authentication; separates prefix caches
  TenantId tenant;                // from authentication; whose share of the engine it takes
  int32_t priority = 0;           // lower runs earlier
  int32_t max_queue_wait_ms = 0;  // it has started by then or ends; 0: as configured
  bool keeps_prompt = false;      // its KV should stay cached longer than that of others
  bool speculative = true;        // false: its answer is computed without drafts
  // The client's guess of the answer, which drafts follow. Changes no token of it.
  std::vector<TokenId> prediction;
  std::optional<HandoffSpec> handoff;  // where its prompt's KV is computed; none: here, for itself
  std::chrono::steady_clock::time_point arrival;  // for queue and first-token times
  TraceContext trace;  // of the front end that submits it, for another worker that it goes to
};

struct TokenLogprob {
  TokenId token = kInvalidToken;
  float logprob = 0;
};

// A token of the prompt, given those before it.
struct PromptLogprob {
  TokenId token = kInvalidToken;
  float logprob = 0;
  int32_t rank = 0;                        // 1: the likeliest; ties by id
  std::vector<TokenLogprob> top_logprobs;  // best first, ties by id; size num_prompt_logprobs
};

// One generated token, the end of a request without one (abort, error), or a piece of the prompt's
// log-probabilities; these come before the first token.
struct TokenOutput {
  RequestId request_id;
  TokenId token = kInvalidToken;  // kInvalidToken: only `finish_reason` counts
  float logprob = 0;              // of `token`, over the unmodified logits; if asked for
  std::vector<TokenLogprob> top_logprobs;  // best first, ties by id; size num_logprobs
  FinishReason finish_reason = FinishReason::kNone;
  TokenId stop_token = kInvalidToken;  // the end or stop token that finished it (also `token`)
  int32_t num_cached_tokens = 0;       // prompt tokens found in the prefix cache (first output)
  int32_t num_accepted_predictions = 0;  // tokens of `prediction` that drafts had right so far
  int32_t num_rejected_predictions = 0;  // and wrong; tokens behind a wrong one too
  RequestTimings timings;
  std::string error;                   // with kError: one line for the client
  ErrorCode error_code = ErrorCode::kInternal;  // with kError
  int32_t retry_after_s = 0;                    // with kError: when to come back; 0: not known
  std::string error_param;             // with kError: request field at fault; empty when none
  // Of the prompt's next tokens, from its second token on; then `token` is kInvalidToken.
  std::vector<PromptLogprob> prompt_logprobs;
  // With the last output of a request whose handoff is a serial offer; null: nothing is kept.
  std::shared_ptr<const HandoffOffer> offer;
};

// Everything one step produced. Per request the outputs are in order; across steps too.
struct OutputBatch {
  std::vector<TokenOutput> outputs;
};

// Implemented by the front end, called on the engine thread once a step: hand over and return.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void publish(OutputBatch batch) = 0;
};

}  // namespace sluice
