// SPDX-License-Identifier: Apache-2.0
// What GGUF says of vocabularies: the names of pre-tokenizers.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/files/pretokenizer_names.h"

namespace sluice {
namespace {

using Names = std::vector<std::string>;

TEST(PretokenizerNames, NamesOfOneMeaningHaveOneExpression) {
  const std::pair<const char*, Names> rows[] = {
      {"gpt-2", {"a.x-4.0", "granite-docling"}},
      {"smollm", {"mellum2"}},
      {"llama-bpe", {"jina-v5-nano", "midm-2.0"}},
      {"qwen2", {"f2llmv2"}},
      {"grok-2", {"kormo", "solar-open", "stablelm2"}},
      {"bailingmoe", {"bailingmoe2", "llada-moe"}},
      {"minimax-m2", {"kanana2", "talkie"}},
      {"gpt-4o", {"granite-embed-multi-97m"}},
      {"tiny_aya", {"cohere2moe"}},
      {"deepseek-v3", {"hunyuan-dense", "hy_v4", "joyai-llm"}}};
  for (const auto& [first, others] : rows) {
    const NamedPretokenizer expected = pretokenizer_by_name(first).value();
    for (const std::string& name : others) {
      const auto named = pretokenizer_by_name(name);
      ASSERT_TRUE(named.has_value()) << named.error().message;
      EXPECT_EQ(named->patterns, expected.patterns) << name;
      EXPECT_EQ(named->whole_words_first, expected.whole_words_first) << name;
      EXPECT_EQ(named->nfc, expected.nfc) << name;
    }
  }
}

}  // namespace
}  // namespace sluice
