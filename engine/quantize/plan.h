// SPDX-License-Identifier: Apache-2.0
// Which tensor of a checkpoint becomes what.
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
  CheckpointKind kind = CheckpointKind::kGguf;  // of the output
  std::vector<PlannedTensor> tensors;           // in the checkpoint's order
  Spelling spelling = Spelling::kNone;
  TargetScheme scheme;  // of most tensors, by which a GGUF file is labelled
  // Where the output is of another kind than the input: what the model's configuration is there.
  std::optional<Translation> translation = {};
};

// Schemes of codes are written into a directory, those of GGUF into a file; MXFP4 and floats into
// what the output's name says: a file where it ends in ".gguf". Expressions are searched for in the
// names that the checkpoint has. Left by default: what is no matrix, routers, and but for GGUF the
// embedding and the head. kInvalidArgument: an expression that is none or matches nothing, schemes
// that no single checkpoint has. kUnsupported: the checkpoint cannot be written in that spelling or
// as one of the other kind.
Expected<QuantizePlan> make_quantize_plan(const Checkpoint& checkpoint,
                                          const QuantizeOptions& options);

// The target of a tensor that a scheme says is kept, where its bytes cannot be: codes whose
// description is not written become bf16, which holds most of them, and so do blocks in a
// directory; what GGUF's readers expect as floats of 32 bits becomes that. Others stay as given.
Target without_lost_codes(const SourceTensor& tensor, CheckpointKind kind, Target target);

// Matrices that a reader joins into one, which then share a scale of the whole matrix: q, k and v,
// gate and up. Other matrices have their own name.
std::string joined_name(const std::string& gguf_name);
// Matrices that run as one product, which then have one scheme: those that are joined, and in a
// layer these of all experts.
std::string budget_name(const std::string& gguf_name);

}  // namespace sluice
