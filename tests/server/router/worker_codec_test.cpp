// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/worker_codec.h"

#include <gtest/gtest.h>
#include <worker.pb.h>

#include <functional>
#include <limits>
#include <string>

#include "engine/core/config.h"
#include "server/grpc/worker_check.h"

namespace sluice {
namespace {

namespace wire = worker::v1;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Fields that have no value, by their full names: all of them are meant to have one.
void find_unset(const Message& message, std::string& unset) {
  const auto& reflection = *message.GetReflection();
  const auto& descriptor = *message.GetDescriptor();
  for (int i = 0; i < descriptor.field_count(); ++i) {
    const FieldDescriptor* const field = descriptor.field(i);
    if (field->is_repeated()) {
      const int size = reflection.FieldSize(message, field);
      if (size == 0) unset += field->full_name() + " ";
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
      for (int k = 0; k < size; ++k) {
        find_unset(reflection.GetRepeatedMessage(message, field, k), unset);
      }
    } else if (!reflection.HasField(message, field)) {
      unset += field->full_name() + " ";
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      find_unset(reflection.GetMessage(message, field), unset);
    }
  }
}

std::string unset_in(const Message& message) {
  std::string unset;
  find_unset(message, unset);
  return unset;
}

SamplingParams whole_sampling() {
  SamplingParams params;
  params.temperature = 0.7F;
  params.top_p = 0.9F;
  params.top_k = 40;
  params.min_p = 0.05F;
  params.seed = std::numeric_limits<uint64_t>::max() - 3;
  params.max_tokens = 300;
  params.min_tokens = 4;
  params.ignore_eos = true;
  params.presence_penalty = 0.25F;
  params.frequency_penalty = -0.5F;
  params.repetition_penalty = 1.25F;
  params.stop_token_ids = {7, 8};
  params.logit_bias = {{9, 1.5F}, {10, -2.5F}};
  params.allowed_token_ids = {11, 12, 13};
  params.bad_words = {{14, 15}, {16}};
  params.reasoning_limit = {.max_tokens = 20, .begin = {17}, .end = {18, 19}};
  params.num_logprobs = 5;
  params.num_prompt_logprobs = 3;
  return params;
}

HandoffResult whole_result() {
  HandoffResult result;
  result.key.fill(0xA5);
  result.num_prompt_tokens = 100;
  result.num_blocks = 6;
  result.seed = 77;
  result.first_token = 5;
  result.check = 0xFEDCBA9876543210;
  return result;
}

std::shared_ptr<const GrammarSpec> regex_after(std::vector<TokenId> begins_after,
                                                std::vector<TokenId> control_tokens) {
  return std::make_shared<const GrammarSpec>(
      GrammarSpec{.kind = GrammarKind::kRegex,
                  .text = "a",
                  .begins_after = std::move(begins_after),
                  .control_tokens = std::move(control_tokens),
                  .param = {}});
}

ValidRequest whole_request(WorkerClock::time_point now) {
  ValidRequest request;
  request.prompt = {1, 2, 3};
  request.generated = {4, 5};
  request.sampling = whole_sampling();
  request.grammar = std::make_shared<const GrammarSpec>(
      GrammarSpec{.kind = GrammarKind::kStructuralTag,
                  .text = std::string("\xFF\x00 no UTF-8", 10),
                  .allows_whitespace = true,
                  .is_best_effort = true,
                  .begins_after = {20, 21},
                  .control_tokens = {22},
                  .param = "response_format"});
  request.adapter_id = 2;
  request.tenant_salt = 0x8000000000000001;
  request.tenant = TenantId(12);
  request.priority = -3;
  request.max_queue_wait_ms = 1500;
  request.keeps_prompt = true;
  request.speculative = true;
  request.prediction = {30, 31};
  request.pooling = PoolingParams{
      .every_token = true, .activates = true, .forces_scale = true, .dimensions = 7};
  HandoffSpec& handoff = request.handoff.emplace();
  handoff.kind = HandoffKind::kFetch;
  handoff.mode = HandoffMode::kConcurrent;
  handoff.transfer.fill(0x5A);
  handoff.peer = "10.0.0.1:7000";
  handoff.peer_epoch = 5;
  handoff.peer_fingerprint = "fp_1";
  handoff.result = whole_result();
  handoff.adopts_seed = true;
  request.arrival = now - std::chrono::nanoseconds(123'456'789);
  request.trace =
      parse_trace_context("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "vendor=1");
  return request;
}

TokenOutput whole_output() {
  TokenOutput output;
  output.token = 17;
  output.logprob = -0.125F;
  output.top_logprobs = {{17, -0.125F}, {18, -2.0F}};
  output.finish_reason = FinishReason::kError;
  output.stop_token = 19;
  output.num_cached_tokens = 32;
  output.num_accepted_predictions = 2;
  output.num_rejected_predictions = 1;
  output.timings = {.queued_ms = 1.5, .prefill_ms = 2.5, .decode_ms = 3.5, .num_preemptions = 4};
  output.error = "a reason";
  output.error_code = ErrorCode::kResourceExhausted;
  output.retry_after_s = 6;
  output.error_param = "prompt";
  output.prompt_logprobs = {
      {.token = 2, .logprob = -1.0F, .rank = 3, .top_logprobs = {{2, -1.0F}}}};
  HandoffOffer offer;
  offer.transfer.fill(0x3C);
  offer.epoch = 8;
  offer.num_groups = 2;
  offer.result = whole_result();
  output.offer = std::make_shared<const HandoffOffer>(offer);
  output.pooled = {0.5F, -2};
  return output;
}

TEST(WorkerCodec, ARequestComesBackWhole) {
  const auto now = WorkerClock::now();
  wire::Request message;
  encode(whole_request(now), now, message);
  EXPECT_EQ(unset_in(message), "");
  wire::Request received;
  ASSERT_TRUE(received.ParseFromString(message.SerializeAsString()));
  const auto later = now + std::chrono::hours(1);  // another machine's clock
  const auto decoded = decode(received, later);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(later - decoded->arrival, std::chrono::nanoseconds(123'456'789));
  EXPECT_EQ(decoded->sampling.seed, std::numeric_limits<uint64_t>::max() - 3);
  EXPECT_EQ(decoded->sampling.bad_words, whole_sampling().bad_words);
  EXPECT_EQ(decoded->sampling.reasoning_limit.max_tokens, 20);
  EXPECT_EQ(decoded->sampling.reasoning_limit.begin, std::vector<TokenId>({17}));
  EXPECT_EQ(decoded->sampling.reasoning_limit.end, std::vector<TokenId>({18, 19}));
  ASSERT_NE(decoded->grammar, nullptr);
  EXPECT_EQ(*decoded->grammar, *whole_request(now).grammar);
  EXPECT_EQ(decoded->generated, (std::vector<TokenId>{4, 5}));
  wire::Request again;
  encode(*decoded, later, again);
  EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());
}

TEST(WorkerCodec, WhatIsOffStaysOff) {
  const auto now = WorkerClock::now();
  ValidRequest request;
  request.prompt = {1};
  request.speculative = false;
  request.arrival = now;
  wire::Request message;
  encode(request, now, message);
  const auto decoded = decode(message, now);
  ASSERT_TRUE(decoded);
  EXPECT_FALSE(decoded->speculative);
  EXPECT_EQ(decoded->grammar, nullptr);
  EXPECT_FALSE(decoded->handoff);
  EXPECT_EQ(decoded->sampling.num_logprobs, -1);
  EXPECT_EQ(decoded->sampling.temperature, 1.0F);
}

TEST(WorkerCodec, AnOutputComesBackWhole) {
  wire::TokenOutput message;
  encode(whole_output(), message);
  EXPECT_EQ(unset_in(message), "");
  const auto decoded = decode(message);
  ASSERT_TRUE(decoded) << decoded.error().message;
  EXPECT_EQ(decoded->error_code, ErrorCode::kResourceExhausted);
  EXPECT_EQ(decoded->timings.decode_ms, 3.5);
  wire::TokenOutput again;
  encode(*decoded, again);
  EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());
  wire::TokenOutput empty;
  encode(TokenOutput{}, empty);
  const auto nothing = decode(empty);
  ASSERT_TRUE(nothing);
  EXPECT_EQ(nothing->token, kInvalidToken);
  EXPECT_EQ(nothing->offer, nullptr);
}

TEST(WorkerCodec, AnErrorComesBackWhole) {
  const Error error{ErrorCode::kUnavailable, "why", "prompt", "machine_code", 9};
  wire::Refusal message;
  encode(error, message);
  EXPECT_EQ(unset_in(message), "");
  const Error decoded = decode(message);
  EXPECT_EQ(decoded.code, ErrorCode::kUnavailable);
  EXPECT_EQ(decoded.message + decoded.param + decoded.machine_code, "whypromptmachine_code");
  EXPECT_EQ(decoded.retry_after_s, 9);
}

TEST(WorkerCodec, AModelComesBackWhole) {
  ModelInfo model;
  model.architecture = "llama";
  model.path = "/m";
  model.chat_template = "{{ x }}";
  model.vocab_size = 100;
  model.max_model_len = 200;
  model.num_parameters = 300;
  model.system_fingerprint = "fp_2";
  model.backend = "cpu:avx2";
  model.memory_plan = "lines";
  model.sampling = whole_sampling();
  model.max_output_tokens = 50;
  model.handoff = HandoffInfo{.epoch = 4, .host = "h", .port = 5, .offers = true, .fetches = true};
  model.pooling = PoolingInfo{.is_classifier = true,
                              .type = PoolingType::kLast,
                              .normalizes = true,
                              .width = 3,
                              .max_tokens = 64,
                              .has_segments = true,
                              .is_matryoshka = true,
                              .matryoshka_dimensions = {1, 2},
                              .function = ScoreFunction::kSoftmax,
                              .labels = {"a", "b"},
                              .label_tokens = {4, 5},
                              .is_qwen3_reranker = true,
                              .begins_answer = true,
                              .prompts = {{.name = "query", .text = "q: "}},
                              .default_prompt = "p: ",
                              .comparison = {.query = {"a", 1, 2, {3}},
                                             .document = {"b", 4, 5, {6}},
                                             .expansion = 7,
                                             .expanded_tokens = 8}};
  wire::Description message;
  encode(model, message);
  // The rest is the service's.
  EXPECT_EQ(
      unset_in(message),
      "sluice.worker.v1.Description.epoch sluice.worker.v1.Description.end_tokens "
      "sluice.worker.v1.Description.block_size sluice.worker.v1.Description.max_logprobs "
      "sluice.worker.v1.Description.kv_events_endpoint sluice.worker.v1.Description.created ");
  const auto decoded = decode(message);
  ASSERT_TRUE(decoded);
  wire::Description again;
  encode(*decoded, again);
  EXPECT_EQ(again.SerializeAsString(), message.SerializeAsString());
}

TEST(WorkerCodec, ValuesThatNoStructureHasAreRefused) {
  const auto now = WorkerClock::now();
  const std::function<void(wire::Request&)> breaks[] = {
      [](wire::Request& r) { r.mutable_grammar()->set_kind(7); },
      [](wire::Request& r) { r.mutable_handoff()->set_kind(2); },
      [](wire::Request& r) { r.mutable_handoff()->set_mode(2); },
      [](wire::Request& r) { r.mutable_handoff()->set_transfer("short"); },
      [](wire::Request& r) { r.mutable_handoff()->mutable_result()->set_key(""); },
      [](wire::Request& r) { r.set_age_ns(-1); },
      [](wire::Request& r) { r.set_age_ns(std::numeric_limits<int64_t>::max()); },
  };
  for (const auto& apply : breaks) {
    wire::Request message;
    encode(whole_request(now), now, message);
    apply(message);
    EXPECT_FALSE(decode(message, now)) << message.ShortDebugString();
  }
  wire::TokenOutput output;
  output.set_finish_reason(5);
  EXPECT_FALSE(decode(output));
  output.set_finish_reason(0);
  output.set_error_code(10);
  EXPECT_FALSE(decode(output));
  EXPECT_FALSE(decode(wire::Description()));
}

ValidRequest fitting_request() {
  ValidRequest request = whole_request(WorkerClock::now());
  request.adapter_id = 0;
  return request;
}

TEST(WorkerCheck, WhatIsOutOfRangeForTheModelIsRefusedByName) {
  ModelInfo model;
  model.vocab_size = 100;
  model.max_model_len = 400;
  const Config config;
  const auto valid = check_request(fitting_request(), model, config);
  ASSERT_TRUE(valid) << valid.error().message;

  struct Case {
    const char* param;
    std::function<void(ValidRequest&)> apply;
  };

  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Case cases[] = {
      {"prompt", [](ValidRequest& r) { r.prompt.clear(); }},
      {"prompt", [](ValidRequest& r) { r.prompt = {100}; }},
      {"prompt", [](ValidRequest& r) { r.prompt = {-1}; }},
      {"generated", [](ValidRequest& r) { r.generated = {100}; }},
      {"generated", [](ValidRequest& r) { r.generated.assign(300, 1); }},
      {"prediction", [](ValidRequest& r) { r.prediction = {100}; }},
      {"prediction", [](ValidRequest& r) { r.prediction.assign(500, 1); }},
      {"max_tokens", [](ValidRequest& r) { r.sampling.max_tokens = 398; }},
      {"max_tokens", [](ValidRequest& r) { r.sampling.max_tokens = 0; }},
      {"min_tokens", [](ValidRequest& r) { r.sampling.min_tokens = 301; }},
      {"temperature", [=](ValidRequest& r) { r.sampling.temperature = nan; }},
      {"temperature", [](ValidRequest& r) { r.sampling.temperature = 2.5F; }},
      {"repetition_penalty", [](ValidRequest& r) { r.sampling.repetition_penalty = 0; }},
      {"stop_token_ids", [](ValidRequest& r) { r.sampling.stop_token_ids = {-1}; }},
      {"stop_token_ids", [](ValidRequest& r) { r.sampling.stop_token_ids.assign(2000, 1); }},
      {"logit_bias",
       [](ValidRequest& r) {
         r.sampling.logit_bias = {{100, 1}};
       }},
      {"logit_bias",
       [](ValidRequest& r) {
         r.sampling.logit_bias = {{1, 1}, {1, 2}};
       }},
      {"logit_bias",
       [=](ValidRequest& r) {
         r.sampling.logit_bias = {{1, nan}};
       }},
      {"allowed_token_ids",
       [](ValidRequest& r) {
         r.sampling.allowed_token_ids = {3, 3};
       }},
      {"allowed_token_ids", [](ValidRequest& r) { r.sampling.allowed_token_ids = {100}; }},
      {"bad_words", [](ValidRequest& r) { r.sampling.bad_words = {{}}; }},
      {"bad_words", [](ValidRequest& r) { r.sampling.bad_words = {{100}}; }},
      {"reasoning_limit", [](ValidRequest& r) { r.sampling.reasoning_limit.max_tokens = -1; }},
      {"reasoning_limit", [](ValidRequest& r) { r.sampling.reasoning_limit.begin = {100}; }},
      {"reasoning_limit", [](ValidRequest& r) { r.sampling.reasoning_limit.end = {100}; }},
      {"reasoning_limit", [](ValidRequest& r) { r.sampling.reasoning_limit.end.assign(65, 1); }},
      {"logprobs", [](ValidRequest& r) { r.sampling.num_logprobs = 21; }},
      {"logprobs", [](ValidRequest& r) { r.sampling.num_logprobs = -2; }},
      {"prompt_logprobs", [](ValidRequest& r) { r.sampling.num_prompt_logprobs = 21; }},
      {"adapter_id", [](ValidRequest& r) { r.adapter_id = 1; }},
      {"max_queue_wait_ms", [](ValidRequest& r) { r.max_queue_wait_ms = -1; }},
      {"grammar", [](ValidRequest& r) { r.grammar = regex_after({100}, {}); }},
      {"grammar", [](ValidRequest& r) { r.grammar = regex_after({}, {100}); }},
  };
  for (const Case& each : cases) {
    ValidRequest request = fitting_request();
    each.apply(request);
    const auto checked = check_request(request, model, config);
    ASSERT_FALSE(checked) << each.param;
    EXPECT_EQ(checked.error().param, each.param) << checked.error().message;
  }
}

TEST(WorkerCheck, TheEndsOfRangesAreIn) {
  ModelInfo model;
  model.vocab_size = 100;
  model.max_model_len = 400;
  for (const SamplingField& field : sampling_fields()) {
    if (field.kind != ParamKind::kNumber) continue;
    for (const double end : {field.min, field.max}) {
      ValidRequest request = fitting_request();
      field.set(request.sampling, end);
      const auto checked = check_request(request, model, Config{});
      EXPECT_TRUE(checked) << field.name << " " << end << ": " << checked.error().message;
    }
  }
}

}  // namespace
}  // namespace sluice
