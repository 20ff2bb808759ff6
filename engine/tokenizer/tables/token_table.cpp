// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/tables/token_table.h"

#include <xxhash.h>

#include <bit>

namespace sluice {
namespace {

uint64_t hash_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

}  // namespace

TokenTable::TokenTable(std::span<const std::string> texts)
    : texts_(texts), entries_(std::bit_ceil(texts.size() * 2 + 2)) {}

size_t TokenTable::find_slot(std::string_view text, uint64_t hash) const {
  const size_t mask = entries_.size() - 1;
  for (size_t slot = hash & mask;; slot = (slot + 1) & mask) {
    const Entry& entry = entries_[slot];
    if (entry.token == kInvalidToken) return slot;
    if (entry.hash != static_cast<uint32_t>(hash >> 32)) continue;
    if (texts_[static_cast<size_t>(entry.token)] == text) return slot;
  }
}

bool TokenTable::insert(TokenId token) {
  const std::string_view text = texts_[static_cast<size_t>(token)];
  const uint64_t hash = hash_of(text);
  Entry& entry = entries_[find_slot(text, hash)];
  if (entry.token != kInvalidToken) return false;
  entry = {token, static_cast<uint32_t>(hash >> 32)};
  return true;
}

TokenId TokenTable::find(std::string_view text) const {
  return entries_[find_slot(text, hash_of(text))].token;
}

}  // namespace sluice
