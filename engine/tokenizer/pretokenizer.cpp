// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/pretokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cstdint>
#include <limits>
#include <string>

#include "engine/tokenizer/unicode_classes.h"

namespace sluice {
namespace {

// The expressions are data of the models' tokenizer.json files, spelled for PCRE2.
constexpr std::string_view kGpt2Words =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kLlama3Words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kQwen2Words =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kGpt4oWords =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kDeepseekV3Words =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\x{5b}\\\\\\x{5d}^_`{|}~][A-Za-z]+"
    "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kDeepseekCjk =
    "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+";
constexpr std::string_view kDeepseekPunctuation =
    "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+";
// "\s+$", which alone would search a run of spaces that text follows once from each of them.
constexpr std::string_view kTrailingSpaces = "(?<!\\s)\\s++\\z";
// Cased letters, as the first DeepSeek models list them.
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

constexpr size_t kMaxStages = 6;

struct Row {
  std::string_view names[3];
  std::string_view stages[kMaxStages];
  bool whole_words_first = false;
};

constexpr Row kRows[] = {
    {{"gpt-2"}, {kGpt2Words}},
    {{"smollm", "starcoder", "refact"}, {"\\p{N}", kGpt2Words}},
    {{"llama-bpe", "llama3", "llama-v3"}, {kLlama3Words}, /*whole_words_first=*/true},
    {{"qwen2", "deepseek-r1-qwen"}, {kQwen2Words}},
    {{"gpt-4o"}, {kGpt4oWords}, /*whole_words_first=*/true},
    {{"deepseek-llm"},
     {"[\\r\\n]",
      kDeepseekLetters,
      kDeepseekPunctuation,
      kTrailingSpaces,
      kDeepseekCjk,
      "\\p{N}+"}},
    {{"deepseek-coder"}, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", kDeepseekCjk, "\\p{N}"}},
    {{"deepseek-v3"},
     {"\\p{N}{1,3}",
      "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
      kDeepseekV3Words}},
    {{"falcon"}, {"[\\p{P}$+<=>\\^~|`]+", kGpt2Words, "[0-9][0-9][0-9]"}},
    {{"default"}, {"[\\p{P}$+<=>\\^~|]+", kGpt2Words, "\\p{N}+", "[0-9][0-9][0-9]"}},
};

struct FreeCode {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
};

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};

struct FreeMatchContext {
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
};

using Code = std::unique_ptr<pcre2_code, FreeCode>;
using MatchContext = std::unique_ptr<pcre2_match_context, FreeMatchContext>;

// A class that gives characters back counts one match each; PCRE2's default of ten million would
// bound the length of a run, and here time is linear without it.
MatchContext make_context() {
  MatchContext context(pcre2_match_context_create(nullptr));
  CHECK(context != nullptr);
  pcre2_set_match_limit(context.get(), std::numeric_limits<uint32_t>::max());
  return context;
}

Code compile(std::string_view pattern) {
  const std::string expanded = expand_unicode_classes(pattern);
  int error = 0;
  size_t error_offset = 0;
  Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expanded.data()),
                          expanded.size(),
                          PCRE2_UTF | PCRE2_UCP,
                          &error,
                          &error_offset,
                          nullptr));
  CHECK(code != nullptr);  // the table is ours
  // Without JIT (a build of PCRE2 may lack it) the interpreter finds the same matches.
  pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
  return code;
}

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

// Appends the ends of the pieces of text[begin, end). No row repeats a group, so a match needs no
// stack per character: JIT's stack is out of reach.
void split_piece(const pcre2_code* code,
                 pcre2_match_data* match,
                 pcre2_match_context* context,
                 std::string_view text,
                 size_t begin,
                 size_t end,
                 std::vector<size_t>& ends) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() + begin);
  const size_t length = end - begin;
  const size_t* bounds = pcre2_get_ovector_pointer(match);
  for (size_t position = 0; position < length;) {
    const int found =
        pcre2_match(code, subject, length, position, PCRE2_NO_UTF_CHECK, match, context);
    if (found < 0) {
      CHECK_EQ(found, PCRE2_ERROR_NOMATCH);
      ends.push_back(end);
      return;
    }
    if (bounds[0] > position) ends.push_back(begin + bounds[0]);
    ends.push_back(begin + bounds[1]);
    position = bounds[1];
  }
}

}  // namespace

struct Pretokenizer::Impl {
  std::vector<Code> stages;
  MatchContext context = make_context();  // only read by matches
  bool whole_words_first = false;
};

Pretokenizer::Pretokenizer() : impl_(std::make_unique<Impl>()) {}

Pretokenizer::~Pretokenizer() = default;

Expected<std::unique_ptr<Pretokenizer>> Pretokenizer::create(std::string_view pre) {
  const Row* row = find_row(pre);
  if (row == nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      "tokenizer.ggml.pre is \"" + std::string(pre) +
                          "\", which is not supported; supported: " + all_names());
  }
  std::unique_ptr<Pretokenizer> result(new Pretokenizer);
  result->impl_->whole_words_first = row->whole_words_first;
  for (const std::string_view stage : row->stages) {
    if (!stage.empty()) result->impl_->stages.push_back(compile(stage));
  }
  return result;
}

void Pretokenizer::split(std::string_view text, Scratch& scratch) const {
  scratch.ends.clear();
  if (text.empty()) return;
  scratch.ends.push_back(text.size());
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(pcre2_match_data_create(1, nullptr));
  for (const Code& code : impl_->stages) {
    scratch.coarse_ends.swap(scratch.ends);
    scratch.ends.clear();
    size_t begin = 0;
    for (const size_t end : scratch.coarse_ends) {
      split_piece(code.get(), match.get(), impl_->context.get(), text, begin, end, scratch.ends);
      begin = end;
    }
  }
}

bool Pretokenizer::whole_words_first() const { return impl_->whole_words_first; }

}  // namespace sluice
