// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/grammar_state.h"

#include <algorithm>
#include <utility>

#include "engine/core/status.h"

namespace sluice {

GrammarState::GrammarState(std::shared_ptr<const BoundGrammar> bound) : bound_(std::move(bound)) {
  if (bound_->begins_after.empty()) matcher_ = bound_->grammar->match();
}

bool GrammarState::follow(const TokenSequence& generated) {
  CHECK_GE(generated.size(), num_fixed_);
  size_t next = num_fixed_;
  const size_t end = std::min(num_tokens(), generated.size());
  while (next < end && generated[next] == tail_[next - num_fixed_]) ++next;
  go_back(next);
  while (next < generated.size() && accept(generated[next])) {
    ++next;
    forget_until(std::min(next, generated.committed.size()));
  }
  return next == generated.size();
}

bool GrammarState::accept(TokenId token) {
  if (is_bound()) {
    if (!matcher_->accept(token)) return false;
    tail_.push_back(token);
    return true;
  }
  tail_.push_back(token);
  const std::vector<TokenId>& marker = bound_->begins_after;
  const bool begins = tail_.size() >= marker.size() &&
                      std::ranges::equal(marker, std::span(tail_).last(marker.size()));
  if (begins) {
    matcher_ = bound_->grammar->match();
    num_free_ = num_tokens();
  }
  return true;
}

void GrammarState::go_back(size_t num_tokens) {
  if (is_bound()) {
    if (num_tokens < num_free_) {
      matcher_.reset();
      num_free_ = 0;
    } else {
      matcher_->rollback(static_cast<int32_t>(this->num_tokens() - num_tokens));
    }
  }
  tail_.resize(num_tokens - num_fixed_);
}

void GrammarState::forget_until(size_t num_committed) {
  const size_t num_kept = bound_->begins_after.size();
  if (num_committed < num_fixed_ + num_kept) return;
  const size_t fixed = num_committed - num_kept;
  tail_.erase(tail_.begin(), tail_.begin() + static_cast<ptrdiff_t>(fixed - num_fixed_));
  num_fixed_ = fixed;
}

}  // namespace sluice
