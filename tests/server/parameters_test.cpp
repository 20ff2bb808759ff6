// SPDX-License-Identifier: Apache-2.0
// Every parameter over the wire: it does what it says, or is refused by name.
#include "server/parameters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/server/running_server.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

// Of the last request.
std::string prompt_text(const FakeEngine& engine) {
  const ValidRequest request = engine.submitted().back();
  std::string text;
  for (const TokenId id : request.prompt) {
    text += engine.tokenizer().token_bytes(id);
  }
  return text;
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

  // What the last request asked the engine to continue.
  [[nodiscard]] std::string last_prompt() const { return prompt_text(engine_); }

  FakeEngine engine_;
  RunningServer server_{engine_};
};

TEST_F(Parameters, WhatIsNotOfferedIsRefusedByName) {
  int num_refused = 0;
  for (const Endpoint endpoint : {Endpoint::kChat, Endpoint::kCompletion}) {
    for (const Parameter& parameter : request_parameters()) {
      if (!is_offered(parameter, endpoint)) continue;
      const std::string name(parameter.name);
      if (parameter.disposition == Disposition::kIgnored) {
        EXPECT_EQ(ask(endpoint, {{name, "anything"}}).status, 200) << name;
      }
      if (parameter.disposition != Disposition::kNeutralOnly) continue;
      const HttpReply reply = ask(endpoint, {{name, 12345}});
      EXPECT_EQ(reply.status, 400) << name;
      EXPECT_EQ(Json::parse(reply.body)["error"]["param"], name);
      EXPECT_EQ(ask(endpoint, {{name, nullptr}}).status, 200) << name;
      ++num_refused;
    }
  }
  EXPECT_GT(num_refused, 30);
  EXPECT_EQ(ask(Endpoint::kCompletion, {{"suffix", "end"}}).status, 400);
  EXPECT_EQ(ask(Endpoint::kCompletion, {{"suffix", ""}}).status, 200);
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

TEST_F(Parameters, PriorityDeadlineAndSeedReachTheEngine) {
  const HttpReply reply = ask(Endpoint::kCompletion, {{"priority", -3}});
  EXPECT_EQ(engine_.submitted().back().priority, -3);
  EXPECT_EQ(engine_.submitted().back().max_queue_wait_ms, 0);
  // Who names no seed is told the one that was taken, and gets the same answer with it.
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
  for (size_t at = 0; (at = reply.body.find("data: {", at)) != std::string::npos;) {
    const size_t end = reply.body.find("\n\n", at);
    const Json event = Json::parse(reply.body.substr(at + 6, end - at - 6));
    ASSERT_TRUE(event["usage"].is_object()) << event;
    counts.push_back(event["usage"]["completion_tokens"]);
    at = end;
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
  EXPECT_EQ(prompt_text(engine), "none");
  EXPECT_EQ(status_of(R"(,"documents":[{"title":"A","text":"b"},{"title":"C","text":"d"}])"), 200);
  EXPECT_EQ(prompt_text(engine), "[A: b][C: d]");
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
  EXPECT_EQ(prompt_text(engine), "Hi|none|False|calm");
  client.post(kChatPath, chat_body(R"(,"chat_template_kwargs":{"messages":[]})"));
  EXPECT_EQ(client.read_reply().status, 400);
}

}  // namespace
}  // namespace sluice
