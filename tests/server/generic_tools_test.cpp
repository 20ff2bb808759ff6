// SPDX-License-Identifier: Apache-2.0
// Tools for chat templates that describe none: in the instructions, and calls and results as text.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/server/running_server.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kTools =
    R"(,"tools":[{"type":"function","function":{"name":"add","description":"Adds","parameters":)"
    R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}}}}}])";
constexpr const char* kNamed = R"(,"tool_choice":{"type":"function","function":{"name":"add"}})";
constexpr const char* kCall =
    "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1,  \"b\": 2}}\n</tool_call>";
// SmolLM2's kind: every message and nothing else.
constexpr const char* kPlainTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

// Phi-4-mini's kind: tools are the system message's, as JSON text, and calls only text.
constexpr const char* kSystemTools =
    "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none "
    "%}{{ '<|' + m['role'] + '|>' + m['content'] + '<|tool|>' + m['tools'] + '<|/tool|><|end|>' }}"
    "{% else %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}";

class GenericTools : public ::testing::Test {
 protected:
  void serve(const std::string& chat_template) {
    engine_.editable_model().chat_template = chat_template;
    engine_.editable_model().max_model_len = 4096;
    server_ = std::make_unique<RunningServer>(engine_, config_);
  }

  HttpReply post(const std::string& body) {
    HttpClient client(server_->port());
    client.post(kChatPath, body);
    return client.read_reply();
  }

  Json choice_of(const std::string& more) {
    const HttpReply reply = post(chat_body(more));
    EXPECT_EQ(reply.status, 200) << reply.body;
    return reply.status == 200 ? Json::parse(reply.body)["choices"][0] : Json::object();
  }

  FakeEngine engine_;
  Config config_;
  std::unique_ptr<RunningServer> server_;
};

TEST_F(GenericTools, ATemplateThatPrintsNoToolsGetsThemAsInstructions) {
  serve(kPlainTemplate);
  engine_.say("Wait. " + std::string(kCall));
  const Json choice = choice_of(kTools);
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "add");
  const std::string prompt = engine_.last_prompt();
  EXPECT_EQ(prompt.find("<system>You can call functions."), 0U) << prompt;
  EXPECT_NE(prompt.find(R"({"name":"add","description":"Adds","parameters":{)"), std::string::npos);
  EXPECT_EQ(choice_of(std::string(kTools) + kNamed)["finish_reason"], "stop") << "a forced call";
  EXPECT_EQ(submitted_grammar(engine_).is_set(), true);
  EXPECT_EQ(post(chat_body(std::string(kTools) + R"(,"tool_choice":"none")")).status, 200);
  EXPECT_EQ(engine_.last_prompt().find("You can call"), std::string::npos);
}

TEST_F(GenericTools, CallsAndResultsAreTextForATemplateWithoutTools) {
  serve(kPlainTemplate);
  const std::string messages =
      R"({"messages":[{"role":"system","content":"Be brief"},{"role":"user","content":"Q"},)"
      R"({"role":"assistant","content":"","tool_calls":[{"id":"c","type":"function","function":)"
      R"({"name":"add","arguments":"{\"a\": 1}"}}]},{"role":"tool","tool_call_id":"c","content":"3"},)"
      R"({"role":"user","content":"And?"}])";
  ASSERT_EQ(post(messages + kTools + "}").status, 200);
  const std::string prompt = engine_.last_prompt();
  EXPECT_EQ(prompt.find("<system>Be brief\n\nYou can call functions."), 0U) << prompt;
  const std::string turns =
      "<user>Q<assistant><tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>"
      "<user><tool_response>\n3\n</tool_response>\n\nAnd?<assistant>";
  EXPECT_TRUE(prompt.ends_with(turns)) << prompt;
}

TEST_F(GenericTools, ATemplateWithoutInstructionsShowsToolsInTheFirstTurn) {
  // Gemma 2's kind.
  serve(
      "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
      "{{ raise_exception('turns must alternate') }}{% endif %}<{{ m.role }}>{{ m.content }}"
      "{% endfor %}");
  ASSERT_EQ(post(chat_body(kTools)).status, 200);
  EXPECT_EQ(engine_.last_prompt().find("<user>You can call functions."), 0U) << engine_.last_prompt();
}

TEST_F(GenericTools, ATemplateThatTakesThemInTheSystemMessageGetsThemThere) {
  config_.tool_call_parser = "phi4_mini";
  serve(kSystemTools);
  engine_.say(R"(<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]<|/tool_call|>)");
  Json choice = choice_of(kTools);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"a": 1})");
  EXPECT_EQ(engine_.last_prompt().find(R"(<|system|><|tool|>[{"name":"add","description":"Adds",)"),
            0U)
      << engine_.last_prompt();
  EXPECT_NE(engine_.last_prompt().find("}}}]<|/tool|><|end|><|user|>Hi"), std::string::npos);
  choice = choice_of(std::string(kTools) + kNamed);
  const GrammarSpec grammar = submitted_grammar(engine_);
  EXPECT_EQ(grammar.kind, GrammarKind::kStructuralTag);
  EXPECT_NE(grammar.text.find("<|tool_call|>["), std::string::npos) << grammar.text;
  // Instructions of the client stay in front of them, and a conversation's calls become text.
  const HttpReply reply = post(
      R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Add"},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":)"
      R"({"name":"add","arguments":"{\"a\": 1}"}}]},{"role":"tool","tool_call_id":"c","content":"3"}])" +
      std::string(kTools) + "}");
  EXPECT_EQ(reply.status, 200) << reply.body;
  const std::string prompt = engine_.last_prompt();
  EXPECT_EQ(prompt.find("<|system|>Be brief.<|tool|>[{"), 0U) << prompt;
  EXPECT_NE(prompt.find(R"(<|assistant|><|tool_call|>[{"name": "add", "arguments": {"a":1}}])"
                        "<|/tool_call|><|end|><|tool|>3<|end|>"),
            std::string::npos)
      << prompt;
  // Nothing is added where no call may come.
  choice_of(std::string(kTools) + R"(,"tool_choice":"none")");
  EXPECT_EQ(engine_.last_prompt().find("<|tool|>"), std::string::npos);
}

// The template of an unknown family: what tools look like to its model is anyone's guess.
TEST_F(GenericTools, AnUnknownFamilysSystemMessageGetsTheGenericForm) {
  serve(kSystemTools);
  engine_.say(kCall);
  EXPECT_EQ(choice_of(kTools)["finish_reason"], "tool_calls");
  EXPECT_NE(engine_.last_prompt().find("You can call functions."), std::string::npos);
  EXPECT_EQ(engine_.last_prompt().find("<|tool|>"), std::string::npos);
}

}  // namespace
}  // namespace sluice
