// SPDX-License-Identifier: Apache-2.0
// An encoder: embeddings of tokens, positions (or rotations or falling scores instead) and
// segments, layers whose attention sees the whole text, each half after its norm
// (NormPlacement::kBefore: ModernBERT) or before it (kSum: BERT), and, where the model scores
// texts, a layer for the labels.
#pragma once

#include <memory>

#include "engine/models/model_spec.h"

namespace sluice {

// Sets `num_segments` and `num_labels` by the tensors that there are; `hidden` must be set.
// kDataLoss: one has another shape, or there are no embeddings of segments where a family has them.
Expected<void> read_encoder_tables(const Checkpoint& checkpoint,
                                   bool has_segments,
                                   ModelConfig& config);

// Sets positions that begin after that of padding, 1 in all published models (RoBERTa's).
Expected<void> begin_behind_padding(const Checkpoint& checkpoint, ModelConfig& config);

// Sets what all encoders with a norm after each half share, and the tables.
Expected<void> configure_post_norm_encoder(const Checkpoint& checkpoint,
                                           bool has_segments,
                                           ModelConfig& config);

Expected<std::unique_ptr<Model>> build_encoder(ModelConfig config,
                                               const ModelOptions& options,
                                               WeightStore& weights);

}  // namespace sluice
