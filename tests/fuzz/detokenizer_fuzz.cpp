// SPDX-License-Identifier: Apache-2.0
// A stream of tokens with stop strings against the plain definition: decode everything, then find
// the stop that ends first behind the text of min_tokens. Every piece of output is valid UTF-8.
#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/tokenizer/detokenizer.h"
#include "engine/tokenizer/text/byte_level.h"
#include "engine/tokenizer/text/utf8.h"
#include "tests/fuzz/target.h"

namespace sluice {
namespace {

std::unique_ptr<Tokenizer> make_tokenizer() {
  Vocabulary vocabulary;
  vocabulary.model = "gpt2";
  vocabulary.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    vocabulary.tokens.push_back(spell_byte(static_cast<uint8_t>(byte)));
  }
  return std::move(create_tokenizer(std::move(vocabulary)).value());
}

std::string decode_all(std::string_view bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size();) {
    const Utf8Part part = next_utf8_part(bytes, i);
    const bool valid = part.kind == Utf8Kind::kCharacter;
    text += valid ? bytes.substr(i, part.length) : kReplacementCharacter;
    i += part.length;
  }
  return text;
}

// `before`: bytes of text in which no stop ends.
std::string expected_text(const std::string& text, size_t before, const StopConfig& stop) {
  size_t best_end = std::string::npos;
  size_t best_begin = std::string::npos;
  for (const std::string& pattern : stop.strings) {
    const size_t from = before < pattern.size() ? 0 : before + 1 - pattern.size();
    const size_t begin = text.find(pattern, from);
    if (begin == std::string::npos) continue;
    const size_t end = begin + pattern.size();
    if (end > best_end || (end == best_end && begin > best_begin)) continue;
    best_end = end;
    best_begin = begin;
  }
  return text.substr(0, stop.include_in_output ? best_end : best_begin);
}

}  // namespace
}  // namespace sluice

static int detokenizer_input(const uint8_t* data, size_t size) {
  using namespace sluice;
  static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer();
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  const auto take = [&](size_t count) {
    const std::string_view taken = rest.substr(0, count);
    rest.remove_prefix(taken.size());
    return taken;
  };
  if (size < 1) return 0;
  const auto flags = static_cast<uint8_t>(take(1)[0]);
  StopConfig stop;
  stop.include_in_output = flags % 2 == 1;
  for (int i = flags / 2 % 4; i > 0 && !rest.empty(); --i) {
    const size_t length = static_cast<uint8_t>(take(1)[0]) % 12;
    std::string pattern = decode_all(take(length));
    if (!pattern.empty()) stop.strings.push_back(std::move(pattern));
  }
  stop.min_tokens = flags / 8;
  Detokenizer plain(*tokenizer, {}, /*skip_special_tokens=*/true);
  size_t before = 0;
  Detokenizer detokenizer(*tokenizer, stop, /*skip_special_tokens=*/true);
  std::string text;
  bool matched = false;
  for (size_t i = 0; i < rest.size(); ++i) {
    const char c = rest[i];
    if (i < static_cast<size_t>(stop.min_tokens)) {
      before += plain.append(static_cast<uint8_t>(c)).text.size();
    }
    const Detokenizer::Result result = detokenizer.append(static_cast<uint8_t>(c));
    CHECK_EQ(find_invalid_utf8(result.text, 0), result.text.size());
    CHECK(!matched || (result.text.empty() && result.matched_stop < 0));
    matched = matched || result.matched_stop >= 0;
    text += result.text;
  }
  text += detokenizer.finish();
  const std::string all = decode_all(rest);
  if (rest.size() <= static_cast<size_t>(stop.min_tokens)) before = all.size();
  CHECK(text == expected_text(all, before, stop));
  return 0;
}

const sluice::fuzz::Target detokenizer_target("detokenizer_fuzz", detokenizer_input);
