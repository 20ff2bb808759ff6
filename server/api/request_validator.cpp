// SPDX-License-Identifier: Apache-2.0
#include "server/api/request_validator.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/config.h"
#include "server/api/known_members.h"
#include "server/api/prediction_tokens.h"
#include "server/api/reasoning_limit.h"
#include "server/api/token_rules.h"
#include "server/front/choice_seed.h"
#include "server/front/kv_params.h"
#include "server/http/api_errors.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/keys/digest.h"
#include "server/prompt/prompt.h"
#include "server/tools/answer_grammar.h"
#include "server/tools/output_families.h"
#include "server/tools/structured_outputs.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxStopStringBytes = 1024;
constexpr int32_t kDefaultCompletionTokens = 16;

// The client's seed; null: the server chooses, which clients of vLLM and llama.cpp ask for with -1.
const Json* find_seed(const Json& body) {
  const Json* seed = find_field(body, "seed");
  return seed != nullptr && *seed == -1 ? nullptr : seed;
}

Expected<void> read_sampling_field(const Json& body,
                                   const SamplingField& field,
                                   SamplingParams& sampling) {
  const Json* value = find_field(body, field.name);
  if (value == nullptr) return {};
  const std::string name(field.name);
  switch (field.kind) {
    case ParamKind::kBoolean: {
      SLUICE_TRY(const bool flag, read_bool(body, name, false));
      return set_sampling_field(sampling, field, flag ? 1 : 0);
    }
    case ParamKind::kInteger: {
      SLUICE_TRY(const int64_t number,
                 to_integer(*value,
                            name,
                            std::numeric_limits<int64_t>::min(),
                            std::numeric_limits<int64_t>::max()));
      return set_sampling_integer(sampling, field, number);
    }
    case ParamKind::kNumber:
      break;
  }
  if (!value->is_number()) {
    return invalid(name + " must be a number, got " + show_value(*value) + ".", name);
  }
  return set_sampling_field(sampling, field, value->get<double>());
}

// Everything in the table but max_tokens, which needs the prompt's length.
Expected<SamplingParams> read_sampling(const ValidationContext& context, const Json& body) {
  SamplingParams sampling = context.model.sampling;
  sampling.seed = context.unset_seed;
  for (const SamplingField& field : sampling_fields()) {
    if (field.name == "max_tokens") continue;
    if (field.name == "seed" && find_seed(body) == nullptr) continue;
    SLUICE_TRY_VOID(read_sampling_field(body, field, sampling));
  }
  SLUICE_TRY_VOID(read_token_rules(context, body, sampling));
  return sampling;
}

// A number of alternatives; clients of vLLM also send false for none.
Expected<std::optional<int64_t>> read_count(const Json& body, std::string_view name, int64_t max) {
  const Json* value = find_field(body, name);
  if (value != nullptr && *value == false) return std::optional<int64_t>();
  return read_integer(body, name, 0, max);
}

Expected<void> read_logprobs(const ValidationContext& context,
                             const Json& body,
                             Endpoint endpoint,
                             SamplingParams& sampling) {
  const int64_t max_logprobs = context.config.max_logprobs;
  if (endpoint == Endpoint::kCompletion) {
    SLUICE_TRY(const auto count, read_count(body, "logprobs", max_logprobs));
    if (count) sampling.num_logprobs = static_cast<int32_t>(*count);
    return {};
  }
  SLUICE_TRY(const bool wanted, read_bool(body, "logprobs", false));
  SLUICE_TRY(const auto count, read_count(body, "top_logprobs", max_logprobs));
  if (count && !wanted && *count > 0) {
    return invalid("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs");
  }
  if (wanted) sampling.num_logprobs = static_cast<int32_t>(count.value_or(0));
  return {};
}

// `return_tokens_as_token_ids` says how logprobs name tokens; without them it changes nothing.
Expected<void> check_token_names(const Json& body, const GenerationRequest& request) {
  SLUICE_TRY(const bool as_ids, read_bool(body, "return_tokens_as_token_ids", false));
  if (!as_ids || !request.wants_logprobs) return {};
  return make_error(ErrorCode::kUnsupported,
                    "`return_tokens_as_token_ids` is not supported; leave it out.",
                    "return_tokens_as_token_ids");
}

Expected<std::vector<std::string>> read_stop(const ValidationContext& context, const Json& body) {
  std::vector<std::string> strings;
  const Json* stop = find_field(body, "stop");
  if (stop == nullptr) return strings;
  if (!stop->is_string() && !stop->is_array()) {
    return invalid("stop must be a string or an array of strings, got " + show_value(*stop) + ".",
                   "stop");
  }
  const Json list = stop->is_string() ? Json::array({*stop}) : *stop;
  if (static_cast<int64_t>(list.size()) > context.config.max_stop_strings) {
    return invalid("stop may have at most " + std::to_string(context.config.max_stop_strings) +
                       " strings, got " + std::to_string(list.size()) + ".",
                   "stop");
  }
  for (const Json& item : list) {
    if (!item.is_string() || item.get_ref<const std::string&>().empty()) {
      return invalid("stop strings must be non-empty strings, got " + show_value(item) + ".",
                     "stop");
    }
    const auto& text = item.get_ref<const std::string&>();
    if (text.size() > kMaxStopStringBytes) {
      return invalid("A stop string may have at most " + std::to_string(kMaxStopStringBytes) +
                         " bytes, got " + std::to_string(text.size()) + ".",
                     "stop");
    }
    strings.push_back(text);
  }
  return strings;
}

Expected<void> read_stream_options(const Json& body, GenerationRequest& request) {
  SLUICE_TRY(request.stream, read_bool(body, "stream", false));
  const Json* options = find_field(body, "stream_options");
  if (options == nullptr) return {};
  if (!options->is_object()) {
    return invalid("stream_options must be an object, got " + show_value(*options) + ".",
                   "stream_options");
  }
  if (!request.stream && !asks_nothing(*options)) {
    return invalid("Stream options can only be defined when `stream=True`.", "stream_options");
  }
  // Obfuscation pads chunks against observers of an encrypted stream's sizes: it changes no answer,
  // and is left out.
  SLUICE_TRY_VOID(read_bool(*options, "include_obfuscation", false));
  SLUICE_TRY(request.include_usage, read_bool(*options, "include_usage", false));
  SLUICE_TRY(request.continuous_usage_stats, read_bool(*options, "continuous_usage_stats", false));
  request.continuous_usage_stats = request.continuous_usage_stats && request.include_usage;
  return {};
}

// The client's limit, or nothing. 0 is for requests that want the echoed prompt alone, or with
// Messages its computation; the engine generates one token all the same.
Expected<std::optional<int32_t>> read_max_tokens(const ValidationContext& context,
                                                 const Json& body,
                                                 Endpoint endpoint,
                                                 GenerationRequest& out) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  SLUICE_TRY(const bool may_be_zero,
             endpoint == Endpoint::kCompletion
                 ? read_bool(body, "echo", false)
                 : Expected<bool>(context.dialect == Dialect::kMessages));
  SLUICE_TRY(auto limit, read_integer(body, "max_tokens", may_be_zero ? 0 : 1, kMax));
  out.only_echo = limit == 0;
  if (out.only_echo) return std::optional<int32_t>(1);
  SLUICE_TRY(const auto newer, read_integer(body, "max_completion_tokens", 1, kMax));
  if (newer) limit = newer;
  if (!limit) return std::optional<int32_t>();
  return std::optional<int32_t>(static_cast<int32_t>(*limit));
}

Expected<int32_t> resolve_max_tokens(const ValidationContext& context,
                                     std::optional<int32_t> limit,
                                     int64_t prompt_tokens,
                                     GenerationRequest& out) {
  const Endpoint endpoint = out.endpoint;
  const int64_t room = context.model.max_model_len - prompt_tokens;
  const int64_t bound = context.model.max_output_tokens;
  if (context.dialect == Dialect::kMessages && room >= 1 && limit.value_or(1) > room) {
    out.fills_context = bound == 0 || room <= bound;
    limit = static_cast<int32_t>(room);
  }
  if (limit.value_or(1) > room) {
    const auto asked = out.only_echo ? std::optional<int64_t>() : std::optional<int64_t>(limit);
    return tl::unexpected(context_length_error(
        context, asked, prompt_tokens, endpoint == Endpoint::kChat ? "messages" : "prompt"));
  }
  const int64_t most = bound > 0 ? std::min(room, bound) : room;
  if (limit) return static_cast<int32_t>(std::min<int64_t>(*limit, most));
  if (endpoint == Endpoint::kChat || context.fills_context) return static_cast<int32_t>(most);
  return static_cast<int32_t>(std::min<int64_t>(kDefaultCompletionTokens, most));
}

Expected<void> read_num_choices(const ValidationContext& context,
                                const Json& body,
                                GenerationRequest& out) {
  const int32_t most = context.config.max_n;
  SLUICE_TRY(const auto num_choices, read_integer(body, "n", 1, most));
  out.num_returned = static_cast<int32_t>(num_choices.value_or(1));
  SLUICE_TRY(const auto best_of, read_integer(body, "best_of", 1, most));
  out.num_choices = static_cast<int32_t>(best_of.value_or(out.num_returned));
  if (out.num_choices < out.num_returned) {
    return invalid("best_of must be at least n (" + std::to_string(out.num_returned) + "), got " +
                       std::to_string(out.num_choices) + ".",
                   "best_of");
  }
  if (out.num_choices > out.num_returned && out.stream) {
    return invalid("best_of beyond n cannot be streamed.", "best_of");
  }
  return {};
}

// `echo` and `prompt_logprobs`: what the answer says about the prompt.
Expected<void> read_prompt_output(const ValidationContext& context,
                                  const Json& body,
                                  const std::vector<std::vector<TokenId>>& prompts,
                                  const std::vector<bool>& is_cut,
                                  SamplingParams& sampling,
                                  GenerationRequest& out) {
  SLUICE_TRY(const auto count, read_count(body, "prompt_logprobs", context.config.max_logprobs));
  if (count && out.stream) {
    return invalid("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs");
  }
  if (count) out.num_prompt_logprobs = static_cast<int32_t>(*count);
  SLUICE_TRY(const bool echo, read_bool(body, "echo", false));
  if (echo) {
    out.echoed = prompt_texts(context.tokenizer, body, prompts, is_cut);
    if (out.wants_logprobs) out.num_echoed_logprobs = sampling.num_logprobs;
  }
  sampling.num_prompt_logprobs = std::max(out.num_prompt_logprobs, out.num_echoed_logprobs);
  if (sampling.num_prompt_logprobs < 0) return {};
  int64_t total = 0;
  for (const auto& prompt : prompts) {
    total += static_cast<int64_t>(prompt.size()) * (1 + sampling.num_prompt_logprobs);
  }
  if (out.num_echoed_logprobs >= 0) total *= out.num_choices;
  if (total > context.config.max_prompt_logprobs) {
    return invalid("The log-probabilities of all prompts may be at most " +
                       std::to_string(context.config.max_prompt_logprobs) + " values, got " +
                       std::to_string(total) + "; ask for fewer alternatives or prompts at once.",
                   count ? "prompt_logprobs" : "logprobs");
  }
  return {};
}

// What a request says of how its answer is computed, which changes no token of it.
Expected<void> read_speculation(const ValidationContext& context,
                                const Json& body,
                                ValidRequest& out) {
  SLUICE_TRY(out.speculative, read_bool(body, "speculative", true));
  SLUICE_TRY(out.prediction, read_prediction(body, context.tokenizer, context.model.max_model_len));
  return {};
}

// What a request says of its place in the queue.
Expected<void> read_turn(const Json& body, ValidRequest& out) {
  constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  SLUICE_TRY(const auto priority, read_integer(body, "priority", kMin, kMax));
  SLUICE_TRY(const auto max_wait, read_integer(body, "max_queue_wait_ms", 1, kMax));
  out.priority = static_cast<int32_t>(priority.value_or(0));
  out.max_queue_wait_ms = static_cast<int32_t>(max_wait.value_or(0));
  return {};
}

// `cache_salt` sets requests apart from others of the same tenant: a digest, so that no salt leads
// to what another tenant has.
uint64_t narrowed_salt(uint64_t tenant_salt, const std::string& salt) {
  std::string bytes(reinterpret_cast<const char*>(&tenant_salt), sizeof tenant_salt);
  bytes += salt;
  return salt_of(digest_of(bytes));
}

}  // namespace

Expected<uint64_t> read_cache_salt(const ValidationContext& context, const Json& body) {
  constexpr size_t kMaxSaltBytes = 128;
  const Json* salt = find_field(body, "cache_salt");
  if (salt == nullptr) return context.tenant_salt;
  const std::string text = salt->is_string() ? salt->get<std::string>() : "";
  const bool is_plain = text.find_first_of(std::string_view("@/\\\0", 4)) == std::string::npos;
  if (text.empty() || text.size() > kMaxSaltBytes || !is_plain) {
    return invalid("cache_salt must be a string of 1 to 128 bytes without @, /, \\ and NUL, got " +
                       show_value(*salt) + ".",
                   "cache_salt");
  }
  return narrowed_salt(context.tenant_salt, text);
}

namespace {

// What a request says of how its KV is cached.
Expected<void> read_caching(const ValidationContext& context, const Json& body, ValidRequest& out) {
  SLUICE_TRY(out.tenant_salt, read_cache_salt(context, body));
  if (const Json* retention = find_field(body, "prompt_cache_retention")) {
    if (*retention != "in_memory" && *retention != "in-memory" && *retention != "24h") {
      return invalid("prompt_cache_retention must be one of in_memory, 24h, got " +
                         show_value(*retention) + ".",
                     "prompt_cache_retention");
    }
    out.keeps_prompt = *retention == "24h";
  }
  return {};
}

// The prompt of a chat, and how its answer is read. `sampling` gets its limit of reasoning.
// `grammar`: what the answer must be without calls, then with them.
Expected<std::vector<std::vector<TokenId>>> read_chat(const ValidationContext& context,
                                                      const Json& body,
                                                      SamplingParams& sampling,
                                                      GrammarSpec& grammar,
                                                      GenerationRequest& out) {
  SLUICE_TRY(ChatPrompt prompt, chat_prompt(context, body));
  SLUICE_TRY(out.tools, read_tool_plan(context, body));
  if (out.tools.must_call) {
    // A format constrains text that is not a call, and this answer has none.
    SLUICE_TRY(grammar, forced_calls_grammar(context, body, out.tools, prompt.tail));
  } else if (out.tools.parses_calls) {
    SLUICE_TRY(grammar,
               free_calls_grammar(context, body, out.tools, prompt.tail, std::move(grammar)));
  } else {
    SLUICE_TRY(grammar, place_format(context, prompt.tail, std::move(grammar)));
  }
  out.tools.binds_calls = out.tools.parses_calls && grammar.is_set();
  SLUICE_TRY(sampling.reasoning_limit, read_reasoning_limit(context, body, prompt.tail));
  SLUICE_TRY(out.include_reasoning, read_bool(body, "include_reasoning", true));
  if (const Json* reasoning = find_field(body, "reasoning")) {
    SLUICE_TRY(const bool is_excluded, read_bool(*reasoning, "exclude", false));
    out.include_reasoning = out.include_reasoning && !is_excluded;
  }
  if (context.families != nullptr) out.output_format = context.families->format;
  out.prompt_tail = std::move(prompt.tail);
  std::vector<std::vector<TokenId>> prompts;
  prompts.push_back(std::move(prompt.ids));
  return prompts;
}

// `common`: what is the same in all requests of the body.
Expected<void> add_requests(const ValidationContext& context,
                            const ValidRequest& common,
                            std::optional<int32_t> limit,
                            const std::vector<std::vector<TokenId>>& prompts,
                            GenerationRequest& out) {
  const int64_t total = static_cast<int64_t>(prompts.size()) * out.num_choices;
  if (total > context.config.max_num_queued_reqs) {
    return invalid("Prompts times n must be at most " +
                       std::to_string(context.config.max_num_queued_reqs) + ", got " +
                       std::to_string(total) + ".",
                   "n");
  }
  for (const auto& prompt : prompts) {
    ValidRequest request = common;
    SLUICE_TRY(request.sampling.max_tokens,
               resolve_max_tokens(context, limit, static_cast<int64_t>(prompt.size()), out));
    SLUICE_TRY_VOID(validate(request.sampling));
    request.prompt = prompt;
    for (int32_t k = 0; k < out.num_choices; ++k) {
      request.sampling.seed = choice_seed(common.sampling.seed, static_cast<uint64_t>(k));
      // What is not echoed is answered once for each prompt.
      if (k > 0 && out.num_echoed_logprobs < 0) request.sampling.num_prompt_logprobs = -1;
      out.requests.push_back(request);
    }
  }
  return {};
}

// The first choice of each handoff's prompt, or each choice where there are so many.
Expected<size_t> choices_per_handoff(const KvParams& params, const GenerationRequest& out) {
  if (!params.is_list) return out.requests.size();
  const size_t count = params.handoffs.size();
  const auto per_prompt = static_cast<size_t>(out.num_choices);
  if (count == out.requests.size()) return size_t{1};
  if (count == out.requests.size() / per_prompt) return per_prompt;
  return invalid("bootstrap_room must have an item for each prompt (" +
                     std::to_string(out.requests.size() / per_prompt) + ") or choice (" +
                     std::to_string(out.requests.size()) + "), got " + std::to_string(count) + ".",
                 "bootstrap_room");
}

Expected<void> add_handoffs(const ValidationContext& context,
                            const Json& body,
                            GenerationRequest& out) {
  SLUICE_TRY(const KvParams params, read_kv_params(body));
  if (params.handoffs.empty()) return {};
  SLUICE_TRY(const size_t stride, choices_per_handoff(params, out));
  const bool has_seed = find_seed(body) != nullptr;
  for (size_t i = 0; i < params.handoffs.size(); ++i) {
    ValidRequest& request = out.requests[i * stride];
    ResolvedHandoff resolved = resolve_handoff(params.handoffs[i],
                                               request.prompt,
                                               request.sampling.num_prompt_logprobs >= 0,
                                               {context.role, context.model.handoff});
    if (resolved.fallback) ++out.fallbacks[static_cast<size_t>(*resolved.fallback)];
    if (resolved.makes_one_token) {
      request.sampling.max_tokens = 1;
      request.sampling.min_tokens = std::min(request.sampling.min_tokens, 1);
    }
    if (resolved.seed && !has_seed) out.seed = *resolved.seed;
    request.handoff = std::move(resolved.spec);
    if (request.handoff) {
      request.handoff->adopts_seed = !has_seed && request.handoff->kind == HandoffKind::kFetch &&
                                     request.handoff->mode == HandoffMode::kConcurrent;
    }
  }
  for (size_t i = 0; i < out.requests.size(); ++i) {
    const size_t k = i % static_cast<size_t>(out.num_choices);
    out.requests[i].sampling.seed = choice_seed(out.seed, k);
  }
  return {};
}

}  // namespace

void charge_to(GenerationRequest& request, const std::shared_ptr<TenantLease>& lease) {
  request.lease = lease;
  for (ValidRequest& choice : request.requests) choice.tenant = lease->tenant().id();
}

int64_t num_prompt_tokens(const GenerationRequest& request) {
  int64_t sum = 0;
  for (size_t i = 0; i < request.requests.size(); i += static_cast<size_t>(request.num_choices)) {
    sum += static_cast<int64_t>(request.requests[i].prompt.size());
  }
  return sum;
}

Expected<std::string> resolve_model(const std::vector<std::string>& model_names, const Json& body) {
  const Json* model = find_field(body, "model");
  if (model == nullptr) return model_names.front();
  if (!model->is_string()) {
    return invalid("model must be a string, got " + show_value(*model) + ".", "model");
  }
  const auto& name = model->get_ref<const std::string&>();
  if (name.empty()) return model_names.front();
  if (std::find(model_names.begin(), model_names.end(), name) == model_names.end()) {
    return make_error(ErrorCode::kNotFound,
                      "The model `" + show_text(name) + "` does not exist.",
                      "model",
                      std::string(kModelNotFound));
  }
  return name;
}

Expected<GenerationRequest> validate_generation(const ValidationContext& context,
                                                std::string_view body_text,
                                                Endpoint endpoint,
                                                IgnoredArguments& ignored) {
  SLUICE_TRY(Json body, parse_body(body_text, context.config.max_json_depth));
  return validate_parameters(context, body, endpoint, ignored);
}

Expected<GenerationRequest> validate_parameters(const ValidationContext& context,
                                                Json& body,
                                                Endpoint endpoint,
                                                IgnoredArguments& ignored) {
  if (context.model.pooling) {
    return make_error(ErrorCode::kUnsupported,
                      "The model `" + context.model_names.front() + "` makes " +
                          (context.model.pooling->is_classifier ? "scores" : "vectors") +
                          " and generates no tokens.",
                      "model");
  }
  SLUICE_TRY_VOID(check_parameters(body, endpoint, ignored));

  GenerationRequest out;
  out.endpoint = endpoint;
  out.served = context.served;
  SLUICE_TRY(out.model, resolve_model(context.model_names, body));
  SLUICE_TRY_VOID(read_stream_options(body, out));
  SLUICE_TRY(out.stop.strings, read_stop(context, body));
  SLUICE_TRY(out.stop.include_in_output, read_bool(body, "include_stop_str_in_output", false));
  SLUICE_TRY(out.skip_special_tokens, read_bool(body, "skip_special_tokens", true));
  SLUICE_TRY(out.return_token_ids, read_bool(body, "return_token_ids", false));
  SLUICE_TRY_VOID(read_num_choices(context, body, out));
  ValidRequest common;
  common.arrival = context.arrival;
  SLUICE_TRY_VOID(read_turn(body, common));
  SLUICE_TRY_VOID(read_caching(context, body, common));
  SLUICE_TRY_VOID(read_speculation(context, body, common));
  out.has_prediction = find_field(body, "prediction") != nullptr;
  SLUICE_TRY(common.sampling, read_sampling(context, body));
  SamplingParams& sampling = common.sampling;
  SLUICE_TRY_VOID(read_logprobs(context, body, endpoint, sampling));
  out.wants_logprobs = sampling.num_logprobs >= 0;
  SLUICE_TRY_VOID(check_token_names(body, out));
  if (out.num_choices > out.num_returned) {
    sampling.num_logprobs = std::max(sampling.num_logprobs, 0);
  }
  out.seed = sampling.seed;
  out.stop.min_tokens = sampling.min_tokens;
  SLUICE_TRY(const auto limit, read_max_tokens(context, body, endpoint, out));
  SLUICE_TRY(GrammarSpec grammar, read_structured_outputs(body));
  SLUICE_TRY(auto prompts,
             endpoint == Endpoint::kChat ? read_chat(context, body, sampling, grammar, out)
                                         : completion_prompts(context, body));
  SLUICE_TRY(const auto is_cut, truncate_prompts(context, body, limit.value_or(1), prompts));
  SLUICE_TRY_VOID(read_prompt_output(context, body, prompts, is_cut, sampling, out));
  if (grammar.is_set()) common.grammar = std::make_shared<const GrammarSpec>(std::move(grammar));
  SLUICE_TRY_VOID(add_requests(context, common, limit, prompts, out));
  SLUICE_TRY_VOID(add_handoffs(context, body, out));
  return out;
}

}  // namespace sluice
