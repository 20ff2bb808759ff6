// SPDX-License-Identifier: Apache-2.0
// Which tensor of a checkpoint becomes what.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize.h"
#include "engine/quantize/target.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

struct PlannedTensor {
  const CheckpointTensor* tensor = nullptr;
  std::string stored_name;  // as the checkpoint has it
  Target target;
};

struct QuantizePlan {
  std::vector<PlannedTensor> tensors;  // in the checkpoint's order
  Spelling spelling = Spelling::kNone;
  TargetScheme scheme;  // of most tensors, by which a GGUF file is labelled
};

// Expressions are searched for in the names that the checkpoint has. Left by default: what is no
// matrix, routers, and but for GGUF the embedding and the head. kInvalidArgument: an expression
// that is none or matches nothing, schemes that no single checkpoint has. kUnsupported: the
// checkpoint cannot be written in that spelling.
Expected<QuantizePlan> make_quantize_plan(const Checkpoint& checkpoint,
                                          const QuantizeOptions& options);

// The target of a tensor that a scheme says is kept: what a quantized input says of its codes is
// not written, so that a matrix of codes becomes bf16, which holds most of them. Others stay as
// given.
Target without_lost_codes(const CheckpointTensor& tensor, Target target);

// Matrices that a reader joins into one, which then share a scale of the whole matrix: q, k and v,
// gate and up. Other matrices have their own name.
std::string joined_name(const std::string& gguf_name);
// Matrices that run as one product, which then have one scheme: those that are joined, and in a
// layer these of all experts.
std::string budget_name(const std::string& gguf_name);

}  // namespace sluice
