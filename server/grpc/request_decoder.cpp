// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/request_decoder.h"

#include <sluice.pb.h>
#include <vllm_engine.pb.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "engine/core/config.h"
#include "server/grpc/message_json.h"
#include "server/json/json_reader.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
namespace engine = vllm::grpc::engine;

// Moves a member out; null if it is absent.
Json take(Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return nullptr;
  Json value = std::move(*found);
  object.erase(found);
  return value;
}

Expected<Json> parse_object(const std::string& text, const char* name, int32_t max_depth) {
  auto parsed = parse_json(text, max_depth);
  if (parsed && parsed->is_object()) return std::move(*parsed);
  return make_error(ErrorCode::kInvalidArgument,
                    std::string(name) + " must be the text of a JSON object" +
                        (parsed ? "." : ": " + parsed.error().message),
                    name);
}

// Members that messages hold as the text of a JSON object.
constexpr std::array kObjects = {"chat_template_kwargs", "response_format", "structured_outputs"};

Expected<void> parse_objects(Json& request, int32_t max_depth) {
  for (const char* name : kObjects) {
    const auto found = request.find(name);
    if (found == request.end()) continue;
    SLUICE_TRY(*found, parse_object(found->get<std::string>(), name, max_depth));
  }
  return {};
}

// The constraint's field, and what the HTTP API's structured_outputs calls it.
struct Constraint {
  const char* field;
  const char* key;
};

constexpr std::array kConstraints = {Constraint{"json_schema", "json"},
                                     Constraint{"regex", "regex"},
                                     Constraint{"grammar", "grammar"},
                                     Constraint{"structural_tag", "structural_tag"},
                                     Constraint{"json_object", "json_object"},
                                     Constraint{"choice", "choice"}};

// Returns the name of the field that was set; empty: none.
std::string move_constraint(Json& parameters) {
  for (const Constraint& constraint : kConstraints) {
    Json value = take(parameters, constraint.field);
    if (value.is_null()) continue;
    if (value.is_object()) value = take(value, "choices");
    parameters["structured_outputs"] = Json::object({{constraint.key, std::move(value)}});
    return constraint.field;
  }
  return {};
}

Expected<void> move_transfer(Json& request, Json& parameters, int32_t max_depth) {
  Json typed = take(request, "kv_transfer_params");
  const Json text = take(request, "kv_transfer_params_json");
  if (text.is_null()) {
    // The message has an address and no transfer's name, so nothing can be fetched.
    if (typed.is_object()) typed["do_remote_prefill"] = true;
    if (typed.is_object()) parameters["kv_transfer_params"] = std::move(typed);
    return {};
  }
  SLUICE_TRY(parameters["kv_transfer_params"],
             parse_object(text.get<std::string>(), "kv_transfer_params_json", max_depth));
  return {};
}

// Moves the members of `sampling` to the request's own.
void move_sampling(Json& request, bool stream) {
  Json sampling = take(request, "sampling");
  if (sampling.is_object()) {
    for (auto& [name, value] : sampling.items()) request[name] = std::move(value);
  }
  if (!stream) return;
  request["stream"] = true;
  request["stream_options"] = Json::object({{"include_usage", true}});
}

void to_openai_tool_calls(Json& message) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end()) return;
  for (Json& call : *calls) {
    Json function = Json::object();
    for (const char* name : {"name", "arguments"}) {
      Json value = take(call, name);
      function[name] = value.is_null() ? Json("") : std::move(value);
    }
    call["type"] = "function";
    call["function"] = std::move(function);
  }
}

// Validates fields under the messages' own names: names outside the table are refused.
Expected<GenerationRequest> validate_known(const ValidationContext& context,
                                           Json& parameters,
                                           Endpoint endpoint) {
  IgnoredArguments refused(UnknownArguments::kRefuse);
  return validate_parameters(context, parameters, endpoint, refused);
}

}  // namespace

Expected<GenerationRequest> decode(ValidationContext context,
                                   const engine::GenerateRequest& message,
                                   IgnoredArguments& ignored) {
  SLUICE_TRY(Json request, message_json(message, ignored));
  Json parameters = take(request, "sampling_params");
  if (parameters.is_null()) parameters = Json::object();
  take(request, "request_id");
  take(parameters, "grammar_from_first_token");  // part of a constraint, and those are refused
  Json tokenized = take(request, "tokenized");
  if (tokenized.is_object()) {
    Json ids = take(tokenized, "input_ids");
    parameters["prompt"] = ids.is_null() ? Json::array() : std::move(ids);
  } else {
    parameters["prompt"] = take(request, "text");
  }
  SLUICE_TRY_VOID(move_transfer(request, parameters, context.config.max_json_depth));
  const Json rank = take(request, "data_parallel_rank");
  if (!rank.is_null() && rank != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "data_parallel_rank must be 0, got " + rank.dump() + ".",
                      "data_parallel_rank");
  }
  // Other fields keep their own name, which the table accepts or refuses.
  for (auto& [name, value] : request.items()) parameters[name] = std::move(value);
  const std::string constraint = move_constraint(parameters);
  parameters["skip_special_tokens"] = message.sampling_params().skip_special_tokens();
  context.fills_context = true;
  auto valid = validate_known(context, parameters, Endpoint::kCompletion);
  if (!valid && valid.error().param == "structured_outputs" && !constraint.empty()) {
    Error error = std::move(valid).error();
    error.message = constraint + ": " + error.message;
    error.param = constraint;
    return tl::unexpected(std::move(error));
  }
  return valid;
}

Expected<GenerationRequest> decode(const ValidationContext& context,
                                   const v1::CompletionRequest& message,
                                   IgnoredArguments& ignored,
                                   bool stream) {
  SLUICE_TRY(Json request, message_json(message, ignored));
  move_sampling(request, stream);
  Json prompts = take(request, "prompts");
  Json list = Json::array();
  if (prompts.is_array()) {
    for (Json& prompt : prompts) {
      Json text = take(prompt, "text");
      Json tokens = take(prompt, "tokens");
      if (tokens.is_object()) {
        Json ids = take(tokens, "ids");
        list.push_back(ids.is_null() ? Json::array() : std::move(ids));
      } else {
        list.push_back(std::move(text));
      }
    }
  }
  request["prompt"] = std::move(list);
  SLUICE_TRY_VOID(parse_objects(request, context.config.max_json_depth));
  return validate_known(context, request, Endpoint::kCompletion);
}

Expected<GenerationRequest> decode(const ValidationContext& context,
                                   const v1::ChatRequest& message,
                                   IgnoredArguments& ignored,
                                   bool stream) {
  SLUICE_TRY(Json request, message_json(message, ignored));
  move_sampling(request, stream);
  if (const auto messages = request.find("messages"); messages != request.end()) {
    for (Json& item : *messages) to_openai_tool_calls(item);
  }
  if (Json count = take(request, "logprobs"); !count.is_null()) {
    request["logprobs"] = true;
    request["top_logprobs"] = std::move(count);
  }
  SLUICE_TRY_VOID(parse_objects(request, context.config.max_json_depth));
  if (const auto documents = request.find("documents"); documents != request.end()) {
    for (Json& document : *documents) {
      SLUICE_TRY(
          document,
          parse_object(document.get<std::string>(), "documents", context.config.max_json_depth));
    }
  }
  if (const auto tools = request.find("tools"); tools != request.end()) {
    for (Json& tool : *tools) {
      SLUICE_TRY(tool,
                 parse_object(tool.get<std::string>(), "tools", context.config.max_json_depth));
    }
  }
  const auto choice = request.find("tool_choice");
  if (choice != request.end() && choice->get_ref<const std::string&>().starts_with('{')) {
    SLUICE_TRY(
        *choice,
        parse_object(choice->get<std::string>(), "tool_choice", context.config.max_json_depth));
  }
  return validate_known(context, request, Endpoint::kChat);
}

}  // namespace sluice
