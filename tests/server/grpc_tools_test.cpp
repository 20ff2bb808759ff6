// SPDX-License-Identifier: Apache-2.0
// Tools and reasoning over sluice.v1: the same request and the same answer as over HTTP.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/server/grpc_client.h"
#include "tests/server/tool_template.h"

namespace sluice {
namespace {

FakeEngine& with_tools(FakeEngine& engine) {
  engine.editable_model().chat_template = kToolTemplate;
  engine.editable_model().max_model_len = 4096;
  return engine;
}

// A server of a model whose template knows tools, and its client.
struct ToolServer {
  FakeEngine engine;
  RunningServer server{with_tools(engine), grpc_config()};
  GrpcClient client{server->grpc_port()};
};

v1::ChatRequest tool_request() {
  v1::ChatRequest request = chat_request();
  request.add_tools(R"({"type":"function","function":{"name":"add"}})");
  request.add_tools(R"({"type":"function","function":{"name":"now"}})");
  return request;
}

TEST(SluiceService, GivesReasoningAndCallsWholeAndStreamed) {
  ToolServer tools;
  tools.engine.say(
      "<think>\nA\n</think>\n\nText <tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":  1}}\n"
      "</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>");
  const auto whole = tools.client.chat(tool_request());
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  const v1::Choice& choice = whole.messages.front().choices(0);
  EXPECT_EQ(choice.reasoning(), "A");
  EXPECT_EQ(choice.text(), "Text");  // white space beside a call belongs to its markers
  EXPECT_EQ(choice.finish_reason(), "tool_calls");
  ASSERT_EQ(choice.tool_calls_size(), 2);
  EXPECT_EQ(choice.tool_calls(0).name(), "add");
  EXPECT_EQ(choice.tool_calls(0).arguments(), R"({"a":  1})");
  EXPECT_TRUE(choice.tool_calls(0).id().starts_with("call_"));
  EXPECT_EQ(choice.tool_calls(1).name(), "now");
  EXPECT_GT(whole.messages.front().usage().reasoning_tokens(), 0);

  const auto streamed = tools.client.stream_chat(tool_request());
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  std::string reasoning;
  std::map<int, v1::AnswerToolCall> calls;
  for (const auto& message : streamed.messages) {
    for (const auto& part : message.choices()) {
      reasoning += part.reasoning();
      for (const auto& call : part.tool_calls()) {
        v1::AnswerToolCall& joined = calls[call.index()];
        if (!call.name().empty()) joined.set_name(call.name());
        joined.set_arguments(joined.arguments() + call.arguments());
      }
    }
  }
  EXPECT_EQ(reasoning, choice.reasoning());
  EXPECT_EQ(streamed.text(), choice.text());
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_EQ(calls[0].name(), "add");
  EXPECT_EQ(calls[0].arguments(), choice.tool_calls(0).arguments());
}

TEST(SluiceService, RefusesAToolThatIsNoJson) {
  ToolServer tools;
  v1::ChatRequest request = tool_request();
  request.add_tools("{");
  EXPECT_EQ(tools.client.chat(request).param, "tools");
  request = tool_request();
  request.set_tool_choice("{}");
  EXPECT_EQ(tools.client.chat(request).param, "tool_choice");
}

TEST(SluiceService, AForcedChoiceIsAGrammar) {
  ToolServer tools;
  v1::ChatRequest request = tool_request();
  for (const char* choice : {"required", R"({"type":"function","function":{"name":"add"}})"}) {
    request.set_tool_choice(choice);
    EXPECT_EQ(tools.client.chat(request).param, "");
    EXPECT_EQ(submitted_grammar(tools.engine).kind, GrammarKind::kStructuralTag) << choice;
  }
}

TEST(SluiceService, WhatWasThoughtBeforeReachesThePrompt) {
  ToolServer tools;
  v1::ChatRequest request = tool_request();
  v1::Message& answer = *request.add_messages();
  answer.set_role("assistant");
  answer.set_content("Yes");
  EXPECT_EQ(tools.client.chat(request).param, "");
  const size_t length = tools.engine.submitted().back().prompt.size();
  answer.set_reasoning("Because");
  EXPECT_EQ(tools.client.chat(request).param, "");
  EXPECT_EQ(tools.engine.submitted().back().prompt.size(),
            length + std::string_view("<think>\nBecause\n</think>\n\n").size());
}

// This vocabulary has no tokens for the marks of reasoning, which a budget needs.
TEST(SluiceService, AThinkingBudgetIsReadAsOverHttp) {
  ToolServer tools;
  v1::ChatRequest request = tool_request();
  request.set_thinking_token_budget(7);
  const auto refused = tools.client.chat(request);
  EXPECT_EQ(refused.param, "thinking_token_budget");
  EXPECT_NE(refused.status.error_message().find("no tokens of this vocabulary"), std::string::npos)
      << refused.status.error_message();
  request.set_thinking_token_budget(-2);  // -1 is no limit
  EXPECT_EQ(tools.client.chat(request).param, "thinking_token_budget");
}

TEST(SluiceService, FormatsOfAnswersAreTheRequests) {
  ToolServer tools;
  v1::ChatRequest chat = chat_request();
  chat.set_response_format(R"({"type":"json_object"})");
  EXPECT_EQ(tools.client.chat(chat).param, "");
  EXPECT_TRUE(submitted_grammar(tools.engine).is_set());
  chat.set_response_format("json");
  EXPECT_EQ(tools.client.chat(chat).param, "response_format");
  chat.clear_response_format();
  chat.set_structured_outputs(R"({"regex":"a+"})");
  EXPECT_EQ(tools.client.chat(chat).param, "");
  EXPECT_EQ(submitted_grammar(tools.engine).kind, GrammarKind::kRegex);

  v1::CompletionRequest completion;
  completion.add_prompts()->set_text("Hi");
  completion.set_structured_outputs(R"({"choice":["a","b"]})");
  EXPECT_EQ(tools.client.complete(completion).param, "");
  EXPECT_TRUE(submitted_grammar(tools.engine).is_set());
  completion.set_structured_outputs("[]");
  EXPECT_EQ(tools.client.complete(completion).param, "structured_outputs");
}

}  // namespace
}  // namespace sluice
