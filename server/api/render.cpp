// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions/render and /v1/completions/render, in vLLM's shapes: what a request
// becomes before it runs, the ids of its prompts above all. Routers ask for it to choose a server
// by what that has cached.
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/config.h"
#include "engine/core/sampling_params.h"
#include "server/api/answer_id.h"
#include "server/api/request_validator.h"
#include "server/front/front_end.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// Writes the field as the client sent it; null if it did not.
void write_sent(JsonWriter& json, const Json& body, std::string_view name) {
  const Json* value = find_field(body, name);
  json.key(name).raw(
      value == nullptr ? "null" : value->dump(-1, ' ', false, Json::error_handler_t::replace));
}

void write_count(JsonWriter& json, std::string_view name, int32_t count) {
  json.key(name);
  if (count < 0) {
    json.null();
  } else {
    json.integer(count);
  }
}

void write_sampling_field(JsonWriter& json,
                          const SamplingField& field,
                          const SamplingParams& sampling) {
  json.key(field.name);
  const double value = field.get(sampling);
  switch (field.kind) {
    case ParamKind::kBoolean:
      json.boolean(value != 0);
      break;
    case ParamKind::kInteger:
      json.integer(static_cast<int64_t>(value));
      break;
    case ParamKind::kNumber:
      json.number(static_cast<float>(value));
      break;
  }
}

// `sampling` of the prompt's first choice.
void write_sampling(JsonWriter& json,
                    const Json& body,
                    const GenerationRequest& request,
                    const SamplingParams& sampling) {
  json.key("sampling_params").open_object();
  json.key("n").integer(request.num_returned);
  for (const SamplingField& field : sampling_fields()) {
    // A request without a seed gets one when it runs.
    if (field.name != "seed") write_sampling_field(json, field, sampling);
  }
  for (const char* name : {"seed", "logit_bias", "allowed_token_ids", "bad_words"}) {
    write_sent(json, body, name);
  }
  json.key("stop").open_array();
  for (const std::string& text : request.stop.strings) json.string(text);
  json.close_array().key("stop_token_ids").open_array();
  for (const TokenId id : sampling.stop_token_ids) json.integer(id);
  json.close_array();
  write_count(json, "logprobs", request.wants_logprobs ? sampling.num_logprobs : -1);
  write_count(json, "prompt_logprobs", request.num_prompt_logprobs);
  json.key("include_stop_str_in_output").boolean(request.stop.include_in_output);
  json.key("skip_special_tokens").boolean(request.skip_special_tokens);
  json.close_object();
}

void write_prompt(JsonWriter& json,
                  const Json& body,
                  const GenerationRequest& request,
                  const ValidRequest& prompt) {
  json.open_object().key("request_id").string(answer_id(request.endpoint));
  json.key("token_ids").open_array();
  for (const TokenId id : prompt.prompt) json.integer(id);
  json.close_array().key("features").null();  // of images and the like
  write_sampling(json, body, request, prompt.sampling);
  json.key("model").string(request.model).key("stream").boolean(request.stream);
  write_sent(json, body, "stream_options");
  write_sent(json, body, "cache_salt");
  json.key("priority").integer(prompt.priority).key("kv_transfer_params").null();
  json.close_object();
}

Expected<std::string> render(FrontEnd& front_end, Exchange& exchange, Endpoint endpoint) {
  Json body;
  const auto request = front_end.read_request(
      exchange.tenant_salt,
      exchange.arrival,
      exchange.request.body.size(),
      [&](const ValidationContext& context) -> Expected<GenerationRequest> {
        SLUICE_TRY(body, parse_body(exchange.request.body, context.config.max_json_depth));
        return validate_parameters(context, body, endpoint, exchange.ignored);
      });
  front_end.note_ignored(exchange.ignored);
  if (!request) return tl::unexpected(request.error());
  std::string out;
  JsonWriter json(out);
  if (endpoint == Endpoint::kCompletion) json.open_array();
  for (size_t i = 0; i < request->requests.size(); i += static_cast<size_t>(request->num_choices)) {
    write_prompt(json, body, *request, request->requests[i]);
  }
  if (endpoint == Endpoint::kCompletion) json.close_array();
  return out;
}

void answer(FrontEnd& front_end, Exchange exchange, Endpoint endpoint) {
  auto body = render(front_end, exchange, endpoint);
  if (!body) return front_end.fail(exchange, body.error());
  HttpResponse response;
  response.body = std::move(*body);
  front_end.respond(exchange, std::move(response));
}

}  // namespace

void handle_render_chat(FrontEnd& front_end, Exchange exchange) {
  answer(front_end, std::move(exchange), Endpoint::kChat);
}

void handle_render_completion(FrontEnd& front_end, Exchange exchange) {
  answer(front_end, std::move(exchange), Endpoint::kCompletion);
}

}  // namespace sluice
