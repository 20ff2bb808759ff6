// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/worker_check.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"

namespace sluice {
namespace {

constexpr size_t kMostStopTokens = 1024;
constexpr size_t kMostBadWords = 8192;  // a client's word has several sequences
constexpr size_t kMostMarkerTokens = 64;
constexpr float kMostBias = 100;

tl::unexpected<Error> invalid(const char* field, const char* rule) {
  return make_error(ErrorCode::kInvalidArgument, std::string(field) + ": " + rule + ".", field);
}

Expected<void> check_ids(const char* field, const std::vector<TokenId>& ids, int32_t vocab_size) {
  const auto is_known = [vocab_size](TokenId id) { return id >= 0 && id < vocab_size; };
  if (std::ranges::all_of(ids, is_known)) return {};
  return invalid(field, "a token is outside the vocabulary");
}

Expected<void> check_fields(const SamplingParams& sampling) {
  for (const SamplingField& field : sampling_fields()) {
    if (field.name == "seed") continue;  // any 64 bits
    const double value = field.get(sampling);
    // The bound of a float is the float nearest to a client's decimal.
    const bool is_float = field.kind == ParamKind::kNumber;
    const double least = is_float ? static_cast<float>(field.min) : field.min;
    const double most = is_float ? static_cast<float>(field.max) : field.max;
    if (!std::isfinite(value) || value < least || value > most) {
      return invalid(std::string(field.name).c_str(), "out of range");
    }
  }
  return validate(sampling);
}

Expected<void> check_logprobs(const char* field, int32_t count, int32_t most) {
  if (count >= -1 && count <= most) return {};
  return invalid(field, "more than this worker's --max-logprobs");
}

Expected<void> check_sampling(const SamplingParams& sampling,
                              const ModelInfo& model,
                              const Config& config) {
  SLUICE_TRY_VOID(check_fields(sampling));
  const int32_t vocab_size = model.vocab_size;
  SLUICE_TRY_VOID(check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size));
  SLUICE_TRY_VOID(check_ids("allowed_token_ids", sampling.allowed_token_ids, vocab_size));
  if (sampling.stop_token_ids.size() > kMostStopTokens) {
    return invalid("stop_token_ids", "too many");
  }
  if (std::ranges::adjacent_find(sampling.allowed_token_ids, std::ranges::greater_equal()) !=
      sampling.allowed_token_ids.end()) {
    return invalid("allowed_token_ids", "not ascending");
  }
  if (sampling.bad_words.size() > kMostBadWords) return invalid("bad_words", "too many");
  for (const std::vector<TokenId>& word : sampling.bad_words) {
    if (word.empty()) return invalid("bad_words", "an empty sequence");
    SLUICE_TRY_VOID(check_ids("bad_words", word, vocab_size));
  }
  const ReasoningLimit& limit = sampling.reasoning_limit;
  if (limit.max_tokens < 0) return invalid("reasoning_limit", "below 0");
  if (std::max(limit.begin.size(), limit.end.size()) > kMostMarkerTokens) {
    return invalid("reasoning_limit", "too many tokens");
  }
  SLUICE_TRY_VOID(check_ids("reasoning_limit", limit.begin, vocab_size));
  SLUICE_TRY_VOID(check_ids("reasoning_limit", limit.end, vocab_size));
  if (sampling.logit_bias.size() > static_cast<size_t>(config.max_logit_bias)) {
    return invalid("logit_bias", "more than this worker's --max-logit-bias");
  }
  std::vector<TokenId> biased;
  for (const LogitBias& entry : sampling.logit_bias) {
    if (!(std::abs(entry.bias) <= kMostBias)) return invalid("logit_bias", "out of range");
    biased.push_back(entry.token);
  }
  SLUICE_TRY_VOID(check_ids("logit_bias", biased, vocab_size));
  std::ranges::sort(biased);
  if (std::ranges::adjacent_find(biased) != biased.end()) {
    return invalid("logit_bias", "a token twice");
  }
  SLUICE_TRY_VOID(check_logprobs("logprobs", sampling.num_logprobs, config.max_logprobs));
  return check_logprobs("prompt_logprobs", sampling.num_prompt_logprobs, config.max_logprobs);
}

}  // namespace

Expected<void> check_request(const ValidRequest& request,
                             const ModelInfo& model,
                             const Config& config) {
  const SamplingParams& sampling = request.sampling;
  SLUICE_TRY_VOID(check_sampling(sampling, model, config));
  if (request.prompt.empty()) return invalid("prompt", "empty");
  SLUICE_TRY_VOID(check_ids("prompt", request.prompt, model.vocab_size));
  SLUICE_TRY_VOID(check_ids("generated", request.generated, model.vocab_size));
  SLUICE_TRY_VOID(check_ids("prediction", request.prediction, model.vocab_size));
  const auto prompt_size = static_cast<int64_t>(request.prompt.size());
  if (prompt_size + sampling.max_tokens > model.max_model_len) {
    return invalid("max_tokens", "prompt and answer are longer than the context");
  }
  if (static_cast<int64_t>(request.generated.size()) >= sampling.max_tokens) {
    return invalid("generated", "not fewer tokens than max_tokens");
  }
  if (static_cast<int64_t>(request.prediction.size()) > model.max_model_len) {
    return invalid("prediction", "longer than the context");
  }
  if (request.adapter_id != 0) return invalid("adapter_id", "there are no adapters");
  if (request.max_queue_wait_ms < 0) return invalid("max_queue_wait_ms", "negative");
  if (request.grammar == nullptr) return {};
  if (static_cast<int64_t>(request.grammar->text.size()) > config.max_body_bytes) {
    return invalid("grammar", "longer than this worker's --max-body-bytes");
  }
  SLUICE_TRY_VOID(check_ids("grammar", request.grammar->begins_after, model.vocab_size));
  return check_ids("grammar", request.grammar->control_tokens, model.vocab_size);
}

}  // namespace sluice
