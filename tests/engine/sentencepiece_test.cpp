// SPDX-License-Identifier: Apache-2.0
// Tokenizers of directories that have tokenizer.model alone.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/sentencepiece_model.h"
#include "tests/engine/token_cases.h"
#include "tests/support/captured_log.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::encode;

const std::string kModels = golden_folder() + "/tokenizer/sentencepiece";

std::unique_ptr<Tokenizer> load(const std::string& name) {
  auto text = load_hf_text(kModels + "/" + name);
  EXPECT_TRUE(text.has_value()) << text.error().message;
  return text ? std::move(text->tokenizer) : nullptr;
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SentencePiece, IdsEqualThoseOfThePackage) {
  const std::vector<testing::TokenCase> cases = testing::read_token_cases(kModels + "/cases.txt");
  EXPECT_GT(cases.size(), 480U);
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  for (const testing::TokenCase& known : cases) {
    std::unique_ptr<Tokenizer>& tokenizer = tokenizers[known.name];
    if (tokenizer == nullptr) tokenizer = load(known.name);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(encode(*tokenizer, known.text, known.special), known.ids)
        << known.name << ": " << known.text;
  }
  EXPECT_EQ(tokenizers.size(), 7U);
}

TEST(SentencePiece, TextsAreEnclosedAsTheClassesDo) {
  const auto ends = nlohmann::json::parse(content_of(kModels + "/ends.json"));
  for (const auto& [name, ids] : ends.items()) {
    const auto tokenizer = load(name);
    ASSERT_NE(tokenizer, nullptr);
    std::vector<TokenId> found = tokenizer->prefix_tokens();
    for (const auto& more : {encode(*tokenizer, "a"),
                             tokenizer->between_tokens(),
                             encode(*tokenizer, "b"),
                             tokenizer->suffix_tokens()}) {
      found.insert(found.end(), more.begin(), more.end());
    }
    EXPECT_EQ(found, ids.get<std::vector<TokenId>>()) << name;
  }
}

TEST(SentencePiece, TextsComeBack) {
  const std::string text = "the water \xE4\xB8\xAD\xE6\x96\x87 12";
  for (const char* name : {"llama", "llama-first", "baichuan", "internlm", "unigram-bytes"}) {
    const auto tokenizer = load(name);
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(decode_tokens(*tokenizer, encode(*tokenizer, text)), text) << name;
  }
}

// A piece kept for later use has the text of the added token with its id.
TEST(SentencePiece, AddedTokensRenamePieces) {
  const auto tokenizer = load("internlm");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(tokenizer->token_name(3), "<|im_start|>");
  EXPECT_TRUE(tokenizer->is_special(3));
  EXPECT_EQ(tokenizer->find_token("[UNUSED_TOKEN_0]"), kInvalidToken);
  EXPECT_EQ(tokenizer->token_name(5), "[UNUSED_TOKEN_2]");
}

TEST(SentencePiece, MapsOfSpecialTokensCountWithoutAListOfAddedTokens) {
  const auto tokenizer = load("llama-older");
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_TRUE(tokenizer->is_special(tokenizer->find_token("<|im_start|>")));
  EXPECT_FALSE(tokenizer->is_special(tokenizer->find_token("<|im_end|>")));
}

// A copy of a golden directory, of which a test changes a file.
class ChangedSentencePiece : public ::testing::Test {
 protected:
  ChangedSentencePiece() { std::filesystem::copy(kModels + "/llama", folder_.path()); }

  void write(const char* name, const std::string& text) {
    std::ofstream(folder_.at(name), std::ios::binary) << text;
  }

  std::string refusal() {
    const auto text = load_hf_text(folder_.path());
    return text ? std::string() : text.error().message;
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(ChangedSentencePiece, OptionsOfTheClassCount) {
  write("tokenizer_config.json", R"({"add_bos_token":false,"add_eos_token":true,"eos_token":"</s>",
      "add_prefix_space":false})");
  auto text = load_hf_text(folder_.path());
  ASSERT_TRUE(text.has_value()) << text.error().message;
  EXPECT_TRUE(text->tokenizer->prefix_tokens().empty());
  EXPECT_EQ(text->tokenizer->suffix_tokens(), std::vector<TokenId>{2});
  EXPECT_EQ(decode_tokens(*text->tokenizer, encode(*text->tokenizer, "a")), "a");
  EXPECT_EQ(text->tokenizer->token_name(encode(*text->tokenizer, "a").front()), "a");
  for (const char* json : {R"({"legacy":1})",
                           R"({"add_bos_token":"yes"})",
                           R"({"add_prefix_space":3})",
                           R"({"added_tokens_decoder":{"-1":{"content":"a"}}})",
                           R"({"added_tokens_decoder":{"99999999":{"content":"a"}}})"}) {
    write("tokenizer_config.json", json);
    EXPECT_NE(refusal().find("tokenizer_config.json"), std::string::npos) << json << refusal();
  }
}

TEST_F(ChangedSentencePiece, AnotherClassIsRefusedWithWhatMakesATokenizerJson) {
  write("tokenizer_config.json", R"({"tokenizer_class":"ChatGLMTokenizer"})");
  for (const char* part : {"tokenizer.json", "tokenizer.model", "AutoTokenizer"}) {
    EXPECT_NE(refusal().find(part), std::string::npos) << refusal();
  }
}

// User-defined pieces split texts, by which no expression of Mistral's is meant.
TEST_F(ChangedSentencePiece, WholePiecesAreNoIncorrectExpression) {
  write("tokenizer.model", content_of(kModels + "/internlm/tokenizer.model"));
  std::string refused;
  EXPECT_EQ(logged_by([&] { refused = refusal(); }), "");
  EXPECT_EQ(refused, "");
}

// A field of a message.
std::string field(int id, const std::string& bytes) {
  std::string text{static_cast<char>(id << 3 | 2), static_cast<char>(bytes.size())};
  return text + bytes;
}

std::string number(int id, int value) {
  return {static_cast<char>(id << 3), static_cast<char>(value)};
}

TEST_F(ChangedSentencePiece, WhatIsNoModelIsRefusedByName) {
  const std::string unknown = field(1, field(1, "<unk>") + number(3, 2));
  const std::string piece = field(1, field(1, "a"));
  const std::string infinite = field(1, "b") + std::string("\x15\x00\x00\x80\x7F", 5);
  const std::pair<std::string, const char*> kFiles[] = {
      {"IQ== 0\nIg== 1\n", "expected a SentencePiece model"},
      {piece, "found no unknown piece"},
      {unknown + unknown, "piece 1: it is a second unknown one"},
      {unknown + piece + piece, "found two pieces \"a\""},
      {unknown + field(1, field(1, "\xFF")), "piece 1: text"},
      {unknown + field(1, ""), "piece 1: text"},
      {unknown + field(1, field(1, "a") + number(3, 7)), "piece 1: type: found 7"},
      {unknown + field(1, infinite), "piece 1: score"},
      {unknown + field(1, "\x0A\x05"), "piece 1: found something else"},
      {unknown + field(2, number(3, 3)), "model_type: found 3"},
      {unknown + field(2, "\xC0\x01\x01"), "treat_whitespace_as_suffix"},
      {unknown + field(3, number(5, 0)), "escape_whitespaces"},
      {unknown + field(3, "\x12\x7F"), "normalizer_spec"},
      {unknown + "\x0A\x7F", "expected a SentencePiece model"}};
  for (const auto& [bytes, part] : kFiles) {
    write("tokenizer.model", bytes);
    EXPECT_NE(refusal().find("tokenizer.model: "), std::string::npos) << part << refusal();
    EXPECT_NE(refusal().find(part), std::string::npos) << part << ": " << refusal();
  }
}

TEST(SentencePieceModel, EveryCutOffFileIsRefusedOrRead) {
  const std::string bytes = content_of(kModels + "/unigram/tokenizer.model");
  ASSERT_TRUE(read_sentencepiece_model(bytes).has_value());
  for (size_t size = 0; size < bytes.size(); size += 7) {
    const auto model = read_sentencepiece_model(bytes.substr(0, size));
    const std::string message = model ? "tokenizer.model: " : model.error().message;
    EXPECT_TRUE(message.starts_with("tokenizer.model: ")) << message;
  }
}

}  // namespace
}  // namespace sluice
