// SPDX-License-Identifier: Apache-2.0
#include "engine/core/token_log.h"

#include <utility>

#include "engine/core/status.h"

namespace sluice {
namespace {

bool is_at(const TokenSequence& sequence, size_t begin, std::span<const TokenId> part) {
  size_t i = 0;
  while (i < part.size() && sequence[begin + i] == part[i]) ++i;
  return i == part.size();
}

}  // namespace

std::optional<size_t> TokenSequence::find(std::span<const TokenId> part) const {
  for (size_t begin = 0; begin + part.size() <= size(); ++begin) {
    if (is_at(*this, begin, part)) return begin;
  }
  return std::nullopt;
}

bool TokenSequence::ends_with(std::span<const TokenId> part) const {
  return part.size() <= size() && is_at(*this, size() - part.size(), part);
}

TokenLog::TokenLog(std::vector<TokenId> tokens, size_t capacity)
    : storage_(std::make_shared<Storage>()) {
  CHECK_LE(tokens.size(), capacity);
  storage_->tokens = std::move(tokens);
  storage_->tokens.reserve(capacity);
  storage_->begin = storage_->tokens.data();
  storage_->size = storage_->tokens.size();
}

void TokenLog::append(std::span<const TokenId> tokens) {
  std::vector<TokenId>& stored = storage_->tokens;
  CHECK_LE(stored.size() + tokens.size(), stored.capacity());
  stored.insert(stored.end(), tokens.begin(), tokens.end());
  storage_->size.store(stored.size(), std::memory_order_release);
}

}  // namespace sluice
