// SPDX-License-Identifier: Apache-2.0
// The handlers of /v1/responses: a new answer, one that is kept, and its deletion. Called on the
// I/O thread of the connection.
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/config.h"
#include "server/api/responses_codec.h"
#include "server/api/responses_format.h"
#include "server/api/start_generation.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Error not_found(const std::string& id, std::string param) {
  return Error{ErrorCode::kNotFound,
               "Response `" + show_text(id) + "` is not, or no longer, kept here.",
               std::move(param),
               "response_not_found"};
}

// The conversation that `previous_response_id` names.
Expected<Json> earlier_messages(const FrontEnd& front_end, uint64_t tenant, const Json& body) {
  const Json* id = find_field(body, "previous_response_id");
  if (id == nullptr) return Json::array();
  const std::string param = "previous_response_id";
  if (!id->is_string()) {
    return make_error(ErrorCode::kInvalidArgument, param + " must be a string.", param);
  }
  ResponseStore& store = *front_end.responses;
  if (!store.is_on()) {
    return make_error(ErrorCode::kUnsupported,
                      param + " needs kept responses, which --response-store-size 0 switches off.",
                      param);
  }
  const auto stored = store.find(tenant, id->get<std::string>());
  if (stored == nullptr) return tl::unexpected(not_found(id->get<std::string>(), param));
  return Json::parse(stored->messages);
}

// The chat as it is, or where it does not fit and `truncation` allows, without as many of its first
// messages as need be.
Expected<GenerationRequest> validate_chat(const ValidationContext& context,
                                          const Json& chat,
                                          bool may_drop,
                                          IgnoredArguments& ignored) {
  const auto validate = [&](const Json& messages) {
    Json tried = chat;
    tried["messages"] = messages;
    return validate_parameters(context, tried, Endpoint::kChat, ignored);
  };
  const Json& messages = chat["messages"];
  auto request = validate(messages);
  const auto is_too_long = [](const Expected<GenerationRequest>& tried) {
    return !tried && tried.error().machine_code == "context_length_exceeded";
  };
  if (!may_drop || !is_too_long(request)) return request;
  size_t low = 0;  // too long from here; what is behind `high` has been tried or is nothing
  size_t high = messages.size();
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    const Json kept = later_messages(messages, middle);
    if (kept.is_null()) {
      high = middle;
      continue;
    }
    auto tried = validate(kept);
    if (is_too_long(tried)) {
      low = middle;
    } else {
      request = std::move(tried);
      high = middle;
    }
  }
  return request;
}

// What OpenAI's servers can add to an answer. Reasoning is in each answer as text; the rest but the
// last is of tools that a server runs itself.
constexpr std::array<std::string_view, 8> kIncludable = {"reasoning.encrypted_content",
                                                         "web_search_call.action.sources",
                                                         "web_search_call.results",
                                                         "file_search_call.results",
                                                         "code_interpreter_call.outputs",
                                                         "computer_call_output.output.image_url",
                                                         "message.input_image.image_url",
                                                         "message.output_text.logprobs"};

Expected<void> check_include(const Json& body) {
  const Json* include = find_field(body, "include");
  if (include == nullptr) return {};
  if (!include->is_array() || !std::ranges::all_of(*include, &Json::is_string)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "include must be an array of strings, got " + show_value(*include) + ".",
                      "include");
  }
  for (const Json& item : *include) {
    if (std::ranges::count(kIncludable, item.get_ref<const std::string&>()) == 0) {
      return make_error(
          ErrorCode::kInvalidArgument, "include knows no " + show_value(item) + ".", "include");
    }
    if (item != "message.output_text.logprobs") continue;
    return make_error(ErrorCode::kUnsupported,
                      "include message.output_text.logprobs is not supported; leave it out.",
                      "include");
  }
  return {};
}

Expected<DecodedRequest> decode(const FrontEnd& front_end,
                                const ValidationContext& context,
                                Exchange& exchange) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, context.config.max_json_depth));
  SLUICE_TRY_VOID(check_parameters(body, Endpoint::kResponses, exchange.ignored));
  SLUICE_TRY_VOID(check_include(body));
  const Json* metadata = find_field(body, "metadata");
  if (metadata != nullptr && !metadata->is_object()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "metadata must be an object, got " + show_value(*metadata) + ".",
                      "metadata");
  }
  SLUICE_TRY(const bool wants_store, read_bool(body, "store", true));
  const Json* truncation = find_field(body, "truncation");
  if (truncation != nullptr && *truncation != "auto" && *truncation != "disabled") {
    return make_error(
        ErrorCode::kInvalidArgument,
        "truncation must be \"auto\" or \"disabled\", got " + show_value(*truncation) + ".",
        "truncation");
  }
  SLUICE_TRY(const Json earlier, earlier_messages(front_end, exchange.tenant_salt, body));
  SLUICE_TRY(const Json chat, chat_of_responses(body, earlier));
  const bool may_drop = truncation != nullptr && *truncation == "auto";
  auto request = validate_chat(context, chat, may_drop, exchange.ignored);
  if (!request) return tl::unexpected(with_names(std::move(request).error(), responses_names()));
  name_grammars(*request, responses_names());
  ResponseRecord record;
  const bool is_stored = wants_store && front_end.responses->is_on();
  record.settings = response_settings(body, is_stored);
  if (is_stored) {
    Json messages = chat["messages"];
    if (find_field(body, "instructions") != nullptr) messages.erase(0);
    record.messages = messages.dump(-1, ' ', false, Json::error_handler_t::replace);
    record.tenant = exchange.tenant_salt;
    record.store = front_end.responses.get();
  }
  auto format = std::make_unique<ResponsesFormat>(request->model, std::move(record));
  return DecodedRequest{std::move(*request), std::move(format)};
}

std::string id_in_path(const Exchange& exchange) {
  return exchange.request.path.substr(exchange.request.path.rfind('/') + 1);
}

}  // namespace

void handle_responses(FrontEnd& front_end, Exchange exchange) {
  start_generation(
      front_end, std::move(exchange), [&](const ValidationContext& context, Exchange& asked) {
        return decode(front_end, context, asked);
      });
}

void handle_response(FrontEnd& front_end, Exchange exchange) {
  const std::string id = id_in_path(exchange);
  const auto stored = front_end.responses->find(exchange.tenant_salt, id);
  if (stored == nullptr) return front_end.fail(exchange, not_found(id, "response_id"));
  HttpResponse response;
  response.body = stored->response;
  front_end.respond(exchange, std::move(response));
}

void handle_delete_response(FrontEnd& front_end, Exchange exchange) {
  const std::string id = id_in_path(exchange);
  if (!front_end.responses->erase(exchange.tenant_salt, id)) {
    return front_end.fail(exchange, not_found(id, "response_id"));
  }
  HttpResponse response;
  JsonWriter json(response.body);
  json.open_object().key("id").string(id).key("object").string("response");
  json.key("deleted").boolean(true).close_object();
  front_end.respond(exchange, std::move(response));
}

}  // namespace sluice
