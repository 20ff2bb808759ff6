// SPDX-License-Identifier: Apache-2.0
// What agents send to /v1/messages beyond users' and assistants' text: instructions in the middle,
// results of tool search, texts as documents, budgets beyond the context.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/running_server.h"
#include "tests/server/sse_events.h"
#include "tests/server/tool_template.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kMessages = "/v1/messages";
constexpr const char* kCountTokens = "/v1/messages/count_tokens";
constexpr const char* kUser = R"({"role":"user","content":"Hi"})";
constexpr int kContext = 600;

class MessagesApi : public ::testing::Test {
 protected:
  MessagesApi() {
    engine_.editable_model().chat_template = kToolTemplate;
    engine_.editable_model().max_model_len = kContext;
  }

  HttpReply post(const std::string& path, const std::string& body) {
    if (server_ == nullptr) server_ = std::make_unique<RunningServer>(engine_, config_);
    HttpClient client(server_->port());
    client.post(path, body, "anthropic-version: 2023-06-01\r\n");
    return client.read_reply();
  }

  // `messages`: the elements of the array; `more`: other fields, each behind a comma.
  HttpReply ask(const std::string& messages, const std::string& more = {}) {
    return post(kMessages, R"({"max_tokens":20,"messages":[)" + messages + "]" + more + "}");
  }

  // Returns the prompt, or the error's text.
  std::string prompt_of(const std::string& messages, const std::string& more = {}) {
    const HttpReply reply = ask(messages, more);
    if (reply.status != 200) return Json::parse(reply.body)["error"]["message"];
    return engine_.last_prompt();
  }

  FakeEngine engine_;
  Config config_;
  std::unique_ptr<RunningServer> server_;
};

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(MessagesApi, InstructionsMayStandAmongTheMessages) {
  const std::string late = R"({"role":"system","content":"Late"})";
  const std::string prompt =
      prompt_of(std::string(kUser) + "," + late + R"(,{"role":"user","content":"Then"})",
                R"(,"system":"First")");
  for (const char* text : {"First", "Hi", "Late", "Then"}) EXPECT_TRUE(holds(prompt, text)) << text;
  const std::string blocks =
      R"({"role":"system","content":[{"type":"text","text":"One","cache_control":)"
      R"({"type":"ephemeral"}},{"type":"text","text":"Two"}]})";
  const std::string other = prompt_of(blocks + "," + kUser);
  EXPECT_TRUE(holds(other, "One") && holds(other, "Two")) << other;
}

TEST_F(MessagesApi, NeighboursOfOneRoleAreOneTurn) {
  engine_.editable_model().chat_template =
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
      "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m.role }}]{{ m.content }}"
      "{% endfor %}";
  EXPECT_EQ(prompt_of(R"({"role":"user","content":"a"},)"
                      R"({"role":"user","content":[{"type":"text","text":"b"}]},)"
                      R"({"role":"assistant","content":"c"},{"role":"assistant","content":"d"},)"
                      R"({"role":"user","content":"e"})"),
            "[user]a\nb[assistant]c\nd[user]e");
  EXPECT_TRUE(holds(prompt_of(R"({"role":"assistant","content":"a"})"), "must alternate"));
}

TEST_F(MessagesApi, TextWithoutCitationsHasNoMemberForThem) {
  const Json answer = Json::parse(ask(kUser).body);
  EXPECT_EQ(answer["content"][0]["type"], "text");
  EXPECT_FALSE(answer["content"][0].contains("citations")) << "a client's schema knows no null";
}

TEST_F(MessagesApi, InstructionsAreCountedWithTheOtherMessages) {
  const auto count = [&](const std::string& messages) {
    const HttpReply reply = post(kCountTokens, R"({"messages":[)" + messages + "]}");
    EXPECT_EQ(reply.status, 200) << reply.body;
    return Json::parse(reply.body)["input_tokens"].get<int>();
  };
  const std::string late = R"({"role":"system","content":"Late"})";
  EXPECT_GE(count(std::string(kUser) + "," + late), count(kUser) + 4);
}

TEST_F(MessagesApi, AnInstructionOfOneTurnIsOverWithTheNext) {
  const std::string once = R"({"role":"system","content":"Once","clear_at":"next_user_message"})";
  const std::string user = kUser;
  EXPECT_TRUE(holds(prompt_of(user + "," + once), "Once"));
  EXPECT_FALSE(holds(prompt_of(user + "," + once + "," + user), "Once"));
  const std::string kept = R"({"role":"system","content":"Kept","clear_at":"never"})";
  EXPECT_TRUE(holds(prompt_of(user + "," + kept + "," + user), "Kept"));
  EXPECT_TRUE(holds(prompt_of(R"({"role":"system","content":"a","clear_at":"soon"},)" + user),
                    "clear_at must be"));
}

TEST_F(MessagesApi, InstructionsThatChangeToolsOrOutputAreRefusedByName) {
  EXPECT_TRUE(holds(
      prompt_of(R"({"role":"system","content":[{"type":"tool_addition"}]},)" + std::string(kUser)),
      "'tool_addition'"));
  EXPECT_TRUE(
      holds(prompt_of(R"({"role":"system","content":"a","output_config":{"effort":"low"}},)" +
                      std::string(kUser)),
            "messages[0].output_config"));
  EXPECT_TRUE(holds(prompt_of(R"({"role":"tool","content":"a"})"), "messages[0].role must be"));
}

TEST_F(MessagesApi, ResultsOfToolsMayBeReferencesAndTexts) {
  const std::string call =
      R"(,{"role":"assistant","content":[{"type":"tool_use","id":"toolu_1","name":"find",)"
      R"("input":{}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"toolu_1",)"
      R"("content":[)";
  const auto result = [&](const std::string& block) {
    return prompt_of(kUser + call + block + "]}]}");
  };
  EXPECT_TRUE(
      holds(result(R"({"type":"tool_reference","tool_name":"get_weather"})"), "tool\nget_weather"));
  const std::string found = result(R"({"type":"search_result","title":"Gates","source":"a.txt",)"
                                   R"("content":[{"type":"text","text":"They slide."}]})");
  EXPECT_TRUE(holds(found, "Gates\na.txt\nThey slide.")) << found;
  EXPECT_TRUE(holds(result(R"({"type":"document","title":"T","source":{"type":"text",)"
                           R"("media_type":"text/plain","data":"Body"}})"),
                    "T\nBody"));
  EXPECT_TRUE(holds(result(R"({"type":"image","source":{}})"), "'image', which is not supported"));
}

TEST_F(MessagesApi, UsersMaySendTextsAsDocuments) {
  const auto user = [&](const std::string& source) {
    return prompt_of(R"({"role":"user","content":[{"type":"document","source":)" + source +
                     R"(},{"type":"text","text":"Sum up"}]})");
  };
  EXPECT_TRUE(holds(user(R"({"type":"text","data":"Body"})"), "Body"));
  EXPECT_TRUE(
      holds(user(R"({"type":"content","content":[{"type":"text","text":"Part"}]})"), "Part"));
  EXPECT_TRUE(holds(user(R"({"type":"base64","media_type":"application/pdf","data":""})"),
                    "messages[0].content[0].source has type 'base64'"));
}

TEST_F(MessagesApi, AnOutputFormatHasAnOlderName) {
  const std::string schema = R"({"type":"json_schema","schema":{"type":"object"}})";
  ASSERT_EQ(ask(kUser, R"(,"output_format":)" + schema).status, 200);
  EXPECT_TRUE(submitted_grammar(engine_).is_set());
  EXPECT_TRUE(holds(prompt_of(kUser, R"(,"output_format":{"type":"xml"})"), "output_format must"));
}

TEST_F(MessagesApi, NamesOfToolsAreLong) {
  const auto tool = [&](size_t length) {
    return ask(kUser,
               R"(,"tools":[{"name":")" + std::string(length, 'a') +
                   R"(","input_schema":{"type":"object"}}])")
        .status;
  };
  EXPECT_EQ(tool(128), 200);
  EXPECT_EQ(tool(129), 400);
}

TEST_F(MessagesApi, ToolsOfAnthropicsServersAreLeftOutAndNamed) {
  const std::string hosted =
      R"({"type":"web_search_20250305","name":"web_search","max_uses":3},)"
      R"({"type":"tool_search_tool_bm25_20251119","name":"tool_search_tool_bm25"})";
  const std::string own = R"({"name":"find","input_schema":{"type":"object"}})";
  for (const std::string& tools : {hosted + "," + own, own + "," + hosted}) {
    const HttpReply reply = ask(kUser, R"(,"tools":[)" + tools + "]");
    ASSERT_EQ(reply.status, 200) << reply.body;
    EXPECT_EQ(reply.header("x-sluice-ignored-arguments"),
              "tools.web_search_20250305, tools.tool_search_tool_bm25_20251119");
    EXPECT_TRUE(holds(engine_.last_prompt(), "find")) << engine_.last_prompt();
    EXPECT_FALSE(holds(engine_.last_prompt(), "web_search")) << engine_.last_prompt();
  }
  EXPECT_EQ(ask(kUser, R"(,"tools":[)" + hosted + R"(],"tool_choice":{"type":"auto"})").status, 200);
  for (const char* choice : {R"({"type":"any"})", R"({"type":"tool","name":"web_search"})"}) {
    const HttpReply reply = ask(kUser, R"(,"tools":[)" + hosted + R"(],"tool_choice":)" + choice);
    EXPECT_EQ(reply.status, 400) << choice;
    EXPECT_TRUE(holds(reply.body, "tool_choice")) << reply.body;
  }
  const HttpReply other =
      ask(kUser, R"(,"tools":[{"type":"function","function":{"name":"find","parameters":{}}}])");
  EXPECT_EQ(other.status, 400);
  EXPECT_TRUE(holds(other.body, "OpenAI's form")) << other.body;
}

TEST_F(MessagesApi, AnOutputLimitBeyondTheContextIsServed) {
  engine_.say(std::string(2 * kContext, 'x'));
  const std::string head = R"({"max_tokens":64000,"messages":[)" + std::string(kUser) + "]";
  const HttpReply reply = post(kMessages, head + "}");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json whole = Json::parse(reply.body);
  EXPECT_EQ(whole["stop_reason"], "model_context_window_exceeded");
  int total = 0;
  for (const char* name : {"input_tokens", "cache_read_input_tokens", "output_tokens"}) {
    total += whole["usage"][name].get<int>();
  }
  EXPECT_EQ(total, kContext);
  const HttpReply stream = post(kMessages, head + R"(,"stream":true})");
  EXPECT_TRUE(holds(stream.body, "model_context_window_exceeded"));
  EXPECT_EQ(Json::parse(ask(kUser).body)["stop_reason"], "max_tokens");
}

// Clients take the numbers out of this text to compact the conversation.
TEST_F(MessagesApi, APromptThatIsTooLongIsSaidInTheWordsThatClientsRead) {
  const auto error = [&](size_t length) {
    return prompt_of(R"({"role":"user","content":")" + std::string(length, 'a') + "\"}");
  };
  const std::string text = error(700);
  EXPECT_TRUE(text.starts_with("prompt is too long: ")) << text;
  EXPECT_TRUE(text.ends_with(" tokens > 600 maximum")) << text;
  EXPECT_TRUE(error(2'000'000).starts_with("prompt is too long: "));
}

constexpr const char* kBilling =
    "x-anthropic-billing-header: cc_version=2.1.37.3fb; cc_entrypoint=cli; cch=1a2b3;";

std::string system_with(const std::string& first) {
  return R"(,"system":[{"type":"text","text":")" + first +
         R"("},{"type":"text","text":"Be brief"}])";
}

TEST_F(MessagesApi, TheBillingHeaderOfAClientIsNotPartOfThePrompt) {
  const HttpReply reply = ask(kUser, system_with(kBilling));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("x-sluice-ignored-arguments"), "system.x-anthropic-billing-header");
  const auto first = engine_.submitted().back().prompt;
  ask(kUser, system_with("x-anthropic-billing-header: cch=other;"));
  EXPECT_EQ(engine_.submitted().back().prompt, first);
  EXPECT_TRUE(holds(prompt_of(kUser, system_with("About x-anthropic-billing-header:")), "About"));
}

TEST_F(MessagesApi, TheBillingHeaderCanBeKept) {
  config_.keep_billing_header = true;
  EXPECT_TRUE(holds(prompt_of(kUser, system_with(kBilling)), "cch=1a2b3"));
}

// The SDK's threads send whole conversations after this answer.
TEST_F(MessagesApi, AThreadIsRefusedWithTheCodeThatClientsKnow) {
  const HttpReply reply = ask(kUser, R"(,"thread":{"type":"create"})");
  EXPECT_EQ(reply.status, 400);
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["details"]["error_code"], "thread_unsupported_request");
  EXPECT_EQ(error["details"]["unsupported"], Json::array({"thread"}));
  EXPECT_TRUE(holds(prompt_of(kUser, R"(,"compaction":{"trigger":5})"), "`compaction`"));
  EXPECT_EQ(ask(kUser, R"(,"thread":null,"compaction":null)").status, 200);
}

TEST_F(MessagesApi, ThoughtsOfEarlierAnswersAreCleared) {
  const std::string answer =
      R"(,{"role":"assistant","content":[{"type":"thinking","thinking":"T1",)"
      R"("signature":""},{"type":"text","text":"A"}]},)";
  const std::string talk = kUser + answer + kUser;
  const auto managed = [&](const std::string& edit) {
    return prompt_of(talk, R"(,"context_management":{"edits":[)" + edit + "]}");
  };
  const auto whole = prompt_of(talk);
  EXPECT_EQ(managed(R"({"type":"clear_thinking_20251015","keep":"all"})"), whole);
  EXPECT_EQ(managed(R"({"type":"clear_thinking_20251015"})"), whole) << "one is kept";
  EXPECT_TRUE(holds(managed(R"({"type":"clear_tool_uses_20250919"})"), "clear_tool_uses"));
}

TEST_F(MessagesApi, ThoughtsThatTheClientDoesNotShowHaveNoText) {
  engine_.say("<think>\nSecret\n</think>\n\nText");
  const auto body_with = [&](const std::string& display, const char* more = "") {
    return post(kMessages,
                R"({"max_tokens":100,"messages":[)" + std::string(kUser) +
                    R"(],"thinking":{"type":"adaptive","display":")" + display + "\"}" + more + "}")
        .body;
  };
  const Json shown = Json::parse(body_with("summarized"));
  EXPECT_TRUE(holds(shown["content"][0]["thinking"], "Secret"));
  EXPECT_GT(shown["usage"]["output_tokens_details"]["thinking_tokens"], 0);
  const Json omitted = Json::parse(body_with("omitted"));
  EXPECT_EQ(omitted["content"][0], Json({{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}));
  EXPECT_EQ(omitted["content"][1], Json({{"type", "text"}, {"text", "Text"}}));
  EXPECT_EQ(omitted["usage"], shown["usage"]);
  // A stream names the block and its signature, and no text.
  std::vector<std::string> of_thinking;
  Json usage;
  for (const std::string& data : data_of_events(body_with("omitted", R"(,"stream":true)"))) {
    const Json event = Json::parse(data);
    EXPECT_FALSE(holds(data, "Secret")) << data;
    if (event["type"] == "message_delta") usage = event["usage"];
    if (!event.contains("index") || event["index"] != 0) continue;
    const bool is_delta = event.contains("delta");
    of_thinking.push_back(is_delta ? event["delta"]["type"] : event["type"]);
  }
  EXPECT_EQ(of_thinking,
            (std::vector<std::string>{
                "content_block_start", "signature_delta", "content_block_stop"}));
  EXPECT_EQ(usage, shown["usage"]);
}

TEST_F(MessagesApi, WhatToolsOfOtherServersLeftIsLeftOut) {
  const std::string searched =
      R"({"type":"server_tool_use","id":"s1","name":"web_search","input":{"query":"needle"}},)"
      R"({"type":"web_search_tool_result","tool_use_id":"s1","content":[)"
      R"({"type":"web_search_result","url":"https://a","title":"hay","encrypted_content":"x"}]})";
  const auto talk = [&](const std::string& blocks) {
    return std::string(kUser) + R"(,{"role":"assistant","content":[)" + blocks + "]}," + kUser;
  };
  const HttpReply reply = ask(talk(searched + R"(,{"type":"text","text":"Found"})"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  const std::string ignored = reply.header("x-sluice-ignored-arguments");
  EXPECT_TRUE(holds(ignored, "messages.server_tool_use")) << ignored;
  EXPECT_TRUE(holds(ignored, "messages.web_search_tool_result")) << ignored;
  const std::string prompt = engine_.last_prompt();
  EXPECT_TRUE(holds(prompt, "Found")) << prompt;
  EXPECT_FALSE(holds(prompt, "needle") || holds(prompt, "hay")) << prompt;
  // With no other block there is no turn.
  EXPECT_EQ(ask(talk(searched)).status, 200);
  EXPECT_FALSE(holds(engine_.last_prompt(), "assistant\n<|im_end|>")) << engine_.last_prompt();
  EXPECT_EQ(ask(R"({"role":"user","content":[)" + searched + "]}").status, 400);
}

// A client that fills the cache asks for no token.
TEST_F(MessagesApi, WithoutTokensThePromptIsComputedAlone) {
  const std::string body = R"({"max_tokens":0,"messages":[)" + std::string(kUser) + "]";
  const HttpReply reply = post(kMessages, body + "}");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json message = Json::parse(reply.body);
  EXPECT_EQ(message["content"], Json::array());
  EXPECT_EQ(message["stop_reason"], "max_tokens");
  EXPECT_EQ(message["usage"]["output_tokens"], 0);
  EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 3);
  EXPECT_EQ(engine_.submitted().back().sampling.max_tokens, 1);
  const HttpReply stream = post(kMessages, body + R"(,"stream":true})");
  EXPECT_TRUE(holds(stream.body, "message_stop")) << stream.body;
  EXPECT_FALSE(holds(stream.body, "content_block")) << stream.body;
  EXPECT_EQ(post(kMessages, R"({"max_tokens":-1,"messages":[)" + std::string(kUser) + "]}").status,
            400);
}

// Errors of every path, the unknown one too, are read by the client that sent the header.
TEST_F(MessagesApi, ErrorsHaveTheFormOfTheClient) {
  server_ = std::make_unique<RunningServer>(engine_, config_);
  for (const char* path : {"/v1/chat/completions", "/nowhere", "/v1/models", "/v1/messages"}) {
    HttpClient client(server_->port());
    client.post(path, "{", "anthropic-version: 2023-06-01\r\n");
    const HttpReply reply = client.read_reply();
    EXPECT_GE(reply.status, 400) << path;
    const Json body = Json::parse(reply.body);
    EXPECT_EQ(body["type"], "error") << path << body;
    EXPECT_EQ(body["request_id"].get<std::string>(), reply.header("Request-Id")) << path;
  }
}

TEST_F(MessagesApi, EveryAnswerNamesItsRequest) {
  server_ = std::make_unique<RunningServer>(engine_, config_);
  const auto ask_for = [&](const std::string& path, const std::string& lines) {
    HttpClient client(server_->port());
    client.request("GET", path, "", lines);
    return client.read_reply();
  };
  EXPECT_TRUE(ask_for("/health", "").header("X-Request-Id").starts_with("req_"));
  EXPECT_NE(ask_for("/health", "").header("X-Request-Id"),
            ask_for("/health", "").header("X-Request-Id"));
  EXPECT_EQ(ask_for("/nowhere", "x-request-id: mine\r\n").header("X-Request-Id"), "mine");
  EXPECT_EQ(ask_for("/health", "").header("Request-Id"), "");
  const HttpReply message = ask(kUser);
  EXPECT_EQ(message.header("Request-Id"), Json::parse(message.body)["id"].get<std::string>());
}

TEST_F(MessagesApi, ModelsAreListedInTheFormOfTheClient) {
  server_ = std::make_unique<RunningServer>(engine_, config_);
  HttpClient client(server_->port());
  client.request("GET", "/v1/models", "", "anthropic-version: 2023-06-01\r\n");
  const Json list = Json::parse(client.read_reply().body);
  EXPECT_EQ(list["has_more"], false);
  const Json& model = list["data"][0];
  EXPECT_EQ(model["type"], "model");
  EXPECT_EQ(model["display_name"], model["id"]);
  EXPECT_TRUE(model["created_at"].get<std::string>().ends_with("Z")) << model;
  EXPECT_EQ(model["lifecycle"], "active");
  EXPECT_EQ(model["max_input_tokens"], kContext);
  EXPECT_EQ(model["max_tokens"], kContext);
  HttpClient other(server_->port());
  other.request("GET",
                "/v1/models/" + model["id"].get<std::string>(),
                "",
                "anthropic-version: 2023-06-01\r\n");
  EXPECT_EQ(Json::parse(other.read_reply().body), model);
  EXPECT_EQ(list["first_id"], model["id"]);
}

TEST_F(MessagesApi, ModelsAreListedInPages) {
  config_.served_model_name = {"a", "org/b", "c"};
  server_ = std::make_unique<RunningServer>(engine_, config_);
  const auto page = [this](const std::string& query) {
    HttpClient client(server_->port());
    client.request("GET", "/v1/models?" + query, "", "anthropic-version: 2023-06-01\r\n");
    const Json list = Json::parse(client.read_reply().body);
    if (list.contains("error")) return list["error"]["type"].get<std::string>();
    std::string names;
    for (const Json& model : list["data"]) names += model["id"].get<std::string>() + " ";
    if (!list["data"].empty()) {
      EXPECT_EQ(list["first_id"], list["data"].front()["id"]);
      EXPECT_EQ(list["last_id"], list["data"].back()["id"]);
    } else {
      EXPECT_TRUE(list["first_id"].is_null() && list["last_id"].is_null()) << list;
    }
    return names + (list["has_more"].get<bool>() ? "more" : "end");
  };
  EXPECT_EQ(page(""), "a org/b c end");
  EXPECT_EQ(page("limit=1"), "a more");
  EXPECT_EQ(page("limit=1&after_id=a"), "org/b more");
  EXPECT_EQ(page("limit=20&after_id=org%2Fb"), "c end");
  EXPECT_EQ(page("after_id=c"), "end");
  EXPECT_EQ(page("before_id=c&limit=1"), "org/b more");
  EXPECT_EQ(page("limit=2&before_id=c"), "a org/b end");
  for (const char* wrong :
       {"limit=0", "limit=1001", "limit=x", "after_id=d", "after_id=a&before_id=c"}) {
    EXPECT_EQ(page(wrong), "invalid_request_error") << wrong;
  }
}

}  // namespace
}  // namespace sluice
