// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 as bytes: framing, limits, timeouts, smuggling, pipelining.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/server/running_server.h"

namespace sluice {
namespace {

std::string post_text(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

HttpReply reply_to(RunningServer& server, const std::string& bytes) {
  HttpClient client(server.port());
  client.send(bytes);
  return client.read_reply();
}

TEST(Http, AnswerDoesNotDependOnWhereTheBytesAreSplit) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string body = R"({"prompt":"x","max_tokens":2,"seed":1})";
  std::string chunked =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  chunked +=
      "5;ext=1\r\n" + body.substr(0, 5) + "\r\n21\r\n" + body.substr(5) + "\r\n0\r\nA: b\r\n\r\n";
  ASSERT_EQ(body.size(), 5U + 0x21U);
  for (const std::string& text : {post_text(kCompletionPath, body), chunked}) {
    for (size_t split = 1; split < text.size(); ++split) {
      HttpClient client(server.port());
      client.send(text.substr(0, split));
      client.send(text.substr(split));
      const HttpReply reply = client.read_reply();
      ASSERT_EQ(reply.status, 200) << "split at " << split << ": " << reply.body;
      ASSERT_NE(reply.body.find("\"text\":\"He\""), std::string::npos);
    }
    HttpClient client(server.port());
    for (const char c : text) client.send(std::string_view(&c, 1));
    EXPECT_EQ(client.read_reply().status, 200);
  }
}

TEST(Http, PipelinedRequestsAreAnsweredInOrder) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  client.send("GET /version HTTP/1.1\r\nHost: x\r\n\r\n" +
              post_text(kCompletionPath, R"({"prompt":"x","max_tokens":1})") +
              "GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /nothing HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_NE(client.read_reply().body.find("version"), std::string::npos);
  EXPECT_NE(client.read_reply().body.find("text_completion"), std::string::npos);
  EXPECT_EQ(client.read_reply().body, "{\"status\":\"ok\"}");
  EXPECT_EQ(client.read_reply().status, 404);
}

TEST(Http, AmbiguousFramingIsRefusedAndTheConnectionEnds) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string start = "POST /v1/completions HTTP/1.1\r\nHost: x\r\n";
  const std::vector<std::string> requests = {
      start + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      start + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
      start + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
      start + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
      start + "Content-Length: +5\r\n\r\nhello",
      start + "Content-Length: -2\r\n\r\n",
      start + "Content-Length: 0x5\r\n\r\nhello",
      start + "Content-Length: 18446744073709551621\r\n\r\nhello",
      start + "Transfer-Encoding: gzip\r\n\r\nhello",
      start + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
      start + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      start + "Transfer-Encoding: chunked\r\n\r\n-2\r\nhello\r\n0\r\n\r\n",
      start + "Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
      start + "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\nhello\r\n0\r\n\r\n",
      start + "Content-Length : 5\r\n\r\nhello",
      "POST /v1/completions HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
      "GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
      "GET /health HTTP/2.0\r\nHost: a\r\n\r\n",
      "GET  /health HTTP/1.1\r\nHost: a\r\n\r\n",
      "\x16\x03\x01\x02\r\n\r\n",
  };
  for (const std::string& request : requests) {
    HttpClient client(server.port());
    client.send(request + "GET /version HTTP/1.1\r\nHost: x\r\n\r\n");
    const HttpReply reply = client.read_reply();
    EXPECT_GE(reply.status, 400) << request;
    EXPECT_EQ(reply.header("Connection"), "close") << request;
    EXPECT_TRUE(client.at_end()) << "answered twice: " << request;
  }
  EXPECT_TRUE(engine.submitted().empty());
}

TEST(Http, LimitsHaveTheirOwnStatus) {
  FakeEngine engine;
  Config config;
  config.max_header_bytes = 1024;
  config.max_body_bytes = 2000;
  RunningServer server(engine, config);
  const std::string big(3000, 'x');
  EXPECT_EQ(reply_to(server, "GET /health HTTP/1.1\r\nHost: x\r\nA: " + big).status, 431);
  EXPECT_EQ(reply_to(server, "GET /" + big + " HTTP/1.1\r\n").status, 431);
  EXPECT_EQ(reply_to(server, post_text(kCompletionPath, big)).status, 413);
  EXPECT_EQ(reply_to(server,
                     "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked"
                     "\r\n\r\nbb8\r\n" +
                         big + "\r\n0\r\n\r\n")
                .status,
            413);
  EXPECT_EQ(reply_to(server,
                     "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked"
                     "\r\n\r\n5;" +
                         std::string(80'000, 'e'))
                .status,
            400);
}

TEST(Http, WrongPathAndMethodAreJsonErrors) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  client.get("/v1/nothing");
  HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 404);
  EXPECT_EQ(reply.header("Content-Type"), "application/json");
  client.get(kChatPath);
  reply = client.read_reply();
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.header("Allow"), "POST");
  client.request("DELETE", "/health", {});
  EXPECT_EQ(client.read_reply().status, 405);
}

TEST(Http, HeadIsGetWithoutABody) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  client.request("HEAD", "/health", {});
  const HttpReply reply = client.read_reply(/*has_body=*/false);
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("Content-Length"), "15");
  client.get("/version");
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Http, BrowsersMayAskFromAnywhere) {
  FakeEngine engine;
  Config config;
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  HttpClient client(server.port());
  client.request("OPTIONS", kChatPath, {}, "Origin: http://a\r\n");
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 204);
  EXPECT_EQ(reply.header("Access-Control-Allow-Origin"), "*");
}

TEST(Http, ContinueIsSentBeforeABodyThatWaitsForIt) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  const std::string body = R"({"prompt":"x"})";
  client.send(
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.read_reply().status, 100);
  client.send(body);
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Http, TooLargeABodyIsRefusedInsteadOfContinued) {
  FakeEngine engine;
  RunningServer server(engine);
  EXPECT_EQ(reply_to(server,
                     "POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                     "Content-Length: 99999999999\r\n\r\n")
                .status,
            413);
}

TEST(Http, OldClientsGetAStreamThatEndsWithTheConnection) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  const std::string body = R"({"prompt":"x","stream":true})";
  client.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) +
              "\r\n\r\n" + body);
  const std::string text = client.read_until("data: [DONE]\n\n");
  EXPECT_NE(text.find("Connection: close"), std::string::npos);
  EXPECT_EQ(text.find("Transfer-Encoding"), std::string::npos);
  EXPECT_TRUE(client.at_end());
}

TEST(Http, RequestIdIsEchoedOnlyWhenItIsHarmless) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  client.request("GET", "/health", {}, "X-Request-Id: abc-1.2\r\n");
  EXPECT_EQ(client.read_reply().header("X-Request-Id"), "abc-1.2");
  client.request("GET", "/health", {}, "X-Request-Id: a\"b<c>\r\n");
  EXPECT_EQ(client.read_reply().header("X-Request-Id"), "");
}

TEST(Http, SlowRequestGets408AndIdleConnectionEnds) {
  FakeEngine engine;
  Config config;
  config.request_timeout_s = 1;
  config.idle_timeout_s = 1;
  RunningServer server(engine, config);
  HttpClient slow(server.port());
  slow.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
  HttpClient idle(server.port());
  EXPECT_EQ(slow.read_reply().status, 408);
  EXPECT_TRUE(slow.at_end());
  EXPECT_TRUE(idle.at_end());
}

TEST(Http, ConnectionsBeyondTheLimitAreClosed) {
  FakeEngine engine;
  Config config;
  config.max_connections = 1;
  RunningServer server(engine, config);
  {
    HttpClient first(server.port());
    first.get("/health");
    EXPECT_EQ(first.read_reply().status, 200);
    HttpClient second(server.port());
    EXPECT_TRUE(second.at_end());
  }
  EXPECT_TRUE(eventually([&] {
    HttpClient third(server.port());
    third.get("/health");
    return third.read_reply().status == 200;
  }));
}

TEST(Http, PortInUseIsOneLineWithTheRemedy) {
  FakeEngine engine;
  RunningServer server(engine);
  Config config;
  config.port = server.port();
  const auto second = HttpServer::create(config, engine);
  ASSERT_FALSE(second.has_value());
  const std::string& message = second.error().message;
  EXPECT_NE(message.find(std::to_string(server.port())), std::string::npos);
  EXPECT_NE(message.find("--port"), std::string::npos);
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace sluice
