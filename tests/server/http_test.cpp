// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 as bytes: framing, limits, timeouts, smuggling, pipelining.
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/running_server.h"
#include "tests/support/temporary_folder.h"

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

constexpr const char* kExposed =
    "x-sluice-ignored-arguments, x-sluice-seed, x-request-id, retry-after";

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

TEST(Http, EmptyLinesInFrontOfARequestAreSkipped) {
  FakeEngine engine;
  Config config;
  config.max_header_bytes = 1024;
  RunningServer server(engine, config);
  const std::string request = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
  HttpClient client(server.port());
  for (const std::string lines : {"\r\n", "\r\n\r\n\r\n", ""}) {
    client.send(lines + request);
    EXPECT_EQ(client.read_reply().status, 200) << lines.size();
  }
  // Old clients end a body with a line of its own.
  client.send(post_text(kCompletionPath, R"({"prompt":"x","max_tokens":1})") + "\r\n" + request);
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(client.read_reply().status, 200);
  for (const char c : "\r\n\r\n" + request) client.send(std::string_view(&c, 1));
  EXPECT_EQ(client.read_reply().status, 200);
  // They count like a header, and a request's own line is none of them.
  for (const char* wrong : {"\n", "\r\r\n", " \r\n"}) {
    EXPECT_EQ(reply_to(server, wrong + request).status, 400) << wrong;
  }
  std::string many;
  for (int i = 0; i < 512; ++i) many += "\r\n";
  EXPECT_EQ(reply_to(server, many + request).status, 200);
  EXPECT_EQ(reply_to(server, many + "\r\n" + request).status, 400);
}

TEST(Http, AnEmptyLineBeginsNoRequest) {
  FakeEngine engine;
  Config config;
  config.request_timeout_s = 1;
  config.idle_timeout_s = 1;
  RunningServer server(engine, config);
  HttpClient client(server.port());
  client.get("/health");
  EXPECT_EQ(client.read_reply().status, 200);
  client.send("\r\n");
  EXPECT_TRUE(client.at_end());  // no 408
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
      start + "Transfer-Encoding: chunked\r\n\r\n5;\nhello\r\n0\r\n\r\n",
      start + "Transfer-Encoding: chunked\r\n\r\n5;a=\"\n\"\r\nhello\r\n0\r\n\r\n",
      start + "Transfer-Encoding: chunked\r\n\r\n0;a=\"\n\"\r\n\r\n",
      start + "Transfer-Encoding: chunked\r\n\r\n5\nhello\n0\n\n",
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

TEST(Http, TrailersDoNotSayWhoAsks) {
  FakeEngine engine;
  Config config;
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n";
  const std::string body = "e\r\n{\"prompt\":\"x\"}\r\n0\r\n";
  HttpClient client(server.port());
  client.send(head + "\r\n" + body + "Authorization: Bearer secret\r\nX-Request-Id: a\r\n\r\n");
  HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 401);
  EXPECT_TRUE(reply.header("X-Request-Id").starts_with("req_"));
  client.send(head + "Authorization: Bearer secret\r\n\r\n" + body + "Connection: close\r\n\r\n");
  reply = client.read_reply();
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("Connection"), "keep-alive");
}

TEST(Http, TargetsMayNameTheServerToo) {
  FakeEngine engine;
  RunningServer server(engine);
  const auto status_of = [&](const std::string& target) {
    return reply_to(server, "GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n").status;
  };
  EXPECT_EQ(status_of("http://x/health"), 200);
  EXPECT_EQ(status_of("HTTP://x:80/health?a=/b"), 200);
  EXPECT_EQ(status_of("/health?url=http://y/version"), 200);
  EXPECT_EQ(status_of("http://x?/health"), 200);  // the page at /
  EXPECT_EQ(status_of("http://x"), 200);
  EXPECT_EQ(status_of("ftp://x/health"), 404);
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
  EXPECT_EQ(reply.header("Access-Control-Expose-Headers"), kExposed);
}

TEST(Http, CredentialsAreForOriginsThatAreNamed) {
  FakeEngine engine;
  for (const auto& origins : {std::vector<std::string>{"*"}, {"https://a.example", "*"}}) {
    Config config;
    config.allowed_origins = origins;
    config.allow_credentials = true;
    RunningServer server(engine, config);
    HttpClient client(server.port());
    for (const char* method : {"GET", "OPTIONS"}) {
      client.request(method, "/v1/models", {}, "Origin: https://evil.example\r\n");
      const HttpReply reply = client.read_reply();
      EXPECT_EQ(reply.header("Access-Control-Allow-Origin"), "*");
      EXPECT_EQ(reply.header("Access-Control-Allow-Credentials"), "");
    }
  }
}

TEST(Http, OnlyListedOriginsAreLetInWhereThereIsAList) {
  FakeEngine engine;
  Config config;
  config.allowed_origins = {"https://a.example", "https://b.example"};
  config.allowed_headers = {"x-special"};
  config.allow_credentials = true;
  RunningServer server(engine, config);
  HttpClient client(server.port());
  const std::string asked =
      "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: x-any\r\n";
  client.request("OPTIONS", kChatPath, {}, "Origin: https://b.example\r\n" + asked);
  HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.header("Access-Control-Allow-Origin"), "https://b.example");
  EXPECT_EQ(reply.header("Access-Control-Allow-Credentials"), "true");
  EXPECT_EQ(reply.header("Access-Control-Allow-Headers"), "x-special");
  EXPECT_EQ(reply.header("Vary"), "Origin");
  EXPECT_EQ(reply.header("Access-Control-Expose-Headers"), kExposed);
  client.request("OPTIONS", kChatPath, {}, "Origin: https://c.example\r\n" + asked);
  reply = client.read_reply();
  EXPECT_EQ(reply.header("Access-Control-Allow-Origin"), "");
  EXPECT_EQ(reply.header("Access-Control-Allow-Methods"), "");
  EXPECT_EQ(reply.header("Access-Control-Expose-Headers"), "");
  client.request("GET", "/health", {}, "Origin: https://a.example\r\n");
  EXPECT_EQ(client.read_reply().header("Access-Control-Allow-Origin"), "https://a.example");
  client.get("/health");
  EXPECT_EQ(client.read_reply().header("Access-Control-Allow-Origin"), "");
}

TEST(Http, RequestsThatWereNeverWholeGetTheHeadersOfTheirOriginToo) {
  FakeEngine engine;
  Config config;
  config.allowed_origins = {"https://a.example"};
  config.allow_credentials = true;
  config.max_header_bytes = 1024;
  config.max_body_bytes = 2000;
  config.request_timeout_s = 1;
  RunningServer server(engine, config);
  const auto origin_of = [&](const std::string& bytes, int status) {
    const HttpReply reply = reply_to(server, bytes);
    EXPECT_EQ(reply.status, status) << bytes;
    EXPECT_EQ(reply.header("Vary"), "Origin") << bytes;
    return reply.header("Access-Control-Allow-Origin");
  };
  const std::string wanted = "https://a.example";
  const std::string line = "POST /v1/completions HTTP/1.1\r\n";
  const std::string head = line + "Host: x\r\nOrigin: https://a.example\r\n";
  const std::string chunked = head + "Transfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(origin_of(head + "Content-Length: 3000\r\n\r\n", 413), wanted);
  EXPECT_EQ(origin_of(chunked + "bb8\r\n" + std::string(3000, 'x'), 413), wanted);
  EXPECT_EQ(origin_of(head + "Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx", 415), wanted);
  EXPECT_EQ(origin_of(head + "Expect: rain\r\nContent-Length: 1\r\n\r\nx", 417), wanted);
  EXPECT_EQ(origin_of(head + "A: " + std::string(3000, 'x'), 431), wanted);
  EXPECT_EQ(origin_of(head + "Transfer-Encoding: gzip\r\n\r\n", 501), wanted);
  EXPECT_EQ(origin_of(chunked + "-2\r\nhello\r\n", 400), wanted);
  EXPECT_EQ(origin_of(head + "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nno", 400), wanted);
  EXPECT_EQ(origin_of("GET / HTTP/2.0\r\nHost: x\r\norigin:\thttps://a.example \r\n\r\n", 505),
            wanted);
  // In the header, half of it there, or all of it and a part of the body.
  EXPECT_EQ(origin_of(head, 408), wanted);
  EXPECT_EQ(origin_of(head + "Content-Length: 10\r\n\r\n{", 408), wanted);
  // The page of another origin, none, one whose line is cut, and one that a trailer names.
  EXPECT_EQ(origin_of(line + "Host: x\r\nOrigin: https://b.example\r\nExpect: rain\r\n\r\n", 417),
            "");
  EXPECT_EQ(origin_of(line + "Host: x\r\nExpect: rain\r\n\r\n", 417), "");
  EXPECT_EQ(origin_of("GET / HTTP/2.0\r\nOrigin: https://a.example", 505), "");
  EXPECT_EQ(origin_of(line + "Host: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
                             "Origin: https://a.example\r\nbad line\r\n\r\n",
                      400),
            "");
}

TEST(Http, ASlashAtTheEndOfAPathChangesNothing) {
  FakeEngine engine;
  RunningServer server(engine);
  HttpClient client(server.port());
  client.get("/v1/models");
  const std::string models = client.read_reply().body;
  client.get("/v1/models/");
  EXPECT_EQ(client.read_reply().body, models);
  client.get("/v1/models/fake/?a=/b/");
  EXPECT_NE(client.read_reply().body.find("\"id\":\"fake\""), std::string::npos);
  client.get("http://x/health/");
  EXPECT_EQ(client.read_reply().status, 200);
  client.post("/v1/chat/completions/", chat_body());
  EXPECT_EQ(client.read_reply().status, 200);
  client.get("/v1/models//");
  EXPECT_EQ(client.read_reply().status, 404);
  client.get("//");
  EXPECT_EQ(client.read_reply().status, 200);
}

std::string gzip(const std::string& text) {
  z_stream stream = {};
  deflateInit2(&stream, Z_BEST_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  std::string out(text.size() + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

TEST(Gzip, BodiesAreInflatedWithinTheirBounds) {
  FakeEngine engine;
  Config config;
  config.max_body_bytes = 400'000;
  config.max_gzip_ratio = 20;
  RunningServer server(engine, config);
  HttpClient client(server.port());
  const auto status_of = [&](const std::string& body, const std::string& coding = "gzip") {
    HttpClient other(server.port());
    other.post(kCompletionPath, body, "Content-Encoding: " + coding + "\r\n");
    return other.read_reply().status;
  };
  const std::string body = R"({"prompt":"x","max_tokens":2})";
  const std::string packed = gzip(body);
  client.post(kCompletionPath, packed, "Content-Encoding: gzip\r\n");
  EXPECT_EQ(client.read_reply().status, 200);
  client.post(kCompletionPath, body);  // the connection goes on
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(status_of(packed, "X-GZIP"), 200);
  char length[20];
  std::snprintf(length, sizeof length, "%zx", packed.size());
  EXPECT_EQ(reply_to(server,
                     "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
                     "Transfer-Encoding: chunked\r\n\r\n" +
                         std::string(length) + "\r\n" + packed + "\r\n0\r\n\r\n")
                .status,
            200);
  // A little text may shrink a lot; much text may not.
  EXPECT_EQ(status_of(gzip(body + std::string(60'000, ' '))), 200);
  EXPECT_EQ(status_of(gzip(body + std::string(300'000, ' '))), 413);
  std::string noise;
  for (uint32_t i = 0; noise.size() < 500'000; ++i) noise += std::to_string(i * 2654435761U);
  EXPECT_EQ(status_of(gzip(noise)), 413);
  EXPECT_EQ(status_of(gzip(noise.substr(0, 300'000))), 400);  // it is no JSON
  for (size_t cut = 0; cut < packed.size(); ++cut) {
    EXPECT_EQ(status_of(packed.substr(0, cut)), 400) << cut;
  }
  EXPECT_EQ(status_of(packed + "more"), 400);
  EXPECT_EQ(status_of(body), 400);
  EXPECT_EQ(status_of(packed, "br"), 415);
  EXPECT_EQ(status_of(packed, "gzip, gzip"), 415);
}

TEST(UnixSocket, IsServedAndLeavesNoFile) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("socket");
  FakeEngine engine;
  Config config;
  config.uds = path;
  {
    RunningServer server(engine, config);
    EXPECT_EQ(server->port(), 0);
    HttpClient client(path);
    ASSERT_TRUE(client.is_connected());
    client.post(kChatPath, chat_body());
    EXPECT_EQ(client.read_reply().status, 200);
    const auto second = HttpServer::create(config, engine);
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().message, "--uds: '" + path + "' is in use by another server.");
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

TEST(UnixSocket, ReplacesAFileOfADeadServerAndNothingElse) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("old");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int dead = ::socket(AF_UNIX, SOCK_STREAM, 0);
  ASSERT_EQ(::bind(dead, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ::close(dead);
  FakeEngine engine;
  Config config;
  config.uds = path;
  {
    RunningServer server(engine, config);
    HttpClient client(path);
    client.get("/health");
    EXPECT_EQ(client.read_reply().status, 200);
  }
  std::FILE* file = std::fopen(path.c_str(), "w");
  std::fclose(file);
  EXPECT_EQ(HttpServer::create(config, engine).error().message,
            "--uds: '" + path + "' exists and is no socket.");
  config.uds = std::string(200, 'x');
  EXPECT_EQ(HttpServer::create(config, engine).error().param, "uds");
  config.uds = "/dev/null/socket";
  EXPECT_EQ(HttpServer::create(config, engine).error().param, "uds");
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

TEST(Http, ConnectionsBeyondTheLimitAreForProbesAlone) {
  FakeEngine engine;
  Config config;
  config.max_connections = 1;
  RunningServer server(engine, config);
  {
    HttpClient first(server.port());
    first.get("/health");
    EXPECT_EQ(first.read_reply().status, 200);
    for (const char* path : {"/health", "/ready", "/version", "/metrics"}) {
      HttpClient probe(server.port());
      probe.get(path);
      const HttpReply reply = probe.read_reply();
      EXPECT_EQ(reply.status, 200) << path;
      EXPECT_EQ(reply.header("Connection"), "close");
      EXPECT_TRUE(probe.at_end());
    }
    HttpClient other(server.port());
    other.post(kChatPath, chat_body());
    const HttpReply refused = other.read_reply();
    EXPECT_EQ(refused.status, 503);
    EXPECT_NE(refused.header("Retry-After"), "");
    HttpClient large(server.port());
    large.post("/ping", std::string(100'000, 'x'));
    EXPECT_EQ(large.read_reply().status, 503) << "it is not the body that is at fault";
  }
  EXPECT_TRUE(eventually([&] {
    HttpClient third(server.port());
    third.post(kChatPath, chat_body());
    return third.read_reply().status == 200;
  }));
}

TEST(Http, HalfSentRequestsKeepNoProbeOut) {
  FakeEngine engine;
  Config config;
  config.max_connections = 50;
  config.reserved_connections = 4;
  RunningServer server(engine, config);
  std::vector<std::unique_ptr<HttpClient>> half_sent;
  for (int i = 0; i < 100; ++i) {
    half_sent.push_back(std::make_unique<HttpClient>(server.port()));
    half_sent.back()->send(
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{");
  }
  for (int i = 0; i < 20; ++i) {
    HttpClient probe(server.port());
    probe.get("/health");
    EXPECT_EQ(probe.read_reply().status, 200);
  }
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
