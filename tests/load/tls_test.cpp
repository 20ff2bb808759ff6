// SPDX-License-Identifier: Apache-2.0
// The client against a TLS server whose certificate is made here: trusted, unknown, expired, or of
// another host.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "server/load/load_run.h"
#include "server/mock/mock_frames.h"
#include "tests/support/certificate.h"
#include "tests/support/temporary_folder.h"

namespace sluice::load {
namespace {

// One connection at a time: handshake, a request read, a stream of one token sent, closed.
class TlsServer {
 public:
  explicit TlsServer(const Certificate& certificate)
      : context_(SSL_CTX_new(TLS_server_method())), socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    SSL_CTX_use_certificate(context_.get(), certificate.x509.get());
    SSL_CTX_use_PrivateKey(context_.get(), certificate.key.get());
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(::listen(socket_, 16), 0);
    ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }

  ~TlsServer() {
    stop_ = true;
    ::shutdown(socket_, SHUT_RDWR);
    thread_.join();
    ::close(socket_);
  }

  [[nodiscard]] uint16_t port() const { return port_; }

 private:
  void serve() {
    while (!stop_) {
      const int connection = ::accept(socket_, nullptr, nullptr);
      if (connection < 0) continue;
      const std::unique_ptr<SSL, FreeOpenSsl> ssl(SSL_new(context_.get()));
      SSL_set_fd(ssl.get(), connection);
      if (SSL_accept(ssl.get()) == 1) answer(ssl.get());
      ::close(connection);
    }
  }

  static void answer(SSL* ssl) {
    char request[4096];
    if (SSL_read(ssl, request, sizeof request) <= 0) return;
    const std::string reply = mock::stream_head() +
                              mock::http_chunk(mock::token_event(mock::MockApi::kCompletions)) +
                              mock::stream_end(mock::MockApi::kCompletions, 8, 1, /*usage=*/true);
    SSL_write(ssl, reply.data(), static_cast<int>(reply.size()));
    SSL_shutdown(ssl);
  }

  std::unique_ptr<SSL_CTX, FreeOpenSsl> context_;
  int socket_;
  uint16_t port_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Two requests; the records of what came of them.
std::vector<Record> ask(const TlsServer& tls, client::Verification verification) {
  const Server server{*client::parse_base_url("https://127.0.0.1:" + std::to_string(tls.port())),
                      verification};
  RequestOptions request;
  request.model = "mock";
  const auto format = RequestFormat::create(request, server.address);
  DatasetOptions data;
  data.num_prompts = 2;
  data.input_len = 8;
  data.output_len = 1;
  const auto dataset = create_dataset(data);
  RunOptions options;
  options.max_concurrency = 1;
  auto result = run_load(server, *format, **dataset, {0, 0}, options);
  EXPECT_TRUE(result.has_value()) << result.error().message;
  return result ? std::move(result->records) : std::vector<Record>{};
}

void expect_refused(const std::vector<Record>& records, const std::string& reason) {
  ASSERT_EQ(records.size(), 2U);
  for (const Record& record : records) {
    EXPECT_EQ(record.error, ErrorKind::kTls);
    EXPECT_NE(record.error_message.find(reason), std::string::npos) << record.error_message;
  }
}

void expect_answered(const std::vector<Record>& records) {
  ASSERT_EQ(records.size(), 2U);
  for (const Record& record : records) {
    EXPECT_TRUE(record.is_ok()) << record.error_message;
    EXPECT_EQ(record.completion_tokens, 1);
  }
}

// While it lives, certificates that `trusted` signed are trusted, and no others.
class TrustStore {
 public:
  explicit TrustStore(const Certificate& trusted) {
    const std::string path = folder_.at("ca.pem");
    std::FILE* file = std::fopen(path.c_str(), "wb");
    PEM_write_X509(file, trusted.x509.get());
    std::fclose(file);
    ::setenv("SSL_CERT_FILE", path.c_str(), 1);
  }

  ~TrustStore() { ::unsetenv("SSL_CERT_FILE"); }

 private:
  const testing::TemporaryFolder folder_;
};

TEST(LoadTls, ATrustedCertificateOfTheHostIsAccepted) {
  const Certificate certificate = make_certificate("IP:127.0.0.1", -kDay, kDay);
  const TrustStore trust(certificate);
  const TlsServer server(certificate);
  expect_answered(ask(server, client::Verification::kCertificate));
}

TEST(LoadTls, AnUnknownIssuerIsRefusedUnlessNothingIsVerified) {
  const TlsServer server(make_certificate("IP:127.0.0.1", -kDay, kDay));
  expect_refused(ask(server, client::Verification::kCertificate), "self-signed certificate");
  expect_answered(ask(server, client::Verification::kNone));
}

TEST(LoadTls, AnExpiredCertificateIsRefused) {
  const Certificate certificate = make_certificate("IP:127.0.0.1", -2 * kDay, -kDay);
  const TrustStore trust(certificate);
  const TlsServer server(certificate);
  expect_refused(ask(server, client::Verification::kCertificate), "certificate has expired");
}

TEST(LoadTls, ACertificateOfAnotherHostIsRefused) {
  const Certificate certificate = make_certificate("DNS:example.org", -kDay, kDay);
  const TrustStore trust(certificate);
  const TlsServer server(certificate);
  expect_refused(ask(server, client::Verification::kCertificate), "certificate verify failed");
}

}  // namespace
}  // namespace sluice::load
