// SPDX-License-Identifier: Apache-2.0
// How many drafted tokens of each request a step takes: as many as make it give more tokens a
// millisecond than it would without, by what was measured of acceptance (DraftSurvival) and of the
// time that steps of so many rows take (RowTimes); and none when drafting is found to lose.
//
// Owned by the scheduler, on its thread. It reads no clock: the same calls with the same values
// give the same decisions. A step:
//   offers_wanted() -> proposers make drafts -> choose() -> the step runs ->
//   observe_draft() for each request with a draft, then observe_step().
// No call allocates but the first ones with more requests than before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/stats.h"
#include "scheduler/cost_model.h"
#include "scheduler/draft_depth.h"
#include "scheduler/draft_survival.h"
#include "scheduler/row_times.h"

namespace sluice {

// What a request that decodes could draft in a step. The caller has cut it to what the request's
// max_tokens, the model's length, its blocks and a grammar allow.
struct DraftOffer {
  DraftSource source = DraftSource::kNgram;
  std::span<const uint8_t> bins;  // its tokens'; empty: it has no draft
  const RequestAcceptance* request = nullptr;
  int64_t position = 0;  // its first drafted token's
};

struct DraftLimits {
  StepShape shape;             // the step without drafts
  int32_t num_decodes = 0;     // its rows that choose a token without drafts (R), offers or not
  int32_t max_draft_rows = 0;  // what the step's tokens and its rows of logits leave
  double target_ms = 0;        // that a step should take at most; 0: no limit
  double draft_ms = 0;         // that making these drafts takes of the step; 0: nothing
};

struct DraftDecision {
  int32_t num_rows = 0;          // drafted tokens in all
  double predicted_gain = 1;     // tokens a millisecond, over the same step without drafts
  std::optional<DraftsOff> off;  // why offers were not taken; none where there were none
};

// A step that retired.
struct DraftedStep {
  StepShape shape;          // with its drafts
  StepShape plain;          // without them
  int32_t num_decodes = 0;  // the same number as in DraftLimits
  int32_t num_draft_rows = 0;
  int32_t num_committed = 0;  // tokens of those decodes
  double ms = 0;              // measured; not positive: unknown, ignored
  double draft_ms = 0;        // that making drafts for it took before it, taken or not
};

class SpeculationBudget {
 public:
  struct Options {
    int32_t max_tokens = 16;  // a request has in one step, at most
    bool is_fixed = false;    // every offer is taken as far as there is room
  };

  explicit SpeculationBudget(const Options& options);

  // False: the coming step drafts nothing, so that proposers need not be asked.
  [[nodiscard]] bool offers_wanted() const;

  // How many tokens a model is asked to draft for each request of a step that is `plain` without
  // drafts, from 1 to `most`.
  [[nodiscard]] int32_t draft_depth(const CostModel& cost,
                                    const StepShape& plain,
                                    int32_t most) const;

  // Such drafts took `ms` for so many requests.
  void observe_passes(int32_t num_requests, int32_t depth, double ms) {
    depth_.observe_passes(num_requests, depth, ms);
  }

  // granted[i]: how many of the first tokens of offers[i] the step takes. `cost` predicts steps
  // that are not in the table.
  DraftDecision choose(const CostModel& cost,
                       const DraftLimits& limits,
                       std::span<const DraftOffer> offers,
                       std::span<int32_t> granted);

  // What became of a request's draft that was in the step: all its rows (`bins`), of which the
  // first `num_accepted` were accepted.
  void observe_draft(DraftSource source,
                     std::span<const uint8_t> bins,
                     int32_t num_accepted,
                     RequestAcceptance& request);

  void observe_step(const CostModel& cost, const DraftedStep& step);

  [[nodiscard]] const DraftSurvival& survival() const { return survival_; }

  [[nodiscard]] const RowTimes& times() const { return times_; }

  // Undrafted steps whose time drafting has lost and not paid back: at 16, which are so many tokens
  // of each decode, it is turned off. Counted in steps, a debt weighs the same whatever runs.
  [[nodiscard]] double debt() const { return debt_; }

  [[nodiscard]] bool is_guarded() const { return is_guarded_; }

 private:
  static constexpr size_t kNumBins = 64;  // classes of survival, by which rows are ranked

  // Drafted rows by survival: how many, and the tokens that they are expected to give.
  struct Ranking {
    std::array<int32_t, kNumBins> rows{};
    std::array<double, kNumBins> tokens{};
    int32_t num_rows = 0;
    int32_t num_first = 0;          // first tokens of drafts among them
    size_t least_first = kNumBins;  // the least bin that has one
    int64_t position = 0;           // a drafted row's, on average
  };

  struct Choice {
    int32_t num_rows = 0;
    double gain = 1;
    int32_t num_tried = 0;  // rows that are worth a try without a gain: as many as stretch little
  };

  void rank(std::span<const DraftOffer> offers);
  [[nodiscard]] Choice best_rows(const CostModel& cost, const DraftLimits& limits) const;
  void grant(std::span<const DraftOffer> offers, int32_t num_rows, std::span<int32_t> granted);
  [[nodiscard]] DraftDecision choose_fixed(const DraftLimits& limits,
                                           std::span<const DraftOffer> offers,
                                           std::span<int32_t> granted) const;
  [[nodiscard]] double plain_ms(const CostModel& cost, const StepShape& plain) const;

  [[nodiscard]] bool is_trial() const;

  Options options_;
  DraftSurvival survival_;
  RowTimes times_;
  DraftDepth depth_;
  Ranking ranking_;
  std::vector<uint8_t> bins_;  // survival of rows: max_tokens for each offer
  uint64_t num_steps_ = 0;     // that retired
  uint64_t next_trial_;        // while drafting is off: the step that drafts all the same
  uint64_t trial_gap_;         // steps from one trial to the next
  int32_t num_idle_ = 0;       // choices in a row that took nothing of what was offered
  bool is_on_ = false;         // the last choice drafted
  bool is_guarded_ = false;
  double debt_ = 0;   // steps
  double drift_ = 1;  // undrafted steps took so many times what the table says
};

}  // namespace sluice
