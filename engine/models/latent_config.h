// SPDX-License-Identifier: Apache-2.0
// What families of latent attention share.
#pragma once

#include "engine/models/model.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

// Reads the width of a head's query and key, rotated part included.
Expected<int32_t> read_latent_head_dim(const Metadata& metadata);

// Makes all layers latent: their sizes, the norms' epsilon, rotation and scale of scores, which
// YaRN changes: (n + r)^-1/2 * m^2, m = 0.1 * mscale_all_dim * ln(factor) + 1.
Expected<void> read_latents(const Checkpoint& checkpoint, ModelConfig& config);

}  // namespace sluice
