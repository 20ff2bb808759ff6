// SPDX-License-Identifier: Apache-2.0
// Endpoints that answer at once: models, health, version, load, metrics, and what routers of
// prefill and decode workers ask for before the first request.
#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/hex.h"
#include "engine/core/utc_time.h"
#include "server/front/front_end.h"
#include "server/front/openmetrics.h"
#include "server/front/program_metrics.h"
#include "server/http/accept.h"
#include "server/http/api_errors.h"
#include "server/http/query.h"
#include "server/json/json_fields.h"
#include "server/json/json_writer.h"

namespace sluice {
namespace {

void write_model(JsonWriter& json,
                 const FrontEnd& front_end,
                 const ServedModel& served,
                 const std::string& name) {
  const ModelInfo& model = served.engine.model();
  json.open_object().key("id").string(name).key("object").string("model");
  json.key("created").integer(front_end.created).key("owned_by").string("sluice");
  json.key("root").string(model.path).key("parent").null();
  json.key("max_model_len").integer(model.max_model_len);
  json.key("meta").open_object();
  json.key("n_vocab").integer(model.vocab_size).key("n_params").integer(model.num_parameters);
  if (model.pooling) {
    const PoolingInfo& pooling = *model.pooling;
    json.key("pooling").open_object();
    json.key("task").string(pooling.is_classifier ? "classify" : "embed");
    json.key("type").string(to_string(pooling.type));
    json.key("max_tokens").integer(pooling.max_tokens);
    if (pooling.is_classifier) {
      json.key("function").string(to_string(pooling.function));
      json.key("labels").open_array();
      for (const std::string& label : pooling.labels) json.string(label);
      json.close_array();
    } else {
      json.key("dimensions").integer(pooling.width);
      json.key("normalized").boolean(pooling.normalizes);
    }
    json.close_object();
  }
  // Families that parse the model's answers; null: answers stay text.
  const OutputFamilies& families = served.families;
  const auto family = [&](const char* key, const auto* row, bool is_read) {
    json.key(key);
    if (row == nullptr || !is_read) {
      json.null();
    } else {
      json.string(name_of(*row));
    }
  };
  family("tool_call_parser", families.calls, families.reads_calls);
  family("reasoning_parser", families.reasoning, true);
  json.close_object().close_object();
}

void write_anthropic_model(JsonWriter& json,
                           const FrontEnd& front_end,
                           const ServedModel& served,
                           const std::string& name) {
  const ModelInfo& model = served.engine.model();
  const int64_t most = model.max_output_tokens > 0 ? model.max_output_tokens : model.max_model_len;
  json.open_object().key("type").string("model").key("id").string(name);
  json.key("display_name").string(name).key("created_at").string(utc_text(front_end.created));
  json.key("lifecycle").string("active").key("max_input_tokens").integer(model.max_model_len);
  json.key("max_tokens").integer(most).close_object();
}

// Some of the models that a client lists page by page.
struct ModelPage {
  std::span<const NamedModel> models;
  bool has_more;  // in the direction of the pages
};

// The models behind `after_id`, or those before `before_id`; without a limit all that the API
// allows in one page.
Expected<ModelPage> page_of(std::span<const NamedModel> models, std::string_view query) {
  constexpr int kMost = 1000;
  SLUICE_TRY(const int limit, page_limit(query, kMost, kMost));
  const std::string after = query_value(query, "after_id");
  const std::string before = query_value(query, "before_id");
  if (!after.empty() && !before.empty()) {
    return invalid("after_id and before_id cannot be used together.", "after_id");
  }
  if (!after.empty() || !before.empty()) {
    const auto found =
        std::ranges::find(models, after.empty() ? before : after, &NamedModel::name);
    const std::string param = after.empty() ? "before_id" : "after_id";
    if (found == models.end()) return invalid(param + " names no model.", param);
    const auto at = static_cast<size_t>(found - models.begin());
    models = after.empty() ? models.first(at) : models.subspan(at + 1);
  }
  const size_t count = std::min(models.size(), static_cast<size_t>(limit));
  const bool has_more = count < models.size();
  return ModelPage{before.empty() ? models.first(count) : models.last(count), has_more};
}

void write_anthropic_models(JsonWriter& json, const FrontEnd& front_end, const ModelPage& page) {
  json.open_object().key("data").open_array();
  for (const NamedModel& model : page.models) {
    write_anthropic_model(json, front_end, *model.served, model.name);
  }
  json.close_array().key("has_more").boolean(page.has_more);
  if (page.models.empty()) {
    json.key("first_id").null().key("last_id").null();
  } else {
    json.key("first_id").string(page.models.front().name);
    json.key("last_id").string(page.models.back().name);
  }
  json.close_object();
}

}  // namespace

void handle_models(FrontEnd& front_end, Exchange exchange) {
  HttpResponse response;
  JsonWriter json(response.body);
  if (exchange.request.is_anthropic) {
    const std::vector<NamedModel> models = front_end.named_models();
    const auto page = page_of(models, exchange.request.query);
    if (!page) return front_end.fail(exchange, page.error());
    write_anthropic_models(json, front_end, *page);
    return front_end.respond(exchange, std::move(response));
  }
  json.open_object().key("object").string("list").key("data").open_array();
  for (const auto& [name, served] : front_end.named_models()) {
    write_model(json, front_end, *served, name);
  }
  json.close_array().close_object();
  front_end.respond(exchange, std::move(response));
}

void handle_model(FrontEnd& front_end, Exchange exchange) {
  constexpr size_t kPrefixLength = sizeof "/v1/models/" - 1;
  const std::string name =
      percent_decoded(std::string_view(exchange.request.path).substr(kPrefixLength));
  const std::vector<NamedModel> models = front_end.named_models();
  const auto found = std::ranges::find(models, name, &NamedModel::name);
  if (found == models.end()) {
    return front_end.fail(exchange,
                          Error{ErrorCode::kNotFound,
                                "The model `" + show_text(name) + "` does not exist.",
                                "model",
                                std::string(kModelNotFound)});
  }
  HttpResponse response;
  JsonWriter json(response.body);
  if (exchange.request.is_anthropic) {
    write_anthropic_model(json, front_end, *found->served, name);
  } else {
    write_model(json, front_end, *found->served, name);
  }
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

// Answers like Mooncake's bootstrap server: engines by rank. Routers bring the name to decode
// workers, and do not ask again when this process has been restarted.
void handle_query(FrontEnd& front_end, Exchange exchange) {
  HttpResponse response;
  JsonWriter json(response.body);
  json.open_object().key("0").open_object();
  json.key("engine_id").string(front_end.engine_id).close_object().close_object();
  front_end.respond(exchange, std::move(response));
}

// Uses SGLang's names; model_path is a served name, because clients need no key.
void handle_server_info(FrontEnd& front_end, Exchange exchange) {
  const HandoffRole role = front_end.handoff.role;
  HttpResponse response;
  JsonWriter json(response.body);
  const std::string name = front_end.usual_model()->names.front();
  json.open_object().key("model_path").string(name).key("served_model_name").string(name);
  json.key("version").string(SLUICE_VERSION);
  json.key("disaggregation_mode").string(role == HandoffRole::kBoth ? "null" : to_string(role));
  json.key("tp_size").integer(front_end.config.tensor_parallel_size);
  json.key("dp_size").integer(1).key("load_balance_method").string("follow_bootstrap_room");
  json.key("max_running_requests").integer(front_end.config.max_num_seqs);
  const EngineStats stats = front_end.engine.stats();
  json.key("max_total_num_tokens").integer(stats.num_blocks_total * stats.block_size);
  if (const auto& info = front_end.engine.model().handoff) {
    json.key("disaggregation_bootstrap_port").integer(info->port);
  }
  json.close_object();
  front_end.respond(exchange, std::move(response));
}

void handle_model_info(FrontEnd& front_end, Exchange exchange) {
  const auto served = front_end.usual_model();
  const ModelInfo& model = served->engine.model();
  const std::string& name = served->names.front();
  HttpResponse response;
  JsonWriter json(response.body);
  json.open_object().key("model_path").string(name).key("served_model_name").string(name);
  json.key("model_type").string(model.architecture).key("is_generation").boolean(true);
  json.key("max_context_length").integer(model.max_model_len);
  json.key("vocab_size").integer(model.vocab_size);
  json.close_object();
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
  // Requests under way without this one.
  json.open_object().key("server_load").integer(front_end.num_requests() - 1).close_object();
  front_end.respond(exchange, std::move(response));
}

void handle_metrics(FrontEnd& front_end, Exchange exchange) {
  HttpResponse response;
  const std::string& accept = exchange.request.accept;
  const double open = accepted_weight(accept, "application/openmetrics-text", "1.0.0");
  const bool is_open = open > 0 && open >= accepted_weight(accept, "text/plain", "0.0.4");
  response.content_type = is_open ? kOpenMetricsType : "text/plain; version=0.0.4; charset=utf-8";
  const EngineStats stats = front_end.engine.stats();
  const auto usual = front_end.usual_model();
  ProgramInfo program;
  program.backend = front_end.engine.model().backend;
  if (front_end.tls) program.certificate_expiry_s = front_end.tls->certificate_expiry_s();
  response.body = metrics_text({.stats = stats,
                                .config = front_end.config,
                                .model_name = usual->names.front(),
                                .routes = front_end.routes,
                                .http = front_end.http_counters,
                                .grpc = front_end.grpc_counters,
                                .finished = front_end.finish_counters,
                                .answers = front_end.answer_counters,
                                .requests = front_end.request_histograms,
                                .program = program,
                                .handoff_fallbacks = front_end.handoff_fallbacks,
                                .num_ignored_arguments = front_end.num_ignored_arguments.load(),
                                .num_lost = front_end.num_lost.load(),
                                .traces = front_end.tracer.counts()},
                               is_open ? MetricsForm::kOpenMetrics : MetricsForm::kText);
  front_end.respond(exchange, std::move(response));
}

}  // namespace sluice
