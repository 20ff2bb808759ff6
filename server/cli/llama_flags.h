// SPDX-License-Identifier: Apache-2.0
// Flags of llama-server that mean the same as others here: for speculation those of a key of
// --speculative-config, --model-draft (-md), --draft-max (--draft, --draft-n) and --draft-min, with
// their newer names; for rotations those of one of --hf-overrides, --rope-scaling with --rope-scale
// or --rope-freq-scale and --yarn-*, and --rope-freq-base; and --embeddings and --rerank.
#pragma once

#include <string>
#include <vector>

#include "engine/core/status.h"

namespace sluice {

// Puts such flags into --speculative-config and --hf-overrides of `arguments`, or adds those flags;
// their parsers judge the result. --embeddings becomes --runner pooling --convert embed.
// `arguments`: command word first, underscores of names already dashes. kInvalidArgument: a flag
// without a value, or with one that has no meaning here.
Expected<void> join_llama_flags(std::vector<std::string>& arguments);

}  // namespace sluice
