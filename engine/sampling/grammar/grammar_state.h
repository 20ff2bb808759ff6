// SPDX-License-Identifier: Apache-2.0
// The position of one request in its grammar, by the tokens of its answer: the grammar begins after
// the tokens that the request names, and the position is rolled back with the answer, as after
// rejected drafts. It depends on those tokens alone: preemption keeps it, and a continued stream
// restores it from its tokens. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/token_log.h"
#include "engine/core/types.h"
#include "engine/sampling/grammar/grammar.h"

namespace sluice {

class GrammarState {
 public:
  explicit GrammarState(std::shared_ptr<const BoundGrammar> bound);

  // Moves to the end of `generated`, all tokens of the answer: what was committed at an earlier
  // call is not looked at again. False: the grammar rejects a token; the position is then before
  // it.
  [[nodiscard]] bool follow(const TokenSequence& generated);

  // Whether the grammar restricts the next token.
  [[nodiscard]] bool is_bound() const { return matcher_ != nullptr; }

  // Advances by one token, like follow() with it added; a later follow() takes it back if the
  // answer went another way.
  [[nodiscard]] bool accept(TokenId token);

  // The bytes of this object without the matcher's.
  [[nodiscard]] int64_t memory_bytes() const {
    return static_cast<int64_t>(sizeof(GrammarState) + tail_.capacity() * sizeof(TokenId));
  }

  // Writes which tokens may follow. The next token must be constrained.
  Allowed fill(std::span<uint32_t> row) { return matcher_->fill(row); }

  // Whether the answer could end here.
  [[nodiscard]] bool is_completed() const { return is_bound() && matcher_->is_completed(); }

 private:
  [[nodiscard]] size_t num_tokens() const { return num_fixed_ + tail_.size(); }

  void go_back(size_t num_tokens);
  void forget_until(size_t num_committed);

  std::shared_ptr<const BoundGrammar> bound_;
  // The position: committed tokens that are no longer compared, and those after them. The tail has
  // all uncommitted tokens, and of the others as many as `begins_after` has.
  size_t num_fixed_ = 0;
  std::vector<TokenId> tail_;
  size_t num_free_ = 0;                      // tokens before it was bound
  std::unique_ptr<GrammarMatcher> matcher_;  // null: not yet bound
};

}  // namespace sluice
