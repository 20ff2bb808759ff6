// SPDX-License-Identifier: Apache-2.0
#include "server/parameters.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/core/config.h"
#include "server/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

bool never(const Json&) { return false; }

bool is_one(const Json& v) { return v.is_number() && v.get<double>() == 1; }

bool is_false(const Json& v) { return v.is_boolean() && !v.get<bool>(); }

bool is_true(const Json& v) { return v.is_boolean() && v.get<bool>(); }

bool is_bool(const Json& v) { return v.is_boolean(); }

bool is_empty_array(const Json& v) { return v.is_array() && v.empty(); }

bool is_empty_object(const Json& v) { return v.is_object() && v.empty(); }

bool is_empty_string(const Json& v) {
  return v.is_string() && v.get_ref<const std::string&>().empty();
}

bool is_none(const Json& v) { return v.is_string() && v.get_ref<const std::string&>() == "none"; }

bool is_text_only(const Json& v) { return v.is_array() && v.size() == 1 && v[0] == "text"; }

bool is_text_format(const Json& v) {
  return v.is_object() && v.size() == 1 && v.contains("type") && v["type"] == "text";
}

struct Neutral {
  bool (*holds)(const Json&);
  std::string_view schema;
};

constexpr Neutral kNever = {never, R"("type":"null")"};
constexpr Neutral kOne = {is_one, R"("const":1)"};
constexpr Neutral kFalse = {is_false, R"("const":false)"};
constexpr Neutral kTrue = {is_true, R"("const":true)"};
constexpr Neutral kAnyBool = {is_bool, R"("type":"boolean")"};
constexpr Neutral kEmptyArray = {is_empty_array, R"("type":"array","maxItems":0)"};
constexpr Neutral kEmptyObject = {is_empty_object, R"("type":"object","maxProperties":0)"};
constexpr Neutral kEmptyString = {is_empty_string, R"("const":"")"};
constexpr Neutral kNone = {is_none, R"("const":"none")"};
constexpr Neutral kTextOnly = {is_text_only, R"("const":["text"])"};
constexpr Neutral kTextFormat = {is_text_format, R"("const":{"type":"text"})"};

constexpr std::string_view kText = R"("type":"string")";
constexpr std::string_view kBool = R"("type":"boolean")";
constexpr std::string_view kObject = R"("type":"object")";
constexpr std::string_view kCount = R"("type":"integer","minimum":0)";
constexpr std::string_view kAtLeastOne = R"("type":"integer","minimum":1)";
constexpr std::string_view kTokenIds = R"("type":"array","items":{"type":"integer","minimum":0})";
constexpr std::string_view kMessages =
    R"("type":"array","minItems":1,"items":{"type":"object","required":["role"],"properties":{"role":)"
    R"({"type":"string","minLength":1},"content":{"anyOf":[)"
    R"({"type":"string"},{"type":"null"},{"type":"array","items":{"type":"object","required":)"
    R"(["type","text"],"properties":{"type":{"const":"text"},"text":{"type":"string"}}}}]}}})";
constexpr std::string_view kPrompt =
    R"("anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"string"}},)"
    R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0}},{"type":"array",)"
    R"("minItems":1,"items":{"type":"array","minItems":1,"items":{"type":"integer","minimum":0}}}])";
constexpr std::string_view kStop =
    R"("anyOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string",)"
    R"("minLength":1}}])";
constexpr std::string_view kLogitBias =
    R"("type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100})";
constexpr std::string_view kStreamOptions =
    R"("type":"object","properties":{"include_usage":{"type":"boolean"},)"
    R"("continuous_usage_stats":{"type":"boolean"}})";

constexpr Parameter implemented(std::string_view name,
                                std::string_view schema,
                                Endpoint endpoints = Endpoint::kBoth,
                                ParameterLimit limit = {}) {
  return {name, endpoints, Disposition::kImplemented, never, schema, limit};
}

// Range and meaning are a row of sampling_fields().
constexpr Parameter sampling(std::string_view name, Endpoint endpoints = Endpoint::kBoth) {
  return {name, endpoints, Disposition::kImplemented, never, {}, {}};
}

constexpr Parameter ignored(std::string_view name) {
  return {name, Endpoint::kBoth, Disposition::kIgnored, never, {}, {}};
}

constexpr Parameter neutral(std::string_view name,
                            const Neutral& value,
                            Endpoint endpoints = Endpoint::kBoth) {
  return {name, endpoints, Disposition::kNeutralOnly, value.holds, value.schema, {}};
}

constexpr std::array kParameters = {
    implemented("model", kText),
    implemented("messages", kMessages, Endpoint::kChat),
    implemented("prompt", kPrompt, Endpoint::kCompletion),
    sampling("max_tokens", Endpoint::kChat),
    implemented("max_tokens", kCount, Endpoint::kCompletion),  // 0: with echo
    implemented("max_completion_tokens", kAtLeastOne, Endpoint::kChat),
    sampling("temperature"),
    sampling("top_p"),
    sampling("top_k"),
    sampling("min_p"),
    sampling("seed"),
    sampling("presence_penalty"),
    sampling("frequency_penalty"),
    sampling("repetition_penalty"),
    sampling("min_tokens"),
    sampling("ignore_eos"),
    implemented("stop", kStop),
    implemented("stop_token_ids", kTokenIds),
    implemented(
        "logit_bias", kLogitBias, Endpoint::kBoth, {&Config::max_logit_bias, "maxProperties"}),
    implemented("bad_words",
                R"("type":"array","items":{"type":"string","pattern":"[^ ]"})",
                Endpoint::kBoth,
                {&Config::max_bad_words, "maxItems"}),
    implemented("allowed_token_ids",
                R"("type":"array","minItems":1,"items":{"type":"integer","minimum":0})"),
    implemented("include_stop_str_in_output", kBool),
    implemented("skip_special_tokens", kBool),
    implemented("logprobs", kBool, Endpoint::kChat),
    implemented("logprobs", kCount, Endpoint::kCompletion, {&Config::max_logprobs, "maximum"}),
    implemented("top_logprobs", kCount, Endpoint::kChat, {&Config::max_logprobs, "maximum"}),
    implemented("prompt_logprobs", kCount, Endpoint::kBoth, {&Config::max_logprobs, "maximum"}),
    implemented("n", kAtLeastOne, Endpoint::kBoth, {&Config::max_n, "maximum"}),
    implemented("best_of", kAtLeastOne, Endpoint::kBoth, {&Config::max_n, "maximum"}),
    implemented("stream", kBool),
    implemented("stream_options", kStreamOptions),
    implemented("add_generation_prompt", kBool, Endpoint::kChat),
    implemented("continue_final_message", kBool, Endpoint::kChat),
    implemented("chat_template_kwargs", kObject, Endpoint::kChat),
    implemented("reasoning_effort", kText, Endpoint::kChat),
    implemented("add_special_tokens", kBool),
    implemented("return_token_ids", kBool),
    implemented("truncate_prompt_tokens", R"("type":"integer","minimum":-1)"),
    implemented("truncation_side", R"("enum":["left","right"])"),
    implemented("echo", kBool, Endpoint::kCompletion),
    implemented("priority", R"("type":"integer","minimum":-2147483648,"maximum":2147483647)"),
    implemented("max_queue_wait_ms", kAtLeastOne),
    implemented("cache_salt",
                R"("type":"string","minLength":1,"maxLength":128,"pattern":"^[^@/\\\\\u0000]+$")"),
    implemented("prompt_cache_retention", R"("enum":["in_memory","in-memory","24h"])"),
    implemented("documents", R"("type":"array","items":{"type":"object"})", Endpoint::kChat),

    ignored("user"),
    ignored("safety_identifier"),
    ignored("metadata"),
    ignored("store"),
    ignored("service_tier"),
    ignored("prompt_cache_key"),
    ignored("prompt_cache_options"),
    ignored("moderation"),
    ignored("prediction"),
    ignored("verbosity"),
    ignored("request_id"),
    ignored("session_id"),

    neutral("length_penalty", kOne),
    neutral("use_beam_search", kFalse),
    neutral("response_format", kTextFormat),
    neutral("structured_outputs", kNever),
    neutral("guided_json", kNever),
    neutral("guided_regex", kNever),
    neutral("guided_choice", kNever),
    neutral("guided_grammar", kNever),
    neutral("guided_whitespace_pattern", kNever),
    neutral("guided_decoding_backend", kNever),
    neutral("tools", kNever, Endpoint::kChat),
    neutral("tool_choice", kNone, Endpoint::kChat),
    neutral("parallel_tool_calls", kAnyBool, Endpoint::kChat),
    neutral("functions", kEmptyArray, Endpoint::kChat),
    neutral("function_call", kNone, Endpoint::kChat),
    neutral("modalities", kTextOnly, Endpoint::kChat),
    neutral("audio", kNever, Endpoint::kChat),
    neutral("web_search_options", kNever, Endpoint::kChat),
    neutral("chat_template", kNever, Endpoint::kChat),
    neutral("media_io_kwargs", kEmptyObject, Endpoint::kChat),
    neutral("mm_processor_kwargs", kEmptyObject, Endpoint::kChat),
    neutral("include_reasoning", kTrue, Endpoint::kChat),
    neutral("thinking_token_budget", kNever, Endpoint::kChat),
    neutral("suffix", kEmptyString, Endpoint::kCompletion),
    neutral("echo", kFalse, Endpoint::kChat),
    neutral("logprob_token_ids", kEmptyArray),
    neutral("spaces_between_special_tokens", kTrue),
    neutral("return_tokens_as_token_ids", kFalse),
    neutral("return_prompt_text", kFalse),
    neutral("kv_transfer_params", kNever),
    neutral("ec_transfer_params", kNever),
    neutral("vllm_xargs", kEmptyObject),
    neutral("repetition_detection", kNever),
    neutral("stream_interval", kOne),
};

const Parameter* find_parameter(std::string_view name, Endpoint endpoint) {
  for (const Parameter& parameter : kParameters) {
    if (parameter.name == name && is_offered(parameter, endpoint)) return &parameter;
  }
  return nullptr;
}

}  // namespace

std::span<const Parameter> request_parameters() { return kParameters; }

Expected<void> check_parameters(const Json& body, Endpoint endpoint) {
  for (const auto& [name, value] : body.items()) {
    const Parameter* parameter = find_parameter(name, endpoint);
    if (parameter == nullptr) {
      return make_error(ErrorCode::kInvalidArgument,
                        "Unrecognized request argument: `" + show_text(name) + "`.",
                        name.substr(0, 64));
    }
    if (parameter->disposition != Disposition::kNeutralOnly || value.is_null()) continue;
    if (name == "tools" && is_empty_array(value)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "`tools` must not be an empty array. Either provide at least one tool or "
                        "omit the field entirely.",
                        name);
    }
    if (!parameter->is_neutral(value)) {
      return make_error(
          ErrorCode::kUnsupported, "`" + name + "` is not supported; leave it out.", name);
    }
  }
  return {};
}

}  // namespace sluice
