// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/hf_tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/files/json_parts.h"
#include "engine/tokenizer/files/named_templates.h"
#include "tests/engine/token_cases.h"
#include "tests/support/captured_log.h"
#include "tests/support/golden_folder.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::encode;

using Json = nlohmann::json;

const std::string kGoldens = golden_folder() + "/tokenizer/json/";

std::string read_text(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return content.str();
}

Expected<std::unique_ptr<Tokenizer>> create(const std::string& tokenizer_json,
                                            const std::string& tokenizer_config = {}) {
  HfTokenizerFiles files;
  files.tokenizer_json = tokenizer_json;
  files.tokenizer_config = tokenizer_config;
  return create_hf_tokenizer(files);
}

std::unique_ptr<Tokenizer> created(const Json& tokenizer_json) {
  auto tokenizer = create(tokenizer_json.dump());
  EXPECT_TRUE(tokenizer.has_value()) << (tokenizer ? "" : tokenizer.error().message);
  return tokenizer ? std::move(*tokenizer) : nullptr;
}

std::unique_ptr<Tokenizer> golden(const std::string& name) {
  auto tokenizer = create(read_text(kGoldens + name + ".json"));
  EXPECT_TRUE(tokenizer.has_value())
      << name << ": " << (tokenizer ? "" : tokenizer.error().message);
  return tokenizer ? std::move(*tokenizer) : nullptr;
}

TEST(HfTokenizer, IdsEqualThoseOfTheTokenizersPackage) {
  const std::vector<testing::TokenCase> cases = testing::read_token_cases(kGoldens + "cases.txt");
  EXPECT_GT(cases.size(), 600U);
  std::unique_ptr<Tokenizer> tokenizer;
  std::string current;
  for (const testing::TokenCase& golden_case : cases) {
    if (golden_case.name != current) tokenizer = golden(current = golden_case.name);
    ASSERT_NE(tokenizer, nullptr);
    ASSERT_EQ(encode(*tokenizer, golden_case.text, golden_case.special), golden_case.ids)
        << golden_case.name << ": " << golden_case.text;
  }
}

// Computes the digest of tests/golden/tokenizer/configurations.py.
std::string digest(const std::vector<TokenId>& ids) {
  uint64_t value = 0xCBF29CE484222325ULL;
  for (const TokenId id : ids) {
    for (const char c : std::to_string(id) + " ") {
      value = (value ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
    }
  }
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return std::to_string(ids.size()) + ":" + text;
}

Json with_sections(Json base, const Json& sections) {
  for (const auto& [key, section] : sections.items()) {
    if (key == "model") {
      base["model"].update(section);
    } else {
      base[key] = section;
    }
  }
  return base;
}

void check_configuration(const Json& golden_case, const Json& base, const Json& texts) {
  const std::string name = golden_case["name"];
  const auto tokenizer = create(with_sections(base, golden_case["sections"]).dump());
  ASSERT_TRUE(tokenizer.has_value()) << name << ": " << tokenizer.error().message;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (golden_case["ids"][i].is_null()) continue;
    const auto special = texts[i][0] == "p" ? SpecialText::kParse : SpecialText::kText;
    const auto ids = encode(**tokenizer, texts[i][1].get<std::string>(), special);
    EXPECT_EQ(digest(ids), golden_case["ids"][i].get<std::string>()) << name << ", text " << i;
    if (!golden_case.contains("decoded") || golden_case["decoded"][i].is_null()) continue;
    EXPECT_EQ(decode_tokens(**tokenizer, ids), golden_case["decoded"][i].get<std::string>())
        << name << ", text " << i;
  }
}

TEST(HfTokenizer, EveryOptionOfEveryPartDoesWhatThePackageDoes) {
  const Json goldens = Json::parse(read_text(kGoldens + "configurations.json"));
  ASSERT_GT(goldens["cases"].size(), 400U);
  std::map<std::string, Json> bases;
  for (const Json& golden_case : goldens["cases"]) {
    const std::string base = golden_case["base"];
    if (!bases.contains(base)) bases[base] = Json::parse(read_text(kGoldens + base + ".json"));
    check_configuration(golden_case, bases[base], goldens["texts"]);
  }
}

TEST(HfTokenizer, TextsOfByteFallbackModelsComeBack) {
  for (const char* name : {"llama2", "gemma", "unigram_bytes", "llama3"}) {
    const auto tokenizer = golden(name);
    ASSERT_NE(tokenizer, nullptr);
    for (const std::string text : {"hello  world",
                                   " a\n\n b",
                                   "\xF0\x9F\xA6\x99 \xE4\xB8\xAD",
                                   "a\xFF\x80z",
                                   "\xE2\x82",
                                   "",
                                   "the\tuser   said"}) {
      EXPECT_EQ(decode_tokens(*tokenizer, encode(*tokenizer, text)), text) << name;
    }
  }
}

// A token may be a part of a character, which no expression may see.
TEST(HfTokenizer, DecodersRewriteOnlyWhatIsUtf8) {
  const auto plain = golden("qwen");
  ASSERT_NE(plain, nullptr);
  Json json = Json::parse(read_text(kGoldens + "qwen.json"));
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "ByteLevel"}},
                       {{"type", "Replace"}, {"pattern", {{"Regex", "."}}}, {"content", "x"}}}}};
  const auto rewriting = create(json.dump());
  ASSERT_TRUE(rewriting.has_value()) << rewriting.error().message;
  int num_parts = 0;
  for (TokenId id = 0; id < plain->vocab_size(); ++id) {
    const std::string bytes = decode_tokens(*plain, std::span(&id, 1));
    if (bytes.size() != 1 || static_cast<uint8_t>(bytes[0]) < 0x80) continue;
    EXPECT_EQ(decode_tokens(**rewriting, std::span(&id, 1)), bytes) << id;
    ++num_parts;
  }
  EXPECT_GT(num_parts, 100);
  EXPECT_EQ(decode_tokens(**rewriting, encode(*plain, "ab")), "xx");
}

// Characters of several byte tokens, and a stop string that begins inside one piece and ends in
// another.
TEST(HfTokenizer, StreamsOfByteFallbackTokensStopExactly) {
  for (const char* name : {"llama2", "gemma", "unigram_bytes"}) {
    const auto tokenizer = golden(name);
    ASSERT_NE(tokenizer, nullptr);
    const std::string text = "hello \xF0\x9F\x90\xAA\xF0\x9F\xA6\x99 wor\xEA\x99\xAEld the end";
    const auto ids = encode(*tokenizer, text);
    for (const std::string stop : {"\xF0\x9F\xA6\x99", "r\xEA\x99\xAE", " end"}) {
      StopConfig config;
      config.strings = {stop};
      Detokenizer detokenizer(*tokenizer, config, /*skip_special_tokens=*/true);
      std::string out;
      int matched = -1;
      for (const TokenId id : ids) {
        const auto result = detokenizer.append(id);
        EXPECT_EQ(result.text.find("\xEF\xBF\xBD"), std::string::npos);
        out += result.text;
        if (result.matched_stop >= 0) matched = result.matched_stop;
      }
      out += detokenizer.finish();
      // The space that SentencePiece puts in front belongs to the stream.
      const std::string lead = tokenizer->strips_first_space() ? " " : "";
      EXPECT_EQ(out, lead + text.substr(0, text.find(stop))) << name;
      EXPECT_EQ(matched, 0);
    }
  }
}

TEST(HfTokenizer, LongRunsOfEqualCharactersTakeLinearTime) {
  for (const char* name : {"llama2",
                           "gemma",
                           "mistral",
                           "unknowns",
                           "fused_unknowns",
                           "t5",
                           "albert",
                           "unigram_bytes",
                           "qwen",
                           "falcon",
                           "flags",
                           "deepseek"}) {
    const auto tokenizer = golden(name);
    ASSERT_NE(tokenizer, nullptr);
    for (const char* unit : {"a",
                             " ",
                             "\n",
                             "\xE4\xB8\xAD",
                             "\xFF",
                             "a\xCC\x81\xCC\xA3",
                             "<",
                             "\xCC\x81",
                             "\xE2\x80\x8D"}) {
      std::string text = "a";
      while (text.size() < testing::sample_of<size_t>(1 << 17, 1 << 18)) text += unit;
      text += "\xE4\xB8\xAD";
      encode(*tokenizer, text, SpecialText::kParse);
    }
  }
}

// PCRE2 looks back from regional indicators to the text's beginning: an hour over a whole text.
TEST(HfTokenizer, FlagsTakeLinearTimeWhereGraphemesAreLookedUp) {
  Json content = Json::parse(read_text(kGoldens + "unigram_bytes.json"));
  const Json goldens = Json::parse(read_text(kGoldens + "configurations.json"));
  for (const Json& golden_case : goldens["cases"]) {
    if (golden_case["name"] != "unigram Precompiled") continue;
    content = with_sections(std::move(content), golden_case["sections"]);
  }
  ASSERT_EQ(content["normalizer"]["type"], "Precompiled");
  const auto tokenizer = create(content.dump());
  ASSERT_TRUE(tokenizer.has_value());
  std::string text;
  while (text.size() < (1 << 22)) text += "\xF0\x9F\x87\xA9";
  EXPECT_FALSE(encode(**tokenizer, text, SpecialText::kText).empty());
}

TEST(HfTokenizer, SpecialTokensAroundATextAreTheTemplates) {
  const auto llama = golden("llama2");
  ASSERT_NE(llama, nullptr);
  EXPECT_EQ(llama->prefix_tokens(), std::vector<TokenId>{llama->find_token("<s>")});
  EXPECT_TRUE(llama->add_bos());
  EXPECT_TRUE(llama->suffix_tokens().empty());
  const auto t5 = golden("t5");
  EXPECT_TRUE(t5->prefix_tokens().empty());
  EXPECT_EQ(t5->suffix_tokens(), std::vector<TokenId>{t5->find_token("</s>")});
  const auto roberta = golden("roberta");
  EXPECT_EQ(roberta->prefix_tokens(), std::vector<TokenId>{roberta->find_token("<s>")});
  EXPECT_EQ(roberta->suffix_tokens(), std::vector<TokenId>{roberta->find_token("</s>")});
}

TEST(HfTokenizer, SpecialTokensAreFoundOnlyOutsideLiteralRanges) {
  // A normalizer changes lengths, and a special token follows it.
  const auto tokenizer = golden("flags");
  ASSERT_NE(tokenizer, nullptr);
  const TokenId normalized = tokenizer->find_token("<N>");
  const TokenId raw = tokenizer->find_token("<R>");
  const std::string user = "e\xCC\x81\xC4\xB0<N>A<R>e\xCC\x81";
  for (const std::string before : {"", "e\xCC\x81 ", "\xC4\xB0\xC4\xB0 x"}) {
    for (const std::string after : {"<N>", "e\xCC\x81<N><R>"}) {
      const std::string text = before + user + after;
      const TextRange range{before.size(), before.size() + user.size()};
      std::vector<TokenId> ids;
      tokenizer->encode_marked(text, {&range, 1}, ids);
      EXPECT_EQ(std::count(ids.begin(), ids.end(), normalized), 1) << text;
      EXPECT_EQ(std::count(ids.begin(), ids.end(), raw), after == "<N>" ? 0 : 1) << text;
    }
  }
}

std::string names_of(const Tokenizer& tokenizer) {
  std::string all;
  for (const auto& [name, text] : tokenizer.named_tokens()) all += name + "=" + text + " ";
  return all;
}

TEST(HfTokenizer, ConfigsNameTheSpecialTokens) {
  HfTokenizerFiles files;
  files.tokenizer_json = read_text(kGoldens + "llama3.json");
  files.tokenizer_config =
      R"({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": false,
          "unk_token": {"content": "<unk>"}, "pad_token": "</s>", "cls_token": null,
          "mask_token": 7, "extra_special_tokens": {"image_token": "<image>"}})";
  files.config = R"({"text_config": {"eos_token_id": [1, 2]}})";
  files.generation_config = R"({"eos_token_id": 3.0})";
  const auto tokenizer = create_hf_tokenizer(files);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  EXPECT_EQ(names_of(**tokenizer),
            "unk_token=<unk> pad_token=</s> image_token=<image> bos_token=<s> eos_token=</s> ");
  for (const TokenId id : {1, 2, 3, (*tokenizer)->find_token("<|im_end|>")}) {
    const auto& ends = (*tokenizer)->end_tokens();
    EXPECT_EQ(std::count(ends.begin(), ends.end(), id), 1) << id;
  }
  EXPECT_EQ((*tokenizer)->prefix_tokens().size(), 1U);
  ASSERT_TRUE((*tokenizer)->replace_more_ends({5}).has_value());
  const auto& replaced = (*tokenizer)->end_tokens();
  EXPECT_EQ(std::count(replaced.begin(), replaced.end(), 3), 0);
  EXPECT_EQ(std::count(replaced.begin(), replaced.end(), 5), 1);
  files.config = R"({"llm_config": {"eos_token_id": 6}})";  // InternVL's
  EXPECT_EQ(std::ranges::count(create_hf_tokenizer(files).value()->end_tokens(), 6), 1);
  files.tokenizer_config.insert(1, R"("tokenizer_class": "LlamaTokenizerFast", )");
  EXPECT_TRUE(create_hf_tokenizer(files).value()->prefix_tokens().empty());
}

TEST(HfTokenizer, EndTokensThatNoTokenHasCountAsNotGiven) {
  HfTokenizerFiles files;
  files.tokenizer_json = read_text(kGoldens + "llama3.json");
  std::vector<TokenId> usual = create_hf_tokenizer(files).value()->end_tokens();
  for (const char* ids : {"-1", "4294967295", "[4294967295, -1]", "1e6"}) {
    files.generation_config = "{\"eos_token_id\": " + std::string(ids) + "}";
    const std::string log = logged_by(
        [&] { EXPECT_EQ(create_hf_tokenizer(files).value()->end_tokens(), usual) << ids; });
    EXPECT_NE(log.find("file=generation_config.json key=eos_token_id found="), std::string::npos)
        << log;
  }
}

TEST(HfTokenizer, AGenerationConfigThatIsNoneLeavesTheModelsEndTokens) {
  HfTokenizerFiles files;
  files.tokenizer_json = read_text(kGoldens + "llama3.json");
  files.config = R"({"eos_token_id": 3})";
  const std::vector<TokenId> usual = create_hf_tokenizer(files).value()->end_tokens();
  EXPECT_EQ(std::count(usual.begin(), usual.end(), 3), 1);
  const auto ends_with = [&](const std::string& text) {
    files.generation_config = text;
    std::vector<TokenId> ends;
    const std::string log = logged_by([&] {
      const auto tokenizer = create_hf_tokenizer(files);
      ASSERT_TRUE(tokenizer.has_value()) << text << tokenizer.error().message;
      ends = (*tokenizer)->end_tokens();
    });
    EXPECT_NE(log.find("file=generation_config.json key=eos_token_id found="), std::string::npos)
        << text << log;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    return ends;
  };
  for (const char* text : {"[]",
                           "null",
                           "{\"eos_token_id\": 2,}",
                           "{\"eos_token_id\"",
                           R"({"eos_token_id": 2.5})",
                           R"({"eos_token_id": "2"})",
                           R"({"eos_token_id": true})",
                           R"({"eos_token_id": {"a": 2}})",
                           R"({"eos_token_id": [[2]]})"}) {
    EXPECT_EQ(ends_with(text), usual) << text;
  }
  const std::vector<TokenId> more = ends_with(R"({"eos_token_id": ["a", 2]})");
  EXPECT_EQ(std::count(more.begin(), more.end(), 2), 1);
  // The model's config.json is required to be right.
  files.generation_config.clear();
  files.config = R"({"eos_token_id": 2.5})";
  EXPECT_FALSE(create_hf_tokenizer(files).has_value());
}

TEST(HfTokenizer, NumbersThatPythonAloneWritesAreNull) {
  HfTokenizerFiles files;
  files.tokenizer_json = read_text(kGoldens + "llama3.json");
  const std::vector<TokenId> usual = create_hf_tokenizer(files).value()->end_tokens();
  files.config = R"({"eos_token_id": NaN, "a": [Infinity]})";
  files.generation_config = R"({"eos_token_id": -Infinity})";
  files.tokenizer_config = R"({"model_max_length": Infinity, "NaN": "a \" NaN", "b": NaN})";
  const std::string log = logged_by([&] {
    const auto tokenizer = create_hf_tokenizer(files);
    ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
    EXPECT_EQ((*tokenizer)->end_tokens(), usual);
  });
  EXPECT_NE(log.find("model_max_length"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

// Behaves like the package; the comments have its ids.
TEST(HfTokenizer, SeveralTokensMayHaveOneText) {
  Json json = Json::parse(read_text(kGoldens + "qwen.json"));
  const auto added = [](int id, const std::string& content, bool special) {
    return Json{{"id", id}, {"content", content}, {"special", special}, {"normalized", false}};
  };
  json["added_tokens"].push_back(added(425, "aaaa", false));  // 259 is the model's
  json["added_tokens"].push_back(added(426, "<s>", true));    // 420 came first
  json["added_tokens"].push_back(json["added_tokens"][1]);    // a repetition
  std::unique_ptr<Tokenizer> tokenizer;
  const std::string log = logged_by([&] { tokenizer = created(json); });
  EXPECT_EQ(encode(*tokenizer, "xaaaay", SpecialText::kParse), (std::vector<TokenId>{87, 259, 88}));
  EXPECT_EQ(encode(*tokenizer, "<s>", SpecialText::kParse), std::vector<TokenId>{420});
  EXPECT_EQ(tokenizer->token_bytes(425), "aaaa");
  EXPECT_EQ(tokenizer->token_bytes(426), "<s>");
  EXPECT_NE(log.find("the text of token 259 for token 425"), std::string::npos) << log;
  EXPECT_NE(log.find("the text of token 420 for token 426"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << log;

  json = Json::parse(read_text(kGoldens + "t5.json"));
  json["model"]["vocab"][20] = {"d", -1.0};
  const std::string t5 = logged_by([&] { tokenizer = created(json); });
  const std::vector<TokenId> ids = encode(*tokenizer, "d");
  EXPECT_EQ(ids.back(), 20);  // 8 is the first one
  EXPECT_EQ(tokenizer->token_bytes(8), "d");
  EXPECT_NE(t5.find("the text of token 20 for token 8"), std::string::npos) << t5;
}

// The package gives ["a", "bc"] if the first merge is repeated behind the other, else ["ab", "c"].
TEST(HfTokenizer, OfMergesOfOnePairTheLastCounts) {
  Json json = {{"model",
                {{"type", "BPE"},
                 {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}}},
                 {"merges", Json::array({"a b", "b c"})}}}};
  EXPECT_EQ(encode(*created(json), "abc"), (std::vector<TokenId>{3, 2}));
  json["model"]["merges"].push_back("a b");
  const std::string log = logged_by([&] {
    EXPECT_EQ(encode(*created(json), "abc"), (std::vector<TokenId>{0, 4}));
  });
  EXPECT_NE(log.find("key=model.merges found=\"1 pairs that come again\""), std::string::npos)
      << log;
}

// Gemma 3's text-only checkpoints have 262144 rows, and a token for images beyond them.
TEST(HfTokenizer, SpecialTokensWithoutARowInTheEmbeddingAreLeftOut) {
  Json json = Json::parse(read_text(kGoldens + "gemma.json"));
  const int32_t rows = (*create(json.dump()))->vocab_size();
  json["added_tokens"].push_back(
      {{"id", rows}, {"content", "<image_soft_token>"}, {"special", true}});
  const auto with_config = [&](const std::string& config) {
    HfTokenizerFiles files;
    files.tokenizer_json = json.dump();
    files.config = config;
    return create_hf_tokenizer(files);
  };
  const std::string text = "a<image_soft_token>b";
  for (const std::string& config :
       {"{\"vocab_size\":" + std::to_string(rows) + "}",
        R"({"vocab_size":1,"text_config":{"vocab_size":)" + std::to_string(rows) + "}}",
        R"({"vocab_size":1,"llm_config":{"vocab_size":)" + std::to_string(rows) + "}}"}) {
    const auto smaller = with_config(config);
    ASSERT_TRUE(smaller.has_value());
    EXPECT_EQ((*smaller)->vocab_size(), rows);
    EXPECT_EQ((*smaller)->find_token("<image_soft_token>"), kInvalidToken);
    for (const TokenId id : encode(**smaller, text, SpecialText::kParse)) EXPECT_LT(id, rows);
  }
  const auto whole = with_config("{\"vocab_size\":" + std::to_string(rows + 1) + "}");
  EXPECT_EQ((*whole)->find_token("<image_soft_token>"), rows);
  // A token that text can become without being special is kept: the engine refuses the model.
  json["added_tokens"].back()["special"] = false;
  const auto refused = with_config("{\"vocab_size\":" + std::to_string(rows) + "}");
  EXPECT_EQ((*refused)->vocab_size(), rows + 1);
}

TEST(HfTokenizer, DirectoriesHoldTokenizerAndTemplate) {
  const testing::TemporaryFolder folder;
  const auto missing = load_hf_text(folder.path());
  ASSERT_FALSE(missing.has_value());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  std::filesystem::copy_file(kGoldens + "qwen.json", folder.at("tokenizer.json"));
  EXPECT_EQ(load_hf_text(folder.path()).value().chat_template, "");
  std::ofstream(folder.at("tokenizer_config.json"))
      << R"({"chat_template": [{"name": "tool", "template": "T"},
                               {"name": "default", "template": "D"}]})";
  EXPECT_EQ(load_hf_text(folder.path()).value().chat_template, "D");
  std::ofstream(folder.at("chat_template.jinja")) << "J";
  EXPECT_EQ(load_hf_text(folder.path()).value().chat_template, "J");
  // Templates with names are one that chooses.
  std::filesystem::create_directory(folder.at("additional_chat_templates"));
  std::ofstream(folder.at("additional_chat_templates/tool_use.jinja")) << "U";
  std::ofstream(folder.at("additional_chat_templates/rag.jinja")) << "R";
  EXPECT_EQ(load_hf_text(folder.path()).value().chat_template,
            joined_templates({.standard = "J", .tool_use = "U", .rag = "R"}));
  std::filesystem::remove(folder.at("chat_template.jinja"));
  std::filesystem::remove_all(folder.at("additional_chat_templates"));
  std::ofstream(folder.at("tokenizer_config.json"))
      << R"({"chat_template": [{"name": "default", "template": "D"},
                               {"name": "tool_use", "template": "U"}]})";
  EXPECT_EQ(load_hf_text(folder.path()).value().chat_template,
            joined_templates({.standard = "D", .tool_use = "U", .rag = ""}));
}

struct BadCase {
  const char* base;
  std::function<void(Json&)> change;
  ErrorCode code;
  const char* mentioned;
};

// The right column is what the tokenizers package writes for a file with the left one.
TEST(HfTokenizer, ScoresAreReadAsThePackageReadsThem) {
  EXPECT_EQ(score_as_written(-3.7818859894594077), -3.781885989459408);
  EXPECT_EQ(score_as_written(-7.2555110232847815), -7.255511023284781);
  for (const double plain : {0.0, -9.0, -2.5, 1e-5, -1e300}) {
    EXPECT_EQ(score_as_written(plain), plain);
  }
}

TEST(HfTokenizer, WhatIsNotKnownIsRefusedByName) {
  const auto unsupported = ErrorCode::kUnsupported;
  const auto data_loss = ErrorCode::kDataLoss;
  const BadCase cases[] = {
      {"qwen", [](Json& j) { j["model"]["type"] = "CharLevel"; }, unsupported, "CharLevel"},
      {"qwen",
       [](Json& j) {
         j["normalizer"] = {{"type", "Mystery"}};
       },
       unsupported,
       "Mystery"},
      {"qwen",
       [](Json& j) {
         j["pre_tokenizer"] = {{"type", "UnicodeScripts"}};
       },
       unsupported,
       "UnicodeScripts"},
      {"qwen",
       [](Json& j) {
         j["decoder"] = {{"type", "CTC"}};
       },
       unsupported,
       "CTC"},
      {"qwen",
       [](Json& j) {
         j["post_processor"] = {{"type", "Mystery"}};
       },
       unsupported,
       "Mystery"},
      {"qwen", [](Json& j) { j["model"]["dropout"] = 0.1; }, unsupported, "dropout"},
      {"qwen",
       [](Json& j) {
         j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a[[:alpha:]]]";
       },
       unsupported,
       "POSIX class"},
      {"qwen",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a[b]"; },
       unsupported,
       "set without an end"},
      {"qwen",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(a"; },
       unsupported,
       "(a"},
      {"qwen",
       [](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Odd"; },
       unsupported,
       "Odd"},
      {"qwen", [](Json& j) { j["model"].erase("vocab"); }, data_loss, "vocab"},
      {"qwen", [](Json& j) { j["model"]["merges"].push_back("nosuch pair"); }, data_loss, "nosuch"},
      {"qwen", [](Json& j) { j["model"]["merges"] = 3; }, data_loss, "merges"},
      {"qwen", [](Json& j) { j["added_tokens"][0]["id"] = -4; }, data_loss, "-4"},
      {"qwen", [](Json& j) { j["added_tokens"][0]["id"] = 1 << 30; }, data_loss, "out of range"},
      {"qwen", [](Json& j) { j["added_tokens"][0]["id"] = 7; }, data_loss, "7"},
      {"qwen", [](Json& j) { j["added_tokens"][0]["lstrip"] = "yes"; }, data_loss, "lstrip"},
      {"t5", [](Json& j) { j["model"]["vocab"][5] = "x"; }, data_loss, "vocab"},
      {"t5", [](Json& j) { j["model"]["unk_id"] = 100000; }, data_loss, "unk_id"},
      {"llama2", [](Json& j) { j["post_processor"]["special_tokens"].clear(); }, data_loss, "<s>"},
      {"llama2", [](Json& j) { j["decoder"]["decoders"][3]["stop"] = 1; }, unsupported, "Strip"},
  };
  for (const BadCase& bad : cases) {
    Json json = Json::parse(read_text(kGoldens + bad.base + ".json"));
    bad.change(json);
    const auto tokenizer = create(json.dump());
    ASSERT_FALSE(tokenizer.has_value()) << bad.mentioned;
    EXPECT_EQ(tokenizer.error().code, bad.code) << tokenizer.error().message;
    EXPECT_NE(tokenizer.error().message.find(bad.mentioned), std::string::npos)
        << tokenizer.error().message;
    EXPECT_EQ(tokenizer.error().message.find('\n'), std::string::npos);
  }
  EXPECT_FALSE(create("[1]").has_value());
  EXPECT_FALSE(create("{").has_value());
}

// Kimi's models are published without a tokenizer.json.
TEST(Tiktoken, IdsEqualThoseOfItsPackage) {
  const std::string folder = golden_folder() + "/tokenizer/tiktoken";
  const auto text = load_hf_text(folder);
  ASSERT_TRUE(text.has_value()) << text.error().message;
  const Tokenizer& tokenizer = *text->tokenizer;
  const std::vector<testing::TokenCase> cases = testing::read_token_cases(folder + "/cases.txt");
  EXPECT_GT(cases.size(), 300U);
  for (const testing::TokenCase& known : cases) {
    EXPECT_EQ(encode(tokenizer, known.text, known.special), known.ids) << known.text;
    EXPECT_EQ(decode_tokens(tokenizer, known.ids), known.text);
  }
  EXPECT_EQ(tokenizer.vocab_size(), 900 + 256);
  EXPECT_EQ(names_of(tokenizer), "bos_token=[BOS] eos_token=[EOS] ");
  EXPECT_TRUE(tokenizer.prefix_tokens().empty());
  EXPECT_TRUE(tokenizer.is_special(tokenizer.find_token("<|im_end|>")));
  EXPECT_FALSE(tokenizer.is_special(tokenizer.find_token("<|tool_call_begin|>")));
}

TEST(Tiktoken, WhatIsNoSuchFileIsRefusedByLine) {
  const auto refusal = [](const std::string& file, const std::string& config = "{}") {
    const auto made = create_hf_tokenizer({.ranks = file, .tokenizer_config = config});
    return made ? "" : made.error().message;
  };
  EXPECT_EQ(refusal("YQ== 0\r\n\nYg== 1\nYWI= 2"), "");
  for (const char* line : {"YQ==", "Y! 1", " 1", "Yg== x", "Yg== -1", "Yg== 4194304", "YQ== 1"}) {
    const std::string message = refusal(std::string("YQ== 0\n") + line);
    EXPECT_NE(message.find("tiktoken.model: line 2: "), std::string::npos) << line << message;
  }
  EXPECT_NE(refusal("YQ== 0\nYg== 0").find("token id 0 is"), std::string::npos);
  EXPECT_NE(refusal("\n").find("no token"), std::string::npos);
  EXPECT_NE(refusal("YQ== 0", R"({"tokenizer_class": "Other"})").find("Other"), std::string::npos);
  EXPECT_NE(refusal("YQ== 0", R"({"added_tokens_decoder": {"x": {}}})").find("added_tokens"),
            std::string::npos);
}

}  // namespace
}  // namespace sluice
