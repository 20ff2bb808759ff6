// SPDX-License-Identifier: Apache-2.0
// How much a model's predictions differ from those of the model that it was made of.
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
  double same_top = 0;    // part of positions with the same most likely token
  double perplexity = 0;  // of the text, by the other
  double reference_perplexity = 0;
};

inline constexpr int64_t kMaxComparedTokens = 8192;  // of a text, whatever its length

// Both are run at once on windows of a text, as text_windows() makes them of the reference's
// tokens: one or more. Activations are floats, but int8 where matrices are INT8. Errors as
// OfflineModel::open.
Expected<Comparison> compare_models(const std::string& reference,
                                    const std::string& other,
                                    std::span<const std::vector<TokenId>> windows,
                                    int32_t threads);

}  // namespace sluice
