// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <sstream>

#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/tokenizer_json.h"
#include "tests/engine/token_cases.h"
#include "tests/engine/vocabulary_file.h"
#include "tests/support/captured_log.h"
#include "tests/support/golden_folder.h"
#include "tests/support/thread_time.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::encode;

const std::string kFolder = golden_folder() + "/tokenizer/";

const char* const kAllPres[] = {"gpt-2",
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
                                "grok-2",
                                "minimax-m2",
                                "minicpm5",
                                "seed-coder",
                                "bailingmoe",
                                "tiny_aya",
                                "youtu",
                                "afmoe"};

// These normalize text to NFC first, so not every text comes back.
bool is_normalizing(std::string_view pre) {
  return pre == "qwen2" || pre == "qwen35" || pre == "command-r" || pre == "gpt-neox";
}

Vocabulary golden_vocabulary() {
  auto vocabulary = testing::read_vocabulary_file(kFolder + "vocabulary.txt");
  EXPECT_TRUE(vocabulary.has_value());
  return vocabulary ? *vocabulary : Vocabulary();
}

std::unique_ptr<Tokenizer> golden_tokenizer(const std::string& pre = "smollm") {
  Vocabulary vocabulary = golden_vocabulary();
  vocabulary.pre = pre;
  auto tokenizer = create_tokenizer(std::move(vocabulary));
  EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().message);
  return tokenizer ? std::move(*tokenizer) : nullptr;
}

std::string decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

ErrorCode creation_error(Vocabulary vocabulary, const std::string& mentioned) {
  auto tokenizer = create_tokenizer(std::move(vocabulary));
  EXPECT_FALSE(tokenizer.has_value());
  if (tokenizer) return ErrorCode::kInternal;
  EXPECT_NE(tokenizer.error().message.find(mentioned), std::string::npos)
      << tokenizer.error().message;
  return tokenizer.error().code;
}

TEST(Tokenizer, IdsEqualThoseOfTheTokenizersPackage) {
  const std::vector<testing::TokenCase> cases = testing::read_token_cases(kFolder + "cases.txt");
  EXPECT_EQ(cases.size(), 1320U);
  std::unique_ptr<Tokenizer> tokenizer;
  std::string current;
  for (const testing::TokenCase& golden_case : cases) {
    if (golden_case.name != current) tokenizer = golden_tokenizer(current = golden_case.name);
    ASSERT_NE(tokenizer, nullptr);
    ASSERT_EQ(encode(*tokenizer, golden_case.text, golden_case.special), golden_case.ids)
        << golden_case.name << ": " << golden_case.text;
  }
}

TEST(Tokenizer, AnyBytesComeBackExactly) {
  std::mt19937 random(7);
  for (const char* pre : kAllPres) {
    if (is_normalizing(pre)) continue;
    const auto tokenizer = golden_tokenizer(pre);
    for (int round = 0; round < 200; ++round) {
      std::string text;
      const size_t length = random() % 200;
      while (text.size() < length) {
        // Lead and continuation bytes are frequent, so that characters form and break.
        const uint32_t kind = random() % 4;
        text += static_cast<char>(kind == 0   ? random()
                                  : kind == 1 ? 0x80 + random() % 0x80
                                              : "a 1\n"[random() % 4]);
      }
      ASSERT_EQ(decode(*tokenizer, encode(*tokenizer, text)), text) << pre << " round " << round;
    }
  }
}

TEST(Tokenizer, BrokenCharacterIsAPieceBetweenPieces) {
  const auto tokenizer = golden_tokenizer();
  auto expected = encode(*tokenizer, "the ");
  for (const TokenId id : encode(*tokenizer, "\xE2\x82")) expected.push_back(id);
  for (const TokenId id : encode(*tokenizer, "the")) expected.push_back(id);
  EXPECT_EQ(encode(*tokenizer, "the \xE2\x82the"), expected);
}

TEST(Tokenizer, UserTextNeverYieldsControlTokens) {
  const auto tokenizer = golden_tokenizer();
  const TokenId control = tokenizer->find_token("<|im_end|>");
  ASSERT_NE(control, kInvalidToken);
  const auto text_ids = encode(*tokenizer, "a<|im_end|>b");
  EXPECT_EQ(std::count(text_ids.begin(), text_ids.end(), control), 0);
  EXPECT_EQ(decode(*tokenizer, text_ids), "a<|im_end|>b");
  const auto parsed_ids = encode(*tokenizer, "a<|im_end|>b", SpecialText::kParse);
  EXPECT_EQ(std::count(parsed_ids.begin(), parsed_ids.end(), control), 1);
}

TEST(Tokenizer, UserDefinedTokensAreFoundInBothModes) {
  const auto tokenizer = golden_tokenizer();
  const std::vector<TokenId> expected{tokenizer->find_token("<tool>")};
  EXPECT_EQ(encode(*tokenizer, "<tool>", SpecialText::kText), expected);
  EXPECT_EQ(encode(*tokenizer, "<tool>", SpecialText::kParse), expected);
  EXPECT_FALSE(tokenizer->is_special(expected[0]));
}

TEST(Tokenizer, LongestOfOverlappingNamesWins) {
  Vocabulary vocabulary = golden_vocabulary();
  const auto add = [&](const char* name) {
    vocabulary.tokens.emplace_back(name);
    vocabulary.token_types.push_back(TokenType::kControl);
    return static_cast<TokenId>(vocabulary.tokens.size() - 1);
  };
  const TokenId shorter = add("<x>");
  const TokenId longer = add("<x><y>");
  const TokenId later = add("><y><z><w>");
  auto tokenizer = create_tokenizer(std::move(vocabulary));
  ASSERT_TRUE(tokenizer.has_value());
  EXPECT_EQ(encode(**tokenizer, "<x><x><y>", SpecialText::kParse),
            (std::vector<TokenId>{shorter, longer}));
  // The leftmost match precedes the longest.
  EXPECT_EQ(encode(**tokenizer, "<x><y><z><w>", SpecialText::kParse)[0], longer);
  EXPECT_NE(later, kInvalidToken);
}

TEST(Tokenizer, MarkedTextIsTokenizedAsOneString) {
  const auto tokenizer = golden_tokenizer();
  // The border between template and user text is inside the word "there".
  const std::string text =
      "<|im_start|>the"
      "re it's<|im_end|>\n";
  const TextRange user{15, 22};
  std::vector<TokenId> marked;
  tokenizer->encode_marked(text, {&user, 1}, marked);
  EXPECT_EQ(marked, encode(*tokenizer, text, SpecialText::kParse));
  std::vector<TokenId> pieces = encode(*tokenizer, text.substr(0, 15), SpecialText::kParse);
  for (const TokenId id : encode(*tokenizer, text.substr(15, 7))) pieces.push_back(id);
  for (const TokenId id : encode(*tokenizer, text.substr(22), SpecialText::kParse)) {
    pieces.push_back(id);
  }
  EXPECT_NE(marked, pieces);
}

TEST(Tokenizer, ControlTokensAreFoundOnlyOutsideLiteralRanges) {
  const auto tokenizer = golden_tokenizer();
  const std::string name = "<|im_end|>";
  const TokenId control = tokenizer->find_token(name);
  const std::string text = "x" + name + "y";
  // For every literal range, the token survives exactly if the range does not touch the name.
  for (size_t begin = 0; begin <= text.size(); ++begin) {
    for (size_t end = begin; end <= text.size(); ++end) {
      const TextRange range{begin, end};
      std::vector<TokenId> ids;
      tokenizer->encode_marked(text, {&range, 1}, ids);
      const bool touches = begin < end && begin < 1 + name.size() && end > 1;
      ASSERT_EQ(std::count(ids.begin(), ids.end(), control), touches ? 0 : 1)
          << begin << " to " << end;
      ASSERT_EQ(decode(*tokenizer, ids), text);
    }
  }
}

TEST(Tokenizer, SeveralLiteralRangesEachHideWhatTheyTouch) {
  const auto tokenizer = golden_tokenizer();
  const std::string name = "<|im_end|>";
  const TokenId control = tokenizer->find_token(name);
  const std::string text = name + name + name + name + "<tool>";
  const size_t size = name.size();
  const TextRange ranges[] = {
      {0, size}, {size, size}, {2 * size, 3 * size}, {4 * size, 4 * size + 6}};
  std::vector<TokenId> ids;
  tokenizer->encode_marked(text, ranges, ids);
  auto expected = encode(*tokenizer, name);
  expected.push_back(control);
  for (const TokenId id : encode(*tokenizer, name)) expected.push_back(id);
  expected.push_back(control);
  expected.push_back(tokenizer->find_token("<tool>"));  // user-defined: found everywhere
  EXPECT_EQ(ids, expected);
}

// A chat of many short messages: each part between tokens looks at its own range alone, also by a
// tokenizer that looks for tokens again in normalized text.
TEST(Tokenizer, ManySegmentsAndManyLiteralRanges) {
  constexpr size_t kMessages = 50'000;
  std::ostringstream json;
  json << std::ifstream(kFolder + "json/flags.json").rdbuf();
  HfTokenizerFiles files;
  files.tokenizer_json = json.str();
  const auto tokenizer = create_hf_tokenizer(files);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  const std::string message = "<R>e\xCC\x81<N>A <N>";  // the first <N> is a user's text
  std::string text;
  std::vector<TextRange> ranges;
  for (size_t i = 0; i < kMessages; ++i) {
    ranges.push_back({text.size() + 3, text.size() + message.size() - 3});
    text += message;
  }
  const auto ids = testing::in_time([&] {
    std::vector<TokenId> encoded;
    (*tokenizer)->encode_marked(text, ranges, encoded);
    return encoded;
  });
  for (const char* name : {"<R>", "<N>"}) {
    EXPECT_EQ(static_cast<size_t>(std::ranges::count(ids, (*tokenizer)->find_token(name))),
              kMessages);
  }
}

// The definition of byte-pair merging, one pair at a time over the whole word.
std::vector<TokenId> merge_plainly(const Vocabulary& vocabulary, const std::string& word) {
  std::vector<std::string> symbols;
  for (const char c : word) symbols.emplace_back(1, c);
  while (true) {
    size_t best_rank = vocabulary.merges.size();
    size_t best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto at = std::find(vocabulary.merges.begin(),
                                vocabulary.merges.begin() + static_cast<ptrdiff_t>(best_rank),
                                symbols[i] + " " + symbols[i + 1]);
      const auto rank = static_cast<size_t>(at - vocabulary.merges.begin());
      if (rank >= best_rank) continue;
      best_rank = rank;
      best = i;
    }
    if (best_rank == vocabulary.merges.size()) break;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
  }
  std::vector<TokenId> ids;
  for (const std::string& symbol : symbols) {
    const auto at = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), symbol);
    ids.push_back(static_cast<TokenId>(at - vocabulary.tokens.begin()));
  }
  return ids;
}

TEST(Tokenizer, RandomMergesOfAnyWordLengthFollowTheDefinition) {
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    Vocabulary vocabulary;
    vocabulary.model = "gpt2";
    vocabulary.pre = "gpt-2";
    vocabulary.tokens = {"a", "b", "c"};
    for (int tries = 0; tries < 40; ++tries) {
      const std::string left = vocabulary.tokens[random() % vocabulary.tokens.size()];
      const std::string right = vocabulary.tokens[random() % vocabulary.tokens.size()];
      auto& tokens = vocabulary.tokens;
      if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
      tokens.push_back(left + right);
      vocabulary.merges.push_back(left + " " + right);
    }
    std::shuffle(vocabulary.merges.begin(), vocabulary.merges.end(), random);
    auto tokenizer = create_tokenizer(vocabulary);
    ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
    for (const size_t length : {1, 2, 3, 7, 20, 47, 48, 49, 50, 64, 100, 300}) {
      std::string word;
      while (word.size() < length) word += "aaabc"[random() % 5];
      ASSERT_EQ(encode(**tokenizer, word), merge_plainly(vocabulary, word)) << word;
    }
  }
}

// A quadratic step over a quarter of a million characters would exceed ctest's time limit.
TEST(Tokenizer, LongRunsOfEqualCharactersTakeLinearTime) {
  const auto length = testing::sample_of<size_t>(1 << 16, 1 << 18);
  for (const char* pre : kAllPres) {
    const auto tokenizer = golden_tokenizer(pre);
    for (const char* unit :
         {"a", " ", "\n", "A", "1", "!", "<", "\xE4\xB8\xAD", "\xFF", " \n", "aA"}) {
      std::string text;
      while (text.size() < length) text += unit;
      text += "\xE4\xB8\xAD";  // and text after the run
      ASSERT_EQ(decode(*tokenizer, encode(*tokenizer, text)), text) << pre << " " << unit;
    }
  }
}

TEST(Tokenizer, RunsMayBeLongerThanTheDefaultMatchLimitOfPcre2) {
  const auto tokenizer = golden_tokenizer("gpt-4o");
  // Capitals only: the first alternative backtracks over all of them.
  EXPECT_EQ(encode(*tokenizer, std::string(11'000'000, 'Q')).size(), 11'000'000U);
}

// More distinct words of one length than the cache has places, and each of them twice.
TEST(Tokenizer, CacheOfLongTextsChangesNothing) {
  const auto tokenizer = golden_tokenizer();
  std::mt19937 random(5);
  std::vector<std::string> words(30000);
  for (std::string& word : words) {
    word = " ";
    while (word.size() < 5) word += static_cast<char>('a' + random() % 26);
  }
  std::string text;
  std::vector<TokenId> expected;
  for (size_t i = 0; i < 2 * words.size(); ++i) {
    const std::string& word = words[i < words.size() ? i : random() % words.size()];
    text += word;
    tokenizer->encode(word, SpecialText::kText, expected);
  }
  EXPECT_EQ(encode(*tokenizer, text), expected);
}

TEST(Tokenizer, BytesWithoutATokenAreLeftOut) {
  Vocabulary vocabulary = golden_vocabulary();
  vocabulary.merges.clear();
  const auto at = std::find(vocabulary.tokens.begin(), vocabulary.tokens.end(), "q");
  ASSERT_NE(at, vocabulary.tokens.end());
  *at = "qqq";
  auto tokenizer = create_tokenizer(std::move(vocabulary));
  ASSERT_TRUE(tokenizer.has_value());
  EXPECT_EQ(decode(**tokenizer, encode(**tokenizer, "aqb")), "ab");
}

TEST(Tokenizer, EndTokensAreEosAndKnownNames) {
  const auto tokenizer = golden_tokenizer();
  const std::vector<TokenId> expected{tokenizer->find_token("<|endoftext|>"),
                                      tokenizer->find_token("<|im_end|>")};
  EXPECT_EQ(tokenizer->end_tokens(), expected);
  const auto& named = tokenizer->named_tokens();
  const auto eos = std::ranges::find(named, "eos_token", &NamedToken::name);
  ASSERT_NE(eos, named.end());
  EXPECT_EQ(eos->text, "<|im_end|>");
  EXPECT_EQ(std::ranges::count(named, "bos_token", &NamedToken::name), 0);
  EXPECT_EQ(tokenizer->bos(), kInvalidToken);
}

// Adds control tokens to the golden vocabulary and returns which of them end a generation.
std::vector<std::string> ends_among(const std::vector<std::string>& names) {
  Vocabulary vocabulary = golden_vocabulary();
  for (const std::string& name : names) {
    vocabulary.tokens.push_back(name);
    vocabulary.token_types.push_back(TokenType::kControl);
  }
  const auto tokenizer = create_tokenizer(std::move(vocabulary)).value();
  std::vector<std::string> ends;
  for (const std::string& name : names) {
    const bool is_end =
        std::ranges::count(tokenizer->end_tokens(), tokenizer->find_token(name)) == 1;
    if (is_end) ends.push_back(name);
  }
  return ends;
}

TEST(Tokenizer, EndOfMessageIsNoEndWhereAnswersHaveSeveral) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(ends_among({"<|end|>", "<|call|>", "<|flush|>"}),
            (Names{"<|end|>", "<|call|>", "<|flush|>"}));
  EXPECT_EQ(ends_among({"<|end|>", "<|return|>", "<|call|>"}), (Names{"<|return|>", "<|call|>"}));
  // Solar Open: <|think|>...<|end|><|begin|>assistant<|content|>...<|flush|>, or calls.
  EXPECT_EQ(ends_among({"<|think|>", "<|end|>", "<|begin|>", "<|flush|>", "<|calls|>"}),
            (Names{"<|flush|>", "<|calls|>"}));
}

TEST(Tokenizer, ToolResultsEndAnAnswerThatCallsTools) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(ends_among({"</s>", "[EOS]", "[EOT]", "[e~[", "_<EOT>", "<eos>", "<other>"}),
            (Names{"</s>", "[EOS]", "[EOT]", "[e~[", "_<EOT>", "<eos>"}));
  // Gemma 4, whose </s> is HTML.
  EXPECT_EQ(ends_among({"<|tool_response>", "<turn|>", "</s>"}),
            (Names{"<|tool_response>", "<turn|>"}));
}

Vocabulary vocabulary_of(const std::string& model,
                         const std::vector<std::string>& tokens,
                         std::vector<std::string> merges = {}) {
  Vocabulary vocabulary;
  vocabulary.file = "twice.gguf";
  vocabulary.model = model;
  vocabulary.pre = model == "gpt2" ? "smollm" : "";
  for (size_t i = 0; i < tokens.size(); ++i) {
    vocabulary.tokens.push_back(tokens[i]);
    const bool is_control = tokens[i].starts_with("<|");
    vocabulary.token_types.push_back(is_control ? TokenType::kControl : TokenType::kNormal);
    vocabulary.scores.push_back(-static_cast<float>(i));
  }
  vocabulary.merges = std::move(merges);
  return vocabulary;
}

// Published Gemma 4 files have such vocabularies.
TEST(Tokenizer, SeveralTokensMayHaveOneTextOrNone) {
  for (const char* model : {"gpt2", "llama", "gemma4", "t5"}) {
    const std::vector<std::string> merges =
        model == std::string("gpt2") || model == std::string("gemma4")
            ? std::vector<std::string>{"a b", "b a", "a b"}
            : std::vector<std::string>();
    const std::vector<std::string> tokens = {
        "<|x|>", "b", "a", "ab", "", "a", "ab", "", "b", "ba", "<|x|>"};
    std::unique_ptr<Tokenizer> tokenizer;
    const std::string log = logged_by([&] {
      auto created = create_tokenizer(vocabulary_of(model, tokens, merges));
      ASSERT_TRUE(created.has_value()) << model << ": " << created.error().message;
      tokenizer = std::move(*created);
    });
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(encode(*tokenizer, "ab<|x|>a", SpecialText::kParse), (std::vector<TokenId>{3, 0, 2}))
        << model;
    for (size_t id = 0; id < tokens.size(); ++id) {
      EXPECT_EQ(tokenizer->token_bytes(static_cast<TokenId>(id)), tokens[id]) << model;
    }
    EXPECT_NE(log.find("twice.gguf"), std::string::npos) << log;
    EXPECT_NE(log.find("4 texts that tokens before have, the first of token 5, a"),
              std::string::npos)
        << log;
    EXPECT_NE(log.find("2 empty texts"), std::string::npos) << log;
    EXPECT_EQ(log.find("1 pairs that are there before") != std::string::npos, !merges.empty());
  }
}

// User text with the name of a control token never becomes it.
TEST(Tokenizer, ANormalTokenWithTheTextOfAControlTokenIsFoundInText) {
  Vocabulary vocabulary = vocabulary_of("gpt2", {"a", "b", "ab", "ab", "<|im_end|>"}, {"a b"});
  vocabulary.token_types[2] = TokenType::kControl;
  const auto tokenizer = create_tokenizer(std::move(vocabulary)).value();
  EXPECT_EQ(encode(*tokenizer, "ab", SpecialText::kText), std::vector<TokenId>{3});
  EXPECT_EQ(encode(*tokenizer, "ab", SpecialText::kParse), std::vector<TokenId>{2});
  EXPECT_EQ(tokenizer->find_token("ab"), 2);
}

TEST(Tokenizer, EveryTokenOfAnEndsNameEndsAGeneration) {
  Vocabulary vocabulary =
      vocabulary_of("gpt2", {"a", "<|im_end|>", "<|eot_id|>", "<|im_end|>", "b", "c", "d"});
  vocabulary.eos = 0;
  vocabulary.eot = 4;
  vocabulary.eom = 6;
  const auto tokenizer = create_tokenizer(std::move(vocabulary)).value();
  EXPECT_EQ(tokenizer->end_tokens(), (std::vector<TokenId>{0, 1, 2, 3, 4, 6}));
}

// llama.cpp ends there too, in files of Qwen2.5-Coder; a normal token with the text is text.
TEST(Tokenizer, EndsOfFilesEndAGeneration) {
  Vocabulary vocabulary = vocabulary_of(
      "gpt2", {"a", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<reponame>", "<|fim_prefix|>"});
  vocabulary.eos = 0;
  vocabulary.token_types[3] = TokenType::kUserDefined;
  const auto tokenizer = create_tokenizer(std::move(vocabulary)).value();
  EXPECT_EQ(tokenizer->end_tokens(), (std::vector<TokenId>{0, 1, 2, 3}));
  ASSERT_TRUE(tokenizer->replace_more_ends({5}).has_value());
  EXPECT_EQ(tokenizer->end_tokens(), (std::vector<TokenId>{0, 1, 2, 3, 5}));
}

TEST(Tokenizer, MoreEndTokensStandBesideItsOwn) {
  const auto tokenizer = golden_tokenizer();
  const std::vector<TokenId> own = tokenizer->end_tokens();
  for (const TokenId id : {TokenId{-1}, tokenizer->vocab_size()}) {
    const auto replaced = tokenizer->replace_more_ends({id});
    ASSERT_FALSE(replaced.has_value());
    EXPECT_NE(replaced.error().message.find("eos_token_id: found " + std::to_string(id)),
              std::string::npos);
    EXPECT_EQ(tokenizer->end_tokens(), own);
  }
  ASSERT_GT(own.front(), 7);
  ASSERT_TRUE(tokenizer->replace_more_ends({7, own.front()}).has_value());
  std::vector<TokenId> more = own;
  more.insert(more.begin(), 7);
  EXPECT_EQ(tokenizer->end_tokens(), more);
  ASSERT_TRUE(tokenizer->replace_more_ends({}).has_value());
  EXPECT_EQ(tokenizer->end_tokens(), own);
}

TEST(Tokenizer, NamesAreTheSpellingOfTheFile) {
  const std::vector<std::string> tokens = {"<|x|>", "a", "\xe2\x96\x81w", "\xc4\xa0w"};
  for (const char* model : {"gpt2", "llama"}) {
    const auto tokenizer = create_tokenizer(vocabulary_of(model, tokens));
    ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
    for (size_t id = 0; id < tokens.size(); ++id) {
      EXPECT_EQ((*tokenizer)->token_name(static_cast<TokenId>(id)), tokens[id]) << model;
    }
    EXPECT_EQ((*tokenizer)->token_bytes(model == std::string("llama") ? 2 : 3), " w");
  }
}

TEST(Tokenizer, IdsOutOfRangeAreEmpty) {
  const auto tokenizer = golden_tokenizer();
  for (const TokenId id : {-1, tokenizer->vocab_size(), INT32_MAX, INT32_MIN}) {
    EXPECT_TRUE(tokenizer->token_bytes(id).empty());
    EXPECT_TRUE(tokenizer->token_name(id).empty());
    EXPECT_FALSE(tokenizer->is_special(id));
  }
}

TEST(Tokenizer, UnknownNamesAreUnsupportedAndListWhatIs) {
  Vocabulary vocabulary = golden_vocabulary();
  vocabulary.pre = "martian";
  EXPECT_EQ(creation_error(vocabulary, "\"martian\""), ErrorCode::kUnsupported);
  EXPECT_EQ(creation_error(vocabulary, "qwen2"), ErrorCode::kUnsupported);
  vocabulary.model = "rwkv";
  EXPECT_EQ(creation_error(vocabulary, "\"rwkv\""), ErrorCode::kUnsupported);
}

TEST(Tokenizer, MergesThatCanNeverApplyAreLeftOut) {
  for (const char* model : {"gpt2", "gemma4"}) {
    const std::vector<std::string> tokens = {"a", "b", "c", "ab", "abc"};
    Vocabulary vocabulary = vocabulary_of(
        model, tokens, {"#version: 0.2", "", "abc", "a ", "b c", "a b", "ab no", "no c", "ab c"});
    std::unique_ptr<Tokenizer> tokenizer;
    const std::string log = logged_by([&] {
      auto created = create_tokenizer(vocabulary);
      ASSERT_TRUE(created.has_value()) << model << ": " << created.error().message;
      tokenizer = std::move(*created);
    });
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(encode(*tokenizer, "abc"), (std::vector<TokenId>{4})) << model;
    EXPECT_NE(log.find("key=tokenizer.ggml.merges found=\"7 that are not two tokens"),
              std::string::npos)
        << log;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    const auto json = tokenizer_json(vocabulary);
    ASSERT_TRUE(json.has_value()) << json.error().message;
    EXPECT_NE(json->find(R"("merges":[["a","b"],["ab","c"]])"), std::string::npos) << *json;
  }
}

TEST(Tokenizer, WithoutANameTheUsualWordsAreMadeOfText) {
  Vocabulary vocabulary = golden_vocabulary();
  vocabulary.pre = "default";
  const auto usual = create_tokenizer(vocabulary).value();
  vocabulary.pre = "";
  std::unique_ptr<Tokenizer> tokenizer;
  const std::string log = logged_by([&] { tokenizer = create_tokenizer(vocabulary).value(); });
  EXPECT_NE(log.find("key=tokenizer.ggml.pre found=\"no name\" counts_as=default"),
            std::string::npos)
      << log;
  for (const char* text : {"Hello, world! 12345", "it's  two", "a+b=c"}) {
    EXPECT_EQ(encode(*tokenizer, text), encode(*usual, text)) << text;
  }
  EXPECT_TRUE(tokenizer_json(vocabulary).has_value());
}

TEST(Tokenizer, ContradictionsAreDataLoss) {
  const Vocabulary good = golden_vocabulary();
  const auto broken = [&](auto change, const char* mentioned) {
    Vocabulary vocabulary = good;
    change(vocabulary);
    EXPECT_EQ(creation_error(std::move(vocabulary), mentioned), ErrorCode::kDataLoss) << mentioned;
  };
  broken([](Vocabulary& v) { v.token_types.pop_back(); }, "token types");
  broken([](Vocabulary& v) { v.token_types[0] = static_cast<TokenType>(9); }, "none of 1 to 6");
  broken([](Vocabulary& v) { v.eos = static_cast<TokenId>(v.tokens.size()); }, "outside");
  broken([](Vocabulary& v) { v.bos = -2; }, "outside");
  broken(
      [](Vocabulary& v) {
        v.tokens.back() = std::string(300, 'x'), v.token_types.back() = TokenType::kControl;
      },
      "300");
  broken([](Vocabulary& v) { v.tokens.clear(); }, "no tokens");
}

}  // namespace
}  // namespace sluice
