// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/models/word_cache.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>

namespace sluice {
namespace {

constexpr size_t kMinTextBytes = 2048;
constexpr size_t kMaxEntries = 16384;
constexpr size_t kMaxWordBytes = 64;  // longer words seldom recur

}  // namespace

WordCache::WordCache(size_t text_bytes) {
  if (text_bytes < kMinTextBytes) return;
  entries_.resize(std::min(std::bit_ceil(text_bytes / 16), kMaxEntries));
}

bool WordCache::append_known(std::string_view word, std::vector<TokenId>& out, size_t& slot) const {
  if (entries_.empty() || word.size() > kMaxWordBytes) return false;
  slot = XXH3_64bits(word.data(), word.size()) & (entries_.size() - 1);
  const Entry& entry = entries_[slot];
  if (entry.word != word) return false;
  for (size_t i = 0; i < entry.count; ++i) {
    const TokenId token = out[entry.first + i];
    out.push_back(token);
  }
  return true;
}

void WordCache::remember(size_t slot, std::string_view word, size_t first, size_t count) {
  if (entries_.empty() || word.size() > kMaxWordBytes) return;
  entries_[slot] = {word, first, count};
}

}  // namespace sluice
