// SPDX-License-Identifier: Apache-2.0
// Tools and reasoning over /v1/chat/completions: what requests may ask, and what whole answers and
// deltas say, on a model that writes as Qwen3 does.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/server/running_server.h"
#include "tests/server/sse_events.h"
#include "tests/server/tool_template.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTools =
    R"(,"tools":[{"type":"function","function":{"name":"add","description":"Adds","parameters":)"
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}}}}},)"
    R"({"type":"function","function":{"name":"now"}}])";

constexpr const char* kCall =
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1,  \"b\": 2}}\n</tool_call>";
constexpr const char* kOtherCall =
    "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

class Tools : public ::testing::Test {
 protected:
  void start() {
    engine_.editable_model().chat_template = kToolTemplate;
    engine_.editable_model().max_model_len = 4096;
    server_ = std::make_unique<RunningServer>(engine_, config_);
  }

  HttpReply post(const std::string& body) {
    if (server_ == nullptr) start();
    HttpClient client(server_->port());
    client.post(kChatPath, body);
    return client.read_reply();
  }

  Json choice_of(const std::string& more) {
    const HttpReply reply = post(chat_body(more));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? Json::parse(reply.body)["choices"][0] : Json::object();
  }

  std::vector<Json> chunks_of(const std::string& more) {
    const HttpReply reply = post(chat_body(R"(,"stream":true)" + more));
    EXPECT_EQ(reply.status, 200) << reply.body;
    std::vector<Json> chunks;
    for (const std::string& event : data_of_events(reply.body)) {
      if (event != "[DONE]") chunks.push_back(Json::parse(event));
    }
    return chunks;
  }

  // Status, parameter and message of what is refused.
  void expect_refused(const std::string& more, const std::string& param, const std::string& says) {
    const HttpReply reply = post(chat_body(more));
    EXPECT_EQ(reply.status, 400) << more << reply.body;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], param) << more << reply.body;
    EXPECT_NE(reply.body.find(says), std::string::npos) << more << reply.body;
  }

  FakeEngine engine_;
  Config config_;
  std::unique_ptr<RunningServer> server_;
};

// A message out of deltas as clients of OpenAI join them.
Json joined_message(const std::vector<Json>& chunks, std::string& finish) {
  Json message = {{"role", nullptr}, {"content", ""}};
  std::map<int, Json> calls;
  for (const Json& chunk : chunks) {
    if (chunk["choices"].empty()) continue;
    const Json& choice = chunk["choices"][0];
    const Json& delta = choice["delta"];
    if (delta.contains("role")) message["role"] = delta["role"];
    for (const char* name : {"content", "reasoning", "reasoning_content"}) {
      if (!delta.contains(name)) continue;
      message[name] = message.value(name, "") + delta[name].get<std::string>();
    }
    for (const Json& call : delta.value("tool_calls", Json::array())) {
      Json& whole = calls[call["index"].get<int>()];
      if (call.contains("id")) {
        EXPECT_TRUE(whole.is_null()) << "a call begins once";
        whole = {{"id", call["id"]},
                 {"type", call["type"]},
                 {"function", {{"name", call["function"]["name"]}, {"arguments", ""}}}};
      }
      whole["function"]["arguments"] = whole["function"]["arguments"].get<std::string>() +
                                       call["function"]["arguments"].get<std::string>();
    }
    if (!choice["finish_reason"].is_null()) {
      EXPECT_TRUE(finish.empty()) << "one end a choice";
      EXPECT_EQ(delta, Json::object());
      finish = choice["finish_reason"];
    }
  }
  for (const auto& [index, call] : calls) message["tool_calls"].push_back(call);
  return message;
}

TEST_F(Tools, ACallIsWholeAndItsArgumentsAreTheModelsBytes) {
  engine_.say(std::string("<think>\nLet me see.\n</think>\n\n") + kCall + "\n" + kOtherCall);
  const Json choice = choice_of(kTools);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  const Json& message = choice["message"];
  EXPECT_EQ(message["content"], nullptr);
  EXPECT_EQ(message["reasoning"], "Let me see.");
  EXPECT_EQ(message["reasoning_content"], "Let me see.");
  ASSERT_EQ(message["tool_calls"].size(), 2U);
  const Json& call = message["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "add");
  EXPECT_EQ(call["function"]["arguments"], R"({"a": 1,  "b": 2})");
  EXPECT_EQ(message["tool_calls"][1]["function"]["arguments"], "{}");
  const auto id = call["id"].get<std::string>();
  EXPECT_TRUE(id.starts_with("call_"));
  EXPECT_EQ(id.size(), 5U + 24U);
  EXPECT_NE(message["tool_calls"][1]["id"], id);
}

TEST_F(Tools, NonStreamIsTheJoinedStream) {
  for (const std::string& said :
       {std::string("Plain text"),
        std::string("<think>\nA thought\n</think>\n\nText"),
        std::string("<think>\nA thought\n</think>\n\n") + kCall,
        std::string("Before ") + kCall + kOtherCall,
        std::string("<tool_call>\n{\"nam"),
        std::string(
            "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"\\u00e9 \xc3\xa9")}) {
    engine_.say(said);
    const Json choice = choice_of(kTools);
    const std::vector<Json> chunks = chunks_of(kTools);
    std::string finish;
    Json joined = joined_message(chunks, finish);
    EXPECT_EQ(chunks[0]["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
    EXPECT_EQ(choice["finish_reason"], finish) << said;
    Json whole = choice["message"];
    if (whole["content"].is_null()) whole["content"] = "";
    whole.erase("refusal");
    const auto drop_ids = [](Json& message) {
      if (!message.contains("tool_calls")) return;
      for (Json& call : message["tool_calls"]) call.erase("id");  // of the answers, which differ
    };
    drop_ids(whole);
    drop_ids(joined);
    EXPECT_EQ(nlohmann::json(joined), nlohmann::json(whole)) << said;
  }
}

TEST_F(Tools, ADeltaHasOneKind) {
  engine_.say(std::string("<think>\nA\n</think>\n\nText ") + kCall);
  for (const Json& chunk : chunks_of(kTools)) {
    const Json& delta = chunk["choices"][0]["delta"];
    if (delta.contains("role")) continue;
    const int kinds = static_cast<int>(delta.contains("content")) +
                      static_cast<int>(delta.contains("reasoning")) +
                      static_cast<int>(delta.contains("tool_calls"));
    EXPECT_LE(kinds, 1) << delta;
  }
}

TEST_F(Tools, LengthInsideACallIsLength) {
  engine_.say(kCall);
  const Json choice = choice_of(std::string(kTools) + R"(,"max_tokens":50)");
  EXPECT_EQ(choice["finish_reason"], "length");
  const auto& calls = choice["message"]["tool_calls"];
  ASSERT_EQ(calls.size(), 1U);
  EXPECT_TRUE(std::string_view(R"({"a": 1,  "b": 2})")
                  .starts_with(calls[0]["function"]["arguments"].get<std::string>()));
}

TEST_F(Tools, CallsOfAllChoicesHaveIdsOfTheirOwn) {
  engine_.say(std::string(kCall) + "\n" + kOtherCall);
  const HttpReply reply = post(chat_body(std::string(kTools) + R"(,"n":2)"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  std::set<std::string> ids;
  const Json answer = Json::parse(reply.body);
  for (const Json& choice : answer["choices"]) {
    for (const Json& call : choice["message"]["tool_calls"]) ids.insert(call["id"]);
  }
  EXPECT_EQ(ids.size(), 4U);
}

TEST_F(Tools, OneCallWhereOnlyOneIsWanted) {
  engine_.say(std::string(kCall) + "\n" + kOtherCall);
  const Json choice = choice_of(std::string(kTools) + R"(,"parallel_tool_calls":false)");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1U);
}

TEST_F(Tools, OnlyAllowedToolsAreCalled) {
  engine_.say(std::string(kCall) + "\n" + kOtherCall);
  const Json choice =
      choice_of(std::string(kTools) +
                R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":)"
                R"([{"type":"function","function":{"name":"now"}}]}})");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "now");
  // The prompt keeps all of them, and with it the cache of their prefix.
  const auto all = engine_.submitted().back().prompt;
  choice_of(kTools);
  EXPECT_EQ(engine_.submitted().back().prompt, all);
}

TEST_F(Tools, WithoutChoiceCallsAreText) {
  engine_.say(kCall);
  const Json choice = choice_of(std::string(kTools) + R"(,"tool_choice":"none")");
  EXPECT_EQ(choice["message"]["content"], kCall);
  EXPECT_FALSE(choice["message"].contains("tool_calls"));
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice_of("")["message"]["content"], kCall);
}

TEST_F(Tools, StopStringsAreLookedForInContentAlone) {
  engine_.say(std::string("<think>\nstop here\n</think>\n\n") + kCall + "Now stop it");
  const Json choice = choice_of(std::string(kTools) + R"(,"stop":["stop","arguments"])");
  EXPECT_EQ(choice["message"]["reasoning"], "stop here");
  EXPECT_EQ(choice["message"]["tool_calls"].size(), 1U);
  EXPECT_EQ(choice["message"]["content"], "Now ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "stop");
}

TEST_F(Tools, ReasoningIsCountedAndMayBeLeftOut) {
  engine_.say("<think>\nA thought\n</think>\n\nText");
  const HttpReply reply = post(chat_body(R"(,"include_reasoning":false)"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = Json::parse(reply.body);
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Text");
  EXPECT_FALSE(json["choices"][0]["message"].contains("reasoning"));
  const auto tokens = json["usage"]["completion_tokens_details"]["reasoning_tokens"].get<int>();
  EXPECT_GE(tokens, 9);
  EXPECT_LT(tokens, json["usage"]["completion_tokens"].get<int>());
}

// The rendered prompt says whether the model is inside its reasoning.
TEST_F(Tools, TheAnswerBeginsAsThePromptEnds) {
  engine_.say("A thought\n</think>\n\nText");
  const auto message_with = [&](const std::string& variables) {
    return choice_of(R"(,"chat_template_kwargs":{)" + variables + "}")["message"];
  };
  const Json open = message_with(R"("opens_thinking":true)");
  EXPECT_EQ(open["reasoning"], "A thought");
  EXPECT_EQ(open["content"], "Text");
  engine_.say("Text");
  EXPECT_EQ(message_with(R"("opens_thinking":true)")["reasoning"], "Text");
  const Json closed = message_with(R"("enable_thinking":false)");
  EXPECT_EQ(closed["content"], "Text");
  EXPECT_FALSE(closed.contains("reasoning"));
}

TEST_F(Tools, LogprobsHaveEveryTokenMarkersToo) {
  engine_.say(std::string("<think>\nA\n</think>\n\n") + kCall);
  const std::string asks = std::string(kTools) + R"(,"logprobs":true)";
  const HttpReply reply = post(chat_body(asks));
  const Json json = Json::parse(reply.body);
  const auto tokens = json["usage"]["completion_tokens"].get<size_t>();
  EXPECT_EQ(json["choices"][0]["logprobs"]["content"].size(), tokens);
  size_t streamed = 0;
  for (const Json& chunk : chunks_of(asks)) {
    const Json& logprobs = chunk["choices"][0]["logprobs"];
    if (!logprobs.is_null()) streamed += logprobs["content"].size();
  }
  EXPECT_EQ(streamed, tokens);
}

TEST_F(Tools, TheTemplateGetsToolsAndHistoryAsTheyWereSent) {
  config_.tool_call_parser = "hermes";
  engine_.say("Done");
  const HttpReply reply =
      post(R"({"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":null,)"
           R"("tool_calls":[{"id":"call_1","type":"function","function":{"name":"add",)"
           R"("arguments":"{\"b\": 1, \"a\": 2}"}}]},{"role":"tool","tool_call_id":"call_1",)"
           R"("content":"3"}])" +
           std::string(kTools) + "}");
  ASSERT_EQ(reply.status, 200) << reply.body;
  std::string prompt;
  const ByteTokenizer tokenizer;
  const auto requests = engine_.submitted();
  for (const TokenId id : requests.back().prompt) prompt += tokenizer.token_bytes(id);
  EXPECT_NE(prompt.find(R"({"type": "function", "function": {"name": "now"}})"), std::string::npos)
      << prompt;
  EXPECT_NE(prompt.find(R"({"name": "add", "arguments": {"b": 1, "a": 2}})"), std::string::npos)
      << prompt;
}

TEST_F(Tools, WhatIsBrokenOrNotOfferedIsNamed) {
  const auto tools = [](const std::string& list) { return R"(,"tools":)" + list; };
  EXPECT_EQ(post(chat_body(tools("[]"))).status, 200);
  expect_refused(tools("{}"), "tools", "array");
  expect_refused(tools(R"([{"type":"custom","custom":{"name":"x"}}])"), "tools", "custom");
  expect_refused(tools(R"([{"type":"function"}])"), "tools", "tools[0].function");
  expect_refused(tools(R"([{"type":"function","function":{"name":"a b"}}])"), "tools", "name");
  expect_refused(tools(R"([{"type":"function","function":{"name":"a"}},)"
                       R"({"type":"function","function":{"name":"a"}}])"),
                 "tools",
                 "another");
  expect_refused(
      tools(R"([{"type":"function","function":{"name":"a","parameters":[]}}])"), "tools", "schema");
  const std::string some = kTools;
  expect_refused(some + R"(,"tool_choice":"some")", "tool_choice", "must be");
  expect_refused(some + R"(,"tool_choice":{"type":"function","function":{"name":"x"}})",
                 "tool_choice",
                 "none of");
  expect_refused(R"(,"tool_choice":"required")", "tool_choice", "needs tools");
  expect_refused(some + R"(,"thinking_token_budget":5)", "thinking_token_budget", "not supported");
}

constexpr const char* kNamed = R"(,"tool_choice":{"type":"function","function":{"name":"add"}})";
constexpr const char* kRequired = R"(,"tool_choice":"required")";

// The engine is asked for an answer that is calls, of what may be called and as often as it may.
TEST_F(Tools, AForcedChoiceIsAGrammar) {
  engine_.say(kCall);
  const auto grammar_of = [&](const std::string& more) {
    const Json choice = choice_of(kTools + more);
    EXPECT_EQ(choice["message"]["content"], nullptr) << choice;
    EXPECT_EQ(choice["message"]["tool_calls"].size(), 1U) << choice;
    const GrammarSpec spec = submitted_grammar(engine_);
    EXPECT_EQ(spec.kind, GrammarKind::kStructuralTag);
    EXPECT_EQ(spec.param, "tools");
    return spec;
  };
  const auto holds = [](const GrammarSpec& spec, const char* text) {
    return spec.text.find(text) != std::string::npos;
  };
  const GrammarSpec any = grammar_of(kRequired);
  EXPECT_TRUE(holds(any, "add") && holds(any, "now") && holds(any, "star")) << any.text;
  const GrammarSpec one = grammar_of(std::string(kRequired) + R"(,"parallel_tool_calls":false)");
  EXPECT_TRUE(holds(one, "now") && !holds(one, "star")) << one.text;
  const GrammarSpec named = grammar_of(kNamed);
  EXPECT_TRUE(holds(named, "add") && !holds(named, "now") && !holds(named, "star")) << named.text;
  const GrammarSpec allowed = grammar_of(
      R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"required","tools":)"
      R"([{"type":"function","function":{"name":"add"}}]}})");
  EXPECT_TRUE(holds(allowed, "add") && !holds(allowed, "now") && holds(allowed, "star"));
  // Without a choice that forces them there is none.
  choice_of(kTools);
  EXPECT_FALSE(submitted_grammar(engine_).is_set());
}

TEST_F(Tools, ACallThatWasNamedEndsWithStop) {
  engine_.say(kCall);
  EXPECT_EQ(choice_of(std::string(kTools) + kNamed)["finish_reason"], "stop");
  EXPECT_EQ(choice_of(std::string(kTools) + kRequired)["finish_reason"], "tool_calls");
  std::string finish;
  const Json streamed = joined_message(chunks_of(std::string(kTools) + kNamed), finish);
  EXPECT_EQ(finish, "stop");
  EXPECT_EQ(streamed["content"], "");
  EXPECT_EQ(streamed["tool_calls"].size(), 1U);
}

// Reasoning stays free: before the calls, where the model may begin it, and not at all where the
// prompt has ended it.
TEST_F(Tools, AForcedCallComesBehindReasoning) {
  engine_.say(kCall);
  const auto grammar_of = [&](const std::string& variables) {
    choice_of(std::string(kTools) + kRequired + R"(,"chat_template_kwargs":{)" + variables + "}");
    return submitted_grammar(engine_);
  };
  EXPECT_NE(grammar_of("").text.find("<think>"), std::string::npos);
  EXPECT_EQ(grammar_of(R"("enable_thinking":false)").text.find("<think>"), std::string::npos);
  // The end of reasoning is several tokens of this vocabulary, so the grammar holds it.
  const GrammarSpec inside = grammar_of(R"("opens_thinking":true)");
  EXPECT_EQ(inside.text.find("<think>"), std::string::npos) << inside.text;
  EXPECT_NE(inside.text.find("</think>"), std::string::npos) << inside.text;
}

// A format binds the content of an answer, not its reasoning.
TEST_F(Tools, AFormatComesBehindReasoning) {
  engine_.say("{}");
  const auto grammar_of = [&](const std::string& format, const std::string& variables) {
    EXPECT_EQ(post(chat_body(format + R"(,"chat_template_kwargs":{)" + variables + "}")).status,
              200);
    return submitted_grammar(engine_);
  };
  const std::string json = R"(,"response_format":{"type":"json_object"})";
  EXPECT_EQ(grammar_of(json, R"("enable_thinking":false)").kind, GrammarKind::kAnyObject);
  const GrammarSpec before = grammar_of(json, "");
  EXPECT_EQ(before.kind, GrammarKind::kStructuralTag);
  EXPECT_NE(before.text.find("<think>"), std::string::npos) << before.text;
  EXPECT_EQ(before.param, "response_format");
  const GrammarSpec inside = grammar_of(json, R"("opens_thinking":true)");
  EXPECT_EQ(inside.text.find("<think>"), std::string::npos) << inside.text;
  EXPECT_NE(inside.text.find("</think>"), std::string::npos) << inside.text;
  const std::string regex = R"(,"structured_outputs":{"regex":"a"})";
  EXPECT_EQ(grammar_of(regex, "").kind, GrammarKind::kRegex);
  expect_refused(
      regex + R"(,"chat_template_kwargs":{"opens_thinking":true})", "structured_outputs", "qwen3");
}

// Harmony: reasoning, calls and an answer have channels of their own.
TEST_F(Tools, WhatIsBoundStandsInItsChannel) {
  config_.tool_call_parser = "openai";
  config_.reasoning_parser = "openai_gptoss";
  engine_.say("{}");
  const auto grammar_of = [&](const std::string& more) {
    EXPECT_EQ(post(chat_body(more)).status, 200) << more;
    return submitted_grammar(engine_).text;
  };
  const auto holds = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const std::string calls = grammar_of(std::string(kTools) + kRequired);
  const std::string format = grammar_of(R"(,"response_format":{"type":"json_object"})");
  for (const std::string& text : {calls, format}) {
    EXPECT_TRUE(holds(text, "<|channel|>analysis<|message|>")) << text;
    EXPECT_TRUE(holds(text, "<|end|><|start|>assistant")) << text;
  }
  EXPECT_TRUE(holds(calls, "<|channel|>commentary to=functions.add")) << calls;
  EXPECT_FALSE(holds(calls, "<|channel|>final")) << calls;
  EXPECT_TRUE(holds(format, "<|channel|>final<|message|>")) << format;
}

// What reasoning says of calls is free, and none of those that are bound.
TEST_F(Tools, AForcedCallIsNoneInsideReasoning) {
  engine_.say("<think>\n" + std::string(kOtherCall) + "\n</think>\n\n" + kCall);
  const Json forced = choice_of(std::string(kTools) + kRequired)["message"];
  EXPECT_EQ(forced["reasoning"], kOtherCall);
  ASSERT_EQ(forced["tool_calls"].size(), 1U);
  EXPECT_EQ(forced["tool_calls"][0]["function"]["name"], "add");
  EXPECT_EQ(choice_of(kTools)["message"]["tool_calls"].size(), 2U);
}

// openai-agents sends both with an output type and tools; the format waits for an answer.
TEST_F(Tools, AForcedCallMayStandBesideAFormat) {
  const std::string forced = std::string(kTools) + kRequired;
  for (const char* format :
       {R"(,"response_format":{"type":"json_object"})", R"(,"structured_outputs":{"regex":"a"})"}) {
    engine_.say(kCall);
    const Json choice = choice_of(forced + format);
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "add") << format;
    EXPECT_EQ(submitted_grammar(engine_).kind, GrammarKind::kStructuralTag) << format;
  }
}

TEST_F(Tools, ThinkingIsSwitchedByEveryNameThatClientsUse) {
  for (const char* off : {R"(,"enable_thinking":false)",
                          R"(,"thinking":{"type":"disabled"})",
                          R"(,"thinking":false)",
                          R"(,"reasoning":{"enabled":false})",
                          R"(,"reasoning":{"effort":"none"})",
                          R"(,"reasoning_effort":"none")"}) {
    EXPECT_EQ(post(chat_body(off)).status, 200);
    EXPECT_NE(engine_.last_prompt().find("<think>\n\n</think>"), std::string::npos) << off;
  }
  for (const char* on : {R"(,"enable_thinking":true)", R"(,"thinking":{"type":"enabled"})"}) {
    EXPECT_EQ(post(chat_body(on)).status, 200);
    EXPECT_EQ(engine_.last_prompt().find("<think>"), std::string::npos) << on;
  }
  EXPECT_EQ(post(chat_body(R"(,"thinking":"maybe")")).status, 400);
}

TEST_F(Tools, WhatCannotBeForcedIsNamed) {
  const auto strict = [](const char* choice) {
    return std::string(R"(,"tools":[{"type":"function","function":{"name":"a","strict":true}},)"
                       R"({"type":"function","function":{"name":"b"}}])") +
           choice;
  };
  engine_.say(kOtherCall);
  EXPECT_EQ(post(chat_body(strict(kRequired))).status, 200);
  EXPECT_EQ(post(chat_body(strict(R"(,"tool_choice":"none")"))).status, 200);
  server_.reset();
  for (const char* family : {"pythonic", "llama3_json"}) {  // their calls have no marker
    config_.tool_call_parser = family;
    expect_refused(strict(""), "tools", "`strict` of 'a'");
    server_.reset();
  }
  config_.tool_call_parser = "none";
  expect_refused(std::string(kTools) + kRequired, "tool_choice", "--tool-call-parser none");
  expect_refused(strict(""), "tools", "--tool-call-parser none");
}

// What the engine is asked to bind: text with calls, JSON or calls, or nothing.
TEST_F(Tools, AFreeChoiceBindsStrictToolsAndFormats) {
  engine_.say("Text");
  const auto bound = [&](const std::string& more) {
    EXPECT_EQ(post(chat_body(more)).status, 200) << more;
    return submitted_grammar(engine_);
  };
  const std::string strict =
      R"(,"tools":[{"type":"function","function":{"name":"a","strict":true}},)"
      R"({"type":"function","function":{"name":"b"}}])";
  const std::string format = R"(,"response_format":{"type":"json_object"})";
  EXPECT_FALSE(bound(kTools).is_set());
  EXPECT_FALSE(bound(strict + R"(,"tool_choice":"none")").is_set());
  EXPECT_FALSE(bound(strict +
                     R"(,"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto",)"
                     R"("tools":[{"type":"function","function":{"name":"b"}}]}})")
                   .is_set());
  const GrammarSpec text = bound(strict);
  EXPECT_EQ(text.kind, GrammarKind::kStructuralTag);
  EXPECT_NE(text.text.find("any_text"), std::string::npos) << text.text;
  const GrammarSpec either = bound(kTools + format);
  EXPECT_EQ(either.kind, GrammarKind::kStructuralTag);
  EXPECT_EQ(bound(strict + R"(,"structured_outputs":{"regex":"a"})").kind, GrammarKind::kRegex);
  EXPECT_EQ(bound(std::string(R"(,"tool_choice":"none")") + kTools + format).kind,
            GrammarKind::kStructuralTag);  // with room for reasoning
}

TEST_F(Tools, AllowedToolsAreNoMoreThanTheTools) {
  const std::string one = R"({"type":"function","function":{"name":"a"}})";
  const std::string tools = R"(,"tools":[)" + one +
                            R"(,{"type":"function","function":{"name":"b"}}],"tool_choice":)"
                            R"({"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[)";
  engine_.say("Text");
  EXPECT_EQ(post(chat_body(tools + one + "," + one + "]}}")).status, 200);
  expect_refused(tools + one + "," + one + "," + one + "]}}", "tool_choice", "at most 2");
}

TEST_F(Tools, AForcedChoiceNeedsNoAutoChoice) {
  config_.enable_auto_tool_choice = false;
  engine_.say(kCall);
  EXPECT_EQ(choice_of(std::string(kTools) + kNamed)["finish_reason"], "stop");
}

TEST_F(Tools, ATemplateThatPrintsNoToolsRefusesThemWithoutAParser) {
  config_.tool_call_parser = "none";
  server_ = std::make_unique<RunningServer>(engine_, config_);
  expect_refused(kTools, "tools", "does not describe tools");
  // Nothing can be called.
  EXPECT_EQ(post(chat_body(std::string(kTools) + R"(,"tool_choice":"none")")).status, 200);
}

TEST_F(Tools, FlagsChooseWhatIsReadAndAreChecked) {
  config_.tool_call_parser = "none";
  config_.reasoning_parser = "none";
  const std::string said = std::string("<think>\nA\n</think>\n\n") + kCall;
  engine_.say(said);
  EXPECT_EQ(choice_of(kTools)["message"]["content"], said);
  server_.reset();
  config_.tool_call_parser = "no_such";
  const auto refused = HttpServer::create(config_, engine_);
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("--tool-call-parser"), std::string::npos);
  EXPECT_NE(refused.error().message.find("hermes"), std::string::npos);
}

TEST_F(Tools, AutoMayBeSwitchedOff) {
  config_.enable_auto_tool_choice = false;
  expect_refused(kTools, "tool_choice", "--no-enable-auto-tool-choice");
}

}  // namespace
}  // namespace sluice
