// SPDX-License-Identifier: Apache-2.0
// Traces from a client's headers to a collector. Identifiers and rules: W3C Trace Context level 1,
// its examples; OTLP's JSON form, opentelemetry-proto.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "engine/core/log.h"
#include "server/traces/trace_settings.h"
#include "server/traces/tracer.h"
#include "tests/server/running_server.h"
#include "tests/support/captured_log.h"
#include "tests/support/span_collector.h"

namespace sluice {
namespace {

Environment environment_of(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const char* name) -> const char* {
    const auto found = values.find(name);
    return found == values.end() ? nullptr : found->second.c_str();
  };
}

std::string header_of(const std::string& parent) {
  return "traceparent: " + parent + "\r\ntracestate: vendor=1\r\n";
}

TEST(TraceContext, IsReadAsTheStandardSays) {
  const TraceContext context = parse_trace_context(kTraceparent, "vendor=1");
  EXPECT_TRUE(context.is_set());
  EXPECT_TRUE(context.is_sampled);
  EXPECT_EQ(context.state, "vendor=1");
  EXPECT_EQ(traceparent(context), kTraceparent);
  const std::string later = "cc" + std::string(kTraceparent).substr(2);
  EXPECT_TRUE(parse_trace_context(later, "").is_set());
  EXPECT_TRUE(parse_trace_context(later + "-what-comes-later", "").is_set());
  EXPECT_FALSE(parse_trace_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02", "")
                   .is_sampled);
}

TEST(TraceContext, WhatIsNoneIsNone) {
  for (const std::string bad : {"",
                                "00",
                                "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
                                "00-00000000000000000000000000000000-b7ad6b7169203331-01",
                                "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
                                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
                                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0x",
                                "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
                                "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.more"}) {
    EXPECT_FALSE(parse_trace_context(bad, "").is_set()) << bad;
  }
  EXPECT_EQ(parse_trace_context(kTraceparent, std::string(513, 'a')).state, "");
  EXPECT_EQ(parse_trace_context(kTraceparent, "a=\r\nx: y").state, "");
}

TEST(TraceSettings, ComeFromKnobAndEnvironment) {
  Config config;
  auto none = trace_settings(config, environment_of({}));
  ASSERT_TRUE(none);
  EXPECT_FALSE(*none);
  const auto base =
      trace_settings(config,
                     environment_of({{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/"},
                                     {"OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%20b, y=z"},
                                     {"OTEL_SERVICE_NAME", "chat"},
                                     {"OTEL_RESOURCE_ATTRIBUTES", "service.name=other,pod=p0"},
                                     {"OTEL_TRACES_SAMPLER", "traceidratio"},
                                     {"OTEL_TRACES_SAMPLER_ARG", "0.25"}}));
  ASSERT_TRUE(base) << base.error().message;
  ASSERT_TRUE(*base);
  const TraceSettings& settings = **base;
  EXPECT_EQ(settings.url, "http://collector:4318/v1/traces");
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(settings.headers, (Pairs{{"x-key", "a b"}, {"y", "z"}}));
  EXPECT_EQ(settings.resource_attributes, (Pairs{{"pod", "p0"}, {"service.name", "chat"}}));
  EXPECT_FALSE(settings.follows_parent);
  EXPECT_EQ(settings.ratio, 0.25);
  config.otlp_traces_endpoint = "https://host/otlp/traces";
  const auto exact = trace_settings(config, environment_of({}));
  ASSERT_TRUE(exact && *exact);
  EXPECT_EQ((*exact)->url, "https://host/otlp/traces");
  EXPECT_FALSE(*trace_settings(config, environment_of({{"OTEL_SDK_DISABLED", "true"}})));
  EXPECT_FALSE(*trace_settings(config, environment_of({{"OTEL_TRACES_EXPORTER", "none"}})));
}

TEST(TraceSettings, WhatIsWrongIsNamed) {
  const std::map<std::string, std::string> wrong = {
      {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "grpc://host:4317"},
      {"OTEL_TRACES_SAMPLER", "jaeger_remote"},
      {"OTEL_EXPORTER_OTLP_HEADERS", "nothing"},
      {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x\rhost=other"},
      {"OTEL_RESOURCE_ATTRIBUTES", "a=b%0D%0Ac"}};
  for (const auto& [name, value] : wrong) {
    std::map<std::string, std::string> all = {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://a"}};
    all[name] = value;
    const auto refused = trace_settings(Config{}, environment_of(all));
    ASSERT_FALSE(refused) << name;
    EXPECT_EQ(refused.error().param, name);
  }
}

TEST(TraceSettings, AWrongEnvironmentKeepsNoServerFromStarting) {
  ::setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4317", 1);
  FakeEngine engine;
  const std::string log = logged_by([&] {
    RunningServer server(engine);
    HttpClient client(server.port());
    client.post(kChatPath, chat_body());
    EXPECT_EQ(client.read_reply().status, 200);
  });
  ::unsetenv("OTEL_EXPORTER_OTLP_ENDPOINT");
  EXPECT_NE(log.find("traces_off"), std::string::npos);
  Config config;
  config.otlp_traces_endpoint = "collector:4317";
  const auto refused = HttpServer::create(config, engine);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "otlp-traces-endpoint");
}

TEST(Tracer, SamplesByTheParentOrTheRatio) {
  TraceSettings settings;
  settings.url = "http://127.0.0.1:1/v1/traces";
  settings.ratio = 0.01;
  Tracer tracer(settings);
  TraceContext parent = parse_trace_context(kTraceparent, "");
  const TraceContext child = tracer.begin(parent);
  EXPECT_TRUE(child.is_sampled);
  EXPECT_EQ(child.trace_id, parent.trace_id);
  EXPECT_NE(child.span_id, parent.span_id);
  parent.is_sampled = false;
  EXPECT_FALSE(tracer.begin(parent).is_sampled);
  int num_sampled = 0;
  for (int i = 0; i < 20'000; ++i) num_sampled += tracer.begin({}).is_sampled ? 1 : 0;
  EXPECT_NEAR(num_sampled, 200, 90);  // six standard deviations
}

TEST(Traces, ARequestsSpanIsBelowItsClients) {
  SpanCollector collector;
  FakeEngine engine;
  Config config;
  config.otlp_traces_endpoint = collector.url();
  config.enable_log_requests = true;
  const std::string log = logged_by([&] {
    RunningServer server(engine, config);
    HttpClient client(server.port());
    client.post(kChatPath,
                chat_body(R"(,"max_tokens":3,"temperature":0.5)"),
                header_of(kTraceparent));
    EXPECT_EQ(client.read_reply().status, 200);
    // Not sampled, and a trace of its own.
    client.post(kChatPath, chat_body(), header_of(std::string(kTraceparent).replace(54, 1, "0")));
    EXPECT_EQ(client.read_reply().status, 200);
    client.post(kCompletionPath, R"({"prompt":"Hi","max_tokens":2})");
    EXPECT_EQ(client.read_reply().status, 200);
    ASSERT_TRUE(eventually([&] { return collector.spans().size() == 2; }));
    HttpClient metrics(server.port());
    metrics.get("/metrics");
    EXPECT_NE(metrics.read_reply().body.find("sluice_trace_spans_exported_total"),
              std::string::npos);
  });
  const auto spans = collector.spans();
  ASSERT_EQ(spans.size(), 2u);
  const auto& chat = spans[0];
  expect_below_traceparent(chat);
  EXPECT_EQ(chat["traceState"], "vendor=1");
  EXPECT_EQ(chat["name"], "chat fake");
  EXPECT_EQ(chat["kind"], 2);
  EXPECT_EQ(attribute_of(chat, "gen_ai.operation.name"), "chat");
  EXPECT_EQ(attribute_of(chat, "gen_ai.request.max_tokens"), "3");
  EXPECT_EQ(attribute_of(chat, "gen_ai.request.temperature"), 0.5);
  EXPECT_EQ(attribute_of(chat, "gen_ai.usage.output_tokens"), "3");
  EXPECT_FALSE(attribute_of(chat, "gen_ai.latency.time_to_first_token").is_null());
  EXPECT_EQ(chat["events"][0]["name"], "gen_ai.first_token");
  const auto time_of = [&](const char* key) { return std::stoll(chat[key].get<std::string>()); };
  EXPECT_LT(time_of("startTimeUnixNano"), time_of("endTimeUnixNano"));
  EXPECT_FALSE(spans[1].contains("parentSpanId"));
  EXPECT_EQ(attribute_of(spans[1], "gen_ai.operation.name"), "text_completion");
  EXPECT_EQ(attribute_of(collector.resources().front(), "service.name"), "sluice");
  EXPECT_NE(log.find("trace_id=0af7651916cd43dd8448eb211c80319c"), std::string::npos);
}

TEST(Traces, ACollectorThatRefusesOrIsAwayCostsNoAnswer) {
  SpanCollector refusing(503);
  for (const std::string& url : {refusing.url(), std::string("http://127.0.0.1:1")}) {
    FakeEngine engine;
    Config config;
    config.otlp_traces_endpoint = url;
    const std::string log = logged_by([&] {
      RunningServer server(engine, config);
      HttpClient client(server.port());
      client.post(kChatPath, chat_body());
      EXPECT_EQ(client.read_reply().status, 200);
      EXPECT_TRUE(eventually([&] {
        client.get("/metrics");
        const std::string text = client.read_reply().body;
        const size_t at = text.find("\nsluice_trace_spans_dropped_total{");
        return at != std::string::npos && text.substr(text.find("} ", at), 4) == "} 1\n";
      })) << url;
    });
    EXPECT_NE(log.find("traces_not_exported"), std::string::npos);
  }
}

TEST(Traces, AnErrorIsTheSpansStatus) {
  SpanCollector collector;
  FakeEngine engine;
  engine.set_queue_limit(0);
  Config config;
  config.otlp_traces_endpoint = collector.url();
  RunningServer server(engine, config);
  HttpClient client(server.port());
  client.post(kChatPath, chat_body(), header_of(kTraceparent));
  EXPECT_EQ(client.read_reply().status, 429);
  ASSERT_TRUE(eventually([&] { return collector.spans().size() == 1; }));
  EXPECT_EQ(collector.spans()[0]["status"]["code"], 2);
  EXPECT_EQ(attribute_of(collector.spans()[0], "error.type"), "resource_exhausted");
}

TEST(Traces, ARequestThatIsRefusedHasASpan) {
  SpanCollector collector;
  FakeEngine engine;
  Config config;
  config.otlp_traces_endpoint = collector.url();
  config.api_key = {"right"};
  config.enable_log_requests = true;
  const std::string right = header_of(kTraceparent) + "Authorization: Bearer right\r\n";
  const std::string log = logged_by([&] {
    RunningServer server(engine, config);
    HttpClient client(server.port());
    client.post(kChatPath, chat_body(R"(,"temperature":-1)"), right);
    EXPECT_EQ(client.read_reply().status, 400);
    client.post(kCompletionPath, R"({"prompt":"Hi"})", header_of(kTraceparent));
    EXPECT_EQ(client.read_reply().status, 401);
    // A client that is not traced there is not traced here.
    client.post(kChatPath, "{", std::string(right).replace(right.find("-01"), 3, "-00"));
    EXPECT_EQ(client.read_reply().status, 400);
    ASSERT_TRUE(eventually([&] { return collector.spans().size() == 2; }));
  });
  const auto spans = collector.spans();
  ASSERT_EQ(spans.size(), 2U);
  for (const auto& span : spans) {
    expect_below_traceparent(span);
    EXPECT_EQ(span["status"]["code"], 2);
    EXPECT_EQ(attribute_of(span, "http.request.method"), "POST");
    EXPECT_NE(log.find("span_id=" + span["spanId"].get<std::string>()), std::string::npos);
  }
  EXPECT_EQ(spans[0]["name"], std::string("POST ") + kChatPath);
  EXPECT_EQ(attribute_of(spans[0], "http.response.status_code"), "400");
  EXPECT_EQ(attribute_of(spans[0], "error.type"), "invalid_argument");
  EXPECT_EQ(attribute_of(spans[1], "http.route"), kCompletionPath);
  EXPECT_EQ(attribute_of(spans[1], "http.response.status_code"), "401");
  EXPECT_EQ(attribute_of(spans[1], "error.type"), "unauthenticated");
}

TEST(Traces, LinesOfRequestsInJsonNameTheirSpans) {
  SpanCollector collector;
  FakeEngine engine;
  Config config;
  config.otlp_traces_endpoint = collector.url();
  config.enable_log_requests = true;
  config.enable_log_prompts = true;
  init_log(LogLevel::kInfo, LogFormat::kJson);
  const std::string log = logged_by([&] {
    RunningServer server(engine, config);
    HttpClient client(server.port());
    client.post(kChatPath, chat_body(), header_of(kTraceparent));
    EXPECT_EQ(client.read_reply().status, 200);
    client.post(kChatPath, "{", header_of(kTraceparent));
    EXPECT_EQ(client.read_reply().status, 400);
    ASSERT_TRUE(eventually([&] { return collector.spans().size() == 2; }));
  });
  init_log(LogLevel::kInfo);
  std::vector<SpanCollector::Json> lines;
  std::istringstream text(log);
  for (std::string line; std::getline(text, line);) {
    auto parsed = SpanCollector::Json::parse(line);
    if (parsed["event"] == "prompt" || parsed["event"] == "request") lines.push_back(parsed);
  }
  ASSERT_EQ(lines.size(), 3U) << log;
  const auto spans = collector.spans();
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto& span = spans[i < 2 ? 0 : 1];  // a prompt and its answer, and what was refused
    EXPECT_EQ(lines[i]["trace_id"], span["traceId"]) << lines[i];
    EXPECT_EQ(lines[i]["span_id"], span["spanId"]) << lines[i];
  }
}

TEST(Traces, ATransferOfKvIsBelowItsRequest) {
  SpanCollector collector;
  FakeEngine engine;
  Config config;
  config.otlp_traces_endpoint = collector.url();
  RunningServer server(engine, config);
  KvTransferReport report;
  report.trace = parse_trace_context(kTraceparent, "");
  report.outcome = kTransferDone;
  report.transport = "shm";
  report.num_blocks = 9;
  report.num_bytes = 4096;
  report.begin = std::chrono::steady_clock::now();
  report.end = report.begin + std::chrono::seconds(60);
  engine.report_transfer(report);
  report.is_out = true;
  report.outcome = "peer_gone";
  engine.report_transfer(report);
  report.trace.is_sampled = false;
  engine.report_transfer(report);
  ASSERT_TRUE(eventually([&] { return collector.spans().size() == 2; }));
  const auto spans = collector.spans();
  ASSERT_EQ(spans.size(), 2U);
  for (const auto& span : spans) {
    expect_below_traceparent(span);
    EXPECT_EQ(attribute_of(span, "sluice.kv.blocks"), "9");
    EXPECT_EQ(attribute_of(span, "sluice.kv.bytes"), "4096");
    EXPECT_EQ(attribute_of(span, "sluice.kv.transport"), "shm");
    const auto time_of = [&](const char* key) { return std::stoll(span[key].get<std::string>()); };
    EXPECT_NEAR(time_of("endTimeUnixNano") - time_of("startTimeUnixNano"), 60e9, 10e9);
  }
  EXPECT_EQ(spans[0]["name"], "kv_transfer receive");
  EXPECT_EQ(spans[0]["kind"], 3);
  EXPECT_FALSE(spans[0].contains("status"));
  EXPECT_EQ(attribute_of(spans[0], "sluice.kv.outcome"), "done");
  EXPECT_EQ(spans[1]["name"], "kv_transfer send");
  EXPECT_EQ(spans[1]["kind"], 2);
  EXPECT_EQ(spans[1]["status"]["code"], 2);
  EXPECT_EQ(attribute_of(spans[1], "error.type"), "peer_gone");
  server.stop();
}

}  // namespace
}  // namespace sluice
