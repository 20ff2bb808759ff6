// SPDX-License-Identifier: Apache-2.0
// Connections of the gRPC port count in --max-connections, whether or not anything is said on them.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/server/grpc_client.h"
#include "tests/server/idle_sockets.h"

namespace sluice {
namespace {

using testing::IdleSockets;

constexpr int kMost = 8;
constexpr int kReserved = 2;
constexpr int kMany = 100;

Config few_connections() {
  Config config = grpc_config();
  config.max_connections = kMost;
  config.reserved_connections = kReserved;
  return config;
}

TEST(GrpcConnections, IdleOnesAreBoundedAndKeepNobodyOutOfThePort) {
  FakeEngine engine;
  RunningServer server(engine, few_connections());
  const IdleSockets idle(server->grpc_port(), kMany);
  EXPECT_TRUE(eventually([&] { return idle.num_open() <= kMost + kReserved; })) << idle.num_open();
  EXPECT_GE(idle.num_open(), kMost) << "as many as there may be";
  for (const char* path : {"/health", "/metrics"}) {
    HttpClient probe(server.port());
    probe.get(path);
    EXPECT_EQ(probe.read_reply().status, 200) << path;
  }
  HttpClient other(server.port());
  other.post(kChatPath, chat_body());
  EXPECT_EQ(other.read_reply().status, 503) << "the cap is one for all ports";
  GrpcClient client(server->grpc_port());
  EXPECT_TRUE(eventually([&] {
    grpc::ClientContext context;
    engine::HealthCheckResponse health;
    return client.vllm->HealthCheck(&context, {}, &health).ok();
  })) << "they make room for it";
}

TEST(GrpcConnections, OnesThatEndGiveTheirPlaceBack) {
  FakeEngine engine;
  RunningServer server(engine, few_connections());
  { const IdleSockets idle(server->grpc_port(), kMany); }
  EXPECT_TRUE(eventually([&] {
    HttpClient client(server.port());
    client.post(kChatPath, chat_body());
    return client.read_reply().status == 200;
  }));
  GrpcClient client(server->grpc_port());
  EXPECT_TRUE(eventually([&] { return client.chat(chat_request()).status.ok(); }));
}

TEST(GrpcConnections, OneThatHasACallKeepsItsPlace) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine, few_connections());
  GrpcClient client(server->grpc_port());
  grpc::ClientContext context;
  auto reader = client.vllm->Generate(&context, token_request());
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  const IdleSockets idle(server->grpc_port(), kMany);
  // The connection and its call have two places.
  EXPECT_TRUE(eventually([&] { return idle.num_open() <= kMost + kReserved - 2; }));
  for (int i = 0; i < 6; ++i) engine.step();
  engine::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(GrpcConnections, AKeyIsNeededToKeepAPlace) {
  FakeEngine engine;
  Config config = few_connections();
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  GrpcClient stranger(server->grpc_port());
  EXPECT_EQ(stranger.generate(token_request()).status.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  const IdleSockets idle(server->grpc_port(), kMany);
  EXPECT_TRUE(eventually([&] { return idle.num_open() <= kMost + kReserved; }));
  EXPECT_TRUE(eventually([&] {
    return stranger.channel->GetState(false) != GRPC_CHANNEL_READY;
  })) << "it was the oldest that had proven nothing";
}

}  // namespace
}  // namespace sluice
