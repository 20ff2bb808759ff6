// SPDX-License-Identifier: Apache-2.0
// TLS and client certificates over real sockets, with OpenSSL as the client.
#include <gtest/gtest.h>
#include <openssl/err.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <memory>
#include <string>

#include "server/http/tls.h"
#include "tests/server/running_server.h"
#include "tests/support/certificate.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

// A blocking client; `read` gives what came until the connection ends.
class TlsClient {
 public:
  TlsClient(uint16_t port, const Certificate* own = nullptr)
      : context_(SSL_CTX_new(TLS_client_method())), fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (own != nullptr) {
      SSL_CTX_use_certificate(context_.get(), own->x509.get());
      SSL_CTX_use_PrivateKey(context_.get(), own->key.get());
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ssl_.reset(SSL_new(context_.get()));
    SSL_set_fd(ssl_.get(), fd_);
    const timeval patience{10, 0};
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    is_connected_ = ::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                    SSL_connect(ssl_.get()) == 1;
  }

  ~TlsClient() {
    ssl_.reset();
    ::close(fd_);
    ERR_clear_error();
  }

  [[nodiscard]] bool is_connected() const { return is_connected_; }

  // Everything until the server closes the connection; empty: it failed.
  std::string ask(const std::string& method, const std::string& path, const std::string& body) {
    const std::string text = method + " " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
                             "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
    if (SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size())) <= 0) return {};
    return rest();
  }

  // What comes until the server closes the connection.
  std::string rest() {
    std::string reply;
    char buffer[4096];
    int count = 0;
    while ((count = SSL_read(ssl_.get(), buffer, sizeof buffer)) > 0) {
      reply.append(buffer, static_cast<size_t>(count));
    }
    said_goodbye_ = SSL_get_error(ssl_.get(), count) == SSL_ERROR_ZERO_RETURN;
    return reply;
  }

  // The end was announced, so the answer has not been cut.
  [[nodiscard]] bool said_goodbye() const { return said_goodbye_; }

  [[nodiscard]] std::string served_name() const {
    const std::unique_ptr<X509, FreeOpenSsl> peer(SSL_get1_peer_certificate(ssl_.get()));
    char* text = X509_NAME_oneline(X509_get_subject_name(peer.get()), nullptr, 0);
    std::string name = text;
    OPENSSL_free(text);
    return name;
  }

 private:
  std::unique_ptr<SSL_CTX, FreeOpenSsl> context_;
  std::unique_ptr<SSL, FreeOpenSsl> ssl_;
  int fd_;
  bool is_connected_ = false;
  bool said_goodbye_ = false;
};

class Tls : public ::testing::Test {
 protected:
  Tls() {
    write_certificate(server_, path("cert.pem"));
    write_key(server_, path("key.pem"));
    config_.ssl_certfile = path("cert.pem");
    config_.ssl_keyfile = path("key.pem");
  }

  [[nodiscard]] std::string path(const char* name) const { return folder_.at(name); }

  std::string error() {
    const auto made = HttpServer::create(config_, engine_);
    EXPECT_FALSE(made.has_value());
    if (made) return {};
    EXPECT_EQ(made.error().message.find('\n'), std::string::npos);
    return made.error().message;
  }

  const testing::TemporaryFolder folder_;
  const Certificate server_ = make_certificate("IP:127.0.0.1", -kDay, kDay);
  FakeEngine engine_;
  Config config_;
};

TEST_F(Tls, AnswersWholeAndStreamed) {
  RunningServer server(engine_, config_);
  TlsClient whole(server.port());
  ASSERT_TRUE(whole.is_connected());
  EXPECT_NE(whole.ask("POST", kChatPath, chat_body()).find("\"content\":\"Hello\""),
            std::string::npos);
  EXPECT_TRUE(whole.said_goodbye());
  TlsClient streamed(server.port());
  EXPECT_NE(streamed.ask("POST", kChatPath, chat_body(R"(,"stream":true)")).find("data: [DONE]"),
            std::string::npos);
}

TEST_F(Tls, TheEndOfAnIdleConnectionIsAnnounced) {
  config_.idle_timeout_s = 1;
  RunningServer server(engine_, config_);
  TlsClient client(server.port());
  ASSERT_TRUE(client.is_connected());
  EXPECT_EQ(client.rest(), "");
  EXPECT_TRUE(client.said_goodbye());
}

TEST_F(Tls, LargeBodiesGoBothWays) {
  RunningServer server(engine_, config_);
  TlsClient client(server.port());
  const std::string prompt(300'000, 'x');
  const std::string reply = client.ask("POST", "/tokenize", R"({"prompt":")" + prompt + R"("})");
  EXPECT_NE(reply.find("\"count\":300001"), std::string::npos);
  EXPECT_GT(reply.size(), 1'200'000U);
}

TEST_F(Tls, PlainHttpAndSilenceGetNowhere) {
  config_.request_timeout_s = 1;
  RunningServer server(engine_, config_);
  HttpClient plain(server.port());
  plain.get("/health");
  EXPECT_EQ(plain.read_reply().status, 0);
  HttpClient silent(server.port());  // does not begin the handshake
  EXPECT_TRUE(silent.at_end());
  TlsClient client(server.port());
  EXPECT_NE(client.ask("GET", "/health", {}).find("200"), std::string::npos);
}

TEST_F(Tls, ClientCertificatesAreRequiredOrOptional) {
  const Certificate authority = make_certificate("DNS:ca", -kDay, kDay);
  const Certificate known = make_certificate("DNS:client", -kDay, kDay, &authority);
  const Certificate stranger = make_certificate("DNS:client", -kDay, kDay);
  write_certificate(authority, path("ca.pem"));
  config_.ssl_ca_certs = path("ca.pem");
  for (const int32_t required : {2, 1}) {
    config_.ssl_cert_reqs = required;
    RunningServer server(engine_, config_);
    const auto is_served = [&](const Certificate* own) {
      TlsClient client(server.port(), own);
      return client.ask("GET", "/health", {}).find(" 200 ") != std::string::npos;
    };
    EXPECT_TRUE(is_served(&known));
    EXPECT_FALSE(is_served(&stranger));
    EXPECT_EQ(is_served(nullptr), required == 1);
  }
}

TEST_F(Tls, FilesThatDoNotServeAreOneLine) {
  const Certificate other = make_certificate("IP:127.0.0.1", -kDay, kDay);
  write_key(other, path("other.pem"));
  write_key(server_, path("secret.pem"), "passphrase");
  std::ofstream(path("text.pem")) << "hello\n";
  const std::string cert = config_.ssl_certfile;
  config_.ssl_keyfile = path("other.pem");
  EXPECT_EQ(
      error(),
      "--ssl-keyfile: '" + path("other.pem") + "' is not the key of certificate '" + cert + "'.");
  config_.ssl_keyfile = path("nothing.pem");
  EXPECT_EQ(
      error(),
      "--ssl-keyfile: '" + path("nothing.pem") + "' cannot be read: No such file or directory.");
  config_.ssl_keyfile = path("secret.pem");
  EXPECT_NE(error().find("holds no PEM private key without a passphrase"), std::string::npos);
  config_.ssl_keyfile.clear();
  EXPECT_NE(error().find("--ssl-certfile: '" + cert + "' holds no PEM private key"),
            std::string::npos);
  config_.ssl_certfile = path("text.pem");
  EXPECT_NE(error().find("holds no PEM certificate"), std::string::npos);
  config_.ssl_certfile = cert;
  config_.ssl_keyfile = path("key.pem");
  config_.ssl_cert_reqs = 2;
  EXPECT_EQ(error(), "--ssl-ca-certs and --ssl-cert-reqs 1 or 2 need each other.");
  config_.ssl_ca_certs = path("text.pem");
  EXPECT_NE(error().find("--ssl-ca-certs"), std::string::npos);
  config_ = {};
  config_.ssl_keyfile = path("key.pem");
  EXPECT_EQ(error(), "--ssl-keyfile needs --ssl-certfile.");
}

TEST_F(Tls, SaysWhenItsCertificateEnds) {
  const auto context = TlsContext::create(config_);
  ASSERT_TRUE(context);
  const int64_t now = std::time(nullptr);
  EXPECT_NEAR(static_cast<double>((*context)->certificate_expiry_s() - now), kDay, 60);
  const Certificate next = make_certificate("IP:127.0.0.1", -kDay, 9 * kDay);
  write_certificate(next, path("cert.pem"));
  write_key(next, path("key.pem"));
  ASSERT_TRUE((*context)->reload());
  EXPECT_NEAR(static_cast<double>((*context)->certificate_expiry_s() - now), 9 * kDay, 60);
}

TEST_F(Tls, ReloadServesTheNewCertificateAndKeepsTheOldOneWhereItFails) {
  RunningServer server(engine_, config_);
  EXPECT_EQ(TlsClient(server.port()).served_name(), "/CN=test");
  const Certificate authority = make_certificate("DNS:ca", -kDay, kDay);
  const Certificate next = make_certificate("IP:127.0.0.1", -kDay, kDay, &authority);
  write_certificate(next, path("cert.pem"));
  server->reload();  // the key is still the old one
  EXPECT_EQ(TlsClient(server.port()).served_name(), "/CN=test");
  write_key(next, path("key.pem"));
  server->reload();
  EXPECT_EQ(TlsClient(server.port()).served_name(), "/CN=signed");
}

TEST_F(Tls, AChangedCertificateIsServedWithoutASignal) {
  RunningServer server(engine_, config_);
  const Certificate authority = make_certificate("DNS:ca", -kDay, kDay);
  const Certificate next = make_certificate("IP:127.0.0.1", -kDay, kDay, &authority);
  write_certificate(next, path("cert.pem"));
  write_key(next, path("key.pem"));
  server->reload_changed();
  EXPECT_EQ(TlsClient(server.port()).served_name(), "/CN=test");
  server->reload_changed();
  EXPECT_EQ(TlsClient(server.port()).served_name(), "/CN=signed");
}

}  // namespace
}  // namespace sluice
