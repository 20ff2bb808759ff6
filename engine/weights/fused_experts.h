// SPDX-License-Identifier: Apache-2.0
// Splits the fused expert tensors of gpt-oss (gate and up rows interleaved, floats transposed,
// MXFP4 codes and scales apart) into GGUF's separate stacked matrices, in memory of their own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/safetensors.h"

namespace sluice {

// Whether a tensor (by its name in the layer, "mlp.experts.down_proj") is one of the fused ones.
bool is_fused_expert_tensor(std::string_view name_in_layer);

struct FusedExperts {
  std::vector<CheckpointTensor> tensors;
  std::vector<std::vector<std::byte>> memory;  // storage of the tensors' data
};

// `parts`: the fused tensors of one layer, with names relative to the layer. `prefix`: "blk.0.".
// kDataLoss: a missing part or a shape that does not fit the others.
Expected<FusedExperts> split_fused_experts(const std::vector<SafetensorsTensor>& parts,
                                           const std::string& prefix,
                                           const std::string& file_name);

}  // namespace sluice
