// SPDX-License-Identifier: Apache-2.0
// Names of requests, and lines of requests and prompts in the log.
#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/core/log.h"
#include "tests/server/running_server.h"
#include "tests/support/captured_log.h"

namespace sluice {
namespace {

HttpReply post(RunningServer& server, const std::string& path, const std::string& body) {
  HttpClient client(server.port());
  client.post(path, body);
  return client.read_reply();
}

std::string log_of(const Config& config, const std::string& path, const std::string& body) {
  FakeEngine engine;
  RunningServer server(engine, config);
  ::testing::internal::CaptureStderr();
  HttpClient client(server.port());
  client.post(path, body, "X-Request-Id: mine-1\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
  server.stop();
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, HoldsPromptsOnlyWhenAsked) {
  Config config;
  config.enable_log_requests = true;
  const std::string body = R"({"prompt":["Sesame","Simsim"],"n":2})";
  std::string text = log_of(config, kCompletionPath, body);
  EXPECT_NE(text.find("request id=mine-1 "), std::string::npos) << text;
  EXPECT_EQ(text.find("Sesame"), std::string::npos) << text;
  config.enable_log_prompts = true;
  text = log_of(config, kCompletionPath, body);
  EXPECT_NE(text.find("prompt id=mine-1 tokens=7 text=<s>Sesame\n"), std::string::npos) << text;
  EXPECT_NE(text.find("prompt id=mine-1 tokens=7 text=<s>Simsim\n"), std::string::npos) << text;
  EXPECT_LT(text.find("prompt id="), text.find("request id=")) << text;
}

// Returns the line of the request in what was logged.
std::string request_line(const std::string& log) {
  const size_t begin = log.find("request id=");
  return begin == std::string::npos ? "" : log.substr(begin, log.find('\n', begin) - begin);
}

void expect_parts(const std::string& line, std::initializer_list<const char*> parts) {
  for (const char* part : parts) EXPECT_NE(line.find(part), std::string::npos) << part << ": " << line;
}

TEST(Log, ARequestsLineSaysWhoAskedForWhatAndHowItEnded) {
  Config config;
  config.enable_log_requests = true;
  const std::string stream = request_line(log_of(config, kChatPath, chat_body(R"(,"stream":true)")));
  expect_parts(stream,
               {" client=127.0.0.1:",
                " api=openai",
                " model=fake",
                " stream=true",
                " finish=stop",
                " output_tokens=6"});
  const std::string choices = request_line(
      log_of(config, kCompletionPath, R"({"prompt":"Hi","n":2,"max_tokens":3,"model":"alias"})"));
  expect_parts(choices, {" model=alias", " stream=false", " finish=length,length", " output_tokens=6"});
  const std::string message = request_line(
      log_of(config,
             "/v1/messages",
             R"({"model":"fake","max_tokens":2,"messages":[{"role":"user","content":"Hi"}]})"));
  expect_parts(message, {" api=anthropic", " finish=length", " output_tokens=2"});
}

TEST(Log, LinesOfRefusedRequestsNameThem) {
  FakeEngine engine;
  Config config;
  config.enable_log_requests = true;
  config.api_key = {"right"};
  const std::string log = logged_by([&] {
    RunningServer server(engine, config);
    HttpClient client(server.port());
    client.post(kChatPath, chat_body());
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 401);
    client.post(kChatPath, "{", "Authorization: Bearer right\r\nX-Request-Id: bad-1\r\n");
    EXPECT_EQ(client.read_reply().status, 400);
    client.get("/nothing");
    EXPECT_EQ(client.read_reply().status, 404);
  });
  expect_parts(log, {"path=/v1/chat/completions status=401", "id=bad-1 ", "path=/nothing status=404"});
  expect_parts(request_line(log), {"request id=req", " client=127.0.0.1:"});
}

TEST(Log, PathsThatAreListedHaveNoLineWhateverTheirAnswer) {
  FakeEngine engine;
  Config config;
  config.enable_log_requests = true;
  config.disable_access_log_for_endpoints = {"/v1/models/", kChatPath, "/metrics"};
  const std::string log = logged_by([&] {
    RunningServer server(engine, config);
    HttpClient client(server.port());
    for (const char* path : {"/v1/models", "/v1/models/?a=b", "/v1/models/fake", "/metrics"}) {
      client.get(path);
      EXPECT_EQ(client.read_reply().status, 200) << path;
    }
    client.post(kChatPath, "{");
    EXPECT_EQ(client.read_reply().status, 400);
    client.post(kCompletionPath, R"({"prompt":"x"})");
    EXPECT_EQ(client.read_reply().status, 200);
  });
  for (const char* part : {"path=/v1/models ", "path=/v1/chat", "path=/metrics"}) {
    EXPECT_EQ(log.find(part), std::string::npos) << part << " in " << log;
  }
  expect_parts(log, {"path=/v1/models/fake status=200", "path=/v1/completions status=200"});
}

// Starts an answer and waits until the server has its first three tokens.
void run_three_steps(FakeEngine& engine, HttpClient& client, bool is_stream) {
  client.post(kChatPath, chat_body(is_stream ? R"(,"stream":true)" : ""));
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  for (int i = 0; i < 3; ++i) engine.step();
  if (is_stream) {
    client.read_until("\"l\"");
  } else {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // outputs take another thread
  }
}

// What the engine had made and the client was sent counts, however the request ends.
TEST(Log, LinesOfRequestsThatEndEarlyCountWhatTheyTook) {
  for (const bool is_stream : {true, false}) {
    FakeEngine engine(FakeEngine::Stepping::kManual);
    Config config;
    config.enable_log_requests = true;
    const std::string log = logged_by([&] {
      RunningServer server(engine, config);
      HttpClient client(server.port());
      run_three_steps(engine, client, is_stream);
      client.close();
      ASSERT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
      engine.end_aborted();
    });
    expect_parts(request_line(log), {" status=499", " finish=abort", " output_tokens=3"});
  }
}

TEST(Log, ALineOfAnErrorInTheMiddleCountsWhatCameBefore) {
  FakeEngine engine;
  engine.fail_at(2);
  Config config;
  config.enable_log_requests = true;
  const std::string log = logged_by([&] {
    RunningServer server(engine, config);
    EXPECT_EQ(post(server, kChatPath, chat_body(R"(,"stream":true)")).status, 200);
    EXPECT_EQ(post(server, kChatPath, chat_body()).status, 500);
  });
  expect_parts(request_line(log), {" status=500", " finish=error", " output_tokens=2"});
  const std::string whole = request_line(log.substr(log.find("request id=") + 1));
  expect_parts(whole, {" status=500", " finish=error", " output_tokens=2"});
}

TEST(Log, ALineOfARequestThatADrainCutsCountsWhatItTook) {
  for (const bool is_stream : {true, false}) {
    FakeEngine engine(FakeEngine::Stepping::kManual);
    Config config;
    config.enable_log_requests = true;
    config.drain_timeout_s = 0;
    const std::string log = logged_by([&] {
      RunningServer server(engine, config);
      HttpClient client(server.port());
      run_three_steps(engine, client, is_stream);
      server->drain();
      ASSERT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
      engine.end_aborted();
      server.wait();
    });
    expect_parts(request_line(log), {" status=503", " finish=error", " output_tokens=3"});
  }
}

TEST(Log, ProbesAndScrapesAreLoggedAtDebugOrWhereTheyFail) {
  FakeEngine engine;
  Config config;
  config.enable_log_requests = true;
  const auto log_of_probes = [&] {
    return logged_by([&] {
      RunningServer server(engine, config);
      HttpClient client(server.port());
      for (const char* path : {"/health", "/ready", "/ping", "/version", "/load", "/metrics"}) {
        client.get(path);
        EXPECT_EQ(client.read_reply().status, 200) << path;
      }
      client.get("/v1/models");
      EXPECT_EQ(client.read_reply().status, 200);
    });
  };
  const std::string usual = log_of_probes();
  EXPECT_EQ(usual.find("path=/metrics"), std::string::npos) << usual;
  EXPECT_EQ(usual.find("path=/health"), std::string::npos) << usual;
  expect_parts(usual, {"path=/v1/models status=200"});
  init_log(LogLevel::kDebug);
  const std::string all = log_of_probes();
  init_log(LogLevel::kInfo);
  expect_parts(all, {"path=/metrics status=200", "path=/health status=200"});
  engine.drain();
  const std::string failed = logged_by([&] {
    RunningServer server(engine, config);
    HttpClient client(server.port());
    client.get("/health");
    EXPECT_EQ(client.read_reply().status, 503);
  });
  expect_parts(failed, {"path=/health status=503"});
}

TEST(Log, HoldsAPromptsBeginning) {
  Config config;
  config.enable_log_prompts = true;
  config.max_log_len = 8;
  const std::string text = log_of(config,
                                  kCompletionPath,
                                  "{\"prompt\":\"abcd\xC3\xA9"
                                  "f\"}");
  EXPECT_NE(text.find("tokens=8 text=<s>abcd\n"), std::string::npos) << text;
}

TEST(RequestId, IsEchoedOnlyWhenItIsHarmless) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  client.request("GET", "/health", {}, "X-Request-Id: abc-1.2\r\n");
  EXPECT_EQ(client.read_reply().header("X-Request-Id"), "abc-1.2");
  client.request("GET", "/health", {}, "X-Request-Id: a\"b<c>\r\n");
  EXPECT_TRUE(client.read_reply().header("X-Request-Id").starts_with("req_"));
}

// Also where no route, or no whole request, was found.
TEST(RequestId, IsInEveryAnswer) {
  FakeEngine engine;
  Config config;
  config.max_header_bytes = 1024;
  config.max_body_bytes = 1024;
  RunningServer server(engine, config);
  const std::string named = "HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\n";
  const std::string json = "Content-Type: application/json\r\nContent-Length: ";
  const std::vector<std::pair<int, std::string>> requests = {
      {404, "GET /nothing " + named + "\r\n"},
      {405, "DELETE /v1/completions " + named + "\r\n"},
      {204, "OPTIONS /v1/completions " + named + "Origin: http://x\r\n\r\n"},
      {400, "POST /v1/completions " + named + json + "1\r\n\r\n{"},
      {413, "POST /v1/completions " + named + json + "2000\r\n\r\n"},
      {431, "GET /health " + named + "A: " + std::string(2000, 'a') + "\r\n\r\n"},
      {417, "GET /health " + named + "Expect: rain\r\n\r\n"},
      {501, "POST /health " + named + "Transfer-Encoding: gzip\r\n\r\n"},
      {400, "POST /v1/completions " + named + "Content-Encoding: gzip\r\n" + json + "1\r\n\r\nx"},
      {400, "GET /health " + named + "no header\r\n\r\n"}};
  for (const auto& [status, request] : requests) {
    HttpClient client(server.port());
    client.send(request);
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, status) << request;
    EXPECT_EQ(reply.header("X-Request-Id"), "mine") << request;
  }
  for (const char* bytes : {"nonsense\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\x16\x03\x01\r\n"}) {
    HttpClient client(server.port());
    client.send(bytes);
    EXPECT_TRUE(client.read_reply().header("X-Request-Id").starts_with("req_")) << bytes;
  }
}

}  // namespace
}  // namespace sluice
