// SPDX-License-Identifier: Apache-2.0
// Parses `--speculative-config`: a JSON object with vLLM's keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/status.h"

namespace sluice {

// An upper bound on drafted tokens while the number of running requests is in this range.
struct DraftTokensAtLoad {
  int32_t min_requests = 1;
  int32_t max_requests = 1;  // inclusive
  int32_t num_tokens = 0;
};

struct SpecConfig {
  // Proposers, in the order given; none: only predictions of clients are drafted.
  bool ngram = false;
  bool suffix = false;
  bool replay = false;  // for measurements: drafts `prediction`, with errors

  // The kind of a second model that drafts.
  enum class ModelKind : uint8_t {
    kDraftModel,  // a language model with the target's vocabulary
    kEagle,       // a layer on the input of the target's output layer
    kEagle3,      // a layer that reads the target's hidden states
    kMtp,         // a module after the target's layers, in the target's folder
  };
  std::optional<ModelKind> model_kind;
  std::string model;                 // its file or folder; empty with kMtp: the target's
  int64_t draft_max_model_len = 0;   // tokens; 0: as far as both models' contexts reach
  std::string draft_kv_cache_dtype;  // a --kv-cache-dtype; empty: the target's

  int32_t num_speculative_tokens = 16;  // per request and step, at most
  bool is_fixed = false;                // "adaptive": false: always drafts the full number

  // N-gram: the lengths of the runs that are searched for, the longest first.
  int32_t prompt_lookup_max = 5;
  int32_t prompt_lookup_min = 5;

  // Suffix decoding.
  int32_t suffix_max_tree_depth = 24;          // tokens of a match and its draft together
  int32_t suffix_max_cached_requests = 10000;  // answers kept for others' drafts; 0: none
  double suffix_max_spec_factor = 1.0;         // drafted tokens per matched token
  double suffix_min_token_prob = 0.1;          // least probability of a draft's last token

  // Replay of predictions.
  double replay_error_rate = 0;  // share of tokens made wrong
  uint64_t replay_seed = 0;

  std::vector<DraftTokensAtLoad> num_tokens_at_load;  // ascending; a gap keeps the previous bound

  std::vector<std::string> without_meaning;  // given keys that have no effect here

  // True when requests without a prediction are drafted for too.
  [[nodiscard]] bool has_method() const { return ngram || suffix || replay || has_model(); }

  [[nodiscard]] bool has_model() const { return model_kind.has_value(); }

  // The bound for `num_running` running requests.
  [[nodiscard]] int32_t max_tokens(int32_t num_running) const;
};

// Empty text gives the defaults. "method" is one of ngram, suffix, draft_model, eagle, eagle3, mtp
// and replay, or several separated by commas: at most one with a model, and replay only alone.
// kInvalidArgument names key and value; an unsupported method or key, vLLM's or not, is refused by
// name.
Expected<SpecConfig> parse_spec_config(const std::string& json);

}  // namespace sluice
