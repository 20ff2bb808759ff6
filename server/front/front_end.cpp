// SPDX-License-Identifier: Apache-2.0
#include "server/front/front_end.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <string_view>
#include <utility>

#include "engine/core/descriptor_limit.h"
#include "engine/core/hex.h"
#include "engine/core/incoming_memory.h"
#include "engine/core/log.h"
#include "engine/core/times.h"
#include "engine/tokenizer/tokenizer.h"
#include "server/front/choice_seed.h"
#include "server/front/start_check.h"
#include "server/http/api_errors.h"
#include "server/http/random_id.h"
#include "server/prompt/validation_context.h"
#include "server/traces/request_span.h"

namespace sluice {
namespace {

// Returns the engine's name with its address: peers need nothing else to fetch from it.
std::string engine_id_of(const HandoffConfig& handoff, const std::optional<HandoffInfo>& info) {
  std::string name = handoff.engine_id.empty() ? random_id("") : handoff.engine_id;
  if (info) name += "@" + info->host + ":" + std::to_string(info->port);
  return name;
}

// Reads the settings of traces. Errors in the environment, which may be that of a whole cluster,
// only turn traces off, as OpenTelemetry asks, unless this server's own knob asks for traces.
Expected<std::optional<TraceSettings>> chosen_traces(const Config& config) {
  auto settings = trace_settings(config, [](const char* name) { return std::getenv(name); });
  if (settings || !config.otlp_traces_endpoint.empty()) return settings;
  log_event(LogLevel::kWarning, "traces_off", "reason", settings.error().message);
  return std::optional<TraceSettings>();
}

// Returns --max-connections, or fewer where the system gives the process too few descriptors, of
// which others than clients' connections take some.
int64_t connections_within_limit(const Config& config) {
  constexpr int64_t kOthers = 128;       // files, connections to other servers
  constexpr int64_t kKvConnections = 192;  // at --kv-listen, which bounds them, and their transfers
  constexpr int64_t kPorts = 3;            // each has its reserve
  int64_t room = raise_descriptor_limit() - kOthers - kPorts * config.reserved_connections;
  if (!config.kv_listen.empty()) room -= kKvConnections;
  if (room >= config.max_connections) return config.max_connections;
  const int64_t most = std::max<int64_t>(room, 1);
  log_event(LogLevel::kWarning,
            "few_descriptors",
            "max_connections",
            config.max_connections,
            "within_limit",
            most);
  return most;
}

// Tells whether the path, which has no slash at its end, is among those of a knob.
bool is_listed(std::string_view path, const std::vector<std::string>& paths) {
  return std::ranges::any_of(paths, [&](std::string_view listed) {
    if (listed.size() > 1 && listed.ends_with('/')) listed.remove_suffix(1);
    return listed == path;
  });
}

// The method in the table of routes that answers the request's.
std::string_view wanted_method(const HttpRequest& request) {
  return request.method == "HEAD" ? std::string_view("GET") : std::string_view(request.method);
}

}  // namespace

void add_trace(const TraceContext& trace, LogLine& line) {
  if (!trace.is_set()) return;
  line.add("trace_id", to_hex(trace.trace_id)).add("span_id", to_hex(trace.span_id));
}

void add_ignored(const IgnoredArguments& ignored, HttpHeaders& headers) {
  if (ignored.size() > 0) headers.emplace_back(kIgnoredArgumentsHeader, ignored.header_value());
}

FrontEnd::FrontEnd(const Config& server_config,
                   std::span<const Route> route_table,
                   HandoffConfig handoff_part,
                   Engine& served,
                   std::shared_ptr<const ServedModel> model,
                   std::unique_ptr<TlsContext> tls_context,
                   std::optional<TraceSettings> traces)
    : config(server_config),
      routes(route_table),
      handoff(std::move(handoff_part)),
      engine_id(engine_id_of(handoff, served.model().handoff)),
      engine(served),
      authenticator(server_config),
      bodies(incoming_body_bytes(server_config)),
      responses(std::make_unique<ResponseStore>(server_config.response_store_size)),
      tls(std::move(tls_context)),
      cors(server_config),
      tracer(std::move(traces)),
      start(std::chrono::steady_clock::now()),
      created(static_cast<int64_t>(std::time(nullptr))),
      most_connections_(connections_within_limit(server_config)),
      models_{{model->kept, std::move(model)}} {}

FrontEnd::~FrontEnd() { engine.watch_kv_transfers(nullptr); }

Expected<void> check_front_end(const Config& config) {
  SLUICE_TRY_VOID(check_model_knobs(config));
  SLUICE_TRY_VOID(handoff_config(config));
  SLUICE_TRY_VOID(TlsContext::create(config));
  SLUICE_TRY_VOID(chosen_traces(config));
  return Authenticator(config).load();
}

Expected<std::unique_ptr<FrontEnd>> FrontEnd::create(const Config& config,
                                                     Engine& engine,
                                                     std::span<const Route> routes) {
  const auto versions = engine.versions();
  SLUICE_TRY(auto model,
             versions.empty() ? ServedModel::create(config, engine, nullptr)
                              : ServedModel::create(config, *versions.front(), versions.front()));
  SLUICE_TRY(HandoffConfig part, handoff_config(config));
  SLUICE_TRY(auto tls, TlsContext::create(config));
  SLUICE_TRY(auto traces, chosen_traces(config));
  std::unique_ptr<FrontEnd> made(new FrontEnd(config,
                                              routes,
                                              std::move(part),
                                              engine,
                                              std::move(model),
                                              std::move(tls),
                                              std::move(traces)));
  SLUICE_TRY_VOID(made->authenticator.load());
  if (made->tracer.is_recording()) engine.watch_kv_transfers(&made->transfer_spans);
  return made;
}

void FrontEnd::reload() {
  Expected<void> done = authenticator.load();
  if (done && tls != nullptr) done = tls->reload();
  if (done) {
    log_event(LogLevel::kInfo, "reloaded");
  } else {
    log_event(LogLevel::kError, "reload_failed", "reason", done.error().message);
  }
}

const Route* FrontEnd::route_of(const HttpRequest& header) const {
  const auto route = std::ranges::find_if(routes, [&](const Route& one) {
    return one.method == wanted_method(header) && route_matches(one, header.path);
  });
  return route == routes.end() ? nullptr : &*route;
}

bool FrontEnd::is_costly(const HttpRequest& header) const {
  const Route* const route = route_of(header);
  if (route == nullptr || !route->reads_kept || !responses->is_on()) return false;
  const auto tenant = authenticator.find_tenant(header);
  return tenant != nullptr && responses->has_large(tenant->salt());
}

bool FrontEnd::wants_body(const HttpRequest& header) const {
  const Route* const route = route_of(header);
  if (route == nullptr) return false;
  if (header.is_reserved && route->auth != RouteAuth::kProbe) return false;
  if (cors.refusal(header, route->auth != RouteAuth::kKey)) return false;
  return route->auth != RouteAuth::kKey || authenticator.find_tenant(header) != nullptr;
}

void FrontEnd::handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer) {
  Exchange exchange;
  exchange.arrival = std::chrono::steady_clock::now();
  exchange.writer = std::move(writer);
  exchange.request = std::move(request);
  exchange.route_idx = kUnroutedHandler;
  exchange.ignored = IgnoredArguments(unknown_arguments_rule(config));
  const HttpRequest& seen = exchange.request;
  if (seen.is_anthropic) exchange.error_form = ErrorForm::kAnthropic;
  if (seen.method == "OPTIONS") {
    HttpResponse response;
    response.status = 204;
    response.headers = cors.preflight_headers(seen.origin, seen.wanted_headers);
    return respond(exchange, std::move(response));
  }
  std::string allowed;
  for (size_t i = 0; i < routes.size(); ++i) {
    const Route& route = routes[i];
    if (!route_matches(route, seen.path)) continue;
    if (route.method != wanted_method(seen)) {
      allowed += (allowed.empty() ? "" : ", ") + std::string(route.method);
      continue;
    }
    exchange.route_idx = i;
    if (route.errors != ErrorForm::kOpenAi) exchange.error_form = route.errors;
    if (exchange.request.is_reserved && route.auth != RouteAuth::kProbe) {
      return refuse(exchange,
                    Error{ErrorCode::kUnavailable, "Too many connections are open.", {}, {}});
    }
    if (auto refusal = cors.refusal(seen, route.auth != RouteAuth::kKey)) {
      return refuse(exchange, *refusal);
    }
    if (route.auth == RouteAuth::kKey) {
      exchange.tenant = authenticator.find_tenant(seen);
      if (exchange.tenant == nullptr) {
        return refuse(exchange, Error{ErrorCode::kUnauthenticated, "Invalid API key.", {}, {}});
      }
      exchange.tenant_salt = exchange.tenant->salt();
    }
    return route.handler(*this, std::move(exchange));
  }
  if (allowed.empty()) {
    return respond(exchange,
                   http_error_response(404,
                                       config.node_rank > 0
                                           ? "This node computes for node 0, which takes requests."
                                           : "There is nothing at this path.",
                                       exchange.error_form,
                                       exchange.request.request_id));
  }
  HttpResponse response = http_error_response(405,
                                              "This path allows only " + allowed + ".",
                                              exchange.error_form,
                                              exchange.request.request_id);
  response.headers.emplace_back("Allow", allowed);
  respond(exchange, std::move(response));
}

void FrontEnd::log_request(const Exchange& exchange, int status) const {
  if (!config.enable_log_requests) return;
  if (is_listed(exchange.request.path, config.disable_access_log_for_endpoints)) return;
  const Route* const route =
      exchange.route_idx < routes.size() ? &routes[exchange.route_idx] : nullptr;
  const bool is_probe = route != nullptr && route->auth == RouteAuth::kProbe && status < 400;
  const LogLevel level = is_probe ? LogLevel::kDebug : LogLevel::kInfo;
  if (!log_enabled(level)) return;
  const std::chrono::duration<double, std::milli> elapsed =
      std::chrono::steady_clock::now() - exchange.arrival;
  const HttpRequest& request = exchange.request;
  LogLine line(level, "request");
  line.add("id", request.request_id).add("method", request.method);
  line.add("path", request.path).add("status", status).add("ms", elapsed.count());
  line.add("client", request.client.empty() ? "unix" : request.client);
  line.add("api", api_name(exchange.error_form));
  if (exchange.tenant != nullptr) line.add("key", exchange.tenant->name());
  if (!exchange.model.empty()) line.add("model", exchange.model).add("stream", exchange.is_stream);
  if (!exchange.finish_reasons.empty()) line.add("finish", exchange.finish_reasons);
  add_trace(exchange.request.trace, line);
  if (exchange.usage) log_usage(*exchange.usage, line);
  line.emit();
}

void FrontEnd::respond(const Exchange& exchange, HttpResponse response) {
  http_counters.count(exchange.route_idx, response.status);
  log_request(exchange, response.status);
  add_ignored(exchange.ignored, response.headers);
  exchange.writer->send(std::move(response));
}

void FrontEnd::fail(const Exchange& exchange, const Error& error) {
  respond(exchange, error_response(error, exchange.error_form, exchange.request.request_id));
}

void FrontEnd::refuse(Exchange& exchange, const Error& error) {
  RequestSpan span(tracer, exchange.request.trace, exchange.arrival);
  exchange.request.trace = span.context();
  HttpResponse response = error_response(error, exchange.error_form, exchange.request.request_id);
  if (span.is_recorded()) {
    const std::string route(route_name(routes, exchange.route_idx));
    span.set_name(exchange.request.method + " " + route);
    span.add("http.request.method", exchange.request.method);
    span.add("http.route", route);
    span.add("http.response.status_code", int64_t{response.status});
    if (!exchange.request.request_id.empty()) {
      span.add("gen_ai.request.id", exchange.request.request_id);
    }
    span.set_error(error);
    span.end();
  }
  respond(exchange, std::move(response));
}

void FrontEnd::note_ignored(const IgnoredArguments& ignored) {
  if (ignored.size() == 0) return;
  num_ignored_arguments.fetch_add(ignored.size(), std::memory_order_relaxed);
  constexpr size_t kMaxLogged = 256;
  const std::scoped_lock lock(ignored_mutex_);
  for (const std::string& name : ignored.names()) {
    if (ignored_names_.size() == kMaxLogged) return;
    if (ignored_names_.insert(name).second) {
      log_event(LogLevel::kWarning, "ignored_argument", "name", name);
    }
  }
}

void FrontEnd::note_fallbacks(const FallbackCounts& fallbacks) {
  for (size_t i = 0; i < fallbacks.size(); ++i) {
    if (fallbacks[i] > 0) handoff_fallbacks.count(static_cast<HandoffFallback>(i), fallbacks[i]);
  }
}

uint64_t FrontEnd::next_seed() { return choice_seed(config.seed, num_seeds_.fetch_add(1) + 1); }

ValidationContext FrontEnd::validation_context(std::shared_ptr<const ServedModel> served,
                                               uint64_t tenant_salt,
                                               std::chrono::steady_clock::time_point arrival) {
  const ServedModel& model = *served;
  return {config,
          model.engine.model(),
          model.engine.tokenizer(),
          model.chat_template,
          model.names,
          next_seed(),
          tenant_salt,
          arrival,
          &model.families,
          handoff.role,
          /*fills_context=*/false,
          Dialect::kOpenAi,
          model.families.describes_tools,
          model.families.sorts_tools,
          std::move(served)};
}

std::shared_ptr<const ServedModel> FrontEnd::usual_model() {
  const auto versions = engine.versions();
  return served_by(versions.empty() ? nullptr : versions.front());
}

std::shared_ptr<const ServedModel> FrontEnd::next_model() {
  return served_by(engine.next_version());
}

std::vector<std::shared_ptr<const ServedModel>> FrontEnd::all_models() {
  std::vector<std::shared_ptr<const ServedModel>> models;
  for (auto& version : engine.versions()) {
    auto model = served_by(std::move(version));
    if (std::ranges::find(models, model) == models.end()) models.push_back(std::move(model));
  }
  if (models.empty()) models.push_back(served_by(nullptr));
  return models;
}

bool FrontEnd::has_left(const ServedModel& model) {
  return has_versions() && std::ranges::none_of(all_models(), [&](const auto& other) {
           return other.get() == &model;
         });
}

std::vector<NamedModel> FrontEnd::named_models() {
  std::vector<NamedModel> named;
  for (const auto& served : all_models()) {
    for (const std::string& name : served->names) {
      if (std::ranges::find(named, name, &NamedModel::name) != named.end()) continue;
      named.push_back({name, served});
    }
  }
  return named;
}

// A version for which the server's knobs are wrong takes no requests: they go to one that works.
std::shared_ptr<const ServedModel> FrontEnd::served_by(std::shared_ptr<Engine> version) {
  const std::scoped_lock lock(models_mutex_);
  const auto known = std::ranges::find(models_, version, &KnownModel::version);
  if (known != models_.end()) return known->model != nullptr ? known->model : models_.front().model;
  auto made = ServedModel::create(config, *version, version);
  if (!made) {
    log_event(LogLevel::kError,
              "version_unusable",
              "fingerprint",
              version->model().system_fingerprint,
              "reason",
              made.error().message);
    models_.push_back({std::move(version), nullptr});
    return models_.front().model;
  }
  // Versions that only this list still knows are gone.
  std::erase_if(models_, [](const KnownModel& old) {
    return old.model == nullptr
               ? old.version.use_count() == 1
               : old.model.use_count() == 1 && old.version.use_count() == 2;
  });
  models_.insert(models_.begin(), {std::move(version), *made});  // the first always works
  return *made;
}

std::string FrontEnd::illness() const {
  if (is_draining()) return "The server is draining.";
  if (std::string failure = engine.failure(); !failure.empty()) return failure;
  const EngineStats stats = engine.stats();
  if (stats.draining) return "The engine is draining.";
  if (stats.router && stats.router->num_usable == 0) return "No worker is there.";
  const int64_t now = to_ns(std::chrono::steady_clock::now());
  const int64_t limit = int64_t{config.unhealthy_after_s} * 1'000'000'000;
  if (stats.step_started_ns != 0 && now - stats.step_started_ns > limit) {
    return "An engine step takes longer than " + std::to_string(config.unhealthy_after_s) + " s.";
  }
  const int64_t last_progress = std::max<int64_t>(stats.last_progress_ns, to_ns(start));
  const bool has_work = stats.num_requests_waiting + stats.num_requests_running > 0;
  if (has_work && now - last_progress > limit) {
    return "Requests wait and nothing has completed for " +
           std::to_string(config.unhealthy_after_s) + " s.";
  }
  return {};
}

void FrontEnd::request_done() {
  if (num_requests_.fetch_sub(1) == 1 && on_quiescent_) on_quiescent_();
}

bool FrontEnd::connection_opened() {
  if (num_connections_.fetch_add(1) < most_connections_) return true;
  num_connections_.fetch_sub(1);
  return false;
}

}  // namespace sluice
