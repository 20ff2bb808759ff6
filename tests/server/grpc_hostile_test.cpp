// SPDX-License-Identifier: Apache-2.0
// What gRPC clients without a key, and those with large messages, may take of the others.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <health.grpc.pb.h>
#include <reflection.pb.h>
#include <worker.grpc.pb.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/front/metrics.h"
#include "tests/server/grpc_client.h"

namespace sluice {
namespace {

using grpc::StatusCode;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

const std::string kReflectionPaths[] = {
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"};

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
    StartRead(&answer_);  // the status comes behind it
    StartCall();
  }

  StatusCode code() { return end_.get_future().get().error_code(); }

  void OnDone(const grpc::Status& status) override { end_.set_value(status); }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer answer_;
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
                           path.ends_with("GetLoads");
      if (is_open) continue;
      ++num_closed;
      EXPECT_EQ(SilentCall(client.channel, path, key).code(), StatusCode::UNAUTHENTICATED) << path;
    }
  }
  EXPECT_EQ(num_closed, 2 * (kGrpcMethods.size() - 3));
  for (const std::string& path : kReflectionPaths) {
    for (const char* key : {"", "other"}) {
      EXPECT_EQ(SilentCall(client.channel, path, key).code(), StatusCode::UNAUTHENTICATED) << path;
    }
  }
  EXPECT_EQ(SilentCall(client.channel, "/no.Such/Method", "").code(), StatusCode::UNIMPLEMENTED);
}

// Answers each of the questions on one call, and how it ended.
grpc::Status reflect(const std::shared_ptr<grpc::Channel>& channel,
                     const std::string& path,
                     const std::vector<ServerReflectionRequest>& questions,
                     std::vector<ServerReflectionResponse>& answers) {
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret");
  const grpc::internal::RpcMethod method(path.c_str(),
                                         grpc::internal::RpcMethod::BIDI_STREAMING);
  using Stream = grpc::ClientReaderWriter<ServerReflectionRequest, ServerReflectionResponse>;
  const std::unique_ptr<Stream> stream(
      grpc::internal::ClientReaderWriterFactory<ServerReflectionRequest,
                                                ServerReflectionResponse>::Create(channel.get(),
                                                                                  method,
                                                                                  &context));
  for (const ServerReflectionRequest& question : questions) {
    ServerReflectionResponse answer;
    if (!stream->Write(question) || !stream->Read(&answer)) break;
    answers.push_back(answer);
  }
  stream->WritesDone();
  return stream->Finish();
}

TEST(GrpcReflection, AnswersWhoHasTheKeyAndReadsNoLongQuestion) {
  FakeEngine engine;
  Config config = grpc_config();
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  const GrpcClient client(server->grpc_port());
  std::vector<ServerReflectionRequest> questions(6);
  questions[0].set_list_services("*");
  questions[1].set_file_containing_symbol("vllm.grpc.engine.VllmEngine.Generate");
  questions[2].set_file_containing_symbol("none.Such");
  questions[3].mutable_file_containing_extension()->set_containing_type("sluice.v1.ChatRequest");
  questions[4].set_all_extension_numbers_of_type("sluice.v1.ChatRequest");
  for (const std::string& path : kReflectionPaths) {
    std::vector<ServerReflectionResponse> answers;
    EXPECT_TRUE(reflect(client.channel, path, questions, answers).ok());
    ASSERT_EQ(answers.size(), questions.size());
    EXPECT_EQ(answers[0].list_services_response().service_size(), 4);
    EXPECT_EQ(answers[1].file_descriptor_response().file_descriptor_proto_size(), 2);
    EXPECT_EQ(answers[2].error_response().error_code(), StatusCode::NOT_FOUND);
    EXPECT_EQ(answers[3].error_response().error_code(), StatusCode::NOT_FOUND);
    EXPECT_EQ(answers[4].all_extension_numbers_response().base_type_name(),
              "sluice.v1.ChatRequest");
    EXPECT_EQ(answers[5].error_response().error_code(), StatusCode::INVALID_ARGUMENT);

    std::vector<ServerReflectionRequest> long_ones(2, questions[0]);
    long_ones[1].set_host(std::string(4096, 'x'));
    answers.clear();
    EXPECT_EQ(reflect(client.channel, path, long_ones, answers).error_code(),
              StatusCode::RESOURCE_EXHAUSTED);
    EXPECT_EQ(answers.size(), 1u);
  }
}

// The server does not wait for the message of such a call, so it holds no memory.
TEST(GrpcMetadata, AnswersOpenQuestionsOfThoseWithoutAKey) {
  FakeEngine engine;
  Config config = grpc_config();
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  const GrpcClient client(server->grpc_port());
  for (const char* path : {"/grpc.health.v1.Health/Check",
                           "/vllm.grpc.engine.VllmEngine/HealthCheck",
                           "/vllm.grpc.engine.VllmEngine/GetServerInfo",
                           "/vllm.grpc.engine.VllmEngine/GetLoads"}) {
    for (const char* key : {"", "other"}) {
      EXPECT_EQ(SilentCall(client.channel, path, key).code(), StatusCode::OK) << path;
    }
  }
  const auto health = grpc::health::v1::Health::NewStub(client.channel);
  for (const char* key : {"", "secret"}) {
    grpc::ClientContext context;
    if (*key != '\0') context.AddMetadata("authorization", std::string("Bearer ") + key);
    grpc::health::v1::HealthCheckRequest request;
    grpc::health::v1::HealthCheckResponse response;
    request.set_service("another");
    EXPECT_EQ(health->Check(&context, request, &response).error_code(),
              *key == '\0' ? StatusCode::OK : StatusCode::NOT_FOUND);
  }
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

// Tells on which threads calls of the worker port are read: each asks for the model there.
class WatchedEngine final : public FakeEngine {
 public:
  const ModelInfo& model() const override {
    const std::scoped_lock lock(mutex_);
    if (is_watching_) threads_.push_back(std::this_thread::get_id());
    return FakeEngine::model();
  }

  std::vector<std::thread::id> threads_of(const std::function<void()>& calls) {
    set_watching(true);
    calls();
    set_watching(false);
    return std::exchange(threads_, {});
  }

 private:
  void set_watching(bool is_watching) {
    const std::scoped_lock lock(mutex_);
    is_watching_ = is_watching;
  }

  mutable std::mutex mutex_;
  bool is_watching_ = false;
  mutable std::vector<std::thread::id> threads_;
};

// A request that no worker takes, whose prompt is of so many bytes; its status.
StatusCode generate_on_worker(const GrpcClient& client, size_t bytes) {
  worker::v1::GenerateRequest request;
  request.set_fingerprint("another");
  for (size_t i = 0; i < bytes; ++i) request.mutable_request()->add_prompt(1);
  grpc::ClientContext context;
  const auto stub = worker::v1::Worker::NewStub(client.channel);
  return stub->Generate(&context, request)->Finish().error_code();
}

// gRPC has few threads, and they write the streams of all routers.
TEST(LargeGrpcMessages, OfRoutersHaveAThreadOfTheirOwn) {
  WatchedEngine engine;
  Config config;
  config.worker_listen = "127.0.0.1:0";
  RunningServer server(engine, config);
  const GrpcClient client(server->worker_port());
  const auto threads_of = [&](size_t bytes) {
    return engine.threads_of([&] {
      std::vector<std::future<StatusCode>> calls;
      for (int i = 0; i < 8; ++i) {
        calls.push_back(std::async(
            std::launch::async, [&client, bytes] { return generate_on_worker(client, bytes); }));
      }
      for (auto& call : calls) EXPECT_EQ(call.get(), StatusCode::FAILED_PRECONDITION);
    });
  };
  const auto small = threads_of(1000);
  const auto large = threads_of(4 << 20);
  ASSERT_EQ(small.size(), 8U);
  ASSERT_EQ(large.size(), 8U);
  for (const auto& thread : large) {
    EXPECT_EQ(thread, large.front());
    EXPECT_EQ(std::count(small.begin(), small.end(), thread), 0);
  }
}

// A client that leaves while its message is read, or waits to be: the others are served.
TEST(LargeGrpcMessages, OfRoutersThatLeaveAreForgotten) {
  FakeEngine engine;
  Config config;
  config.worker_listen = "127.0.0.1:0";
  RunningServer server(engine, config);
  const GrpcClient client(server->worker_port());
  const auto stub = worker::v1::Worker::NewStub(client.channel);
  worker::v1::GenerateRequest request;
  request.set_fingerprint("another");
  for (int i = 0; i < 4 << 20; ++i) request.mutable_request()->add_prompt(1);
  for (int i = 0; i < 16; ++i) {
    grpc::ClientContext context;
    const auto reader = stub->Generate(&context, request);
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * i));
    context.TryCancel();
    reader->Finish();
  }
  EXPECT_EQ(generate_on_worker(client, 10), StatusCode::FAILED_PRECONDITION);
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

// Sends so many bytes of a field that the method does not know.
StatusCode ask(const GrpcClient& client, const std::string& path, size_t bytes) {
  std::string text = "\x7a";  // field 15, of a length
  for (size_t left = bytes; left > 0; left >>= 7) {
    text += static_cast<char>((left & 0x7F) | (left > 0x7F ? 0x80 : 0));
  }
  const grpc::Slice slice(text + std::string(bytes, 'x'));
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  std::promise<grpc::Status> end;
  grpc::GenericStub(client.channel)
      .UnaryCall(&context, path, {}, &request, &response, [&](const grpc::Status& status) {
        end.set_value(status);
      });
  return end.get_future().get().error_code();
}

TEST(GrpcMessages, OfQuestionsAreShort) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  const GrpcClient client(server->grpc_port());
  for (const char* path :
       {"/vllm.grpc.engine.VllmEngine/GetLoads", "/grpc.health.v1.Health/Check"}) {
    EXPECT_EQ(ask(client, path, 4000), StatusCode::OK) << path;
    EXPECT_EQ(ask(client, path, 5000), StatusCode::RESOURCE_EXHAUSTED) << path;
    EXPECT_EQ(ask(client, path, 1 << 20), StatusCode::RESOURCE_EXHAUSTED) << path;
  }
  EXPECT_EQ(ask(client, "/grpc.health.v1.Health/Watch", 5000), StatusCode::RESOURCE_EXHAUSTED);
}

TEST(GrpcMessages, ThatAreNoneAreRefused) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  grpc::GenericStub stub(client.channel);
  for (const char* path : {"/sluice.v1.Sluice/Chat",
                           "/sluice.v1.Sluice/ListModels",
                           "/vllm.grpc.engine.VllmEngine/Abort",
                           "/grpc.health.v1.Health/Check",
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
