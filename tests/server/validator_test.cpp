// SPDX-License-Identifier: Apache-2.0
// What requests become, and what they may leave out.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "server/http/api_errors.h"
#include "tests/server/validator_rig.h"

namespace sluice {
namespace {

TEST_F(Validator, TakesFromTheModelWhatARequestLeavesOut) {
  model_.sampling.temperature = 0.6F;
  model_.sampling.top_k = 20;
  model_.sampling.repetition_penalty = 1.1F;
  const auto silent = chat(R"("top_k":5)");
  ASSERT_TRUE(silent.has_value());
  const SamplingParams& sampling = silent->requests.front().sampling;
  EXPECT_EQ(sampling.temperature, 0.6F);
  EXPECT_EQ(sampling.top_k, 5);
  EXPECT_EQ(sampling.repetition_penalty, 1.1F);
  EXPECT_EQ(sampling.seed, 7U);
  const auto explicit_null = completion(R"("temperature":null,"top_k":0)");
  EXPECT_EQ(explicit_null->requests.front().sampling.temperature, 0.6F);
  EXPECT_EQ(explicit_null->requests.front().sampling.top_k, 0);
}

TEST_F(Validator, PredictionBecomesTokensOfEveryChoice) {
  const auto text = chat(R"("prediction":{"type":"content","content":"ab<|end|>"},"n":2)");
  ASSERT_TRUE(text.has_value()) << text.error().message;
  std::vector<TokenId> expected;
  tokenizer_.encode("ab<|end|>", SpecialText::kText, expected);
  ASSERT_EQ(text->requests.size(), 2U);
  for (const ValidRequest& request : text->requests) EXPECT_EQ(request.prediction, expected);
  EXPECT_TRUE(text->has_prediction);

  const auto parts =
      completion(R"("prediction":{"type":"content","content":[{"type":"text","text":"ab"},)"
                 R"({"type":"text","text":"<|end|>"}]})");
  ASSERT_TRUE(parts.has_value()) << parts.error().message;
  EXPECT_EQ(parts->requests.front().prediction, expected);

  const auto long_one =
      chat(R"("prediction":{"type":"content","content":")" + std::string(500, 'x') + "\"}");
  ASSERT_TRUE(long_one.has_value());
  EXPECT_EQ(long_one->requests.front().prediction.size(), 100U);  // of an answer at most

  const auto none = chat(R"("prediction":null)");
  ASSERT_TRUE(none.has_value());
  EXPECT_TRUE(none->requests.front().prediction.empty());
  EXPECT_FALSE(none->has_prediction);
}

TEST_F(Validator, SpeculationCanBeTurnedOffForARequest) {
  EXPECT_TRUE(chat(R"("top_k":5)")->requests.front().speculative);
  EXPECT_TRUE(chat(R"("speculative":true)")->requests.front().speculative);
  EXPECT_FALSE(chat(R"("speculative":false)")->requests.front().speculative);
}

TEST_F(Validator, ModelsMayBoundTheTokensOfEveryRequest) {
  model_.max_output_tokens = 12;
  const auto max_tokens = [](const Expected<GenerationRequest>& request) {
    return request->requests.front().sampling.max_tokens;
  };
  EXPECT_EQ(max_tokens(chat(R"("top_k":5)")), 12);
  EXPECT_EQ(max_tokens(chat(R"("max_tokens":20)")), 12);
  EXPECT_EQ(max_tokens(chat(R"("max_tokens":3)")), 3);
  EXPECT_EQ(max_tokens(completion(R"("top_k":5)")), 12);
}

TEST_F(Validator, StreamOptionsThatAskForNothingNeedNoStream) {
  for (const char* options : {"{}",
                              R"({"include_usage":false})",
                              R"({"include_usage":null,"include_obfuscation":false})"}) {
    const auto request = chat(std::string(R"("stream_options":)") + options);
    ASSERT_TRUE(request.has_value()) << options << request.error().message;
    EXPECT_FALSE(request->include_usage);
  }
  const auto asked = chat(R"("stream_options":{"include_usage":true})");
  ASSERT_FALSE(asked.has_value());
  EXPECT_EQ(asked.error().param, "stream_options");
}

TEST_F(Validator, TakesNeutralValuesAndParametersWithoutEffect) {
  const std::string neutral =
      R"("presence_penalty":0,"frequency_penalty":0.0,"repetition_penalty":1,"n":1,"logit_bias":{},
         "response_format":{"type":"text"},"user":"u","metadata":{"a":"b"},"store":true,
         "service_tier":"auto","seed":null,"stop":null,"structured_outputs":{"json":null,
         "json_object":false},"best_of":1,
         "echo":false,"ec_transfer_params":null,"temperature":null,"max_tokens":null,
         "use_beam_search":false,"length_penalty":0.5,"guided_json":null,
         "guided_regex":false,"regex":"","grammar":"","json_schema":null,"logits_processors":[],
         "guided_decoding_backend":"xgrammar","guided_whitespace_pattern":" ?",
         "return_tokens_as_token_ids":true,"prompt_logprobs":false,"kv_transfer_params":{"do_remote_prefill":false,"remote_host":null},
         "no_stop_trim":false,"separate_reasoning":true,"stream_reasoning":null,
         "return_hidden_states":false,"bootstrap_room":null,"bootstrap_port":8998,
         "logprob_token_ids":[],"vllm_xargs":{},"spaces_between_special_tokens":false)";
  EXPECT_TRUE(chat(neutral).has_value());
  EXPECT_TRUE(completion(neutral).has_value());
  EXPECT_TRUE(chat(R"("web_search_options":null)").has_value());
  EXPECT_TRUE(completion(R"("prompt_embeds":[])").has_value());
  const auto asked = chat(
      R"("tools":[],"tool_choice":"auto","functions":[],"function_call":"none","audio":false,
         "include_reasoning":true,"chat_template":null)");
  EXPECT_TRUE(asked.has_value()) << asked.error().message;
  EXPECT_TRUE(chat(R"("include_reasoning":false)").has_value());  // there is none to be had
}

TEST_F(Validator, ConstraintsBecomeTheGrammarOfEveryChoice) {
  const auto grammar_of = [&](const std::string& fields) {
    const auto request = chat(fields);
    EXPECT_TRUE(request.has_value()) << request.error().message;
    const bool is_bound = request && request->requests.back().grammar != nullptr;
    return is_bound ? *request->requests.back().grammar : GrammarSpec();
  };
  EXPECT_FALSE(grammar_of(R"("response_format":{"type":"text"})").is_set());
  GrammarSpec spec = grammar_of(R"("n":2,"response_format":{"type":"json_schema",
      "json_schema":{"name":"a","schema":{"type":"null"}}})");
  EXPECT_EQ(spec.kind, GrammarKind::kJsonSchema);
  EXPECT_EQ(spec.text, R"({"type":"null"})");
  EXPECT_EQ(spec.param, "response_format");
  EXPECT_TRUE(spec.is_best_effort);
  spec =
      grammar_of(R"("response_format":{"type":"json_schema","json_schema":{"name":"a","strict":true,
      "schema":{}}})");
  EXPECT_FALSE(spec.is_best_effort);
  EXPECT_EQ(grammar_of(R"("response_format":{"type":"json_object"})").kind,
            GrammarKind::kAnyObject);
  // A schema that is empty, or has nothing but false and null, is a constraint all the same.
  EXPECT_EQ(grammar_of(R"("structured_outputs":{"json":{"additionalProperties":false}})").kind,
            GrammarKind::kJsonSchema);
  spec = grammar_of(R"("structured_outputs":{"json":"{\"type\":\"null\"}",
      "disable_any_whitespace":true})");
  EXPECT_EQ(spec.text, R"({"type":"null"})");
  EXPECT_FALSE(spec.allows_whitespace);
  EXPECT_EQ(grammar_of(R"("structured_outputs":{"regex":"a+"})").kind, GrammarKind::kRegex);
  // A schema may be false; then no value is valid.
  EXPECT_EQ(grammar_of(R"("structured_outputs":{"json":false,"json_object":false})").text, "false");
  EXPECT_EQ(grammar_of(R"("structured_outputs":{"choice":["a\"\n","b"]})").text,
            R"(root ::= "a\"\u000a" | "b")");
  EXPECT_EQ(grammar_of(R"("structured_outputs":{"grammar":"root ::= \"a\""})").kind,
            GrammarKind::kEbnf);
  EXPECT_EQ(grammar_of(R"("structured_outputs":{"grammar":"start: \"a\""})").kind,
            GrammarKind::kLark);
}

// A body of a megabyte with a thousand prompts would take a gigabyte if each had the text.
TEST_F(Validator, RequestsOfOneBodyShareTheirGrammar) {
  const auto request =
      validate(R"({"prompt":["a","b","c"],"n":2,"structured_outputs":{"choice":["a","b"]}})",
               Endpoint::kCompletion);
  ASSERT_TRUE(request.has_value()) << request.error().message;
  ASSERT_EQ(request->requests.size(), 6U);
  ASSERT_NE(request->requests.front().grammar, nullptr);
  for (const ValidRequest& part : request->requests) {
    EXPECT_EQ(part.grammar, request->requests.front().grammar);
  }
}

TEST_F(Validator, FalseAsksForNoLogprobs) {
  const auto completed = completion(R"("logprobs":false)");
  ASSERT_TRUE(completed.has_value()) << completed.error().message;
  EXPECT_FALSE(completed->wants_logprobs);
  const auto chatted = chat(R"("logprobs":true,"top_logprobs":false,"prompt_logprobs":false)");
  ASSERT_TRUE(chatted.has_value()) << chatted.error().message;
  EXPECT_EQ(chatted->requests.front().sampling.num_logprobs, 0);
  EXPECT_EQ(chatted->num_prompt_logprobs, -1);
  EXPECT_EQ(completion(R"("logprobs":true)").error().param, "logprobs");
  EXPECT_EQ(chat(R"("logprobs":true,"top_logprobs":true)").error().param, "top_logprobs");
}

TEST_F(Validator, TokensAreNamedByTheirTextAlone) {
  constexpr const char* kParam = "return_tokens_as_token_ids";
  EXPECT_TRUE(chat(R"("return_tokens_as_token_ids":true,"logprobs":false)").has_value());
  EXPECT_TRUE(completion(R"("return_tokens_as_token_ids":false,"logprobs":1)").has_value());
  EXPECT_EQ(chat(R"("return_tokens_as_token_ids":true,"logprobs":true)").error().param, kParam);
  EXPECT_EQ(completion(R"("return_tokens_as_token_ids":true,"logprobs":0)").error().param, kParam);
}

TEST_F(Validator, LeavesOutAndNamesWhatItDoesNotKnow) {
  ignored_ = IgnoredArguments(UnknownArguments::kIgnore);
  const auto request = completion(
      R"("log_metrics":false,"temperature":0.5,"no_logs":true,"max_output_tokens":3,
         "documents":7,"stream":true,"stream_options":{"include_usage":true,"more":1},
         "response_format":{"type":"text","strict":true})");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  EXPECT_EQ(request->requests[0].sampling.temperature, 0.5F);
  EXPECT_EQ(request->requests[0].sampling.max_tokens, 16);  // that of completions has another name
  EXPECT_TRUE(request->include_usage);
  EXPECT_EQ(ignored_.header_value(),
            "log_metrics, no_logs, max_output_tokens, documents, "
            "stream_options.more, response_format.strict");
}

TEST_F(Validator, TheNewerNameOfTheLimitCountsInBothApis) {
  for (const auto& request : {chat(R"("max_tokens":3,"max_completion_tokens":2)"),
                              completion(R"("max_tokens":3,"max_completion_tokens":2)"),
                              completion(R"("max_completion_tokens":2)")}) {
    ASSERT_TRUE(request.has_value()) << request.error().message;
    EXPECT_EQ(request->requests[0].sampling.max_tokens, 2);
  }
}

TEST(IgnoredArguments, NamesAreBoundedAndHoldNothingButTokens) {
  IgnoredArguments ignored(UnknownArguments::kIgnore);
  EXPECT_EQ(ignored.header_value(), "");
  for (const std::string& name : {std::string("a\r\nX-Evil: 1"),
                                  std::string("\0", 1),
                                  std::string("50%, \"x\""),
                                  std::string("h\xc3\xa9"),
                                  std::string(),
                                  std::string(200, 'x'),
                                  std::string("\x7f")}) {
    ASSERT_TRUE(ignored.add(name).has_value());
    ASSERT_TRUE(ignored.add(name).has_value());
  }
  EXPECT_EQ(ignored.header_value(),
            "a%0D%0AX-Evil%3A%201, %00, 50%25%2C%20%22x%22, h%C3%A9, %22%22, " +
                std::string(64, 'x') + "..., %7F");
  EXPECT_EQ(ignored.size(), 14U);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(ignored.add("n" + std::to_string(i)).has_value());
  EXPECT_EQ(ignored.names().size(), 16U);
  EXPECT_TRUE(ignored.header_value().ends_with(", n8, ..."));
  EXPECT_EQ(ignored.size(), 114U);
}

TEST(IgnoredArguments, AreRefusedByNameWhereThatIsTheRule) {
  Config config;
  EXPECT_EQ(unknown_arguments_rule(config), UnknownArguments::kIgnore);
  config.unknown_arguments = "refuse";
  IgnoredArguments ignored(unknown_arguments_rule(config));
  const auto added = ignored.add("a\nb");
  ASSERT_FALSE(added.has_value());
  EXPECT_EQ(added.error().message, "Unrecognized request argument: `a\\nb`.");
  EXPECT_EQ(ignored.size(), 0U);
}

TEST_F(Validator, EveryParameterOfTheTableIsTakenAsNull) {
  for (const Parameter& parameter : request_parameters()) {
    if (parameter.name == "messages" || parameter.name == "prompt") continue;
    const std::string members = "\"" + std::string(parameter.name) + "\":null";
    if (!is_offered(parameter, Endpoint::kBoth)) continue;
    const bool is_chat = is_offered(parameter, Endpoint::kChat);
    const auto result = is_chat ? chat(members) : completion(members);
    EXPECT_TRUE(result.has_value()) << members << ": " << result.error().message;
  }
}

TEST_F(Validator, RulesAboutTokensReachTheSampler) {
  const auto request = completion(
      R"("presence_penalty":-1,"frequency_penalty":0.5,"repetition_penalty":1.25,
         "logit_bias":{"7":-100,"65":2.5},"allowed_token_ids":[9,3,9],"bad_words":["ab"," c"])");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  const SamplingParams& sampling = request->requests.front().sampling;
  EXPECT_EQ(sampling.presence_penalty, -1.0F);
  EXPECT_EQ(sampling.frequency_penalty, 0.5F);
  EXPECT_EQ(sampling.repetition_penalty, 1.25F);
  ASSERT_EQ(sampling.logit_bias.size(), 2U);
  EXPECT_EQ(sampling.logit_bias[1].token, 65);
  EXPECT_EQ(sampling.logit_bias[1].bias, 2.5F);
  EXPECT_EQ(sampling.allowed_token_ids, (std::vector<TokenId>{3, 9}));
  // A tokenizer of bytes makes one more token of the space, so there is no second form.
  EXPECT_EQ(sampling.bad_words, (std::vector<std::vector<TokenId>>{{'a', 'b'}, {'c'}}));
}

TEST_F(Validator, PromptsAreCutOnTheSideAskedFor) {
  const auto prompt_of = [this](const std::string& members) {
    const auto request =
        validate(R"({"prompt":[1,2,3,4,5],)" + members + "}", Endpoint::kCompletion);
    EXPECT_TRUE(request.has_value()) << request.error().message;
    return request->requests.front().prompt;
  };
  EXPECT_EQ(prompt_of(R"("truncate_prompt_tokens":2)"), (std::vector<TokenId>{4, 5}));
  EXPECT_EQ(prompt_of(R"("truncate_prompt_tokens":2,"truncation_side":"right")"),
            (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(prompt_of(R"("truncate_prompt_tokens":-1,"max_tokens":97)"),
            (std::vector<TokenId>{3, 4, 5}));
  EXPECT_EQ(prompt_of(R"("truncate_prompt_tokens":50)").size(), 5U);
}

TEST_F(Validator, EchoRepeatsThePromptAsText) {
  const auto request = completion(R"("echo":true,"n":2)");
  ASSERT_TRUE(request.has_value()) << request.error().message;
  EXPECT_EQ(request->echoed, std::vector<std::string>{"x"});
  EXPECT_EQ(request->num_echoed_logprobs, -1);
  const auto scored = completion(R"("echo":true,"logprobs":1,"prompt_logprobs":3,"max_tokens":0)");
  ASSERT_TRUE(scored.has_value()) << scored.error().message;
  EXPECT_TRUE(scored->only_echo);
  EXPECT_EQ(scored->num_echoed_logprobs, 1);
  EXPECT_EQ(scored->num_prompt_logprobs, 3);
  EXPECT_EQ(scored->requests[0].sampling.num_prompt_logprobs, 3);
  EXPECT_EQ(scored->requests[0].sampling.max_tokens, 1);
  EXPECT_EQ(chat(R"("echo":true)").error().param, "echo");
}

TEST_F(Validator, UnknownModelIs404WithItsMachineCode) {
  const auto result = chat(R"("model":"x")");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(http_status(result.error().code), 404);
  EXPECT_EQ(result.error().machine_code, "model_not_found");
  EXPECT_EQ(chat(R"("model":"n")")->model, "n");
  EXPECT_EQ(chat(R"("model":null)")->model, "m");
}

TEST_F(Validator, SeedsKeepAll64Bits) {
  const std::vector<int64_t> seeds = {std::numeric_limits<int64_t>::min(),
                                      std::numeric_limits<int64_t>::max(),
                                      -2,
                                      0,
                                      9007199254740993};  // not a double
  for (const int64_t seed : seeds) {
    const auto request = completion("\"seed\":" + std::to_string(seed));
    ASSERT_TRUE(request.has_value()) << seed;
    EXPECT_EQ(request->requests[0].sampling.seed, static_cast<uint64_t>(seed));
  }
  EXPECT_EQ(completion(R"("seed":null)")->seed, 7U);
  EXPECT_EQ(completion(R"("seed":-1)")->seed, 7U) << "as vLLM and llama.cpp have it";
}

TEST_F(Validator, DefaultsAreTheModelsRoomForChatAndSixteenForCompletions) {
  EXPECT_EQ(chat(R"("n":1)")->requests[0].sampling.max_tokens, 100 - 7);
  EXPECT_EQ(completion(R"("n":1)")->requests[0].sampling.max_tokens, 16);
  const auto both = chat(R"("max_tokens":5,"max_completion_tokens":6)");
  EXPECT_EQ(both->requests[0].sampling.max_tokens, 6);
}

TEST(ApiErrors, EveryCodeHasItsStatusAndAllFourKeys) {
  EXPECT_EQ(http_status(ErrorCode::kInvalidArgument), 400);
  EXPECT_EQ(http_status(ErrorCode::kUnsupported), 400);
  EXPECT_EQ(http_status(ErrorCode::kUnauthenticated), 401);
  EXPECT_EQ(http_status(ErrorCode::kPermissionDenied), 403);
  EXPECT_EQ(http_status(ErrorCode::kNotFound), 404);
  EXPECT_EQ(http_status(ErrorCode::kResourceExhausted), 429);
  EXPECT_EQ(http_status(ErrorCode::kInternal), 500);
  EXPECT_EQ(http_status(ErrorCode::kDataLoss), 500);
  EXPECT_EQ(http_status(ErrorCode::kUnavailable), 503);
  EXPECT_EQ(http_status(ErrorCode::kDeadlineExceeded), 429);
  EXPECT_EQ(error_json(Error{ErrorCode::kInvalidArgument, "a\xff\"", "p", ""}),
            "{\"error\":{\"message\":\"a\xEF\xBF\xBD\\\"\",\"type\":\"invalid_request_error\","
            "\"param\":\"p\",\"code\":400}}");
  EXPECT_EQ(error_json(Error{ErrorCode::kNotFound, "m", "", "model_not_found"}),
            "{\"error\":{\"message\":\"m\",\"type\":\"not_found_error\",\"param\":null,"
            "\"code\":\"model_not_found\"}}");
}

}  // namespace
}  // namespace sluice
