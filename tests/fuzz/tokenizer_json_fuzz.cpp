// SPDX-License-Identifier: Apache-2.0
// Any bytes as tokenizer.json and files beside it, as tiktoken.model, or as the files of classes
// without a tokenizer.json: refused, or a tokenizer that gives ids of its vocabulary. Texts that do
// not begin with '{' are pieces to put into a sound tokenizer.json; the other files follow lines of
// "---". What follows a zero byte in a tiktoken.model is tokenizer_config.json, and the
// tokenizer.json that both become is read too.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "engine/core/log.h"
#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/files/hf_tokenizer.h"
#include "engine/tokenizer/files/mistral_templates.h"
#include "engine/tokenizer/files/tiktoken.h"
#include "engine/tokenizer/files/vocabulary_files.h"
#include "tests/fuzz/target.h"

namespace sluice {
namespace {

constexpr std::string_view kTexts[] = {
    "a b  c<s>\n 12 \xC3\xA9\xE2\x96\x81 \xFF\xE2\x82", " ", "aab<s>"};
constexpr std::string_view kModels[] = {
    R"({"type":"BPE","unk_token":"u","fuse_unk":true,"byte_fallback":true,"vocab":{"a":0,"b":1,)"
    R"("aa":2,"u":3,"<0xFF>":4,"\u2581":5,"\u2581a":6},"merges":["a a","\u2581 a"]})",
    R"({"type":"BPE","ignore_merges":true,"vocab":{"a":0,"b":1,"aa":2,"\u0120":3},"merges":["a a"]})",
    R"({"type":"Unigram","unk_id":0,"vocab":[["u",0],["a",-1.5],["aa",-2],["\u2581",-3]]})"};

void check(const HfTokenizerFiles& files) {
  const auto tokenizer = create_hf_tokenizer(files);
  if (!tokenizer) {
    CHECK(!tokenizer.error().message.empty());
    return;
  }
  for (const TokenId id : (*tokenizer)->end_tokens()) {
    CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
  }
  if (const auto source = template_of_tekken(files.ranks, **tokenizer)) {
    CHECK(source->empty() || source->find("[INST]") != std::string::npos);
  }
  for (const std::string_view text : kTexts) {
    for (const SpecialText special : {SpecialText::kText, SpecialText::kParse}) {
      std::vector<TokenId> ids;
      (*tokenizer)->encode(text, special, ids);
      for (const TokenId id : ids) CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
      decode_tokens(**tokenizer, ids);
    }
  }
}

// Takes the text up to the next line of "---".
std::string take_file(std::string_view& text) {
  constexpr std::string_view kBetween = "\n---\n";
  const size_t end = text.find(kBetween);
  std::string file(text.substr(0, end));
  text.remove_prefix(end == text.npos ? text.size() : end + kBetween.size());
  return file;
}

std::string sound_file_with(std::string_view piece) {
  const auto choice = static_cast<uint8_t>(piece[0]);
  piece.remove_prefix(1);
  constexpr std::string_view kKeys[] = {"normalizer", "pre_tokenizer", "decoder", "post_processor"};
  std::string json = "{\"model\":";
  json += kModels[choice % 3];
  json += R"(,"added_tokens":[{"id":7,"content":"<s>","special":true,"lstrip":true},)";
  json += R"({"id":8,"content":"B ","normalized":true,"single_word":true}],")";
  json += kKeys[choice / 3 % 4];
  json += "\":";
  json += piece;
  return json + "}";
}

}  // namespace
}  // namespace sluice

static int tokenizer_json_input(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  sluice::HfTokenizerFiles files;
  files.tokenizer_json = sluice::take_file(text);
  files.tokenizer_config = sluice::take_file(text);
  files.config = sluice::take_file(text);
  files.generation_config = sluice::take_file(text);
  const std::string& first = files.tokenizer_json;
  if (!first.empty() && first[0] != '{') files.tokenizer_json = sluice::sound_file_with(first);
  sluice::check(files);
  return 0;
}

static int one_vocabulary(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(text.find('\0'), size);
  const std::string_view config = text.substr(std::min(end + 1, size));
  sluice::check(
      {.ranks = std::string(text.substr(0, end)), .tokenizer_config = std::string(config)});
  const auto json = sluice::tiktoken_as_json(text.substr(0, end), config);
  if (json) {
    sluice::check({.tokenizer_json = *json, .tokenizer_config = std::string(config)});
  } else {
    CHECK(!json.error().message.empty());
  }
  return 0;
}

// The files in the order of VocabularyFiles, with "---" between them.
static int vocabulary_files(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  sluice::VocabularyFiles files;
  for (std::string* const file : {&files.words,
                                  &files.tokens,
                                  &files.merges,
                                  &files.tokenizer_config,
                                  &files.config,
                                  &files.special_tokens_map,
                                  &files.added_tokens,
                                  &files.pieces}) {
    *file = sluice::take_file(text);
  }
  const auto json = sluice::vocabulary_as_json(files);
  if (!json) {
    CHECK(!json.error().message.empty());
  } else if (!json->empty()) {
    sluice::check({.tokenizer_json = *json,
                   .tokenizer_config = files.tokenizer_config,
                   .config = files.config});
  }
  return 0;
}

const sluice::fuzz::Target tokenizer_json_target("tokenizer_json_fuzz", tokenizer_json_input);
const sluice::fuzz::Target vocabularies("tiktoken_fuzz", one_vocabulary);
const sluice::fuzz::Target words_and_merges("vocabulary_files_fuzz", vocabulary_files);
