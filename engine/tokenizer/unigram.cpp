// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/unigram.h"

#include <algorithm>

#include "engine/tokenizer/utf8.h"

namespace sluice {
namespace {

// Byte positions are kept in 32 bits; a longer piece is cut, which only one of gigabytes meets.
constexpr size_t kMaxPieceBytes = size_t{1} << 30;

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

void Unigram::segment(std::string_view piece,
                      ModelScratch& scratch,
                      std::vector<TokenId>& out) const {
  auto& best = scratch.nodes;
  best.assign(piece.size() + 1, ModelScratch::Node{});
  for (size_t begin = 0; begin < piece.size();) {
    const double base = best[begin].score;
    const auto offer = [&](size_t end, TokenId token, double score) {
      ModelScratch::Node& node = best[end];
      const double total = base + score;
      if (!node.reached || total > node.score) {
        node = {total, static_cast<uint32_t>(begin), token, true};
      }
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
    if (!has_single) offer(begin + length, kInvalidToken, options_.unknown_score);
    begin += length;
  }
  // From the end: the segments in reverse, each as the position where it begins.
  auto& begins = scratch.reversed;
  begins.clear();
  for (size_t end = piece.size(); end > 0; end = best[end].begin) {
    begins.push_back(static_cast<TokenId>(end));
  }
  size_t unknown_begin = 0;
  size_t unknown_end = 0;
  for (size_t i = begins.size(); i-- > 0;) {
    const auto end = static_cast<size_t>(begins[i]);
    const ModelScratch::Node& node = best[end];
    if (node.token == kInvalidToken && fuse_unknown_) {
      if (unknown_end == unknown_begin) unknown_begin = node.begin;
      unknown_end = end;
      continue;
    }
    if (unknown_end > unknown_begin) {
      append_unknown(piece.substr(unknown_begin, unknown_end - unknown_begin), out);
    }
    unknown_begin = unknown_end = 0;
    if (node.token == kInvalidToken) {
      append_unknown(piece.substr(node.begin, end - node.begin), out);
    } else {
      out.push_back(node.token);
    }
  }
  if (unknown_end > unknown_begin) {
    append_unknown(piece.substr(unknown_begin, unknown_end - unknown_begin), out);
  }
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
