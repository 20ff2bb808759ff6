// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/sampler.h"

#include <algorithm>

#include "engine/core/status.h"

namespace sluice {
namespace {

size_t mask_words(int32_t vocab_size) { return static_cast<size_t>(ceil_div(vocab_size, 32)); }

}  // namespace

Sampler::Sampler(int32_t vocab_size,
                 int32_t max_rows,
                 int32_t max_logprobs,
                 int32_t num_threads,
                 std::vector<TokenId> end_tokens)
    : vocab_size_(vocab_size),
      max_logprobs_(max_logprobs),
      end_tokens_(std::move(end_tokens)),
      workspace_(static_cast<size_t>(kernels::sampling_workspace_bytes(vocab_size, num_threads))),
      masks_(static_cast<size_t>(max_rows) * mask_words(vocab_size)),
      scores_(static_cast<size_t>(max_rows) * static_cast<size_t>(max_logprobs)) {
  rows_.reserve(static_cast<size_t>(max_rows));
  results_.reserve(static_cast<size_t>(max_rows));
}

int64_t Sampler::buffer_bytes(int32_t vocab_size,
                              int32_t max_rows,
                              int32_t max_logprobs,
                              int32_t num_threads) {
  return kernels::sampling_workspace_bytes(vocab_size, num_threads) +
         int64_t{max_rows} * (static_cast<int64_t>(mask_words(vocab_size) * sizeof(uint32_t)) +
                              max_logprobs * static_cast<int64_t>(sizeof(kernels::TokenScore)));
}

const uint32_t* Sampler::mask_for(const SamplerInput& input, size_t row) {
  if (input.num_generated >= input.params->min_tokens) return nullptr;
  const size_t words = mask_words(vocab_size_);
  uint32_t* mask = masks_.data() + row * words;
  std::fill_n(mask, words, ~uint32_t{0});
  const auto forbid = [&](TokenId token) {
    mask[token / 32] &= ~(uint32_t{1} << (token % 32));
  };
  for (const TokenId token : end_tokens_) forbid(token);
  for (const TokenId token : input.params->stop_token_ids) forbid(token);
  // A request may forbid the whole of a small vocabulary; then there is nothing to hold back.
  uint32_t any = 0;
  for (int32_t token = 0; token < vocab_size_; ++token) any |= mask[token / 32] >> (token % 32) & 1;
  return any != 0 ? mask : nullptr;
}

FinishReason Sampler::verdict(const SamplerInput& input, TokenId token, bool& by_token) const {
  const SamplingParams& params = *input.params;
  const bool is_end = !params.ignore_eos &&
                      std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
  by_token = is_end || std::ranges::find(params.stop_token_ids, token) !=
                           params.stop_token_ids.end();
  if (by_token) return FinishReason::kStop;
  if (input.num_generated + 1 >= params.max_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

std::span<const SamplerResult> Sampler::sample(const kernels::ExecContext& exec,
                                               std::span<const SamplerInput> inputs) {
  rows_.clear();
  results_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const SamplerInput& input = inputs[i];
    const SamplingParams& params = *input.params;
    const int32_t num_top = std::clamp(params.num_logprobs, 0, max_logprobs_);
    kernels::SampleRow row;
    row.logits = input.logits;
    row.allowed_mask = mask_for(input, i);
    row.temperature = params.temperature;
    row.top_p = params.top_p;
    row.min_p = params.min_p;
    row.top_k = params.top_k;
    row.seed = params.seed;
    row.position = input.position;
    row.num_logprobs = params.num_logprobs < 0 ? -1 : num_top;
    row.top_logprobs = std::span(scores_).subspan(i * static_cast<size_t>(max_logprobs_),
                                                  static_cast<size_t>(num_top));
    rows_.push_back(row);
  }
  kernels::sample(exec, {.rows = rows_, .vocab_size = vocab_size_, .workspace = workspace_});
  for (size_t i = 0; i < inputs.size(); ++i) {
    const kernels::SampleRow& row = rows_[i];
    SamplerResult result;
    if (!row.finite) {
      result.finish_reason = FinishReason::kError;
    } else {
      result.token = row.token;
      result.logprob = row.logprob;
      result.top_logprobs = row.top_logprobs;
      result.finish_reason = verdict(inputs[i], row.token, result.stopped_by_token);
    }
    results_.push_back(result);
  }
  return results_;
}

}  // namespace sluice
