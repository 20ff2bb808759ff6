// SPDX-License-Identifier: Apache-2.0
// The requests that lm-eval's `local-completions` sends for loglikelihoods, over a socket, against
// what the engine says in process, and against chats where the client renders the template.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/server/running_server.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

struct Scored {
  double sum = 0;
  bool is_greedy = true;
};

// Reads an answer like lm-eval: the first token has no score, the last one was generated.
Scored read_answer(const Json& logprobs, size_t context_len) {
  Scored scored;
  const Json& values = logprobs["token_logprobs"];
  const Json& tops = logprobs["top_logprobs"];
  for (size_t i = context_len; i + 1 < values.size(); ++i) {
    scored.sum += values[i].get<double>();
    double best = -1e9;
    for (const auto& [text, value] : tops[i].items()) best = std::max(best, value.get<double>());
    scored.is_greedy = scored.is_greedy && values[i].get<double>() == best;
  }
  return scored;
}

Scored score_in_process(Engine& engine, const std::vector<TokenId>& tokens, size_t context_len) {
  ValidRequest request;
  request.prompt = tokens;
  request.sampling.max_tokens = 1;
  request.sampling.num_prompt_logprobs = 1;
  testing::CollectingSink sink;
  const testing::Collected result = sink.wait(*engine.submit(request, sink));
  Scored scored;
  for (size_t i = context_len; i < tokens.size(); ++i) {
    const PromptLogprob& got = result.prompt_logprobs[i - 1];
    EXPECT_EQ(got.token, tokens[i]);
    scored.sum += static_cast<double>(got.logprob);
    scored.is_greedy = scored.is_greedy && got.rank == 1;
  }
  return scored;
}

Config tiny_config() {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.threads = 2;
  config.kv_cache_memory = int64_t{16} << 20;
  return config;
}

Json ask(RunningServer& server, const std::string& path, const Json& body) {
  HttpClient client(server.port());
  client.post(path, body.dump());
  const HttpReply reply = client.read_reply();
  EXPECT_EQ(reply.status, 200) << reply.body;
  return Json::parse(reply.body);
}

// What a prompt's tokens are worth, and the one that follows them.
struct Scores {
  std::vector<TokenId> ids;
  std::vector<double> logprobs;  // from the second token on
  TokenId next = kInvalidToken;

  bool operator==(const Scores&) const = default;
};

Scores of_chat(RunningServer& server, const Json& messages) {
  const Json json = ask(server,
                        kChatPath,
                        {{"messages", messages},
                         {"temperature", 0},
                         {"max_tokens", 1},
                         {"prompt_logprobs", 0},
                         {"return_token_ids", true}});
  Scores scores;
  scores.ids = json["prompt_token_ids"].get<std::vector<TokenId>>();
  scores.next = json["choices"][0]["token_ids"][0];
  for (size_t i = 1; i < scores.ids.size(); ++i) {
    scores.logprobs.push_back(json["prompt_logprobs"][i][std::to_string(scores.ids[i])]["logprob"]);
  }
  return scores;
}

// `max_tokens` 0 asks for the prompt alone.
Scores of_completion(RunningServer& server, const Json& prompt, int max_tokens) {
  const Json json = ask(server,
                        kCompletionPath,
                        {{"prompt", prompt},
                         {"temperature", 0},
                         {"max_tokens", max_tokens},
                         {"logprobs", 1},
                         {"echo", true},
                         {"return_token_ids", true}});
  const Json& choice = json["choices"][0];
  Scores scores;
  scores.ids = choice["prompt_token_ids"].get<std::vector<TokenId>>();
  if (max_tokens > 0) scores.next = choice["token_ids"][0];
  const Json& values = choice["logprobs"]["token_logprobs"];
  EXPECT_EQ(values.size(), scores.ids.size() + static_cast<size_t>(max_tokens));
  for (size_t i = 1; i < scores.ids.size(); ++i) scores.logprobs.push_back(values[i]);
  return scores;
}

// A client that renders the chat itself, and sends text or ids, gets what a chat gets, to the bit.
TEST(Loglikelihood, OfARenderedChatIsThatOfTheChat) {
  auto engine = create_engine(tiny_config());
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  RunningServer server(**engine);
  const Json messages = Json::array({{{"role", "system"}, {"content", "Answer briefly."}},
                                     {{"role", "user"}, {"content", "What is  the sea?"}},
                                     {{"role", "assistant"}, {"content", "Water.\n"}},
                                     {{"role", "user"}, {"content", "And the land?"}}});
  std::string rendered;
  for (const Json& message : messages) {
    rendered += "<|im_start|>" + message["role"].get<std::string>() + "\n" +
                message["content"].get<std::string>() + "<|im_end|>\n";
  }
  rendered += "<|im_start|>assistant\n";
  const Scores chat = of_chat(server, messages);
  const TokenId start = (*engine)->tokenizer().find_token("<|im_start|>");
  ASSERT_EQ(std::count(chat.ids.begin(), chat.ids.end(), start), 5);
  EXPECT_EQ(of_completion(server, rendered, 1), chat);
  EXPECT_EQ(of_completion(server, chat.ids, 1), chat);
  Scores alone = chat;
  alone.next = kInvalidToken;
  EXPECT_EQ(of_completion(server, rendered, 0), alone);
  EXPECT_EQ(of_completion(server, chat.ids, 0), alone);
  // The text is what was sent, and each offset is where its token's bytes are.
  const Json json = ask(server,
                        kCompletionPath,
                        {{"prompt", rendered},
                         {"max_tokens", 1},
                         {"logprobs", 0},
                         {"echo", true},
                         {"skip_special_tokens", false}});
  const Json& choice = json["choices"][0];
  const auto text = choice["text"].get<std::string>();
  EXPECT_TRUE(text.starts_with(rendered)) << text;
  const Json& offsets = choice["logprobs"]["text_offset"];
  ASSERT_EQ(offsets.size(), chat.ids.size() + 1);
  for (size_t i = 0; i < chat.ids.size(); ++i) {
    const std::string_view bytes = (*engine)->tokenizer().token_bytes(chat.ids[i]);
    EXPECT_EQ(text.substr(offsets[i], bytes.size()), bytes) << i;
  }
  EXPECT_EQ(offsets.back(), rendered.size());
}

// Greedy continuations of context 1 and 3 are their own likeliest ones, the others are not.
TEST(Loglikelihood, OverTheWireEqualsInProcess) {
  auto engine = create_engine(tiny_config());
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  RunningServer server(**engine);
  std::vector<std::vector<TokenId>> prompts;
  constexpr size_t kContextLen = 7;
  constexpr size_t kLen = 25;
  for (int i = 0; i < 4; ++i) {
    std::vector<TokenId> tokens;
    for (int k = 0; k < static_cast<int>(kLen); ++k) tokens.push_back(20 + (k * k + 7 * i) % 200);
    if (i % 2 == 1) {
      ValidRequest request;
      tokens.resize(kContextLen);
      request.prompt = tokens;
      request.sampling.temperature = 0;
      request.sampling.ignore_eos = true;
      request.sampling.max_tokens = static_cast<int32_t>(kLen - kContextLen);
      testing::CollectingSink sink;
      const auto generated = sink.wait(*(*engine)->submit(request, sink)).tokens;
      tokens.insert(tokens.end(), generated.begin(), generated.end());
    }
    prompts.push_back(tokens);
  }
  const Json body = {{"model", "fake"},
                     {"prompt", prompts},
                     {"temperature", 0},
                     {"max_tokens", 1},
                     {"logprobs", 1},
                     {"seed", 1234},
                     {"echo", true}};
  HttpClient client(server.port());
  client.post(kCompletionPath, body.dump());
  const HttpReply reply = client.read_reply();
  ASSERT_EQ(reply.status, 200) << reply.body;
  const Json json = Json::parse(reply.body);
  ASSERT_EQ(json["choices"].size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const Json& choice = json["choices"][i];
    EXPECT_EQ(choice["index"], i);
    EXPECT_EQ(choice["logprobs"]["tokens"].size(), kLen + 1);
    EXPECT_EQ(choice["logprobs"]["token_logprobs"][0], nullptr);
    const Scored got = read_answer(choice["logprobs"], kContextLen);
    const Scored expected = score_in_process(**engine, prompts[i], kContextLen);
    EXPECT_NEAR(got.sum, expected.sum, 1e-6 * std::abs(expected.sum));
    EXPECT_EQ(got.is_greedy, expected.is_greedy);
    EXPECT_EQ(got.is_greedy, i % 2 == 1);
  }
}

}  // namespace
}  // namespace sluice
