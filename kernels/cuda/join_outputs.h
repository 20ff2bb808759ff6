// SPDX-License-Identifier: Apache-2.0
// What a join of parts writes, wherever the parts come from.
#pragma once

#include "kernels/cuda/gemm_block.h"
#include "kernels/partial_sums.h"

namespace sluice::kernels::cuda {

// Outputs of a layer without experts, by HeadSums or else by the sums of `format`: the activations'
// where the weight has a scale per row, and kBF16 where sums are values.
struct JoinedOutputs {
  Outputs outputs;
  ActivationFormat format;
  bool has_heads;
};

JoinedOutputs joined_outputs(const JoinPartsArgs& args);

}  // namespace sluice::kernels::cuda
