// SPDX-License-Identifier: Apache-2.0
// Combines the proposers of an engine. In each step every proposer guesses for a request, and the
// guess with the most expected accepted tokens wins, according to measured acceptance of drafts of
// its kind (DraftSurvival); among equals the first, in the order forced, prediction, suffix,
// n-gram.
//
// Called on the thread that runs the steps: begin() before a request's first propose(), end() once.
// In between it reads the request's committed tokens. A preempted request stays begun. For an id
// that was not begun, or has ended, every call but begin() does nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/token_log.h"
#include "engine/core/types.h"
#include "engine/spec/forced.h"
#include "engine/spec/proposer.h"
#include "engine/spec/spec_config.h"
#include "scheduler/draft_survival.h"

namespace sluice {

class Speculator {
 public:
  // Makes the proposers of `config`: method replay alone, or predictions and grammars, which are
  // always followed, and the others. `vocab_size` is the target's. `text`: as in forced.h.
  Speculator(const SpecConfig& config, int32_t vocab_size, TokenText text = {});
  // Takes the proposers in order; for tests and the simulator.
  Speculator(std::vector<std::unique_ptr<Proposer>> proposers, int32_t vocab_size);
  ~Speculator();

  void begin(const RequestRecord& request);

  // Guesses what follows the committed tokens: at most `max` tokens, any number; empty without a
  // guess. `survival`: measured acceptance of earlier drafts.
  void propose(RequestId id, int32_t max, const DraftSurvival& survival, Draft& draft);

  void end(RequestId id);

  // Bytes of all proposers.
  [[nodiscard]] int64_t memory_bytes() const;

  // Upper bound of memory_bytes() while at most `num_requests` requests of at most `max_length`
  // tokens are begun: for the memory plan.
  static int64_t max_memory_bytes(const SpecConfig& config,
                                  int32_t num_requests,
                                  int64_t max_length);

 private:
  void cut_to_vocabulary(Draft& draft) const;

  std::vector<std::unique_ptr<Proposer>> proposers_;
  int32_t vocab_size_;
  std::vector<TokenLog> slots_;  // the known tokens of each request
  std::vector<int32_t> free_slots_;
  std::unordered_map<RequestId, int32_t> slot_of_;
  Draft other_;  // another proposer's, for comparison
};

}  // namespace sluice
