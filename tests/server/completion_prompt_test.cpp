// SPDX-License-Identifier: Apache-2.0
// Text prompts of completions with tokenizers of real models' kinds: control tokens in them, the
// text that `echo` repeats, and where its tokens lie in it.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "server/api/request_validator.h"
#include "server/api/text_offsets.h"
#include "server/json/json_writer.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/golden_folder.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using Json = nlohmann::json;
using Offsets = std::vector<int64_t>;

std::unique_ptr<Tokenizer> golden(const std::string& name) {
  std::ostringstream content;
  content
      << std::ifstream(golden_folder() + "/tokenizer/json/" + name + ".json").rdbuf();
  HfTokenizerFiles files;
  files.tokenizer_json = content.str();
  auto tokenizer = create_hf_tokenizer(files);
  EXPECT_TRUE(tokenizer.has_value()) << name;
  return std::move(*tokenizer);
}

const std::vector<std::string> kKinds = {
    "llama2", "mistral", "gemma", "llama3", "qwen", "roberta", "t5", "albert", "flags", "words"};

class CompletionPrompt {
 public:
  explicit CompletionPrompt(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    model_.vocab_size = tokenizer.vocab_size();
    model_.max_model_len = 4096;
  }

  // What a completion of `prompt` is answered from.
  [[nodiscard]] GenerationRequest request(const Json& prompt,
                                          const Json& more = Json::object()) const {
    Json body = {{"prompt", prompt}, {"echo", true}, {"logprobs", 1}};
    body.update(more);
    const ValidationContext context{config_,
                                    model_,
                                    tokenizer_,
                                    chat_template_,
                                    names_,
                                    7,
                                    0,
                                    std::chrono::steady_clock::now()};
    IgnoredArguments ignored(UnknownArguments::kRefuse);
    auto valid = validate_generation(context, body.dump(), Endpoint::kCompletion, ignored);
    EXPECT_TRUE(valid.has_value()) << valid.error().message;
    return std::move(*valid);
  }

  [[nodiscard]] std::vector<TokenId> ids(const Json& prompt,
                                         const Json& more = Json::object()) const {
    return request(prompt, more).requests.front().prompt;
  }

  [[nodiscard]] std::vector<TokenId> chat_ids(const Json& messages) const {
    const ValidationContext context{config_,
                                    model_,
                                    tokenizer_,
                                    chat_template_,
                                    names_,
                                    7,
                                    0,
                                    std::chrono::steady_clock::now()};
    IgnoredArguments ignored(UnknownArguments::kRefuse);
    auto valid =
        validate_generation(context, Json{{"messages", messages}}.dump(), Endpoint::kChat, ignored);
    EXPECT_TRUE(valid.has_value()) << valid.error().message;
    return valid->requests.front().prompt;
  }

 private:
  const Tokenizer& tokenizer_;
  Config config_;
  ModelInfo model_;
  std::vector<std::string> names_ = {"m"};
  Expected<ChatTemplate> chat_template_ = ChatTemplate::compile(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
};

TEST(CompletionPrompt, ARenderedChatHasTheIdsOfTheChat) {
  const std::string rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  for (const std::string& kind : kKinds) {
    const auto tokenizer = golden(kind);
    const CompletionPrompt prompt(*tokenizer);
    const auto expected = prompt.chat_ids(Json::array({{{"role", "user"}, {"content", "Hi"}}}));
    EXPECT_EQ(prompt.ids(rendered, {{"add_special_tokens", false}}), expected) << kind;
    const TokenId start = tokenizer->find_token("<|im_start|>");
    EXPECT_EQ(std::count(expected.begin(), expected.end(), start), 2) << kind;
    // What is added to a text is around it, as it is around any other.
    const auto whole = prompt.ids(rendered);
    EXPECT_EQ(
        whole.size(),
        expected.size() + tokenizer->prefix_tokens().size() + tokenizer->suffix_tokens().size())
        << kind;
  }
}

TEST(CompletionPrompt, ContentsOfMessagesNameNoControlTokens) {
  for (const std::string& kind : kKinds) {
    const auto tokenizer = golden(kind);
    const CompletionPrompt prompt(*tokenizer);
    const auto ids =
        prompt.chat_ids(Json::array({{{"role", "user"}, {"content", "a<|im_end|>b"}}}));
    const TokenId end = tokenizer->find_token("<|im_end|>");
    EXPECT_EQ(std::count(ids.begin(), ids.end(), end), 1) << kind;
    const auto parsed = prompt.ids("a<|im_end|>b");
    EXPECT_EQ(std::count(parsed.begin(), parsed.end(), end), 1) << kind;
  }
}

TEST(CompletionPrompt, EchoIsTheStringThatWasSent) {
  for (const std::string& kind : kKinds) {
    const auto tokenizer = golden(kind);
    const CompletionPrompt prompt(*tokenizer);
    const Json texts = {"the user",
                        " the  user ",
                        "cafe\xCC\x81 \xEF\xAC\x81ne",  // composed by NFC, taken apart by NFKC
                        "THE User",
                        "<s>the</s> user<|im_end|>\n",
                        "\xF0\x9F\xA6\x99"};
    const GenerationRequest request = prompt.request(texts);
    ASSERT_EQ(request.echoed.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(request.echoed[i], texts[i].get<std::string>()) << kind;
    }
  }
}

TEST(CompletionPrompt, IdsAndCutTextsAreDecodedWithoutAnAddedSpace) {
  for (const std::string kind : {"llama2", "mistral", "llama3", "gemma"}) {
    const auto tokenizer = golden(kind);
    const CompletionPrompt prompt(*tokenizer);
    const std::string text = "the user said the";
    const std::vector<TokenId> ids = prompt.ids(text);
    EXPECT_EQ(prompt.request(ids).echoed.front(), text) << kind;
    const Json cut = {{"truncate_prompt_tokens", 2}};
    EXPECT_EQ(prompt.request(text, cut).echoed.front(),
              prompt.request(prompt.ids(text, cut)).echoed.front())
        << kind;
    EXPECT_LT(prompt.request(text, cut).echoed.front().size(), text.size()) << kind;
  }
}

// A token whose bytes stand in the text begins where they do.
void expect_at_their_bytes(const Tokenizer& tokenizer,
                           const std::vector<TokenId>& ids,
                           const std::string& text,
                           const std::string& kind) {
  const Offsets offsets = text_offsets(tokenizer, ids, text);
  ASSERT_EQ(offsets.size(), ids.size()) << kind;
  EXPECT_TRUE(std::is_sorted(offsets.begin(), offsets.end())) << kind << ": " << text;
  EXPECT_LE(offsets.back(), count_characters(text)) << kind << ": " << text;
  size_t begin = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    std::string_view bytes = tokenizer.token_bytes(ids[i]);
    size_t at = text.find(bytes, begin);
    if (at != begin && bytes.starts_with(' ')) {
      bytes.remove_prefix(1);
      at = text.find(bytes, begin);
    }
    ASSERT_EQ(at, begin) << kind << " token " << i << ": " << text;
    EXPECT_EQ(offsets[i], count_characters(text.substr(0, begin))) << kind << ": " << text;
    begin += bytes.size();
  }
  EXPECT_EQ(begin, text.size()) << kind << ": " << text;
}

TEST(TextOffsets, AreWhereTheTokensAreWhereTheTextIsKept) {
  for (const std::string kind : {"llama2", "mistral", "llama3", "gemma", "qwen"}) {
    const auto tokenizer = golden(kind);
    for (const std::string text : {"the user said", "the user  said the", "<s>the</s>user<s><s>"}) {
      std::vector<TokenId> ids;
      tokenizer->encode(text, SpecialText::kParse, ids);
      expect_at_their_bytes(*tokenizer, ids, text, kind);
    }
  }
}

Offsets offsets_of(const Tokenizer& tokenizer, const std::string& text) {
  return text_offsets(tokenizer, CompletionPrompt(tokenizer).ids(text), text);
}

TEST(TextOffsets, TokensThatWereAddedHaveNoWidth) {
  const ByteTokenizer tokenizer;
  EXPECT_EQ(offsets_of(tokenizer, "ab"), (Offsets{0, 0, 1}));
  // One <s> is the text's own.
  EXPECT_EQ(offsets_of(tokenizer, "<s>b<s>"), (Offsets{0, 0, 3, 4}));
  EXPECT_EQ(text_offsets(tokenizer, std::vector<TokenId>{ByteTokenizer::kBos, 'b'}, "<s>b"),
            (Offsets{0, 3}));
  // A character of two tokens begins with its first one.
  EXPECT_EQ(offsets_of(tokenizer, "x\xC3\xA9z"), (Offsets{0, 0, 1, 1, 2}));
  EXPECT_EQ(offsets_of(tokenizer, "x<|im_end|>z"), (Offsets{0, 0, 1, 11}));
  const auto roberta = golden("roberta");
  const Offsets around = offsets_of(*roberta, "the");
  EXPECT_EQ(around.front(), 0);
  EXPECT_EQ(around.back(), 3);
}

// Tokens that spell what they stand for, and a text that a normalizer would have changed to them.
TEST(TextOffsets, GoOnBehindWhatANormalizerChanged) {
  const ByteTokenizer tokenizer;
  const auto offsets = [&](const std::string& spelled, const std::string& text) {
    std::vector<TokenId> ids;
    tokenizer.encode(spelled, SpecialText::kParse, ids);
    return text_offsets(tokenizer, ids, text);
  };
  EXPECT_EQ(offsets("abc", "ABC"), (Offsets{0, 1, 2}));
  EXPECT_EQ(offsets("xbcd", "Xbcd"), (Offsets{0, 1, 2, 3}));
  EXPECT_EQ(offsets("a bc", "a    bc"), (Offsets{0, 1, 5, 6}));
  EXPECT_EQ(offsets("a bc", " \t a bc  "), (Offsets{3, 4, 5, 6}));
  EXPECT_EQ(offsets(" ab", "ab"), (Offsets{0, 0, 1}));
  EXPECT_EQ(offsets("  ab", " ab"), (Offsets{0, 0, 1, 2}));
  EXPECT_EQ(offsets("xfiyz", "x\xEF\xAC\x81yz"), (Offsets{0, 1, 1, 2, 3}));
  EXPECT_EQ(offsets("x\xC3\xA9yz", "xe\xCC\x81yz"), (Offsets{0, 1, 1, 3, 4}));
  EXPECT_EQ(offsets("abyz", "ab\xE4\xB8\xADyz"), (Offsets{0, 1, 3, 4}));
  EXPECT_EQ(offsets("a<|im_end|>b", "a  <|im_end|> b"), (Offsets{0, 3, 14}));
  EXPECT_EQ(offsets("abc", ""), (Offsets{0, 0, 0}));
}

// Whatever comes: offsets ascend and stay inside the text, in a time that does not explode.
TEST(TextOffsets, AnyTokensAlongAnyTextStayInOrderAndInside) {
  std::mt19937 random(5);
  const std::vector<std::string> pieces = {"a",
                                           "b",
                                           " ",
                                           "  ",
                                           "A",
                                           "\xC3\xA9",
                                           "e\xCC\x81",
                                           "\xF0\x9F\xA6\x99",
                                           "<s>",
                                           "<|im_end|>",
                                           "\xFF"};
  const auto make = [&] {
    std::string text;
    for (size_t i = random() % 40; i > 0; --i) text += pieces[random() % pieces.size()];
    return text;
  };
  const ByteTokenizer tokenizer;
  for (int round = 0; round < testing::sample_of(1000, 5000); ++round) {
    const std::string text = make();
    std::vector<TokenId> ids;
    tokenizer.encode(make(), SpecialText::kParse, ids);
    const Offsets offsets = text_offsets(tokenizer, ids, text);
    ASSERT_EQ(offsets.size(), ids.size());
    ASSERT_TRUE(std::is_sorted(offsets.begin(), offsets.end()));
    if (!offsets.empty()) {
      ASSERT_LE(offsets.back(), count_characters(text));
    }
  }
  for (const std::string& kind : kKinds) {
    const auto golden_tokenizer = golden(kind);
    for (int round = 0; round < testing::sample_of(10, 50); ++round) {
      const std::string text = to_valid_utf8(make()) + "x";
      const Offsets offsets = offsets_of(*golden_tokenizer, text);
      ASSERT_TRUE(std::is_sorted(offsets.begin(), offsets.end())) << kind;
      ASSERT_LE(offsets.back(), count_characters(text)) << kind;
    }
  }
}

TEST(BadWords, NameControlTokensToo) {
  const ByteTokenizer tokenizer;
  const CompletionPrompt prompt(tokenizer);
  const GenerationRequest request =
      prompt.request("x", {{"bad_words", {"<|im_end|>", "a<|im_start|>"}}});
  EXPECT_EQ(request.requests.front().sampling.bad_words,
            (std::vector<std::vector<TokenId>>{{ByteTokenizer::kTurnEnd},
                                               {'a', ByteTokenizer::kTurnStart}}));
}

// A vocabulary without the word has nothing to refuse.
TEST(BadWords, WithoutTokensAreLeftOut) {
  const auto tokenizer = golden("vanishing");
  std::vector<TokenId> ids;
  tokenizer->encode("\xF0\x9F\xA6\x99", SpecialText::kParse, ids);
  ASSERT_TRUE(ids.empty());
  const GenerationRequest request =
      CompletionPrompt(*tokenizer)
          .request(Json::array({5, 6}), {{"bad_words", {"\xF0\x9F\xA6\x99"}}});
  EXPECT_TRUE(request.requests.front().sampling.bad_words.empty());
}

}  // namespace
}  // namespace sluice
