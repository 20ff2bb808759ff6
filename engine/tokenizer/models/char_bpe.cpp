// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/models/char_bpe.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

constexpr uint32_t kSymbolOfSpace = 0x2581;
constexpr uint32_t kNoCharacter = ~uint32_t{0};

struct Character {
  uint32_t code = kNoCharacter;  // for an invalid byte
  size_t length = 1;
};

Character character_at(std::string_view text, size_t position) {
  const auto lead = static_cast<uint8_t>(text[position]);
  if (lead < 0x80) return {lead, 1};
  const Utf8Part part = next_utf8_part(text, position);
  if (part.kind != Utf8Kind::kCharacter) return {};
  return {decode_utf8(text.substr(position, part.length)), part.length};
}

uint64_t pair_key(uint32_t left, uint32_t right) { return (uint64_t{left} << 32) | right; }

}  // namespace

CharBpe::CharBpe(BpeMerges merges, const Options& options)
    : merges_(std::move(merges)), options_(options) {
  byte_tokens_.fill(kInvalidToken);
  ascii_symbols_.fill(kInvalidToken);
}

size_t CharBpe::common_index(uint32_t code) {
  if (code < 0x80) return code;
  return code == kSymbolOfSpace ? 0x80 : kCommon;
}

void CharBpe::add_token(std::string_view name, TokenId token) {
  if (name.empty()) return;
  Character left = character_at(name, 0);
  if (left.length == name.size()) {
    if (left.code < 0x80) {
      ascii_symbols_[left.code] = token;
    } else if (left.code != kNoCharacter) {
      symbols_.insert(left.code, static_cast<uint64_t>(token));
    }
    return;
  }
  for (size_t position = left.length; position < name.size();) {
    const Character right = character_at(name, position);
    position += right.length;
    const size_t left_index = common_index(left.code);
    const size_t right_index = common_index(right.code);
    if (left_index != kCommon && right_index != kCommon) {
      common_pairs_.set(left_index * kCommon + right_index);
    } else {
      pairs_.insert(pair_key(left.code, right.code), 1);
    }
    left = right;
  }
}

void CharBpe::add_extra(std::string_view character) {
  const auto token = options_.first_extra + static_cast<TokenId>(extras_.size());
  extras_.emplace_back(character);
  add_token(character, token);
}

TokenId CharBpe::symbol_of(uint32_t code) const {
  if (code < 0x80) return ascii_symbols_[code];
  const uint64_t symbol = symbols_.find(code);
  return symbol == PairMap::kAbsent ? kInvalidToken : static_cast<TokenId>(symbol);
}

bool CharBpe::may_join(uint32_t left, uint32_t right) const {
  const size_t left_index = common_index(left);
  const size_t right_index = common_index(right);
  const bool are_neighbours = left_index != kCommon && right_index != kCommon
                                  ? common_pairs_.test(left_index * kCommon + right_index)
                                  : pairs_.find(pair_key(left, right)) != PairMap::kAbsent;
  if (are_neighbours) return true;
  const bool left_unknown = symbol_of(left) == kInvalidToken;
  const bool right_unknown = symbol_of(right) == kInvalidToken;
  // Unknown characters join each other, and without an unknown token they vanish: their neighbours
  // may then merge.
  return (options_.fuse_unknown && left_unknown && right_unknown) ||
         (options_.unknown == kInvalidToken && (left_unknown || right_unknown));
}

size_t CharBpe::first_word(std::string_view text) const {
  Character left = character_at(text, 0);
  size_t position = left.length;
  while (position < text.size()) {
    const Character right = character_at(text, position);
    if (!may_join(left.code, right.code)) break;
    position += right.length;
    left = right;
  }
  return position;
}

void CharBpe::append_bytes(std::string_view character,
                           bool can_fuse,
                           std::vector<TokenId>& out) const {
  const auto has_token = [&](char c) {
    return byte_tokens_[static_cast<uint8_t>(c)] != kInvalidToken;
  };
  if (std::all_of(character.begin(), character.end(), has_token)) {
    for (const char c : character) out.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
    return;
  }
  if (options_.unknown == kInvalidToken) return;
  if (can_fuse && options_.fuse_unknown) return;
  out.push_back(options_.unknown);
}

void CharBpe::encode_word(std::string_view word,
                          ModelScratch& scratch,
                          std::vector<TokenId>& out) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  for (size_t position = 0; position < word.size();) {
    const Character here = character_at(word, position);
    const TokenId symbol = symbol_of(here.code);
    if (symbol != kInvalidToken) {
      symbols.push_back(symbol);
    } else {
      const bool can_fuse = !symbols.empty() && symbols.back() == options_.unknown;
      append_bytes(word.substr(position, here.length), can_fuse, symbols);
    }
    position += here.length;
  }
  const size_t first = out.size();
  merges_.merge(symbols, scratch.merging, out);
  if (extras_.empty()) return;
  const auto is_extra = [&](TokenId token) { return token >= options_.first_extra; };
  if (std::none_of(out.begin() + static_cast<ptrdiff_t>(first), out.end(), is_extra)) return;
  symbols.assign(out.begin() + static_cast<ptrdiff_t>(first), out.end());
  out.resize(first);
  for (const TokenId token : symbols) {
    if (!is_extra(token)) {
      out.push_back(token);
    } else {
      const bool can_fuse = out.size() > first && out.back() == options_.unknown;
      append_bytes(extras_[static_cast<size_t>(token - options_.first_extra)], can_fuse, out);
    }
  }
}

void CharBpe::encode_piece(std::string_view piece,
                           ModelScratch& scratch,
                           std::vector<TokenId>& out) const {
  if (options_.whole_pieces_first) {
    const TokenId whole = pieces_.find(piece);
    if (whole != kInvalidToken) {
      out.push_back(whole);
      return;
    }
  }
  while (!piece.empty()) {
    const size_t length = first_word(piece);
    const std::string_view word = piece.substr(0, length);
    piece.remove_prefix(length);
    size_t slot = 0;
    if (scratch.cache.append_known(word, out, slot)) continue;
    const size_t first = out.size();
    encode_word(word, scratch, out);
    scratch.cache.remember(slot, word, first, out.size() - first);
  }
}

}  // namespace sluice
