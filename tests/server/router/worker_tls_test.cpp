// SPDX-License-Identifier: Apache-2.0
// Between router and worker: TLS, and certificates of both.
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>

#include "server/router/worker_link.h"
#include "tests/server/running_server.h"
#include "tests/support/certificate.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

class WorkerTls : public ::testing::Test {
 protected:
  WorkerTls() {
    for (const auto& [certificate, name] : {std::pair(&authority_, "ca"),
                                            std::pair(&worker_, "worker"),
                                            std::pair(&router_, "router"),
                                            std::pair(&stranger_, "stranger")}) {
      write_certificate(*certificate, path(std::string(name) + ".pem"));
      write_key(*certificate, path(std::string(name) + ".key"));
    }
    loop_->begin();
  }

  ~WorkerTls() override { loop_->end(); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_.at(name); }

  // Whether a worker answers a router that trusts `authority` and shows `own`; empty: no TLS,
  // nothing shown.
  bool answers(uint16_t port, const std::string& authority, const std::string& own) {
    Config config;
    if (!authority.empty()) config.worker_ssl_ca_certs = path(authority + ".pem");
    if (!own.empty()) {
      config.worker_ssl_certfile = path(own + ".pem");
      config.worker_ssl_keyfile = path(own + ".key");
    }
    WorkerLink link(config, "127.0.0.1:" + std::to_string(port), loop_);
    std::promise<bool> answered;
    link.describe([&](const Expected<WorkerDescription>& description) {
      answered.set_value(description.has_value());
    });
    return answered.get_future().get();
  }

  const testing::TemporaryFolder folder_;
  const Certificate authority_ = make_certificate("DNS:ca", -kDay, kDay);
  const Certificate worker_ =
      make_certificate("IP:127.0.0.1,DNS:localhost", -kDay, kDay, &authority_);
  const Certificate router_ = make_certificate("DNS:router", -kDay, kDay, &authority_);
  const Certificate stranger_ = make_certificate("IP:127.0.0.1", -kDay, kDay);
  const std::shared_ptr<RouterLoop> loop_ = std::make_shared<RouterLoop>();
};

TEST_F(WorkerTls, RouterAndWorkerKnowEachOtherByCertificatesOrDoNotSpeak) {
  FakeEngine engine;
  Config config;
  // Any address: certificates that are required are as good as a secret.
  config.worker_listen = "0.0.0.0:0";
  config.ssl_certfile = path("worker.pem");
  config.ssl_keyfile = path("worker.key");
  config.ssl_ca_certs = path("ca.pem");
  config.ssl_cert_reqs = 2;
  RunningServer server(engine, config);
  const uint16_t port = server->worker_port();
  EXPECT_TRUE(answers(port, "ca", "router"));
  EXPECT_FALSE(answers(port, "ca", "")) << "the router shows nothing";
  EXPECT_FALSE(answers(port, "ca", "stranger"));
  EXPECT_FALSE(answers(port, "stranger", "router")) << "the worker is not whom the router trusts";
  EXPECT_FALSE(answers(port, "", "")) << "without TLS";
}

TEST_F(WorkerTls, CertificatesThatAreNotRequiredAreNoSecret) {
  FakeEngine engine;
  Config config;
  config.port = 0;
  config.worker_listen = "0.0.0.0:0";
  config.ssl_certfile = path("worker.pem");
  config.ssl_keyfile = path("worker.key");
  EXPECT_FALSE(HttpServer::create(config, engine));
}

}  // namespace
}  // namespace sluice
