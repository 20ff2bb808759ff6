// SPDX-License-Identifier: Apache-2.0
// What gRPC clients without a key, and those with large messages, may take of the others.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <worker.grpc.pb.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "server/front/metrics.h"
#include "tests/server/grpc_client.h"

namespace sluice {
namespace {

using grpc::StatusCode;

// Calls and sends nothing but the metadata.
class SilentCall final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  SilentCall(const std::shared_ptr<grpc::Channel>& channel,
             const std::string& path,
             const std::string& key)
      : stub_(channel) {
    if (!key.empty()) context_.AddMetadata("authorization", "Bearer " + key);
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    stub_.PrepareBidiStreamingCall(&context_, path, {}, this);
    StartCall();
  }

  StatusCode code() { return end_.get_future().get().error_code(); }

  void OnDone(const grpc::Status& status) override { end_.set_value(status); }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  std::promise<grpc::Status> end_;
};

TEST(GrpcMetadata, RefusesWhoHasNoKey) {
  FakeEngine engine;
  Config config = grpc_config();
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  const GrpcClient client(server->grpc_port());
  size_t num_closed = 0;
  for (const GrpcMethod& method : kGrpcMethods) {
    const std::string path =
        "/" + std::string(method.service) + "/" + std::string(method.method);
    for (const char* key : {"", "other"}) {
      const bool is_open = path.ends_with("HealthCheck") || path.ends_with("GetServerInfo") ||
                           path.ends_with("Embed") || path.ends_with("GetLoads");
      if (is_open) continue;
      ++num_closed;
      EXPECT_EQ(SilentCall(client.channel, path, key).code(), StatusCode::UNAUTHENTICATED) << path;
    }
  }
  EXPECT_EQ(num_closed, 2 * (kGrpcMethods.size() - 4));
}

TEST(GrpcMetadata, RefusesWhoHasNoSecretOfAWorker) {
  FakeEngine engine;
  Config config;
  config.worker_listen = "127.0.0.1:0";
  config.worker_secret = "0123456789abcdef";
  RunningServer server(engine, config);
  const GrpcClient client(server->worker_port());
  for (const char* method : {"Describe", "GetTokenizer", "Generate", "GetState"}) {
    for (const char* key : {"", "other"}) {
      const std::string path = std::string("/sluice.worker.v1.Worker/") + method;
      EXPECT_EQ(SilentCall(client.channel, path, key).code(), StatusCode::UNAUTHENTICATED) << path;
    }
  }
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer 0123456789abcdef");
  worker::v1::State state;
  EXPECT_TRUE(
      worker::v1::Worker::NewStub(client.channel)->GetState(&context, {}, &state).ok());
}

TEST(GrpcMetadata, LetsInWhoHasTheKeyAndWaitsForTheMessage) {
  FakeEngine engine;
  Config config = grpc_config();
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  SilentCall silent(client.channel, "/sluice.v1.Sluice/StreamChat", "secret");
  EXPECT_TRUE(client.generate(token_request(), "secret").status.ok());
  EXPECT_EQ(silent.code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(client.generate(token_request(), "secret").status.ok());
}

// A megabyte that no prompt gets.
engine::GenerateRequest large_request(engine::GenerateRequest request) {
  request.mutable_tokenized()->set_original_text(std::string(1 << 20, 'x'));
  return request;
}

// Reading a large message takes long: another thread than those of small ones does it.
TEST(LargeGrpcMessages, HaveAThreadOfTheirOwn) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  EXPECT_TRUE(client.generate(token_request()).status.ok());
  EXPECT_TRUE(client.generate(large_request(token_request())).status.ok());
  EXPECT_TRUE(client.generate(large_request(token_request(false))).status.ok());
  EXPECT_TRUE(client.chat(chat_request()).status.ok());
  const auto threads = engine.submitters();
  ASSERT_EQ(threads.size(), 4U);
  EXPECT_NE(threads[1], threads[0]);
  EXPECT_EQ(threads[2], threads[1]);
  EXPECT_EQ(threads[3], threads[0]);
}

TEST(LargeGrpcMessages, AreAbortedByName) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  engine.editable_model().max_model_len = 1 << 20;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest large = large_request(endless_request());
  large.set_request_id("large");
  grpc::ClientContext context;
  auto reader = client.vllm->Generate(&context, large);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  engine::GenerateRequest same = endless_request();
  same.set_request_id("large");
  EXPECT_EQ(client.generate(same).status.error_code(), StatusCode::INVALID_ARGUMENT);
  grpc::ClientContext second;
  engine::AbortRequest request;
  request.add_request_ids("large");
  engine::AbortResponse response;
  EXPECT_TRUE(client.vllm->Abort(&second, request, &response).ok());
  engine::GenerateResponse last;
  while (reader->Read(&last)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(last.complete().finish_reason(), "abort");
}

TEST(GrpcMessages, ThatAreNoneAreRefused) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  grpc::GenericStub stub(client.channel);
  for (const char* path : {"/sluice.v1.Sluice/Chat",
                           "/sluice.v1.Sluice/ListModels",
                           "/vllm.grpc.engine.VllmEngine/Abort",
                           "/vllm.grpc.engine.VllmEngine/GetLoads"}) {
    grpc::ClientContext context;
    const grpc::Slice bytes("\xff\xff\xff");
    const grpc::ByteBuffer request(&bytes, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> end;
    stub.UnaryCall(&context, path, {}, &request, &response, [&](const grpc::Status& status) {
      end.set_value(status);
    });
    EXPECT_EQ(end.get_future().get().error_code(), StatusCode::INVALID_ARGUMENT) << path;
  }
  EXPECT_TRUE(client.generate(token_request()).status.ok());
}

}  // namespace
}  // namespace sluice
