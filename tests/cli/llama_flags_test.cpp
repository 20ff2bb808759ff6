// SPDX-License-Identifier: Apache-2.0
#include "server/cli/llama_flags.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/cli/command.h"

namespace sluice {
namespace {

using Words = std::vector<std::string>;

Words joined(Words words) {
  const auto result = join_llama_flags(words);
  EXPECT_TRUE(result.has_value()) << result.error().message;
  return words;
}

std::string refused(Words words) {
  const auto result = join_llama_flags(words);
  EXPECT_FALSE(result.has_value());
  return result ? std::string() : result.error().message;
}

TEST(LlamaFlags, BecomeKeysOfOneObject) {
  EXPECT_EQ(joined({"serve", "m", "--draft-max", "8", "-md", "draft.gguf", "--port=1"}),
            (Words{"serve",
                   "m",
                   "--port=1",
                   R"(--speculative-config={"num_speculative_tokens":8,"model":"draft.gguf"})"}));
  EXPECT_EQ(joined({"serve", "--spec-draft-n-max=4"}),
            (Words{"serve", R"(--speculative-config={"num_speculative_tokens":4})"}));
}

TEST(LlamaFlags, AreAddedToTheObjectThatIsGiven) {
  for (const Words& config : {Words{R"(--speculative-config={"method":"ngram"})"},
                              Words{"--speculative-config", R"({"method":"ngram"})"}}) {
    Words words = {"serve", "--draft", "8"};
    words.insert(words.end(), config.begin(), config.end());
    EXPECT_EQ(
        joined(words),
        (Words{"serve", R"(--speculative-config={"method":"ngram","num_speculative_tokens":8})"}));
  }
}

TEST(LlamaFlags, OfRotationsBecomeKeysOfConfigJson) {
  EXPECT_EQ(
      joined({"serve", "--rope-scaling", "yarn", "--rope-scale=4", "--yarn-orig-ctx", "32768"}),
      (Words{"serve",
             R"(--hf-overrides={"rope_scaling":{"rope_type":"yarn","factor":4,)"
             R"("original_max_position_embeddings":32768}})"}));
  EXPECT_EQ(joined({"serve", "--hf-overrides={\"is_causal\":true}", "--rope-freq-base=5e5"}),
            (Words{"serve", R"(--hf-overrides={"is_causal":true,"rope_theta":500000.0})"}));
  EXPECT_EQ(joined({"serve",
                    R"(--hf-overrides={"max_position_embeddings":1})",
                    R"(--hf-overrides={"max_position_embeddings":2})",
                    "--rope-freq-base=5e5"}),
            (Words{"serve",
                   R"(--hf-overrides={"max_position_embeddings":2,"rope_theta":500000.0})"}));
  EXPECT_EQ(
      joined({"serve",
              "--rope-freq-base",
              "0",
              "--rope-scaling=linear",
              "--rope-freq-scale=0.25",
              "--yarn-beta-fast=-1"}),
      (Words{"serve", R"(--hf-overrides={"rope_scaling":{"rope_type":"linear","factor":4.0}})"}));
  EXPECT_EQ(joined({"serve", "--rope-scaling", R"({"type":"linear","factor":2})"}),
            (Words{"serve", R"(--hf-overrides={"rope_scaling":{"type":"linear","factor":2}})"}));
}

TEST(LlamaFlags, NothingElseIsTouched) {
  const Words words = {"chat", "m", "--seed", "3", "--", "--draft-max", "8"};
  EXPECT_EQ(joined(words), words);
  EXPECT_EQ(joined({"serve", "--draft-min", "0"}), (Words{"serve"}));
}

TEST(LlamaFlags, ValuesWithoutMeaningAreRefusedByName) {
  EXPECT_NE(refused({"serve", "--draft-min", "5"}).find("--draft-min must be 0"),
            std::string::npos);
  EXPECT_NE(refused({"serve", "--draft-max"}).find("--draft-max needs a value"), std::string::npos);
  EXPECT_NE(refused({"serve", "--draft-max=3", "--speculative-config", "ngram"})
                .find("--speculative-config must be a JSON object"),
            std::string::npos);
  EXPECT_NE(refused({"serve", "--rope-scale", "4"}).find("--rope-scale needs --rope-scaling"),
            std::string::npos);
  EXPECT_NE(refused({"serve", "--rope-scaling=spiral"}).find("got \"spiral\""), std::string::npos);
  EXPECT_NE(refused({"serve", "--rope-freq-base=x"}).find("must be a number"), std::string::npos);
}

TEST(LlamaFlags, ReachTheConfig) {
  const std::vector<const char*> words = {"sluice",
                                          "serve",
                                          "m.gguf",
                                          "--draft_max",
                                          "6",
                                          "--speculative-config={\"method\":\"suffix\"}"};
  const ParsedCommandLine parsed = parse_command_line(static_cast<int>(words.size()), words.data());
  ASSERT_TRUE(parsed.invocation);
  EXPECT_EQ(parsed.invocation->config.speculative_config,
            R"({"method":"suffix","num_speculative_tokens":6})");
  const std::vector<const char*> older = {"vllm",
                                          "serve",
                                          "m",
                                          "--rope-scaling",
                                          R"({"rope_type":"linear","factor":2})",
                                          "--rope-theta=5e5"};
  const ParsedCommandLine of_vllm =
      parse_command_line(static_cast<int>(older.size()), older.data());
  ASSERT_TRUE(of_vllm.invocation);
  EXPECT_EQ(of_vllm.invocation->config.hf_overrides,
            R"({"rope_theta":500000.0,"rope_scaling":{"rope_type":"linear","factor":2}})");
}

}  // namespace
}  // namespace sluice
