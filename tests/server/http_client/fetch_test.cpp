// SPDX-License-Identifier: Apache-2.0
#include "server/http/client/fetch.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "tests/support/temporary_folder.h"

namespace sluice::client {
namespace {

using boost::asio::ip::tcp;
using Local = boost::asio::local::stream_protocol;

// Answers one connection with `text`, whatever it asks; without a text it stays silent until the
// client leaves.
template <typename Protocol>
class OneAnswer {
 public:
  OneAnswer(const typename Protocol::endpoint& place, std::string text)
      : acceptor_(loop_, place), thread_([this, text = std::move(text)] { answer(text); }) {}

  ~OneAnswer() { thread_.join(); }

  [[nodiscard]] auto endpoint() const { return acceptor_.local_endpoint(); }

  // Returns the request's head, once it has been answered.
  std::string asked() {
    thread_.join();
    thread_ = std::thread([] {});
    return asked_;
  }

 private:
  void answer(const std::string& text) {
    typename Protocol::socket socket = acceptor_.accept();
    boost::system::error_code error;
    boost::asio::read_until(socket, boost::asio::dynamic_buffer(asked_), "\r\n\r\n", error);
    if (!text.empty()) {
      boost::asio::write(socket, boost::asio::buffer(text), error);
      return;
    }
    char byte = 0;
    socket.read_some(boost::asio::buffer(&byte, 1), error);
  }

  boost::asio::io_context loop_;
  typename Protocol::acceptor acceptor_;
  std::string asked_;
  std::thread thread_;
};

class TextSink final : public ResponseSink {
 public:
  Expected<void> on_head(const ResponseHead&) override { return {}; }

  Expected<void> on_body(std::string_view bytes) override {
    text += bytes;
    return {};
  }

  std::string text;
};

const tcp::endpoint kLoopback(boost::asio::ip::address_v4::loopback(), 0);

std::string url_of(const OneAnswer<tcp>& server) {
  return "http://127.0.0.1:" + std::to_string(server.endpoint().port());
}

FetchRequest request_to(std::string url) {
  return {.url = std::move(url), .may_use_proxy = false, .silence = std::chrono::seconds(1)};
}

TEST(Fetch, GivesHeadAndBody) {
  OneAnswer<tcp> server(kLoopback, "HTTP/1.1 404 Not Found\r\nX-Y: z\r\n\r\nup to the end");
  TextSink sink;
  const auto head = fetch(request_to(url_of(server) + "/a?b#c"), sink);
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(head->status, 404);
  EXPECT_EQ(head->reason, "Not Found");
  EXPECT_EQ(head->field("x-y"), "z");
  EXPECT_EQ(sink.text, "up to the end");
  EXPECT_TRUE(server.asked().starts_with("GET /a?b HTTP/1.1\r\nHost: 127.0.0.1:"));
}

TEST(Fetch, ConnectsToAUnixSocket) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("socket");
  OneAnswer<Local> server(path, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok");
  TextSink sink;
  FetchRequest request = request_to("http://localhost/health");
  request.uds = path;
  const auto head = fetch(request, sink);
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(head->status, 200);
  EXPECT_EQ(sink.text, "ok");
  EXPECT_TRUE(server.asked().starts_with("GET /health HTTP/1.1\r\nHost: localhost\r\n"));
}

TEST(Fetch, SaysWhyAUnixSocketDoesNotAnswer) {
  const testing::TemporaryFolder folder;
  TextSink sink;
  FetchRequest request = request_to("http://localhost/health");
  request.uds = folder.at("none");
  const auto none = fetch(request, sink);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(none.error().message,
            "http://localhost/health: cannot connect: No such file or directory");
  request.uds = "/" + std::string(200, 'x');
  EXPECT_FALSE(fetch(request, sink));
}

TEST(Fetch, EndsWhenNothingComes) {
  const OneAnswer<tcp> server(kLoopback, "");
  TextSink sink;
  const auto head = fetch(request_to(url_of(server)), sink);
  ASSERT_FALSE(head);
  EXPECT_TRUE(head.error().message.ends_with(": nothing came for 1 s")) << head.error().message;
}

TEST(Fetch, NoticesACutAnswerAndOneThatIsNoHttp) {
  TextSink sink;
  {
    const OneAnswer<tcp> server(kLoopback, "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\ncut");
    const auto head = fetch(request_to(url_of(server)), sink);
    ASSERT_FALSE(head);
    EXPECT_NE(head.error().message.find("the connection was cut"), std::string::npos);
  }
  const OneAnswer<tcp> server(kLoopback, "SSH-2.0-OpenSSH_9.2\r\n");
  const auto head = fetch(request_to(url_of(server)), sink);
  ASSERT_FALSE(head);
  EXPECT_NE(head.error().message.find("no HTTP answer"), std::string::npos);
}

TEST(Url, HasAnOriginWhereverItLeads) {
  EXPECT_EQ(origin_of("https://Hub.example:443/a?b"), "https://hub.example");
  EXPECT_EQ(origin_of("http://[::1]:8080/x"), "http://[::1]:8080");
  for (const char* bad : {"", "hub", "ftp://x/", "https://", "https://a b/", "https://me@hub/"}) {
    EXPECT_EQ(origin_of(bad), "") << bad;
  }
  EXPECT_EQ(resolve_location("https://h/a/b", "/c?d"), "https://h/c?d");
  EXPECT_EQ(resolve_location("https://h/a/b", "//other/c"), "https://other/c");
  EXPECT_EQ(resolve_location("https://h/a", "http://other/c/"), "http://other/c/");
  EXPECT_EQ(resolve_location("https://h/a", "/login?next=https://h/a"),
            "https://h/login?next=https://h/a");
  EXPECT_EQ(resolve_location("https://h/a", "//h/c?to=https://h/d"), "https://h/c?to=https://h/d");
  EXPECT_EQ(resolve_location("https://h/a", "javascript:x"), "");
  EXPECT_EQ(resolve_location("https://h/a", ""), "");
}

}  // namespace
}  // namespace sluice::client
