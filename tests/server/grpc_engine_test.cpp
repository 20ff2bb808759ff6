// SPDX-License-Identifier: Apache-2.0
// vllm.grpc.engine as its clients see it: tokens in and out, and what is refused.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/server/grpc_client.h"

namespace sluice {
namespace {

using grpc::StatusCode;
using Ids = std::vector<uint32_t>;

const Ids kHello = {'H', 'e', 'l', 'l', 'o', ByteTokenizer::kTurnEnd};

TEST(VllmEngine, StreamsTokensAndEndsWithAllOfThem) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  const auto reply = client.generate(token_request());
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.tokens(), kHello);
  ASSERT_EQ(reply.completes.size(), 1U);
  const auto& complete = reply.completes.front();
  EXPECT_EQ(Ids(complete.output_ids().begin(), complete.output_ids().end()), kHello);
  EXPECT_EQ(complete.finish_reason(), "stop");
  EXPECT_EQ(complete.prompt_tokens(), 2U);
  EXPECT_EQ(complete.completion_tokens(), 6U);
  EXPECT_EQ(complete.cached_tokens(), 3U);
  EXPECT_EQ(complete.matched_stop_case(), engine::GenerateComplete::MATCHED_STOP_NOT_SET);
  EXPECT_EQ(reply.chunks.back().completion_tokens(), 6U);
  EXPECT_FALSE(reply.seed.empty());
}

TEST(VllmEngine, AnswersAtOnceWhereNothingIsStreamed) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request = token_request(false);
  request.mutable_sampling_params()->set_n(2);
  request.mutable_sampling_params()->set_logprobs(1);
  const auto reply = client.generate(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_TRUE(reply.chunks.empty());
  ASSERT_EQ(reply.completes.size(), 2U);
  for (uint32_t i = 0; i < 2; ++i) {
    const auto& complete = reply.completes[i];
    EXPECT_EQ(complete.index(), i);
    EXPECT_EQ(Ids(complete.output_ids().begin(), complete.output_ids().end()), kHello);
    ASSERT_EQ(complete.output_logprobs().token_logprobs_size(), 6);
    EXPECT_EQ(complete.output_logprobs().token_logprobs(0), -0.5F);
    EXPECT_EQ(complete.output_logprobs().token_ids(1), uint32_t{'e'});
    ASSERT_EQ(complete.output_logprobs().top_logprobs(0).values_size(), 1);
    EXPECT_EQ(complete.output_logprobs().top_logprobs(0).token_ids(0), uint32_t{'a'});
  }
}

TEST(VllmEngine, StreamedChoicesHaveTheirIndexAndLogprobs) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request = token_request();
  request.mutable_sampling_params()->set_n(2);
  request.mutable_sampling_params()->set_logprobs(0);
  const auto reply = client.generate(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  EXPECT_EQ(reply.tokens(0), kHello);
  EXPECT_EQ(reply.tokens(1), kHello);
  int num_logprobs = 0;
  for (const auto& chunk : reply.chunks) {
    EXPECT_EQ(chunk.token_ids_size(), chunk.output_logprobs().token_logprobs_size());
    num_logprobs += chunk.output_logprobs().token_logprobs_size();
  }
  EXPECT_EQ(num_logprobs, 12);
}

TEST(VllmEngine, SaysWhatStoppedIt) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request = token_request();
  request.mutable_sampling_params()->add_stop("ll");
  auto reply = client.generate(request);
  ASSERT_EQ(reply.completes.size(), 1U);
  EXPECT_EQ(reply.completes.front().matched_stop_str(), "ll");
  EXPECT_EQ(reply.tokens(), Ids({'H', 'e', 'l', 'l'}));
  request.mutable_sampling_params()->clear_stop();
  request.mutable_sampling_params()->add_stop_token_ids('e');
  reply = client.generate(request);
  ASSERT_EQ(reply.completes.size(), 1U);
  EXPECT_EQ(reply.completes.front().matched_token_id(), uint32_t{'e'});
  request.mutable_sampling_params()->clear_stop_token_ids();
  request.mutable_sampling_params()->set_max_tokens(3);
  reply = client.generate(request);
  ASSERT_EQ(reply.completes.size(), 1U);
  EXPECT_EQ(reply.completes.front().finish_reason(), "length");
}

TEST(VllmEngine, StopStringsWaitForMinTokensAndMayNameControlTokens) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request = token_request();
  engine::SamplingParams& sampling = *request.mutable_sampling_params();
  sampling.add_stop("l");
  sampling.add_stop("<|im_end|>");
  sampling.set_ignore_eos(true);
  sampling.set_min_tokens(3);
  auto reply = client.generate(request);
  ASSERT_EQ(reply.completes.size(), 1U) << reply.status.error_message();
  EXPECT_EQ(reply.tokens(), Ids({'H', 'e', 'l', 'l'}));
  for (const bool skip : {true, false}) {
    sampling.set_min_tokens(4);
    sampling.set_skip_special_tokens(skip);
    reply = client.generate(request);
    ASSERT_EQ(reply.completes.size(), 1U) << reply.status.error_message();
    EXPECT_EQ(reply.tokens(), kHello) << skip;
    EXPECT_EQ(reply.completes.front().matched_stop_str(), "<|im_end|>") << skip;
  }
}

TEST(VllmEngine, ScoresThePromptWhereAsked) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request = token_request(false);
  request.mutable_tokenized()->add_input_ids(33);
  request.mutable_sampling_params()->set_prompt_logprobs(2);
  const auto reply = client.generate(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  ASSERT_EQ(reply.completes.size(), 1U);
  const auto& scored = reply.completes.front().input_logprobs();
  ASSERT_EQ(Ids(scored.token_ids().begin(), scored.token_ids().end()), (Ids{72, 105, 33}));
  ASSERT_EQ(scored.token_logprobs_size(), 3);
  EXPECT_FALSE(scored.token_logprobs(0).has_value());
  EXPECT_TRUE(scored.token_logprobs(1).has_value());
  ASSERT_EQ(scored.top_logprobs_size(), 3);
  EXPECT_EQ(scored.top_logprobs(2).values_size(), 2);
}

TEST(VllmEngine, UnsetNumbersAreDefaults) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  engine::GenerateRequest request;
  request.set_text("Hi");
  ASSERT_TRUE(client.generate(request).status.ok());
  const SamplingParams sampling = engine.submitted().front().sampling;
  EXPECT_EQ(sampling.temperature, 1.0F);
  EXPECT_EQ(sampling.top_p, 1.0F);
  EXPECT_EQ(sampling.repetition_penalty, 1.0F);
  EXPECT_EQ(sampling.num_logprobs, -1);
  const auto prompt = engine.submitted().front().prompt;
  EXPECT_EQ(sampling.max_tokens, 512 - static_cast<int32_t>(prompt.size()));
}

TEST(VllmEngine, RefusesByNameWhatItDoesNotTake) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  using Change = std::function<void(engine::GenerateRequest&, engine::SamplingParams&)>;

  struct Row {
    const char* param;
    Change change;
  };

  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Row> rows = {
      {"temperature", [](auto&, auto& s) { s.set_temperature(-1); }},
      {"temperature", [](auto&, auto& s) { s.set_temperature(kNan); }},
      {"top_p", [](auto&, auto& s) { s.set_top_p(1.5F); }},
      {"top_k", [](auto&, auto& s) { s.set_top_k(0xFFFFFFFFU); }},
      {"min_p", [](auto&, auto& s) { s.set_min_p(-0.5F); }},
      {"frequency_penalty", [](auto&, auto& s) { s.set_frequency_penalty(3); }},
      {"presence_penalty", [](auto&, auto& s) { s.set_presence_penalty(-3); }},
      {"repetition_penalty", [](auto&, auto& s) { s.set_repetition_penalty(-1); }},
      {"max_tokens", [](auto&, auto& s) { s.set_max_tokens(0); }},
      {"min_tokens", [](auto&, auto& s) { s.set_min_tokens(30); }},
      {"stop", [](auto&, auto& s) { s.add_stop(""); }},
      {"stop_token_ids", [](auto&, auto& s) { s.add_stop_token_ids(4000); }},
      {"n", [](auto&, auto& s) { s.set_n(1000); }},
      {"logprobs", [](auto&, auto& s) { s.set_logprobs(-1); }},
      {"prompt_logprobs", [](auto&, auto& s) { s.set_prompt_logprobs(1); }},
      {"logit_bias", [](auto&, auto& s) { (*s.mutable_logit_bias())[-1] = 1; }},
      {"logit_bias", [](auto&, auto& s) { (*s.mutable_logit_bias())[5] = kNan; }},
      {"truncate_prompt_tokens", [](auto&, auto& s) { s.set_truncate_prompt_tokens(0); }},
      {"prompt", [](auto& r, auto&) { r.mutable_tokenized()->clear_input_ids(); }},
      {"prompt", [](auto& r, auto&) { r.mutable_tokenized()->add_input_ids(4000); }},
      {"prompt", [](auto& r, auto&) { r.clear_input(); }},
      {"request_id", [](auto& r, auto&) { r.set_request_id(std::string(300, 'x')); }},
      {"mm_inputs", [](auto& r, auto&) { r.mutable_mm_inputs(); }},
      {"kv_transfer_params_json", [](auto& r, auto&) { r.set_kv_transfer_params_json("{"); }},
      {"kv_transfer_params",
       [](auto& r, auto&) { r.set_kv_transfer_params_json(R"({"do_remote_prefill":1})"); }},
      {"data_parallel_rank", [](auto& r, auto&) { r.set_data_parallel_rank(1); }},
      {"extra_mm_inputs", [](auto& r, auto&) { r.add_extra_mm_inputs(); }},
      {"media_refs", [](auto& r, auto&) { r.mutable_media_refs(); }},
  };
  for (const Row& row : rows) {
    engine::GenerateRequest request = token_request();
    row.change(request, *request.mutable_sampling_params());
    const auto reply = client.generate(request);
    EXPECT_EQ(reply.status.error_code(), StatusCode::INVALID_ARGUMENT) << row.param;
    EXPECT_EQ(reply.param, row.param) << reply.status.error_message();
  }
  EXPECT_TRUE(engine.submitted().empty());
}

TEST(VllmEngine, DescribesModelAndServer) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  {
    grpc::ClientContext context;
    engine::GetModelInfoResponse info;
    ASSERT_TRUE(client.vllm->GetModelInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.model_path(), "/models/fake.gguf");
    EXPECT_EQ(info.served_model_name(), "fake");
    EXPECT_EQ(info.max_context_length(), 512U);
    EXPECT_EQ(info.vocab_size(), uint32_t{ByteTokenizer::kVocabSize});
    EXPECT_TRUE(info.is_generation());
    ASSERT_EQ(info.eos_token_ids_size(), 1);
    EXPECT_EQ(info.eos_token_ids(0), ByteTokenizer::kTurnEnd);
  }
  {
    grpc::ClientContext context;
    engine::GetServerInfoResponse info;
    ASSERT_TRUE(client.vllm->GetServerInfo(&context, {}, &info).ok());
    EXPECT_EQ(info.server_type(), "vllm-grpc");
    EXPECT_FALSE(info.is_paused());
  }
  {
    grpc::ClientContext context;
    engine::GetLoadsResponse loads;
    EngineStats stats;
    stats.num_blocks_total = 8;
    stats.num_blocks_used = 2;
    stats.block_size = 16;
    stats.num_requests_waiting = 5;
    engine.set_stats(stats);
    ASSERT_TRUE(client.vllm->GetLoads(&context, {}, &loads).ok());
    ASSERT_EQ(loads.loads_size(), 1);
    EXPECT_EQ(loads.loads(0).token_usage(), 0.25);
    EXPECT_EQ(loads.loads(0).num_waiting_reqs(), 5);
    EXPECT_EQ(loads.loads(0).max_total_num_tokens(), 128);
  }
  {
    grpc::ClientContext context;
    engine::EmbedResponse embedding;
    EXPECT_EQ(client.vllm->Embed(&context, {}, &embedding).error_code(),
              StatusCode::INVALID_ARGUMENT);
  }
}

// A server of a model that makes vectors of 4 elements, of texts up to 8 tokens.
class VllmEmbed : public ::testing::Test {
 protected:
  explicit VllmEmbed(FakeEngine::Stepping stepping = FakeEngine::Stepping::kAutomatic)
      : engine_(stepping) {
    PoolingInfo& info = engine_.editable_model().pooling.emplace();
    info.width = 4;
    info.max_tokens = 8;
  }

  static engine::EmbedRequest request_of(const std::vector<uint32_t>& ids) {
    engine::EmbedRequest request;
    request.set_request_id("mine");
    request.mutable_tokenized()->mutable_input_ids()->Add(ids.begin(), ids.end());
    return request;
  }

  grpc::Status embed(GrpcClient& client,
                     const std::vector<uint32_t>& ids,
                     engine::EmbedResponse* response = nullptr,
                     int deadline_ms = 20000) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() +
                         std::chrono::milliseconds(deadline_ms));
    engine::EmbedResponse unused;
    const grpc::Status status = client.vllm->Embed(
        &context, request_of(ids), response == nullptr ? &unused : response);
    const auto param = context.GetServerTrailingMetadata().find("x-sluice-param");
    param_ = param == context.GetServerTrailingMetadata().end()
                 ? std::string()
                 : std::string(param->second.data(), param->second.size());
    return status;
  }

  FakeEngine engine_;
  std::string param_;
};

TEST_F(VllmEmbed, TheVectorOfTheIdsAsTheyAre) {
  RunningServer server(engine_, grpc_config());
  GrpcClient client(server->grpc_port());
  engine::EmbedResponse response;
  ASSERT_TRUE(embed(client, {5, 6, 7}, &response).ok());
  EXPECT_EQ(std::vector<float>(response.embedding().begin(), response.embedding().end()),
            (std::vector<float>{3, 5, 7, 0.5F}));
  EXPECT_EQ(response.prompt_tokens(), 3U);
  EXPECT_EQ(response.embedding_dim(), 4U);
  grpc::ClientContext context;
  engine::GetModelInfoResponse info;
  ASSERT_TRUE(client.vllm->GetModelInfo(&context, {}, &info).ok());
  EXPECT_FALSE(info.is_generation());
}

TEST_F(VllmEmbed, WhatIsWrongIsNamed) {
  RunningServer server(engine_, grpc_config());
  GrpcClient client(server->grpc_port());
  const std::vector<std::vector<uint32_t>> wrong = {
      {}, {1, 2, 3, 4, 5, 6, 7, 8, 9}, {1'000'000}};
  for (const std::vector<uint32_t>& ids : wrong) {
    EXPECT_EQ(embed(client, ids).error_code(), StatusCode::INVALID_ARGUMENT) << ids.size();
    EXPECT_EQ(param_, "tokenized.input_ids") << ids.size();
  }
  engine_.editable_model().pooling->is_classifier = true;
  EXPECT_EQ(embed(client, {1}).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(param_, "model");
}

TEST_F(VllmEmbed, AFullQueueAndAFailedTextAreTold) {
  RunningServer server(engine_, grpc_config());
  GrpcClient client(server->grpc_port());
  engine_.set_queue_limit(0);
  EXPECT_EQ(embed(client, {1}).error_code(), StatusCode::RESOURCE_EXHAUSTED);
  engine_.set_queue_limit(8);
  engine_.fail_at(0);
  EXPECT_EQ(embed(client, {1}).error_code(), StatusCode::INTERNAL);
}

class VllmEmbedByHand : public VllmEmbed {
 protected:
  VllmEmbedByHand() : VllmEmbed(FakeEngine::Stepping::kManual) {}
};

TEST_F(VllmEmbedByHand, ADeadlineThatPassesAbortsTheText) {
  RunningServer server(engine_, grpc_config());
  GrpcClient client(server->grpc_port());
  EXPECT_EQ(embed(client, {1}, nullptr, 300).error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(eventually([&] { return engine_.num_aborted() == 1; }));
  engine_.end_aborted();
}

}  // namespace
}  // namespace sluice
