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

#include "engine/core/types.h"
#include "engine/sampling/grammar/grammar.h"

namespace sluice {

class GrammarState {
 public:
  // For `begins_behind` see GrammarSpec.
  GrammarState(std::shared_ptr<const Grammar> grammar, std::vector<TokenId> begins_behind);

  // Moves to the end of `generated`, all tokens of the answer. False: the grammar rejects one of
  // them; the position is then before that token.
  [[nodiscard]] bool follow(std::span<const TokenId> generated);

  // Whether the grammar restricts the next token.
  [[nodiscard]] bool is_bound() const { return matcher_ != nullptr; }

  // Advances by one token, like follow() with it added; a later follow() takes it back if the
  // answer went another way.
  [[nodiscard]] bool accept(TokenId token);

  // The bytes of this object without the matcher's.
  [[nodiscard]] int64_t memory_bytes() const {
    return static_cast<int64_t>(sizeof(GrammarState) + tokens_.capacity() * sizeof(TokenId));
  }

  // Writes which tokens may follow. The next token must be constrained.
  Allowed fill(std::span<uint32_t> row) { return matcher_->fill(row); }

  // Whether the answer could end here.
  [[nodiscard]] bool is_completed() const { return is_bound() && matcher_->is_completed(); }

 private:
  void go_back(size_t num_tokens);

  std::shared_ptr<const Grammar> grammar_;
  std::vector<TokenId> begins_behind_;
  std::vector<TokenId> tokens_;              // of the answer, so far
  size_t num_free_ = 0;                      // of them, before it was bound
  std::unique_ptr<GrammarMatcher> matcher_;  // null: not yet bound
};

}  // namespace sluice
