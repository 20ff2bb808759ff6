// SPDX-License-Identifier: Apache-2.0
// A source of drafts that needs no device: it sees the tokens of a request and guesses the next
// ones. Speculator (speculator.h) owns the proposers, keeps each request's tokens once and is what
// the engine calls. All calls come from one thread, that of the steps.
//
// Requests are slots, small integers that Speculator gives out and uses again. `known` is always
// the whole sequence, prompt and committed tokens; from call to call of a slot it only grows, and
// no call keeps the span. A proposer that is handed more than it can index within its share of a
// step guesses nothing until it has caught up. Memory grows in begin() and with `known`, is bounded
// for each proposer, and a slot's is used again by the next request.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "engine/core/draft.h"
#include "engine/core/types.h"

namespace sluice {

class Grammar;

// What a proposer is told of a request that begins. The spans live as long as the call.
struct DraftSubject {
  std::span<const TokenId> known = {};  // prompt, then what is generated already
  int32_t num_prompt_tokens = 0;
  uint64_t salt = 0;  // requests of different salts learn nothing from each other
  std::span<const TokenId> prediction = {};     // the answer that the client expects; empty: none
  std::shared_ptr<const Grammar> grammar = {};  // what binds the answer; null: nothing
  std::span<const TokenId> begins_behind = {};  // as in GrammarSpec
};

class Proposer {
 public:
  virtual ~Proposer() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;

  virtual void begin(int32_t slot, const DraftSubject& subject) = 0;

  // Writes at most `max` tokens (1 to kMaxDraftTokens) to `draft`, which is empty with this
  // proposer's source when it has no guess. Every token is one of `known`'s, of the prediction's,
  // of another answer's or of the grammar's, so it is in the vocabulary.
  virtual void propose(int32_t slot, std::span<const TokenId> known, int32_t max, Draft& draft) = 0;

  // The request is over, or drafts no more.
  virtual void end(int32_t slot, std::span<const TokenId> known) = 0;

  // What is held now, in bytes.
  [[nodiscard]] virtual int64_t memory_bytes() const = 0;
};

}  // namespace sluice
