// SPDX-License-Identifier: Apache-2.0
// What clients without a key, and requests for which memory or threads are missing, may take.
#include <gtest/gtest.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "tests/server/running_server.h"

namespace sluice {
namespace {

constexpr size_t kBody = 1 << 20;
constexpr const char* kSecret = "Authorization: Bearer secret\r\n";

std::string header_of(const std::string& path, size_t body_bytes, const std::string& more = {}) {
  return "POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + more +
         "Content-Length: " + std::to_string(body_bytes) + "\r\n\r\n";
}

Config with_key() {
  Config config;
  config.api_key = {"secret"};
  config.max_body_bytes = kBody;
  return config;
}

// The body never comes: whoever waits for it answers 408 much later.
TEST(HeaderAlone, RefusesWhoHasNoKey) {
  FakeEngine engine;
  RunningServer server(engine, with_key());
  for (const char* path : {kChatPath,
                           kCompletionPath,
                           "/v1/responses",
                           "/v1/messages",
                           "/v1/messages/count_tokens",
                           "/tokenize",
                           "/detokenize"}) {
    for (const char* wrong : {"", "Authorization: Bearer other\r\n", "x-api-key: other\r\n"}) {
      HttpClient client(server.port());
      client.send(header_of(path, kBody, wrong) + "{");
      const HttpReply reply = client.read_reply();
      EXPECT_EQ(reply.status, 401) << path << " " << wrong;
      EXPECT_EQ(reply.header("Connection"), "close");
    }
  }
}

TEST(HeaderAlone, RefusesChunksAndExpectations) {
  FakeEngine engine;
  RunningServer server(engine, with_key());
  HttpClient chunked(server.port());
  chunked.send(std::string("POST ") + kChatPath +
               " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n{");
  EXPECT_EQ(chunked.read_reply().status, 401);
  HttpClient expecting(server.port());
  expecting.send(header_of(kChatPath, kBody, "Expect: 100-continue\r\n"));
  EXPECT_EQ(expecting.read_reply().status, 401);  // not 100
  HttpClient gzip(server.port());
  gzip.send(header_of(kChatPath, kBody, "Content-Encoding: gzip\r\n") + "x");
  EXPECT_EQ(gzip.read_reply().status, 401);
}

TEST(HeaderAlone, AnswersWherePathsTakeNoBodies) {
  FakeEngine engine;
  RunningServer server(engine, with_key());
  const auto status = [&](const std::string& path) {
    HttpClient client(server.port());
    client.send(header_of(path, kBody));
    return client.read_reply().status;
  };
  EXPECT_EQ(status("/nothing"), 404);
  EXPECT_EQ(status("/health"), 405);
}

TEST(HeaderAlone, LetsInWhoHasTheKey) {
  FakeEngine engine;
  RunningServer server(engine, with_key());
  HttpClient client(server.port());
  const std::string expects = std::string(kSecret) + "Expect: 100-continue\r\n";
  client.send(header_of(kChatPath, chat_body().size(), expects));
  EXPECT_NE(client.read_until("100 Continue\r\n\r\n"), "");
  client.send(chat_body());
  EXPECT_EQ(client.read_reply().status, 200);
  client.post("/tokenize", R"({"prompt":"a"})", kSecret);
  EXPECT_EQ(client.read_reply().status, 200);
  client.post("/detokenize", R"({"tokens":[65]})", kSecret);
  EXPECT_EQ(client.read_reply().status, 200);
}

// Halves of large bodies take what a few whole ones take, and small requests still come in.
TEST(UnfinishedBodies, ShareOneBudget) {
  FakeEngine engine;
  Config config = with_key();
  config.api_key.clear();
  config.io_threads = 2;
  RunningServer server(engine, config);
  const auto ask = [&](const std::string& body) {
    HttpClient client(server.port());
    client.post(kChatPath, body);
    return client.read_reply();
  };
  const std::string half(kBody * 3 / 4, ' ');
  const std::string large = chat_body() + std::string(kBody * 7 / 8, ' ');
  std::vector<std::unique_ptr<HttpClient>> holders;
  HttpReply reply = ask(large);
  EXPECT_EQ(reply.status, 200);
  // One at a time: of many at once some are refused, and leave room.
  for (int i = 0; i < 20 && reply.status == 200; ++i) {
    holders.push_back(std::make_unique<HttpClient>(server.port()));
    holders.back()->send(header_of(kChatPath, kBody) + half);
    reply = ask(large);
  }
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.header("Retry-After"), "1");
  EXPECT_EQ(ask(chat_body()).status, 200);
  holders.clear();
  EXPECT_TRUE(eventually([&] { return ask(large).status == 200; }));
}

// Reading a large request takes long: another thread than that of small ones does it.
TEST(LargeRequests, HaveAThreadOfTheirOwn) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient small(server.port());
  HttpClient large(server.port());
  const auto ask = [&](HttpClient& client, const std::string& body) {
    client.post(kChatPath, body);
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 200);
    return reply.body;
  };
  const std::string spaces(3 << 20, ' ');
  ask(small, chat_body());
  ask(large, chat_body());
  ask(large, chat_body() + spaces);
  ask(small, chat_body());
  const std::string stream = ask(large, chat_body(R"(,"stream":true)") + spaces);
  EXPECT_NE(stream.find("[DONE]"), std::string::npos);
  HttpClient chunked(server.port());
  chunked.send(std::string("POST ") + kChatPath +
               " HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  chunked.send("300000\r\n" + spaces + "\r\n");
  const std::string body = chat_body();
  char size[20];
  std::snprintf(size, sizeof size, "%zx\r\n", body.size());
  chunked.send(size + body + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.read_reply().status, 200);
  const auto threads = engine.submitters();
  ASSERT_EQ(threads.size(), 6U);
  EXPECT_EQ(threads[1], threads[0]);
  EXPECT_NE(threads[2], threads[0]);
  EXPECT_EQ(threads[3], threads[0]);
  EXPECT_EQ(threads[4], threads[2]);
  EXPECT_EQ(threads[5], threads[2]);
}

TEST(LargeRequests, EndWithTheirClients) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine);
  const std::string spaces(3 << 20, ' ');
  HttpClient half(server.port());
  half.send(header_of(kChatPath, spaces.size() + 1) + spaces);
  half.close();
  HttpClient client(server.port());
  client.post(kChatPath, chat_body(R"(,"stream":true)") + spaces);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  client.close();
  EXPECT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
  engine.step();
}

TEST(AnExceptionInAHandler, EndsItsRequestAlone) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::error_code no_thread = std::make_error_code(std::errc::resource_unavailable_try_again);
  const std::vector<std::pair<std::exception_ptr, int>> thrown = {
      {std::make_exception_ptr(std::bad_alloc()), 503},
      {std::make_exception_ptr(std::length_error("string")), 500},
      {std::make_exception_ptr(std::system_error(no_thread)), 503}};
  for (const auto& [exception, status] : thrown) {
    for (const char* more : {"", R"(,"stream":true)", R"(,"n":2)"}) {
      engine.throw_next(exception);
      HttpClient client(server.port());
      client.post(kChatPath, chat_body(more));
      EXPECT_EQ(client.read_reply().status, status) << more;
      HttpClient next(server.port());
      next.post(kChatPath, chat_body());
      EXPECT_EQ(next.read_reply().status, 200);
    }
  }
  EXPECT_TRUE(eventually([&] { return engine.num_running() == 0; }));
}

// What was submitted before it writes nothing into the connection's next answer.
TEST(AnExceptionInAHandler, EndsTheChoicesBeforeIt) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine);
  engine.throw_next(std::make_exception_ptr(std::bad_alloc()), 2);
  HttpClient client(server.port());
  client.post(kChatPath, chat_body(R"(,"stream":true,"n":3)"));
  EXPECT_EQ(client.read_reply().status, 503);
  EXPECT_EQ(engine.num_aborted(), 2);
  engine.end_aborted();
}

}  // namespace
}  // namespace sluice
