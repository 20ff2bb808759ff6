// SPDX-License-Identifier: Apache-2.0
// Every parameter over the wire: it does what it says, or is refused by name.
#include "server/api/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/running_server.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// The events of a stream, [DONE] left out.
std::vector<Json> events_of(const std::string& body) {
  std::vector<Json> events;
  for (size_t at = 0; (at = body.find("data: {", at)) != std::string::npos;) {
    const size_t end = body.find("\n\n", at);
    events.push_back(Json::parse(body.substr(at + 6, end - at - 6)));
    at = end;
  }
  return events;
}

class Parameters : public ::testing::Test {
 protected:
  HttpReply post(const std::string& path, const Json& body) {
    HttpClient client(server_.port());
    client.post(path, body.dump());
    return client.read_reply();
  }

  HttpReply ask(Endpoint endpoint, const Json& more) {
    Json body = endpoint == Endpoint::kChat ? Json::parse(chat_body()) : Json{{"prompt", "x"}};
    body.update(more);
    return post(endpoint == Endpoint::kChat ? kChatPath : kCompletionPath, body);
  }

  Json chat(const Json& more) {
    const HttpReply reply = ask(Endpoint::kChat, more);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body);
  }

  std::string chat_text(const Json& more) {
    return chat(more)["choices"][0]["message"]["content"].get<std::string>();
  }

  // The text that the last request asked the engine to continue.
  [[nodiscard]] std::string last_prompt() const { return engine_.last_prompt(); }

  FakeEngine engine_;
  RunningServer server_{engine_};
};

TEST_F(Parameters, UsageSaysHowMuchOfAPredictionWasRight) {
  const Json prediction = {{"type", "content"}, {"content", "Helping"}};
  const Json details = {{"reasoning_tokens", 0},
                        {"accepted_prediction_tokens", 3},
                        {"rejected_prediction_tokens", 2}};
  engine_.say("Hell");
  const Json usage = chat({{"prediction", prediction}})["usage"];
  EXPECT_EQ(usage["completion_tokens"], 5);
  EXPECT_EQ(usage["completion_tokens_details"], details);
  const Json two = chat({{"prediction", prediction}, {"n", 2}})["usage"];
  EXPECT_EQ(two["completion_tokens_details"]["accepted_prediction_tokens"], 6);

  const HttpReply stream = ask(Endpoint::kChat,
                               {{"prediction", prediction},
                                {"stream", true},
                                {"stream_options", {{"include_usage", true}}}});
  EXPECT_EQ(events_of(stream.body).back()["usage"]["completion_tokens_details"], details);

  for (const Json& without : {Json::object(), Json{{"prediction", nullptr}}}) {
    const Json plain = chat(without)["usage"]["completion_tokens_details"];
    EXPECT_FALSE(plain.contains("accepted_prediction_tokens"));
  }
}

TEST_F(Parameters, SpeculationAndPredictionReachTheEngine) {
  chat({{"speculative", false}, {"prediction", {{"type", "content"}, {"content", "ab"}}}});
  const ValidRequest request = engine_.submitted().back();
  EXPECT_FALSE(request.speculative);
  EXPECT_EQ(request.prediction, (std::vector<TokenId>{'a', 'b'}));
}

TEST_F(Parameters, WhatIsNotOfferedIsRefusedByName) {
  int num_refused = 0;
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    for (const Parameter& parameter : request_parameters()) {
      if (!is_offered(parameter, endpoint)) continue;
      const std::string name(parameter.name);
      if (parameter.disposition == Disposition::kIgnored) {
        const bool has_type = !parameter.schema.empty();
        EXPECT_EQ(ask(endpoint, {{name, nullptr}}).status, 200) << name;
        const HttpReply reply = ask(endpoint, {{name, 3.5}});
        EXPECT_EQ(reply.status, has_type ? 400 : 200) << name;
        if (has_type) {
          EXPECT_EQ(Json::parse(reply.body)["error"]["param"], name);
        }
      }
      if (parameter.disposition != Disposition::kNeutralOnly) continue;
      const HttpReply reply = ask(endpoint, {{name, "something else"}});
      EXPECT_EQ(reply.status, 400) << name;
      EXPECT_EQ(Json::parse(reply.body)["error"]["param"], name);
      EXPECT_EQ(ask(endpoint, {{name, nullptr}}).status, 200) << name;
      EXPECT_EQ(ask(endpoint, {{name, false}}).status, parameter.false_asks ? 400 : 200) << name;
      if (!parameter.empty_asks) {
        EXPECT_EQ(ask(endpoint, {{name, Json::array()}}).status, 200) << name;
        EXPECT_EQ(ask(endpoint, {{name, Json::object()}}).status, 200) << name;
      } else {
        EXPECT_EQ(ask(endpoint, {{name, Json::array()}}).status, 400) << name;
      }
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 30);
  EXPECT_EQ(ask(Endpoint::kCompletion, {{"suffix", "end"}}).status, 400);
  EXPECT_EQ(ask(Endpoint::kCompletion, {{"suffix", ""}}).status, 200);
}

TEST_F(Parameters, WhatVllmRouterAddsToEachBodyIsKnown) {
  const Json added = {{"no_stop_trim", false},
                      {"separate_reasoning", true},
                      {"stream_reasoning", true},
                      {"return_hidden_states", false},
                      {"include_reasoning", true},
                      {"continue_final_message", false},
                      {"logprobs", false},
                      {"ignore_eos", false},
                      {"skip_special_tokens", true}};
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    const HttpReply reply = ask(endpoint, added);
    EXPECT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), "");
  }
}

TEST_F(Parameters, WhatIsNotKnownIsLeftOutNamedAndCounted) {
  const Json added = {{"log_metrics", false},
                      {"no_logs", true},
                      {"return_bytes", true},
                      {"return_entropy", false},
                      {"include_reasoning", true}};
  const std::string three = "log_metrics, no_logs, return_bytes, return_entropy";
  HttpReply reply = ask(Endpoint::kChat, added);
  EXPECT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), three);
  Json streamed = added;
  streamed["stream"] = true;
  reply = ask(Endpoint::kChat, streamed);
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), three);
  EXPECT_NE(reply.body.find("[DONE]"), std::string::npos);
  // An answer that is refused for something else names them as well.
  reply = ask(Endpoint::kCompletion, {{"a\r\nb: c", 1}, {"temperature", 9}});
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), "a%0D%0Ab%3A%20c");
  EXPECT_EQ(ask(Endpoint::kChat, Json::object()).header("x-sluice-ignored-arguments"), "");
  reply = post("/tokenize", {{"prompt", "ab"}, {"temperature", 1}});
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), "temperature");
  reply = post("/detokenize", {{"tokens", {72}}, {"skip_special_tokens", true}});
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), "skip_special_tokens");
  // What changes the ids is known there.
  Json chat = Json::parse(chat_body());
  const HttpReply plain = post("/tokenize", chat);
  chat["tools"] = Json::parse(R"([{"type":"function","function":{"name":"f"}}])");
  const HttpReply with_tools = post("/tokenize", chat);
  EXPECT_EQ(with_tools.header("x-sluice-ignored-arguments"), "");
  EXPECT_GT(Json::parse(with_tools.body)["count"], Json::parse(plain.body)["count"]);
  HttpClient client(server_.port());
  client.get("/metrics");
  EXPECT_NE(client.read_reply().body.find(
                R"(sluice_ignored_arguments_total{engine="0",model_name="fake"} 11)"),
            std::string::npos);
}

TEST_F(Parameters, WhatIsNotKnownInsideAnObjectIsNamedByItsPath) {
  const auto named = [&](const char* path, const char* body) {
    const HttpReply reply = post(path, Json::parse(body));
    EXPECT_EQ(reply.status, 200) << path << body << reply.body;
    return reply.header("x-sluice-ignored-arguments");
  };
  EXPECT_EQ(named(kChatPath,
                  R"({"messages":[{"role":"user","content":[{"type":"text","text":"Hi","x":1}],)"
                  R"("of_the_template":1}],"reasoning":{"x":1},"stream_options":{"x":1},)"
                  R"("stream":true,"response_format":{"type":"json_schema","json_schema":)"
                  R"({"name":"n","schema":{"type":"object","properties":{"x":{}}},"foo":1}}})"),
            "messages.content.x, reasoning.x, response_format.json_schema.foo, "
            "stream_options.x");
  EXPECT_EQ(named("/v1/messages",
                  R"({"max_tokens":5,"metadata":{"x":1},"thinking":{"type":"disabled","x":1},)"
                  R"("output_config":{"effort":"low","task_budget":{"total":9}},"messages":)"
                  R"([{"role":"user","content":[{"type":"text","text":"Hi","x":1},)"
                  R"({"type":"document","source":{"type":"text","data":"a","x":1},)"
                  R"("citations":{"enabled":true}}],"y":1}]})"),
            "messages.content.x, messages.content.citations, messages.content.source.x, "
            "messages.y, output_config.task_budget, thinking.x");
  EXPECT_EQ(named("/v1/responses",
                  R"({"input":[{"role":"user","content":[{"type":"input_text","text":"a","x":1}]},)"
                  R"({"type":"reasoning","id":"r","summary":[],"x":1}],"metadata":{"x":"1"},)"
                  R"("text":{"format":{"type":"text"},"x":1}})"),
            "input.content.x, input.x, text.x");
}

// The error names a field that the API has, and output tokens only where the request asks for them.
TEST_F(Parameters, ErrorsOfTheContextSpeakOfWhatWasSent) {
  const std::string text(600, 'x');
  const Json chat = {{"messages", {{{"role", "user"}, {"content", text}}}}};
  const Json prompt = {{"prompt", text}};
  const Json input = {{"input", text}};
  struct Case {
    const char* path;
    Json body;
    Json added;
    const char* param;
    const char* asked;  // in the message; null: nothing
  };
  const Case cases[] = {
      {kChatPath, chat, Json::object(), "messages", nullptr},
      {kChatPath, chat, {{"max_completion_tokens", 7}}, "messages", "requested 7 output"},
      {kChatPath, chat, {{"max_tokens", 8}}, "messages", "requested 8 output"},
      {kCompletionPath, prompt, Json::object(), "prompt", nullptr},
      {kCompletionPath, prompt, {{"max_tokens", 9}}, "prompt", "requested 9 output"},
      {kCompletionPath, prompt, {{"max_tokens", 0}, {"echo", true}}, "prompt", nullptr},
      {kCompletionPath, {{"prompt", std::string(511, 'x')}}, {{"max_tokens", 0}, {"echo", true}},
       "prompt", nullptr},
      {"/v1/responses", input, Json::object(), "input", nullptr},
      {"/v1/responses", input, {{"max_output_tokens", 16}}, "input", "requested 16 output"}};
  for (const auto& [path, body, added, param, asked] : cases) {
    Json whole = body;
    whole.update(added);
    const HttpReply reply = post(path, whole);
    EXPECT_EQ(reply.status, 400) << path << added;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded") << path << added;
    EXPECT_EQ(error["param"], param) << path << added;
    const std::string message = error["message"];
    EXPECT_EQ(message.find("you requested") != std::string::npos, asked != nullptr) << message;
    EXPECT_NE(message.find(asked == nullptr ? "context length" : asked), std::string::npos)
        << message;
  }
  const HttpReply messages = post("/v1/messages", {{"max_tokens", 5}, {"messages", chat["messages"]}});
  EXPECT_NE(messages.body.find("prompt is too long: "), std::string::npos) << messages.body;
}

// Without strict a schema may say more than a grammar can hold an answer to.
TEST_F(Parameters, KeywordsOfSchemasThatAreLeftOutAreNamedToo) {
  const Json schema = Json::parse(
      R"({"type":"object","properties":{"tags":{"type":"array","items":{"type":"string"},)"
      R"("uniqueItems":true},"n":{"type":"integer","not":{"multipleOf":3}}}})");
  const auto named = [&](const Json& added) {
    const HttpReply reply = ask(Endpoint::kChat, added);
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.header("x-sluice-ignored-arguments");
  };
  const auto format = [](const Json& of) {
    return Json{{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", of}}}};
  };
  const std::string both =
      "response_format.properties.n.not, response_format.properties.tags.uniqueItems";
  EXPECT_EQ(named({{"response_format", format(schema)}}), both);
  EXPECT_EQ(named({{"response_format", format(schema)}, {"stream", true}, {"nobody", 1}}),
            "nobody, " + both);
  Json strict = format(schema);
  strict["json_schema"]["strict"] = true;  // the engine refuses it
  EXPECT_EQ(named({{"response_format", strict}}), "");
  EXPECT_EQ(named({{"response_format", format(Json::parse(R"({"type":"integer","minimum":3})"))}}),
            "");
  FakeEngine large;  // whose context holds a tool
  large.editable_model().max_model_len = 4096;
  RunningServer server(large);
  HttpClient client(server.port());
  client.post(kChatPath,
              chat_body(R"(,"tool_choice":"required","tools":[{"type":"function","function":)"
                        R"({"name":"f","parameters":)" +
                        schema.dump() + "}}]"));
  HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"),
            "tools.properties.n.not, tools.properties.tags.uniqueItems")
      << reply.body;
  // Under the names of the API that was asked, and shorter than what a header takes.
  reply = post("/v1/responses",
               {{"input", "Hi"},
                {"text",
                 {{"format", {{"type", "json_schema"}, {"name", "n"}, {"schema", schema}}}}}});
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"),
            "text.properties.n.not, text.properties.tags.uniqueItems")
      << reply.body;
  const std::string name(60, 'x');
  const Json deep = {{"type", "object"}, {"properties", {{name, schema["properties"]["tags"]}}}};
  EXPECT_EQ(named({{"response_format", format(deep)}}), "response_format.uniqueItems");
}

TEST_F(Parameters, PromptsAreRenderedAsTheyWouldRun) {
  const std::string chat_render = std::string(kChatPath) + "/render";
  const std::string render = std::string(kCompletionPath) + "/render";
  Json chat = Json::parse(chat_body());
  chat.update({{"max_tokens", 5},
               {"temperature", 0},
               {"stop", "x"},
               {"seed", 9},
               {"priority", 2},
               {"cache_salt", "s"},
               {"top_logprobs", 3},
               {"logprobs", true},
               {"log_metrics", true}});
  HttpReply reply = post(chat_render, chat);
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), "log_metrics");
  const Json rendered = Json::parse(reply.body);
  EXPECT_TRUE(engine_.submitted().empty());
  ASSERT_EQ(post(kChatPath, chat).status, 200);
  EXPECT_EQ(rendered["token_ids"], Json(engine_.submitted().back().prompt));
  EXPECT_TRUE(rendered["request_id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(rendered["model"], "fake");
  EXPECT_EQ(rendered["cache_salt"], "s");
  EXPECT_EQ(rendered["priority"], 2);
  EXPECT_EQ(rendered["stream"], false);
  EXPECT_TRUE(rendered["features"].is_null() && rendered["stream_options"].is_null());
  const Json& sampling = rendered["sampling_params"];
  EXPECT_EQ(sampling["max_tokens"], 5);
  EXPECT_EQ(sampling["temperature"], 0);
  EXPECT_EQ(sampling["seed"], 9);
  EXPECT_EQ(sampling["logprobs"], 3);
  EXPECT_EQ(sampling["stop"], Json{"x"});
  EXPECT_EQ(sampling["n"], 1);
  // One for each prompt, however many choices it has.
  reply = post(render, {{"prompt", {"ab", "c"}}, {"n", 2}, {"stream", true}});
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json list = Json::parse(reply.body);
  ASSERT_EQ(list.size(), 2U);
  EXPECT_EQ(list[0]["token_ids"], (Json{ByteTokenizer::kBos, 97, 98}));
  EXPECT_EQ(list[1]["token_ids"], (Json{ByteTokenizer::kBos, 99}));
  EXPECT_NE(list[0]["request_id"], list[1]["request_id"]);
  EXPECT_TRUE(list[0]["sampling_params"]["seed"].is_null());
  EXPECT_EQ(list[0]["sampling_params"]["max_tokens"], 16);
  EXPECT_EQ(list[0]["stream"], true);
  // The validator's answers are those of the request itself.
  EXPECT_EQ(post(render, {{"prompt", "x"}, {"model", "other"}}).status, 404);
  EXPECT_EQ(post(render, {{"prompt", "x"}, {"temperature", 9}}).status, 400);
  EXPECT_EQ(post(chat_render, {{"messages", Json::array()}}).status, 400);
  EXPECT_EQ(post(render, Json::array()).status, 400);
}

TEST(UnknownArguments, AreRefusedWhereThatIsAskedFor) {
  FakeEngine engine;
  Config config;
  config.unknown_arguments = "refuse";
  RunningServer server(engine, config);
  HttpClient client(server.port());
  for (const auto& [path, body] :
       {std::pair(kChatPath, chat_body(R"(,"log_metrics":false)")),
        std::pair(kCompletionPath, std::string(R"({"prompt":"x","log_metrics":false})")),
        std::pair("/tokenize", std::string(R"({"prompt":"x","log_metrics":false})")),
        std::pair("/detokenize", std::string(R"({"tokens":[72],"log_metrics":false})"))}) {
    client.post(path, body);
    const HttpReply reply = client.read_reply();
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], "log_metrics") << path;
  }
  client.post(kChatPath, chat_body(R"(,"prediction":{"type":"content","content":"a","x":1})"));
  const HttpReply nested = client.read_reply();
  EXPECT_EQ(Json::parse(nested.body)["error"]["param"], "prediction.x") << nested.body;
  client.get("/openapi.json");
  const Json document = Json::parse(client.read_reply().body);
  for (const char* name : {"ChatCompletionRequest", "CompletionRequest", "TokenizeRequest"}) {
    EXPECT_EQ(document["components"]["schemas"][name]["additionalProperties"], false) << name;
  }
}

TEST_F(Parameters, PromptsAreMadeAsAskedFor) {
  chat({{"add_generation_prompt", false}});
  EXPECT_EQ(last_prompt(), "<|im_start|>user\nHi<|im_end|>\n");
  chat({{"truncate_prompt_tokens", 3}});
  EXPECT_EQ(last_prompt(), "nt\n");
  chat({{"add_special_tokens", true}});
  EXPECT_TRUE(last_prompt().starts_with("<s><|im_start|>"));
  ask(Endpoint::kCompletion, {{"add_special_tokens", false}});
  EXPECT_EQ(last_prompt(), "x");
  ask(Endpoint::kCompletion, {{"truncate_prompt_tokens", 1}, {"truncation_side", "right"}});
  EXPECT_EQ(last_prompt(), "<s>");
}

TEST_F(Parameters, StopAndSpecialTextIsShownOnRequest) {
  EXPECT_EQ(chat_text({{"stop", "ll"}}), "He");
  EXPECT_EQ(chat_text({{"stop", "ll"}, {"include_stop_str_in_output", true}}), "Hell");
  const Json long_answer = {{"ignore_eos", true}, {"max_tokens", 7}};
  EXPECT_EQ(chat_text(long_answer), "HelloH");
  Json shown = long_answer;
  shown["skip_special_tokens"] = false;
  EXPECT_EQ(chat_text(shown), "Hello<|im_end|>H");
}

// Why a choice ended.
std::string end_of(const Json& choice) {
  return choice["finish_reason"].get<std::string>() + ":" + choice["stop_reason"].dump();
}

TEST_F(Parameters, RangesHoldTheirEnds) {
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    for (const Json& more : {Json{{"top_p", 0}},
                             Json{{"top_p", 0.0}, {"stream", true}},
                             Json{{"top_p", 1}},
                             Json{{"min_p", 1}},
                             Json{{"top_k", -1}},
                             Json{{"top_k", 0}},
                             Json{{"temperature", 0}, {"n", 2}},
                             Json{{"temperature", 2}, {"best_of", 1}},
                             Json{{"temperature", 1e-40}},
                             Json{{"presence_penalty", -2}, {"frequency_penalty", 2}},
                             Json{{"repetition_penalty", 0.01}},
                             Json{{"logit_bias", {{"65", -100}, {"66", 100}}}},
                             Json{{"min_tokens", 6}, {"max_tokens", 6}}}) {
      const HttpReply reply = ask(endpoint, more);
      EXPECT_EQ(reply.status, 200) << more << reply.body;
    }
  }
  ask(Endpoint::kCompletion, {{"top_p", 0}});
  EXPECT_EQ(engine_.submitted().back().sampling.top_p, 0.0F);
}

TEST_F(Parameters, NoStopStringEndsAnAnswerBeforeMinTokens) {
  const auto ended = [&](const Json& more) {
    Json fields = {{"stop", Json::array({"l"})}, {"max_tokens", 12}, {"ignore_eos", true}};
    fields.update(more);
    const Json choice = chat(fields)["choices"][0];
    std::string streamed;
    fields["stream"] = true;
    const HttpReply reply = ask(Endpoint::kChat, fields);
    std::string end;
    for (const Json& event : events_of(reply.body)) {
      const Json& piece = event["choices"][0];
      streamed += piece["delta"].value("content", "");
      if (!piece["finish_reason"].is_null()) end = end_of(piece);
    }
    EXPECT_EQ(Json(streamed), choice["message"]["content"]) << more;
    EXPECT_EQ(end, end_of(choice)) << more;
    return streamed + "|" + end;
  };
  // The engine says "Hello<|im_end|>Hello...".
  EXPECT_EQ(ended({{"min_tokens", 0}}), R"(He|stop:"l")");
  EXPECT_EQ(ended({{"min_tokens", 2}}), R"(He|stop:"l")");
  EXPECT_EQ(ended({{"min_tokens", 3}}), R"(Hel|stop:"l")");
  EXPECT_EQ(ended({{"min_tokens", 4}}), R"(HelloHe|stop:"l")");
  EXPECT_EQ(ended({{"min_tokens", 12}}), "HelloHello|length:null");
  // One that begins before them ends it behind them.
  EXPECT_EQ(ended({{"min_tokens", 3}, {"stop", "ell"}}), R"(H|stop:"ell")");
  EXPECT_EQ(ended({{"min_tokens", 4}, {"stop", {"ell", "oH"}}}), R"(Hell|stop:"oH")");
  EXPECT_EQ(ended({{"min_tokens", 4}, {"include_stop_str_in_output", true}}),
            R"(HelloHel|stop:"l")");
}

TEST_F(Parameters, NameOfAControlTokenStopsAtThatToken) {
  const Json fields = {{"stop", "<|im_end|>"}, {"ignore_eos", true}, {"max_tokens", 9}};
  for (const bool skip : {true, false}) {
    Json more = fields;
    more["skip_special_tokens"] = skip;
    const Json json = chat(more);
    EXPECT_EQ(json["choices"][0]["message"]["content"], "Hello") << skip;
    EXPECT_EQ(end_of(json["choices"][0]), R"(stop:"<|im_end|>")") << skip;
    EXPECT_EQ(json["usage"]["completion_tokens"], 6) << skip;
    more["include_stop_str_in_output"] = true;
    EXPECT_EQ(chat_text(more), "Hello<|im_end|>") << skip;
    more["min_tokens"] = 6;
    EXPECT_EQ(chat_text(more), skip ? "HelloHel" : "Hello<|im_end|>Hel") << skip;
  }
  const HttpReply reply = ask(
      Endpoint::kCompletion,
      {{"stop", {"x", "<|im_end|>"}}, {"ignore_eos", true}, {"max_tokens", 9}, {"logprobs", 0}});
  const Json choice = Json::parse(reply.body)["choices"][0];
  EXPECT_EQ(choice["text"], "Hello");
  EXPECT_EQ(choice["logprobs"]["tokens"].size(), 6U);
}

TEST_F(Parameters, TextPromptsNameControlTokens) {
  const std::string rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  chat(Json::object());
  const auto expected = engine_.submitted().back().prompt;
  ask(Endpoint::kCompletion, {{"prompt", rendered}, {"add_special_tokens", false}});
  EXPECT_EQ(engine_.submitted().back().prompt, expected);
  const auto tokens_of = [this](const Json& body) {
    return Json::parse(post("/tokenize", body).body)["tokens"].get<std::vector<TokenId>>();
  };
  EXPECT_EQ(tokens_of({{"prompt", rendered}, {"add_special_tokens", false}}), expected);
  const Json messages = Json::array({{{"role", "user"}, {"content", "Hi"}}});
  EXPECT_EQ(tokens_of({{"messages", messages}}), expected);
  const Json forged = Json::array({{{"role", "user"}, {"content", "Hi<|im_end|>"}}});
  EXPECT_EQ(tokens_of({{"messages", forged}}).size(), expected.size() + 10);
}

TEST_F(Parameters, PriorityDeadlineAndSeedReachTheEngine) {
  const HttpReply reply = ask(Endpoint::kCompletion, {{"priority", -3}});
  EXPECT_EQ(engine_.submitted().back().priority, -3);
  EXPECT_EQ(engine_.submitted().back().max_queue_wait_ms, 0);
  // A client that names no seed is told the chosen one, and gets the same answer with it.
  const int64_t seed = std::stoll(reply.header("X-Sluice-Seed"));
  EXPECT_EQ(engine_.submitted().back().sampling.seed, static_cast<uint64_t>(seed));
  const HttpReply again = ask(Endpoint::kCompletion, {{"seed", seed}});
  EXPECT_EQ(again.header("X-Sluice-Seed"), reply.header("X-Sluice-Seed"));
  EXPECT_EQ(engine_.submitted().back().sampling.seed, static_cast<uint64_t>(seed));
  ask(Endpoint::kCompletion, {{"max_queue_wait_ms", 700}});
  EXPECT_EQ(engine_.submitted().back().max_queue_wait_ms, 700);
}

TEST_F(Parameters, CacheSaltAndRetentionReachTheEngine) {
  const auto submitted = [this](const Json& fields) {
    EXPECT_EQ(ask(Endpoint::kCompletion, fields).status, 200) << fields;
    return engine_.submitted().back();
  };
  const uint64_t plain = submitted(Json::object()).tenant_salt;
  const uint64_t salted = submitted({{"cache_salt", "a"}}).tenant_salt;
  EXPECT_NE(salted, plain);
  EXPECT_EQ(submitted({{"cache_salt", "a"}}).tenant_salt, salted);
  EXPECT_NE(submitted({{"cache_salt", "b"}}).tenant_salt, salted);
  EXPECT_EQ(submitted({{"cache_salt", nullptr}}).tenant_salt, plain);
  for (const Json& wrong : {Json(""),
                            Json("a/b"),
                            Json("a@b"),
                            Json("a\\b"),
                            Json(7),
                            Json(std::string(1, '\0')),
                            Json(std::string(129, 'x'))}) {
    EXPECT_EQ(ask(Endpoint::kCompletion, {{"cache_salt", wrong}}).status, 400) << wrong;
  }
  EXPECT_FALSE(submitted(Json::object()).keeps_prompt);
  EXPECT_TRUE(submitted({{"prompt_cache_retention", "24h"}}).keeps_prompt);
  EXPECT_FALSE(submitted({{"prompt_cache_retention", "in_memory"}}).keeps_prompt);
  EXPECT_EQ(ask(Endpoint::kCompletion, {{"prompt_cache_retention", "1h"}}).status, 400);
}

TEST_F(Parameters, ContinuousUsageIsOnEveryEvent) {
  const HttpReply reply =
      ask(Endpoint::kChat,
          {{"stream", true},
           {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  std::vector<int> counts;
  for (const Json& event : events_of(reply.body)) {
    ASSERT_TRUE(event["usage"].is_object()) << event;
    counts.push_back(event["usage"]["completion_tokens"]);
  }
  ASSERT_GT(counts.size(), 6U);
  EXPECT_EQ(counts[1], 1);
  EXPECT_EQ(counts.back(), 6);
  EXPECT_TRUE(std::is_sorted(counts.begin(), counts.end()));
}

TEST(TemplateVariables, DocumentsAreWhatWasGiven) {
  FakeEngine engine;
  engine.editable_model().chat_template =
      "{% if documents %}{% for d in documents %}[{{ d.title }}: {{ d.text }}]{% endfor %}"
      "{% else %}none{% endif %}";
  RunningServer server(engine);
  HttpClient client(server.port());
  const auto status_of = [&](const char* fields) {
    client.post(kChatPath, chat_body(fields));
    return client.read_reply().status;
  };
  EXPECT_EQ(status_of(""), 200);
  EXPECT_EQ(engine.last_prompt(), "none");
  EXPECT_EQ(status_of(R"(,"documents":[{"title":"A","text":"b"},{"title":"C","text":"d"}])"), 200);
  EXPECT_EQ(engine.last_prompt(), "[A: b][C: d]");
  EXPECT_EQ(status_of(R"(,"documents":["text"])"), 400);
  EXPECT_EQ(status_of(R"(,"documents":{})"), 400);
}

TEST(TemplateVariables, ComeFromKwargsAndReasoningEffort) {
  FakeEngine engine;
  engine.editable_model().chat_template =
      "{{ messages[0].content }}|{{ reasoning_effort }}|{{ enable_thinking }}|{{ tone }}";
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post(kChatPath,
              chat_body(R"(,"reasoning_effort":"none","chat_template_kwargs":{"tone":"calm"})"));
  EXPECT_EQ(client.read_reply().status, 200);
  EXPECT_EQ(engine.last_prompt(), "Hi|none|False|calm");
  client.post(kChatPath, chat_body(R"(,"reasoning_effort":"some")"));
  const HttpReply unknown = client.read_reply();
  EXPECT_EQ(unknown.status, 400);
  EXPECT_NE(unknown.body.find("xhigh"), std::string::npos) << unknown.body;
  client.post(kChatPath, chat_body(R"(,"chat_template_kwargs":{"messages":[]})"));
  EXPECT_EQ(client.read_reply().status, 400);
}

}  // namespace
}  // namespace sluice
