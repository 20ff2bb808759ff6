// SPDX-License-Identifier: Apache-2.0
// Shapes of responses and events over a real socket, against what OpenAI's API documents.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/server/running_server.h"
#include "tests/server/sse_events.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

HttpReply post(RunningServer& server, const std::string& path, const std::string& body) {
  HttpClient client(server.port());
  client.post(path, body);
  return client.read_reply();
}

TEST(Chat, AnswersWithOneMessageAndUsage) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply reply = post(server, kChatPath, chat_body(R"(,"seed":-7)"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("Content-Type"), "application/json");
  EXPECT_EQ(reply.header("X-Sluice-Seed"), "-7");
  const Json json = Json::parse(reply.body);
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(json["id"].get<std::string>().size(), 9U + 32U);
  EXPECT_EQ(json["model"], "fake");
  EXPECT_EQ(json["system_fingerprint"], "fp_fake");
  EXPECT_TRUE(json["created"].is_number_integer());
  ASSERT_EQ(json["choices"].size(), 1U);
  const Json& choice = json["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["message"],
            (Json{{"role", "assistant"}, {"content", "Hello"}, {"refusal", nullptr}}));
  EXPECT_EQ(choice["logprobs"], nullptr);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], nullptr);
  // Template: control tokens 1 each; "user\n", "Hi", end, "\n", start, "assistant\n".
  EXPECT_EQ(
      json["usage"],
      (Json{{"prompt_tokens", 1 + 5 + 2 + 1 + 1 + 1 + 10},
            {"completion_tokens", 6},
            {"total_tokens", 27},
            {"prompt_tokens_details", {{"cached_tokens", 3}}},
            {"completion_tokens_details", {{"reasoning_tokens", 0}}},
            {"timings",
             {{"queued_ms", 1.5}, {"prefill_ms", 20.0}, {"decode_ms", 6.0}, {"preemptions", 2}}}}));
  EXPECT_EQ(static_cast<int64_t>(engine.submitted().at(0).sampling.seed), -7);
}

TEST(Chat, TheEndOfABoundTextIsNoStopToken) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string bound =
      R"(,"ignore_eos":true,"max_tokens":40,"structured_outputs":{"regex":"Hello"})";
  const auto choice_of = [&](const std::string& fields) {
    return Json::parse(post(server, kChatPath, chat_body(fields)).body)["choices"][0];
  };
  EXPECT_EQ(choice_of(bound)["finish_reason"], "stop");
  EXPECT_EQ(choice_of(bound)["stop_reason"], nullptr);
  const std::string end = std::to_string(ByteTokenizer::kTurnEnd);
  EXPECT_EQ(choice_of(bound + R"(,"stop_token_ids":[)" + end + "]")["stop_reason"].dump(), end);
}

TEST(Chat, TextOfTheUserNeverBecomesAControlToken) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply reply = post(
      server, kChatPath, R"({"messages":[{"role":"user","content":"<|im_end|>"}],"max_tokens":1})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto requests = engine.submitted();
  const auto& ids = requests.at(0).prompt;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), ByteTokenizer::kTurnEnd), 1);
}

TEST(Chat, StreamsRoleThenTextThenFinishThenUsageThenDone) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply reply = post(
      server, kChatPath, chat_body(R"(,"stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.header("Content-Type"), "text/event-stream; charset=utf-8");
  EXPECT_EQ(reply.header("Cache-Control"), "no-cache");
  const auto events = data_of_events(reply.body);
  ASSERT_EQ(events.size(), 1U + 5U + 1U + 1U + 1U);
  EXPECT_EQ(events.back(), "[DONE]");
  const Json first = Json::parse(events[0]);
  EXPECT_EQ(first["object"], "chat.completion.chunk");
  EXPECT_EQ(first["choices"][0]["delta"], (Json{{"role", "assistant"}, {"content", ""}}));
  EXPECT_EQ(first["usage"], nullptr);
  EXPECT_TRUE(first.contains("usage"));
  std::string text;
  for (size_t i = 1; i < 6; ++i) {
    const Json event = Json::parse(events[i]);
    EXPECT_EQ(event["id"], first["id"]);
    EXPECT_EQ(event["created"], first["created"]);
    EXPECT_EQ(event["choices"][0]["finish_reason"], nullptr);
    text += event["choices"][0]["delta"]["content"].get<std::string>();
  }
  EXPECT_EQ(text, "Hello");
  const Json finish = Json::parse(events[6]);
  EXPECT_EQ(finish["choices"][0]["delta"], Json::object());
  EXPECT_EQ(finish["choices"][0]["finish_reason"], "stop");
  const Json usage = Json::parse(events[7]);
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_EQ(usage["usage"]["completion_tokens"], 6);
  EXPECT_EQ(usage["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
}

TEST(Chat, UsageAndDoneLeaveInOneChunk) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post(kChatPath, chat_body(R"(,"stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  engine.step();
  EXPECT_NE(client.read_until("\r\n\r\n"), "");
  const std::string first = client.read_chunk();
  EXPECT_NE(first.find("\"role\":\"assistant\""), std::string::npos);
  EXPECT_NE(first.find("\"content\":\"H\""), std::string::npos);
  for (int i = 0; i < 5; ++i) {
    engine.step();
    const std::string chunk = client.read_chunk();
    EXPECT_EQ(chunk.find("[DONE]") != std::string::npos, i == 4);
    EXPECT_EQ(chunk.find("\"prompt_tokens\"") != std::string::npos, i == 4);
  }
  EXPECT_EQ(client.read_chunk(), "");
}

TEST(Chat, HeadersWaitForTheFirstToken) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  engine.fail_at(0);
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post(kChatPath, chat_body(R"(,"stream":true)"));
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  engine.step();
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(Json::parse(reply.body)["error"]["message"],
            "The logits of this request are not finite.");
}

TEST(Chat, ErrorInTheMiddleIsAnEventBeforeDone) {
  FakeEngine engine;
  engine.fail_at(2);
  RunningServer server(engine);
  const HttpReply reply = post(server, kChatPath, chat_body(R"(,"stream":true)"));
  EXPECT_EQ(reply.status, 200);
  const auto events = data_of_events(reply.body);
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(Json::parse(events[events.size() - 2])["error"]["code"], 500);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST(Chat, StopStringEndsTheTextAndAbortsTheRequest) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  engine.say("one STOP two");
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post(kChatPath, chat_body(R"(,"stop":["never","STOP"])"));
  ASSERT_TRUE(eventually([&] { return engine.num_running() == 1; }));
  for (int i = 0; i < 8; ++i) engine.step();
  const Json choice = Json::parse(client.read_reply().body)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "one ");
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_EQ(choice["stop_reason"], "STOP");
  EXPECT_EQ(engine.num_aborted(), 1);
  engine.step();
  EXPECT_EQ(engine.num_running(), 0U);
}

TEST(Chat, StopTokenIsReportedAndLeftOut) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply reply = post(server, kChatPath, chat_body(R"(,"stop_token_ids":[108])"));
  const Json choice = Json::parse(reply.body)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "He");
  EXPECT_EQ(choice["stop_reason"], 108);
}

TEST(Chat, EveryChoiceOfAStreamStartsWithARoleAndFinishes) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply reply =
      post(server, kChatPath, chat_body(R"(,"stream":true,"n":3,"seed":5,"max_tokens":2)"));
  std::vector<int> roles(3);
  std::vector<int> finishes(3);
  auto events = data_of_events(reply.body);
  events.pop_back();
  for (const std::string& event : events) {
    const Json choice = Json::parse(event)["choices"][0];
    const size_t index = choice["index"];
    roles.at(index) += choice["delta"].contains("role") ? 1 : 0;
    finishes.at(index) += choice["finish_reason"] == "length" ? 1 : 0;
  }
  EXPECT_EQ(roles, std::vector<int>({1, 1, 1}));
  EXPECT_EQ(finishes, std::vector<int>({1, 1, 1}));
  const auto requests = engine.submitted();
  ASSERT_EQ(requests.size(), 3U);
  EXPECT_EQ(requests[0].sampling.seed, 5U);
  EXPECT_NE(requests[1].sampling.seed, requests[2].sampling.seed);
}

TEST(Chat, LogprobsNameTokensAndTheirBytes) {
  FakeEngine engine;
  engine.say("\xC3\xA9");
  RunningServer server(engine);
  const HttpReply reply =
      post(server, kChatPath, chat_body(R"(,"logprobs":true,"top_logprobs":2,"max_tokens":2)"));
  const Json choice = Json::parse(reply.body)["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "\xC3\xA9");
  const Json& content = choice["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[0]["bytes"], Json::array({0xC3}));
  EXPECT_EQ(content[0]["token"], "\xEF\xBF\xBD");
  EXPECT_EQ(content[0]["logprob"], -0.5);
  ASSERT_EQ(content[0]["top_logprobs"].size(), 2U);
  EXPECT_EQ(content[0]["top_logprobs"][1],
            (Json{{"token", "b"}, {"logprob", -1.5}, {"bytes", {98}}}));
}

TEST(Chat, SeedsOfUnseededRequestsFollowFromTheServersSeed) {
  std::vector<std::string> seeds;
  for (int run = 0; run < 2; ++run) {
    FakeEngine engine;
    Config config;
    config.seed = 99;
    RunningServer server(engine, config);
    for (int i = 0; i < 2; ++i) {
      seeds.push_back(post(server, kChatPath, chat_body()).header("X-Sluice-Seed"));
    }
  }
  EXPECT_EQ(seeds[0], seeds[2]);
  EXPECT_EQ(seeds[1], seeds[3]);
  EXPECT_NE(seeds[0], seeds[1]);
}

// Clients of vLLM and llama.cpp say so that any seed will do.
TEST(Chat, ASeedOfMinusOneIsNone) {
  FakeEngine engine;
  RunningServer server(engine);
  const auto seed = [&](const std::string& value) {
    const HttpReply reply = post(server, kChatPath, chat_body(",\"seed\":" + value));
    const int64_t named = std::stoll(reply.header("X-Sluice-Seed"));
    EXPECT_EQ(engine.submitted().back().sampling.seed, static_cast<uint64_t>(named)) << reply.head;
    return named;
  };
  const int64_t first = seed("-1");
  EXPECT_NE(first, -1);
  EXPECT_NE(seed("-1"), first);
  EXPECT_NE(seed("-1.0"), -1);
  EXPECT_EQ(seed("-7"), -7);
}

TEST(Chat, FinalMessageCanBeContinued) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply reply = post(server,
                               kChatPath,
                               R"({"messages":[{"role":"user","content":"Hi"},
                                {"role":"assistant","content":"Sure: "}],
                               "continue_final_message":true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const auto ids = engine.submitted().at(0).prompt;
  EXPECT_EQ(std::string(ids.end() - 6, ids.end()), "Sure: ");
}

// A model whose own template is of no use serves what needs none.
TEST(Chat, TemplateThatDoesNotCompileIsAnErrorOfChatsAlone) {
  for (const char* source : {"{% if %}", "{% mystery %}", "{{ x | nofilter }}"}) {
    FakeEngine engine;
    engine.editable_model().chat_template = source;
    ::testing::internal::CaptureStderr();
    RunningServer server(engine);
    const std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("chat_template_unusable"), std::string::npos) << log;
    EXPECT_EQ(post(server, kCompletionPath, R"({"prompt":"x","max_tokens":1})").status, 200);
    const HttpReply chat = post(server, kChatPath, chat_body());
    EXPECT_EQ(chat.status, 400);
    EXPECT_NE(chat.body.find("chat template cannot be used: "), std::string::npos) << chat.body;
    EXPECT_NE(chat.body.find("line 1"), std::string::npos) << chat.body;
    EXPECT_EQ(post(server, "/tokenize", R"({"messages":[{"role":"user","content":"x"}]})").status,
              400);
  }
}

// What is refused when it is reached is the request's error.
TEST(Chat, TemplateThatLoadsOthersIsAnErrorOfChatsAlone) {
  FakeEngine engine;
  engine.editable_model().chat_template = "{{ messages[0].content }}{% include 'x' %}";
  RunningServer server(engine);
  EXPECT_EQ(post(server, kCompletionPath, R"({"prompt":"x","max_tokens":1})").status, 200);
  const HttpReply chat = post(server, kChatPath, chat_body());
  EXPECT_EQ(chat.status, 400);
  EXPECT_NE(chat.body.find("The chat template failed: "), std::string::npos) << chat.body;
}

TEST(Chat, GivenTemplateThatDoesNotCompileStopsTheStart) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.at("broken.jinja");
  std::ofstream(path) << "{% if %}";
  FakeEngine engine;
  Config config;
  config.port = 0;
  config.chat_template = path;
  const auto server = HttpServer::create(config, engine);
  ASSERT_FALSE(server);
  EXPECT_NE(server.error().message.find(path), std::string::npos) << server.error().message;
}

TEST(Completions, AnswerEachPromptInOrder) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply reply =
      post(server, kCompletionPath, R"({"prompt":["a","bc"],"n":2,"max_tokens":3,"logprobs":1})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = Json::parse(reply.body);
  EXPECT_EQ(json["object"], "text_completion");
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("cmpl-"));
  ASSERT_EQ(json["choices"].size(), 4U);
  const Json& choice = json["choices"][3];
  EXPECT_EQ(choice["index"], 3);
  EXPECT_EQ(choice["text"], "Hel");
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["logprobs"]["tokens"], (Json{"H", "e", "l"}));
  EXPECT_EQ(choice["logprobs"]["text_offset"], (Json{0, 1, 2}));
  EXPECT_EQ(choice["logprobs"]["top_logprobs"][0], (Json{{"a", -0.5}, {"H", -0.5}}));
  EXPECT_EQ(json["usage"]["prompt_tokens"], 2 + 3);  // each with its <s>
  EXPECT_EQ(json["usage"]["completion_tokens"], 12);
}

TEST(Completions, TakeTokenIds) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply reply =
      post(server,
           kCompletionPath,
           R"({"prompt":[[65,66],[67]],"max_tokens":1,"return_token_ids":true})");
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = Json::parse(reply.body);
  EXPECT_EQ(json["choices"][0]["prompt_token_ids"], (Json{65, 66}));
  EXPECT_EQ(json["choices"][1]["prompt_token_ids"], Json::array({67}));
  EXPECT_EQ(json["choices"][0]["token_ids"], Json::array({'H'}));
}

TEST(Streams, PromptsOfTokensStandInTheFirstEvent) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string asked = R"("stream":true,"return_token_ids":true,)";
  const HttpReply completions =
      post(server, kCompletionPath, "{" + asked + R"("prompt":[[65,66],[67]],"n":2})");
  std::vector<std::vector<Json>> prompts(4);
  for (const std::string& event : data_of_events(completions.body)) {
    if (event == "[DONE]") break;
    const Json choice = Json::parse(event)["choices"][0];
    prompts[choice["index"].get<size_t>()].push_back(choice.value("prompt_token_ids", Json()));
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    ASSERT_GT(prompts[i].size(), 1U);
    EXPECT_EQ(prompts[i][0], i < 2 ? Json({65, 66}) : Json::array({67})) << i;
    for (size_t k = 1; k < prompts[i].size(); ++k) EXPECT_EQ(prompts[i][k], nullptr) << i;
  }
  const HttpReply chat =
      post(server, kChatPath, chat_body("," + asked.substr(0, asked.size() - 1)));
  const std::vector<std::string> events = data_of_events(chat.body);
  ASSERT_GT(events.size(), 3U);
  const std::vector<TokenId> prompt = engine.submitted().back().prompt;
  EXPECT_EQ(Json::parse(events[0])["prompt_token_ids"], Json(prompt));
  for (size_t i = 1; i + 1 < events.size(); ++i) {
    EXPECT_FALSE(Json::parse(events[i]).contains("prompt_token_ids")) << events[i];
  }
  const HttpReply without = post(server, kChatPath, chat_body(R"(,"stream":true)"));
  EXPECT_EQ(without.body.find("prompt_token_ids"), std::string::npos);
}

TEST(Completions, EchoComesBeforeTheAnswerOnce) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string body = R"({"prompt":["ab","c"],"echo":true,"n":2,"max_tokens":2)";
  const Json whole = Json::parse(post(server, kCompletionPath, body + "}").body);
  ASSERT_EQ(whole["choices"].size(), 4U);
  EXPECT_EQ(whole["choices"][1]["text"], "abHe");
  EXPECT_EQ(whole["choices"][2]["text"], "cHe");
  std::string streamed;
  const HttpReply reply = post(server, kCompletionPath, body + R"(,"stream":true})");
  for (const std::string& event : data_of_events(reply.body)) {
    if (event == "[DONE]") break;
    const Json choice = Json::parse(event)["choices"][0];
    if (choice["index"] == 0) streamed += choice["text"].get<std::string>();
  }
  EXPECT_EQ(streamed, "abHe");
}

// What lm-eval and other scorers ask for.
TEST(Completions, EchoWithLogprobsScoresThePrompt) {
  FakeEngine engine;
  RunningServer server(engine);
  const std::string body = R"({"prompt":[120,195,169,122],"echo":true,"logprobs":1,"max_tokens":1)";
  const Json choice = Json::parse(post(server, kCompletionPath, body + "}").body)["choices"][0];
  EXPECT_EQ(choice["text"], "x\xC3\xA9zH");
  const Json& logprobs = choice["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (Json{"x", "\xEF\xBF\xBD", "\xEF\xBF\xBD", "z", "H"}));
  EXPECT_EQ(logprobs["token_logprobs"], (Json{nullptr, -1.0, -1.0, -1.0, -0.5}));
  // A character in two tokens begins where its first one does.
  EXPECT_EQ(logprobs["text_offset"], (Json{0, 1, 1, 2, 3}));
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][3], (Json{{"a", -0.5}, {"z", -1.0}}));
  EXPECT_EQ(logprobs["top_logprobs"][4], (Json{{"a", -0.5}, {"H", -0.5}}));
  // A stream gives it in its first event.
  const HttpReply reply = post(server, kCompletionPath, body + R"(,"stream":true})");
  const Json first = Json::parse(data_of_events(reply.body).at(0))["choices"][0];
  EXPECT_EQ(first["logprobs"], logprobs);
  EXPECT_EQ(first["text"], choice["text"]);
}

TEST(Completions, EchoAloneNeedsNoTokens) {
  FakeEngine engine;
  RunningServer server(engine);
  const Json json =
      Json::parse(post(server,
                       kCompletionPath,
                       R"({"prompt":["ab","c"],"echo":true,"logprobs":0,"max_tokens":0})")
                      .body);
  ASSERT_EQ(json["choices"].size(), 2U);
  EXPECT_EQ(json["choices"][0]["text"], "ab");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "length");
  // The beginning-of-text token is scored from, and no part of the text.
  const Json& logprobs = json["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], (Json{"<s>", "a", "b"}));
  EXPECT_EQ(logprobs["text_offset"], (Json{0, 0, 1}));
  EXPECT_EQ(logprobs["token_logprobs"], (Json{nullptr, -1.0, -1.0}));
  EXPECT_EQ(logprobs["top_logprobs"], (Json{nullptr, {{"a", -1.0}}, {{"b", -1.0}}}));
  EXPECT_EQ(json["usage"]["completion_tokens"], 0);
  EXPECT_EQ(post(server, kCompletionPath, R"({"prompt":"a","max_tokens":0})").status, 400);
  EXPECT_EQ(post(server, kChatPath, chat_body(R"(,"max_tokens":0)")).status, 400);
}

TEST(PromptLogprobs, HaveTheShapeOfVllm) {
  FakeEngine engine;
  RunningServer server(engine);
  const Json completion = Json::parse(
      post(server, kCompletionPath, R"({"prompt":[[120,121],[122]],"n":2,"prompt_logprobs":1})")
          .body);
  const Json expected = {nullptr,
                         {{"121", {{"logprob", -1.0}, {"rank", 2}, {"decoded_token", "y"}}},
                          {"97", {{"logprob", -0.5}, {"rank", 1}, {"decoded_token", "a"}}}}};
  EXPECT_EQ(completion["choices"][0]["prompt_logprobs"], expected);
  EXPECT_EQ(completion["choices"][1]["prompt_logprobs"], expected);
  EXPECT_EQ(completion["choices"][2]["prompt_logprobs"], Json::array({nullptr}));
  const Json chat = Json::parse(post(server, kChatPath, chat_body(R"(,"prompt_logprobs":0)")).body);
  EXPECT_GT(chat["prompt_logprobs"].size(), 3U);
  EXPECT_EQ(chat["prompt_logprobs"].size(), chat["usage"]["prompt_tokens"]);
  EXPECT_EQ(chat["prompt_logprobs"][1].size(), 1U);
  // No other requests are scored.
  EXPECT_EQ(engine.submitted()[1].sampling.num_prompt_logprobs, -1);
}

TEST(PromptLogprobs, AreRefusedInStreamsAndBeyondTheBound) {
  FakeEngine engine;
  Config config;
  config.max_prompt_logprobs = 12;
  RunningServer server(engine, config);
  const HttpReply streamed =
      post(server, kCompletionPath, R"({"prompt":"a","prompt_logprobs":1,"stream":true})");
  EXPECT_EQ(streamed.status, 400);
  EXPECT_NE(streamed.body.find("`prompt_logprobs` are not available when `stream=True`."),
            std::string::npos);
  const std::string prompt = R"({"prompt":[1,2,3],"max_tokens":1,)";
  EXPECT_EQ(post(server, kCompletionPath, prompt + R"("prompt_logprobs":3})").status, 200);
  EXPECT_EQ(post(server, kCompletionPath, prompt + R"("prompt_logprobs":4})").status, 400);
  EXPECT_EQ(post(server, kCompletionPath, prompt + R"("prompt_logprobs":21})").status, 400);
  EXPECT_EQ(post(server, kCompletionPath, prompt + R"("echo":true,"logprobs":3,"n":2})").status,
            400);
}

TEST(Completions, BestOfReturnsTheLikeliestOfMore) {
  FakeEngine engine(FakeEngine::Stepping::kManual);
  RunningServer server(engine);
  HttpClient client(server.port());
  client.post(kCompletionPath, R"({"prompt":"x","best_of":3,"n":2,"max_tokens":2,"logprobs":0})");
  for (int i = 0; i < 500 && engine.num_running() < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ASSERT_EQ(engine.num_running(), 3U);
  engine.set_logprob(1, -3.0F);
  engine.set_logprob(2, -0.25F);
  engine.set_logprob(3, -1.0F);
  while (engine.num_running() > 0) engine.step();
  const Json json = Json::parse(client.read_reply().body);
  EXPECT_EQ(engine.submitted().at(0).sampling.num_logprobs, 0);
  ASSERT_EQ(json["choices"].size(), 2U);
  EXPECT_EQ(json["choices"][0]["index"], 0);
  EXPECT_EQ(json["choices"][1]["index"], 1);
  EXPECT_EQ(json["choices"][0]["logprobs"]["token_logprobs"][0], -0.25);
  EXPECT_EQ(json["choices"][1]["logprobs"]["token_logprobs"][0], -1);
  EXPECT_EQ(json["usage"]["completion_tokens"], 6);
}

TEST(Completions, StreamTextEvents) {
  FakeEngine engine;
  RunningServer server(engine);
  const HttpReply reply =
      post(server, kCompletionPath, R"({"prompt":"x","stream":true,"ignore_eos":true})");
  const auto events = data_of_events(reply.body);
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(Json::parse(events[0])["choices"][0]["text"], "H");
  const Json last = Json::parse(events[events.size() - 2]);
  EXPECT_EQ(last["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(engine.submitted().at(0).sampling.max_tokens, 16);
}

TEST(Completions, WhoWaitsPastTheDeadlineIsToldWhenToComeBack) {
  FakeEngine engine;
  engine.fail_at(0);
  engine.fail_as(ErrorCode::kDeadlineExceeded, 7);
  RunningServer server(engine);
  const HttpReply reply = post(server, kCompletionPath, R"({"prompt":"x"})");
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.header("Retry-After"), "7");
  EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "rate_limit_error");
}

TEST(Completions, FullQueueSaysWhenToComeBack) {
  FakeEngine engine;
  engine.set_queue_limit(0);
  RunningServer server(engine);
  const HttpReply reply = post(server, kCompletionPath, R"({"prompt":"x"})");
  EXPECT_EQ(reply.status, 429);
  EXPECT_EQ(reply.header("Retry-After"), "1");
  EXPECT_EQ(Json::parse(reply.body)["error"]["type"], "rate_limit_error");
}

}  // namespace
}  // namespace sluice
