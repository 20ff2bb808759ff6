// SPDX-License-Identifier: Apache-2.0
// Even first byte: any text through a sound vocabulary comes back exactly (in NFC where the
// pre-tokenizer composes), and literal ranges keep control tokens out. Odd: a hostile vocabulary is
// refused or works.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/core/log.h"
#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/fuzz/target.h"

namespace sluice {
namespace {

constexpr const char* kPres[] = {"gpt-2",
                                 "smollm",
                                 "llama-bpe",
                                 "qwen2",
                                 "gpt-4o",
                                 "deepseek-llm",
                                 "falcon",
                                 "default",
                                 "deepseek-coder",
                                 "deepseek-v3"};

constexpr std::string_view kComposing = "qwen2";  // the one of these that makes NFC first

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  uint8_t byte() { return rest_.empty() ? 0 : static_cast<uint8_t>(take(1)[0]); }

  std::string_view take(size_t count) {
    const std::string_view taken = rest_.substr(0, count);
    rest_.remove_prefix(taken.size());
    return taken;
  }

  std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

Vocabulary sound_vocabulary(const char* pre) {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = pre;
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(spell_byte(static_cast<uint8_t>(byte)));
  }
  const std::pair<const char*, const char*> merges[] = {{"a", "a"},
                                                        {"aa", "aa"},
                                                        {"a", "b"},
                                                        {"aa", "ab"},
                                                        {"1", "1"},
                                                        {" ", " "},
                                                        {" ", "a"},
                                                        {"\n", "\n"},
                                                        {"  ", "  "},
                                                        {"<", "|"},
                                                        {"\xC3", "\xA9"}};
  const auto spell = [](std::string_view bytes) {
    std::string spelled;
    for (const char c : bytes) spelled += spell_byte(static_cast<uint8_t>(c));
    return spelled;
  };
  for (const auto& [left, right] : merges) {
    vocabulary.tokens.push_back(spell(left) + spell(right));
    vocabulary.merges.push_back(spell(left) + " " + spell(right));
  }
  vocabulary.token_types.assign(vocabulary.tokens.size(), TokenType::kNormal);
  for (const char* name : {"<|a|>", "<|a|><|b|>", "|><|", "aaab1"}) {
    vocabulary.tokens.emplace_back(name);
    vocabulary.token_types.push_back(TokenType::kControl);
  }
  vocabulary.token_types.back() = TokenType::kUserDefined;
  return vocabulary;
}

std::string decode(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::string bytes;
  for (const TokenId id : ids) bytes += tokenizer.token_bytes(id);
  return bytes;
}

void check_text(Input input) {
  static const auto tokenizers = [] {
    std::array<std::unique_ptr<Tokenizer>, std::size(kPres)> all;
    for (size_t i = 0; i < all.size(); ++i) {
      all[i] = std::move(create_tokenizer(sound_vocabulary(kPres[i])).value());
    }
    return all;
  }();
  const size_t which = input.byte() % tokenizers.size();
  const Tokenizer& tokenizer = *tokenizers[which];
  TextRange range{input.byte(), 0};
  range.end = range.begin + input.byte();
  const std::string_view text = input.rest();
  const bool is_ascii = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0; });
  std::vector<TokenId> ids;
  tokenizer.encode(text, SpecialText::kText, ids);
  if (std::string_view(kPres[which]) == kComposing && !is_ascii) {
    // Composed once, it stays as it is.
    const std::string composed = decode(tokenizer, ids);
    ids.clear();
    tokenizer.encode(composed, SpecialText::kText, ids);
    CHECK(decode(tokenizer, ids) == composed);
    return;
  }
  CHECK(decode(tokenizer, ids) == text);
  CHECK(std::none_of(ids.begin(), ids.end(), [&](TokenId id) { return tokenizer.is_special(id); }));
  ids.clear();
  tokenizer.encode(text, SpecialText::kParse, ids);
  CHECK(decode(tokenizer, ids) == text);
  ids.clear();
  tokenizer.encode_marked(text, {&range, 1}, ids);
  CHECK(decode(tokenizer, ids) == text);
  size_t begin = 0;
  for (const TokenId id : ids) {
    const size_t end = begin + tokenizer.token_bytes(id).size();
    const bool touches = range.begin < range.end && begin < range.end && end > range.begin;
    CHECK(!touches || !tokenizer.is_special(id));
    begin = end;
  }
}

void check_vocabulary(Input input) {
  Vocabulary vocabulary = sound_vocabulary(kPres[input.byte() % std::size(kPres)]);
  if (input.byte() % 2 == 0) vocabulary.merges.clear();
  vocabulary.eos = static_cast<int8_t>(input.byte());
  for (int count = input.byte() % 16; count > 0; --count) {
    const uint8_t kind = input.byte();
    const std::string_view string = input.take(input.byte() % 32);
    if (kind % 3 == 0) {
      vocabulary.merges.emplace_back(string);
    } else {
      vocabulary.tokens.emplace_back(string);
      vocabulary.token_types.push_back(static_cast<TokenType>(kind / 3 % 8));
    }
  }
  auto tokenizer = create_tokenizer(std::move(vocabulary));
  if (!tokenizer) return;
  std::vector<TokenId> ids;
  (*tokenizer)->encode(input.rest(), SpecialText::kParse, ids);
  for (const TokenId id : ids) CHECK(id >= 0 && id < (*tokenizer)->vocab_size());
  decode(**tokenizer, ids);
}

}  // namespace
}  // namespace sluice

static int tokenizer_input(const uint8_t* data, size_t size) {
  sluice::Input input(data, size);
  if (input.byte() % 2 == 0) {
    sluice::check_text(input);
  } else {
    sluice::check_vocabulary(input);
  }
  return 0;
}

const sluice::fuzz::Target tokenizer_target("tokenizer_fuzz", tokenizer_input);
