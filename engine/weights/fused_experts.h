// SPDX-License-Identifier: Apache-2.0
// Splits fused expert tensors, whose floats are transposed, into GGUF's separate stacked matrices,
// in memory of their own: gpt-oss's (gate and up rows alternate, biases, MXFP4 codes and scales
// apart) and Llama 4's (gate rows before up rows).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/safetensors.h"

namespace sluice {

// Return where a layer of the family has its fused experts, "mlp.experts.", and whether a tensor,
// by its name in the layer, is one of them.
std::string_view fused_expert_place(ExpertTensors kind);
bool is_fused_expert_tensor(std::string_view name_in_layer, ExpertTensors kind);

struct FusedExperts {
  std::vector<CheckpointTensor> tensors;
  std::vector<std::vector<std::byte>> memory;  // storage of the tensors' data
};

// `parts`: the fused tensors of one layer, with names relative to the layer, of `kind`: kTransposed
// or kTransposedHalves. `prefix`: "blk.0.".
// kDataLoss: a missing part or a shape that does not fit the others.
Expected<FusedExperts> split_fused_experts(const std::vector<SafetensorsTensor>& parts,
                                           ExpertTensors kind,
                                           const std::string& prefix,
                                           const std::string& file_name);

}  // namespace sluice
