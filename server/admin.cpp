// SPDX-License-Identifier: Apache-2.0
// Endpoints that answer at once: models, health, version, load, metrics.
#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <utility>

#include "server/api/api_errors.h"
#include "server/front_end.h"
#include "server/json/json_fields.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

void write_model(JsonWriter& json, const FrontEnd& front_end, const std::string& name) {
  const ModelInfo& model = front_end.engine.model();
  json.open_object().key("id").string(name).key("object").string("model");
  json.key("created").integer(front_end.created).key("owned_by").string("sluice");
  json.key("root").string(model.path).key("parent").null();
  json.key("max_model_len").integer(model.max_model_len);
  json.key("meta").open_object();
  json.key("n_vocab").integer(model.vocab_size).key("n_params").integer(model.num_parameters);
  json.close_object().close_object();
}

// "org%2Fname" as "org/name": clients that put a name into a path encode it.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned char byte = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() &&
        std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

void handle_models(FrontEnd& front_end, Exchange exchange) {
  HttpResponse response;
  JsonWriter json(response.body);
  json.open_object().key("object").string("list").key("data").open_array();
  for (const std::string& name : front_end.model_names) write_model(json, front_end, name);
  json.close_array().close_object();
  front_end.respond(exchange, std::move(response));
}

void handle_model(FrontEnd& front_end, Exchange exchange) {
  constexpr size_t kPrefixLength = sizeof "/v1/models/" - 1;
  const std::string name =
      percent_decoded(std::string_view(exchange.request.path).substr(kPrefixLength));
  const auto& names = front_end.model_names;
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    return front_end.fail(exchange,
                          Error{ErrorCode::kNotFound,
                                "The model `" + show_text(name) + "` does not exist.",
                                "model",
                                "model_not_found"});
  }
  HttpResponse response;
  JsonWriter json(response.body);
  write_model(json, front_end, name);
  front_end.respond(exchange, std::move(response));
}

void handle_health(FrontEnd& front_end, Exchange exchange) {
  const std::string reason = front_end.illness();
  if (!reason.empty()) {
    return front_end.fail(exchange, Error{ErrorCode::kUnavailable, reason, {}, {}});
  }
  HttpResponse response;
  response.body = "{\"status\":\"ok\"}";
  front_end.respond(exchange, std::move(response));
}

void handle_version(FrontEnd& front_end, Exchange exchange) {
  HttpResponse response;
  response.body = "{\"version\":\"" SLUICE_VERSION "\"}";
  front_end.respond(exchange, std::move(response));
}

void handle_load(FrontEnd& front_end, Exchange exchange) {
  HttpResponse response;
  JsonWriter json(response.body);
  // Requests under way, this one not counted.
  json.open_object().key("server_load").integer(front_end.num_requests() - 1).close_object();
  front_end.respond(exchange, std::move(response));
}

void handle_metrics(FrontEnd& front_end, Exchange exchange) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = metrics_text(front_end.engine.stats(),
                               front_end.config,
                               front_end.model_names.front(),
                               front_end.http_counters,
                               front_end.grpc_counters,
                               front_end.finish_counters,
                               front_end.answer_counters,
                               front_end.num_ignored_arguments.load());
  front_end.respond(exchange, std::move(response));
}

}  // namespace sluice
