// SPDX-License-Identifier: Apache-2.0
// /metrics as OpenMetrics: who gets it, and that it says what the text format says, with exemplars.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include "server/http/accept.h"
#include "tests/server/running_server.h"

namespace sluice {
namespace {

constexpr const char* kOpen = "application/openmetrics-text";
// What Prometheus 2.42 sends.
constexpr const char* kPrometheus =
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1";

HttpReply metrics(RunningServer& server, const std::string& accept = {}) {
  HttpClient client(server.port());
  const std::string header = accept.empty() ? "" : "Accept: " + accept + "\r\n";
  client.request("GET", "/metrics", {}, header);
  return client.read_reply();
}

EngineStats stats_with_a_trace() {
  TraceContext trace =
      parse_trace_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "");
  EngineStats stats;
  stats.time_to_first_token.observe(kFirstTokenBounds, 0.03, trace);
  stats.time_to_first_token.observe(kFirstTokenBounds, 9999, trace);
  stats.e2e_latency.observe(kRequestBounds, 12.5, trace);
  trace.is_sampled = false;
  stats.time_to_first_token.observe(kFirstTokenBounds, 3, trace);
  stats.inter_token_latency.observe(kInterTokenBounds, 0.02, {});
  stats.num_requests_running = 3;
  stats.generation_tokens = (uint64_t{1} << 40) + 1;
  return stats;
}

// Sample and labels to value; bounds are numbers, however they are written.
std::map<std::string, double> samples_of(const std::string& text) {
  std::map<std::string, double> samples;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    const size_t end = line.find(" # ");
    line = line.substr(0, end);
    const size_t at = line.rfind(' ');
    std::string name = line.substr(0, at);
    if (const size_t bound = name.find("le=\""); bound != std::string::npos) {
      const double value = std::strtod(name.c_str() + bound + 4, nullptr);
      name = name.substr(0, bound) + std::to_string(value);
    }
    samples[name] = std::strtod(line.c_str() + at, nullptr);
  }
  return samples;
}

TEST(OpenMetrics, IsForClientsThatWantItMost) {
  EXPECT_EQ(accepted_weight(kPrometheus, kOpen, "1.0.0"), 1);
  EXPECT_EQ(accepted_weight(kPrometheus, kOpen, "0.0.1"), 0.75);
  EXPECT_EQ(accepted_weight(kPrometheus, "text/plain", "0.0.4"), 0.5);
  EXPECT_EQ(accepted_weight("Text/Plain ; Q = 0.3", "text/plain", "0.0.4"), 0.3);
  for (const char* none : {"",
                           "*/*",
                           ",;=,",
                           "text/plain;q=2",
                           "text/plain;q=x",
                           "text/plain;q=nan",
                           "text/plain;version=9",
                           "text/plain;q=-0.1",
                           "text/plainer"}) {
    EXPECT_EQ(accepted_weight(none, "text/plain", "0.0.4"), 0) << none;
  }
  FakeEngine engine;
  RunningServer server(engine);
  const std::string text = "text/plain; version=0.0.4; charset=utf-8";
  const std::string open = "application/openmetrics-text; version=1.0.0; charset=utf-8";
  EXPECT_EQ(metrics(server).header("Content-Type"), text);
  EXPECT_EQ(metrics(server, "*/*").header("Content-Type"), text);
  EXPECT_EQ(metrics(server, kPrometheus).header("Content-Type"), open);
  EXPECT_EQ(metrics(server, kOpen).header("Content-Type"), open);
  EXPECT_EQ(metrics(server, std::string(kOpen) + ";version=0.0.1").header("Content-Type"), text);
  EXPECT_EQ(metrics(server, std::string(kOpen) + ";q=0.1,text/plain").header("Content-Type"), text);
}

TEST(OpenMetrics, SaysWhatTheTextFormatSays) {
  FakeEngine engine;
  engine.set_stats(stats_with_a_trace());
  RunningServer server(engine);
  metrics(server);  // so that both scrapes below see a row for /metrics
  const std::string text = metrics(server).body;
  const std::string open = metrics(server, kPrometheus).body;
  EXPECT_TRUE(open.ends_with("\n# EOF\n"));
  EXPECT_EQ(text.find("# EOF"), std::string::npos);
  EXPECT_EQ(text.find(" # {"), std::string::npos);
  auto expected = samples_of(text);
  auto found = samples_of(open);
  const std::string own = R"(http_requests_total{handler="/metrics",method="GET",status="200"})";
  EXPECT_EQ(found[own], expected[own] + 1);
  found[own] = expected[own];
  // The process goes on between the scrapes.
  for (auto* samples : {&found, &expected}) {
    std::erase_if(*samples,
                  [](const auto& sample) { return sample.first.starts_with("process_"); });
  }
  EXPECT_EQ(found, expected);
  EXPECT_GT(found.size(), 200U);
  // Counters are families without their suffix, other names stay.
  EXPECT_NE(open.find("# TYPE vllm:generation_tokens counter\n"), std::string::npos);
  EXPECT_NE(open.find("# TYPE vllm:iteration_tokens_total histogram\n"), std::string::npos);
  for (const char* line : {
           R"(vllm:generation_tokens_total{engine="0",model_name="fake"} 1.099511627777e+12)",
           R"(vllm:num_requests_running{engine="0",model_name="fake"} 3.0)",
           R"(vllm:time_to_first_token_seconds_bucket{engine="0",model_name="fake",le="0.001"} 0)",
           R"(vllm:time_to_first_token_seconds_bucket{engine="0",model_name="fake",le="1.0"} 1)",
           R"(vllm:request_prompt_tokens_bucket{engine="0",model_name="fake",le="500000.0"} 0)",
           R"(vllm:request_prompt_tokens_bucket{engine="0",model_name="fake",le="1e+06"} 0)",
           R"(vllm:time_to_first_token_seconds_count{engine="0",model_name="fake"} 3)",
       }) {
    EXPECT_NE(open.find(line), std::string::npos) << line << "\n" << open;
  }
}

TEST(OpenMetrics, BucketsNameTheLatestTracedRequest) {
  FakeEngine engine;
  engine.set_stats(stats_with_a_trace());
  RunningServer server(engine);
  const std::string open = metrics(server, kPrometheus).body;
  const std::string trace =
      R"( # {trace_id="0af7651916cd43dd8448eb211c80319c",span_id="b7ad6b7169203331"} )";
  const std::string labels = R"({engine="0",model_name="fake",le=)";
  const std::string first = "vllm:time_to_first_token_seconds_bucket" + labels;
  for (const std::string& line :
       {first + R"("0.04"} 1)" + trace + "0.03 ",
        first + R"("+Inf"} 3)" + trace + "9999.0 ",
        "vllm:e2e_request_latency_seconds_bucket" + labels + R"("15.0"} 1)" + trace + "12.5 "}) {
    EXPECT_NE(open.find(line), std::string::npos) << line << "\n" << open;
  }
  size_t count = 0;
  for (size_t at = 0; (at = open.find(" # {", at)) != std::string::npos; ++at) ++count;
  EXPECT_EQ(count, 3U);  // not sampled, or without a trace: none
}

}  // namespace
}  // namespace sluice
