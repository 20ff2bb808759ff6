// SPDX-License-Identifier: Apache-2.0
// What GGUF says of vocabularies: the pre-tokenizer's name, the keys of tokens that end an answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/models/model_spec.h"
#include "engine/quantize/hf_vocabulary.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/pretokenizer_names.h"
#include "tests/support/captured_log.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Names = std::vector<std::string>;

// The names that llama.cpp's converter writes by architecture; none: no byte-level BPE.
const std::map<std::string, Names>& names_by_architecture() {
  static const std::map<std::string, Names> kNames = {
      {"afmoe", {"afmoe"}},
      {"apertus", {"tekken"}},
      {"arcee", {"llama-bpe"}},
      {"baichuan", {}},
      {"bailingmoe2", {"bailingmoe2"}},
      {"bert", {"roberta-bpe"}},
      {"bloom", {"bloom"}},
      {"chatglm", {"chatglm-bpe", "glm4"}},
      {"cohere2", {"command-r", "tiny_aya"}},
      {"command-r", {"command-r"}},
      {"dbrx", {"dbrx"}},
      {"deepseek2",
       {"deepseek-llm",
        "deepseek-v3",
        "gigachat",
        "glm4",
        "joyai-llm",
        "kanana2",
        "kimi-k2",
        "tekken",
        "youtu"}},
      {"deepseek32", {"deepseek-v3"}},
      {"dots1", {"qwen2"}},
      {"ernie4_5", {}},
      {"ernie4_5-moe", {}},
      {"exaone", {"exaone"}},
      {"exaone4", {"exaone4"}},
      {"falcon", {"falcon"}},
      {"falcon-h1", {"falcon-h1"}},
      {"gemma", {}},
      {"gemma-embedding", {}},
      {"gemma2", {}},
      {"gemma3", {}},
      {"gemma4", {}},
      {"glm4", {"glm4"}},
      {"glm-dsa", {"glm4"}},
      {"glm4moe", {"glm4", "solar-open"}},
      {"gpt-oss", {"gpt-4o"}},
      {"gpt2", {"gpt-2", "jais"}},
      {"gptneox", {"olmo"}},
      {"granite", {"refact", "dbrx"}},
      {"granitehybrid", {"dbrx"}},
      {"granitemoe", {"refact"}},
      {"hunyuan-dense", {"hunyuan-dense"}},
      {"hunyuan-moe", {"hunyuan"}},
      {"hy_v3", {"hunyuan-dense"}},
      {"internlm2", {}},
      {"jina-bert-v2", {"jina-v1-en", "jina-v2-code", "jina-v2-de", "jina-v2-es"}},
      {"kimi-linear", {"kimi-k2"}},
      {"lfm2", {"lfm2"}},
      {"lfm2moe", {"lfm2"}},
      {"llama",
       {"deepseek-coder",
        "deepseek-llm",
        "falcon3",
        "granite-docling",
        "llama-bpe",
        "mellum",
        "midm-2.0",
        "minerva-7b",
        "minicpm5",
        "pixtral",
        "seed-coder",
        "smaug-bpe",
        "smollm",
        "talkie",
        "tekken",
        "trillion",
        "viking"}},
      {"llama4", {"llama4"}},
      {"mimo2", {"qwen2"}},
      {"minicpm", {}},
      {"minimax-m2", {"minimax-m2"}},
      {"mistral3", {"pixtral", "tekken"}},
      {"mistral4", {"pixtral", "tekken"}},
      {"modern-bert", {"granite-embed-multi-97m", "modern-bert"}},
      {"nemotron", {}},
      {"nemotron_h", {"pixtral", "tekken"}},
      {"nemotron_h_moe", {"pixtral", "tekken"}},
      {"nomic-bert", {}},
      {"nomic-bert-moe", {}},
      {"olmo2", {"dbrx", "olmo"}},
      {"olmoe", {"olmo"}},
      {"phi2", {"phi-2"}},
      {"phi3", {"dbrx", "gpt-4o"}},
      {"phimoe", {}},
      {"qwen2", {"a.x-4.0", "deepseek-r1-qwen", "megrez", "qwen2"}},
      {"qwen2moe", {"qwen2"}},
      {"qwen2vl", {"qwen2"}},
      {"qwen3", {"f2llmv2", "qwen2"}},
      {"qwen35", {"qwen35"}},
      {"qwen35moe", {"qwen35"}},
      {"qwen3moe", {"qwen2"}},
      {"qwen3next", {"qwen2"}},
      {"qwen3vl", {"qwen2"}},
      {"qwen3vlmoe", {"qwen2"}},
      {"seed_oss", {"seed-coder"}},
      {"smollm3", {"smaug-bpe"}},
      {"stablelm", {"olmo", "stablelm2"}},
      {"starcoder", {"starcoder"}},
      {"starcoder2", {"starcoder"}},
      {"step35", {"deepseek-v3"}},
  };
  return kNames;
}

TEST(PretokenizerNames, EveryArchitectureHasThoseThatItsConverterWrites) {
  for (const ModelSpec* spec : model_specs()) {
    const std::string architecture(spec->files.gguf);
    if (architecture.empty() || !spec->files.reads_gguf) continue;
    const auto names = names_by_architecture().find(architecture);
    EXPECT_NE(names, names_by_architecture().end()) << architecture;
    if (names == names_by_architecture().end()) continue;
    for (const std::string& name : names->second) {
      const auto named = pretokenizer_by_name(name);
      EXPECT_TRUE(named.has_value()) << architecture << ": " << named.error().message;
    }
  }
}

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

// GLM-4.5's ends: eos, and two that only the generation configuration names.
TEST(HfVocabulary, EndsWithoutAKnownNameGetTheKeysOfGguf) {
  HfTokenizerFiles files;
  files.tokenizer_json = testing::read_whole_file(golden_folder() + "/tokenizer/json/qwen.json");
  files.tokenizer_config = R"({"eos_token":"<|im_end|>"})";
  const auto tokenizer = create_hf_tokenizer(files);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  const std::vector<TokenId> known = (*tokenizer)->end_tokens();
  ASSERT_FALSE(known.empty());
  const auto vocabulary_with = [&](const std::vector<TokenId>& more) {
    EXPECT_TRUE((*tokenizer)->replace_more_ends(more).has_value());
    return read_hf_vocabulary(
               files.tokenizer_json, **tokenizer, (*tokenizer)->vocab_size(), "qwen.json")
        .value();
  };
  const auto written = create_tokenizer(vocabulary_with({1, 3})).value();
  std::vector<TokenId> expected = known;
  expected.insert(expected.end(), {1, 3});
  std::ranges::sort(expected);
  EXPECT_EQ(written->end_tokens(), expected);
  const std::string log = logged_by([&] { (void)vocabulary_with({1, 3, 5}); });
  EXPECT_NE(log.find("key=eos_token_id found=\"3 ends"), std::string::npos) << log;
}

// The directories' own spelling of an expression that takes longer than GGUF's.
TEST(HfVocabulary, PublishedExpressionsHaveTheNamesOfTheirLinearOnes) {
  const auto named = pretokenizer_by_name("tiny_aya");
  ASSERT_TRUE(named.has_value());
  Json json = Json::parse(
      testing::read_whole_file(golden_folder() + "/tokenizer/json/qwen.json"));
  Json stages = split_stages<Json>(*named);
  stages[0]["pattern"]["Regex"] = "\\d{1,3}(?=(?:\\d{3})*\\b)";
  stages.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", stages}};
  HfTokenizerFiles files;
  files.tokenizer_json = json.dump();
  const auto tokenizer = create_hf_tokenizer(files);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  const auto vocabulary = read_hf_vocabulary(
      files.tokenizer_json, **tokenizer, (*tokenizer)->vocab_size(), "qwen.json");
  ASSERT_TRUE(vocabulary.has_value()) << vocabulary.error().message;
  EXPECT_EQ(vocabulary->pre, "tiny_aya");
}

}  // namespace
}  // namespace sluice
