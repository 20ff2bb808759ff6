// SPDX-License-Identifier: Apache-2.0
// gRPC over TLS, with and without certificates of clients, and its health service.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>
#include <health.grpc.pb.h>

#include <array>
#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <thread>

#include "tests/server/grpc_client.h"
#include "tests/support/certificate.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using grpc::StatusCode;

class GrpcTls : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.at(name); }

  static std::string text_of(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

  // What the server shows, and whom it asks for.
  Config config(int32_t cert_reqs) {
    show(server_);
    write_certificate(authority_, path("ca.pem"));
    Config config = grpc_config();
    config.ssl_certfile = path("cert.pem");
    config.ssl_keyfile = path("key.pem");
    if (cert_reqs != 0) config.ssl_ca_certs = path("ca.pem");
    config.ssl_cert_reqs = cert_reqs;
    return config;
  }

  void show(const Certificate& certificate) {
    write_key(certificate, path("key.pem"));
    write_certificate(certificate, path("cert.pem"));
  }

  // One that trusts what `authority` signed, and shows `own`, if it has one.
  std::shared_ptr<grpc::ChannelCredentials> client(const Certificate& authority,
                                                   const Certificate* own = nullptr) {
    grpc::SslCredentialsOptions options;
    write_certificate(authority, path("trusted.pem"));
    options.pem_root_certs = text_of(path("trusted.pem"));
    if (own != nullptr) {
      write_certificate(*own, path("own.pem"));
      write_key(*own, path("own_key.pem"));
      options.pem_cert_chain = text_of(path("own.pem"));
      options.pem_private_key = text_of(path("own_key.pem"));
    }
    return grpc::SslCredentials(options);
  }

  static StatusCode call(uint16_t port,
                         const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    return GrpcClient(port, credentials).generate(token_request()).status.error_code();
  }

  const testing::TemporaryFolder folder_;
  const Certificate authority_ = make_certificate("DNS:ca", -kDay, kDay);
  const Certificate server_ = make_certificate("DNS:localhost", -kDay, kDay, &authority_);
  const Certificate client_ = make_certificate("DNS:client", -kDay, kDay, &authority_);
  const Certificate stranger_ = make_certificate("DNS:localhost", -kDay, kDay);
};

TEST_F(GrpcTls, ServesClientsThatTrustItsCertificateAndNoOthers) {
  FakeEngine engine;
  RunningServer server(engine, config(0));
  const uint16_t port = server->grpc_port();
  EXPECT_EQ(call(port, client(authority_)), StatusCode::OK);
  EXPECT_EQ(call(port, grpc::InsecureChannelCredentials()), StatusCode::UNAVAILABLE);
  EXPECT_EQ(call(port, client(stranger_)), StatusCode::UNAVAILABLE);
}

TEST_F(GrpcTls, AsksForCertificatesOfClientsAsConfigured) {
  for (const int32_t cert_reqs : {1, 2}) {
    FakeEngine engine;
    RunningServer server(engine, config(cert_reqs));
    const uint16_t port = server->grpc_port();
    EXPECT_EQ(call(port, client(authority_)),
              cert_reqs == 1 ? StatusCode::OK : StatusCode::UNAVAILABLE);
    EXPECT_EQ(call(port, client(authority_, &client_)), StatusCode::OK);
    EXPECT_EQ(call(port, client(authority_, &stranger_)), StatusCode::UNAVAILABLE);
  }
}

TEST_F(GrpcTls, ReadsItsCertificateAgainWhenItHasChanged) {
  FakeEngine engine;
  RunningServer server(engine, config(0));
  const uint16_t port = server->grpc_port();
  EXPECT_EQ(call(port, client(stranger_)), StatusCode::UNAVAILABLE);
  show(stranger_);
  EXPECT_TRUE(eventually([&] { return call(port, client(stranger_)) == StatusCode::OK; }));
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

TEST(GrpcHealth, TellsThoseWhoWatchOfEachChangeAndEndsWithTheServer) {
  using grpc::health::v1::HealthCheckResponse;
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config = grpc_config();
  config.unhealthy_after_s = 1;
  RunningServer server(engine, config);
  const GrpcClient client(server->grpc_port());
  const auto stub = grpc::health::v1::Health::NewStub(client.channel);
  const auto watch = [&stub](grpc::ClientContext& context, const char* service) {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    return stub->Watch(&context, request);
  };
  const auto next = [](auto& reader) {
    HealthCheckResponse response;
    return reader->Read(&response) ? static_cast<int>(response.status()) : -1;
  };
  std::array<grpc::ClientContext, 4> contexts;
  auto whole = watch(contexts[0], "");
  auto named = watch(contexts[1], "sluice.v1.Sluice");
  auto unknown = watch(contexts[2], "another");
  EXPECT_EQ(next(whole), HealthCheckResponse::SERVING);
  EXPECT_EQ(next(named), HealthCheckResponse::SERVING);
  EXPECT_EQ(next(unknown), HealthCheckResponse::SERVICE_UNKNOWN);
  auto left = watch(contexts[3], "");
  contexts[3].TryCancel();
  EXPECT_EQ(left->Finish().error_code(), StatusCode::CANCELLED);
  EngineStats stuck;
  stuck.step_started_ns = 1;
  engine.set_stats(stuck);
  EXPECT_EQ(next(whole), HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(next(named), HealthCheckResponse::NOT_SERVING);
  engine.set_stats({});
  EXPECT_EQ(next(whole), HealthCheckResponse::SERVING);
  std::thread ending([&server] { server.stop(); });
  for (auto* reader : {&whole, &named, &unknown}) {
    while (next(*reader) != -1) {
    }
    EXPECT_EQ((*reader)->Finish().error_code(), StatusCode::CANCELLED);
  }
  ending.join();
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
