// SPDX-License-Identifier: Apache-2.0
// Tokenizers of directories that have Mistral's tekken.json alone.
#include "engine/tokenizer/files/tekken.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/mistral_templates.h"
#include "engine/tokenizer/files/tiktoken.h"
#include "tests/engine/token_cases.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using testing::encode;

const std::string kFolders = golden_folder() + "/tokenizer/tekken";

std::string vocabulary_of(const std::string& name) {
  std::ifstream file(kFolders + "/" + name + "/tekken.json", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Tekken, IdsEqualThoseOfMistralCommon) {
  const std::vector<testing::TokenCase> cases = testing::read_token_cases(kFolders + "/cases.txt");
  EXPECT_GT(cases.size(), 230U);
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  for (const testing::TokenCase& known : cases) {
    std::unique_ptr<Tokenizer>& tokenizer = tokenizers[known.name];
    if (tokenizer == nullptr) {
      auto text = load_hf_text(kFolders + "/" + known.name);
      ASSERT_TRUE(text.has_value()) << text.error().message;
      tokenizer = std::move(text->tokenizer);
    }
    EXPECT_EQ(encode(*tokenizer, known.text, known.special), known.ids)
        << known.name << ": " << known.text;
    EXPECT_EQ(decode_tokens(*tokenizer, known.ids), known.text);
  }
  EXPECT_EQ(tokenizers.size(), 2U);
}

TEST(Tekken, SpecialTokensComeFirstAndTokensBeyondTheSizeAreLeftOut) {
  for (const auto& [name, size, last, filled] :
       {std::tuple("v3", 424, "[TOOL_CONTENT]", "<SPECIAL_23>"),
        std::tuple("v13", 442, "<pad>", "<SPECIAL_11>")}) {
    const auto text = load_hf_text(kFolders + "/" + name);
    ASSERT_TRUE(text.has_value()) << text.error().message;
    const Tokenizer& tokenizer = *text->tokenizer;
    EXPECT_EQ(tokenizer.vocab_size(), size);
    EXPECT_EQ(tokenizer.prefix_tokens(), std::vector<TokenId>{1});
    EXPECT_EQ(tokenizer.bos(), 1);
    EXPECT_EQ(tokenizer.end_tokens(), std::vector<TokenId>{2});
    for (const char* special : {last, filled, "[INST]"}) {
      EXPECT_TRUE(tokenizer.is_special(tokenizer.find_token(special))) << special;
    }
    // The second has too few control tokens for the template of its version.
    EXPECT_EQ(text->chat_template, std::string_view(name) == "v3" ? mistral_template("v3") : "");
  }
}

TEST(Tekken, TheVersionIsReadWhereverItStands) {
  const std::pair<const char*, const char*> kFiles[] = {
      {R"({"config":{"version":"v3"},broken)", "v3"},
      {R"({"vocab":[{"version":"a"}],"version":"b","config":{"x":{"version":"c"},"version":"v7"}})",
       "v7"},
      {R"({"config":{"version":7}})", ""},
      {R"({"config":{},"more":{"version":"v3"}})", ""},
      {"[]", ""}};
  for (const auto& [file, version] : kFiles) {
    EXPECT_EQ(tekken_version(file).value_or("error"), version) << file;
  }
  EXPECT_FALSE(tekken_version(R"({"config":)").has_value());
  EXPECT_FALSE(tekken_version("").has_value());
  EXPECT_EQ(mistral_template("v15"), "");
}

// The merges of the tokenizer.json written of it.
TEST(Tekken, WrittenAsTokenizerJsonItGivesTheSameIds) {
  const auto json = tiktoken_as_json(vocabulary_of("v13"), "");
  ASSERT_TRUE(json.has_value()) << json.error().message;
  const auto tokenizer = create_hf_tokenizer({.tokenizer_json = *json});
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  const auto ranked = create_hf_tokenizer({.ranks = vocabulary_of("v13")});
  ASSERT_TRUE(ranked.has_value()) << ranked.error().message;
  for (const char* text : {"The quick brown fox", "[INST]xyxyxy ababab\n\n", "12 345"}) {
    EXPECT_EQ(encode(**tokenizer, text), encode(**ranked, text)) << text;
  }
}

TEST(Tekken, WhatIsNoSuchFileIsRefusedByName) {
  const std::pair<std::function<void(Json&)>, const char*> kChanges[] = {
      {[](Json& file) { file.erase("config"); }, "config"},
      {[](Json& file) { file["config"].erase("pattern"); }, "pattern"},
      {[](Json& file) { file["config"]["pattern"] = "("; }, "missing closing"},
      {[](Json& file) { file["config"].erase("default_vocab_size"); }, "default_vocab_size"},
      {[](Json& file) { file["config"]["default_vocab_size"] = 12; }, "default_vocab_size"},
      {[](Json& file) { file["config"]["default_vocab_size"] = 443; }, "at least 431"},
      {[](Json& file) { file["config"]["default_num_special_tokens"] = -1; },
       "default_num_special_tokens"},
      {[](Json& file) { file["config"]["default_num_special_tokens"] = 7; },
       "default_num_special_tokens"},
      {[](Json& file) { file["config"]["default_num_special_tokens"] = int64_t{1} << 40; },
       "default_num_special_tokens"},
      {[](Json& file) { file.erase("special_tokens"); }, "found none of version \"v13\""},
      {[](Json& file) { file["special_tokens"][3]["rank"] = 2; },
       "special_tokens: found the rank 2"},
      {[](Json& file) { file["special_tokens"][3]["rank"] = 8; },
       "special_tokens: found the rank 8"},
      {[](Json& file) { file["special_tokens"][3]["token_str"] = "<s>"; }, "found <s> twice"},
      {[](Json& file) { file["special_tokens"][3]["token_str"] = "a"; }, "found a twice"},
      {[](Json& file) { file["special_tokens"] = 3; }, "special_tokens"},
      {[](Json& file) { file["vocab"] = 3; }, "vocab: expected a list"},
      {[](Json& file) { file["vocab"][300]["rank"] = 299; }, "vocab: token 300: rank: found 299"},
      {[](Json& file) { file["vocab"][300]["token_bytes"] = "!"; }, "token 300: token_bytes"},
      {[](Json& file) { file["vocab"][300]["token_bytes"] = ""; }, "token 300: token_bytes"},
      {[](Json& file) { file["vocab"][300]["token_bytes"] = "YQ=="; },
       "those of a token before it"},
      {[](Json& file) { file["vocab"][300] = 1; }, "token_bytes"}};
  for (const auto& [change, part] : kChanges) {
    Json file = Json::parse(vocabulary_of("v13"));
    change(file);
    const auto made = create_hf_tokenizer({.ranks = file.dump()});
    ASSERT_FALSE(made.has_value()) << part;
    EXPECT_NE(made.error().message.find(part), std::string::npos) << made.error().message;
  }
  EXPECT_FALSE(read_tekken("{").has_value());
  EXPECT_FALSE(read_tekken("").has_value());
}

}  // namespace
}  // namespace sluice
