// SPDX-License-Identifier: Apache-2.0
// An encoder with a norm behind each half, as BERT: embeddings of tokens, positions and the first
// segment, layers whose attention sees the whole text, and, where the model scores texts, a layer
// for the labels.
#pragma once

#include <memory>

#include "engine/models/model.h"

namespace sluice {

Expected<std::unique_ptr<Model>> build_encoder(ModelConfig config,
                                               const ModelOptions& options,
                                               WeightStore& weights);

}  // namespace sluice
