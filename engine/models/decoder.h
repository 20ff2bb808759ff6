// SPDX-License-Identifier: Apache-2.0
// The decoder-only transformer that a ModelConfig describes: embedding, layers of attention and
// feed-forward halves around a residual stream, output.
#pragma once

#include <memory>

#include "engine/models/model_spec.h"

namespace sluice {

Expected<std::unique_ptr<Model>> build_decoder(ModelConfig config,
                                               const ModelOptions& options,
                                               WeightStore& weights);

}  // namespace sluice
