// SPDX-License-Identifier: Apache-2.0
// The requests that lm-eval's `local-completions` sends for loglikelihoods, over a socket, against
// what the engine says in process.
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

namespace sluice {
namespace {

using Json = nlohmann::json;

struct Scored {
  double sum = 0;
  bool is_greedy = true;
};

// As lm-eval reads an answer: the first token has no score, the last one was generated.
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

// Greedy continuations of context 1 and 3 are their own likeliest ones, the others are not.
TEST(Loglikelihood, OverTheWireEqualsInProcess) {
  Config config;
  config.model = std::string(SLUICE_TEST_DATA) + "/tiny/tiny-llama.gguf";
  config.threads = 2;
  config.kv_cache_memory = int64_t{16} << 20;
  auto engine = create_engine(config);
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
