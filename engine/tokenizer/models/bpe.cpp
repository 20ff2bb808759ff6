// SPDX-License-Identifier: Apache-2.0
#include "engine/tokenizer/models/bpe.h"

#include <algorithm>
#include <functional>

namespace sluice {
namespace {

// The most symbols for which scanning for the lowest rank beats a heap.
constexpr size_t kMaxScanSymbols = 48;
constexpr uint32_t kNone = ~uint32_t{0};
// Symbols are indexed with 32 bits; a longer word, of gigabytes, is cut.
constexpr size_t kMaxSymbols = size_t{1} << 31;

}  // namespace

void BpeMerges::merge(std::span<const TokenId> symbols,
                      Scratch& scratch,
                      std::vector<TokenId>& out) const {
  if (symbols.size() <= kMaxScanSymbols) {
    merge_few(symbols, out);
    return;
  }
  while (!symbols.empty()) {
    const size_t count = std::min(symbols.size(), kMaxSymbols);
    merge_many(symbols.first(count), scratch, out);
    symbols = symbols.subspan(count);
  }
}

void BpeMerges::merge_few(std::span<const TokenId> symbols, std::vector<TokenId>& out) const {
  TokenId tokens[kMaxScanSymbols];
  uint32_t ranks[kMaxScanSymbols];
  size_t count = symbols.size();
  std::copy(symbols.begin(), symbols.end(), tokens);
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(tokens[i], tokens[i + 1]);
  while (count > 1) {
    const size_t best = std::min_element(ranks, ranks + count - 1) - ranks;
    if (ranks[best] == kNoRank) break;
    tokens[best] = merge_of(tokens[best], tokens[best + 1]);
    std::copy(tokens + best + 2, tokens + count, tokens + best + 1);
    // ranks has count - 1 entries; that of the merged pair is removed.
    std::copy(ranks + best + 1, ranks + count - 1, ranks + best);
    --count;
    if (best + 1 < count) ranks[best] = rank_of(tokens[best], tokens[best + 1]);
    if (best > 0) ranks[best - 1] = rank_of(tokens[best - 1], tokens[best]);
  }
  out.insert(out.end(), tokens, tokens + count);
}

void BpeMerges::merge_many(std::span<const TokenId> word,
                           Scratch& scratch,
                           std::vector<TokenId>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  for (const TokenId token : word) {
    const auto index = static_cast<uint32_t>(symbols.size());
    symbols.push_back({token, kNoRank, index + 1, index - 1});
  }
  symbols.back().next = kNone;
  const auto greater = std::greater<>{};
  for (uint32_t i = 0; i + 1 < symbols.size(); ++i) {
    symbols[i].rank = rank_of(symbols[i].token, symbols[i + 1].token);
    if (symbols[i].rank != kNoRank) heap.push_back((uint64_t{symbols[i].rank} << 32) | i);
  }
  std::make_heap(heap.begin(), heap.end(), greater);

  const auto update_rank = [&](uint32_t index) {
    auto& symbol = symbols[index];
    symbol.rank =
        symbol.next == kNone ? kNoRank : rank_of(symbol.token, symbols[symbol.next].token);
    if (symbol.rank == kNoRank) return;
    heap.push_back((uint64_t{symbol.rank} << 32) | index);
    std::push_heap(heap.begin(), heap.end(), greater);
  };
  while (!heap.empty()) {
    const uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), greater);
    heap.pop_back();
    const auto index = static_cast<uint32_t>(top);
    auto& left = symbols[index];
    // An entry is stale if its pair has changed since, unless the new pair has the same rank.
    if (left.rank != static_cast<uint32_t>(top >> 32)) continue;
    auto& right = symbols[left.next];
    left.token = merge_of(left.token, right.token);
    right.rank = kNoRank;
    left.next = right.next;
    if (left.next != kNone) symbols[left.next].previous = index;
    update_rank(index);
    if (index != 0) update_rank(left.previous);
  }
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) out.push_back(symbols[i].token);
}

}  // namespace sluice
