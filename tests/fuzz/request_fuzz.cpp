// SPDX-License-Identifier: Apache-2.0
// Bytes of a client through the validator. What passes must be in range, what does not must carry a
// one-line message. The first byte picks the endpoint.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "engine/core/config.h"
#include "server/request_validator.h"
#include "tests/support/byte_tokenizer.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void check(const sluice::GenerationRequest& request, const sluice::ModelInfo& model) {
  require(!request.requests.empty());
  for (const sluice::ValidRequest& valid : request.requests) {
    size_t prompt_tokens = 0;
    for (const auto& span : valid.prompt) {
      prompt_tokens += span.token_ids.size();
      for (const sluice::TokenId id : span.token_ids) require(id >= 0 && id < model.vocab_size);
    }
    const sluice::SamplingParams& sampling = valid.sampling;
    require(prompt_tokens >= 1);
    require(sampling.max_tokens >= 1);
    require(static_cast<int64_t>(prompt_tokens) + sampling.max_tokens <= model.max_model_len);
    require(sampling.min_tokens <= sampling.max_tokens);
    require(sampling.temperature >= 0 && sampling.temperature <= 2);
    require(sampling.top_p > 0 && sampling.top_p <= 1);
    require(sampling.min_p >= 0 && sampling.min_p <= 1);
    require(sampling.num_logprobs >= -1 && sampling.num_logprobs <= 20);
    require(std::abs(sampling.presence_penalty) <= 2 && std::abs(sampling.frequency_penalty) <= 2);
    require(sampling.repetition_penalty > 0 && sampling.repetition_penalty <= 100);
    for (const sluice::LogitBias& entry : sampling.logit_bias) {
      require(entry.token >= 0 && entry.token < model.vocab_size);
      require(std::abs(entry.bias) <= 100);
    }
    require(std::is_sorted(sampling.allowed_token_ids.begin(), sampling.allowed_token_ids.end()));
    for (const sluice::TokenId id : sampling.allowed_token_ids) {
      require(id >= 0 && id < model.vocab_size);
    }
    for (const auto& word : sampling.bad_words) require(!word.empty());
  }
  for (const std::string& stop : request.stop.strings) require(!stop.empty());
  require(request.num_returned >= 1 && request.num_returned <= request.num_choices);
  require(request.requests.size() % static_cast<size_t>(request.num_choices) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const sluice::Config config;
  static const sluice::ByteTokenizer tokenizer;
  static const std::vector<std::string> names = {"m"};
  static const sluice::ModelInfo model = [] {
    sluice::ModelInfo info;
    info.vocab_size = sluice::ByteTokenizer::kVocabSize;
    info.max_model_len = 4096;
    return info;
  }();
  static const auto chat_template = sluice::ChatTemplate::compile(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  require(chat_template.has_value());
  if (size == 0) return 0;
  const sluice::ValidationContext context{
      config, model, tokenizer, &*chat_template, names, 1, 0, {}};
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto endpoint =
      (data[0] & 1) != 0 ? sluice::Endpoint::kChat : sluice::Endpoint::kCompletion;
  const auto result = sluice::validate_generation(context, body, endpoint);
  if (result) {
    check(*result, model);
  } else {
    require(!result.error().message.empty());
    require(result.error().message.find('\n') == std::string::npos);
  }
  return 0;
}
