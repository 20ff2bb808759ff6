// SPDX-License-Identifier: Apache-2.0
// Reads and plans a draft model beside its target, before anything large is allocated. Called on
// the thread that starts the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/draft.h"
#include "engine/core/status.h"
#include "engine/draft/draft_choice.h"
#include "engine/draft/draft_memory.h"
#include "engine/draft/head_rows.h"
#include "engine/models/model_spec.h"
#include "engine/spec/spec_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/checkpoint.h"
#include "kernels/gemm.h"

namespace sluice {

// The most tokens of a request, counted from its end, that are computed when the draft model has no
// KV of it: after a prefix cache hit, or after a time without drafts.
inline constexpr int32_t kMaxDraftCatchUp = 512;

struct PlannedDraft {
  DraftSource source = DraftSource::kDraftModel;
  std::unique_ptr<Checkpoint> checkpoint;
  const ModelSpec* spec = nullptr;
  ModelConfig model;
  StepBounds bounds;  // bounds of its passes
  kernels::LargestMatrices largest;
  int32_t vocab_size = 0;  // the target's, which requests use
  int32_t num_tokens = 0;  // drafted for one request at once, at most
  DraftMemory memory;
};

// Opens the model that `spec` names and checks it against its target. The target must keep a head's
// `model.head.taps`. kUnsupported, with param speculative-config: the two do not fit.
Expected<PlannedDraft> open_draft(const Config& config,
                                  const SpecConfig& spec,
                                  const ModelConfig& target);

// Sizes the draft for a target of this shape, on the target's device. kUnsupported, with the same
// param: no KV group of the target keeps every token.
Expected<void> size_draft(const Config& config,
                          const SpecConfig& spec,
                          const Model& target,
                          const std::vector<LayerGroup>& target_layouts,
                          const StepBounds& target_bounds,
                          PlannedDraft& planned);

// Sizes of the draft model's parts.
DraftChoice::Bounds choice_bounds_of(const PlannedDraft& planned);
HeadRows::Bounds head_rows_bounds_of(const StepBounds& bounds);

// kInvalidArgument, with both numbers: fewer than 90% of the target's ids have the same bytes.
Expected<void> check_draft_vocabulary(const Tokenizer& target,
                                      const Tokenizer& draft,
                                      const std::string& draft_path);

}  // namespace sluice
