// SPDX-License-Identifier: Apache-2.0
// Plans the target format of each tensor of a checkpoint.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/quantize.h"
#include "engine/quantize/source_rows.h"
#include "engine/quantize/target.h"
#include "engine/quantize/translation.h"
#include "engine/weights/checkpoint.h"

namespace sluice {

struct PlannedTensor {
  SourceTensor source;
  Target target;
};

struct QuantizePlan {
  CheckpointKind kind = CheckpointKind::kGguf;  // the output's kind
  std::vector<PlannedTensor> tensors;           // in the checkpoint's order
  Spelling spelling = Spelling::kNone;
  TargetScheme scheme;  // most tensors' scheme; labels a GGUF file
  // Set when the output is of another kind: the model's configuration in that kind.
  std::optional<Translation> translation = {};
};

// Schemes of codes require a directory, GGUF schemes a file; for MXFP4 and floats the output's name
// decides: a file if it ends in ".gguf". Expressions are searched for in the checkpoint's names.
// Kept by default: tensors that are not matrices, routers, and except for GGUF the embedding and
// the head. kInvalidArgument: an expression that is malformed or matches nothing, schemes that no
// single checkpoint can have. kUnsupported: the checkpoint cannot be written in that spelling or as
// the other kind.
Expected<QuantizePlan> make_quantize_plan(const Checkpoint& checkpoint,
                                          const QuantizeOptions& options);

// Returns the target of a tensor that a scheme keeps but whose bytes cannot stay: codes whose
// description is not written, and blocks in a directory, become bf16; tensors that GGUF's readers
// expect as 32-bit floats become that. Other targets are returned unchanged.
Target without_lost_codes(const SourceTensor& tensor, CheckpointKind kind, Target target);

// Returns a common name of matrices that readers join into one, sharing a matrix scale: q, k and v,
// gate and up. Other matrices keep their own names.
std::string joined_name(const std::string& gguf_name);
// Returns a common name of matrices that run as one product and need one scheme: joined ones, and
// in a layer those of all experts.
std::string budget_name(const std::string& gguf_name);

}  // namespace sluice
