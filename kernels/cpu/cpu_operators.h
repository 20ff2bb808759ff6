// SPDX-License-Identifier: Apache-2.0
// The operators of the CPU backend.
#pragma once

#include "kernels/operators.h"

namespace sluice::kernels::cpu {

// Whether linear layers take such activations for such weights.
bool has_activations(WeightFormat weight, ActivationFormat activations);
int64_t attention_workspace_bytes(const AttentionLimits& limits);
int64_t latent_workspace_bytes(const AttentionLimits& limits, int32_t rope_dim);
int64_t choose_keys_workspace_bytes(const ChooseKeysLimits& limits);

void attention_ahead(const ExecContext& ctx, const AttentionAheadArgs& args);

#define SLUICE_OPERATOR(op, Args) void op(const ExecContext& ctx, const Args& args);
SLUICE_OPERATORS(SLUICE_OPERATOR)
#undef SLUICE_OPERATOR

}  // namespace sluice::kernels::cpu
