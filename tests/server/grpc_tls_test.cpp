// SPDX-License-Identifier: Apache-2.0
// gRPC over TLS, with and without certificates of clients, and its health service.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <string>

#include "tests/server/grpc_client.h"
#include "tests/support/certificates.h"

namespace sluice {
namespace {

using grpc::StatusCode;

class GrpcTls : public ::testing::Test {
 protected:
  ~GrpcTls() override {
    for (const std::string& path : files_) ::unlink(path.c_str());
  }

  std::string file(const std::string& name, const std::string& text) {
    files_.push_back(::testing::TempDir() + "sluice_" + std::to_string(::getpid()) + "_" + name);
    std::ofstream(files_.back()) << text;
    return files_.back();
  }

  // What the server shows, and whom it asks for.
  Config config(int32_t cert_reqs) {
    Config config = grpc_config();
    config.ssl_certfile = file("cert.pem", server_.pem());
    config.ssl_keyfile = file("key.pem", server_.key_pem());
    config.ssl_ca_certs = file("ca.pem", authority_.pem());
    config.ssl_cert_reqs = cert_reqs;
    return config;
  }

  StatusCode call(uint16_t port, const Certificate* client) {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority_.pem();
    if (client != nullptr) {
      options.pem_cert_chain = client->pem();
      options.pem_private_key = client->key_pem();
    }
    GrpcClient grpc_client(port, grpc::SslCredentials(options));
    return grpc_client.generate(token_request()).status.error_code();
  }

  const Certificate authority_{"authority"};
  const Certificate server_{"server", &authority_};
  const Certificate client_{"client", &authority_};
  const Certificate stranger_{"stranger"};

 private:
  std::vector<std::string> files_;
};

TEST_F(GrpcTls, ServesClientsThatTrustItsCertificateAndNoOthers) {
  FakeEngine engine;
  RunningServer server(engine, config(0));
  const uint16_t port = server->grpc_port();
  EXPECT_EQ(call(port, nullptr), StatusCode::OK);
  EXPECT_EQ(GrpcClient(port).generate(token_request()).status.error_code(),
            StatusCode::UNAVAILABLE);
  grpc::SslCredentialsOptions distrust;
  distrust.pem_root_certs = stranger_.pem();
  GrpcClient doubter(port, grpc::SslCredentials(distrust));
  EXPECT_EQ(doubter.generate(token_request()).status.error_code(), StatusCode::UNAVAILABLE);
}

TEST_F(GrpcTls, AsksForCertificatesOfClientsAsConfigured) {
  FakeEngine engine;
  {
    RunningServer server(engine, config(1));
    EXPECT_EQ(call(server->grpc_port(), nullptr), StatusCode::OK);
    EXPECT_EQ(call(server->grpc_port(), &client_), StatusCode::OK);
    EXPECT_EQ(call(server->grpc_port(), &stranger_), StatusCode::UNAVAILABLE);
  }
  FakeEngine second;
  RunningServer server(second, config(2));
  EXPECT_EQ(call(server->grpc_port(), nullptr), StatusCode::UNAVAILABLE);
  EXPECT_EQ(call(server->grpc_port(), &client_), StatusCode::OK);
  EXPECT_EQ(call(server->grpc_port(), &stranger_), StatusCode::UNAVAILABLE);
}

TEST_F(GrpcTls, FilesThatCannotBeReadAreNamed) {
  FakeEngine engine;
  Config config = this->config(0);
  config.port = 0;
  config.ssl_keyfile = "/no/such/key.pem";
  const auto server = HttpServer::create(config, engine);
  ASSERT_FALSE(server.has_value());
  EXPECT_NE(server.error().message.find("/no/such/key.pem"), std::string::npos);
}

// grpc.health.v1.Health/Check of a service; 1: SERVING, 2: NOT_SERVING.
int health_of(const std::shared_ptr<grpc::Channel>& channel, const std::string& service) {
  std::string bytes;
  if (!service.empty()) bytes = "\n" + std::string(1, static_cast<char>(service.size())) + service;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  std::promise<grpc::Status> done;
  grpc::GenericStub(channel).UnaryCall(&context,
                                       "/grpc.health.v1.Health/Check",
                                       grpc::StubOptions(),
                                       &request,
                                       &response,
                                       [&done](grpc::Status status) { done.set_value(status); });
  if (!done.get_future().get().ok()) return -1;
  grpc::Slice whole;
  if (!response.DumpToSingleSlice(&whole).ok() || whole.size() != 2) return -1;
  return whole.begin()[1];
}

TEST(GrpcHealth, FollowsTheServersHealthAndItsDrain) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config = grpc_config();
  config.unhealthy_after_s = 1;
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  for (const char* service : {"", "vllm.grpc.engine.VllmEngine", "sluice.v1.Sluice"}) {
    EXPECT_EQ(health_of(client.channel, service), 1) << service;
  }
  EXPECT_EQ(health_of(client.channel, "nobody"), -1);
  EngineStats stuck;
  stuck.step_started_ns = 1;
  engine.set_stats(stuck);
  EXPECT_TRUE(eventually([&] { return health_of(client.channel, "") == 2; }));
  engine.set_stats({});
  EXPECT_TRUE(eventually([&] { return health_of(client.channel, "") == 1; }));
  grpc::ClientContext context;
  auto reader = client.vllm->Generate(&context, token_request());
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  server->drain();
  EXPECT_TRUE(eventually([&] { return health_of(client.channel, "sluice.v1.Sluice") == 2; }));
  for (int i = 0; i < 6; ++i) engine.step();
  engine::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  server.wait();
}

}  // namespace
}  // namespace sluice
