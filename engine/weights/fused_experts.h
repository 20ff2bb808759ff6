// SPDX-License-Identifier: Apache-2.0
// Splits fused expert tensors, whose floats are transposed, into GGUF's separate stacked matrices,
// in memory of their own: gpt-oss's (gate and up rows alternate, biases, MXFP4 codes and scales
// apart), those of Llama 4 and Qwen3-VL (gate rows before up rows; transformers also saves them as
// they multiply, which their shapes show) and Nomic's (down matrices alone are transposed).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/file_tensor.h"

namespace sluice {

// Whether a tensor, by its name in the layer, is one of the family's fused experts.
bool is_fused_expert_tensor(std::string_view name_in_layer, const FileSpec& spec);

struct FusedExperts {
  std::vector<CheckpointTensor> tensors;
  std::vector<std::vector<std::byte>> memory;  // storage of the tensors' data
};

// `parts`: the fused tensors of one layer, with names relative to the layer, of a family whose
// experts are transposed. `prefix`: "blk.0.". `num_experts`: as config.json says, which
// kTransposedDown alone needs.
// kDataLoss: a missing part or a shape that does not fit the others.
Expected<FusedExperts> split_fused_experts(const std::vector<FileTensor>& parts,
                                           const FileSpec& spec,
                                           const std::string& prefix,
                                           uint64_t num_experts,
                                           const std::string& file_name);

}  // namespace sluice
