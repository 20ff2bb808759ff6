// SPDX-License-Identifier: Apache-2.0
#include "engine/sampling/grammar/grammar_state.h"

#include <algorithm>
#include <utility>

namespace sluice {

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar,
                           std::vector<TokenId> begins_behind)
    : grammar_(std::move(grammar)), begins_behind_(std::move(begins_behind)) {
  if (begins_behind_.empty()) matcher_ = grammar_->match();
}

bool GrammarState::follow(std::span<const TokenId> generated) {
  const auto [known, given] = std::ranges::mismatch(tokens_, generated);
  go_back(static_cast<size_t>(known - tokens_.begin()));
  return std::all_of(given, generated.end(), [this](TokenId token) { return accept(token); });
}

bool GrammarState::accept(TokenId token) {
  if (is_bound()) {
    if (!matcher_->accept(token)) return false;
    tokens_.push_back(token);
    return true;
  }
  tokens_.push_back(token);
  const size_t length = begins_behind_.size();
  const bool begins =
      tokens_.size() >= length && std::equal(begins_behind_.begin(),
                                             begins_behind_.end(),
                                             tokens_.end() - static_cast<ptrdiff_t>(length));
  if (begins) {
    matcher_ = grammar_->match();
    num_free_ = tokens_.size();
  }
  return true;
}

void GrammarState::go_back(size_t num_tokens) {
  if (is_bound()) {
    if (num_tokens < num_free_) {
      matcher_.reset();
      num_free_ = 0;
    } else {
      matcher_->rollback(static_cast<int32_t>(tokens_.size() - num_tokens));
    }
  }
  tokens_.resize(num_tokens);
}

}  // namespace sluice
