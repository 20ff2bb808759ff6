// SPDX-License-Identifier: Apache-2.0
// POST /tokenize and /detokenize and GET /tokenizer_info, in vLLM's shapes, and /tokenize with
// `inputs` and /decode in those of text-embeddings-inference (TEI).
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/text/utf8.h"
#include "server/api/pooled_inputs.h"
#include "server/api/request_validator.h"
#include "server/api/text_offsets.h"
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

// --- TEI -------------------------------------------------------------------------------------

// The bytes of a text that each of its tokens stands for, without spaces that are not the token's.
std::vector<TextRange> places_of(const Tokenizer& tokenizer,
                                 std::span<const TokenId> ids,
                                 std::string_view text) {
  std::vector<size_t> characters;
  for (size_t at = 0; at < text.size(); at += next_utf8_part(text, at).length) {
    characters.push_back(at);
  }
  characters.push_back(text.size());
  const std::vector<int64_t> offsets = text_offsets(tokenizer, ids, text);
  std::vector<TextRange> places;
  places.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const std::string_view own = tokenizer.token_bytes(ids[i]);
    size_t begin = characters[static_cast<size_t>(offsets[i])];
    size_t end =
        i + 1 < ids.size() ? characters[static_cast<size_t>(offsets[i + 1])] : text.size();
    while (begin < end && text[begin] == ' ' && !own.starts_with(' ')) ++begin;
    while (begin < end && text[end - 1] == ' ' && !own.ends_with(' ')) --end;
    places.push_back({begin, end});
  }
  return places;
}

void write_tei_token(JsonWriter& json, TokenId id, std::string_view text, const TextRange* place) {
  json.open_object().key("id").integer(id).key("text").string(text);
  json.key("special").boolean(place == nullptr);
  if (place == nullptr) {  // one that begins or ends all texts
    json.key("start").null().key("stop").null();
  } else {
    json.key("start").integer(static_cast<int64_t>(place->begin));
    json.key("stop").integer(static_cast<int64_t>(place->end));
  }
  json.close_object();
}

Expected<std::string> tei_tokens(const ValidationContext& context, const Json& body) {
  const Json& inputs = *find_field(body, "inputs");
  const Json texts = inputs.is_array() ? inputs : Json::array({inputs});
  SLUICE_TRY_VOID(check_num_texts(context, "inputs", texts.size()));
  SLUICE_TRY(const bool adds_special, read_bool(body, "add_special_tokens", true));
  const PoolingInfo none;
  SLUICE_TRY(const std::string prompt, read_prompt(context.model.pooling.value_or(none), body));
  const Tokenizer& tokenizer = context.tokenizer;
  std::string out;
  JsonWriter json(out);
  json.open_array();
  for (const Json& each : texts) {
    if (!each.is_string()) {
      return invalid("inputs must be a text or a list of texts, got " + show_value(each) + ".",
                     "inputs");
    }
    const std::string text = prompt + each.get<std::string>();
    std::vector<TokenId> ids;
    SLUICE_TRY_VOID(tokenizer.encode(text, SpecialText::kParse, ids));
    const std::vector<TextRange> places = places_of(tokenizer, ids, text);
    json.open_array();
    const auto write_special = [&](const std::vector<TokenId>& special) {
      if (!adds_special) return;
      for (const TokenId id : special) write_tei_token(json, id, tokenizer.token_name(id), nullptr);
    };
    write_special(tokenizer.prefix_tokens());
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto& [begin, end] = places[i];
      write_tei_token(json, ids[i], std::string_view(text).substr(begin, end - begin), &places[i]);
    }
    write_special(tokenizer.suffix_tokens());
    json.close_array();
  }
  json.close_array();
  return out;
}

// {"ids": [...] or [[...]]}: the text of each list.
Expected<std::string> tei_texts(const ValidationContext& context, Exchange& exchange) {
  SLUICE_TRY(const Json body, read_body(context, exchange, Endpoint::kTeiDecode));
  const Json* const ids = find_field(body, "ids");
  if (ids == nullptr || !ids->is_array()) {
    return invalid("ids must be a list of token ids, or of such lists.", "ids");
  }
  SLUICE_TRY(const bool skips, read_bool(body, "skip_special_tokens", true));
  const bool are_lists = !ids->empty() && ids->front().is_array();
  const Json lists = are_lists ? *ids : Json::array({*ids});
  SLUICE_TRY_VOID(check_num_texts(context, "ids", lists.size()));
  std::string out;
  JsonWriter json(out);
  json.open_array();
  for (const Json& list : lists) {
    SLUICE_TRY(auto tokens, to_token_ids(list, "ids", context.model.vocab_size));
    if (skips) std::erase_if(tokens, [&](TokenId id) { return context.tokenizer.is_special(id); });
    json.string(decode_tokens(context.tokenizer, tokens));
  }
  json.close_array();
  return out;
}

// --- vLLM ------------------------------------------------------------------------------------

Expected<std::string> tokenize(const ValidationContext& context, Exchange& exchange) {
  SLUICE_TRY(const Json body, read_body(context, exchange, Endpoint::kTokenize));
  if (find_field(body, "inputs") != nullptr) {
    exchange.error_form = ErrorForm::kTei;
    return tei_tokens(context, body);
  }
  if (find_field(body, "prompt_name") != nullptr) {
    return invalid("prompt_name goes with inputs.", "prompt_name");
  }
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

void handle_tei_decode(FrontEnd& front_end, Exchange exchange) {
  answer(front_end, std::move(exchange), tei_texts);
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
