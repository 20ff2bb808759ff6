// SPDX-License-Identifier: Apache-2.0
// GET /openapi.json: OpenAPI 3.1, made from the route table, the parameter table and the ranges of
// the sampling parameters, so that it says what the validator does; defaults are the model's.
#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/config.h"
#include "engine/core/sampling_params.h"
#include "server/api/parameters.h"
#include "server/api/routes.h"
#include "server/front/front_end.h"
#include "server/front/ignored_arguments.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

constexpr std::string_view kErrorSchema =
    R"({"type":"object","required":["error"],"properties":{"error":{"type":"object",)"
    R"("required":["message","type","param","code"],"properties":{"message":{"type":"string"},)"
    R"("type":{"type":"string"},"param":{"type":["string","null"]},)"
    R"("code":{"type":["integer","string"]}}}}})";

constexpr std::string_view kMessageSchema =
    R"({"type":"object","required":["id","type","role","model","content","stop_reason",)"
    R"("stop_sequence","usage"],"properties":{"type":{"const":"message"},"role":)"
    R"({"const":"assistant"},"content":{"type":"array","items":{"type":"object","required":)"
    R"(["type"]}},"usage":{"type":"object","required":["input_tokens","output_tokens"]}}})";
constexpr std::string_view kMessagesErrorSchema =
    R"({"type":"object","required":["type","error"],"properties":{"type":{"const":"error"},)"
    R"("error":{"type":"object","required":["type","message"]}}})";
constexpr std::string_view kTeiErrorSchema =
    R"({"type":"object","required":["error","error_type"],"properties":{"error":)"
    R"({"type":"string"},"error_type":{"type":"string"}}})";
// Requests of TEI's clients come to some of Cohere's paths, too.
constexpr std::string_view kCohereErrorSchema =
    R"({"anyOf":[{"type":"object","required":["message","error"],"properties":{"message":)"
    R"({"type":"string"},"error":{"type":"object","required":["message","type"]}}},)"
    R"({"$ref":"#/components/schemas/TeiError"}]})";
constexpr std::string_view kInputTokensSchema =
    R"({"type":"object","required":["input_tokens"],"properties":{"input_tokens":)"
    R"({"type":"integer","minimum":1}}})";
constexpr std::string_view kResponseSchema =
    R"({"type":"object","required":["id","object","created_at","status","model","output","usage"],)"
    R"("properties":{"object":{"const":"response"},"status":{"enum":["completed","incomplete"]},)"
    R"("output":{"type":"array","items":{"type":"object","required":["id","type"]}}}})";

constexpr std::string_view kUsageSchema =
    R"({"type":"object","required":["prompt_tokens","completion_tokens","total_tokens"]})";

std::string format_number(double value) {
  // Bounds of integers are whole; 2^63 means the largest 64-bit integer.
  if (value == std::floor(value) && std::abs(value) < 1e18) {
    return std::to_string(static_cast<int64_t>(value));
  }
  if (value == std::floor(value)) return value > 0 ? "9223372036854775807" : "-9223372036854775808";
  std::string text;
  append_json_float(text, static_cast<float>(value));
  return text;
}

void write_sampling_schema(JsonWriter& json, const SamplingField& field) {
  json.key("description").string(field.help);
  if (field.kind == ParamKind::kBoolean) {
    json.key("type").string("boolean");
    return;
  }
  json.key("type").string(field.kind == ParamKind::kInteger ? "integer" : "number");
  json.key("minimum").raw(format_number(field.min));
  json.key("maximum").raw(format_number(field.max));
}

// What a request without this field gets: the model's own default, of its generation_config. Seed
// and length are chosen for each request.
void write_default(JsonWriter& json, const SamplingField& field, const SamplingParams& defaults) {
  if (field.name == "seed" || field.name == "max_tokens") return;
  const double value = field.get(defaults);
  json.key("default");
  if (field.kind == ParamKind::kBoolean) {
    json.boolean(value != 0);
  } else {
    json.raw(format_number(value));
  }
}

// Inside of its object, which this ends.
void write_neutral_parameter(JsonWriter& json, const Parameter& parameter) {
  json.key("description").string("Not offered; only a value that changes nothing is taken.");
  json.key("anyOf").open_array();
  if (!parameter.schema.empty()) json.open_object().raw(parameter.schema).close_object();
  json.raw(R"({"type":"null"},{"const":false})");
  if (!parameter.empty_asks) {
    json.raw(R"({"type":"array","maxItems":0},{"type":"object","maxProperties":0})");
  }
  json.close_array().close_object();
}

void write_parameter(JsonWriter& json,
                     const Parameter& parameter,
                     const Config& config,
                     const SamplingParams& defaults) {
  json.key(parameter.name).open_object();
  if (parameter.disposition == Disposition::kIgnored) {
    json.key("description").string("Without effect here.");
    if (!parameter.schema.empty()) {
      json.key("anyOf").open_array();
      json.open_object().raw(parameter.schema).close_object();
      json.raw(R"({"type":"null"})").close_array();
    }
    json.close_object();
    return;
  }
  if (parameter.disposition == Disposition::kNeutralOnly) {
    return write_neutral_parameter(json, parameter);
  }
  json.key("anyOf").open_array();
  json.open_object();
  const SamplingField* field =
      parameter.schema.empty() ? find_sampling_field(parameter.name) : nullptr;
  if (field != nullptr) write_sampling_schema(json, *field);
  std::string members(parameter.schema);
  if (parameter.limit.knob != nullptr) {
    members += ",\"" + std::string(parameter.limit.keyword) +
               "\":" + std::to_string(config.*parameter.limit.knob);
  }
  if (!members.empty()) json.raw(members);
  json.close_object();
  json.open_object().key("type").string("null").close_object();
  json.close_array();
  if (field != nullptr) write_default(json, *field, defaults);
  json.close_object();
}

std::string_view required_field(Endpoint endpoint) {
  if (endpoint == Endpoint::kChat || endpoint == Endpoint::kMessages) return "messages";
  if (endpoint == Endpoint::kResponses) return "input";
  if (endpoint == Endpoint::kRerank) return "query";
  if (endpoint == Endpoint::kTei) return "inputs";
  if (endpoint == Endpoint::kTeiDecode) return "ids";
  return endpoint == Endpoint::kDetokenize ? "tokens" : "prompt";
}

void write_request_schema(JsonWriter& json,
                          Endpoint endpoint,
                          const Config& config,
                          const SamplingParams& defaults) {
  json.open_object().key("type").string("object");
  const bool has_texts = endpoint == Endpoint::kCohereEmbed;
  const bool has_choice = endpoint == Endpoint::kEmbeddings || endpoint == Endpoint::kClassify;
  if (endpoint == Endpoint::kTokenize) {
    json.raw(
        R"("anyOf":[{"required":["messages"]},{"required":["prompt"]},{"required":["inputs"]}])");
  } else if (has_choice) {
    json.raw(R"("anyOf":[{"required":["messages"]},{"required":["input"]}])");
  } else if (has_texts) {
    json.raw(R"("anyOf":[{"required":["texts"]},{"required":["inputs"]}])");
  } else if (endpoint != Endpoint::kScore) {
    json.raw(R"("required":[")" + std::string(required_field(endpoint)) + "\"]");
  }
  const bool ignores = unknown_arguments_rule(config) == UnknownArguments::kIgnore;
  json.key("additionalProperties").boolean(ignores);
  json.key("properties").open_object();
  for (const Parameter& parameter : parameters_of(endpoint)) {
    if (is_offered(parameter, endpoint)) write_parameter(json, parameter, config, defaults);
  }
  json.close_object().close_object();
}

void write_response_schema(JsonWriter& json, std::string_view object) {
  json.open_object().key("type").string("object").key("required").open_array();
  for (const char* name : {"id", "object", "created", "model", "choices", "usage"}) {
    json.string(name);
  }
  json.close_array().key("properties").open_object();
  json.key("object").open_object().key("const").string(object).close_object();
  json.key("choices").open_object().key("type").string("array").close_object();
  json.key("usage").raw(kUsageSchema);
  json.close_object().close_object();
}

void write_component_schemas(JsonWriter& json,
                             const Config& config,
                             const SamplingParams& defaults) {
  json.open_object();
  json.key("ChatCompletionRequest");
  write_request_schema(json, Endpoint::kChat, config, defaults);
  json.key("CompletionRequest");
  write_request_schema(json, Endpoint::kCompletion, config, defaults);
  json.key("ChatCompletion");
  write_response_schema(json, "chat.completion");
  json.key("Completion");
  write_response_schema(json, "text_completion");
  json.key("Error").raw(kErrorSchema);
  json.key("MessagesRequest");
  write_request_schema(json, Endpoint::kMessages, config, defaults);
  json.key("Message").raw(kMessageSchema);
  json.key("MessagesError").raw(kMessagesErrorSchema);
  json.key("CohereError").raw(kCohereErrorSchema).key("TeiError").raw(kTeiErrorSchema);
  json.key("InputTokens").raw(kInputTokensSchema);
  json.key("ResponsesRequest");
  write_request_schema(json, Endpoint::kResponses, config, defaults);
  json.key("Response").raw(kResponseSchema);
  json.key("RenderedPrompt")
      .raw(
          R"({"type":"object","required":["request_id","token_ids","sampling_params","model"],)"
          R"("properties":{"token_ids":{"type":"array","items":{"type":"integer","minimum":0}}}})");
  json.key("RenderedPrompts")
      .raw(R"({"type":"array","items":{"$ref":"#/components/schemas/RenderedPrompt"}})");
  json.key("Texts").raw(R"({"type":"array","items":{"type":"string"}})");
  json.key("ObjectOrList").raw(R"({"type":["object","array"]})");  // TEI's answers are lists
  json.key("EmbeddingsRequest");
  write_request_schema(json, Endpoint::kEmbeddings, config, defaults);
  json.key("RerankRequest");
  write_request_schema(json, Endpoint::kRerank, config, defaults);
  json.key("ScoreRequest");
  write_request_schema(json, Endpoint::kScore, config, defaults);
  json.key("ClassifyRequest");
  write_request_schema(json, Endpoint::kClassify, config, defaults);
  json.key("CohereEmbedRequest");
  write_request_schema(json, Endpoint::kCohereEmbed, config, defaults);
  json.key("TeiRequest");
  write_request_schema(json, Endpoint::kTei, config, defaults);
  // A URL without a path takes one of both, which the model decides.
  json.key("TeiAnyRequest")
      .raw(
          R"({"anyOf":[{"$ref":"#/components/schemas/TeiRequest"},)"
          R"({"$ref":"#/components/schemas/RerankRequest"}]})");
  json.key("TokenizeRequest");
  write_request_schema(json, Endpoint::kTokenize, config, defaults);
  json.key("DetokenizeRequest");
  write_request_schema(json, Endpoint::kDetokenize, config, defaults);
  json.key("TeiDecodeRequest");
  write_request_schema(json, Endpoint::kTeiDecode, config, defaults);
  json.close_object();
}

std::string_view error_schema(ErrorForm form) {
  switch (form) {
    case ErrorForm::kAnthropic:
      return "MessagesError";
    case ErrorForm::kCohere:
      return "CohereError";
    case ErrorForm::kTei:
      return "TeiError";
    default:
      return "Error";
  }
}

struct Body {
  std::string_view path;
  std::string_view request;  // component schemas; empty: any JSON object
  std::string_view response;
  bool streams;
};

constexpr Body kBodies[] = {
    {"/v1/chat/completions", "ChatCompletionRequest", "ChatCompletion", true},
    {"/chat/completions", "ChatCompletionRequest", "ChatCompletion", true},
    {"/v1/completions", "CompletionRequest", "Completion", true},
    {"/completions", "CompletionRequest", "Completion", true},
    {"/v1/chat/completions/render", "ChatCompletionRequest", "RenderedPrompt", false},
    {"/v1/completions/render", "CompletionRequest", "RenderedPrompts", false},
    {"/v1/responses", "ResponsesRequest", "Response", true},
    {"/v1/responses/input_tokens", "ResponsesRequest", "InputTokens", false},
    {"/v1/messages", "MessagesRequest", "Message", true},
    {"/v1/messages/count_tokens", "MessagesRequest", "InputTokens", false},
    {"/v1/embeddings", "EmbeddingsRequest", "", false},
    {"/embeddings", "EmbeddingsRequest", "", false},
    {"/pooling", "EmbeddingsRequest", "", false},
    {"/v1/rerank", "RerankRequest", "", false},
    {"/v2/rerank", "RerankRequest", "", false},
    {"/rerank", "RerankRequest", "ObjectOrList", false},
    {"/reranking", "RerankRequest", "", false},
    {"/v1/reranking", "RerankRequest", "", false},
    {"/v1/score", "ScoreRequest", "", false},
    {"/score", "ScoreRequest", "", false},
    {"/classify", "ClassifyRequest", "", false},
    {"/v2/embed", "CohereEmbedRequest", "", false},
    {"/v1/embed", "CohereEmbedRequest", "", false},
    {"/", "TeiAnyRequest", "ObjectOrList", false},
    {"/embed", "TeiRequest", "ObjectOrList", false},
    {"/embed_all", "TeiRequest", "ObjectOrList", false},
    {"/similarity", "TeiRequest", "ObjectOrList", false},
    {"/predict", "TeiRequest", "ObjectOrList", false},
    {"/tokenize", "TokenizeRequest", "ObjectOrList", false},
    {"/detokenize", "DetokenizeRequest", "", false},
    {"/decode", "TeiDecodeRequest", "Texts", false},
};

void write_reference(JsonWriter& json, std::string_view schema) {
  json.open_object();
  if (schema.empty()) {
    json.key("type").string("object");
  } else {
    json.key("$ref").string("#/components/schemas/" + std::string(schema));
  }
  json.close_object();
}

void write_operation(JsonWriter& json, const Route& route) {
  const auto* body = std::ranges::find(kBodies, route.path, &Body::path);
  const bool has_body = body != std::end(kBodies);
  json.open_object();
  if (route.path.find('*') != std::string_view::npos) {
    json.key("parameters")
        .raw(R"([{"name":"id","in":"path","required":true,"schema":{"type":"string"}}])");
  }
  if (route.auth == RouteAuth::kKey) json.key("security").raw(R"([{"key":[]},{}])");
  if (has_body) {
    json.key("requestBody").open_object().key("required").boolean(true);
    json.key("content").open_object().key("application/json").open_object().key("schema");
    write_reference(json, body->request);
    json.close_object().close_object().close_object();
  }
  json.key("responses").open_object();
  json.key("200").open_object().key("description").string("Done.");
  if (has_body) {
    json.key("headers").open_object().key(kIgnoredArgumentsHeader);
    json.raw(R"({"description":"Arguments that were left out.","schema":{"type":"string"}})");
    json.close_object();
  }
  json.key("content").open_object();
  const bool is_text = route.path == "/metrics";
  json.key(is_text ? "text/plain" : "application/json").open_object().key("schema");
  if (is_text) {
    json.raw(R"({"type":"string"})");
  } else {
    write_reference(json, has_body ? body->response : "");
  }
  json.close_object();
  if (is_text) json.key("application/openmetrics-text").raw(R"({"schema":{"type":"string"}})");
  if (has_body && body->streams) {
    // itemSchema, which is new in OpenAPI 3.2, describes each event.
    json.key("text/event-stream");
    json.raw(R"({"itemSchema":{"type":"object","required":["data"],)"
             R"("properties":{"data":{"type":"string"}}}})");
  }
  json.close_object().close_object();
  json.key("default").open_object().key("description").string("Refused; the error says why.");
  json.key("content").open_object().key("application/json").open_object().key("schema");
  write_reference(json, error_schema(route.errors));
  json.close_object().close_object().close_object();
  json.close_object().close_object();
}

std::string_view operation_name(std::string_view method) {
  if (method == "GET") return "get";
  return method == "DELETE" ? "delete" : "post";
}

std::string openapi_json(const Config& config, const SamplingParams& defaults) {
  std::string out;
  JsonWriter json(out);
  json.open_object().key("openapi").string("3.1.0");
  json.key("info").open_object().key("title").string("Sluice");
  json.key("version").string(SLUICE_VERSION).close_object();
  json.key("paths").open_object();
  for (size_t i = 0; i < routes().size(); ++i) {
    const std::string_view path = routes()[i].path;
    const auto same_path = [path](const Route& route) { return route.path == path; };
    if (std::ranges::any_of(routes().first(i), same_path)) continue;
    if (routes()[i].handler == handle_page) continue;  // for people, no part of the API
    json.key(route_template(routes()[i])).open_object();
    for (const Route& route : routes()) {
      if (!same_path(route) || route.handler == handle_page) continue;
      json.key(operation_name(route.method));
      write_operation(json, route);
    }
    json.close_object();
  }
  json.close_object();
  json.key("components").open_object().key("securitySchemes");
  json.raw(R"({"key":{"type":"http","scheme":"bearer"}})");
  json.key("schemas");
  write_component_schemas(json, config, defaults);
  json.close_object().close_object();
  return out;
}

}  // namespace

void handle_openapi(FrontEnd& front_end, Exchange exchange) {
  HttpResponse response;
  response.body = openapi_json(front_end.config, front_end.usual_model()->engine.model().sampling);
  front_end.respond(exchange, std::move(response));
}

}  // namespace sluice
