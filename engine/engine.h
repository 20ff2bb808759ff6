// SPDX-License-Identifier: Apache-2.0
// The facade: what a front end sees of the engine. Requests go in as ValidRequest, tokens come out
// through an OutputSink. Both front ends, `sluice chat` and `sluice bench` use exactly this.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/engine_state.h"
#include "engine/core/sampling_params.h"
#include "engine/core/stats.h"
#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

struct Config;
class Tokenizer;
struct RankGroups;

// One piece of a prompt, in order. Embeddings (images) are the second kind to come; a span's
// content hash is what the prefix index compares for it.
struct PromptSpan {
  std::vector<TokenId> token_ids;
};

// What passed validation; the engine never sees anything else. Every field is in range for the
// model that `Engine::model()` describes.
struct ValidRequest {
  std::vector<PromptSpan> prompt;  // at least one token in all
  SamplingParams sampling;         // max_tokens resolved, seed concrete
  int32_t adapter_id = 0;          // 0: the base model
  uint64_t tenant_salt = 0;        // from authentication; separates prefix caches
  TenantId tenant;                 // from authentication; whose share of the engine it takes
  int32_t priority = 0;            // lower runs earlier
  int32_t max_queue_wait_ms = 0;   // it has started by then or ends; 0: as configured
  bool keeps_prompt = false;       // its KV should stay cached longer than that of others
  std::chrono::steady_clock::time_point arrival;  // for queue and first-token times
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
  RequestTimings timings;
  std::string error;                   // with kError: one line for the client
  ErrorCode error_code = ErrorCode::kInternal;  // with kError
  int32_t retry_after_s = 0;                    // with kError: when to come back; 0: not known
  // Of the prompt's next tokens, from its second token on; then `token` is kInvalidToken.
  std::vector<PromptLogprob> prompt_logprobs;
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

// What a front end must know to validate and to describe the model. Fixed after start.
struct ModelInfo {
  std::string architecture;        // "llama"
  std::string path;                // file or directory it was read from
  std::string chat_template;       // Jinja source; empty: none in the file
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;       // prompt plus output tokens
  int64_t num_parameters = 0;
  std::string system_fingerprint;  // hash of the determinism key
  std::string backend;             // "cpu:avx512"
  std::string memory_plan;         // several lines, as printed at start
  SamplingParams sampling;         // of requests that do not say: the model's own defaults
  int32_t max_output_tokens = 0;   // of any request; 0: as the context allows

  [[nodiscard]] bool is_on_gpu() const { return backend.starts_with("cuda:"); }
};

struct NamedFile {
  std::string name;  // of a file, without a folder
  std::string content;
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Any thread. The sink must outlive the request. Every accepted request gets an output with a
  // finish reason, exactly one, whatever happens. kResourceExhausted: the queue is full, or
  // the request would wait in it for longer than it may; kUnavailable: draining or stopped.
  [[nodiscard]] virtual Expected<RequestId> submit(ValidRequest request, OutputSink& sink) = 0;

  // Any thread. Takes effect at the next step border: the blocks return and one output with kAbort
  // is published, unless the request has ended before. Unknown ids are ignored.
  virtual void abort(RequestId id) = 0;

  // Any thread, cheap, never waits for a step.
  [[nodiscard]] virtual EngineStats stats() const = 0;
  // Any thread. `done` runs once, on the engine thread at the next step border: hand over and
  // return. Once the engine has stopped it runs at once and is told the counters alone.
  virtual void report_state(int32_t num_steps, std::function<void(EngineState)> done) = 0;
  [[nodiscard]] virtual const ModelInfo& model() const = 0;
  [[nodiscard]] virtual const Tokenizer& tokenizer() const = 0;
  // Any thread; reads the disk and takes up to seconds. What makes the tokenizer in Hugging Face's
  // layout: the files of the model's directory, or for a GGUF file such as give the same ids.
  [[nodiscard]] virtual Expected<std::vector<NamedFile>> tokenizer_files() const = 0;
  // Any thread but the engine's, before stop(). Returns when the system has backed all planned
  // memory, which takes seconds beside the first requests: for those who measure what comes after.
  virtual void wait_until_backed() const = 0;

  // Any thread. No new requests; running ones go on. Returns at once.
  virtual void drain() = 0;
  // Any thread but the engine's. Ends all requests with kAbort and joins the engine thread.
  virtual void stop() = 0;
};

// Loads the model named in `config`, plans and allocates memory, starts the engine thread.
[[nodiscard]] Expected<std::unique_ptr<Engine>> create_engine(const Config& config);

// The same with other groups of ranks than make_local_ranks() and open_nccl() (parallel.h).
// Once a rank has failed, the requests of each step end with kError.
[[nodiscard]] Expected<std::unique_ptr<Engine>> create_engine(const Config& config,
                                                              const RankGroups& groups);

}  // namespace sluice
