// SPDX-License-Identifier: Apache-2.0
// A source of drafts that needs no device: it guesses the next tokens of a request from its tokens.
// The engine calls Speculator (speculator.h), which owns the proposers. All calls come from the
// thread that runs the steps.
//
// Requests are slots, small integers that Speculator assigns and reuses. `known` is always the
// whole sequence, prompt and committed tokens; it only grows between calls for a slot, and no call
// keeps the span. A proposer that gets more than it can index within its share of a step guesses
// nothing until it has caught up. Memory grows in begin() and with `known`, is bounded per
// proposer, and a slot's memory is reused by the next request.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "engine/core/draft.h"
#include "engine/core/types.h"
#include "engine/sampling/request_record.h"

namespace sluice {

class Proposer {
 public:
  virtual ~Proposer() = default;

  [[nodiscard]] virtual std::string_view name() const = 0;

  // What is learned from requests is isolated by their tenant_salt.
  virtual void begin(int32_t slot, const RequestRecord& request) = 0;

  // Writes at most `max` tokens (1 to kMaxDraftTokens) to `draft`, which is empty with this
  // proposer's source if it has no guess. Every token comes from `known`, the prediction, another
  // answer or the grammar and is therefore in the vocabulary.
  virtual void propose(int32_t slot, std::span<const TokenId> known, int32_t max, Draft& draft) = 0;

  // Ends the request, or its drafting.
  virtual void end(int32_t slot, std::span<const TokenId> known) = 0;

  // Bytes held now.
  [[nodiscard]] virtual int64_t memory_bytes() const = 0;
};

}  // namespace sluice
