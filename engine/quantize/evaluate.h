// SPDX-License-Identifier: Apache-2.0
// How much a model's predictions differ from those of the model that it was made of.
#pragma once

#include <cstdint>
#include <string>

#include "engine/core/status.h"

namespace sluice {

struct Comparison {
  int64_t num_positions = 0;
  double divergence = 0;  // mean KL(reference || other), nats
  double same_top = 0;    // part of positions with the same most likely token
  double perplexity = 0;  // of the text, by the other
  double reference_perplexity = 0;
};

// Both are run at once in float activations on windows of the text. Errors as OfflineModel::open;
// kInvalidArgument: a text of fewer than 2 tokens.
Expected<Comparison> compare_models(const std::string& reference,
                                    const std::string& other,
                                    const std::string& text,
                                    int32_t threads);

}  // namespace sluice
