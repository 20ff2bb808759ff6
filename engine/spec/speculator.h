// SPDX-License-Identifier: Apache-2.0
// The proposers of an engine as one. In each step every proposer guesses for a request, and the
// guess counts of which most tokens are expected to be accepted, by what was measured of the drafts
// of its kind (DraftSurvival); among equals the first, in the order forced, prediction, suffix,
// n-gram.
//
// One thread, that of the steps: begin() before the first propose() of a request, committed() as
// its tokens come, end() once. A request that is preempted stays begun. Of an id that was not
// begun, or has ended, all but begin() do nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/types.h"
#include "engine/spec/forced.h"
#include "engine/spec/proposer.h"
#include "engine/spec/spec_config.h"
#include "scheduler/draft_survival.h"

namespace sluice {

class Speculator {
 public:
  // Proposers as `config` says: method replay alone, or predictions and grammars, which are always
  // followed, and the others. `vocab_size`: that of the target. `text`: as in forced.h.
  Speculator(const SpecConfig& config, int32_t vocab_size, TokenText text = {});
  // The proposers in order; tests and the simulator bring their own.
  Speculator(std::vector<std::unique_ptr<Proposer>> proposers, int32_t vocab_size);
  ~Speculator();

  void begin(RequestId id, const DraftSubject& subject);

  // Tokens of the answer, in order; rejected drafts are none of them.
  void committed(RequestId id, std::span<const TokenId> tokens);

  // What may follow the committed tokens: at most `max` of them, which may be any number; empty
  // where there is no guess. `survival`: what was measured of earlier drafts.
  void propose(RequestId id, int32_t max, const DraftSurvival& survival, Draft& draft);

  void end(RequestId id);

  // What all proposers and the known tokens take, in bytes.
  [[nodiscard]] int64_t memory_bytes() const;

  // What memory_bytes() never exceeds while at most so many requests are begun, of at most
  // `max_length` tokens each: for the memory plan.
  static int64_t max_memory_bytes(const SpecConfig& config,
                                  int32_t num_requests,
                                  int64_t max_length);

 private:
  void cut_to_vocabulary(Draft& draft) const;

  std::vector<std::unique_ptr<Proposer>> proposers_;
  int32_t vocab_size_;
  std::vector<std::vector<TokenId>> slots_;  // what is known of each request
  std::vector<int32_t> free_slots_;
  std::unordered_map<RequestId, int32_t> slot_of_;
  Draft other_;  // a second proposer's, to be compared
};

}  // namespace sluice
