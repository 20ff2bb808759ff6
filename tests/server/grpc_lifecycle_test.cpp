// SPDX-License-Identifier: Apache-2.0
// What happens to gRPC calls when clients leave, read slowly or ask for an abort, and when the
// server ends.
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

#include "tests/server/grpc_client.h"

namespace sluice {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

std::chrono::system_clock::time_point in(milliseconds delay) {
  return std::chrono::system_clock::now() + delay;
}

// Reads the rest of a stream; returns its status.
template <typename Reader, typename Response>
grpc::Status read_rest(Reader& reader, Response& last) {
  Response response;
  while (reader.Read(&response)) last = response;
  return reader.Finish();
}

// A stream over a connection that takes no more than a few kilobytes ahead of its reader.
struct EndlessStream {
  explicit EndlessStream(uint16_t port) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4096);
    const auto stub = engine::VllmEngine::NewStub(grpc::CreateCustomChannel(
        "127.0.0.1:" + std::to_string(port), grpc::InsecureChannelCredentials(), arguments));
    reader = stub->Generate(&context, endless_request());
  }

  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<engine::GenerateResponse>> reader;
};

TEST(GrpcCancel, AbortsTheRequestWithinAStep) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  grpc::ClientContext context;
  auto reader = client.vllm->Generate(&context, token_request());
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  engine.step();
  engine::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  context.TryCancel();
  EXPECT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
  engine.step();
  EXPECT_EQ(engine.num_running(), 0U);
  EXPECT_EQ(read_rest(*reader, response).error_code(), StatusCode::CANCELLED);
}

TEST(GrpcCancel, OfAnAnswerInOnePieceAbortsAllItsChoices) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::ChatRequest request = chat_request();
  request.mutable_sampling()->set_n(3);
  grpc::ClientContext context;
  context.set_deadline(in(milliseconds(200)));
  v1::GenerationResponse response;
  EXPECT_EQ(client.sluice->Chat(&context, request, &response).error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([&] { return engine.num_aborted() == 3; }));
  engine.step();
}

TEST(GrpcCancel, LeavesOtherCallsAlone) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config = grpc_config();
  config.io_threads = 2;
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  grpc::ClientContext leaving;
  grpc::ClientContext staying;
  auto leaver = client.vllm->Generate(&leaving, token_request());
  auto stayer = client.vllm->Generate(&staying, token_request());
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 2; }));
  leaving.TryCancel();
  ASSERT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
  for (int i = 0; i < 6; ++i) engine.step();
  engine::GenerateResponse last;
  EXPECT_TRUE(read_rest(*stayer, last).ok());
  EXPECT_EQ(last.complete().output_ids_size(), 6);
  EXPECT_EQ(read_rest(*leaver, last).error_code(), StatusCode::CANCELLED);
}

TEST(GrpcAbort, EndsTheNamedRequestAndSaysSo) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config = grpc_config();
  config.io_threads = 3;
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request = token_request();
  request.set_request_id("mine");
  grpc::ClientContext context;
  auto reader = client.vllm->Generate(&context, request);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  const auto again = client.generate(request);
  EXPECT_EQ(again.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(again.param, "request_id");
  engine.step();
  engine::AbortRequest abort;
  abort.add_request_ids("other");
  abort.add_request_ids("mine");
  grpc::ClientContext abort_context;
  engine::AbortResponse aborted;
  EXPECT_TRUE(client.vllm->Abort(&abort_context, abort, &aborted).ok());
  engine::GenerateResponse last;
  EXPECT_TRUE(read_rest(*reader, last).ok());
  EXPECT_EQ(last.complete().finish_reason(), "abort");
  EXPECT_EQ(last.complete().output_ids_size(), 1);
  EXPECT_EQ(engine.num_aborted(), 1);
  engine.step();
  // The name is free again.
  grpc::ClientContext next_context;
  auto next = client.vllm->Generate(&next_context, request);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  for (int i = 0; i < 6; ++i) engine.step();
  EXPECT_TRUE(read_rest(*next, last).ok());
}

TEST(GrpcAbort, DoesNotReachOtherTenants) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config = grpc_config();
  config.api_key = {"a", "b"};
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request = token_request();
  request.set_request_id("same");
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer a");
  auto reader = client.vllm->Generate(&context, request);
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  engine::AbortRequest abort;
  abort.add_request_ids("same");
  grpc::ClientContext abort_context;
  abort_context.AddMetadata("authorization", "Bearer b");
  engine::AbortResponse aborted;
  EXPECT_TRUE(client.vllm->Abort(&abort_context, abort, &aborted).ok());
  for (int i = 0; i < 6; ++i) engine.step();
  engine::GenerateResponse last;
  EXPECT_TRUE(read_rest(*reader, last).ok());
  EXPECT_EQ(last.complete().finish_reason(), "stop");
}

TEST(GrpcSlowReader, IsDroppedWhenTooMuchWaits) {
  FakeEngine engine;
  engine.editable_model().max_model_len = 1 << 20;
  Config config = grpc_config();
  config.max_stream_buffer_bytes = 4096;
  RunningServer server(engine, config);
  const EndlessStream stream(server->grpc_port());
  engine::GenerateResponse last;
  ASSERT_TRUE(stream.reader->Read(&last));
  ASSERT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
  EXPECT_TRUE(eventually([&] { return engine.num_running() == 0; }));
  const grpc::Status status = read_rest(*stream.reader, last);
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
}

TEST(GrpcSlowReader, WhoReadsNothingIsCutOffAndHoldsNothing) {
  FakeEngine engine;
  engine.editable_model().max_model_len = 1 << 20;
  engine.set_step_delay(std::chrono::microseconds(10));
  Config config = grpc_config();
  config.write_timeout_s = 1;
  config.max_stream_buffer_bytes = int64_t{1} << 40;
  config.max_connections = 3;  // two connections and a call
  RunningServer server(engine, config);
  const EndlessStream stream(server->grpc_port());
  ASSERT_TRUE(eventually([&] { return engine.num_aborted() == 1; }));
  // Its call no longer counts.
  GrpcClient other(server->grpc_port());
  EXPECT_TRUE(eventually([&] { return other.generate(token_request()).status.ok(); }));
  engine::GenerateResponse last;
  EXPECT_FALSE(read_rest(*stream.reader, last).ok());
}

TEST(GrpcDrain, LetsRunningStreamsEndAndRefusesNewOnes) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  grpc::ClientContext context;
  auto reader = client.vllm->Generate(&context, token_request());
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  server->drain();
  const auto refused = client.generate(token_request());
  EXPECT_EQ(refused.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(refused.retry_ms, "5000");
  grpc::ClientContext health_context;
  engine::HealthCheckResponse health;
  EXPECT_TRUE(client.vllm->HealthCheck(&health_context, {}, &health).ok());
  EXPECT_FALSE(health.healthy());
  for (int i = 0; i < 6; ++i) engine.step();
  engine::GenerateResponse last;
  EXPECT_TRUE(read_rest(*reader, last).ok());
  EXPECT_EQ(last.complete().output_ids_size(), 6);
  server.wait();
}

TEST(GrpcDrain, CutsStreamsAtTheDeadlineAndSaysSo) {
  FakeEngine engine;
  engine.editable_model().max_model_len = 1 << 20;
  engine.set_step_delay(milliseconds(5));
  Config config = grpc_config();
  config.drain_timeout_s = 1;
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  grpc::ClientContext context;
  auto reader = client.vllm->Generate(&context, endless_request());
  engine::GenerateResponse last;
  ASSERT_TRUE(reader->Read(&last));
  server->drain();
  const grpc::Status status = read_rest(*reader, last);
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "The server is shutting down.");
  server.wait();
  EXPECT_EQ(engine.num_running(), 0U);
}

TEST(GrpcDrain, DoesNotWaitForAClientThatDoesNotRead) {
  FakeEngine engine;
  engine.editable_model().max_model_len = 1 << 20;
  Config config = grpc_config();
  config.drain_timeout_s = 1;
  RunningServer server(engine, config);
  const EndlessStream stream(server->grpc_port());
  engine::GenerateResponse last;
  ASSERT_TRUE(stream.reader->Read(&last));
  server->drain();
  server.wait();
  EXPECT_FALSE(read_rest(*stream.reader, last).ok());
}

// A hot restart: both processes have the port until the old one serves no more than its last calls.
TEST(GrpcHandOver, ClientsMoveToTheNextServer) {
  FakeEngine old_engine(FakeEngine::Stepping::kManual);
  FakeEngine next_engine;
  RunningServer old_server(old_engine, grpc_config());
  const uint16_t port = old_server->grpc_port();
  GrpcClient kept(port);
  grpc::ClientContext context;
  auto reader = kept.vllm->Generate(&context, token_request());
  ASSERT_TRUE(eventually([&] { return old_engine.num_running() == 1; }));

  Config config;
  config.served_model_name = {"fake", "alias"};
  config.grpc_port = port;
  auto next = HttpServer::create(config, next_engine, ::dup(old_server->listening_descriptor()));
  ASSERT_TRUE(next.has_value()) << next.error().message;
  std::thread thread([&] { EXPECT_TRUE((*next)->run()); });
  old_server->hand_over();
  // A call that meets the last moments of the old connection goes to the old server.
  std::this_thread::sleep_for(milliseconds(500));
  old_server->drain();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(kept.generate(token_request()).status.ok()) << i;
  for (int i = 0; i < 12; ++i) {
    EXPECT_TRUE(GrpcClient(port).generate(token_request()).status.ok()) << i;
  }
  EXPECT_EQ(old_engine.num_running(), 1U);
  for (int i = 0; i < 6; ++i) old_engine.step();
  engine::GenerateResponse last;
  EXPECT_TRUE(read_rest(*reader, last).ok());
  EXPECT_EQ(last.complete().output_ids_size(), 6);
  old_server.wait();
  (*next)->stop();
  thread.join();
}

TEST(GrpcStop, EndsEverythingAtOnce) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  grpc::ClientContext context;
  auto reader = client.vllm->Generate(&context, endless_request());
  ASSERT_TRUE(eventually([&] {
    grpc::ClientContext info_context;
    engine::GetServerInfoResponse info;
    return client.vllm->GetServerInfo(&info_context, {}, &info).ok();
  }));
  server->stop();
  engine::GenerateResponse last;
  EXPECT_FALSE(read_rest(*reader, last).ok());
  engine.step();
  server.wait();
}

TEST(GrpcServer, PortInUseIsOneLineWithTheRemedy) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  Config config;
  config.port = 0;
  config.grpc_port = server->grpc_port();
  const auto second = HttpServer::create(config, engine);
  ASSERT_FALSE(second.has_value());
  EXPECT_NE(second.error().message.find("--grpc-port"), std::string::npos);
  EXPECT_EQ(second.error().message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace sluice
