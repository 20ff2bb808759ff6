// SPDX-License-Identifier: Apache-2.0
// logit_bias and the three penalties: changes of single logits before a token is chosen, which can
// be taken back. A change is a function of the request's parameters and tokens alone.
//
// Per token, in fp32 and in this order: x += bias; if the token is in prompt or output,
// x = x > 0 ? x / repetition : x * repetition; if it was generated c > 0 times,
// x -= frequency * c, then x -= presence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/types.h"

namespace sluice {

class LogitEdits {
 public:
  explicit LogitEdits(int32_t vocab_size);

  static int64_t buffer_bytes(int32_t vocab_size);

  [[nodiscard]] static bool wanted(const SamplingParams& params);
  // Changes that depend on the tokens so far.
  [[nodiscard]] static bool has_penalties(const SamplingParams& params);

  // Changes of a row with so many tokens at most, and how many undoable ones there is room for: any
  // one row's at least.
  [[nodiscard]] static size_t most_changes(const SamplingParams& params,
                                           size_t num_tokens,
                                           int32_t vocab_size);

  [[nodiscard]] size_t capacity() const { return changes_.capacity(); }

  // Changes `logits` ([vocab]). `tokens`: prompt, then output. `undoable`: undo() can take it back.
  void apply(const SamplingParams& params,
             std::span<const TokenId> tokens,
             int32_t num_prompt_tokens,
             bool undoable,
             float* logits);

  // Takes back every undoable change since the last undo().
  void undo();

 private:
  struct Change {
    float* logit;
    float before;
  };

  void note(bool undoable, float* logit);
  void penalize(const SamplingParams& params,
                std::span<const TokenId> tokens,
                int32_t num_prompt_tokens,
                bool undoable,
                float* logits);

  size_t vocab_size_;
  std::vector<Change> changes_;  // capacity: a row's worst case, twice
  std::vector<int32_t> marks_;   // [vocab]: 1 if present, plus 2 for each time generated; else 0
  std::vector<TokenId> marked_;  // tokens with marks
};

}  // namespace sluice
