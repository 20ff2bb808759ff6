// SPDX-License-Identifier: Apache-2.0
// A request on its way into the engine and its outputs: values that a front end, the engine and
// another worker share. A ValidRequest plus its published tokens is enough to continue the stream
// anywhere, bit for bit: `generated` takes those tokens, and the seed is concrete. A stream's id
// and creation time belong to the front end that answers it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/engine_state.h"
#include "engine/core/grammar_spec.h"
#include "engine/core/pooling.h"
#include "engine/core/sampling_params.h"
#include "engine/core/status.h"
#include "engine/core/trace_context.h"
#include "engine/core/types.h"
#include "engine/handoff/handoff_spec.h"

namespace sluice {

// A validated request, the only kind that the engine sees. Every field is in range for the model
// that `Engine::model()` describes.
struct ValidRequest {
  std::vector<TokenId> prompt;  // at least one token; of a pair of texts see PoolingInfo
  // Answer tokens that another worker has already given: they count as output in every respect, are
  // not published again, and are fewer than max_tokens. Empty: the answer begins here.
  std::vector<TokenId> generated;
  SamplingParams sampling;        // max_tokens resolved, seed concrete
  // Constrains the answer; compiled before the request waits. Null: nothing does. The requests of
  // one body share it, as its text may be all of the body.
  std::shared_ptr<const GrammarSpec> grammar;
  int32_t adapter_id = 0;         // 0: the base model
  uint64_t tenant_salt = 0;       // from authentication; separates prefix caches
  TenantId tenant;                // from authentication; the tenant that is charged
  int32_t priority = 0;           // lower runs earlier
  int32_t max_queue_wait_ms = 0;  // the request ends if not started by then; 0: as configured
  bool keeps_prompt = false;      // its KV should stay cached longer than others'
  bool speculative = true;        // false: the answer is computed without drafts
  // The client's guess of the answer, used for drafts. Does not change any token.
  std::vector<TokenId> prediction;
  // Set: the answer is what PoolingInfo says, and no token is generated; of `sampling` nothing
  // counts. The model has a PoolingInfo.
  std::optional<PoolingParams> pooling;
  std::optional<HandoffSpec> handoff;  // another worker computes the prompt's KV; none: local
  std::chrono::steady_clock::time_point arrival;  // for queue and first-token times
  TraceContext trace;  // passed from the submitting front end to other workers
};

struct TokenLogprob {
  TokenId token = kInvalidToken;
  float logprob = 0;
};

// A prompt token's log-probability given the tokens before it.
struct PromptLogprob {
  TokenId token = kInvalidToken;
  float logprob = 0;
  int32_t rank = 0;                        // 1: most likely; ties by id
  std::vector<TokenLogprob> top_logprobs;  // best first, ties by id; size num_prompt_logprobs
};

// One generated token, the end of a request without a token (abort, error, pooled vectors), or a
// piece of the prompt's log-probabilities; these come before the first token.
struct TokenOutput {
  RequestId request_id;
  TokenId token = kInvalidToken;  // kInvalidToken: only `finish_reason` counts
  float logprob = 0;              // log-probability over the unmodified logits, if requested
  std::vector<TokenLogprob> top_logprobs;  // best first, ties by id; size num_logprobs
  FinishReason finish_reason = FinishReason::kNone;
  TokenId stop_token = kInvalidToken;  // the end or stop token that finished it (also `token`)
  int32_t num_cached_tokens = 0;       // prompt tokens found in the prefix cache (first output)
  int32_t num_accepted_predictions = 0;  // correctly drafted tokens of `prediction` so far
  int32_t num_rejected_predictions = 0;  // tokens drafted wrongly or after a wrong one
  RequestTimings timings;
  std::string error;  // one line for the client: with kError, and with kAbort if the engine ends
  ErrorCode error_code = ErrorCode::kInternal;  // with kError
  int32_t retry_after_s = 0;                    // with kError: when to retry; 0: not known
  std::string error_param;             // with kError: request field at fault; empty when none
  // The prompt's log-probabilities from its second token on; `token` is then kInvalidToken.
  std::vector<PromptLogprob> prompt_logprobs;
  // Set with the last output of a request whose handoff is a serial offer; null: nothing is kept.
  std::shared_ptr<const HandoffOffer> offer;
  // The answer of a request with `pooling`, in its only output, which has no token and kStop: one
  // vector, or one for each token, consecutive.
  std::vector<float> pooled;
};

// Tells whether the request has ended for another reason than its answer's end or an abort().
inline bool has_failed(const TokenOutput& output) {
  return output.finish_reason == FinishReason::kError || !output.error.empty();
}

// Returns why the engine has ended a request; `output` ends with kError or kAbort.
inline Error error_of(const TokenOutput& output) {
  const bool is_abort = output.finish_reason == FinishReason::kAbort;
  Error error;
  error.code = is_abort ? ErrorCode::kUnavailable : output.error_code;
  error.message = is_abort && output.error.empty() ? "The server is shutting down." : output.error;
  error.param = output.error_param;
  error.retry_after_s = output.retry_after_s;
  return error;
}

// All outputs of one step. Per request the outputs are in order, across steps too.
struct OutputBatch {
  std::vector<TokenOutput> outputs;
};

// Implemented by the front end; called on the engine thread once per step and must return quickly.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void publish(OutputBatch batch) = 0;
};

}  // namespace sluice
