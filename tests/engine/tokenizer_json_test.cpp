// SPDX-License-Identifier: Apache-2.0
// A GGUF file's vocabulary as tokenizer.json, read back by our reader, which agrees with the
// `tokenizers` package (hf_tokenizer_test): both must give the same ids.
#include "engine/tokenizer/files/tokenizer_json.h"

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/pipeline/token_pipeline.h"
#include "engine/tokenizer/text/base64.h"
#include "tests/engine/token_cases.h"
#include "tests/engine/vocabulary_file.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using testing::encode;
using Json = nlohmann::json;

const std::string kGoldens = golden_folder() + "/tokenizer/";

const std::vector<std::string>& texts() {
  static const std::vector<std::string> kTexts = [] {
    std::vector<std::string> list = {"",
                                     " ",
                                     "a",
                                     "Hello, world!",
                                     "  two  spaces \n\n\t x",
                                     "can't WON'T 12345 1,234.5",
                                     "na\u00efve caf\u00e9 e\u0301 \u4f60\u597d \U0001F600",
                                     "<|im_start|>user\nhi<|im_end|>",
                                     "<s>the</s> \u2581x <0x41> a[x] </s>the"};
    for (const auto& one : testing::read_token_cases(kGoldens + "cases.txt")) {
      list.push_back(one.text);
    }
    return list;
  }();
  return kTexts;
}

std::unique_ptr<Tokenizer> read_back(const Vocabulary& vocabulary) {
  HfTokenizerFiles files;
  const auto json = tokenizer_json(vocabulary);
  EXPECT_TRUE(json.has_value()) << json.error().message;
  if (!json) return nullptr;
  files.tokenizer_json = *json;
  files.tokenizer_config = tokenizer_config_json(vocabulary, "{{ 'x' }}");
  auto tokenizer = create_hf_tokenizer(files);
  EXPECT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  return tokenizer ? std::move(*tokenizer) : nullptr;
}

// The text of a token that the tokenizer's files name; empty: unnamed.
std::string named_text(const Tokenizer& tokenizer, std::string_view name) {
  for (const NamedToken& token : tokenizer.named_tokens()) {
    if (token.name == name) return token.text;
  }
  return "";
}

void expect_same_ids(const Vocabulary& vocabulary) {
  const auto own = create_tokenizer(vocabulary);
  ASSERT_TRUE(own.has_value()) << own.error().message;
  const auto other = read_back(vocabulary);
  ASSERT_NE(other, nullptr);
  for (const std::string& text : texts()) {
    for (const SpecialText special : {SpecialText::kParse, SpecialText::kText}) {
      const auto ids = encode(**own, text, special);
      ASSERT_EQ(encode(*other, text, special), ids) << vocabulary.pre << ": " << text;
      EXPECT_EQ(decode_tokens(*other, ids), decode_tokens(**own, ids)) << text;
    }
  }
  EXPECT_EQ(other->prefix_tokens(), (*own)->prefix_tokens());
  for (const char* name : {"bos_token", "eos_token"}) {
    EXPECT_EQ(named_text(*other, name), named_text(**own, name)) << name;
  }
}

TEST(TokenizerJson, ByteLevelVocabulariesGiveTheSameIdsWithEveryPretokenizer) {
  const auto golden = testing::read_vocabulary_file(kGoldens + "vocabulary.txt");
  ASSERT_TRUE(golden.has_value());
  for (const char* pre : {"gpt-2",
                          "smollm",
                          "llama-bpe",
                          "qwen2",
                          "gpt-4o",
                          "deepseek-llm",
                          "deepseek-coder",
                          "deepseek-v3",
                          "falcon",
                          "default",
                          "tekken",
                          "qwen35",
                          "command-r",
                          "gpt-neox",
                          "bloom",
                          "viking",
                          "bailingmoe",
                          "tiny_aya",
                          "youtu",
                          "afmoe"}) {
    Vocabulary vocabulary = *golden;
    vocabulary.pre = pre;
    vocabulary.add_bos = vocabulary.bos != kInvalidToken;
    expect_same_ids(vocabulary);
  }
}

// Makes <unk>, <s>, </s>, the bytes, letters, and words with scores that fall with their ids.
Vocabulary spaced_vocabulary(const std::string& model, bool has_prefix) {
  Vocabulary vocabulary;
  vocabulary.model = model;
  vocabulary.pre = "default";
  vocabulary.add_space_prefix = has_prefix;
  const auto add = [&](const std::string& name, TokenType type) {
    vocabulary.tokens.push_back(name);
    vocabulary.token_types.push_back(type);
    const bool is_piece = type == TokenType::kNormal || type == TokenType::kUserDefined;
    vocabulary.scores.push_back(is_piece ? -static_cast<float>(vocabulary.tokens.size()) : 0.0F);
  };
  add("<unk>", TokenType::kUnknown);
  add("<s>", TokenType::kControl);
  add("</s>", TokenType::kControl);
  for (int byte = 0; byte < 256; ++byte) {
    add(byte_token_name(static_cast<uint8_t>(byte)), TokenType::kByte);
  }
  add("<|im_start|>", TokenType::kControl);
  add(has_prefix ? "[x]" : "\u2581\u2581x", TokenType::kUserDefined);
  for (const char* piece : {"\u2581t",
                            "he",
                            "\u2581the",
                            "ll",
                            "llo",
                            "\u2581He",
                            "\u2581Hello",
                            "or",
                            "\u2581w",
                            "\u2581wor",
                            "\u2581world",
                            "\u2581\u2581",
                            "in"}) {
    add(piece, TokenType::kNormal);
  }
  add("\u2581", TokenType::kNormal);
  for (char c = '!'; c <= '~'; ++c) add(std::string(1, c), TokenType::kNormal);
  vocabulary.unknown = 0;
  vocabulary.bos = 1;
  vocabulary.eos = 2;
  return vocabulary;
}

TEST(TokenizerJson, SentencePieceVocabulariesGiveTheSameIds) {
  for (const bool has_prefix : {true, false}) {
    Vocabulary vocabulary = spaced_vocabulary("llama", has_prefix);
    vocabulary.add_bos = true;
    expect_same_ids(vocabulary);
    vocabulary.pre = "phi-3";
    expect_same_ids(vocabulary);
  }
}

TEST(TokenizerJson, UnigramVocabulariesGiveTheSameIds) {
  for (const bool has_prefix : {true, false}) {
    Vocabulary vocabulary = spaced_vocabulary("t5", has_prefix);
    vocabulary.remove_extra_whitespaces = has_prefix;
    vocabulary.add_eos = true;
    expect_same_ids(vocabulary);
  }
}

// tokenizers splits XLM-R's texts at White_Space, although the vocabulary has U+0085 as a piece.
TEST(TokenizerJson, AllWhiteSpaceIsSpaceOfAUnigramVocabulary) {
  Vocabulary vocabulary = spaced_vocabulary("t5", true);
  vocabulary.remove_extra_whitespaces = true;
  vocabulary.tokens.emplace_back("\u0085");
  vocabulary.token_types.push_back(TokenType::kNormal);
  vocabulary.scores.push_back(0);
  const auto own = create_tokenizer(vocabulary);
  ASSERT_TRUE(own.has_value()) << own.error().message;
  const auto other = read_back(vocabulary);
  ASSERT_NE(other, nullptr);
  for (const Tokenizer* const each : {own->get(), other.get()}) {
    for (const char* text : {"a\u0085b \u0085c", "a\u00A0b\u2003\tc", "a b\u3000c"}) {
      EXPECT_EQ(encode(*each, text, SpecialText::kText), encode(*each, "a b c", SpecialText::kText))
          << text;
    }
  }
}

// XLM-R's, in a GGUF file, which has no field for it.
TEST(TokenizerJson, TheMaskOfAUnigramVocabularyTakesTheSpacesBeforeIt) {
  Vocabulary vocabulary = spaced_vocabulary("t5", true);
  vocabulary.tokens.emplace_back("<mask>");
  vocabulary.token_types.push_back(TokenType::kControl);
  vocabulary.scores.push_back(0);
  const auto own = create_tokenizer(vocabulary);
  ASSERT_TRUE(own.has_value()) << own.error().message;
  const auto ids = encode(**own, "a<mask> b", SpecialText::kParse);
  EXPECT_EQ(encode(**own, "a  <mask> b", SpecialText::kParse), ids);
  const auto other = read_back(vocabulary);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(encode(*other, "a  <mask> b", SpecialText::kParse), ids);
}

TEST(TokenizerJson, NamesThatJsonOrAMapCannotHoldKeepTheirIds) {
  Vocabulary vocabulary = spaced_vocabulary("llama", true);
  vocabulary.tokens.push_back("\xFF\xFE");
  vocabulary.token_types.push_back(TokenType::kUnused);
  vocabulary.scores.push_back(0);
  const auto json = tokenizer_json(vocabulary);
  ASSERT_TRUE(json.has_value()) << json.error().message;
  const Json parsed = Json::parse(*json);
  EXPECT_EQ(parsed["model"]["vocab"].size(), vocabulary.tokens.size() - 1);
  EXPECT_EQ(parsed["model"]["vocab"]["<s>"], 1);
  vocabulary.scores.pop_back();
  EXPECT_FALSE(tokenizer_json(vocabulary).has_value());  // like the tokenizer itself
}

TEST(TokenizerJson, ConfigurationNamesSpecialTokensAndTheTemplate) {
  Vocabulary vocabulary = spaced_vocabulary("llama", true);
  vocabulary.add_bos = true;
  const Json config = Json::parse(tokenizer_config_json(vocabulary, "{{ bos_token }}"));
  EXPECT_EQ(config["bos_token"], "<s>");
  EXPECT_EQ(config["eos_token"], "</s>");
  EXPECT_EQ(config["unk_token"], "<unk>");
  EXPECT_FALSE(config.contains("pad_token"));
  EXPECT_EQ(config["add_bos_token"], true);
  EXPECT_EQ(config["add_eos_token"], false);
  EXPECT_EQ(config["chat_template"], "{{ bos_token }}");
}

TEST(Base64, GoesBothWays) {
  EXPECT_EQ(encode_base64(""), "");
  EXPECT_EQ(encode_base64("f"), "Zg==");
  EXPECT_EQ(encode_base64("fo"), "Zm8=");
  EXPECT_EQ(encode_base64("foo"), "Zm9v");
  std::string all;
  for (int i = 0; i < 256; ++i) all += static_cast<char>(i);
  // Each number of bytes that the last group of digits may hold.
  for (size_t size : {0, 1, 2, 3, 255, 256}) {
    EXPECT_EQ(decode_base64(encode_base64(all.substr(0, size))), all.substr(0, size));
  }
}

}  // namespace
}  // namespace sluice
