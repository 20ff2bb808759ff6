// SPDX-License-Identifier: Apache-2.0
// Tokenizers of directories without a tokenizer.json: BERT's vocab.txt, RoBERTa's vocab.json with
// merges.txt.
#include "engine/tokenizer/files/vocabulary_files.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/files/hf_tokenizer.h"
#include "tests/engine/token_cases.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::encode;

const std::string kDirectories = golden_folder() + "/tokenizer/vocabularies";

TEST(VocabularyFiles, IdsEqualThoseOfTransformersClasses) {
  const std::vector<testing::TokenCase> cases = testing::read_token_cases(kDirectories + "/cases.txt");
  EXPECT_GT(cases.size(), 600U);
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  for (const testing::TokenCase& known : cases) {
    std::unique_ptr<Tokenizer>& tokenizer = tokenizers[known.name];
    if (tokenizer == nullptr) {
      auto text = load_hf_text(kDirectories + "/" + known.name);
      ASSERT_TRUE(text.has_value()) << text.error().message;
      tokenizer = std::move(text->tokenizer);
    }
    EXPECT_EQ(encode(*tokenizer, known.text, known.special), known.ids)
        << known.name << ": " << known.text;
  }
  EXPECT_EQ(tokenizers.size(), 10U);
}

TEST(VocabularyFiles, TextsAndPairsAreEnclosedAsInTransformers) {
  std::ifstream file(kDirectories + "/ends.json");
  const auto ends = nlohmann::json::parse(file);
  for (const auto& [name, ids] : ends.items()) {
    const auto text = load_hf_text(kDirectories + "/" + name);
    ASSERT_TRUE(text.has_value()) << text.error().message;
    const Tokenizer& tokenizer = *text->tokenizer;
    std::vector<TokenId> found = tokenizer.prefix_tokens();
    for (const auto& more : {encode(tokenizer, "a"),
                             tokenizer.between_tokens(),
                             encode(tokenizer, "b"),
                             tokenizer.suffix_tokens()}) {
      found.insert(found.end(), more.begin(), more.end());
    }
    EXPECT_EQ(found, ids.get<std::vector<TokenId>>()) << name;
  }
}

// A copy of a golden directory, of which a test changes a file.
class ChangedVocabulary : public ::testing::Test {
 protected:
  explicit ChangedVocabulary(const char* name = "bert-cased") {
    std::filesystem::copy(kDirectories + "/" + name, folder_.path());
  }

  void write(const char* name, const std::string& text) {
    std::ofstream(folder_.at(name), std::ios::binary) << text;
  }

  std::string refusal() {
    const auto text = load_hf_text(folder_.path());
    return text ? std::string() : text.error().message;
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(ChangedVocabulary, AnotherClassIsRefusedWithWhatMakesATokenizerJson) {
  write("tokenizer_config.json", R"({"tokenizer_class":"BertJapaneseTokenizer"})");
  const std::string message = refusal();
  for (const char* part : {"tokenizer.json", "vocab.txt", "AutoTokenizer"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST_F(ChangedVocabulary, WhatIsNoSuchFileIsRefusedByName) {
  EXPECT_EQ(refusal(), "");
  write("vocab.txt", "[UNK]\na\nb\n[SEP]\n");
  EXPECT_NE(refusal().find("vocab.txt: found no token [CLS]"), std::string::npos) << refusal();
  write("vocab.txt", "[CLS]\na\nb\n[SEP]\n");
  EXPECT_NE(refusal().find("unk_token"), std::string::npos) << refusal();
  write("vocab.txt", "[UNK]\n[CLS]\n\xFF\n[SEP]\n");
  EXPECT_NE(refusal().find("vocab.txt: it is no UTF-8"), std::string::npos) << refusal();
  std::filesystem::remove(folder_.at("vocab.txt"));
  EXPECT_NE(refusal().find("expected a tokenizer"), std::string::npos) << refusal();
}

TEST_F(ChangedVocabulary, FlagsOfAnotherTypeAreRefused) {
  for (const char* json : {R"({"do_lower_case":"yes"})",
                           R"({"strip_accents":3})",
                           R"({"added_tokens_decoder":{"x":{"content":"a"}}})",
                           R"({"added_tokens_decoder":{"1":{}}})",
                           R"({"added_tokens_decoder":7})",
                           "[]"}) {
    write("tokenizer_config.json", json);
    EXPECT_NE(refusal().find("tokenizer_config.json"), std::string::npos) << json << refusal();
  }
}

// A directory's tokenizer.json counts before its older files.
// Copies and texts of values are made by recursion.
TEST_F(ChangedVocabulary, ValuesThatAreNestedDeeplyAreRefused) {
  const std::string deep = std::string(200000, '[') + std::string(200000, ']');
  for (const char* file : {"added_tokens.json", "tokenizer_config.json"}) {
    write(file, R"({"x":)" + deep + "}");
    EXPECT_NE(refusal().find("nested too deep"), std::string::npos) << file << refusal();
    std::filesystem::remove(folder_.at(file));
  }
}

TEST_F(ChangedVocabulary, ATokenizerJsonIsReadInstead) {
  std::filesystem::copy_file(golden_folder() + "/tokenizer/json/qwen.json",
                             folder_.at("tokenizer.json"));
  const auto json = load_tokenizer_json(folder_.path());
  ASSERT_TRUE(json.has_value());
  std::ifstream file(folder_.at("tokenizer.json"), std::ios::binary);
  EXPECT_EQ(*json, std::string(std::istreambuf_iterator<char>(file), {}));
}

class ChangedPairs : public ChangedVocabulary {
 protected:
  ChangedPairs() : ChangedVocabulary("roberta") {}
};

TEST_F(ChangedPairs, WhatIsNoSuchFileIsRefusedByName) {
  EXPECT_EQ(refusal(), "");
  write("merges.txt", "#version: 0.2\na b c\n");
  EXPECT_NE(refusal().find("a b c"), std::string::npos) << refusal();
  write("merges.txt", "\xFF a\n");
  EXPECT_NE(refusal().find("merges.txt: it is no UTF-8"), std::string::npos) << refusal();
  write("merges.txt", "");
  EXPECT_NE(refusal().find("vocab.json"), std::string::npos) << refusal();
  write("merges.txt", "#version: 0.2\n");
  write("vocab.json", "[]");
  EXPECT_NE(refusal().find("vocab.json: it is no JSON object"), std::string::npos) << refusal();
  write("vocab.json", R"({"<s>":"0","</s>":1})");
  EXPECT_NE(refusal(), "");
}

}  // namespace
}  // namespace sluice
