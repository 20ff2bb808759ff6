// SPDX-License-Identifier: Apache-2.0
// The tokens of one request: prompt, then committed answer, stored once and appended to. What has
// been committed never changes, so a rejected draft is undone by dropping it from the tail of
// whoever holds it.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/types.h"

namespace sluice {

// The leading tokens of a request as one reader sees them. The spans belong to others.
struct TokenSequence {
  std::span<const TokenId> committed;  // of a TokenLog
  std::span<const TokenId> tail;       // the reader's own: chosen or drafted, not yet committed

  [[nodiscard]] size_t size() const { return committed.size() + tail.size(); }

  [[nodiscard]] bool empty() const { return size() == 0; }

  TokenId operator[](size_t i) const {
    return i < committed.size() ? committed[i] : tail[i - committed.size()];
  }

  // Returns the tokens from position `begin` on, or the first `count`; both are at most size().
  [[nodiscard]] TokenSequence from(size_t begin) const {
    const size_t cut = std::min(begin, committed.size());
    return {committed.subspan(cut), tail.subspan(begin - cut)};
  }

  [[nodiscard]] TokenSequence first(size_t count) const {
    const size_t cut = std::min(count, committed.size());
    return {committed.first(cut), tail.first(count - cut)};
  }

  // Returns the position where `part` first occurs.
  [[nodiscard]] std::optional<size_t> find(std::span<const TokenId> part) const;
  [[nodiscard]] bool ends_with(std::span<const TokenId> part) const;
};

// A handle: copies share the tokens. The scheduler's appends, the others read meanwhile, on any
// thread.
class TokenLog {
 public:
  TokenLog() = default;  // has no tokens and takes none
  // `capacity`: the most tokens that there will be.
  TokenLog(std::vector<TokenId> tokens, size_t capacity);

  // Must not exceed the capacity.
  void append(std::span<const TokenId> tokens);

  // Returns the tokens committed so far, valid as long as a handle lives.
  [[nodiscard]] std::span<const TokenId> tokens() const {
    if (storage_ == nullptr) return {};
    return {storage_->begin, storage_->size.load(std::memory_order_acquire)};
  }

 private:
  struct Storage {
    std::vector<TokenId> tokens;  // never moves
    const TokenId* begin = nullptr;
    std::atomic<size_t> size = 0;
  };

  std::shared_ptr<Storage> storage_;
};

}  // namespace sluice
