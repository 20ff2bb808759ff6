// SPDX-License-Identifier: Apache-2.0
// /v1/responses and /v1/messages beyond what the official clients check (agents_test.py): kept
// answers and their bounds, truncation, order of events, errors, what is refused.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/call_id.h"
#include "server/front/response_store.h"
#include "tests/server/running_server.h"
#include "tests/server/sse_events.h"
#include "tests/server/tool_template.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kResponses = "/v1/responses";
constexpr const char* kMessages = "/v1/messages";
constexpr const char* kCountTokens = "/v1/messages/count_tokens";
constexpr const char* kSaid =
    "<think>\nA\n</think>\n\nText <tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";

class Apis : public ::testing::Test {
 protected:
  Apis() {
    engine_.editable_model().chat_template = kToolTemplate;
    engine_.editable_model().max_model_len = 600;
  }

  HttpReply ask(const std::string& path, const std::string& body, const std::string& key = {}) {
    if (server_ == nullptr) server_ = std::make_unique<RunningServer>(engine_, config_);
    HttpClient client(server_->port());
    client.post(path, body, key.empty() ? "" : "x-api-key: " + key + "\r\n");
    return client.read_reply();
  }

  Json ok(const std::string& path, const std::string& body) {
    const HttpReply reply = ask(path, body);
    EXPECT_EQ(reply.status, 200) << body << reply.body;
    return reply.status == 200 ? Json::parse(reply.body) : Json::object();
  }

  FakeEngine engine_;
  Config config_;
  std::unique_ptr<RunningServer> server_;
};

TEST_F(Apis, AResponseGoesOnWithTheOneBefore) {
  engine_.say(kSaid);
  const Json first = ok(kResponses,
                        R"({"instructions":"One","input":"First","tools":[{"type":"function",)"
                        R"("name":"f","parameters":{}}]})");
  ASSERT_EQ(first["output"].size(), 3U) << first;
  const std::string call = first["output"][2]["call_id"];
  engine_.say("Well");
  const Json second = ok(kResponses,
                         R"({"instructions":"Two","previous_response_id":)" + first["id"].dump() +
                             R"(,"input":[{"type":"function_call_output","call_id":")" + call +
                             R"(","output":"42"}]})");
  EXPECT_EQ(second["output"][0]["content"][0]["text"], "Well");
  const std::string prompt = engine_.last_prompt();
  EXPECT_EQ(prompt.find("One"), std::string::npos) << "instructions are of one request";
  for (const char* text : {"system\nTwo", "user\nFirst", "Text", "<tool_call>", "tool\n42"}) {
    EXPECT_NE(prompt.find(text), std::string::npos) << text << prompt;
  }
}

TEST_F(Apis, WhatIsNotKeptIsNotFound) {
  const Json kept = ok(kResponses, R"({"input":"a"})");
  EXPECT_EQ(kept["store"], true);
  const Json not_kept = ok(kResponses, R"({"input":"a","store":false})");
  EXPECT_EQ(not_kept["store"], false);
  const auto go_on = [&](const Json& id) {
    return ask(kResponses, R"({"input":"b","previous_response_id":)" + id.dump() + "}");
  };
  EXPECT_EQ(go_on(kept["id"]).status, 200);
  const HttpReply reply = go_on(not_kept["id"]);
  EXPECT_EQ(reply.status, 400);
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["param"], "previous_response_id");
  EXPECT_EQ(error["code"], "previous_response_not_found") << "clients then send all of it again";
}

TEST_F(Apis, TheStoreMayBeOff) {
  config_.response_store_size = 0;
  const Json answer = ok(kResponses, R"({"input":"a"})");
  EXPECT_EQ(answer["store"], false);
  const HttpReply reply =
      ask(kResponses, R"({"input":"b","previous_response_id":)" + answer["id"].dump() + "}");
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("--response-store-size"), std::string::npos);
}

TEST_F(Apis, ResponsesOfOthersAreNotFound) {
  config_.api_key = {"one", "two"};
  const HttpReply reply = ask(kResponses, R"({"input":"a"})", "one");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::string id = Json::parse(reply.body)["id"];
  const std::string more = R"({"input":"b","previous_response_id":")" + id + "\"}";
  EXPECT_EQ(ask(kResponses, more, "two").status, 400);
  EXPECT_EQ(ask(kResponses, more, "one").status, 200);
}

TEST(ResponseStore, DropsWhatWasUsedLongestAgo) {
  const StoredResponse large{std::string(1000, 'r'), std::string(900, 'm'), std::string(100, 'i')};
  ResponseStore store(9000);  // room for three
  for (const char* id : {"a", "b", "c"}) store.put(1, id, large);
  EXPECT_NE(store.find(1, "a"), nullptr);
  store.put(1, "d", large);
  EXPECT_EQ(store.find(1, "b"), nullptr);
  EXPECT_NE(store.find(1, "a"), nullptr);
  EXPECT_LE(store.num_bytes(), 9000);
  store.put(1, "e", {std::string(10000, 'r'), "", ""});
  EXPECT_EQ(store.find(1, "e"), nullptr);
  EXPECT_NE(store.find(1, "d"), nullptr);
  EXPECT_EQ(store.find(2, "d"), nullptr);
  EXPECT_TRUE(store.erase(1, "d"));
  EXPECT_FALSE(store.erase(1, "d"));
}

TEST(ResponseStore, ATenantsTrafficEvictsNothingOfAnothersShare) {
  const StoredResponse large{std::string(1000, 'r'), std::string(900, 'm'), std::string(100, 'i')};
  ResponseStore store(9000);  // room for three
  store.put(1, "a", large);
  for (int i = 0; i < 20; ++i) store.put(2, "x" + std::to_string(i), large);
  EXPECT_NE(store.find(1, "a"), nullptr);
  EXPECT_NE(store.find(2, "x18"), nullptr);
  EXPECT_NE(store.find(2, "x19"), nullptr);
  EXPECT_EQ(store.find(2, "x17"), nullptr);
  EXPECT_LE(store.num_bytes(), 9000);
  // What is beyond a share goes in order of use, whosever it is.
  store.put(1, "b", large);
  EXPECT_EQ(store.find(1, "a"), nullptr);
  EXPECT_NE(store.find(2, "x18"), nullptr);
  EXPECT_NE(store.find(2, "x19"), nullptr);
  // A share is an equal part among those that have something here.
  EXPECT_TRUE(store.erase(2, "x19"));
  store.put(1, "c", large);
  for (const char* id : {"b", "c"}) EXPECT_NE(store.find(1, id), nullptr) << id;
  EXPECT_NE(store.find(2, "x18"), nullptr);
}

TEST(ResponseStore, ItemsAreFoundWhileTheirAnswerIsKept) {
  const StoredResponse stored{"[{1},{22}]", "", "", {{"i1", 1, 3}, {"i2", 5, 4}}};
  ResponseStore store(3000);  // room for two
  store.put(1, "a", stored);
  EXPECT_EQ(store.find_item(1, "i1"), "{1}");
  EXPECT_EQ(store.find_item(1, "i2"), "{22}");
  EXPECT_EQ(store.find_item(2, "i1"), "") << "another tenant's";
  EXPECT_EQ(store.find(1, "i1"), nullptr) << "an item is no answer";
  store.put(1, "b", StoredResponse{"{1}", "", "", {{"i3", 0, 3}}});
  EXPECT_NE(store.find_item(1, "i1"), "") << "used: b is the older one now";
  store.put(1, "c", StoredResponse{std::string(1000, 'c'), "", ""});
  EXPECT_EQ(store.find_item(1, "i3"), "");
  EXPECT_TRUE(store.erase(1, "a"));
  EXPECT_EQ(store.find_item(1, "i2"), "");
}

TEST_F(Apis, TruncationDropsTheFirstTurns) {
  Json items = Json::array();
  for (int i = 0; i < 20; ++i) {
    items.push_back({{"role", i % 2 == 0 ? "user" : "assistant"},
                     {"content", "Turn " + std::to_string(i) + std::string(30, '.')}});
  }
  items.push_back({{"role", "user"}, {"content", "Last"}});
  Json body = {{"input", items}, {"instructions", "Rule"}, {"max_output_tokens", 20}};
  EXPECT_EQ(ask(kResponses, body.dump()).status, 400);
  body["truncation"] = "auto";
  ok(kResponses, body.dump());
  const std::string prompt = engine_.last_prompt();
  EXPECT_NE(prompt.find("system\nRule"), std::string::npos);
  EXPECT_NE(prompt.find("Last"), std::string::npos);
  EXPECT_EQ(prompt.find("Turn 0"), std::string::npos);
  EXPECT_NE(prompt.find("Turn 18"), std::string::npos);
  // The prompt has as many turns as fit: one more would not.
  EXPECT_GT(engine_.submitted().back().prompt.size(), 600U - 20U - 130U);
}

TEST_F(Apis, EventsOfAResponseAreNumberedAndEndOnce) {
  engine_.say(kSaid);
  const HttpReply reply = ask(kResponses,
                              R"({"input":"a","stream":true,"tools":[{"type":"function",)"
                              R"("name":"f"}]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::vector<std::string> events = data_of_events(reply.body);
  int ends = 0;
  for (size_t i = 0; i < events.size(); ++i) {
    const Json event = Json::parse(events[i]);
    EXPECT_EQ(event["sequence_number"], i);
    ends += event["type"] == "response.completed" ? 1 : 0;
  }
  EXPECT_EQ(ends, 1);
  const Json last = Json::parse(events.back());
  EXPECT_EQ(last["response"]["status"], "completed");
  EXPECT_EQ(last["response"]["output"].size(), 3U);
  EXPECT_EQ(reply.body.find("[DONE]"), std::string::npos);
}

TEST_F(Apis, AFailedStreamSaysSoInItsOwnWords) {
  engine_.fail_at(2);
  const HttpReply response = ask(kResponses, R"({"input":"a","stream":true})");
  EXPECT_EQ(Json::parse(data_of_events(response.body).back())["type"], "response.failed");
  const HttpReply message = ask(
      kMessages, R"({"messages":[{"role":"user","content":"a"}],"max_tokens":9,"stream":true})");
  const Json error = Json::parse(data_of_events(message.body).back());
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["type"], "api_error");
}

TEST_F(Apis, BlocksOfAMessageDoNotInterleave) {
  engine_.say(kSaid);
  const HttpReply reply =
      ask(kMessages,
          R"({"messages":[{"role":"user","content":"a"}],"max_tokens":300,"stream":true,)"
          R"("tools":[{"name":"f","input_schema":{"type":"object"}}]})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  int open = -1;
  int num_blocks = 0;
  const std::vector<std::string> events = data_of_events(reply.body);
  EXPECT_EQ(Json::parse(events.front())["type"], "message_start");
  EXPECT_EQ(Json::parse(events.back())["type"], "message_stop");
  for (const std::string& text : events) {
    const Json event = Json::parse(text);
    if (event["type"] == "content_block_start") {
      EXPECT_EQ(open, -1);
      open = event["index"];
      EXPECT_EQ(open, num_blocks++);
    } else if (event["type"] == "content_block_delta") {
      EXPECT_EQ(event["index"], open);
    } else if (event["type"] == "content_block_stop") {
      EXPECT_EQ(event["index"], open);
      open = -1;
    }
  }
  EXPECT_EQ(num_blocks, 3);
  EXPECT_EQ(open, -1);
}

TEST_F(Apis, AMessageThatItsClientBeganGoesOn) {
  ok(kMessages,
     R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"Well, "}],)"
     R"("max_tokens":5})");
  EXPECT_TRUE(engine_.last_prompt().ends_with("assistant\nWell, ")) << engine_.last_prompt();
}

TEST_F(Apis, ThinkingReachesTheTemplate) {
  const std::string head = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":100,)";
  ok(kMessages, head + R"("thinking":{"type":"disabled"}})");
  EXPECT_NE(engine_.last_prompt().find("<think>\n\n</think>"), std::string::npos);
  ok(kMessages, head + R"("thinking":{"type":"enabled","budget_tokens":99}})");
  EXPECT_EQ(engine_.last_prompt().find("<think>"), std::string::npos);
  const HttpReply reply =
      ask(kMessages, head + R"("thinking":{"type":"enabled","budget_tokens":9}})");
  // The marks of reasoning are no tokens of this vocabulary.
  EXPECT_EQ(reply.status, 400);
  EXPECT_NE(reply.body.find("thinking.budget_tokens is"), std::string::npos) << reply.body;
}

// A field of a request that is wrong, the name by which the error has it, and how its text begins.
struct Refusal {
  const char* path;
  std::string fields;
  const char* param;  // Anthropic's errors have none
  const char* text;
};

TEST_F(Apis, ErrorsNameTheFieldsThatTheClientSent) {
  constexpr const char* kLongName =
      "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"";
  const std::string long_format =
      std::string(R"("text":{"format":{"type":"json_schema","schema":{},"name":)") + kLongName +
      "}}";
  for (const Refusal& row : {
           Refusal{
               kResponses, R"("max_output_tokens":0)", "max_output_tokens", "max_output_tokens "},
           {kResponses, long_format, "text", "text.format.name "},
           {kResponses,
            R"("text":{"format":{"type":"json_schema","name":"a","schema":7}})",
            "text",
            "text.format.schema "},
           {kResponses, R"("text":{"format":{"type":"xml"}})", "text", "text.format.type "},
           {kResponses, R"("tools":[{"type":"function","name":"a b"}])", "tools", "tools[0].name "},
           {kResponses,
            R"("tools":[{"type":"function","name":"a","parameters":1}])",
            "tools",
            "tools[0].parameters "},
           {kMessages, R"("tools":[{"name":"a b","input_schema":{}}])", nullptr, "tools[0].name "},
           {kMessages,
            R"("tools":[{"name":"a","input_schema":1}])",
            nullptr,
            "tools[0].input_schema "},
           {kMessages,
            R"("output_config":{"format":{"type":"json_schema","schema":7}})",
            nullptr,
            "output_config.format.schema "},
           {kMessages, R"("stop_sequences":[""])", nullptr, "stop_sequences "},
           {kCountTokens,
            R"("tools":[{"name":"a b","input_schema":{}}])",
            nullptr,
            "tools[0].name "},
       }) {
    const std::string head = row.path == kResponses
                                 ? R"({"input":"a",)"
                                 : R"({"messages":[{"role":"user","content":"a"}],"max_tokens":5,)";
    const HttpReply reply = ask(row.path, head + row.fields + "}");
    EXPECT_EQ(reply.status, 400) << row.fields;
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_TRUE(error["message"].get<std::string>().starts_with(row.text)) << row.fields << error;
    if (row.param == nullptr) continue;
    EXPECT_EQ(error["param"], row.param) << row.fields;
  }
}

TEST_F(Apis, AGrammarHasTheNameOfTheFieldThatItCameFrom) {
  const std::string format = R"("format":{"type":"json_schema","name":"a","schema":{}}})";
  ok(kResponses, R"({"input":"a","text":{)" + format + "}");
  EXPECT_EQ(submitted_grammar(engine_).param, "text");
  ok(kMessages,
     R"({"messages":[{"role":"user","content":"a"}],"max_tokens":5,"output_config":{)" + format +
         "}");
  EXPECT_EQ(submitted_grammar(engine_).param, "output_config");
}

TEST_F(Apis, WhatBindsAnAnswerElsewhereIsRefusedHereByName) {
  for (const char* name : {"response_format", "structured_outputs"}) {
    for (const char* path : {kResponses, kMessages}) {
      if (path == kResponses && std::string_view(name) == "structured_outputs") continue;
      const std::string head =
          path == kResponses ? R"({"input":"a",)"
                             : R"({"messages":[{"role":"user","content":"a"}],"max_tokens":5,)";
      const std::string field = head + "\"" + name + "\":";
      const HttpReply reply = ask(path, field + R"({"type":"json_object"}})");
      EXPECT_EQ(reply.status, 400) << path << name;
      EXPECT_NE(
          reply.body.find(path == kResponses ? "use `text.format`" : "use `output_config.format`"),
          std::string::npos)
          << reply.body;
      EXPECT_EQ(ask(path, field + "null}").status, 200) << path << name;
    }
  }
}

TEST_F(Apis, SettingsOfAnotherTypeAreNoSettings) {
  for (const auto& [field, name] : {std::pair{R"("text":3)", "text"},
                                    {R"("text":{"format":"json_schema"})", "text"},
                                    {R"("metadata":3)", "metadata"},
                                    {R"("include":"usage")", "include"},
                                    {R"("include":["all"])", "include"},
                                    {R"("reasoning":{"effort":"some"})", "reasoning"},
                                    {R"("service_tier":3)", "service_tier"},
                                    {R"("include":[3])", "include"}}) {
    const HttpReply reply = ask(kResponses, std::string(R"({"input":"a",)") + field + "}");
    EXPECT_EQ(reply.status, 400) << field;
    EXPECT_EQ(Json::parse(reply.body)["error"]["param"], name) << field;
  }
}

TEST_F(Apis, SettingsOfMessagesHaveTypesToo) {
  const std::string head = R"({"messages":[{"role":"user","content":"a"}],"max_tokens":5,)";
  for (const auto& [field, name] :
       {std::pair{R"("metadata":3)", "metadata"},
        {R"("service_tier":[])", "service_tier"},
        {R"("output_config":{"effort":"some"})", "output_config.effort"}}) {
    const HttpReply reply = ask(kMessages, head + field + "}");
    EXPECT_EQ(reply.status, 400) << field;
    EXPECT_NE(reply.body.find(name), std::string::npos) << reply.body;
  }
  ok(kMessages, head + R"("metadata":{"user_id":"u"},"service_tier":"auto"})");
}

TEST(CallId, IsAFunctionOfAnswerChoiceAndCall) {
  const Piece begin{PieceKind::kCallBegin, 1, "f", ""};
  ToolPlan tools;
  const std::string id = call_id(begin, tools, "chatcmpl-1", 0, "call_");
  EXPECT_EQ(call_id(begin, tools, "chatcmpl-1", 0, "call_"), id);
  EXPECT_NE(call_id(begin, tools, "chatcmpl-1", 1, "call_"), id);
  EXPECT_NE(call_id(begin, tools, "chatcmpl-2", 0, "call_"), id);
  tools.id_rule = CallIdRule::kNineAlphanumeric;
  EXPECT_EQ(call_id(begin, tools, "chatcmpl-1", 0, "call_").size(), 9U);
  tools.id_rule = CallIdRule::kCounted;
  tools.num_earlier_calls = 3;
  EXPECT_EQ(call_id(begin, tools, "chatcmpl-1", 0, "call_"), "functions.f:4");
  EXPECT_EQ(call_id({PieceKind::kCallBegin, 0, "f", "functions.f:9"}, tools, "x", 0, ""),
            "functions.f:9");
}

}  // namespace
}  // namespace sluice
