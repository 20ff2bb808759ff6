// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/sampler.h"

#include <algorithm>

#include "engine/core/status.h"
#include "engine/sampling/token_mask.h"
#include "kernels/for_each.h"

namespace sluice {
namespace {

// Whether logits change before the choice while log-probabilities use the original ones.
bool has_logprobs_of_edited_row(const SamplingParams& params) {
  return params.num_logprobs >= 0 && LogitEdits::wanted(params);
}

// Rank of a token by (logit descending, id ascending), from 1.
int32_t rank_of(std::span<const float> logits, TokenId token) {
  const auto at = static_cast<size_t>(token);
  const float own = logits[at];
  const auto before = std::ranges::count_if(logits.first(at), [own](float x) { return x >= own; });
  const auto behind = std::ranges::count_if(logits.subspan(at), [own](float x) { return x > own; });
  return static_cast<int32_t>(1 + before + behind);
}

TokenSequence generated_of(const SamplerInput& input) {
  if (input.tokens.empty()) return {};
  return input.tokens.from(static_cast<size_t>(input.num_prompt_tokens));
}

}  // namespace

bool reads_tokens(const SamplingParams& params) {
  return LogitEdits::has_penalties(params) || !params.bad_words.empty() ||
         params.reasoning_limit.is_set();
}

bool reads_tokens(const RequestRecord& request) {
  return request.grammar != nullptr || reads_tokens(request.sampling);
}

Sampler::Sampler(int32_t vocab_size,
                 int32_t max_rows,
                 int32_t max_logprobs,
                 int32_t num_threads,
                 std::vector<TokenId> end_tokens)
    : vocab_size_(vocab_size),
      max_logprobs_(max_logprobs),
      end_tokens_(std::move(end_tokens)),
      workspace_(static_cast<size_t>(kernels::sampling_workspace_bytes(vocab_size, num_threads))),
      edits_(vocab_size),
      masks_(static_cast<size_t>(max_rows) * token_mask_words(vocab_size)),
      grammar_mask_(token_mask_words(vocab_size)),
      bindings_(static_cast<size_t>(max_rows)),
      scores_(static_cast<size_t>(max_rows) * static_cast<size_t>(max_logprobs)) {
  rows_.reserve(static_cast<size_t>(max_rows));
  some_rows_.reserve(static_cast<size_t>(max_rows));
  later_rows_.reserve(static_cast<size_t>(max_rows));
  results_.reserve(static_cast<size_t>(max_rows));
  first_rows_.reserve(static_cast<size_t>(max_rows));
  scored_.reserve(static_cast<size_t>(max_rows));
}

int64_t Sampler::buffer_bytes(int32_t vocab_size,
                              int32_t max_rows,
                              int32_t max_logprobs,
                              int32_t num_threads) {
  return kernels::sampling_workspace_bytes(vocab_size, num_threads) +
         LogitEdits::buffer_bytes(vocab_size) +
         static_cast<int64_t>(token_mask_words(vocab_size) * sizeof(uint32_t)) +
         int64_t{max_rows} *
             (static_cast<int64_t>(token_mask_words(vocab_size) * sizeof(uint32_t)) +
              max_logprobs * static_cast<int64_t>(sizeof(kernels::TokenScore)));
}

std::span<uint32_t> Sampler::mask_of(size_t row) {
  const size_t words = token_mask_words(vocab_size_);
  return std::span(masks_).subspan(row * words, words);
}

// Fills the mask if it returns kBound.
Sampler::Binding Sampler::bind_row(const SamplerInput& input, std::span<uint32_t> mask) {
  if (!input.grammar->follow(generated_of(input))) return Binding::kFailed;
  if (!input.grammar->is_bound()) return Binding::kFree;
  const Allowed allowed = input.grammar->fill(mask);
  return allowed == Allowed::kNothing ? Binding::kFailed : Binding::kBound;
}

void Sampler::bind(const kernels::ExecContext& exec, std::span<const SamplerInput> inputs) {
  first_rows_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_first = i == 0 || inputs[i - 1].grammar != inputs[i].grammar;
    if (inputs[i].grammar != nullptr && is_first) first_rows_.push_back(i);
  }
  kernels::for_each(exec, static_cast<int64_t>(first_rows_.size()), [&](int64_t request) {
    size_t row = first_rows_[static_cast<size_t>(request)];
    const GrammarState* const grammar = inputs[row].grammar;
    for (; row < inputs.size() && inputs[row].grammar == grammar; ++row) {
      bindings_[row] = bind_row(inputs[row], mask_of(row));
    }
  });
}

const uint32_t* Sampler::mask_for(const SamplerInput& input, size_t row) {
  const std::span<uint32_t> mask = mask_of(row);
  std::span<const uint32_t> grammar;
  if (input.grammar == nullptr) {
    bindings_[row] = Binding::kFree;
  } else if (bindings_[row] == Binding::kBound) {
    std::ranges::copy(mask, grammar_mask_.begin());
    grammar = grammar_mask_;
  }
  const bool written = write_token_mask(*input.params,
                                        input.num_generated,
                                        generated_of(input),
                                        end_tokens_,
                                        vocab_size_,
                                        grammar,
                                        mask);
  return written ? mask.data() : nullptr;
}

FinishReason Sampler::verdict(const SamplerInput& input,
                              Binding binding,
                              TokenId token,
                              bool& by_token) const {
  const SamplingParams& params = *input.params;
  const bool is_end = std::binary_search(end_tokens_.begin(), end_tokens_.end(), token);
  // An end token before min_tokens, chosen because nothing else was allowed, ends nothing; but
  // nothing can follow the end of a text that a grammar binds.
  by_token = (is_end && binding == Binding::kBound) ||
             (input.num_generated >= params.min_tokens &&
              ((is_end && !params.ignore_eos) ||
               std::ranges::find(params.stop_token_ids, token) != params.stop_token_ids.end()));
  if (by_token) return FinishReason::kStop;
  if (input.num_generated + 1 >= params.max_tokens) return FinishReason::kLength;
  return FinishReason::kNone;
}

kernels::SampleRow Sampler::prepare(const SamplerInput& input, size_t index, bool logprobs_later) {
  const SamplingParams& params = *input.params;
  const int32_t num_top = std::clamp(params.num_logprobs, 0, max_logprobs_);
  kernels::SampleRow row;
  row.logits = input.logits;
  row.allowed_mask = mask_for(input, index);
  row.temperature = params.temperature;
  row.top_p = params.top_p;
  row.min_p = params.min_p;
  row.top_k = params.top_k;
  row.seed = params.seed;
  row.position = input.num_tokens();
  row.num_logprobs = params.num_logprobs < 0 || logprobs_later ? -1 : num_top;
  row.top_logprobs = std::span(scores_).subspan(index * static_cast<size_t>(max_logprobs_),
                                                static_cast<size_t>(num_top));
  if (LogitEdits::wanted(params)) {
    edits_.apply(params, input.tokens, input.num_prompt_tokens, logprobs_later, input.logits);
  }
  return row;
}

bool Sampler::can_choose(const SamplerInput& input) {
  return input.grammar == nullptr && !LogitEdits::wanted(*input.params) &&
         input.params->bad_words.empty() && !input.params->reasoning_limit.is_set() &&
         mask_for(input, 0) == nullptr;
}

kernels::SampleRow Sampler::device_row(const SamplerInput& input) {
  return prepare(input, 0, false);
}

void Sampler::run(const kernels::ExecContext& exec, std::span<kernels::SampleRow> rows) {
  if (rows.empty()) return;
  kernels::sample(exec, {.rows = rows, .vocab_size = vocab_size_, .workspace = workspace_});
}

void Sampler::run_on_host(const kernels::ExecContext& exec, std::span<const SamplerInput> inputs) {
  some_rows_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].on_device) some_rows_.push_back(rows_[i]);
  }
  run(exec, some_rows_);
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].on_device) rows_[i] = some_rows_[next++];
  }
}

// Chooses the tokens of `inputs`, whose rows follow those in results_. Then reverts changes of
// logits and computes the log-probabilities of the changed rows.
void Sampler::sample_some(const kernels::ExecContext& exec, std::span<const SamplerInput> inputs) {
  rows_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].on_device) {
      bindings_[results_.size() + i] = Binding::kFree;
      rows_.push_back(chosen_.front());
      chosen_ = chosen_.subspan(1);
      continue;
    }
    rows_.push_back(
        prepare(inputs[i], results_.size() + i, has_logprobs_of_edited_row(*inputs[i].params)));
  }
  run_on_host(exec, inputs);
  edits_.undo();
  later_rows_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!rows_[i].finite || !has_logprobs_of_edited_row(*inputs[i].params)) continue;
    later_rows_.push_back(rows_[i]);
    later_rows_.back().choose = false;
    later_rows_.back().num_logprobs = static_cast<int32_t>(rows_[i].top_logprobs.size());
  }
  run(exec, later_rows_);
  size_t num_later = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_later = rows_[i].finite && has_logprobs_of_edited_row(*inputs[i].params);
    const kernels::SampleRow& row = is_later ? later_rows_[num_later++] : rows_[i];
    SamplerResult result;
    const Binding binding = bindings_[results_.size()];
    result.grammar_failed = binding == Binding::kFailed;
    if (!row.finite || result.grammar_failed) {
      result.finish_reason = FinishReason::kError;
    } else {
      result.token = row.token;
      result.logprob = row.logprob;
      result.top_logprobs = row.top_logprobs;
      result.finish_reason = verdict(inputs[i], binding, row.token, result.stopped_by_token);
    }
    results_.push_back(result);
  }
}

std::span<const ScoreResult> Sampler::score(const kernels::ExecContext& exec,
                                            std::span<const ScoreInput> inputs) {
  rows_.clear();
  scored_.clear();
  const auto stride = static_cast<size_t>(max_logprobs_);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int32_t num_top = std::clamp(inputs[i].num_logprobs, 0, max_logprobs_);
    kernels::SampleRow row;
    row.logits = inputs[i].logits;
    row.choose = false;
    row.token = inputs[i].token;
    row.num_logprobs = num_top;
    row.top_logprobs = std::span(scores_).subspan(i * stride, static_cast<size_t>(num_top));
    rows_.push_back(row);
  }
  run(exec, rows_);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const kernels::SampleRow& row = rows_[i];
    ScoreResult result;
    result.finite = row.finite;
    if (row.finite) {
      result.logprob = row.logprob;
      result.rank = rank_of({inputs[i].logits, static_cast<size_t>(vocab_size_)}, inputs[i].token);
      result.top_logprobs = row.top_logprobs;
    }
    scored_.push_back(result);
  }
  return scored_;
}

std::span<const SamplerResult> Sampler::sample(const kernels::ExecContext& exec,
                                               std::span<const SamplerInput> inputs,
                                               std::span<const kernels::SampleRow> chosen) {
  results_.clear();
  chosen_ = chosen;
  // Takes as many rows at once as there is room to note their changes.
  while (results_.size() < inputs.size()) {
    const std::span<const SamplerInput> rest = inputs.subspan(results_.size());
    size_t count = 0;
    size_t num_changes = 0;
    for (; count < rest.size(); ++count) {
      const SamplerInput& input = rest[count];
      if (!has_logprobs_of_edited_row(*input.params)) continue;
      num_changes += LogitEdits::most_changes(
          *input.params, static_cast<size_t>(input.num_tokens()), vocab_size_);
      if (count > 0 && num_changes > edits_.capacity()) break;
    }
    sample_some(exec, rest.first(count));
  }
  return results_;
}

}  // namespace sluice
