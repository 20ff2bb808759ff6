// SPDX-License-Identifier: Apache-2.0
// POST /tokenize and /detokenize and GET /tokenizer_info, in vLLM's shapes.
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

Expected<Json> read_body(const ValidationContext& context, Exchange& exchange, Endpoint endpoint) {
  SLUICE_TRY(Json body, parse_body(exchange.request.body, context.config.max_json_depth));
  SLUICE_TRY_VOID(check_parameters(body, endpoint, exchange.ignored));
  SLUICE_TRY(const std::string model, resolve_model(context.model_names, body));
  return body;
}

Expected<std::string> tokenize(const ValidationContext& context, Exchange& exchange) {
  SLUICE_TRY(const Json body, read_body(context, exchange, Endpoint::kTokenize));
  const Tokenizer& tokenizer = context.tokenizer;
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
  json.key("max_model_len").integer(context.model.max_model_len);
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

Expected<std::string> detokenize(const ValidationContext& context, Exchange& exchange) {
  SLUICE_TRY(const Json body, read_body(context, exchange, Endpoint::kDetokenize));
  const Json* tokens = find_field(body, "tokens");
  if (tokens == nullptr) {
    return make_error(ErrorCode::kInvalidArgument, "tokens is missing.", "tokens");
  }
  SLUICE_TRY(const auto ids, to_token_ids(*tokens, "tokens", context.model.vocab_size));
  const std::string text = decode_tokens(context.tokenizer, ids);
  std::string out;
  JsonWriter json(out);
  json.open_object().key("prompt").string(text).close_object();
  return out;
}

template <typename Read>
void answer(FrontEnd& front_end, Exchange exchange, const Read& read) {
  const auto body = front_end.read_request(
      exchange.tenant_salt,
      exchange.arrival,
      exchange.request.body.size(),
      [&](const ValidationContext& context) {
        return read(context, exchange);
      });
  front_end.note_ignored(exchange.ignored);
  if (!body) return front_end.fail(exchange, body.error());
  HttpResponse response;
  response.body = *body;
  front_end.respond(exchange, std::move(response));
}

}  // namespace

void handle_tokenize(FrontEnd& front_end, Exchange exchange) {
  answer(front_end, std::move(exchange), tokenize);
}

void handle_detokenize(FrontEnd& front_end, Exchange exchange) {
  answer(front_end, std::move(exchange), detokenize);
}

// Answers with what clients need to render chats themselves and tokenize here, under the names of
// tokenizer_config.json.
void handle_tokenizer_info(FrontEnd& front_end, Exchange exchange) {
  if (!front_end.config.enable_tokenizer_info_endpoint) {
    return front_end.fail(exchange,
                          Error{ErrorCode::kNotFound,
                                "/tokenizer_info is off; --enable-tokenizer-info-endpoint turns it "
                                "on.",
                                {},
                                {}});
  }
  const auto served = front_end.usual_model();
  const Tokenizer& tokenizer = served->engine.tokenizer();
  HttpResponse response;
  JsonWriter json(response.body);
  json.open_object().key("tokenizer_class").string("PreTrainedTokenizerFast");
  json.key("model_max_length").integer(served->engine.model().max_model_len);
  json.key("add_bos_token").boolean(tokenizer.add_bos());
  for (const NamedToken& token : tokenizer.named_tokens()) json.key(token.name).string(token.text);
  if (!served->template_source.empty()) json.key("chat_template").string(served->template_source);
  json.close_object();
  front_end.respond(exchange, std::move(response));
}

}  // namespace sluice
