// SPDX-License-Identifier: Apache-2.0
// sluice.v1 as its clients see it: conversations, completions, templates, and what is refused.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "tests/server/grpc_client.h"

namespace sluice {
namespace {

using grpc::StatusCode;

TEST(SluiceService, ChatsWholeAndStreamed) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::ChatRequest request = chat_request();
  request.mutable_sampling()->set_logprobs(2);
  request.mutable_sampling()->set_return_token_ids(true);
  const auto whole = client.chat(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  EXPECT_EQ(whole.text(), "Hello");
  const auto& answer = whole.messages.front();
  EXPECT_EQ(answer.model(), "fake");
  EXPECT_EQ(answer.system_fingerprint(), "fp_fake");
  EXPECT_TRUE(answer.id().starts_with("chatcmpl-"));
  EXPECT_EQ(answer.usage().completion_tokens(), 6);
  EXPECT_EQ(answer.usage().cached_tokens(), 3);
  ASSERT_EQ(answer.choices_size(), 1);
  EXPECT_EQ(answer.choices(0).finish_reason(), "stop");
  EXPECT_EQ(answer.choices(0).token_ids_size(), 6);
  EXPECT_EQ(answer.choices(0).prompt_token_ids_size(), answer.usage().prompt_tokens());
  ASSERT_EQ(answer.choices(0).logprobs_size(), 6);
  EXPECT_EQ(answer.choices(0).logprobs(0).token().token(), "H");
  EXPECT_EQ(answer.choices(0).logprobs(0).token().logprob(), -0.5F);
  ASSERT_EQ(answer.choices(0).logprobs(0).top_size(), 2);
  EXPECT_EQ(answer.choices(0).logprobs(0).top(1).token(), "b");

  const auto streamed = client.stream_chat(request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  EXPECT_EQ(streamed.text(), "Hello");
  EXPECT_EQ(streamed.messages.back().usage().completion_tokens(), 6);
  int num_logprobs = 0;
  int num_prompt_ids = 0;
  for (const auto& message : streamed.messages) {
    EXPECT_EQ(message.id(), streamed.messages.front().id());
    for (const auto& choice : message.choices()) {
      num_logprobs += choice.logprobs_size();
      num_prompt_ids += choice.prompt_token_ids_size();
    }
  }
  EXPECT_EQ(num_logprobs, 6);
  EXPECT_EQ(num_prompt_ids, answer.usage().prompt_tokens());
}

TEST(SluiceService, CompletesSeveralPromptsAndChoices) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::CompletionRequest request;
  request.add_prompts()->set_text("a");
  request.add_prompts()->mutable_tokens()->add_ids(98);
  request.mutable_sampling()->set_n(2);
  request.set_echo(true);
  const auto whole = client.complete(request);
  ASSERT_TRUE(whole.status.ok()) << whole.status.error_message();
  ASSERT_EQ(whole.messages.front().choices_size(), 4);
  EXPECT_EQ(whole.messages.front().choices(0).text(), "aHello");
  EXPECT_EQ(whole.messages.front().choices(3).text(), "bHello");
  EXPECT_EQ(whole.messages.front().choices(3).index(), 3);
  const auto streamed = client.stream_complete(request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status.error_message();
  std::vector<std::string> texts(4);
  for (const auto& message : streamed.messages) {
    for (const auto& choice : message.choices()) {
      texts[static_cast<size_t>(choice.index())] += choice.text();
    }
  }
  EXPECT_EQ(texts, (std::vector<std::string>{"aHello", "aHello", "bHello", "bHello"}));
}

TEST(SluiceService, ScoresAnEchoedPrompt) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::CompletionRequest request;
  request.add_prompts()->set_text("abc");
  request.set_echo(true);
  request.mutable_sampling()->set_logprobs(1);
  for (const auto& reply : {client.complete(request), client.stream_complete(request)}) {
    ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
    std::string scored;
    for (const auto& message : reply.messages) {
      for (const auto& choice : message.choices()) {
        for (const auto& item : choice.prompt_logprobs()) scored += item.token().token();
      }
    }
    EXPECT_EQ(scored, "abc");  // <s> comes before it
    EXPECT_EQ(reply.text(), "abcHello");
  }
}

TEST(SluiceService, TellsTemplatesOfToolCallsAndVariables) {
  FakeEngine engine;
  engine.editable_model().chat_template =
      "{% for m in messages %}{{ m.role }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.name }}{{ c.function.arguments.x }}{% endfor %}{% endfor %}{{ mood }}";
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::ChatRequest request = chat_request();
  v1::Message& message = *request.add_messages();
  message.set_role("assistant");
  v1::ToolCall& call = *message.add_tool_calls();
  call.set_id("1");
  call.set_name("f");
  call.set_arguments(R"({"x":7})");
  request.set_chat_template_kwargs(R"({"mood":"good"})");
  const auto reply = client.chat(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  const auto ids = engine.submitted().front().prompt;
  EXPECT_EQ(std::string(ids.begin(), ids.end()), "userassistantf7good");
}

TEST(SluiceService, BringsMessagesIntoTheSameFormAsHttp) {
  FakeEngine engine;
  engine.editable_model().chat_template =
      "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'ipython'] %}"
      "{{ raise_exception('who?') }}{% endif %}<{{ m.role }}>{% for p in m['content'] %}"
      "{{ p['text'] }}{% endfor %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}"
      "{% endfor %}{% endfor %}";
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::ChatRequest request;
  v1::Message& instruction = *request.add_messages();
  instruction.set_role("developer");
  instruction.set_content("Brief.");
  v1::Message& message = *request.add_messages();
  message.set_role("assistant");
  for (const char* arguments : {"", "{\"cut", "null"}) {
    v1::ToolCall& call = *message.add_tool_calls();
    call.set_name("f");
    call.set_arguments(arguments);
  }
  v1::Message& result = *request.add_messages();
  result.set_role("ipython");
  result.set_content("7");
  const auto reply = client.chat(request);
  ASSERT_TRUE(reply.status.ok()) << reply.status.error_message();
  const auto ids = engine.submitted().front().prompt;
  EXPECT_EQ(std::string(ids.begin(), ids.end()), "<system>Brief.<assistant>{}{\"cut{}<ipython>7");
}

TEST(SluiceService, RefusesByNameWhatItDoesNotTake) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  v1::ChatRequest request = chat_request();
  request.set_model("other");
  EXPECT_EQ(client.chat(request).status.error_code(), StatusCode::NOT_FOUND);
  request = chat_request();
  request.set_chat_template_kwargs("[]");
  EXPECT_EQ(client.chat(request).param, "chat_template_kwargs");
  request = chat_request();
  request.mutable_messages(0)->set_role("");
  EXPECT_EQ(client.stream_chat(request).param, "messages");
  request = chat_request();
  request.mutable_sampling()->set_best_of(2);
  EXPECT_EQ(client.stream_chat(request).param, "best_of");
  EXPECT_EQ(client.chat({}).status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(client.complete({}).param, "prompt");
}

TEST(SluiceService, ListsTheNamesThatTheModelIsServedUnder) {
  FakeEngine engine;
  RunningServer server(engine, grpc_config());
  GrpcClient client(server->grpc_port());
  grpc::ClientContext context;
  v1::ListModelsResponse models;
  ASSERT_TRUE(client.sluice->ListModels(&context, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 2);
  EXPECT_EQ(models.models(0).id(), "fake");
}

}  // namespace
}  // namespace sluice
