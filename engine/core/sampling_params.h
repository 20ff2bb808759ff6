// SPDX-License-Identifier: Apache-2.0
// How one request chooses its tokens: the fields, and a table with each field's JSON name, range
// and default, from which the validator, /openapi.json and the documentation are made.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

// A value added to the logit of a token before the choice.
struct LogitBias {
  TokenId token = kInvalidToken;
  float bias = 0;
};

// Limits reasoning: after `max_tokens` tokens of it the sampler forces `end`, token by token.
struct ReasoningLimit {
  int32_t max_tokens = 0;      // >= 0; counted after `begin`
  std::vector<TokenId> begin;  // starts reasoning; empty: the prompt did
  std::vector<TokenId> end;    // ends it; empty: there is no limit

  [[nodiscard]] bool is_set() const { return !end.empty(); }
};

struct SamplingParams {
  float temperature = 1.0F;  // 0 selects the arg max (ties: lowest id)
  float top_p = 1.0F;        // [0, 1]; 0 keeps only the most likely token, like top_k 1
  int32_t top_k = 0;         // 0 or -1: off
  float min_p = 0.0F;        // [0, 1]
  uint64_t seed = 0;         // concrete by admission; noise is keyed (seed, position, token)
  int32_t max_tokens = 16;   // >= 1; resolved against the context at admission
  int32_t min_tokens = 0;    // no eos, stop token id or stop string ends it earlier
  bool ignore_eos = false;
  float presence_penalty = 0.0F;   // subtracted from the logits of generated tokens
  float frequency_penalty = 0.0F;  // subtracted once per occurrence
  float repetition_penalty =
      1.0F;  // divides (multiplies negative) logits of prompt and output tokens
  std::vector<TokenId> stop_token_ids;          // besides the model's own end tokens
  std::vector<LogitBias> logit_bias;            // one entry per token
  std::vector<TokenId> allowed_token_ids;       // ascending; empty: all
  std::vector<std::vector<TokenId>> bad_words;  // token sequences that must not be generated
  ReasoningLimit reasoning_limit;
  int32_t num_logprobs = -1;         // -1: none; 0: the sampled token's; k: and the k best
  int32_t num_prompt_logprobs = -1;  // likewise for the prompt's tokens, from the second on
};

enum class ParamKind : uint8_t { kNumber, kInteger, kBoolean };

// One numeric or boolean field of SamplingParams.
struct SamplingField {
  std::string_view name;  // JSON key
  ParamKind kind;
  double min;            // inclusive
  double max;            // inclusive
  double default_value;  // booleans: 0 or 1
  std::string_view help;
  void (*set)(SamplingParams&, double);           // kNumber and kBoolean
  void (*set_integer)(SamplingParams&, int64_t);  // kInteger: exact over all 64 bits
  double (*get)(const SamplingParams&);
};

std::span<const SamplingField> sampling_fields();
const SamplingField* find_sampling_field(std::string_view name);

// Range check plus assignment; the message names rule, value and field.
Expected<void> set_sampling_field(SamplingParams& params, const SamplingField& field, double value);

// Sets an integer field, exact where a double might not be.
Expected<void> set_sampling_integer(SamplingParams& params,
                                    const SamplingField& field,
                                    int64_t value);

// Rules between fields (min_tokens <= max_tokens).
Expected<void> validate(const SamplingParams& params);

}  // namespace sluice
