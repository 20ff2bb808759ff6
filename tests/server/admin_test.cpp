// SPDX-License-Identifier: Apache-2.0
// Endpoints beside generation: models, keys, health, metrics, tokens.
#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "server/api/parameters.h"
#include "server/api/routes.h"
#include "server/front/front_end.h"
#include "tests/server/running_server.h"
#include "tests/server/tool_template.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

HttpReply get(RunningServer& server, const std::string& path) {
  HttpClient client(server.port());
  client.get(path);
  return client.read_reply();
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

TEST(Models, AreListedUnderEachServedName) {
  FakeEngine engine;
  RunningServer server(engine);
  const Json list = Json::parse(get(server, "/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2U);
  EXPECT_EQ(list["data"][1]["id"], "alias");
  EXPECT_EQ(list["data"][0]["root"], "/models/fake.gguf");
  EXPECT_EQ(list["data"][0]["max_model_len"], 512);
  EXPECT_EQ(Json::parse(get(server, "/v1/models/alias").body)["id"], "alias");
  EXPECT_EQ(Json::parse(get(server, "/v1/models/%61lia%73").body)["id"], "alias");
  EXPECT_EQ(get(server, "/v1/models/alias%").status, 404);
  EXPECT_EQ(get(server, "/v1/models/alias%2").status, 404);
  const HttpReply unknown = get(server, "/v1/models/other");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(Json::parse(unknown.body)["error"]["code"], "model_not_found");
}

TEST(Models, SayWhatReadsTheirAnswers) {
  const auto meta_of = [](const char* chat_template, const std::string& parser) {
    FakeEngine engine;
    engine.editable_model().chat_template = chat_template;
    Config config;
    config.tool_call_parser = parser;
    RunningServer server(engine, config);
    return Json::parse(get(server, "/v1/models").body)["data"][0]["meta"];
  };
  const Json plain = meta_of("{{ messages[0].content }}", "auto");
  EXPECT_EQ(plain["tool_call_parser"], "hermes")
      << "the form in which the instructions ask for calls";
  EXPECT_TRUE(plain["reasoning_parser"].is_null() && plain.contains("reasoning_parser"));
  EXPECT_EQ(meta_of(kToolTemplate, "auto")["tool_call_parser"], "hermes");
  EXPECT_EQ(meta_of(kToolTemplate, "auto")["reasoning_parser"], "qwen3");
  EXPECT_EQ(meta_of(kToolTemplate, "lfm2")["tool_call_parser"], "lfm2");
  EXPECT_EQ(meta_of(kToolTemplate, "none")["tool_call_parser"], nullptr);
}

TEST(Keys, GuardTheApiAndNothingElse) {
  FakeEngine engine;
  Config config;
  config.api_key = {"first", "second"};
  RunningServer server(engine, config);
  const auto status_with = [&](const std::string& path, const std::string& headers) {
    HttpClient client(server.port());
    client.request("GET", path, {}, headers);
    return client.read_reply().status;
  };
  EXPECT_EQ(status_with("/v1/models", ""), 401);
  EXPECT_EQ(status_with("/v1/models", "Authorization: Bearer third\r\n"), 401);
  EXPECT_EQ(status_with("/v1/models", "Authorization: Bearer firs\r\n"), 401);
  EXPECT_EQ(status_with("/v1/models", "Authorization: Basic first\r\n"), 401);
  EXPECT_EQ(status_with("/v1/models", "Authorization: Bearer first\r\n"), 200);
  EXPECT_EQ(status_with("/v1/models", "authorization: bearer second\r\n"), 200);
  EXPECT_EQ(status_with("/v1/models", "x-api-key: second\r\n"), 200);
  EXPECT_EQ(status_with("/health", ""), 200);
  EXPECT_EQ(status_with("/metrics", ""), 200);
}

// One request that runs, one that waits, and two steps.
EngineState scripted_state() {
  EngineState state;
  state.num_blocks_free = 5;
  state.requests.push_back({.id = RequestId(7),
                            .tenant = {},
                            .status = "running",
                            .num_prompt_tokens = 12,
                            .num_computed_tokens = 13,
                            .num_generated = 2,
                            .timings = {.queued_ms = 0.25}});
  state.requests.push_back({.id = RequestId(8), .tenant = {}, .status = "waiting"});
  for (int64_t i = 1; i <= 2; ++i) {
    StepRecord& step = state.steps.emplace_back();
    step.number = static_cast<uint64_t>(i);
    step.begin_ns = i * 10'000'000;
    step.scheduled_ns = step.begin_ns + 1'000'000;
    step.started_ns = step.begin_ns + 1'250'000;
    step.executed_ns = step.begin_ns + 4'250'000;
    step.sampled_ns = step.begin_ns + 6'000'000;
    step.retired_ns = step.begin_ns + 6'125'000;
    step.end_ns = step.begin_ns + 6'500'000;
    step.num_tokens = 12;
    step.num_running = 1;
    step.items.push_back(
        {.id = RequestId(7), .position = 3, .num_tokens = 12, .samples = true, .num_drafts = 4});
  }
  return state;
}

TEST(Debug, StateListsRequestsAndSteps) {
  FakeEngine engine;
  engine.set_state(scripted_state());
  RunningServer server(engine);
  const Json state = Json::parse(get(server, "/debug/state").body);
  EXPECT_EQ(state["kv_blocks"]["free"], 5);
  ASSERT_EQ(state["requests"].size(), 2U);
  EXPECT_EQ(state["requests"][0]["id"], 7);
  EXPECT_EQ(state["requests"][0]["status"], "running");
  EXPECT_EQ(state["requests"][0]["computed_tokens"], 13);
  EXPECT_EQ(state["requests"][0]["timings"]["queued_ms"], 0.25);
  EXPECT_EQ(state["requests"][1]["status"], "waiting");
  ASSERT_EQ(state["steps"].size(), 2U);
  EXPECT_EQ(state["steps"][1]["number"], 2);
  EXPECT_EQ(state["steps"][1]["ms"], 6.5);
  EXPECT_EQ(state["steps"][1]["wait_ms"], 0.25);
  EXPECT_EQ(state["steps"][1]["execute_ms"], 3.0);
  EXPECT_EQ(state["steps"][1]["commit_ms"], 0.375);
  EXPECT_EQ(state["steps"][1]["requests"],
            Json::parse(R"([{"id":7,"position":3,"tokens":12,"samples":true,"num_drafts":4}])"));
}

TEST(Debug, TraceHasTheDevicesPhasesInsideTheirStepAndTheHostsAroundIt) {
  FakeEngine engine;
  engine.set_state(scripted_state());
  RunningServer server(engine);
  const Json trace = Json::parse(get(server, "/debug/trace").body);
  int num_phases = 0;
  int num_items = 0;
  Json step;
  const auto end_of = [](const Json& event) {
    return event["ts"].get<double>() + event["dur"].get<double>();
  };
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    const auto name = event["name"].get<std::string>();
    if (name.starts_with("step")) {
      step = event;
    } else if (name.starts_with("schedule")) {
      EXPECT_NE(event["tid"], step["tid"]);
      EXPECT_LE(end_of(event), step["ts"].get<double>());
    } else if (name.starts_with("commit")) {
      EXPECT_NE(event["tid"], step["tid"]);
      EXPECT_GE(event["ts"].get<double>(), end_of(step));
    } else {
      EXPECT_GE(event["ts"], step["ts"]);
      EXPECT_LE(end_of(event), end_of(step));
    }
    num_phases += event["pid"] == step["pid"] && event["name"] != step["name"];
    num_items += event["tid"] == 7;
  }
  EXPECT_EQ(step["dur"], 4750.0);
  EXPECT_EQ(num_phases, 2 * 4);
  EXPECT_EQ(num_items, 2);
}

TEST(Debug, NeedsAKeyWhereThereAreKeys) {
  FakeEngine engine;
  Config config;
  config.api_key = {"first"};
  RunningServer server(engine, config);
  EXPECT_EQ(get(server, "/debug/state").status, 401);
  EXPECT_EQ(get(server, "/debug/trace").status, 401);
}

TEST(Keys, GiveEachTenantItsOwnPrefixCache) {
  FakeEngine engine;
  Config config;
  config.api_key = {"first", "second"};
  RunningServer server(engine, config);
  for (const char* key : {"first", "second", "first"}) {
    HttpClient client(server.port());
    client.post(
        kCompletionPath, R"({"prompt":"x"})", "Authorization: Bearer " + std::string(key) + "\r\n");
    ASSERT_EQ(client.read_reply().status, 200);
  }
  const auto requests = engine.submitted();
  EXPECT_EQ(requests[0].tenant_salt, requests[2].tenant_salt);
  EXPECT_NE(requests[0].tenant_salt, requests[1].tenant_salt);
}

TEST(Health, TurnsWhenAStepOrThePendingWorkTakesTooLong) {
  FakeEngine engine;
  Config config;
  config.unhealthy_after_s = 1;
  RunningServer server(engine, config);
  EXPECT_EQ(get(server, "/health").body, R"({"status":"ok"})");
  EXPECT_EQ(get(server, "/ping").status, 200);
  EngineStats stats;
  stats.step_started_ns = now_ns() - 2'000'000'000;
  engine.set_stats(stats);
  const HttpReply stuck = get(server, "/health");
  EXPECT_EQ(stuck.status, 503);
  EXPECT_NE(stuck.body.find("step"), std::string::npos);
  stats.step_started_ns = now_ns();
  stats.last_progress_ns = now_ns();
  stats.num_requests_waiting = 1;
  engine.set_stats(stats);
  EXPECT_EQ(get(server, "/health").status, 200);
}

TEST(Metrics, CarryTheNamesDashboardsRead) {
  FakeEngine engine;
  RunningServer server(engine);
  EngineStats stats;
  stats.num_requests_running = 3;
  stats.num_requests_waiting = 4;
  stats.num_blocks_total = 200;
  stats.num_blocks_used = 50;
  stats.num_states_total = 12;
  stats.num_states_used = 3;
  stats.block_size = 16;
  stats.generation_tokens = 1234;
  stats.time_to_first_token.observe(kFirstTokenBounds, 0.03, {});
  stats.time_to_first_token.observe(kFirstTokenBounds, 9999, {});
  engine.set_stats(stats);
  HttpClient client(server.port());
  client.post(kChatPath, chat_body());
  client.read_reply();
  client.get("/metrics");
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.header("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  for (const char* line : {
           R"(vllm:num_requests_running{engine="0",model_name="fake"} 3)",
           R"(vllm:num_requests_waiting{engine="0",model_name="fake"} 4)",
           R"(vllm:kv_cache_usage_perc{engine="0",model_name="fake"} 0.25)",
           R"(sluice_states_total{engine="0",model_name="fake"} 12)",
           R"(sluice_states_used{engine="0",model_name="fake"} 3)",
           R"(num_gpu_blocks="200"} 1)",
           R"(vllm:generation_tokens_total{engine="0",model_name="fake"} 1234)",
           R"(vllm:request_success_total{engine="0",model_name="fake",finished_reason="stop"} 1)",
           R"(vllm:time_to_first_token_seconds_count{engine="0",model_name="fake"} 2)",
           R"(vllm:time_to_first_token_seconds_bucket{engine="0",model_name="fake",le="0.02"} 0)",
           R"(vllm:time_to_first_token_seconds_bucket{engine="0",model_name="fake",le="0.04"} 1)",
           R"(vllm:time_to_first_token_seconds_bucket{engine="0",model_name="fake",le="+Inf"} 2)",
           R"(http_requests_total{handler="/v1/chat/completions",method="POST",status="200"} 1)",
       }) {
    EXPECT_NE(reply.body.find(line), std::string::npos) << line << "\n" << reply.body;
  }
}

TEST(Metrics, SayWhatRequestsAskedForAndGot) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post("/v1/completions", R"({"model":"fake","prompt":"a","max_tokens":4,"n":3})");
  ASSERT_EQ(client.read_reply().status, 200);
  client.get("/metrics");
  const std::string body = client.read_reply().body;
  // The engine of the test answers each choice with decode times of its own.
  for (const char* line : {
           R"(vllm:request_params_n_bucket{engine="0",model_name="fake",le="2"} 0)",
           R"(vllm:request_params_n_bucket{engine="0",model_name="fake",le="5"} 1)",
           R"(vllm:request_params_max_tokens_count{engine="0",model_name="fake"} 3)",
           R"(vllm:request_params_max_tokens_sum{engine="0",model_name="fake"} 12)",
           R"(vllm:request_max_num_generation_tokens_count{engine="0",model_name="fake"} 1)",
           R"(vllm:request_inference_time_seconds_count{engine="0",model_name="fake"} 3)",
           R"(vllm:request_time_per_output_token_seconds_bucket{engine="0",model_name="fake")",
           R"(vllm:time_per_output_token_seconds_count{engine="0",model_name="fake"} 0)",
       }) {
    EXPECT_NE(body.find(line), std::string::npos) << line << "\n" << body;
  }
}

// The value of a metric without labels; NaN: it is not there.
double value_of(const std::string& body, const std::string& name) {
  const size_t at = body.find("\n" + name + " ");
  if (at == std::string::npos) return std::numeric_limits<double>::quiet_NaN();
  return std::stod(body.substr(at + name.size() + 2));
}

TEST(Metrics, SayHowTheProgramRuns) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string body = get(server, "/metrics").body;
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_GT(value_of(body, "process_start_time_seconds"), now - 3600);
  EXPECT_LE(value_of(body, "process_start_time_seconds"), now + 1);
  EXPECT_GT(value_of(body, "process_cpu_seconds_total"), 0);
  EXPECT_GT(value_of(body, "process_resident_memory_bytes"), 1 << 20);
  EXPECT_GT(value_of(body, "process_virtual_memory_bytes"),
            value_of(body, "process_resident_memory_bytes"));
  EXPECT_GT(value_of(body, "process_open_fds"), 3);
  EXPECT_GT(value_of(body, "process_max_fds"), value_of(body, "process_open_fds"));
  EXPECT_NE(body.find("sluice_build_info{backend=\""), std::string::npos);
  EXPECT_EQ(body.find("sluice_certificate_expiry"), std::string::npos);
}

TEST(Metrics, EachFamilyIsThereOnceWithSeveralVersionsToo) {
  FakeEngine engine;
  RunningServer server(engine);
  EngineStats stats;
  stats.router = RouterStats{};
  for (const char* name : {"fp_1", "fp_2"}) {
    FingerprintStats version;
    version.fingerprint = name;
    version.num_ready = 2;
    stats.router->fingerprints.push_back(version);
    WorkerStats worker;
    worker.address = std::string(name) + ":1";
    worker.fingerprint = name;
    worker.status = "live";
    worker.breaker = "closed";
    stats.router->workers.push_back(worker);
  }
  engine.set_stats(stats);
  std::istringstream lines(get(server, "/metrics").body);
  std::set<std::string> families;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    EXPECT_TRUE(families.insert(line).second) << line;
  }
  EXPECT_TRUE(families.contains("# TYPE sluice:router_fingerprint_share gauge"));
}

TEST(Metrics, SpeculationHasVllmsNamesAndOursBySource) {
  FakeEngine engine;
  RunningServer server(engine);
  EngineStats stats;
  const auto suffix = static_cast<size_t>(DraftSource::kSuffix);
  const auto ngram = static_cast<size_t>(DraftSource::kNgram);
  stats.drafts.num_drafts[suffix] = 10;
  stats.drafts.num_drafts[ngram] = 2;
  stats.drafts.num_draft_tokens[suffix] = 40;
  stats.drafts.num_accepted_tokens[suffix] = 30;
  stats.drafts.num_accepted_at = {9, 8, 7, 6};
  stats.drafts.num_steps_off[static_cast<size_t>(DraftsOff::kGuard)] = 5;
  stats.drafts.proposer_ns = 250'000'000;
  stats.drafts.gain_ratio = 1.5;
  for (const double tokens : {0.0, 4.0}) stats.drafts.depth.observe(kDraftDepthBounds, tokens);
  engine.set_stats(stats);
  const std::string body = get(server, "/metrics").body;
  const std::string labels = R"({engine="0",model_name="fake")";
  for (const std::string& line : {
           "vllm:spec_decode_num_drafts_total" + labels + "} 12",
           "vllm:spec_decode_num_draft_tokens_total" + labels + "} 40",
           "vllm:spec_decode_num_accepted_tokens_total" + labels + "} 30",
           "vllm:spec_decode_num_accepted_tokens_per_pos_total" + labels + R"(,position="0"} 9)",
           "vllm:spec_decode_num_accepted_tokens_per_pos_total" + labels + R"(,position="3"} 6)",
           "sluice_spec_drafts_total" + labels + R"(,source="ngram"} 2)",
           "sluice_spec_drafts_total" + labels + R"(,source="prediction"} 0)",
           "sluice_spec_off_steps_total" + labels + R"(,reason="guard"} 5)",
           "sluice_spec_proposer_seconds_total" + labels + "} 0.25",
           "sluice_spec_gain_ratio" + labels + "} 1.5",
           "sluice_spec_depth_bucket" + labels + R"(,le="3"} 1)",
           "sluice_spec_depth_count" + labels + "} 2",
       }) {
    EXPECT_NE(body.find(line), std::string::npos) << line << "\n" << body;
  }
  EXPECT_EQ(body.find(R"(position="4")"), std::string::npos);
}

TEST(Metrics, CountGrammars) {
  FakeEngine engine;
  RunningServer server(engine);
  EngineStats stats;
  stats.grammars = {.num_hits = 7, .num_misses = 4, .num_refused = 1, .cached_bytes = 4096};
  engine.set_stats(stats);
  const std::string body = get(server, "/metrics").body;
  const std::string labels = R"({engine="0",model_name="fake")";
  for (const std::string& line : {
           "sluice_grammar_cache_hits_total" + labels + "} 7",
           "sluice_grammar_cache_misses_total" + labels + "} 4",
           "sluice_grammar_refused_total" + labels + "} 1",
           "sluice_grammar_cache_bytes" + labels + "} 4096",
       }) {
    EXPECT_NE(body.find(line), std::string::npos) << line << "\n" << body;
  }
}

TEST(Metrics, CountEveryStatusThatIsSent) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post(kChatPath, chat_body(), "Content-Encoding: br\r\n");
  EXPECT_EQ(client.read_reply().status, 415);
  EXPECT_NE(get(server, "/metrics").body.find(R"(status="415"} 1)"), std::string::npos);
}

TEST(Load, CountsOtherRequestsUnderWay) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine);
  const HttpClient busy(server.port());
  busy.post("/v1/completions", R"({"prompt":"x"})");
  for (int i = 0; i < 500 && engine.num_running() == 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(get(server, "/load").body, R"({"server_load":1})");
  while (engine.num_running() > 0) engine.step();
}

TEST(OpenApi, DescribesEveryRouteAndEveryParameter) {
  FakeEngine engine;
  Config config;
  config.max_n = 7;
  RunningServer server(engine, config);
  const Json json = Json::parse(get(server, "/openapi.json").body);
  EXPECT_EQ(json["openapi"], "3.1.0");
  for (const Route& route : routes()) {
    const std::string path = route_template(route);
    if (route.handler == handle_page) {
      EXPECT_FALSE(json["paths"].value(path, Json::object()).contains("get")) << path;
      continue;
    }
    EXPECT_TRUE(json["paths"][path].contains(route.method == "GET"      ? "get"
                                             : route.method == "DELETE" ? "delete"
                                                                        : "post"))
        << path;
  }
  const Json& schemas = json["components"]["schemas"];
  for (const Parameter& parameter : request_parameters()) {
    for (const auto& [endpoint, name] : {std::pair(Endpoint::kChat, "ChatCompletionRequest"),
                                         std::pair(Endpoint::kCompletion, "CompletionRequest"),
                                         std::pair(Endpoint::kMessages, "MessagesRequest"),
                                         std::pair(Endpoint::kResponses, "ResponsesRequest"),
                                         std::pair(Endpoint::kTokenize, "TokenizeRequest"),
                                         std::pair(Endpoint::kDetokenize, "DetokenizeRequest")}) {
      const bool offered = is_offered(parameter, endpoint);
      const bool other_row = !offered && schemas[name]["properties"].contains(parameter.name);
      EXPECT_TRUE(other_row || schemas[name]["properties"].contains(parameter.name) == offered)
          << parameter.name;
      EXPECT_EQ(schemas[name]["additionalProperties"], true);
    }
  }
  const Json& chat = schemas["ChatCompletionRequest"]["properties"];
  EXPECT_EQ(chat["temperature"]["anyOf"][0]["maximum"], 2);
  EXPECT_EQ(chat["top_p"]["anyOf"][0]["minimum"], 0);
  EXPECT_EQ(chat["n"]["anyOf"][0]["maximum"], 7);
  EXPECT_EQ(chat["seed"]["anyOf"][0]["maximum"], std::numeric_limits<int64_t>::max());
  EXPECT_EQ(chat["logprobs"]["anyOf"][0]["type"], "boolean");
  EXPECT_EQ(schemas["CompletionRequest"]["properties"]["logprobs"]["anyOf"][0]["type"], "integer");
  EXPECT_FALSE(chat.contains("prompt"));
}

// All operations that read a body say which, so that a client made from the document can send it.
TEST(OpenApi, EveryRequestForVectorsOrScoresHasABody) {
  FakeEngine engine;
  RunningServer server(engine);
  const Json json = Json::parse(get(server, "/openapi.json").body);
  const Json& schemas = json["components"]["schemas"];
  for (const auto& [path, name] : {std::pair("/", "TeiAnyRequest"),
                                   std::pair("/embed", "TeiRequest"),
                                   std::pair("/embed_all", "TeiRequest"),
                                   std::pair("/similarity", "TeiRequest"),
                                   std::pair("/predict", "TeiRequest"),
                                   std::pair("/rerank", "RerankRequest"),
                                   std::pair("/score", "ScoreRequest"),
                                   std::pair("/classify", "ClassifyRequest"),
                                   std::pair("/v1/embeddings", "EmbeddingsRequest"),
                                   std::pair("/v1/embed", "CohereEmbedRequest"),
                                   std::pair("/v2/embed", "CohereEmbedRequest")}) {
    const Json body = json["paths"][path]["post"].value("requestBody", Json::object());
    EXPECT_EQ(body.value("required", false), true) << path;
    const std::string place = "/content/application~1json/schema/$ref";
    EXPECT_EQ(body.value(Json::json_pointer(place), ""), "#/components/schemas/" + std::string(name))
        << path;
    EXPECT_TRUE(schemas.contains(name)) << path;
  }
  const Json& any = schemas["TeiAnyRequest"]["anyOf"];
  EXPECT_EQ(any[0]["$ref"], "#/components/schemas/TeiRequest");
  EXPECT_EQ(any[1]["$ref"], "#/components/schemas/RerankRequest");
}

TEST(OpenApi, DefaultsAreTheModels) {
  FakeEngine engine;
  engine.editable_model().sampling.temperature = 0.6F;
  engine.editable_model().sampling.top_k = 20;
  RunningServer server(engine);
  const Json json = Json::parse(get(server, "/openapi.json").body);
  for (const char* name : {"ChatCompletionRequest", "CompletionRequest"}) {
    const Json& properties = json["components"]["schemas"][name]["properties"];
    EXPECT_EQ(properties["temperature"]["default"], 0.6) << name;
    EXPECT_EQ(properties["top_k"]["default"], 20) << name;
    EXPECT_EQ(properties["top_p"]["default"], 1) << name;
    EXPECT_EQ(properties["ignore_eos"]["default"], false) << name;
    EXPECT_FALSE(properties["seed"].contains("default")) << name;
    EXPECT_FALSE(properties["max_tokens"].contains("default")) << name;
  }
}

// What the document says of a number is what the validator does.
TEST(OpenApi, BoundsOfNumbersAreThoseOfTheValidator) {
  FakeEngine engine;
  RunningServer server(engine);
  const Json document = Json::parse(get(server, "/openapi.json").body);
  const Json& properties = document["components"]["schemas"]["CompletionRequest"]["properties"];
  const auto status_of = [&](const std::string& name, const Json& value) {
    const Json body = {{"prompt", "x"}, {"echo", true}, {name, value}};  // max_tokens 0 needs echo
    HttpClient client(server.port());
    client.post("/v1/completions", body.dump());
    return client.read_reply().status;
  };
  int num_checked = 0;
  for (const auto& [name, property] : properties.items()) {
    if (!property.contains("anyOf") || name == "seed" || name == "priority") continue;
    const Json& schema = property["anyOf"][0];
    const double step = schema.value("type", "") == "integer" ? 1 : 0.001;
    if (schema.contains("minimum")) {
      const double bound = schema["minimum"].get<double>();
      EXPECT_EQ(status_of(name, bound - step), 400) << name;
      EXPECT_TRUE(name == "truncate_prompt_tokens" || status_of(name, bound) == 200) << name;
      ++num_checked;
    }
    if (schema.contains("maximum")) {
      EXPECT_EQ(status_of(name, schema["maximum"].get<double>() + step), 400) << name;
      ++num_checked;
    }
  }
  EXPECT_GT(num_checked, 15);
}

TEST(Tokens, GoBothWays) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post("/tokenize", R"({"prompt":"ab","return_token_strs":true})");
  Json json = Json::parse(client.read_reply().body);
  EXPECT_EQ(json["tokens"], (Json{ByteTokenizer::kBos, 97, 98}));
  EXPECT_EQ(json["count"], 3);
  EXPECT_EQ(json["max_model_len"], 512);
  EXPECT_EQ(json["token_strs"], (Json{"<s>", "a", "b"}));
  client.post("/tokenize", R"({"prompt":"a b","return_token_strs":true})");
  EXPECT_EQ(Json::parse(client.read_reply().body)["token_strs"],
            (Json{"<s>", "a", "\xc4\xa0", "b"}));
  client.post("/tokenize", R"({"messages":[{"role":"user","content":"Hi"}]})");
  json = Json::parse(client.read_reply().body);
  EXPECT_EQ(json["tokens"][0], ByteTokenizer::kTurnStart);
  EXPECT_EQ(json["count"], 21);
  client.post("/detokenize", R"({"tokens":[72,105]})");
  EXPECT_EQ(Json::parse(client.read_reply().body), (Json{{"prompt", "Hi"}}));
  client.post("/detokenize", R"({"tokens":[259]})");
  EXPECT_EQ(client.read_reply().status, 400);
}

TEST(TokenizerInfo, HasTheSpecialTokensAndTheTemplateThatIsUsed) {
  FakeEngine engine;
  Config config;
  config.enable_tokenizer_info_endpoint = true;
  auto first = std::make_unique<RunningServer>(engine, config);
  const Json own = Json::parse(get(*first, "/tokenizer_info").body);
  first.reset();
  EXPECT_EQ(own["tokenizer_class"], "PreTrainedTokenizerFast");
  EXPECT_EQ(own["bos_token"], "<s>");
  EXPECT_EQ(own["eos_token"], "<|im_end|>");
  EXPECT_EQ(own["pad_token"], "<|im_end|>");
  EXPECT_EQ(own["add_bos_token"], true);
  EXPECT_EQ(own["model_max_length"], 512);
  EXPECT_EQ(own["chat_template"], engine.model().chat_template);
  config.chat_template = "{{ messages[0].content }}";
  RunningServer server(engine, config);
  EXPECT_EQ(Json::parse(get(server, "/tokenizer_info").body)["chat_template"],
            config.chat_template);
}

TEST(TokenizerInfo, IsForThoseWhoAskForItAndHaveTheKey) {
  FakeEngine engine;
  Config config;
  {
    RunningServer server(engine, config);
    const HttpReply off = get(server, "/tokenizer_info");
    EXPECT_EQ(off.status, 404);
    EXPECT_NE(off.body.find("--enable-tokenizer-info-endpoint"), std::string::npos) << off.body;
  }
  config.enable_tokenizer_info_endpoint = true;
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  EXPECT_EQ(get(server, "/tokenizer_info").status, 401);
}

}  // namespace
}  // namespace sluice
