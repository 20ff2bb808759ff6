// SPDX-License-Identifier: Apache-2.0
// The handlers of /v1/messages and /v1/messages/count_tokens, in Anthropic's shapes. Called on the
// I/O thread of the connection.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "engine/core/config.h"
#include "server/api/messages_codec.h"
#include "server/api/messages_format.h"
#include "server/api/start_generation.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/json/json_writer.h"
#include "server/prompt/prompt.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Expected<Json> read_chat(const ValidationContext& context, Exchange& exchange, bool may_be_silent) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, context.config.max_json_depth));
  SLUICE_TRY_VOID(check_parameters(body, Endpoint::kMessages, exchange.ignored));
  if (!may_be_silent && find_field(body, "max_tokens") == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "max_tokens is missing.", "max_tokens");
  }
  const MessagesRules rules = {.keeps_billing_header = context.config.keep_billing_header};
  SLUICE_TRY(Json chat, chat_of_messages(body, rules, exchange.ignored));
  // Agents send a budget to every model; one that is not known to reason has nothing to bound.
  const bool reasons = context.families != nullptr && context.families->reasoning != nullptr;
  if (!reasons && chat.erase("thinking_token_budget") > 0) {
    SLUICE_TRY_VOID(exchange.ignored.add("thinking.budget_tokens"));
  }
  return chat;
}

Expected<DecodedRequest> decode(const ValidationContext& shared, Exchange& exchange) {
  ValidationContext context = shared;
  context.dialect = Dialect::kMessages;
  SLUICE_TRY(Json chat, read_chat(context, exchange, /*may_be_silent=*/false));
  auto request = validate_parameters(context, chat, Endpoint::kChat, exchange.ignored);
  if (!request) return tl::unexpected(with_names(std::move(request).error(), messages_names()));
  name_grammars(*request, messages_names());
  // The format needs to know where there were thoughts.
  const bool omits_thinking = !request->include_reasoning;
  request->include_reasoning = true;
  auto format = std::make_unique<MessagesFormat>(request->model, omits_thinking);
  return DecodedRequest{std::move(*request), std::move(format)};
}

Expected<std::string> count_tokens(const ValidationContext& context, Exchange& exchange) {
  SLUICE_TRY(const Json chat, read_chat(context, exchange, /*may_be_silent=*/true));
  SLUICE_TRY(const std::string model, resolve_model(context.model_names, chat));
  const auto prompt = chat_prompt(context, chat);
  if (!prompt) return tl::unexpected(with_names(prompt.error(), messages_names()));
  std::string out;
  JsonWriter json(out);
  json.open_object().key("input_tokens").integer(static_cast<int64_t>(prompt->ids.size()));
  json.close_object();
  return out;
}

}  // namespace

void handle_messages(FrontEnd& front_end, Exchange exchange) {
  start_generation(front_end, std::move(exchange), decode);
}

void handle_count_tokens(FrontEnd& front_end, Exchange exchange) {
  auto body = front_end.read_request(
      exchange.tenant_salt,
      exchange.arrival,
      exchange.request.body.size(),
      [&](const ValidationContext& context) {
        return count_tokens(context, exchange);
      });
  front_end.note_ignored(exchange.ignored);
  if (!body) return front_end.fail(exchange, body.error());
  HttpResponse response;
  response.body = std::move(*body);
  front_end.respond(exchange, std::move(response));
}

}  // namespace sluice
