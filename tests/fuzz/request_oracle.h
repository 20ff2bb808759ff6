// SPDX-License-Identifier: Apache-2.0
// The checks that both fuzzers of requests make: a request that passes must be in range, one that
// does not must carry a one-line message.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "server/api/request_validator.h"
#include "server/tools/families.h"
#include "server/tools/output_families.h"
#include "tests/support/byte_tokenizer.h"

namespace sluice {

inline void require(bool condition) {
  if (!condition) std::abort();
}

inline void check_valid(const GenerationRequest& request, const ModelInfo& model) {
  require(!request.requests.empty());
  for (const ValidRequest& valid : request.requests) {
    const size_t prompt_tokens = valid.prompt.size();
    for (const TokenId id : valid.prompt) require(id >= 0 && id < model.vocab_size);
    for (const TokenId id : valid.prediction) require(id >= 0 && id < model.vocab_size);
    require(static_cast<int64_t>(valid.prediction.size()) <= model.max_model_len);
    require(request.has_prediction || valid.prediction.empty());
    const SamplingParams& sampling = valid.sampling;
    require(prompt_tokens >= 1);
    require(sampling.max_tokens >= 1);
    require(static_cast<int64_t>(prompt_tokens) + sampling.max_tokens <= model.max_model_len);
    require(sampling.min_tokens <= sampling.max_tokens);
    require(sampling.temperature >= 0 && sampling.temperature <= 2);
    require(sampling.top_p >= 0 && sampling.top_p <= 1);
    require(sampling.min_p >= 0 && sampling.min_p <= 1);
    require(sampling.num_logprobs >= -1 && sampling.num_logprobs <= 20);
    require(std::abs(sampling.presence_penalty) <= 2 && std::abs(sampling.frequency_penalty) <= 2);
    require(sampling.repetition_penalty > 0 && sampling.repetition_penalty <= 100);
    for (const LogitBias& entry : sampling.logit_bias) {
      require(entry.token >= 0 && entry.token < model.vocab_size);
      require(std::abs(entry.bias) <= 100);
    }
    require(std::is_sorted(sampling.allowed_token_ids.begin(), sampling.allowed_token_ids.end()));
    for (const TokenId id : sampling.allowed_token_ids) {
      require(id >= 0 && id < model.vocab_size);
    }
    for (const auto& word : sampling.bad_words) require(!word.empty());
  }
  for (const std::string& stop : request.stop.strings) require(!stop.empty());
  require(request.num_returned >= 1 && request.num_returned <= request.num_choices);
  require(request.requests.size() % static_cast<size_t>(request.num_choices) == 0);
}

// Constant over all inputs.
inline const ValidationContext& fuzz_context() {
  static const Config config;
  static const ByteTokenizer tokenizer;
  static const std::vector<std::string> names = {"m"};
  static const ModelInfo model = [] {
    ModelInfo info;
    info.vocab_size = ByteTokenizer::kVocabSize;
    info.max_model_len = 4096;
    return info;
  }();
  // It takes content as parts alone and arguments as objects alone, so that others are fitted.
  static const auto chat_template = ChatTemplate::compile(
      "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m['content'] %}{{ p['text'] }}"
      "{% endfor %}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
      "{% for k, v in c.function.arguments | items %}{{ k }}{{ v }}{% endfor %}{% endfor %}"
      "<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  require(chat_template.has_value() && chat_template->forms().object_arguments);
  require(chat_template->forms().prints_tools);
  static const OutputFamilies families = [] {
    OutputFamilies chosen;
    chosen.calls = find_call_family("hermes");
    chosen.format = resolve_format(chosen.calls, find_reasoning_family("qwen3"), tokenizer);
    return chosen;
  }();
  static const ValidationContext context{
      config, model, tokenizer, chat_template, names, 1, 0, {}, &families};
  return context;
}

// Clients choose the names: nothing but visible ASCII, and not much of it.
inline void check_header_value(const IgnoredArguments& ignored) {
  const std::string value = ignored.header_value();
  require(value.empty() == (ignored.size() == 0));
  require(value.size() < 4096);
  for (const char c : value) require(c >= ' ' && c <= '~' && c != '"');
}

inline void judge(const Expected<GenerationRequest>& result) {
  if (result) return check_valid(*result, fuzz_context().model);
  require(!result.error().message.empty());
  require(result.error().message.find('\n') == std::string::npos);
}

}  // namespace sluice
