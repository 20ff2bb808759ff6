// SPDX-License-Identifier: Apache-2.0
// Where one request stands in its grammar, by the tokens of its answer: it begins behind the tokens
// that the request names, and goes back where the answer does, as with drafts that were refused. A
// function of those tokens alone: preemption keeps it, and whoever continues a stream gets it from
// the tokens. By one thread at a time.
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
  // `begins_behind`: as in GrammarSpec.
  GrammarState(std::shared_ptr<const Grammar> grammar, std::vector<TokenId> begins_behind);

  // Moves to where the answer stands: behind `generated`, all of its tokens. False: the grammar
  // refuses one of them; then it stands before that.
  [[nodiscard]] bool follow(std::span<const TokenId> generated);

  // Whether the next token is bound.
  [[nodiscard]] bool is_bound() const { return matcher_ != nullptr; }

  // Goes on by one token, as follow() would with it; a later follow() takes it back where the
  // answer did not go so.
  [[nodiscard]] bool accept(TokenId token);

  // Without what the matcher takes.
  [[nodiscard]] int64_t memory_bytes() const {
    return static_cast<int64_t>(sizeof(GrammarState) + tokens_.capacity() * sizeof(TokenId));
  }

  // What may come next, where it is bound.
  Allowed fill(std::span<uint32_t> row) { return matcher_->fill(row); }

  // The answer could end here.
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
