// SPDX-License-Identifier: Apache-2.0
// logit_bias and the three penalties: reversible changes of single logits before the choice. A
// change depends only on the request's parameters and tokens.
//
// Per token, in fp32 and in this order: x += bias; if the token is in prompt or output,
// x = x > 0 ? x / repetition : x * repetition; if it was generated c > 0 times,
// x -= frequency * c, then x -= presence.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/core/sampling_params.h"
#include "engine/core/token_log.h"
#include "engine/core/types.h"

namespace sluice {

class LogitEdits {
 public:
  explicit LogitEdits(int32_t vocab_size);

  static int64_t buffer_bytes(int32_t vocab_size);

  [[nodiscard]] static bool wanted(const SamplingParams& params);
  // Whether changes depend on the tokens so far.
  [[nodiscard]] static bool has_penalties(const SamplingParams& params);

  // most_changes() bounds the changes of a row with at most `num_tokens` tokens; capacity() is the
  // room for undoable changes, at least one row's.
  [[nodiscard]] static size_t most_changes(const SamplingParams& params,
                                           size_t num_tokens,
                                           int32_t vocab_size);

  [[nodiscard]] size_t capacity() const { return changes_.capacity(); }

  // Changes `logits` ([vocab]). `tokens`: prompt, then output. `undoable`: undo() can revert it.
  void apply(const SamplingParams& params,
             const TokenSequence& tokens,
             int32_t num_prompt_tokens,
             bool undoable,
             float* logits);

  // Reverts every undoable change since the last undo().
  void undo();

 private:
  struct Change {
    float* logit;
    float before;
  };

  void note(bool undoable, float* logit);
  void penalize(const SamplingParams& params,
                const TokenSequence& tokens,
                int32_t num_prompt_tokens,
                bool undoable,
                float* logits);

  size_t vocab_size_;
  std::vector<Change> changes_;  // capacity: twice a row's worst case
  std::vector<int32_t> marks_;   // [vocab]: 1 if present, plus 2 per generation; else 0
  std::vector<TokenId> marked_;  // tokens with marks
};

}  // namespace sluice
