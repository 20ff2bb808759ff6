// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/models/unigram.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "engine/tokenizer/text/utf8.h"

namespace sluice {
namespace {

// A longer piece is cut: the working memory is four times its size.
constexpr size_t kMaxPieceBytes = size_t{1} << 30;
constexpr size_t kMaxCharacterBytes = 4;
constexpr TokenId kUnreached = std::numeric_limits<TokenId>::min();

// Represents a character that no token covers: minus its length.
TokenId unknown_of(size_t length) { return -static_cast<TokenId>(length); }

size_t character_length(std::string_view text, size_t position) {
  if (is_ascii(text[position])) return 1;
  const Utf8Part part = next_utf8_part(text, position);
  return part.kind == Utf8Kind::kCharacter ? part.length : 1;
}

}  // namespace

void Unigram::append_unknown(std::string_view run, std::vector<TokenId>& out) const {
  const bool has_bytes = std::all_of(run.begin(), run.end(), [&](char c) {
    return byte_tokens_[static_cast<uint8_t>(c)] != kInvalidToken;
  });
  if (has_bytes) {
    for (const char c : run) out.push_back(byte_tokens_[static_cast<uint8_t>(c)]);
  } else if (options_.unknown != kInvalidToken) {
    out.push_back(options_.unknown);
  }
}

void Unigram::build() {
  size_t longest = kMaxCharacterBytes;
  for (const auto& [name, entry] : added_) {
    longest = std::max(longest, name.size());
    const auto token = static_cast<size_t>(entry.token);
    if (token >= lengths_.size()) lengths_.resize(token + 1);
    lengths_[token] = static_cast<uint32_t>(name.size());
  }
  longest_ = longest;
  names_.build(std::exchange(added_, {}));
}

// Fills scratch.last_tokens: for each byte, the last token of the best segmentation up to there.
void Unigram::find_best(std::string_view piece, ModelScratch& scratch) const {
  std::vector<TokenId>& last_tokens = scratch.last_tokens;
  last_tokens.assign(piece.size() + 1, kUnreached);
  // Scores of segmentations that a token can still extend.
  const size_t mask = std::bit_ceil(std::min(longest_, piece.size()) + 1) - 1;
  std::vector<double>& scores = scratch.scores;
  scores.assign(mask + 1, 0);
  for (size_t begin = 0; begin < piece.size();) {
    const double base = scores[begin & mask];
    const auto offer = [&](size_t end, TokenId token, double score) {
      const double total = base + score;
      if (last_tokens[end] != kUnreached && !(total > scores[end & mask])) return;
      scores[end & mask] = total;
      last_tokens[end] = token;
    };
    const size_t length = character_length(piece, begin);
    bool has_single = false;
    uint32_t node = names_.kRoot;
    for (size_t end = begin; end < piece.size();) {
      node = names_.child(node, piece[end]);
      if (node == names_.kAbsent) break;
      ++end;
      const Entry* entry = names_.value(node);
      if (entry == nullptr) continue;
      offer(end, entry->token, entry->score);
      has_single |= end - begin == length;
    }
    if (!has_single) offer(begin + length, unknown_of(length), options_.unknown_score);
    begin += length;
  }
}

void Unigram::segment(std::string_view piece,
                      ModelScratch& scratch,
                      std::vector<TokenId>& out) const {
  find_best(piece, scratch);
  // Walks from the end and collects the tokens in reverse.
  auto& tokens = scratch.reversed;
  tokens.clear();
  for (size_t end = piece.size(); end > 0; end -= length_of(tokens.back())) {
    tokens.push_back(scratch.last_tokens[end]);
  }
  size_t unknown_bytes = 0;  // before `position`
  size_t position = 0;
  const auto end_unknown = [&] {
    if (unknown_bytes == 0) return;
    append_unknown(piece.substr(position - unknown_bytes, unknown_bytes), out);
    unknown_bytes = 0;
  };
  for (size_t i = tokens.size(); i-- > 0;) {
    const TokenId token = tokens[i];
    if (token < 0) {
      unknown_bytes += length_of(token);
    } else {
      end_unknown();
      out.push_back(token);
    }
    position += length_of(token);
  }
  end_unknown();
}

void Unigram::encode_piece(std::string_view piece,
                           ModelScratch& scratch,
                           std::vector<TokenId>& out) const {
  size_t slot = 0;
  if (scratch.cache.append_known(piece, out, slot)) return;
  const size_t first = out.size();
  const std::string_view whole = piece;
  for (; piece.size() > kMaxPieceBytes; piece.remove_prefix(kMaxPieceBytes)) {
    segment(piece.substr(0, kMaxPieceBytes), scratch, out);
  }
  segment(piece, scratch, out);
  scratch.cache.remember(slot, whole, first, out.size() - first);
}

}  // namespace sluice
