// SPDX-License-Identifier: Apache-2.0
// The table of what is refused and what is not: every row is a body, its status and the parameter
// at fault.
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "server/api/api_errors.h"
#include "server/api/parameters.h"
#include "server/api/request_validator.h"
#include "server/json/json_writer.h"
#include "tests/support/byte_tokenizer.h"

namespace sluice {
namespace {

class Validator : public ::testing::Test {
 protected:
  Validator() {
    model_.vocab_size = ByteTokenizer::kVocabSize;
    model_.max_model_len = 100;
  }

  Expected<GenerationRequest> validate(const std::string& body, Endpoint endpoint) {
    const ValidationContext context{
        config_, model_, tokenizer_, template_, names_, 7, 0, std::chrono::steady_clock::now()};
    return validate_generation(context, body, endpoint, ignored_);
  }

  // Members beside a valid prompt.
  Expected<GenerationRequest> completion(const std::string& members) {
    return validate(R"({"prompt":"x",)" + members + "}", Endpoint::kCompletion);
  }

  Expected<GenerationRequest> chat(const std::string& members) {
    return validate(R"({"messages":[{"role":"user","content":"x"}],)" + members + "}",
                    Endpoint::kChat);
  }

  Config config_;
  IgnoredArguments ignored_{UnknownArguments::kRefuse};
  ModelInfo model_;
  ByteTokenizer tokenizer_;
  std::vector<std::string> names_ = {"m", "n"};
  Expected<ChatTemplate> template_ = ChatTemplate::compile(
      "{% for m in messages %}{{ m.role }}:{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}>{% endif %}");
};

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

TEST_F(Validator, RefusesWhatBreaksARuleAndNamesTheParameter) {
  struct Row {
    const char* members;
    const char* param;
  };

  const std::vector<Row> rows = {
      {R"("temperature":-0.1)", "temperature"},
      {R"("speculative":1)", "speculative"},
      {R"("prediction":"x")", "prediction"},
      {R"("prediction":{})", "prediction"},
      {R"("prediction":{"type":"tokens","content":"x"})", "prediction"},
      {R"("prediction":{"type":"content"})", "prediction"},
      {R"("prediction":{"type":"content","content":3})", "prediction"},
      {R"("prediction":{"type":"content","content":["x"]})", "prediction"},
      {R"("prediction":{"type":"content","content":[{"type":"image_url","text":"x"}]})",
       "prediction"},
      {R"("prediction":{"type":"content","content":[{"type":"text"}]})", "prediction"},
      {R"("temperature":2.5)", "temperature"},
      {R"("temperature":"1")", "temperature"},
      {R"("top_p":-0.01)", "top_p"},
      {R"("top_p":1.01)", "top_p"},
      {R"("min_p":-1)", "min_p"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":1.5)", "top_k"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":99999999999)", "max_tokens"},
      {R"("min_tokens":-1)", "min_tokens"},
      {R"("min_tokens":5,"max_tokens":4)", "min_tokens"},
      {R"("n":0)", "n"},
      {R"("n":17)", "n"},
      {R"("seed":9223372036854775808)", "seed"},
      {R"("seed":1e300)", "seed"},
      {R"("stop":"")", "stop"},
      {R"("stop":[1])", "stop"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","a","b","c","d","e","f","g","h"])", "stop"},
      {R"("stop_token_ids":[259])", "stop_token_ids"},
      {R"("stop_token_ids":[-1])", "stop_token_ids"},
      {R"("stop_token_ids":7)", "stop_token_ids"},
      {R"("stream":1)", "stream"},
      {R"("stream":true,"stream_options":{"more":true})", "stream_options.more"},
      {R"("stream":true,"stream_options":{"include_obfuscation":true})", "stream_options"},
      {R"("ignore_eos":"yes")", "ignore_eos"},
      {R"("presence_penalty":2.5)", "presence_penalty"},
      {R"("frequency_penalty":-2.5)", "frequency_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("logit_bias":{"259":1})", "logit_bias"},
      {R"("logit_bias":{"-1":1})", "logit_bias"},
      {R"("logit_bias":{"05":1})", "logit_bias"},
      {R"("logit_bias":{"a":1})", "logit_bias"},
      {R"("logit_bias":{"5":101})", "logit_bias"},
      {R"("logit_bias":{"5":"1"})", "logit_bias"},
      {R"("logit_bias":[5])", "logit_bias"},
      {R"("bad_words":"a")", "bad_words"},
      {R"("bad_words":[" "])", "bad_words"},
      {R"("bad_words":[7])", "bad_words"},
      {R"("allowed_token_ids":[])", "allowed_token_ids"},
      {R"("allowed_token_ids":[259])", "allowed_token_ids"},
      {R"("truncate_prompt_tokens":0)", "truncate_prompt_tokens"},
      {R"("truncate_prompt_tokens":101)", "truncate_prompt_tokens"},
      {R"("truncation_side":"up")", "truncation_side"},
      {R"("response_format":{"type":"xml"})", "response_format"},
      {R"("response_format":"text")", "response_format"},
      {R"("response_format":{"type":"json_schema"})", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"schema":{}}})",
       "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a"}})", "response_format"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":7}})",
       "response_format"},
      {R"("response_format":{"type":"json_object"},"structured_outputs":{"regex":"a"})",
       "structured_outputs"},
      {R"("echo":1)", "echo"},
      {R"("best_of":17)", "best_of"},
      {R"("best_of":1,"n":2)", "best_of"},
      {R"("best_of":2,"stream":true)", "best_of"},
      {R"("kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":true})",
       "kv_transfer_params"},
      {R"("kv_transfer_params":{"do_remote_decode":1})", "kv_transfer_params"},
      {R"("kv_transfer_params":"nixl")", "kv_transfer_params"},
      {R"("kv_transfer_params":{"do_remote_decode":true},"bootstrap_room":1)",
       "kv_transfer_params"},
      {R"("bootstrap_room":"1")", "bootstrap_room"},
      {R"("bootstrap_room":-1)", "bootstrap_room"},
      {R"("bootstrap_room":1,"bootstrap_port":70000)", "bootstrap_port"},
      {R"("bootstrap_room":1,"bootstrap_host":7)", "bootstrap_host"},
      {R"("bootstrap_room":[1,2],"bootstrap_host":["a"])", "bootstrap_host"},
      {R"("bootstrap_room":[1,2])", "bootstrap_room"},
      {R"("no_stop_trim":true)", "no_stop_trim"},
      {R"("separate_reasoning":false)", "separate_reasoning"},
      {R"("stream_reasoning":false)", "stream_reasoning"},
      {R"("return_hidden_states":true)", "return_hidden_states"},
      {R"("structured_outputs":{"json":{},"regex":"a"})", "structured_outputs"},
      {R"("structured_outputs":{"disable_any_whitespace":true})", "structured_outputs"},
      {R"("structured_outputs":{"choice":[1]})", "structured_outputs"},
      {R"("structured_outputs":{"choice":[""]})", "structured_outputs"},
      {R"("structured_outputs":{"regex":"a\u0000"})", "structured_outputs"},
      {R"("structured_outputs":{"regex":"a","whitespace_pattern":" "})", "structured_outputs"},
      {R"("structured_outputs":{"json":"{"})", "structured_outputs"},
      {R"("structured_outputs":{"choice":false})", "structured_outputs"},
      {R"("structured_outputs":{"json_object":1})", "structured_outputs"},
      // A schema that is empty, or has nothing but false and null, is a constraint all the same.
      {R"("guided_json":{})", "guided_json"},
      {R"("guided_json":{"additionalProperties":false})", "guided_json"},
      {R"("guided_choice":[])", "guided_choice"},
      {R"("response_format":{"json_schema":{}})", "response_format"},
      {R"("json_schema":{})", "json_schema"},
      {R"("json_schema":"{}")", "json_schema"},
      {R"("regex":"a+")", "regex"},
      {R"("ebnf":"root ::= 'a'")", "ebnf"},
      {R"("grammar":"root ::= 'a'")", "grammar"},
      {R"("logits_processors":["a.b"])", "logits_processors"},
      {R"("prompt_logprobs":true)", "prompt_logprobs"},
      {R"("use_beam_search":true)", "use_beam_search"},
      {R"("length_penalty":"1")", "length_penalty"},
      {R"("temprature":1)", "temprature"},
      {R"("model":7)", "model"},
      {R"("priority":3000000000)", "priority"},
  };
  for (const Row& row : rows) {
    for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
      const auto result = endpoint == Endpoint::kChat ? chat(row.members) : completion(row.members);
      ASSERT_FALSE(result.has_value()) << row.members;
      EXPECT_EQ(http_status(result.error().code), 400) << row.members;
      EXPECT_EQ(result.error().param, row.param) << row.members;
      EXPECT_NE(result.error().message.find(row.param), std::string::npos)
          << result.error().message;
    }
  }
}

TEST_F(Validator, MessagesAreOneLineOfUtf8WhateverTheClientWrote) {
  const std::string text = R"(a\nb\u0001)" + std::string(127, 'x') + "\xc3\xa9";
  for (const std::string& body :
       {R"({"messages":[{"role":"user","content":[{"type":")" + text + R"("}]}]})",
        R"({"messages":[{"role":"user","content":"x"}],")" + text + R"(":1})",
        R"({"messages":[{"role":"user","content":"x"}],"model":")" + text + R"("})",
        R"({"messages":[{"role":"user","content":"x"}],"logit_bias":{")" + text + R"(":1}})",
        R"({"messages":[{"role":"user","content":"x"}],"stream":true,"stream_options":{")" + text +
            R"(":1}})"}) {
    const auto result = validate(body, Endpoint::kChat);
    ASSERT_FALSE(result.has_value()) << body;
    const std::string& message = result.error().message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_NE(message.find("a\\nb\\u0001x"), std::string::npos) << message;
    EXPECT_EQ(to_valid_utf8(message), message);
  }
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

TEST_F(Validator, WhatOneApiAloneKnowsIsRefusedThere) {
  EXPECT_EQ(chat(R"("web_search_options":{})").error().param, "web_search_options");
  EXPECT_EQ(completion(R"("prompt_embeds":"AAAA")").error().param, "prompt_embeds");
}

TEST_F(Validator, ConstraintsBecomeTheGrammarOfEveryChoice) {
  const auto grammar_of = [&](const std::string& fields) {
    const auto request = chat(fields);
    EXPECT_TRUE(request.has_value()) << request.error().message;
    return request ? request->requests.back().grammar : GrammarSpec();
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
            R"(root ::= "a\"\x0a" | "b")");
  EXPECT_EQ(grammar_of(R"("structured_outputs":{"grammar":"root ::= \"a\""})").kind,
            GrammarKind::kEbnf);
  EXPECT_EQ(grammar_of(R"("structured_outputs":{"grammar":"start: \"a\""})").kind,
            GrammarKind::kLark);
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

TEST_F(Validator, TooManyRulesAreRefused) {
  config_.max_logit_bias = 1;
  config_.max_bad_words = 1;
  EXPECT_EQ(completion(R"("logit_bias":{"1":1,"2":1})").error().param, "logit_bias");
  EXPECT_EQ(completion(R"("bad_words":["a","b"])").error().param, "bad_words");
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

TEST_F(Validator, UsesTheWordsClientsMatchOn) {
  struct Row {
    const char* members;
    const char* message;
  };

  const std::vector<Row> rows = {
      {R"("stream_options":{"include_usage":true})",
       "Stream options can only be defined when `stream=True`."},
      {R"("top_logprobs":3)", "when using `top_logprobs`, `logprobs` must be set to true."},
      {R"("continue_final_message":true,"add_generation_prompt":true)",
       "Cannot set both `continue_final_message` and `add_generation_prompt` to True."},
      {R"("model":"other")", "The model `other` does not exist."},
      {R"("max_tokens":93)",
       "This model's maximum context length is 100 tokens. However, you requested 93 output tokens "
       "and your prompt contains at least 7 input tokens, for a total of at least 100 tokens."},
  };
  for (const Row& row : rows) {
    const auto result = chat(row.members);
    if (std::string(row.members) == R"("max_tokens":93)") {
      EXPECT_TRUE(result.has_value());  // exactly full
      const auto over = chat(R"("max_tokens":94)");
      ASSERT_FALSE(over.has_value());
      EXPECT_EQ(over.error().machine_code, "context_length_exceeded");
      EXPECT_TRUE(over.error().message.starts_with(
          "This model's maximum context length is 100 tokens. However, you requested 94 output "
          "tokens and your prompt contains at least 7 input tokens, for a total of at least 101 "
          "tokens. Please reduce"))
          << over.error().message;
      continue;
    }
    ASSERT_FALSE(result.has_value()) << row.members;
    EXPECT_TRUE(result.error().message.starts_with(row.message)) << result.error().message;
  }
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
                                      -1,
                                      0,
                                      9007199254740993};  // not a double
  for (const int64_t seed : seeds) {
    const auto request = completion("\"seed\":" + std::to_string(seed));
    ASSERT_TRUE(request.has_value()) << seed;
    EXPECT_EQ(request->requests[0].sampling.seed, static_cast<uint64_t>(seed));
  }
  EXPECT_EQ(completion(R"("seed":null)")->seed, 7U);
}

TEST_F(Validator, DefaultsAreTheModelsRoomForChatAndSixteenForCompletions) {
  EXPECT_EQ(chat(R"("n":1)")->requests[0].sampling.max_tokens, 100 - 7);
  EXPECT_EQ(completion(R"("n":1)")->requests[0].sampling.max_tokens, 16);
  const auto both = chat(R"("max_tokens":5,"max_completion_tokens":6)");
  EXPECT_EQ(both->requests[0].sampling.max_tokens, 6);
}

TEST_F(Validator, RefusesBadMessages) {
  for (const char* messages :
       {"[]",
        "{}",
        "null",
        "[1]",
        "[{}]",
        R"([{"role":"user"}])",
        R"([{"role":"user","content":7}])",
        R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])",
        R"([{"role":"user","content":[{"type":"text"}]}])",
        R"([{"role":"assistant","tool_calls":[{}]}])"}) {
    const auto result = validate("{\"messages\":" + std::string(messages) + "}", Endpoint::kChat);
    ASSERT_FALSE(result.has_value()) << messages;
    EXPECT_EQ(result.error().param, "messages") << messages;
  }
  EXPECT_TRUE(validate(R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"},
                          {"type":"text","text":"b"}]},{"role":"assistant","content":null}]})",
                       Endpoint::kChat)
                  .has_value());
}

TEST_F(Validator, RefusesBadPrompts) {
  for (const char* prompt : {"[]",
                             "{}",
                             "null",
                             "7",
                             "[[]]",
                             "[\"a\",1]",
                             "[1,\"a\"]",
                             "[259]",
                             "[-1]",
                             "[[1],[null]]"}) {
    const auto result = validate("{\"prompt\":" + std::string(prompt) + "}", Endpoint::kCompletion);
    ASSERT_FALSE(result.has_value()) << prompt;
    EXPECT_EQ(result.error().param, "prompt") << prompt;
  }
}

TEST_F(Validator, JsonIsReadStrictly) {
  const std::vector<std::string> bodies = {
      "",
      "[]",
      "{",
      R"({"prompt":"x"} x)",
      R"({"prompt":"x","prompt":"y"})",
      R"({"prompt":"x","stream_options":{"a":1,"a":2}})",
      R"({"prompt":"x","temperature":NaN})",
      R"({"prompt":"x","temperature":Infinity})",
      R"({"prompt":"x","temperature":1e400})",
      "{\"prompt\":\"\xff\"}",
      "{\"prompt\":\"\xed\xa0\x80\"}",
      R"({"prompt":"\ud800"})",
      R"({"prompt":"\udc00x"})",
      R"({"prompt":'x'})",
      R"({"prompt":"x",})",
      R"({"prompt":"x"/*c*/})",
      "{\"prompt\":\"a\nb\"}",
      "{\"prompt\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}",
  };
  for (const std::string& body : bodies) {
    const auto result = validate(body, Endpoint::kCompletion);
    ASSERT_FALSE(result.has_value()) << body.substr(0, 80);
    EXPECT_EQ(http_status(result.error().code), 400);
    EXPECT_LT(result.error().message.size(), 400U);
  }
  const auto duplicate = validate(R"({"prompt":"x","n":1,"n":2})", Endpoint::kCompletion);
  EXPECT_EQ(duplicate.error().message, "Duplicate key 'n' in an object.");
  const auto lines = validate(R"({"prompt":"x","a\nb":1,"a\nb":2})", Endpoint::kCompletion);
  EXPECT_EQ(lines.error().message, "Duplicate key 'a\\nb' in an object.");
}

TEST_F(Validator, TemplateArgumentsMayNotReplaceTheConversation) {
  const auto result = chat(R"("chat_template_kwargs":{"messages":[]})");
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().param, "chat_template_kwargs");
  EXPECT_TRUE(chat(R"("chat_template_kwargs":{"enable_thinking":false})").has_value());
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
