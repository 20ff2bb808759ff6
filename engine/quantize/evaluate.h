// SPDX-License-Identifier: Apache-2.0
// Compares a model's predictions with those of the model it was made from.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"

namespace sluice {

struct Comparison {
  int64_t num_positions = 0;
  double divergence = 0;  // mean KL(reference || other), nats
  double same_top = 0;    // share of positions with the same most likely token
  double perplexity = 0;  // the text's, under the other model
  double reference_perplexity = 0;
};

inline constexpr int64_t kMaxComparedTokens = 8192;  // per text

// Runs both models on windows of a text, at least one, which text_windows() made with the
// reference's tokenizer. Activations are floats, but int8 for INT8 matrices. Errors as in
// OfflineModel::open.
Expected<Comparison> compare_models(const std::string& reference,
                                    const std::string& other,
                                    std::span<const std::vector<TokenId>> windows,
                                    int32_t threads);

}  // namespace sluice
