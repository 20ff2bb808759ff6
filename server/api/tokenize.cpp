// SPDX-License-Identifier: Apache-2.0
// POST /tokenize and /detokenize, in vLLM's shapes.
#include <nlohmann/json.hpp>
#include <utility>

#include "engine/tokenizer/detokenizer.h"
#include "server/api/request_validator.h"
#include "server/front/front_end.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/json/json_writer.h"
#include "server/prompt/prompt.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Expected<Json> read_body(FrontEnd& front_end, Exchange& exchange, Endpoint endpoint) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, front_end.config.max_json_depth));
  const auto checked = check_parameters(body, endpoint, exchange.ignored);
  front_end.note_ignored(exchange.ignored);
  if (!checked) return tl::unexpected(checked.error());
  SLUICE_TRY(const std::string model, resolve_model(front_end.model_names, body));
  return body;
}

Expected<std::string> tokenize(FrontEnd& front_end, Exchange& exchange) {
  SLUICE_TRY(const Json body, read_body(front_end, exchange, Endpoint::kTokenize));
  const Tokenizer& tokenizer = front_end.engine.tokenizer();
  const ValidationContext context{front_end.config,
                                  front_end.engine.model(),
                                  tokenizer,
                                  front_end.chat_template,
                                  front_end.model_names,
                                  0,
                                  0,
                                  exchange.arrival};
  const bool is_chat = find_field(body, "messages") != nullptr;
  const Json* prompt = find_field(body, "prompt");
  if (!is_chat && (prompt == nullptr || !prompt->is_string())) {
    return make_error(
        ErrorCode::kInvalidArgument, "prompt must be a string, or messages given.", "prompt");
  }
  SLUICE_TRY(const bool with_text, read_bool(body, "return_token_strs", false));
  std::vector<TokenId> ids;
  if (is_chat) {
    SLUICE_TRY(auto rendered, chat_prompt(context, body));
    ids = std::move(rendered.ids);
  } else if (!prompt->get_ref<const std::string&>().empty()) {
    SLUICE_TRY(auto prompts, completion_prompts(context, body));
    ids = std::move(prompts.front());
  }
  std::string out;
  JsonWriter json(out);
  json.open_object().key("count").integer(static_cast<int64_t>(ids.size()));
  json.key("max_model_len").integer(front_end.engine.model().max_model_len);
  json.key("tokens").open_array();
  for (const TokenId id : ids) json.integer(id);
  json.close_array().key("token_strs");
  if (with_text) {
    json.open_array();
    for (const TokenId id : ids) json.string(tokenizer.token_name(id));
    json.close_array();
  } else {
    json.null();
  }
  json.close_object();
  return out;
}

Expected<std::string> detokenize(FrontEnd& front_end, Exchange& exchange) {
  SLUICE_TRY(const Json body, read_body(front_end, exchange, Endpoint::kDetokenize));
  const Json* tokens = find_field(body, "tokens");
  if (tokens == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "tokens is missing.", "tokens");
  }
  SLUICE_TRY(const auto ids, to_token_ids(*tokens, "tokens", front_end.engine.model().vocab_size));
  const std::string text = decode_tokens(front_end.engine.tokenizer(), ids);
  std::string out;
  JsonWriter json(out);
  json.open_object().key("prompt").string(text).close_object();
  return out;
}

void answer(FrontEnd& front_end, const Exchange& exchange, Expected<std::string> body) {
  if (!body) return front_end.fail(exchange, body.error());
  HttpResponse response;
  response.body = std::move(*body);
  front_end.respond(exchange, std::move(response));
}

}  // namespace

void handle_tokenize(FrontEnd& front_end, Exchange exchange) {
  auto body = tokenize(front_end, exchange);
  answer(front_end, exchange, std::move(body));
}

void handle_detokenize(FrontEnd& front_end, Exchange exchange) {
  auto body = detokenize(front_end, exchange);
  answer(front_end, exchange, std::move(body));
}

}  // namespace sluice
