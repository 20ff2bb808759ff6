// SPDX-License-Identifier: Apache-2.0
#include "server/api/parameters.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/core/config.h"
#include "server/api/known_members.h"
#include "server/front/ignored_arguments.h"
#include "server/json/json_fields.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

bool never(const Json&) { return false; }

bool always(const Json&) { return true; }

bool is_text(const Json& v) { return v.is_string(); }

bool is_integer(const Json& v) { return v.is_number_integer(); }

bool is_object(const Json& v) { return v.is_object(); }

bool is_one(const Json& v) { return v.is_number() && v.get<double>() == 1; }

bool is_unlimited(const Json& v) { return v == -1; }

bool is_bool(const Json& v) { return v.is_boolean(); }

bool is_true(const Json& v) { return v == true; }

bool is_number(const Json& v) { return v.is_number(); }

bool is_empty_string(const Json& v) {
  return v.is_string() && v.get_ref<const std::string&>().empty();
}

// Without functions, which are refused, the model's own choice is none as well.
bool is_none_or_auto(const Json& v) { return v == "none" || v == "auto"; }

bool is_text_only(const Json& v) { return v.is_array() && v.size() == 1 && v[0] == "text"; }

bool is_null_or_false(const Json& v) { return v.is_null() || v == false; }

struct Neutral {
  bool (*holds)(const Json&);
  std::string_view schema;
  bool empty_asks = false;  // this and the next: as in Parameter
  bool false_asks = false;
};

constexpr Neutral kNever = {never, {}};
constexpr Neutral kNullOnly = {never, {}, /*empty_asks=*/true};
constexpr Neutral kOne = {is_one, R"("const":1)"};
constexpr Neutral kUnlimited = {is_unlimited, R"("const":-1)"};
constexpr Neutral kAnyBool = {is_bool, R"("type":"boolean")"};
constexpr Neutral kTrue = {is_true, R"("const":true)", /*empty_asks=*/true, /*false_asks=*/true};
constexpr Neutral kFalse = {never, R"("const":false)"};
constexpr Neutral kAnyNumber = {is_number, R"("type":"number")"};
constexpr Neutral kEmptyString = {is_empty_string, R"("const":"")"};
constexpr Neutral kNoGrammar = {is_empty_string, R"("const":"")", /*empty_asks=*/true};
constexpr Neutral kNoneOrAuto = {is_none_or_auto, R"("enum":["none","auto"])"};
constexpr Neutral kTextOnly = {is_text_only, R"("const":["text"])"};

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
constexpr std::string_view kTools =
    R"("type":"array","items":{"type":"object","required":["type","function"],)"
    R"("properties":{"type":{"const":"function"},"function":{"type":"object","required":["name"],)"
    R"("properties":{"name":{"type":"string","pattern":"^[A-Za-z0-9_.-]{1,128}$"},"description":)"
    R"({"type":["string","null"]},"parameters":{"type":["object","null"]}}}}})";
constexpr std::string_view kToolChoice = R"("type":["string","object"])";
constexpr std::string_view kMessageBlocks =
    R"("type":"array","minItems":1,"items":{"type":"object","required":["role","content"],)"
    R"("properties":{"role":{"enum":["user","assistant","system"]},"content":{"anyOf":[{"type":"string"},)"
    R"({"type":"array","items":{"type":"object","required":["type"],"properties":{"type":{"enum":)"
    R"(["text","thinking","redacted_thinking","tool_use","tool_result","server_tool_use",)"
    R"("web_search_tool_result","document","search_result"]}}}}]}}})";
constexpr std::string_view kTextOrBlocks =
    R"("anyOf":[{"type":"string"},{"type":"array","items":{"type":"object","required":)"
    R"(["type","text"],"properties":{"type":{"const":"text"},"text":{"type":"string"}}}}])";
constexpr std::string_view kMessageTools =
    R"("type":"array","items":{"type":"object","required":["name","input_schema"],"properties":)"
    R"({"name":{"type":"string","pattern":"^[A-Za-z0-9_.-]{1,128}$"},"description":{"type":"string"},)"
    R"("input_schema":{"type":"object"}}})";
constexpr std::string_view kMessageChoice =
    R"("type":"object","required":["type"],"properties":{"type":{"enum":)"
    R"(["auto","any","tool","none"]},"name":{"type":"string"},)"
    R"("disable_parallel_tool_use":{"type":"boolean"}})";
constexpr std::string_view kThinking =
    R"("type":"object","required":["type"],"properties":{"type":{"enum":)"
    R"(["enabled","disabled","adaptive","between_tools"]},"budget_tokens":{"type":"integer","minimum":)"
    R"(1},"display":{"enum":["summarized","omitted",null]}})";
constexpr std::string_view kInput =
    R"("anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"object",)"
    R"("properties":{"type":{"enum":["message","function_call","function_call_output",)"
    R"("custom_tool_call","custom_tool_call_output","local_shell_call",)"
    R"("local_shell_call_output","reasoning"]}}}}])";
constexpr std::string_view kResponseTools =
    R"("type":"array","items":{"type":"object","required":["type"],"properties":)"
    R"({"type":{"enum":["function","custom","namespace"]},"name":{"type":"string","pattern":)"
    R"("^[A-Za-z0-9_.-]{1,128}$"},)"
    R"("description":{"type":["string","null"]},"parameters":{"type":["object","null"]}}})";
constexpr std::string_view kEffort =
    R"("enum":["none","minimal","low","medium","high","xhigh","max"])";
constexpr std::string_view kSwitch =
    R"("anyOf":[{"type":"boolean"},{"type":"object","properties":{"type":{"enum":["enabled",)"
    R"("disabled","adaptive"]}}}])";
constexpr std::string_view kReasoningSwitch =
    R"("type":"object","properties":{"enabled":{"type":["boolean","null"]},"effort":{"enum":)"
    R"(["none","minimal","low","medium","high","xhigh","max",null]},"exclude":{"type":)"
    R"(["boolean","null"]}})";
constexpr std::string_view kReasoning =
    R"("type":"object","properties":{"effort":{"enum":["none","minimal","low","medium","high",)"
    R"("xhigh","max",null]},)"
    R"("summary":{"type":["string","null"]}})";
constexpr std::string_view kTextSettings =
    R"("type":"object","properties":{"format":{"type":["object","null"],"required":["type"],)"
    R"("properties":{"type":{"enum":["text","json_object","json_schema","structural_tag"]}}}})";
constexpr std::string_view kPrompt =
    R"("anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"string"}},)"
    R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0}},{"type":"array",)"
    R"("minItems":1,"items":{"type":"array","minItems":1,"items":{"type":"integer","minimum":0}}}])";
constexpr std::string_view kTextOrList =
    R"("anyOf":[{"type":"string"},{"type":"array","items":{"type":["string","null"]}}])";
constexpr std::string_view kTexts =
    R"("anyOf":[{"type":"string"},{"type":"array","minItems":1,"items":{"type":"string"}}])";
constexpr std::string_view kPortOrList =
    R"("anyOf":[{"type":"integer","minimum":1,"maximum":65535},{"type":"array","items":{"type":)"
    R"(["integer","null"],"minimum":1,"maximum":65535}}])";
constexpr std::string_view kCountOrList =
    R"("anyOf":[{"type":"integer","minimum":0},{"type":"array","items":{"type":"integer",)"
    R"("minimum":0}}])";
constexpr std::string_view kStop =
    R"("anyOf":[{"type":"string","minLength":1},{"type":"array","items":{"type":"string",)"
    R"("minLength":1}}])";
constexpr std::string_view kLogitBias =
    R"("type":"object","additionalProperties":{"type":"number","minimum":-100,"maximum":100})";
constexpr std::string_view kResponseFormat =
    R"("type":"object","required":["type"],"oneOf":[{"properties":{"type":{"enum":["text",)"
    R"("json_object"]}}},{"required":["json_schema"],"properties":{"type":{"const":"json_schema"},)"
    R"("json_schema":{"type":"object","required":["name","schema"],"properties":{"name":{"type":)"
    R"("string","minLength":1,"maxLength":64},"schema":{"type":["object","boolean"]},"strict":)"
    R"({"type":["boolean","null"]}}}}},{"anyOf":[{"required":["format"]},{"required":["structures",)"
    R"("triggers"]}],"properties":{"type":{"const":"structural_tag"},"format":{"type":"object"}}}])";
constexpr std::string_view kStructuredOutputs =
    R"("type":"object","oneOf":[{"required":["json"]},{"required":["json_object"]},{"required":)"
    R"(["regex"]},{"required":["choice"]},{"required":["grammar"]},{"required":["structural_tag"]}],)"
    R"("properties":{"json":{"type":["object","string","boolean"]},"json_object":{"const":true},)"
    R"("regex":{"type":"string","minLength":1},"choice":{"type":"array","minItems":1,"items":)"
    R"({"type":"string","minLength":1}},"grammar":{"type":"string","minLength":1},"structural_tag":)"
    R"({"type":["string","object"],"minLength":1},"disable_any_whitespace":{"type":"boolean"},)"
    R"("disable_additional_properties":{"type":"boolean"}})";
constexpr std::string_view kStreamOptions =
    R"("type":"object","properties":{"include_usage":{"type":"boolean"},)"
    R"("continuous_usage_stats":{"type":"boolean"}})";

constexpr std::string_view kPrediction =
    R"("type":"object","required":["type","content"],"properties":{"type":{"const":"content"},)"
    R"("content":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"object","required":)"
    R"(["type","text"],"properties":{"type":{"const":"text"},"text":{"type":"string"}}}}]}})";

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

// What an argument without effect has to be all the same.
struct Shape {
  bool (*holds)(const Json&);
  std::string_view schema;
};

constexpr Shape kAnything = {always, {}};
constexpr Shape kTextShape = {is_text, kText};
constexpr Shape kBoolShape = {is_bool, kBool};
constexpr Shape kIntegerShape = {is_integer, R"("type":"integer")"};
constexpr Shape kObjectShape = {is_object, kObject};

constexpr Parameter ignored(std::string_view name,
                            const Shape& shape = kAnything,
                            Endpoint endpoints = Endpoint::kBoth) {
  return {name, endpoints, Disposition::kIgnored, shape.holds, shape.schema, {}};
}

constexpr Parameter neutral(std::string_view name,
                            const Neutral& value,
                            Endpoint endpoints = Endpoint::kBoth) {
  Parameter parameter = {name, endpoints, Disposition::kNeutralOnly, value.holds, value.schema, {}};
  parameter.empty_asks = value.empty_asks;
  parameter.false_asks = value.false_asks;
  return parameter;
}

constexpr Parameter with_advice(Parameter parameter, std::string_view instead) {
  parameter.instead = instead;
  return parameter;
}

// Known under another name: now, or at these endpoints.
constexpr Parameter replaced(std::string_view name,
                             std::string_view instead,
                             Endpoint endpoints = Endpoint::kBoth) {
  return with_advice(neutral(name, kNullOnly, endpoints), instead);
}

constexpr std::array kParameters = {
    implemented("model", kText, Endpoint::kAny),
    implemented("messages", kMessages, Endpoint::kChatOrTokenize),
    implemented("prompt", kPrompt, Endpoint::kCompletion),
    implemented("prompt", kText, Endpoint::kTokenize),
    implemented("inputs", kTexts, Endpoint::kTokenize),  // TEI's
    implemented("prompt_name", kText, Endpoint::kTokenize),
    implemented("tokens", kTokenIds, Endpoint::kDetokenize),
    sampling("max_tokens", Endpoint::kChat),
    implemented("max_tokens", kCount, Endpoint::kCompletion),  // may be 0 with `echo`
    implemented("max_completion_tokens", kAtLeastOne),
    sampling("temperature"),
    sampling("top_p"),
    sampling("top_k"),
    sampling("min_p", Endpoint::kOpenAi),
    sampling("seed"),
    sampling("presence_penalty", Endpoint::kOpenAi),
    sampling("frequency_penalty", Endpoint::kOpenAi),
    sampling("repetition_penalty", Endpoint::kOpenAi),
    sampling("min_tokens", Endpoint::kOpenAi),
    sampling("ignore_eos", Endpoint::kOpenAi),
    implemented("stop", kStop, Endpoint::kOpenAi),
    implemented("stop_token_ids", kTokenIds, Endpoint::kOpenAi),
    implemented(
        "logit_bias", kLogitBias, Endpoint::kOpenAi, {&Config::max_logit_bias, "maxProperties"}),
    implemented("bad_words",
                R"("type":"array","items":{"type":"string","pattern":"[^ ]"})",
                Endpoint::kOpenAi,
                {&Config::max_bad_words, "maxItems"}),
    implemented("allowed_token_ids",
                R"("type":"array","minItems":1,"items":{"type":"integer","minimum":0})",
                Endpoint::kOpenAi),
    implemented("include_stop_str_in_output", kBool, Endpoint::kOpenAi),
    implemented("skip_special_tokens", kBool, Endpoint::kOpenAi),
    implemented("logprobs", kBool, Endpoint::kChat),
    implemented("logprobs", kCount, Endpoint::kCompletion, {&Config::max_logprobs, "maximum"}),
    implemented("top_logprobs", kCount, Endpoint::kChat, {&Config::max_logprobs, "maximum"}),
    implemented("prompt_logprobs", kCount, Endpoint::kBoth, {&Config::max_logprobs, "maximum"}),
    implemented("return_tokens_as_token_ids", kBool),  // refused together with logprobs
    implemented("n", kAtLeastOne, Endpoint::kBoth, {&Config::max_n, "maximum"}),
    implemented("best_of", kAtLeastOne, Endpoint::kBoth, {&Config::max_n, "maximum"}),
    implemented("stream", kBool),
    implemented("stream_options", kStreamOptions),
    implemented("add_generation_prompt", kBool, Endpoint::kChatOrTokenize),
    implemented("continue_final_message", kBool, Endpoint::kChatOrTokenize),
    implemented("chat_template_kwargs", kObject, Endpoint::kChatOrTokenize),
    implemented("reasoning_effort", kEffort, Endpoint::kChatOrTokenize),
    implemented("include_reasoning", kBool, Endpoint::kChat),
    // Other servers' switches of the same thing.
    implemented("enable_thinking", kBool, Endpoint::kChatOrTokenize),
    implemented("thinking", kSwitch, Endpoint::kChatOrTokenize),
    implemented("reasoning", kReasoningSwitch, Endpoint::kChatOrTokenize),
    implemented("thinking_token_budget", R"("type":"integer","minimum":-1)", Endpoint::kChat),
    implemented("tools", kTools, Endpoint::kChatOrTokenize),
    implemented("tool_choice", kToolChoice, Endpoint::kChatOrTokenize),
    implemented("parallel_tool_calls", kBool, Endpoint::kChat),
    implemented("add_special_tokens", kBool, Endpoint::kBothOrTokenize),
    implemented("return_token_ids", kBool),
    implemented("return_token_strs", kBool, Endpoint::kTokenize),
    implemented("truncate_prompt_tokens", R"("type":"integer","minimum":-1)"),
    implemented("truncation_side", R"("enum":["left","right"])"),
    implemented("echo", kBool, Endpoint::kCompletion),
    implemented("priority",
                R"("type":"integer","minimum":-2147483648,"maximum":2147483647)",
                Endpoint::kOpenAi),
    implemented("max_queue_wait_ms", kAtLeastOne, Endpoint::kOpenAi),
    implemented("speculative", kBool),
    implemented("prediction", kPrediction),
    implemented("cache_salt",
                R"("type":"string","minLength":1,"maxLength":128,"pattern":"^[^@/\\\\\u0000]+$")",
                Endpoint::kOpenAi),
    implemented("prompt_cache_retention", R"("enum":["in_memory","in-memory","24h"])"),
    implemented(
        "documents", R"("type":"array","items":{"type":"object"})", Endpoint::kChatOrTokenize),

    implemented("response_format", kResponseFormat),
    implemented("structured_outputs", kStructuredOutputs, Endpoint::kOpenAi),

    ignored("user", kTextShape),
    ignored("safety_identifier", kTextShape),
    ignored("metadata", kObjectShape),
    ignored("store", kBoolShape),
    ignored("service_tier", kTextShape),
    ignored("prompt_cache_key", kTextShape),
    ignored("prompt_cache_options"),
    ignored("moderation"),
    ignored("verbosity"),
    ignored("request_id", kTextShape),
    ignored("session_id"),
    ignored("guided_decoding_backend"),  // this and the next: of a constraint, which is refused
    ignored("guided_whitespace_pattern"),

    neutral("length_penalty", kAnyNumber),
    neutral("use_beam_search", kNever),
    replaced("guided_json", "structured_outputs"),
    replaced("guided_regex", "structured_outputs"),
    replaced("guided_choice", "structured_outputs"),
    replaced("guided_grammar", "structured_outputs"),
    // SGLang's and llama.cpp's names.
    with_advice(neutral("regex", kNoGrammar), "structured_outputs.regex"),
    with_advice(neutral("ebnf", kNoGrammar), "structured_outputs.grammar"),
    with_advice(neutral("grammar", kNoGrammar), "structured_outputs.grammar"),
    with_advice(neutral("json_schema", kNoGrammar), "structured_outputs.json"),
    neutral("logits_processors", kNever),
    neutral("prompt_embeds", kNever, Endpoint::kCompletion),
    neutral("functions", kNever, Endpoint::kChat),
    neutral("function_call", kNoneOrAuto, Endpoint::kChat),
    neutral("modalities", kTextOnly, Endpoint::kChat),
    neutral("audio", kNever, Endpoint::kChat),
    neutral("web_search_options", kNullOnly, Endpoint::kChat),
    neutral("chat_template", kNever, Endpoint::kChatOrTokenize),
    neutral("media_io_kwargs", kNever, Endpoint::kChatOrTokenize),
    neutral("mm_processor_kwargs", kNever, Endpoint::kChatOrTokenize),
    neutral("suffix", kEmptyString, Endpoint::kCompletion),
    neutral("echo", kNever, Endpoint::kChat),
    neutral("logprob_token_ids", kNever),
    neutral("spaces_between_special_tokens", kAnyBool),
    neutral("return_prompt_text", kNever),
    neutral("return_token_offsets", kNever),
    neutral("return_assistant_tokens_mask", kNever, Endpoint::kChat),
    neutral("thinking_token_budget", kUnlimited, Endpoint::kCompletion),
    implemented("kv_transfer_params", kObject, Endpoint::kOpenAi),
    implemented("bootstrap_host", kTextOrList, Endpoint::kOpenAi),
    implemented("bootstrap_port", kPortOrList, Endpoint::kOpenAi),
    implemented("bootstrap_room", kCountOrList, Endpoint::kOpenAi),
    neutral("ec_transfer_params", kNever),
    neutral("vllm_xargs", kNever),
    neutral("repetition_detection", kNever),
    neutral("stream_interval", kOne),
    neutral("no_stop_trim",
            kFalse,
            Endpoint::kOpenAi),  // this and the next three: routers send their defaults
    neutral("separate_reasoning", kTrue, Endpoint::kOpenAi),
    neutral("stream_reasoning", kTrue, Endpoint::kOpenAi),
    neutral("return_hidden_states", kFalse, Endpoint::kOpenAi),
    // This parameter and the next belong to chats, but routers send them to both endpoints.
    neutral("continue_final_message", kFalse, Endpoint::kCompletion),
    neutral("include_reasoning", kAnyBool, Endpoint::kCompletion),

    // Anthropic's Messages and OpenAI's Responses; the codecs make chats of them.
    sampling("temperature", Endpoint::kMessagesOrResponses),
    sampling("top_p", Endpoint::kMessagesOrResponses),
    sampling("top_k", Endpoint::kMessagesOrResponses),
    sampling("seed", Endpoint::kMessagesOrResponses),
    implemented("stream", kBool, Endpoint::kMessagesOrResponses),
    implemented("chat_template_kwargs", kObject, Endpoint::kMessagesOrResponses),
    ignored("service_tier", kTextShape, Endpoint::kMessagesOrResponses),
    implemented("messages", kMessageBlocks, Endpoint::kMessages),
    implemented("max_tokens", kCount, Endpoint::kMessages),
    implemented("system", kTextOrBlocks, Endpoint::kMessages),
    implemented("stop_sequences",
                R"("type":"array","items":{"type":"string","minLength":1})",
                Endpoint::kMessages,
                {&Config::max_stop_strings, "maxItems"}),
    implemented("tools", kMessageTools, Endpoint::kMessages),
    implemented("tool_choice", kMessageChoice, Endpoint::kMessages),
    implemented("thinking", kThinking, Endpoint::kMessages),
    ignored("metadata", kObjectShape, Endpoint::kMessages),
    ignored("cache_control", kObjectShape, Endpoint::kMessages),
    implemented("output_config", kObject, Endpoint::kMessages),
    implemented("context_management", kObject, Endpoint::kMessages),
    // Where a request is computed, billed and explained.
    ignored("billing_policy", kObjectShape, Endpoint::kMessages),
    ignored("diagnostics", kObjectShape, Endpoint::kMessages),
    ignored("fallback_credit_token", kAnything, Endpoint::kMessages),
    ignored(
        "fallbacks", kAnything, Endpoint::kMessages),  // models for what this one will not answer
    ignored("inference_geo", kTextShape, Endpoint::kMessages),
    ignored("speed", kTextShape, Endpoint::kMessages),
    ignored("user_profile_id", kTextShape, Endpoint::kMessages),
    ignored("workspace_id", kTextShape, Endpoint::kMessages),
    implemented("thread", kObject, Endpoint::kMessages),  // refused, with a code that clients know
    neutral("compaction", kNever, Endpoint::kMessages),
    neutral("container", kNullOnly, Endpoint::kMessages),
    neutral("mcp_servers", kNever, Endpoint::kMessages),
    implemented(
        "output_format", kObject, Endpoint::kMessages),  // older name of output_config.format
    replaced("response_format", "output_config.format", Endpoint::kMessages),
    replaced("structured_outputs", "output_config.format", Endpoint::kMessages),
    implemented("input", kInput, Endpoint::kResponses),
    implemented("instructions", kText, Endpoint::kResponses),
    implemented("max_output_tokens", kAtLeastOne, Endpoint::kResponses),
    implemented("tools", kResponseTools, Endpoint::kResponses),
    implemented("tool_choice", kToolChoice, Endpoint::kResponses),
    implemented("parallel_tool_calls", kBool, Endpoint::kResponses),
    implemented("previous_response_id", kText, Endpoint::kResponses),
    implemented("store", kBool, Endpoint::kResponses),
    implemented("reasoning", kReasoning, Endpoint::kResponses),
    implemented("text", kTextSettings, Endpoint::kResponses),
    implemented("truncation", R"("enum":["auto","disabled"])", Endpoint::kResponses),
    implemented("metadata", kObject, Endpoint::kResponses),
    implemented("user", kText, Endpoint::kResponses),
    implemented("include", R"("type":"array","items":{"type":"string"})", Endpoint::kResponses),
    ignored("safety_identifier", kTextShape, Endpoint::kResponses),
    ignored("prompt_cache_key", kTextShape, Endpoint::kResponses),
    ignored("prompt_cache_retention", kTextShape, Endpoint::kResponses),
    ignored("max_tool_calls",
            kIntegerShape,
            Endpoint::kResponses),  // of tools that a server runs itself
    ignored(
        "stream_options", kObjectShape, Endpoint::kResponses),  // padding against observers alone
    ignored("prompt_cache_options", kObjectShape, Endpoint::kResponses),
    ignored("moderation", kObjectShape, Endpoint::kResponses),
    ignored("access_programs", kObjectShape, Endpoint::kResponses),
    ignored("image", kObjectShape, Endpoint::kResponses),  // of images, which are refused
    ignored("background_options", kObjectShape, Endpoint::kResponses),
    neutral("background", kNever, Endpoint::kResponses),
    neutral("context_management", kNever, Endpoint::kResponses),
    neutral("personality", kNever, Endpoint::kResponses),  // in a count of tokens
    neutral("conversation", kNullOnly, Endpoint::kResponses),
    neutral("prompt", kNullOnly, Endpoint::kResponses),
    implemented("top_logprobs", kCount, Endpoint::kResponses, {&Config::max_logprobs, "maximum"}),
    replaced("response_format", "text.format", Endpoint::kResponses),
};

const Parameter* find_parameter(std::string_view name, Endpoint endpoint) {
  for (const Parameter& parameter : parameters_of(endpoint)) {
    if (parameter.name == name && is_offered(parameter, endpoint)) return &parameter;
  }
  return nullptr;
}

bool is_nothing(const Parameter& parameter, const Json& value) {
  if (parameter.false_asks && value == false) return false;
  return parameter.empty_asks ? is_null_or_false(value) : asks_nothing(value);
}

// Tells whether an argument stays in the body: it has an effect, or the check of members reads it.
Expected<bool> keeps_argument(const std::string& name,
                              const Json& value,
                              Endpoint endpoint,
                              IgnoredArguments& ignored) {
  const Parameter* parameter = find_parameter(name, endpoint);
  if (parameter == nullptr) {
    SLUICE_TRY_VOID(ignored.add(name));
    return false;
  }
  if (parameter->disposition == Disposition::kIgnored && !value.is_null() &&
      !parameter->is_neutral(value)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "`" + name + "` must fit {" + std::string(parameter->schema) + "}, got " +
                          show_value(value) + ".",
                      name);
  }
  if (parameter->disposition != Disposition::kNeutralOnly) return true;
  if (!is_nothing(*parameter, value) && !parameter->is_neutral(value)) {
    const std::string advice = parameter->instead.empty()
                                   ? "leave it out"
                                   : "use `" + std::string(parameter->instead) + "`";
    return make_error(
        ErrorCode::kUnsupported, "`" + name + "` is not supported; " + advice + ".", name);
  }
  return false;
}

}  // namespace

std::span<const Parameter> request_parameters() { return kParameters; }

std::span<const Parameter> parameters_of(Endpoint endpoint) {
  return endpoint >= Endpoint::kEmbeddings ? pooling_parameters() : request_parameters();
}

Expected<void> check_parameters(Json& body, Endpoint endpoint, IgnoredArguments& ignored) {
  SLUICE_TRY_VOID(keep_members(body, [&](const std::string& name, Json& value) {
    return keeps_argument(name, value, endpoint, ignored);
  }));
  return leave_out_unknown_members(body, endpoint, ignored);
}

}  // namespace sluice
