// SPDX-License-Identifier: Apache-2.0
// What both gRPC services share: doors, keys, codes, limits of calls and messages.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <list>
#include <string>
#include <vector>

#include "tests/server/grpc_client.h"

namespace sluice {
namespace {

using grpc::StatusCode;

TEST(Grpc, TextPromptsNameControlTokensThroughEveryDoor) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  const std::string text = "<|im_start|>a<|im_end|>";
  engine::GenerateRequest request;
  request.set_text(text);
  ASSERT_TRUE(client.generate(request).status.ok());
  v1::CompletionRequest completion;
  completion.add_prompts()->set_text(text);
  completion.mutable_sampling()->set_top_p(0);
  completion.set_echo(true);
  const auto reply = client.complete(completion);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.text(), text + "Hello");
  const auto submitted = engine.submitted();
  for (const ValidRequest& given : submitted) {
    EXPECT_EQ(given.prompt,
              (std::vector<TokenId>{
                  ByteTokenizer::kBos, ByteTokenizer::kTurnStart, 'a', ByteTokenizer::kTurnEnd}));
  }
  EXPECT_EQ(submitted.back().sampling.top_p, 0.0F);
}

// The sampling of the HTTP request below; both services' fields have the same names.
template <typename Sampling>
void sample_as_http(Sampling& sampling) {
  sampling.set_temperature(0.7F);
  sampling.set_top_p(0.9F);
  sampling.set_top_k(40);
  sampling.set_min_p(0.05F);
  sampling.set_frequency_penalty(0.1F);
  sampling.set_presence_penalty(-0.3F);
  sampling.set_repetition_penalty(1.1F);
  sampling.set_min_tokens(2);
  sampling.add_stop("x");
  sampling.add_stop_token_ids(7);
  sampling.set_n(2);
  sampling.set_seed(5);
  (*sampling.mutable_logit_bias())[65] = 1.5F;
  (*sampling.mutable_logit_bias())[66] = -3;
  sampling.set_logprobs(3);
  sampling.set_ignore_eos(true);
}

// Both doors lead to one validator: what the engine is given is equal to the last bit.
TEST(Grpc, EqualRequestsAreEqualToTheEngineThroughBothDoors) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  HttpClient http(server.port());
  http.post(kCompletionPath,
            R"({"prompt":[72,105],"max_tokens":20,"temperature":0.7,"top_p":0.9,"top_k":40,
                "min_p":0.05,"frequency_penalty":0.1,"presence_penalty":-0.3,
                "repetition_penalty":1.1,"min_tokens":2,"stop":["x"],"stop_token_ids":[7],"n":2,
                "seed":5,"logit_bias":{"65":1.5,"66":-3},"logprobs":3,"ignore_eos":true})");
  ASSERT_EQ(http.read_reply().status, 200);

  engine::GenerateRequest request = token_request(false);
  sample_as_http(*request.mutable_sampling_params());
  ASSERT_TRUE(client.generate(request).status.ok());

  v1::CompletionRequest completion;
  v1::TokenIds& ids = *completion.add_prompts()->mutable_tokens();
  ids.add_ids(72);
  ids.add_ids(105);
  v1::Sampling& sampling = *completion.mutable_sampling();
  sampling.set_max_tokens(20);
  sample_as_http(sampling);
  ASSERT_TRUE(client.complete(completion).status.ok());

  const auto submitted = engine.submitted();
  ASSERT_EQ(submitted.size(), 6U);
  for (size_t i = 2; i < 6; ++i) {
    const SamplingParams& expected = submitted[i % 2].sampling;
    const SamplingParams& given = submitted[i].sampling;
    EXPECT_EQ(submitted[i].prompt, submitted[i % 2].prompt);
    for (const SamplingField& field : sampling_fields()) {
      EXPECT_EQ(field.get(given), field.get(expected)) << field.name;
    }
    EXPECT_EQ(given.seed, expected.seed);
    EXPECT_EQ(given.stop_token_ids, expected.stop_token_ids);
    EXPECT_EQ(given.num_logprobs, expected.num_logprobs);
    ASSERT_EQ(given.logit_bias.size(), expected.logit_bias.size());
    for (const LogitBias& bias : given.logit_bias) {
      EXPECT_EQ(bias.bias, bias.token == 65 ? 1.5F : -3.0F);
    }
  }
}

TEST(Grpc, KeysAreAskedForWhereHttpAsksForThem) {
  FakeEngine engine;
  Config config = grpc_config();
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  EXPECT_EQ(client.generate(token_request()).status.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(client.generate(token_request(), "wrong").status.error_code(),
            StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(client.generate(token_request(), "secret").status.ok());
  EXPECT_NE(engine.submitted().front().tenant_salt, 0U);
  EXPECT_EQ(client.chat(chat_request()).status.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(client.stream_chat(chat_request()).status.error_code(), StatusCode::UNAUTHENTICATED);
  grpc::ClientContext context;
  engine::HealthCheckResponse health;
  EXPECT_TRUE(client.vllm->HealthCheck(&context, {}, &health).ok());
  EXPECT_TRUE(health.healthy());
}

TEST(Grpc, LimitsOfAKeyCountOverBothProtocols) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config = grpc_config();
  config.api_key = {"secret"};
  config.max_requests_per_key = 1;
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  HttpClient http(server.port());
  http.request("POST", kCompletionPath, R"({"prompt":"x"})", "Authorization: Bearer secret\r\n");
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  const auto refused = client.generate(token_request(), "secret");
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(refused.retry_ms, "");
  for (int i = 0; i < 6; ++i) engine.step();
  EXPECT_EQ(http.read_reply().status, 200);
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer secret");
  auto reader = client.vllm->Generate(&context, token_request());
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  http.request("POST", kCompletionPath, R"({"prompt":"x"})", "Authorization: Bearer secret\r\n");
  EXPECT_EQ(http.read_reply().status, 429);
  for (int i = 0; i < 6; ++i) engine.step();
  engine::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST(Grpc, ScarcityAndFailureHaveTheirCodes) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  engine.set_queue_limit(0);
  auto reply = client.generate(token_request());
  EXPECT_EQ(reply.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(reply.retry_ms, "1000");
  engine.set_queue_limit(10);
  engine.fail_at(2);
  reply = client.generate(token_request());
  EXPECT_EQ(reply.status.error_code(), StatusCode::INTERNAL);
  EXPECT_NE(reply.status.error_message().find("finite"), std::string::npos);
  EXPECT_EQ(client.chat(chat_request()).status.error_code(), StatusCode::INTERNAL);
}

TEST(Grpc, RequestIdIsEchoedAndLogged) {
  FakeEngine engine;
  Config config = grpc_config();
  config.enable_log_requests = true;
  config.enable_log_prompts = true;
  config.api_key = {"secret"};
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  testing::internal::CaptureStderr();
  engine::GenerateRequest request = token_request();
  EXPECT_EQ(client.generate(request, "secret", "call-1").request_id, "call-1");
  EXPECT_EQ(client.generate(request, "other", "call-2").request_id, "call-2");
  EXPECT_EQ(client.generate(request, "secret", "a b\"c").request_id, "");
  request.set_request_id("named");
  EXPECT_EQ(client.generate(request, "secret").request_id, "");
  server.stop();
  const std::string log = testing::internal::GetCapturedStderr();
  for (const char* line :
       {"prompt id=call-1 tokens=2 text=Hi\n",
        "request id=call-1 method=gRPC path=/vllm.grpc.engine.VllmEngine/Generate",
        "prompt id=cmpl-",
        "request id=cmpl-",
        "prompt id=named ",
        "request id=named "}) {
    EXPECT_NE(log.find(line), std::string::npos) << line << log;
  }
  EXPECT_EQ(log.find("a b"), std::string::npos) << log;
}

TEST(Grpc, RequestIdIsEchoedBesideAnError) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request = token_request();
  request.mutable_sampling_params()->set_temperature(-1);
  const auto refused = client.generate(request, {}, "call-1");
  EXPECT_EQ(refused.status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(refused.request_id, "call-1");
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "call-2");
  v1::ListModelsResponse models;
  EXPECT_TRUE(client.sluice->ListModels(&context, {}, &models).ok());
  const auto& metadata = context.GetServerInitialMetadata();
  ASSERT_EQ(metadata.count("x-request-id"), 1U);
  EXPECT_EQ(metadata.find("x-request-id")->second, "call-2");
}

TEST(Grpc, MessagesBeyondTheLimitAreRefused) {
  FakeEngine engine;
  Config config = grpc_config();
  config.max_body_bytes = 1024;
  RunningServer server(engine, config);
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request;
  request.set_text(std::string(4000, 'x'));
  EXPECT_EQ(client.generate(request).status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(client.generate(token_request()).status.ok());
}

TEST(Grpc, CompressedMessagesAreRefused) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  grpc::ClientContext context;
  context.set_compression_algorithm(GRPC_COMPRESS_GZIP);
  v1::ChatRequest request = chat_request();
  request.mutable_messages(0)->set_content(std::string(100'000, 'x'));
  v1::GenerationResponse response;
  EXPECT_EQ(client.sluice->Chat(&context, request, &response).error_code(),
            StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(engine.submitted().empty());
}

TEST(Grpc, BytesThatAreNotHttp2DoNotDisturbOthers) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::vector<std::string> rubbish = {
      "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
      std::string(5000, '\xff'),
      preface.substr(0, 10),
      preface + std::string(100, '\0'),
      preface + std::string("\xff\xff\xff\x00\x00\x00\x00\x00\x00", 9),  // 16 MiB to come
      preface + std::string("\x00\x00\x04\x08\x00\x00\x00\x00\x01\x7f\xff\xff\xff", 13),  // window
      preface +
          std::string("\x00\x00\x05\x01\x05\x00\x00\x00\x01\xff\xff\xff\xff\x0f", 14),  // HPACK
  };
  std::list<HttpClient> open;  // some wait for more
  for (const std::string& bytes : rubbish) {
    open.emplace_back(server->grpc_port());
    open.back().send(bytes);
    GrpcClient client(server->grpc_port());
    EXPECT_TRUE(client.generate(token_request()).status.ok());
  }
}

TEST(Grpc, SilentConnectionsEnd) {
  FakeEngine engine;
  Config config = grpc_config();
  config.request_timeout_s = 1;
  RunningServer server(engine, config);
  HttpClient silent(server->grpc_port());
  const auto begin = std::chrono::steady_clock::now();
  while (silent.fill()) {
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(18)) << "not ended";
}

TEST(Grpc, CallsBeyondTheLimitAreRefused) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config = grpc_config();
  config.max_connections = 3;  // two connections and a call
  RunningServer server(engine, config);
  GrpcClient first(server->grpc_port());
  GrpcClient second(server->grpc_port());
  grpc::ClientContext context;
  auto reader = first.vllm->Generate(&context, token_request());
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  EXPECT_EQ(second.generate(token_request()).status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  for (int i = 0; i < 6; ++i) engine.step();
  engine::GenerateResponse response;
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST(Grpc, CallsAreCountedByCode) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  client.generate(token_request());
  client.complete({});
  HttpClient http(server.port());
  http.get("/metrics");
  const std::string text = http.read_reply().body;
  EXPECT_NE(text.find(R"(grpc_server_handled_total{grpc_code="OK",grpc_method="Generate",)"),
            std::string::npos);
  EXPECT_NE(text.find(R"({grpc_code="InvalidArgument",grpc_method="Complete",)"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
