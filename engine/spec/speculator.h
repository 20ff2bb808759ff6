// SPDX-License-Identifier: Apache-2.0
// The proposers of an engine as one: which drafts which request in a step. A prediction that the
// client gave comes first while it follows the answer; then whichever of the other proposers is
// expected to have more tokens accepted, by what was measured of their drafts (DraftSurvival).
//
// One thread, that of the steps: begin() before the first propose() of a request, committed() as
// its tokens come, end() once. A request that is preempted stays begun. Calls with an id that was
// not begun, or has ended, do nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/types.h"
#include "engine/spec/proposer.h"
#include "engine/spec/spec_config.h"
#include "scheduler/draft_survival.h"

namespace sluice {

class Speculator {
 public:
  // Proposers as `config` says; predictions are always followed. `vocab_size`: that of the target.
  Speculator(const SpecConfig& config, int32_t vocab_size);
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

  // Of everything, in bytes; grows and falls with the requests.
  [[nodiscard]] int64_t memory_bytes() const;

 private:
  struct Slot {
    std::vector<TokenId> known;
    bool is_used = false;
  };

  std::vector<std::unique_ptr<Proposer>> proposers_;
  int32_t vocab_size_;
  std::vector<Slot> slots_;
  std::vector<int32_t> free_slots_;
  std::unordered_map<RequestId, int32_t> slot_of_;
  Draft other_;  // a second proposer's, to be compared
};

}  // namespace sluice
