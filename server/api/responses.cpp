// SPDX-License-Identifier: Apache-2.0
// The handlers of /v1/responses: a new answer, one that is kept, also as events, its input, its
// deletion, and the count of a request's tokens. Called on the I/O thread of the connection.
#include <algorithm>
#include <array>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "server/api/item_references.h"
#include "server/api/response_replay.h"
#include "server/api/response_tools.h"
#include "server/api/responses_codec.h"
#include "server/api/responses_format.h"
#include "server/api/start_generation.h"
#include "server/http/query.h"
#include "server/http/random_id.h"
#include "server/json/json_fields.h"
#include "server/json/json_reader.h"
#include "server/json/json_writer.h"
#include "server/prompt/prompt.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

Error not_found(const std::string& id) {
  return Error{ErrorCode::kNotFound,
               "Response `" + show_text(id) + "` is not, or no longer, kept here.",
               "response_id",
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
  if (stored == nullptr) {
    // Clients that know this code send the whole conversation again.
    return make_error(ErrorCode::kInvalidArgument,
                      "Previous response with id '" + show_text(id->get<std::string>()) +
                          "' not found: it is not, or no longer, kept here.",
                      param,
                      "previous_response_not_found");
  }
  SLUICE_TRY_VOID(keep_memory_for(stored->messages.size()));
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
  size_t low = 0;  // too long from here; from `high` on tried, or nothing is left
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

// What an answer can hold beside its text. Reasoning is in each answer as text; what is not
// log-probabilities is of tools that a server runs itself.
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
  }
  return {};
}

// A checked request, and the chat that it means.
struct ReadRequest {
  Json body;
  Json chat;
  std::vector<ResponseTool> tools;
  std::vector<size_t> items;  // of the chat's messages
};

Expected<ReadRequest> read_request(const FrontEnd& front_end, Exchange& exchange) {
  ReadRequest read;
  const int32_t max_depth = front_end.config.max_json_depth;
  SLUICE_TRY(read.body, parse_body(exchange.request.body, max_depth));
  SLUICE_TRY_VOID(check_parameters(read.body, Endpoint::kResponses, exchange.ignored));
  SLUICE_TRY_VOID(check_include(read.body));
  if (const auto input = read.body.find("input"); input != read.body.end()) {
    SLUICE_TRY_VOID(resolve_references(
        *front_end.responses, exchange.tenant_salt, front_end.config.max_body_bytes, *input));
  }
  SLUICE_TRY(const Json earlier, earlier_messages(front_end, exchange.tenant_salt, read.body));
  SLUICE_TRY(
      read.chat,
      chat_of_responses(read.body, earlier, exchange.ignored, read.tools, &read.items));
  return read;
}

// Adds the request's own input to its record, as items with names.
void add_input_items(const Json& body, ResponseRecord& record) {
  Json items = body["input"];
  if (items.is_string()) {
    items = Json::array({{{"type", "message"}, {"role", "user"}, {"content", items}}});
  }
  record.items = "[";
  for (Json& item : items) {
    if (find_field(item, "type") == nullptr) item["type"] = "message";
    const bool is_message = item["type"] == "message";
    Json& id = item["id"];
    if (!id.is_string()) id = random_id(is_message ? "msg_" : "item_");
    if (is_message && find_field(item, "status") == nullptr) item["status"] = "completed";
    if (is_message && item["content"].is_string()) {
      const bool is_answer = item["role"] == "assistant";
      Json part = {{"type", is_answer ? "output_text" : "input_text"}, {"text", item["content"]}};
      if (is_answer) part["annotations"] = Json::array();
      item["content"] = Json::array({std::move(part)});
    }
    if (!record.input.empty()) record.items += ',';
    const std::string text = item.dump(-1, ' ', false, Json::error_handler_t::replace);
    record.input.push_back({item["id"].get<std::string>(), record.items.size(), text.size()});
    record.items += text;
  }
  record.items += ']';
}

// The text of a message: a string, or parts.
std::string text_of_content(const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  std::string text;
  for (const Json& part : content) text += string_member(part, "text");
  return text;
}

Expected<DecodedRequest> decode(const FrontEnd& front_end,
                                const ValidationContext& context,
                                Exchange& exchange) {
  SLUICE_TRY(ReadRequest read, read_request(front_end, exchange));
  const Json& body = read.body;
  const Json& chat = read.chat;
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
  const bool may_drop = truncation != nullptr && *truncation == "auto";
  auto request = validate_chat(context, chat, may_drop, exchange.ignored);
  if (!request) {
    return tl::unexpected(with_responses_names(std::move(request).error(), read.items));
  }
  name_grammars(*request, responses_names());
  ResponseRecord record;
  const bool is_stored = wants_store && front_end.responses->is_on();
  const bool is_bounded =
      find_field(body, "max_output_tokens") != nullptr || context.model.max_output_tokens > 0;
  record.settings =
      response_settings(body, is_stored, request->requests.front().sampling, is_bounded);
  record.tools = std::move(read.tools);
  if (is_stored) {
    Json messages = chat["messages"];
    if (find_field(body, "instructions") != nullptr) messages.erase(0);
    if (chat.contains("continue_final_message")) {
      record.begun = text_of_content(messages.back()["content"]);
      record.begun_reasoning = string_member(messages.back(), "reasoning_content");
      messages.erase(messages.size() - 1);
    }
    record.messages = messages.dump(-1, ' ', false, Json::error_handler_t::replace);
    add_input_items(body, record);
    record.tenant = exchange.tenant_salt;
    record.store = front_end.responses.get();
  }
  auto format =
      std::make_unique<ResponsesFormat>(context.tokenizer, *request, std::move(record));
  return DecodedRequest{std::move(*request), std::move(format)};
}

// The segment after "/v1/responses/".
std::string id_in_path(const Exchange& exchange) {
  constexpr size_t kPrefixLength = sizeof "/v1/responses/" - 1;
  const std::string rest = exchange.request.path.substr(kPrefixLength);
  return rest.substr(0, rest.find('/'));
}

// A page of items: those that follow `after`, at most `limit`, the newest first unless `order` is
// asc.
Expected<std::string> items_page(const StoredResponse& stored, const std::string& query) {
  const std::string order = query_value(query, "order");
  if (!order.empty() && order != "asc" && order != "desc") {
    return invalid("order must be asc or desc.", "order");
  }
  SLUICE_TRY(const int limit, page_limit(query, 20, 100));
  const std::vector<StoredItem>& items = stored.input;
  const auto nth = [&](size_t i) -> const StoredItem& {
    return items[order == "asc" ? i : items.size() - 1 - i];
  };
  const std::string after = query_value(query, "after");
  size_t begin = 0;
  if (!after.empty()) {
    while (begin < items.size() && nth(begin).id != after) ++begin;
    if (begin++ == items.size()) return invalid("after names no item of this response.", "after");
  }
  const size_t end = std::min(begin + static_cast<size_t>(limit), items.size());
  std::string page;
  JsonWriter json(page);
  json.open_object().key("object").string("list").key("data").open_array();
  for (size_t i = begin; i < end; ++i) {
    json.raw(std::string_view(stored.items).substr(nth(i).begin, nth(i).size));
  }
  json.close_array().key("first_id").string(begin < end ? nth(begin).id : "");
  json.key("last_id").string(begin < end ? nth(end - 1).id : "");
  json.key("has_more").boolean(end < items.size()).close_object();
  return page;
}

// The answer, or its events where the query asks for a stream.
Expected<HttpResponse> kept_response(const StoredResponse& stored, const std::string& query) {
  HttpResponse response;
  const std::string stream = query_value(query, "stream");
  if (stream.empty() || stream == "false") {
    response.body = stored.response;
    return response;
  }
  if (stream != "true") return invalid("stream must be true or false.", "stream");
  if (static_cast<int64_t>(stored.response.size()) > kLargeAnswer) {
    return unsupported("An answer of more than " + std::to_string(kLargeAnswer) +
                           " bytes is not streamed again; leave `stream` out.",
                       "stream");
  }
  // Events of the first stream have other numbers: its texts came in many deltas.
  if (!query_value(query, "starting_after").empty()) {
    return unsupported("A kept answer is streamed from its beginning; leave `starting_after` out.",
                       "starting_after");
  }
  SLUICE_TRY_VOID(keep_memory_for(stored.response.size()));
  response.content_type = "text/event-stream";
  response.body = response_events(Json::parse(stored.response));
  return response;
}

Expected<std::string> count_tokens(const FrontEnd& front_end,
                                   const ValidationContext& context,
                                   Exchange& exchange) {
  SLUICE_TRY(const ReadRequest read, read_request(front_end, exchange));
  SLUICE_TRY_VOID(resolve_model(context.model_names, read.chat));
  const auto prompt = chat_prompt(context, read.chat);
  if (!prompt) return tl::unexpected(with_responses_names(prompt.error(), read.items));
  std::string out;
  JsonWriter json(out);
  json.open_object().key("object").string("response.input_tokens");
  json.key("input_tokens").integer(static_cast<int64_t>(prompt->ids.size())).close_object();
  return out;
}

}  // namespace

void handle_responses(FrontEnd& front_end, Exchange exchange) {
  start_generation(
      front_end,
      std::move(exchange),
      [&front_end](const ValidationContext& context, Exchange& asked) {
        return decode(front_end, context, asked);
      });
}

void handle_response(FrontEnd& front_end, Exchange exchange) {
  const std::string id = id_in_path(exchange);
  const auto stored = front_end.responses->find(exchange.tenant_salt, id);
  if (stored == nullptr) return front_end.fail(exchange, not_found(id));
  auto response = kept_response(*stored, exchange.request.query);
  if (!response) return front_end.fail(exchange, response.error());
  front_end.respond(exchange, std::move(*response));
}

void handle_response_items(FrontEnd& front_end, Exchange exchange) {
  const std::string id = id_in_path(exchange);
  const auto stored = front_end.responses->find(exchange.tenant_salt, id);
  if (stored == nullptr) return front_end.fail(exchange, not_found(id));
  auto page = items_page(*stored, exchange.request.query);
  if (!page) return front_end.fail(exchange, page.error());
  HttpResponse response;
  response.body = std::move(*page);
  front_end.respond(exchange, std::move(response));
}

// Nothing runs in the background: what is kept is complete, and stays as it is.
void handle_cancel_response(FrontEnd& front_end, Exchange exchange) {
  handle_response(front_end, std::move(exchange));
}

void handle_count_response_tokens(FrontEnd& front_end, Exchange exchange) {
  auto body = front_end.read_request(
      exchange.tenant_salt,
      exchange.arrival,
      exchange.request.body.size(),
      [&](const ValidationContext& context) {
        return count_tokens(front_end, context, exchange);
      });
  front_end.note_ignored(exchange.ignored);
  if (!body) return front_end.fail(exchange, body.error());
  HttpResponse response;
  response.body = std::move(*body);
  front_end.respond(exchange, std::move(response));
}

void handle_compact_response(FrontEnd& front_end, Exchange exchange) {
  front_end.fail(exchange,
                 Error{ErrorCode::kUnsupported,
                       "/v1/responses/compact is not offered; send a shorter `input`, or "
                       "`truncation` \"auto\".",
                       {},
                       "unsupported_endpoint"});
}

void handle_delete_response(FrontEnd& front_end, Exchange exchange) {
  const std::string id = id_in_path(exchange);
  if (!front_end.responses->erase(exchange.tenant_salt, id)) {
    return front_end.fail(exchange, not_found(id));
  }
  HttpResponse response;
  JsonWriter json(response.body);
  json.open_object().key("id").string(id).key("object").string("response");
  json.key("deleted").boolean(true).close_object();
  front_end.respond(exchange, std::move(response));
}

}  // namespace sluice
