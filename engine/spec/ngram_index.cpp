// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/ngram_index.h"

#include <algorithm>
#include <bit>

namespace sluice {

namespace {

constexpr size_t kMinEntries = 64;

uint64_t hash_of(std::span<const TokenId> tokens) {
  uint64_t hash = 0;
  for (const TokenId token : tokens) {
    hash = (hash ^ static_cast<uint32_t>(token)) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 32;
  }
  return hash;
}

}  // namespace

void NgramIndex::clear() {
  std::ranges::fill(entries_, Match{});
  num_used_ = 0;
  next_ = 0;
}

int64_t NgramIndex::max_memory_bytes(int64_t num_tokens) {
  const auto entries = std::max(kMinEntries, std::bit_ceil(2 * static_cast<size_t>(num_tokens)));
  return static_cast<int64_t>(entries * sizeof(Match));
}

size_t NgramIndex::place_of(std::span<const TokenId> text, size_t next) const {
  const auto gram = text.subspan(next - n_, n_);
  const size_t mask = entries_.size() - 1;
  size_t at = static_cast<size_t>(hash_of(gram)) & mask;
  while (entries_[at].latest != 0 &&
         !std::ranges::equal(text.subspan(entries_[at].latest - n_, n_), gram)) {
    at = (at + 1) & mask;
  }
  return at;
}

void NgramIndex::grow(std::span<const TokenId> text, size_t num_tokens) {
  const size_t wanted = std::max(kMinEntries, std::bit_ceil(2 * num_tokens));
  if (wanted <= entries_.size()) return;
  std::vector<Match> old(wanted);
  old.swap(entries_);
  for (const Match& match : old) {
    if (match.latest != 0) entries_[place_of(text, match.latest)] = match;
  }
}

bool NgramIndex::extend(std::span<const TokenId> text, size_t max_tokens) {
  const size_t first = std::max(next_, n_);
  const size_t end =
      text.size() > first ? first + std::min(text.size() - first, max_tokens) : first;
  grow(text, std::max(num_used_ + (end - first), size_t{1}));
  for (size_t next = first; next < end; ++next) {
    Match& match = entries_[place_of(text, next)];
    if (match.latest == 0) ++num_used_;
    match = {static_cast<uint32_t>(next), match.latest};
  }
  next_ = end;
  return end >= text.size();
}

NgramIndex::Match NgramIndex::find(std::span<const TokenId> text) const {
  if (text.size() < n_ || entries_.empty()) return {};
  return entries_[place_of(text, text.size())];
}

}  // namespace sluice
