// SPDX-License-Identifier: Apache-2.0
// A tokenizer for mental arithmetic: ids 0 to 255 are bytes, then come the control tokens.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace sluice {

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr TokenId kTurnStart = 256;  // <|im_start|>
  static constexpr TokenId kTurnEnd = 257;    // <|im_end|>, ends a generation
  static constexpr TokenId kBos = 258;        // <s>
  static constexpr int32_t kVocabSize = 259;

  ByteTokenizer() {
    for (size_t i = 0; i < 256; ++i) bytes_ += static_cast<char>(i);
  }

  Expected<void> encode(std::string_view text,
                        SpecialText special,
                        std::vector<TokenId>& out) const override {
    const TextRange all{0, text.size()};
    const auto literal =
        special == SpecialText::kText ? std::span(&all, 1) : std::span<TextRange>();
    return encode_marked(text, literal, out);
  }

  Expected<void> encode_marked(std::string_view text,
                               std::span<const TextRange> literal_ranges,
                               std::vector<TokenId>& out) const override {
    for (size_t i = 0; i < text.size();) {
      const TokenId control = control_at(text, i, literal_ranges);
      out.push_back(control != kInvalidToken ? control : static_cast<unsigned char>(text[i]));
      i += control != kInvalidToken ? token_bytes(control).size() : 1;
    }
    return {};
  }

  std::string_view token_bytes(TokenId id) const override {
    if (id >= 0 && id < 256) return std::string_view(bytes_).substr(static_cast<size_t>(id), 1);
    if (id < kVocabSize && id >= 256) return kControls[static_cast<size_t>(id) - 256];
    return {};
  }

  // Names differ from the bytes, so that a test can tell which of them it was given.
  std::string_view token_name(TokenId id) const override {
    return id == ' ' ? std::string_view("\xc4\xa0") : token_bytes(id);
  }

  bool is_special(TokenId id) const override { return id >= 256; }

  TokenId find_token(std::string_view name) const override {
    for (size_t i = 0; i < kControls.size(); ++i) {
      if (kControls[i] == name) return static_cast<TokenId>(256 + i);
    }
    return kInvalidToken;
  }

  int32_t vocab_size() const override { return kVocabSize; }

  TokenId bos() const override { return kBos; }

  bool add_bos() const override { return true; }

  const std::vector<TokenId>& end_tokens() const override { return end_tokens_; }

  Expected<void> replace_more_ends(std::vector<TokenId> ids) override {
    end_tokens_ = std::move(ids);
    end_tokens_.push_back(kTurnEnd);
    return {};
  }

  const std::vector<NamedToken>& named_tokens() const override { return named_tokens_; }

 private:
  static constexpr std::array<std::string_view, 3> kControls = {
      "<|im_start|>", "<|im_end|>", "<s>"};

  TokenId control_at(std::string_view text, size_t at, std::span<const TextRange> literal) const {
    for (size_t i = 0; i < kControls.size(); ++i) {
      if (!text.substr(at).starts_with(kControls[i])) continue;
      const size_t end = at + kControls[i].size();
      const bool is_literal = std::any_of(literal.begin(), literal.end(), [&](TextRange range) {
        return at < range.end && end > range.begin;
      });
      if (!is_literal) return static_cast<TokenId>(256 + i);
    }
    return kInvalidToken;
  }

  std::string bytes_;
  std::vector<TokenId> end_tokens_ = {kTurnEnd};
  std::vector<NamedToken> named_tokens_ = {
      {"bos_token", "<s>"}, {"eos_token", "<|im_end|>"}, {"pad_token", "<|im_end|>"}};
};

}  // namespace sluice
