// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/logit_edits.h"

#include <algorithm>

namespace sluice {
namespace {

// Penalties change a token at most once, and so does bias.
constexpr size_t kMostChangesPerToken = 2;
constexpr size_t kRowsNoted = 2;

}  // namespace

LogitEdits::LogitEdits(int32_t vocab_size)
    : vocab_size_(static_cast<size_t>(vocab_size)), marks_(vocab_size_) {
  changes_.reserve(kRowsNoted * kMostChangesPerToken * vocab_size_);
  marked_.reserve(vocab_size_);
}

int64_t LogitEdits::buffer_bytes(int32_t vocab_size) {
  return int64_t{vocab_size} *
         static_cast<int64_t>(kRowsNoted * kMostChangesPerToken * sizeof(Change) + sizeof(int32_t) +
                              sizeof(TokenId));
}

bool LogitEdits::has_penalties(const SamplingParams& params) {
  return params.presence_penalty != 0 || params.frequency_penalty != 0 ||
         params.repetition_penalty != 1;
}

bool LogitEdits::wanted(const SamplingParams& params) {
  return !params.logit_bias.empty() || has_penalties(params);
}

size_t LogitEdits::most_changes(const SamplingParams& params,
                                size_t num_tokens,
                                int32_t vocab_size) {
  const size_t penalized =
      has_penalties(params) ? std::min(num_tokens, static_cast<size_t>(vocab_size)) : 0;
  return penalized + params.logit_bias.size();
}

void LogitEdits::note(bool undoable, float* logit) {
  if (undoable) changes_.push_back({logit, *logit});
}

void LogitEdits::apply(const SamplingParams& params,
                       const TokenSequence& tokens,
                       int32_t num_prompt_tokens,
                       bool undoable,
                       float* logits) {
  for (const LogitBias& entry : params.logit_bias) {
    note(undoable, logits + entry.token);
    logits[entry.token] += entry.bias;
  }
  if (has_penalties(params)) penalize(params, tokens, num_prompt_tokens, undoable, logits);
}

void LogitEdits::penalize(const SamplingParams& params,
                          const TokenSequence& tokens,
                          int32_t num_prompt_tokens,
                          bool undoable,
                          float* logits) {
  const auto num_prompt = static_cast<size_t>(num_prompt_tokens);
  // Only repetition_penalty uses the prompt.
  const size_t first = params.repetition_penalty != 1 ? 0 : num_prompt;
  for (size_t i = first; i < tokens.size(); ++i) {
    const TokenId token = tokens[i];
    int32_t& mark = marks_[static_cast<size_t>(token)];
    if (mark == 0) {
      mark = 1;
      marked_.push_back(token);
    }
    if (i >= num_prompt) mark += 2;
  }
  for (const TokenId token : marked_) {
    const auto count = static_cast<float>(marks_[static_cast<size_t>(token)] >> 1);
    marks_[static_cast<size_t>(token)] = 0;
    float x = logits[token];
    note(undoable, logits + token);
    x = x > 0 ? x / params.repetition_penalty : x * params.repetition_penalty;
    if (count > 0) {
      x -= params.frequency_penalty * count;
      x -= params.presence_penalty;
    }
    logits[token] = x;
  }
  marked_.clear();
}

void LogitEdits::undo() {
  for (size_t i = changes_.size(); i-- > 0;) *changes_[i].logit = changes_[i].before;
  changes_.clear();
}

}  // namespace sluice
