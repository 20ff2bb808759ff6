// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/models/affix_bpe.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/text/utf8.h"

namespace sluice {

AffixBpe::AffixBpe(BpeMerges merges, TokenTable tokens, Options options)
    : merges_(std::move(merges)), tokens_(std::move(tokens)), options_(std::move(options)) {
  byte_tokens_.fill(kInvalidToken);
}

bool AffixBpe::append_bytes(std::string_view spelled, std::vector<TokenId>& symbols) const {
  const auto token_of = [&](char c) { return byte_tokens_[static_cast<uint8_t>(c)]; };
  if (std::any_of(
          spelled.begin(), spelled.end(), [&](char c) { return token_of(c) == kInvalidToken; })) {
    return false;
  }
  for (const char c : spelled) symbols.push_back(token_of(c));
  return true;
}

void AffixBpe::append_symbols(std::string_view piece, std::vector<TokenId>& symbols) const {
  std::string spelled;
  bool unknown_pending = false;  // emitted after the bytes that follow it, like the package
  for (size_t position = 0; position < piece.size();) {
    const size_t length = next_utf8_part(piece, position).length;
    spelled.clear();
    if (position > 0) spelled += options_.prefix;
    spelled += piece.substr(position, length);
    position += length;
    if (position == piece.size()) spelled += options_.suffix;
    const TokenId token = tokens_.find(spelled);
    if (token != kInvalidToken) {
      if (std::exchange(unknown_pending, false)) symbols.push_back(options_.unknown);
      symbols.push_back(token);
    } else if (!append_bytes(spelled, symbols) && options_.unknown != kInvalidToken) {
      if (unknown_pending && !options_.fuse_unknown) symbols.push_back(options_.unknown);
      unknown_pending = true;
    }
  }
  if (unknown_pending) symbols.push_back(options_.unknown);
}

void AffixBpe::encode_piece(std::string_view piece,
                            ModelScratch& scratch,
                            std::vector<TokenId>& out) const {
  if (options_.whole_pieces_first) {
    const TokenId whole = tokens_.find(piece);
    if (whole != kInvalidToken) {
      out.push_back(whole);
      return;
    }
  }
  size_t slot = 0;
  if (scratch.cache.append_known(piece, out, slot)) return;
  const size_t first = out.size();
  scratch.symbols.clear();
  append_symbols(piece, scratch.symbols);
  merges_.merge(scratch.symbols, scratch.merging, out);
  scratch.cache.remember(slot, piece, first, out.size() - first);
}

}  // namespace sluice
