// SPDX-License-Identifier: Apache-2.0
#include "server/parameters.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string>

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

constexpr Parameter implemented(std::string_view name, Endpoint endpoints = Endpoint::kBoth) {
  return {name, endpoints, Disposition::kImplemented, never};
}

constexpr Parameter ignored(std::string_view name) {
  return {name, Endpoint::kBoth, Disposition::kIgnored, never};
}

constexpr Parameter neutral(std::string_view name,
                            bool (*is_neutral)(const Json&),
                            Endpoint endpoints = Endpoint::kBoth) {
  return {name, endpoints, Disposition::kNeutralOnly, is_neutral};
}

constexpr std::array kParameters = {
    implemented("model"),
    implemented("messages", Endpoint::kChat),
    implemented("prompt", Endpoint::kCompletion),
    implemented("max_tokens"),
    implemented("max_completion_tokens", Endpoint::kChat),
    implemented("temperature"),
    implemented("top_p"),
    implemented("top_k"),
    implemented("min_p"),
    implemented("seed"),
    implemented("stop"),
    implemented("stop_token_ids"),
    implemented("presence_penalty"),
    implemented("frequency_penalty"),
    implemented("repetition_penalty"),
    implemented("logit_bias"),
    implemented("bad_words"),
    implemented("allowed_token_ids"),
    implemented("min_tokens"),
    implemented("ignore_eos"),
    implemented("include_stop_str_in_output"),
    implemented("skip_special_tokens"),
    implemented("logprobs"),
    implemented("top_logprobs", Endpoint::kChat),
    implemented("n"),
    implemented("stream"),
    implemented("stream_options"),
    implemented("add_generation_prompt", Endpoint::kChat),
    implemented("continue_final_message", Endpoint::kChat),
    implemented("chat_template_kwargs", Endpoint::kChat),
    implemented("reasoning_effort", Endpoint::kChat),
    implemented("add_special_tokens"),
    implemented("return_token_ids"),
    implemented("truncate_prompt_tokens"),
    implemented("truncation_side"),
    implemented("echo", Endpoint::kCompletion),
    implemented("priority"),

    ignored("user"),
    ignored("safety_identifier"),
    ignored("metadata"),
    ignored("store"),
    ignored("service_tier"),
    ignored("prompt_cache_key"),
    ignored("prompt_cache_retention"),
    ignored("prompt_cache_options"),
    ignored("moderation"),
    ignored("prediction"),
    ignored("verbosity"),
    ignored("request_id"),
    ignored("session_id"),

    neutral("length_penalty", is_one),
    neutral("use_beam_search", is_false),
    neutral("best_of", is_one),
    neutral("response_format", is_text_format),
    neutral("structured_outputs", never),
    neutral("guided_json", never),
    neutral("guided_regex", never),
    neutral("guided_choice", never),
    neutral("guided_grammar", never),
    neutral("guided_whitespace_pattern", never),
    neutral("guided_decoding_backend", never),
    neutral("tools", never, Endpoint::kChat),
    neutral("tool_choice", is_none, Endpoint::kChat),
    neutral("parallel_tool_calls", is_bool, Endpoint::kChat),
    neutral("functions", is_empty_array, Endpoint::kChat),
    neutral("function_call", is_none, Endpoint::kChat),
    neutral("modalities", is_text_only, Endpoint::kChat),
    neutral("audio", never, Endpoint::kChat),
    neutral("web_search_options", never, Endpoint::kChat),
    neutral("documents", is_empty_array, Endpoint::kChat),
    neutral("chat_template", never, Endpoint::kChat),
    neutral("media_io_kwargs", is_empty_object, Endpoint::kChat),
    neutral("mm_processor_kwargs", is_empty_object, Endpoint::kChat),
    neutral("include_reasoning", is_true, Endpoint::kChat),
    neutral("thinking_token_budget", never, Endpoint::kChat),
    neutral("suffix", is_empty_string, Endpoint::kCompletion),
    neutral("echo", is_false, Endpoint::kChat),
    neutral("prompt_logprobs", never),
    neutral("logprob_token_ids", is_empty_array),
    neutral("spaces_between_special_tokens", is_true),
    neutral("return_tokens_as_token_ids", is_false),
    neutral("return_prompt_text", is_false),
    neutral("cache_salt", never),
    neutral("kv_transfer_params", never),
    neutral("ec_transfer_params", never),
    neutral("vllm_xargs", is_empty_object),
    neutral("repetition_detection", never),
    neutral("stream_interval", is_one),
};

const Parameter* find_parameter(std::string_view name, Endpoint endpoint) {
  for (const Parameter& parameter : kParameters) {
    if (parameter.name != name) continue;
    const auto mask = static_cast<unsigned>(parameter.endpoints) & static_cast<unsigned>(endpoint);
    if (mask != 0) return &parameter;
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
                        "Unrecognized request argument: `" + name.substr(0, 64) + "`.",
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
