// SPDX-License-Identifier: Apache-2.0
// What happens to running requests when clients leave, read slowly, or the server ends.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/server/running_server.h"

namespace sluice {
namespace {

constexpr const char* kLongStream =
    R"({"prompt":"x","stream":true,"ignore_eos":true,"max_tokens":500})";
constexpr const char* kLongAnswer = R"({"prompt":"x","ignore_eos":true,"max_tokens":500})";

TEST(Disconnect, AbortsAStream) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post(kCompletionPath, kLongStream);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  engine.step();
  EXPECT_NE(client.read_until("data: "), "");
  client.close();
  EXPECT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
  engine.step();
  EXPECT_EQ(engine.num_running(), 0U);
}

TEST(Disconnect, AbortsAllChoicesOfAnAnswerNobodyWaitsFor) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post(kCompletionPath, R"({"prompt":"x","n":3})");
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 3; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return engine.num_aborted() == 3; }));
  engine.step();
}

TEST(Disconnect, LeavesOtherClientsAlone) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config;
  config.io_threads = 2;
  RunningServer server(engine, config);
  HttpClient leaver(server.port());
  HttpClient stayer(server.port());
  leaver.post(kCompletionPath, kLongStream);
  stayer.post(kCompletionPath, R"({"prompt":"x"})");
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 2; }));
  engine.step();
  leaver.close();
  ASSERT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
  for (int i = 0; i < 6; ++i) engine.step();
  EXPECT_NE(stayer.read_reply().body.find("Hello"), std::string::npos);
}

TEST(SlowReader, IsDroppedWhenItsBufferIsFull) {
  FakeEngine engine;
  engine.editable_model().max_model_len = 1 << 20;
  Config config;
  config.max_stream_buffer_bytes = 64 << 10;
  RunningServer server(engine, config);
  HttpClient client(server.port(), /*receive_buffer=*/4096);
  client.post(kCompletionPath,
              R"({"prompt":"x","stream":true,"ignore_eos":true,"max_tokens":1000000})");
  EXPECT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
}

TEST(SlowReader, IsDroppedWhenAWriteMakesNoProgress) {
  FakeEngine engine;
  engine.editable_model().max_model_len = 1 << 20;
  Config config;
  config.write_timeout_s = 1;
  config.max_stream_buffer_bytes = int64_t{1} << 40;
  RunningServer server(engine, config);
  engine.set_step_delay(std::chrono::microseconds(10));
  HttpClient client(server.port(), /*receive_buffer=*/4096);
  client.post(kCompletionPath,
              R"({"prompt":"x","stream":true,"ignore_eos":true,"max_tokens":1000000})");
  EXPECT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
}

TEST(LongPrefill, SendsACommentSoThatProxiesKeepTheStream) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config;
  config.ping_interval_s = 1;
  RunningServer server(engine, config);
  HttpClient client(server.port());
  client.post(kCompletionPath, kLongStream);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  EXPECT_NE(client.read_until("\r\n\r\n").find("text/event-stream"), std::string::npos);
  EXPECT_EQ(client.read_chunk(), ": ping\n\n");
  engine.step();
  EXPECT_TRUE(client.read_chunk().starts_with("data: "));
  client.close();
  EXPECT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
  engine.step();
}

TEST(Drain, LetsRunningStreamsEndAndRefusesNewOnes) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine);
  HttpClient streaming(server.port());
  HttpClient asking(server.port());
  asking.get("/version");
  EXPECT_EQ(asking.read_reply().status, 200);
  asking.send("POST /v1/completions HTTP/1.1\r\nHost: test\r\n");
  streaming.post(kCompletionPath, R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  const uint16_t port = server.port();
  server->drain();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // some looks at its connections
  asking.send("Content-Length: 14\r\n\r\n{\"prompt\":\"x\"}");
  const HttpReply refused = asking.read_reply();
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.header("Retry-After"), "");
  EXPECT_EQ(refused.header("Connection"), "close");
  EXPECT_TRUE(eventually([&] { return !HttpClient(port).is_connected(); }));
  for (int i = 0; i < 6; ++i) engine.step();
  EXPECT_NE(streaming.read_reply().body.find("[DONE]"), std::string::npos);
  server.wait();
}

TEST(Drain, ClosesConnectionsThatWaitForNoAnswer) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config;
  config.io_threads = 2;
  RunningServer server(engine, config);
  HttpClient streaming(server.port());
  HttpClient kept(server.port());
  HttpClient fresh(server.port());
  HttpClient last(server.port());
  for (HttpClient* const client : {&kept, &last}) {
    client->get("/health");
    const HttpReply reply = client->read_reply();
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.header("Connection"), "keep-alive");
  }
  streaming.post(kCompletionPath, R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  server->drain();
  for (HttpClient* const client : {&kept, &fresh, &last}) EXPECT_TRUE(client->at_end());
  for (int i = 0; i < 6; ++i) engine.step();
  EXPECT_NE(streaming.read_reply().body.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(streaming.at_end());
  server.wait();
}

// Another process serves: until the drain, requests on kept connections are answered.
TEST(HandOver, AnswersOnKeptConnectionsAndEndsThem) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine);
  HttpClient streaming(server.port());
  HttpClient asking(server.port());
  HttpClient idle(server.port());
  for (HttpClient* const client : {&asking, &idle}) {
    client->get("/version");
    EXPECT_EQ(client->read_reply().status, 200);
  }
  streaming.post(kCompletionPath, R"({"prompt":"x","stream":true})");
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  engine.step();
  EXPECT_NE(streaming.read_until("\r\n\r\n").find("keep-alive"), std::string::npos);
  const auto start = std::chrono::steady_clock::now();
  server->hand_over();
  asking.get("/version");
  const HttpReply answer = asking.read_reply();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("Connection"), "close");
  EXPECT_TRUE(asking.at_end());
  EXPECT_TRUE(idle.at_end());  // before the drain would refuse its next request
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(1900));
  for (int i = 0; i < 5; ++i) engine.step();
  EXPECT_NE(streaming.read_until("0\r\n\r\n"), "");
  EXPECT_TRUE(streaming.at_end());
}

TEST(Drain, CutsStreamsAtTheDeadlineWithAnError) {
  FakeEngine engine;
  engine.editable_model().max_model_len = 1 << 20;
  engine.set_step_delay(std::chrono::milliseconds(5));
  Config config;
  config.drain_timeout_s = 1;
  RunningServer server(engine, config);
  HttpClient client(server.port());
  client.post(kCompletionPath,
              R"({"prompt":"x","stream":true,"ignore_eos":true,"max_tokens":100000})");
  EXPECT_NE(client.read_until("data: "), "");
  server->drain();
  const std::string rest = client.read_until("data: [DONE]\n\n");
  EXPECT_NE(rest.find("\"error\""), std::string::npos);
  EXPECT_NE(rest.find("503"), std::string::npos);
  server.wait();
  EXPECT_EQ(engine.num_running(), 0U);
}

TEST(Stop, EndsEverythingAtOnceAndSaysSo) {
  FakeEngine engine;
  engine.editable_model().max_model_len = 1 << 20;
  engine.set_step_delay(std::chrono::milliseconds(1));
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post(kCompletionPath, kLongAnswer);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  server.stop();
  EXPECT_EQ(client.read_reply().status, 503);
  EXPECT_EQ(engine.num_running(), 0U);
}

TEST(Stop, BeforeRunReturnsFromRun) {
  FakeEngine engine;
  Config config;
  config.port = 0;
  auto server = HttpServer::create(config, engine);
  ASSERT_TRUE(server.has_value());
  (*server)->stop();
  (*server)->run();
}

}  // namespace
}  // namespace sluice
