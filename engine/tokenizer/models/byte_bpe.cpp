// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/models/byte_bpe.h"

namespace sluice {

void ByteBpe::encode_piece(std::string_view piece,
                           ModelScratch& scratch,
                           std::vector<TokenId>& out) const {
  size_t slot = 0;
  if (scratch.cache.append_known(piece, out, slot)) return;
  const size_t first = out.size();
  const TokenId whole = words_ ? words_->find(piece) : kInvalidToken;
  if (whole != kInvalidToken) {
    out.push_back(whole);
  } else {
    auto& symbols = scratch.symbols;
    symbols.clear();
    for (const char c : piece) {
      TokenId token = byte_tokens_[static_cast<uint8_t>(c)];
      if (token == kInvalidToken) token = unknown_;
      if (token == kInvalidToken) continue;
      if (fuse_unknown_ && token == unknown_ && !symbols.empty() && symbols.back() == unknown_) {
        continue;
      }
      symbols.push_back(token);
    }
    merges_.merge(symbols, scratch.merging, out);
  }
  scratch.cache.remember(slot, piece, first, out.size() - first);
}

}  // namespace sluice
