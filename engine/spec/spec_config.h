// SPDX-License-Identifier: Apache-2.0
// What `--speculative-config` says: a JSON object with vLLM's keys.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/draft.h"
#include "engine/core/status.h"

namespace sluice {

// An upper bound on drafted tokens while so many requests run.
struct DraftTokensAtLoad {
  int32_t min_requests = 1;
  int32_t max_requests = 1;  // this one included
  int32_t num_tokens = 0;
};

struct SpecConfig {
  // Proposers, in the order given; none: only predictions that clients send are drafted.
  bool ngram = false;
  bool suffix = false;
  bool replay = false;  // for measurements: drafts each request's `prediction`, with errors

  // A second model guesses.
  enum class ModelKind : uint8_t {
    kDraftModel,  // a language model with the target's vocabulary
    kEagle,       // a layer that reads what the target's output layer reads
    kEagle3,      // a layer that reads the target's hidden states
    kMtp,         // a module behind the target's layers, in the target's folder
  };
  std::optional<ModelKind> model_kind;
  std::string model;                 // its file or folder; empty with kMtp: the target's
  int64_t draft_max_model_len = 0;   // tokens; 0: as far as both models' contexts go
  std::string draft_kv_cache_dtype;  // as --kv-cache-dtype; empty: the target's

  int32_t num_speculative_tokens = 16;  // a request has in one step, at most
  bool is_fixed = false;                // "adaptive": false: always so many, whatever it costs

  // N-gram: the last so many tokens are looked for, the longest first.
  int32_t prompt_lookup_max = 5;
  int32_t prompt_lookup_min = 5;

  // Suffix.
  int32_t suffix_max_tree_depth = 24;          // tokens of a match and its draft together
  int32_t suffix_max_cached_requests = 10000;  // answers that others draft from; 0: none
  double suffix_max_spec_factor = 1.0;         // drafted tokens for each token matched
  double suffix_min_token_prob = 0.1;          // a draft's last token has at least

  // Replay.
  double replay_error_rate = 0;  // share of tokens that are made wrong
  uint64_t replay_seed = 0;

  std::vector<DraftTokensAtLoad> num_tokens_at_load;  // ascending; a gap keeps what is before it

  std::vector<std::string> without_meaning;  // keys that were given and change nothing here

  // It was configured: something is drafted for requests that send no prediction.
  [[nodiscard]] bool has_method() const { return ngram || suffix || replay || has_model(); }

  [[nodiscard]] bool has_model() const { return model_kind.has_value(); }

  // The bound for so many running requests.
  [[nodiscard]] int32_t max_tokens(int32_t num_running) const;
};

// Empty: nothing but the defaults. "method" is one of ngram, suffix, draft_model, eagle, eagle3,
// mtp and replay, or several of them with commas between: at most one of those with a model, and
// replay alone. kInvalidArgument names key and value; a method or key that is not offered, of
// vLLM's or not, is refused by its name.
Expected<SpecConfig> parse_spec_config(const std::string& json);

}  // namespace sluice
