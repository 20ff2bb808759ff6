// SPDX-License-Identifier: Apache-2.0
// Chooses tokens from logits rows and decides ends. Engine thread; buffers sized at construction.
//
// Order of stages: mask (token_mask.h, what the grammar allows within it), bias and penalties
// (logit_edits.h) -> top_k -> min_p -> top_p -> temperature and noise (kernels/sampling.h). Then
// the verdict: end or stop token after min_tokens others -> stop, max_tokens -> length.
// Log-probabilities are those of the unmodified logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/token_log.h"
#include "engine/core/types.h"
#include "engine/sampling/grammar/grammar_state.h"
#include "engine/sampling/logit_edits.h"
#include "engine/sampling/request_record.h"
#include "kernels/device.h"
#include "kernels/sampling.h"

namespace sluice {

// One row: its request and position.
struct SamplerInput {
  const SamplingParams* params;
  float* logits;  // [vocab]; changed if not needed later, except on_device
  // Prompt, then output; the next token is chosen. May be empty unless reads_tokens(*params), or
  // there is a grammar.
  TokenSequence tokens;
  int32_t num_prompt_tokens;
  int32_t num_generated;
  bool on_device = false;           // a device chooses the token
  GrammarState* grammar = nullptr;  // advanced to the end of `tokens`; null: none

  [[nodiscard]] int32_t num_tokens() const { return num_prompt_tokens + num_generated; }
};

// Whether the choice depends on earlier tokens other than through the logits.
bool reads_tokens(const SamplingParams& params);
// Likewise for all that the request asks: a grammar reads tokens too.
bool reads_tokens(const RequestRecord& request);

struct SamplerResult {
  TokenId token = kInvalidToken;
  float logprob = 0;
  std::span<const kernels::TokenScore> top_logprobs;  // valid until the next call
  FinishReason finish_reason = FinishReason::kNone;
  bool stopped_by_token = false;
  bool grammar_failed = false;  // with kError: no token can continue the answer
};

// A row and the following token, whose log-probability is wanted.
struct ScoreInput {
  const float* logits;  // [vocab]
  TokenId token;
  int32_t num_logprobs;  // additional alternatives
};

struct ScoreResult {
  float logprob = 0;
  int32_t rank = 0;
  std::span<const kernels::TokenScore> top_logprobs;  // valid until the next call
  bool finite = true;
};

class Sampler {
 public:
  // `end_tokens`: the model's own, ascending.
  Sampler(int32_t vocab_size,
          int32_t max_rows,
          int32_t max_logprobs,
          int32_t num_threads,
          std::vector<TokenId> end_tokens);

  static int64_t buffer_bytes(int32_t vocab_size,
                              int32_t max_rows,
                              int32_t max_logprobs,
                              int32_t num_threads);

  // Whether a device with memory of its own can do all that the row needs, whatever was chosen
  // before: nothing edits its logits or masks a token. Other rows are sampled on the host, with the
  // same result.
  bool can_choose(const SamplerInput& input);
  // Returns such a row for the device's sample(), without the address of its top_logprobs.
  kernels::SampleRow device_row(const SamplerInput& input);

  // Fills the masks of the rows that grammars bind, requests side by side. Called before sample()
  // of inputs with grammars; meanwhile a device may compute the logits. `exec` is the host's. The
  // rows of one request follow one another.
  void bind(const kernels::ExecContext& exec, std::span<const SamplerInput> inputs);

  // `exec` is the host's; `chosen` has the device's results for the on_device rows, in order.
  std::span<const SamplerResult> sample(const kernels::ExecContext& exec,
                                        std::span<const SamplerInput> inputs,
                                        std::span<const kernels::SampleRow> chosen = {});

  // Scores at most max_rows rows.
  std::span<const ScoreResult> score(const kernels::ExecContext& exec,
                                     std::span<const ScoreInput> inputs);

 private:
  // The state of a row's grammar.
  enum class Binding : uint8_t { kFree, kBound, kFailed };

  static Binding bind_row(const SamplerInput& input, std::span<uint32_t> mask);
  // The mask of sample()'s `row`-th input.
  std::span<uint32_t> mask_of(size_t row);
  const uint32_t* mask_for(const SamplerInput& input, size_t row);
  kernels::SampleRow prepare(const SamplerInput& input, size_t index, bool logprobs_later);
  void run(const kernels::ExecContext& exec, std::span<kernels::SampleRow> rows);
  void run_on_host(const kernels::ExecContext& exec, std::span<const SamplerInput> inputs);
  void sample_some(const kernels::ExecContext& exec, std::span<const SamplerInput> inputs);
  FinishReason verdict(const SamplerInput& input,
                       Binding binding,
                       TokenId token,
                       bool& by_token) const;

  int32_t vocab_size_;
  int32_t max_logprobs_;
  std::vector<TokenId> end_tokens_;
  std::vector<std::byte> workspace_;
  LogitEdits edits_;
  std::vector<uint32_t> masks_;              // [max_rows][ceil(vocab / 32)]
  std::vector<uint32_t> grammar_mask_;       // [ceil(vocab / 32)]: of the row being prepared
  std::vector<Binding> bindings_;            // [max_rows]
  std::vector<size_t> first_rows_;           // of the requests with grammars
  std::vector<kernels::TokenScore> scores_;  // [max_rows][max_logprobs]
  std::vector<kernels::SampleRow> rows_;
  std::vector<kernels::SampleRow> some_rows_;   // rows that no device chooses
  std::span<const kernels::SampleRow> chosen_;  // by a device, not yet consumed
  std::vector<kernels::SampleRow> later_rows_;  // rows whose log-probabilities are computed last
  std::vector<SamplerResult> results_;
  std::vector<ScoreResult> scored_;
};

}  // namespace sluice
