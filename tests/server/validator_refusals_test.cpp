// SPDX-License-Identifier: Apache-2.0
// What is refused: every row is a body and the parameter at fault.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/http/api_errors.h"
#include "server/json/json_writer.h"
#include "tests/server/validator_rig.h"

namespace sluice {
namespace {

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

TEST_F(Validator, WhatOneApiAloneKnowsIsRefusedThere) {
  EXPECT_EQ(chat(R"("web_search_options":{})").error().param, "web_search_options");
  EXPECT_EQ(completion(R"("prompt_embeds":"AAAA")").error().param, "prompt_embeds");
}

TEST_F(Validator, TooManyRulesAreRefused) {
  config_.max_logit_bias = 1;
  config_.max_bad_words = 1;
  EXPECT_EQ(completion(R"("logit_bias":{"1":1,"2":1})").error().param, "logit_bias");
  EXPECT_EQ(completion(R"("bad_words":["a","b"])").error().param, "bad_words");
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

}  // namespace
}  // namespace sluice
