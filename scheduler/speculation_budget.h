// SPDX-License-Identifier: Apache-2.0
// Decides how many drafted tokens of each request a step takes: as many as maximise tokens per
// millisecond given measured acceptance (DraftSurvival) and step times by rows (RowTimes), and none
// when drafting is found to lose.
//
// The scheduler owns it and calls it on its own thread. It reads no clock: equal calls give equal
// decisions. A step:
//   offers_wanted() -> proposers make drafts -> choose() -> the step runs ->
//   observe_draft() for each request with a draft, then observe_step().
// Calls allocate only when there are more requests than ever before.
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

// A draft for a request that decodes. The caller has cut it to what the request's max_tokens, the
// model's length, its blocks and a grammar allow.
struct DraftOffer {
  DraftSource source = DraftSource::kNgram;
  std::span<const uint8_t> bins;  // one per drafted token; empty: no draft
  const RequestAcceptance* request = nullptr;
  int64_t position = 0;  // position of the first drafted token
};

struct DraftLimits {
  StepShape shape;             // the step without drafts
  int32_t num_decodes = 0;     // rows that choose a token without drafts (R)
  int32_t max_draft_rows = 0;  // room left by the step's tokens and rows of logits
  double target_ms = 0;        // bound on the step; 0: no limit
  double draft_ms = 0;         // time that making the drafts takes; 0: nothing
};

struct DraftDecision {
  int32_t num_rows = 0;          // total drafted tokens
  double predicted_gain = 1;     // tokens per millisecond, relative to no drafts
  std::optional<DraftsOff> off;  // set when offers were made and none taken
};

// A retired step.
struct DraftedStep {
  StepShape shape;          // includes its drafts
  StepShape plain;          // without them
  int32_t num_decodes = 0;  // see DraftLimits
  int32_t num_draft_rows = 0;
  int32_t num_committed = 0;  // tokens gained by those decodes
  double ms = 0;              // measured; not positive: unknown, ignored
  double draft_ms = 0;        // time spent making its drafts, taken or not
};

class SpeculationBudget {
 public:
  struct Options {
    int32_t max_tokens = 16;  // drafts of one request in one step, at most
    bool is_fixed = false;    // every offer is taken as far as there is room
  };

  explicit SpeculationBudget(const Options& options);

  // False: the coming step drafts nothing and no proposer needs to run.
  [[nodiscard]] bool offers_wanted() const;

  // Returns how many tokens, from 1 to `most`, a model is asked to draft for each request of a step
  // that is `plain` without drafts.
  [[nodiscard]] int32_t draft_depth(const CostModel& cost,
                                    const StepShape& plain,
                                    int32_t most) const;

  // Records that drafting `depth` tokens for `num_requests` took `ms`.
  void observe_passes(int32_t num_requests, int32_t depth, double ms) {
    depth_.observe_passes(num_requests, depth, ms);
  }

  // Sets granted[i] to how many leading tokens of offers[i] the step takes. `cost` predicts steps
  // that are not in the table.
  DraftDecision choose(const CostModel& cost,
                       const DraftLimits& limits,
                       std::span<const DraftOffer> offers,
                       std::span<int32_t> granted);

  // Records the judgement of a request's draft: one bin per drafted row in the step, of which the
  // first `num_accepted` were accepted.
  void observe_draft(DraftSource source,
                     std::span<const uint8_t> bins,
                     int32_t num_accepted,
                     RequestAcceptance& request);

  void observe_step(const CostModel& cost, const DraftedStep& step);

  [[nodiscard]] const DraftSurvival& survival() const { return survival_; }

  [[nodiscard]] const RowTimes& times() const { return times_; }

  // Time that drafting has lost and not paid back, in undrafted steps, so that a debt weighs the
  // same whatever runs. At 16 (16 tokens of each decode) drafting is turned off.
  [[nodiscard]] double debt() const { return debt_; }

  [[nodiscard]] bool is_guarded() const { return is_guarded_; }

 private:
  static constexpr size_t kNumBins = 64;  // classes of survival, by which rows are ranked

  // Drafted rows by survival: their count and expected tokens.
  struct Ranking {
    std::array<int32_t, kNumBins> rows{};
    std::array<double, kNumBins> tokens{};
    int32_t num_rows = 0;
    int32_t num_first = 0;          // first tokens of drafts among them
    size_t least_first = kNumBins;  // the least bin that has a first token
    int64_t position = 0;           // average position of drafted rows
  };

  struct Choice {
    int32_t num_rows = 0;
    double gain = 1;
    int32_t num_tried = 0;  // rows tried even without gain: they barely stretch the step
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
  std::vector<uint8_t> bins_;  // survival of rows: max_tokens per offer
  uint64_t num_steps_ = 0;     // retired
  uint64_t next_trial_;        // while drafting is off: the step that drafts all the same
  uint64_t trial_gap_;         // steps from one trial to the next
  int32_t num_idle_ = 0;       // consecutive choices that took no offer
  bool is_on_ = false;         // the last choice drafted
  bool is_guarded_ = false;
  double debt_ = 0;   // steps
  double drift_ = 1;  // undrafted step time relative to the table
};

}  // namespace sluice
