// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/files/pretokenizer_names.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

// The expressions are data from the models' tokenizer.json files, spelled for PCRE2.
constexpr std::string_view kGpt2Words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kLlama3Words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kQwen2Words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kQwen35Words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kTekkenWords =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
// Used by BLOOM, and with individual digits by Viking.
constexpr std::string_view kBloomWords =
    " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+";
constexpr std::string_view kGpt4oWords =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kYoutuWords =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kYoutuScripts =
    "[\\x{ac00}-\\x{d7a3}\\x{3131}-\\x{318e}]+"
    "|[\\x{ff01}\\x{2026}\\x{201c}\\x{201d}\\x{2018}\\x{2019}\\x{2014}\\x{ff1a}\\x{ff1b}\\x{ff0c}"
    "\\x{3001}-\\x{303f}\\x{fe30}-\\x{fe4f}]+"
    "|[\\x{3105}-\\x{312f}]+|[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+";
constexpr std::string_view kMinicpm5Words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kSeedWords =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kBailingWords =
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+";
// Ideographs are words of their own.
constexpr std::string_view kKimiWords =
    "[\\p{Han}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kDeepseekV3Words =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\x{5b}\\\\\\x{5d}^_`{|}~][A-Za-z]+"
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kDeepseekCjk =
    "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+";
constexpr std::string_view kDeepseekPunctuation =
    "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+";
// Digits in threes from the right. What is left of a run's threes is looked for at its start only,
// so that long runs take linear time.
constexpr std::string_view kThreesFromTheRight =
    "(?<!\\p{N})\\p{N}{1,2}(?=(?:\\p{N}{3})++(?!\\p{N}))|\\p{N}{1,3}";
// Likewise, but only in numbers that no letter or _ follows. \G: right after the match before.
constexpr std::string_view kThreesOfNumbers =
    "(?<!\\d)\\d{1,3}(?=(?:\\d{3})*+(?!\\w))|(?<=\\d)\\G\\d{3}";
constexpr std::string_view kAfmoeScripts =
    "[\\x{4e00}-\\x{9fff}\\x{3400}-\\x{4dbf}\\x{f900}-\\x{faff}\\x{3040}-\\x{309f}"
    "\\x{30a0}-\\x{30ff}\\x{ff65}-\\x{ff9f}\\x{2f00}-\\x{2fdf}\\x{e40}-\\x{e7f}\\x{e80}-\\x{eff}"
    "\\x{1780}-\\x{17ff}\\x{1000}-\\x{109f}\\x{aa60}-\\x{aa7f}\\x{a9e0}-\\x{a9ff}"
    "\\x{ac00}-\\x{d7af}\\x{1100}-\\x{11ff}]+";
// "\s+$", which by itself would search from each space of a run that text follows.
constexpr std::string_view kTrailingSpaces = "(?<!\\s)\\s++\\z";
// Cased letters as listed by the first DeepSeek models.
constexpr std::string_view kDeepseekLetters =
    "\\s?[A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}"
    "\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}"
    "\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}"
    "\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}"
    "\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}"
    "\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}"
    "\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}"
    "\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}"
    "\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}"
    "\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}"
    "\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}\\x{2183}"
    "\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}"
    "\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}"
    "\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"
    "\\x{1e900}-\\x{1e943}]+";

constexpr size_t kMaxNames = 10;
constexpr size_t kMaxStages = 6;

struct Row {
  std::string_view names[kMaxNames];
  std::string_view stages[kMaxStages];
  bool whole_words_first = false;
  bool nfc = false;
  bool begins_with_bos = false;
};

constexpr Row kRows[] = {
    {{"gpt-2",
      "phi-2",
      "phi-3",
      "roberta-bpe",
      "gigachat",
      "mellum",
      "exaone4",
      "jais",
      "trillion"},
     {kGpt2Words}},
    {{"jina-es",
      "jina-de",
      "jina-v1-en",
      "jina-v2-es",
      "jina-v2-de",
      "jina-v2-code",
      "a.x-4.0",
      "granite-docling"},
     {kGpt2Words}},
    {{"gpt-neox", "mpt", "olmo", "modern-bert"}, {kGpt2Words}, false, /*nfc=*/true},
    {{"smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"},
     {"\\p{N}", kGpt2Words}},
    {{"command-r"}, {"\\p{N}", kGpt2Words}, false, /*nfc=*/true},
    {{"llama-bpe",
      "llama3",
      "llama-v3",
      "falcon3",
      "falcon-h1",
      "pixtral",
      "lfm2",
      "midm-2.0",
      "jina-v5-nano"},
     {kLlama3Words},
     /*whole_words_first=*/true,
     /*nfc=*/false,
     /*begins_with_bos=*/true},
    {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {kLlama3Words}},
    {{"minicpm5"}, {"\\p{N}{1,3}", kMinicpm5Words}, /*whole_words_first=*/true},
    {{"qwen2", "deepseek-r1-qwen", "megrez", "f2llmv2"}, {kQwen2Words}, false, /*nfc=*/true},
    {{"stablelm2", "hunyuan", "solar-open", "grok-2", "kormo"}, {kQwen2Words}},
    {{"qwen35"}, {kQwen35Words}, false, /*nfc=*/true},
    {{"seed-coder"}, {kSeedWords}},
    {{"bailingmoe", "bailingmoe2", "llada-moe"}, {kBailingWords}},
    {{"gpt-4o", "llama4", "granite-embed-multi-97m"}, {kGpt4oWords}, /*whole_words_first=*/true},
    {{"minimax-m2", "kanana2", "talkie"}, {kGpt4oWords}},
    {{"tiny_aya", "cohere2moe"}, {kThreesOfNumbers, kGpt4oWords}},
    {{"youtu"}, {kYoutuScripts, kYoutuWords}, /*whole_words_first=*/true},
    {{"kimi-k2"}, {kKimiWords}, /*whole_words_first=*/true},
    {{"tekken"}, {kTekkenWords}, /*whole_words_first=*/true, false, /*begins_with_bos=*/true},
    {{"deepseek-llm"},
     {"[\\r\\n]",
      kDeepseekLetters,
      kDeepseekPunctuation,
      kTrailingSpaces,
      kDeepseekCjk,
      "\\p{N}+"}},
    {{"deepseek-coder"}, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kDeepseekCjk, "\\p{N}"}},
    {{"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
     {"\\p{N}{1,3}",
      "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      kDeepseekV3Words}},
    {{"afmoe"}, {kThreesFromTheRight, kAfmoeScripts, kDeepseekV3Words}},
    {{"falcon"}, {"[\\p{P}$+<=>\\^~|`]+", kGpt2Words, "[0-9][0-9][0-9]"}},
    {{"bloom", "poro-chat", "gpt3-finnish"}, {kBloomWords}},
    {{"viking"}, {kBloomWords, "\\p{N}"}},
    {{kUsualPretokenizer}, {"[\\p{P}$+<=>\\^~|]+", kGpt2Words, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

const Row* find_row(std::string_view pre) {
  for (const Row& row : kRows) {
    for (const std::string_view name : row.names) {
      if (!name.empty() && name == pre) return &row;
    }
  }
  return nullptr;
}

std::string all_names() {
  std::string names;
  for (const Row& row : kRows) {
    for (const std::string_view name : row.names) {
      if (name.empty()) continue;
      if (!names.empty()) names += ", ";
      names += name;
    }
  }
  return names;
}

}  // namespace

std::string_view linear_expression(std::string_view expression) {
  // From each digit of a run, it looks for the run's end.
  constexpr std::string_view kPublishedThreesOfNumbers = "\\d{1,3}(?=(?:\\d{3})*\\b)";
  if (expression == kPublishedThreesOfNumbers) return kThreesOfNumbers;
  // From each space of a run, it looks for the line's end.
  return expression == "\\s+$" ? "(?<!\\s)\\s+$" : expression;
}

bool begins_with_bos(std::string_view pre) {
  const Row* row = find_row(pre);
  return row != nullptr && row->begins_with_bos;
}

Expected<NamedPretokenizer> pretokenizer_by_name(std::string_view pre) {
  const Row* row = find_row(pre.empty() ? kUsualPretokenizer : pre);
  if (row == nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "tokenizer.ggml.pre is \"" + std::string(pre) +
                          "\", which is not supported; supported: " + all_names());
  }
  NamedPretokenizer result;
  result.whole_words_first = row->whole_words_first;
  result.nfc = row->nfc;
  for (const std::string_view pattern : row->stages) {
    if (pattern.empty()) continue;
    SLUICE_TRY(Regex regex, Regex::compile(pattern));
    result.stages.emplace_back(SplitStage{std::move(regex), SplitBehavior::kIsolated});
    result.patterns.push_back(pattern);
  }
  return result;
}

std::string name_of_pretokenizer(const std::vector<std::string>& patterns,
                                 bool whole_words_first,
                                 bool nfc) {
  const Row* found = nullptr;
  for (const Row& row : kRows) {
    const auto* end = std::ranges::find(row.stages, std::string_view());
    const bool is_same = std::equal(std::begin(row.stages), end, patterns.begin(), patterns.end());
    if (!is_same || row.nfc != nfc) continue;
    if (found == nullptr || row.whole_words_first == whole_words_first) found = &row;
    if (row.whole_words_first == whole_words_first) break;
  }
  return found == nullptr ? std::string() : std::string(found->names[0]);
}

}  // namespace sluice
