// SPDX-License-Identifier: Apache-2.0
// A model that drafts for another one, read and planned beside it before anything of size is
// allocated. Called on the thread that starts the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/draft.h"
#include "engine/core/status.h"
#include "engine/draft_choice.h"
#include "engine/head_rows.h"
#include "engine/memory_plan.h"
#include "engine/models/model.h"
#include "engine/spec/spec_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/checkpoint.h"
#include "kernels/gemm.h"

namespace sluice {

// Tokens of a request that are computed at most where none of its KV is the drafting model's own,
// the last ones: behind a hit of the prefix cache, or after a time without drafts.
inline constexpr int32_t kMaxDraftCatchUp = 512;

struct PlannedDraft {
  DraftSource source = DraftSource::kDraftModel;
  std::unique_ptr<Checkpoint> checkpoint;
  const ModelSpec* spec = nullptr;
  ModelConfig model;
  StepBounds bounds;  // of its passes
  kernels::LargestMatrices largest;
  int32_t vocab_size = 0;  // the target's: what requests' parameters and tokens are of
  int32_t num_tokens = 0;  // drafted for one request at once, at most
  DraftMemory memory;
};

// The model that `spec` names, read and checked beside its target. A head's `model.head.taps` are
// the target's to keep. kUnsupported, with param speculative-config: they do not fit each other.
Expected<PlannedDraft> open_draft(const Config& config,
                                  const SpecConfig& spec,
                                  const ModelConfig& target);

// Sizes it for a target of this shape, on the target's device. kUnsupported, with the same param:
// none of its KV groups keeps every token.
Expected<void> size_draft(const Config& config,
                          const SpecConfig& spec,
                          const Model& target,
                          const std::vector<LayerGroup>& target_layouts,
                          const StepBounds& target_bounds,
                          PlannedDraft& planned);

// What parts of it are made for.
DraftChoice::Bounds choice_bounds_of(const PlannedDraft& planned);
HeadRows::Bounds head_rows_bounds_of(const StepBounds& bounds);

// kInvalidArgument names both numbers: fewer than 90% of the target's ids stand for the same bytes.
Expected<void> check_draft_vocabulary(const Tokenizer& target,
                                      const Tokenizer& draft,
                                      const std::string& draft_path);

}  // namespace sluice
