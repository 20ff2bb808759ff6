// SPDX-License-Identifier: Apache-2.0
// An encoder with a norm behind each half, as BERT: embeddings of tokens, positions (or rotations
// by position instead) and segments, layers whose attention sees the whole text, and, where the
// model scores texts, a layer for the labels.
#pragma once

#include <memory>

#include "engine/models/model.h"

namespace sluice {

// Sets `num_segments` and `num_labels` by the tensors that there are; `hidden` must be set.
// kDataLoss: one has another shape.
Expected<void> read_encoder_tables(const Checkpoint& checkpoint, ModelConfig& config);

Expected<std::unique_ptr<Model>> build_encoder(ModelConfig config,
                                               const ModelOptions& options,
                                               WeightStore& weights);

}  // namespace sluice
