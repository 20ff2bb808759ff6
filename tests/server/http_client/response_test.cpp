// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/response.h"

#include <gtest/gtest.h>

#include "server/http/client/stream.h"

namespace sluice::client {
namespace {

struct Collected final : ResponseSink {
  Expected<void> on_head(const ResponseHead& got) override {
    head = got;
    return {};
  }

  Expected<void> on_body(std::string_view bytes) override {
    body += bytes;
    if (body.size() <= limit) return {};
    return make_error(ErrorCode::kDataLoss, "too long");
  }

  ResponseHead head;
  std::string body;
  size_t limit = std::string::npos;
};

TEST(ResponseParser, GivesTheSameBodyHoweverTheBytesAreCut) {
  const std::string answer =
      "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 12\r\nContent-Type: text/event-stream\r\n"
      "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nA;x=y\r\n 0123456\r\n\r\n0\r\n\r\n";
  for (size_t step = 1; step <= answer.size(); ++step) {
    Collected got;
    ResponseParser parser(got);
    std::string pending;
    auto status = ResponseParser::Status::kMore;
    for (size_t at = 0; at < answer.size(); at += step) {
      ASSERT_EQ(status, ResponseParser::Status::kMore);
      pending += answer.substr(at, step);
      size_t consumed = 0;
      status = parser.feed(pending, consumed);
      pending.erase(0, consumed);
    }
    ASSERT_EQ(status, ResponseParser::Status::kDone) << step << " " << parser.error();
    EXPECT_EQ(got.body, "hello 0123456\r\n");
    EXPECT_EQ(got.head.status, 429);
    EXPECT_EQ(got.head.reason, "Too Many Requests");
    EXPECT_EQ(got.head.field("retry-after"), "12");
    EXPECT_EQ(got.head.field("content-type"), "text/event-stream");
    EXPECT_EQ(got.head.field("location"), "");
    EXPECT_TRUE(parser.keeps_alive());
  }
}

TEST(ResponseParser, TheEndOfTheConnectionEndsABodyWithoutLength) {
  Collected got;
  ResponseParser parser(got);
  size_t consumed = 0;
  EXPECT_EQ(parser.feed("HTTP/1.0 200 OK\r\n\r\nbody", consumed), ResponseParser::Status::kMore);
  EXPECT_EQ(parser.end_of_file(), ResponseParser::Status::kDone);
  EXPECT_FALSE(parser.keeps_alive());
  EXPECT_EQ(got.body, "body");
}

TEST(ResponseParser, RefusesWhatIsNoHttp) {
  Collected got;
  ResponseParser parser(got);
  size_t consumed = 0;
  EXPECT_EQ(parser.feed("SSH-2.0-OpenSSH_9.2\r\n", consumed), ResponseParser::Status::kBad);
}

TEST(ResponseParser, AnAnswerToHeadHasALengthAndNoBody) {
  Collected got;
  ResponseParser parser(got, /*has_no_body=*/true);
  size_t consumed = 0;
  EXPECT_EQ(parser.feed("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", consumed),
            ResponseParser::Status::kDone);
}

TEST(ResponseParser, TheSinkMayRefuse) {
  Collected got;
  got.limit = 3;
  ResponseParser parser(got);
  size_t consumed = 0;
  EXPECT_EQ(parser.feed("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nabcd", consumed),
            ResponseParser::Status::kBad);
  ASSERT_TRUE(parser.refusal());
  EXPECT_EQ(parser.refusal()->message, "too long");
}

TEST(ResponseParser, BoundsAHead) {
  Collected got;
  ResponseParser parser(got);
  size_t consumed = 0;
  const std::string line = "HTTP/1.1 200 OK\r\nX: " + std::string(1 << 17, 'x');
  EXPECT_EQ(parser.feed(line, consumed), ResponseParser::Status::kBad);
  EXPECT_FALSE(parser.refusal());
}

TEST(BaseUrl, IsReadOrRefused) {
  const auto plain = parse_base_url("http://127.0.0.1:8000");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->authority(), "127.0.0.1:8000");
  const auto tls = parse_base_url("https://example.org/api/");
  ASSERT_TRUE(tls);
  EXPECT_TRUE(tls->tls);
  EXPECT_EQ(tls->port, "443");
  EXPECT_EQ(tls->path, "/api");
  EXPECT_EQ(tls->authority(), "example.org");
  const auto v6 = parse_base_url("http://[::1]:80/");
  ASSERT_TRUE(v6);
  EXPECT_EQ(v6->host, "::1");
  EXPECT_EQ(v6->authority(), "[::1]");
  for (const char* bad : {"",
                          "127.0.0.1:8000",
                          "ftp://x",
                          "http://",
                          "http://:80",
                          "http://[::1",
                          "http://user@host"}) {
    EXPECT_FALSE(parse_base_url(bad)) << bad;
  }
}

}  // namespace
}  // namespace sluice::client
