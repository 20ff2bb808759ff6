// SPDX-License-Identifier: Apache-2.0
// The gRPC services as their clients see them: tokens, text, errors, keys.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <limits>
#include <list>
#include <nlohmann/json.hpp>
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
  engine::SamplingParams& params = *request.mutable_sampling_params();
  params.set_temperature(0.7F);
  params.set_top_p(0.9F);
  params.set_top_k(40);
  params.set_min_p(0.05F);
  params.set_frequency_penalty(0.1F);
  params.set_presence_penalty(-0.3F);
  params.set_repetition_penalty(1.1F);
  params.set_min_tokens(2);
  params.add_stop("x");
  params.add_stop_token_ids(7);
  params.set_n(2);
  params.set_seed(5);
  (*params.mutable_logit_bias())[65] = 1.5F;
  (*params.mutable_logit_bias())[66] = -3;
  params.set_logprobs(3);
  params.set_ignore_eos(true);
  ASSERT_TRUE(client.generate(request).status.ok());

  v1::CompletionRequest completion;
  v1::TokenIds& ids = *completion.add_prompts()->mutable_tokens();
  ids.add_ids(72);
  ids.add_ids(105);
  v1::Sampling& sampling = *completion.mutable_sampling();
  sampling.set_max_tokens(20);
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
    EXPECT_EQ(client.vllm->Embed(&context, {}, &embedding).error_code(), StatusCode::UNIMPLEMENTED);
  }
}

TEST(SluiceService, ChatsWholeAndStreamed) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::ChatRequest request = chat_request();
  request.mutable_sampling()->set_logprobs(2);
  request.mutable_sampling()->set_return_token_ids(true);
  const auto whole = client.chat(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.text(), "Hello");
  const auto& answer = whole.messages.front();
  EXPECT_EQ(answer.model(), "fake");
  EXPECT_EQ(answer.system_fingerprint(), "fp_fake");
  EXPECT_TRUE(answer.id().starts_with("chatcmpl-"));
  EXPECT_EQ(answer.usage().completion_tokens(), 6);
  EXPECT_EQ(answer.usage().cached_tokens(), 3);
  ASSERT_EQ(answer.choices_size(), 1);
  EXPECT_EQ(answer.choices(0).finish_reason(), "stop");
  EXPECT_EQ(answer.choices(0).token_ids_size(), 6);
  EXPECT_EQ(answer.choices(0).prompt_token_ids_size(), answer.usage().prompt_tokens());
  ASSERT_EQ(answer.choices(0).logprobs_size(), 6);
  EXPECT_EQ(answer.choices(0).logprobs(0).token().token(), "H");
  EXPECT_EQ(answer.choices(0).logprobs(0).token().logprob(), -0.5F);
  ASSERT_EQ(answer.choices(0).logprobs(0).top_size(), 2);
  EXPECT_EQ(answer.choices(0).logprobs(0).top(1).token(), "b");

  const auto streamed = client.stream_chat(request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_EQ(streamed.text(), "Hello");
  EXPECT_EQ(streamed.messages.back().usage().completion_tokens(), 6);
  int num_logprobs = 0;
  int num_prompt_ids = 0;
  for (const auto& message : streamed.messages) {
    EXPECT_EQ(message.id(), streamed.messages.front().id());
    for (const auto& choice : message.choices()) {
      num_logprobs += choice.logprobs_size();
      num_prompt_ids += choice.prompt_token_ids_size();
    }
  }
  EXPECT_EQ(num_logprobs, 6);
  EXPECT_EQ(num_prompt_ids, answer.usage().prompt_tokens());
}

TEST(SluiceService, CompletesSeveralPromptsAndChoices) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::CompletionRequest request;
  request.add_prompts()->set_text("a");
  request.add_prompts()->mutable_tokens()->add_ids(98);
  request.mutable_sampling()->set_n(2);
  request.set_echo(true);
  const auto whole = client.complete(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  ASSERT_EQ(whole.messages.front().choices_size(), 4);
  EXPECT_EQ(whole.messages.front().choices(0).text(), "aHello");
  EXPECT_EQ(whole.messages.front().choices(3).text(), "bHello");
  EXPECT_EQ(whole.messages.front().choices(3).index(), 3);
  const auto streamed = client.stream_complete(request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  std::vector<std::string> texts(4);
  for (const auto& message : streamed.messages) {
    for (const auto& choice : message.choices()) {
      texts[static_cast<size_t>(choice.index())] += choice.text();
    }
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"aHello", "aHello", "bHello", "bHello"}));
}

TEST(SluiceService, ScoresAnEchoedPrompt) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::CompletionRequest request;
  request.add_prompts()->set_text("abc");
  request.set_echo(true);
  request.mutable_sampling()->set_logprobs(1);
  for (const auto& reply : {client.complete(request), client.stream_complete(request)}) {
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    std::string scored;
    for (const auto& message : reply.messages) {
      for (const auto& choice : message.choices()) {
        for (const auto& item : choice.prompt_logprobs()) scored += item.token().token();
      }
    }
    EXPECT_EQ(scored, "abc");  // <s> comes before it
    EXPECT_EQ(reply.text(), "abcHello");
  }
}

TEST(SluiceService, TellsTemplatesOfToolCallsAndVariables) {
  FakeEngine engine;
  engine.editable_model().chat_template =
      "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.name }}{{ c.function.arguments.x }}{% endfor %}{% endfor %}{{ mood }}";
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::ChatRequest request = chat_request();
  v1::Message& message = *request.add_messages();
  message.set_role("assistant");
  v1::ToolCall& call = *message.add_tool_calls();
  call.set_id("1");
  call.set_name("f");
  call.set_arguments(R"({"x":7})");
  request.set_chat_template_kwargs(R"({"mood":"good"})");
  const auto reply = client.chat(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  const auto ids = engine.submitted().front().prompt;
  EXPECT_EQ(std::string(ids.begin(), ids.end()), "userassistantf7good");
}

TEST(SluiceService, BringsMessagesIntoTheSameFormAsHttp) {
  FakeEngine engine;
  engine.editable_model().chat_template =
      "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'ipython'] %}"
      "{{ raise_exception('who?') }}{% endif %}<{{ m.role }}>{% for p in m['content'] %}"
      "{{ p['text'] }}{% endfor %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}"
      "{% endfor %}{% endfor %}";
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::ChatRequest request;
  v1::Message& instruction = *request.add_messages();
  instruction.set_role("developer");
  instruction.set_content("Brief.");
  v1::Message& message = *request.add_messages();
  message.set_role("assistant");
  for (const char* arguments : {"", "{\"cut", "null"}) {
    v1::ToolCall& call = *message.add_tool_calls();
    call.set_name("f");
    call.set_arguments(arguments);
  }
  v1::Message& result = *request.add_messages();
  result.set_role("ipython");
  result.set_content("7");
  const auto reply = client.chat(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  const auto ids = engine.submitted().front().prompt;
  EXPECT_EQ(std::string(ids.begin(), ids.end()), "<system>Brief.<assistant>{}{\"cut{}<ipython>7");
}

TEST(SluiceService, RefusesByNameWhatItDoesNotTake) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::ChatRequest request = chat_request();
  request.set_model("other");
  EXPECT_EQ(client.chat(request).status.error_code(), StatusCode::NOT_FOUND);
  request = chat_request();
  request.set_chat_template_kwargs("[]");
  EXPECT_EQ(client.chat(request).param, "chat_template_kwargs");
  request = chat_request();
  request.mutable_messages(0)->set_role("");
  EXPECT_EQ(client.stream_chat(request).param, "messages");
  request = chat_request();
  request.mutable_sampling()->set_best_of(2);
  EXPECT_EQ(client.stream_chat(request).param, "best_of");
  EXPECT_EQ(client.chat({}).status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client.complete({}).param, "prompt");
}

TEST(SluiceService, ListsTheNamesThatTheModelIsServedUnder) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(client.sluice->ListModels(&context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 2);
  EXPECT_EQ(models.models(0).id(), "fake");
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
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(9)) << "not ended";
}

TEST(Grpc, CallsBeyondTheLimitAreRefused) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  Config config = grpc_config();
  config.max_connections = 1;
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
