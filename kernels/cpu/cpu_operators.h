// SPDX-License-Identifier: Apache-2.0
// The operators of the CPU backend; dispatch.cpp names each beside its CUDA counterpart.
#pragma once

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/kv_blocks.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/partial_sums.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"

namespace sluice::kernels::cpu {

// Whether linear layers take such activations for such weights.
bool has_activations(WeightFormat weight, ActivationFormat activations);
int64_t attention_workspace_bytes(const AttentionLimits& limits);

void linear(const ExecContext& ctx, const LinearArgs& args);
void quantize_activations(const ExecContext& ctx, const QuantizeArgs& args);
void rms_norm(const ExecContext& ctx, const RmsNormArgs& args);
void head_norm(const ExecContext& ctx, const HeadNormArgs& args);
void attention(const ExecContext& ctx, const AttentionArgs& args);
void attention_ahead(const ExecContext& ctx, const AttentionAheadArgs& args);
void rope_write_kv(const ExecContext& ctx, const RopeWriteKvArgs& args);
void embedding(const ExecContext& ctx, const EmbeddingArgs& args);
void gate_mul(const ExecContext& ctx, const GateMulArgs& args);
void add_rows(const ExecContext& ctx, const AddRowsArgs& args);
void scale_rows(const ExecContext& ctx, const ScaleRowsArgs& args);
void moe_route(const ExecContext& ctx, const MoeRouteArgs& args);
void place_rows(const ExecContext& ctx, const PlaceRowsArgs& args);
void linear_experts(const ExecContext& ctx, const LinearExpertsArgs& args);
void moe_combine(const ExecContext& ctx, const MoeCombineArgs& args);
void gather_rows(const ExecContext& ctx, const GatherRowsArgs& args);
void select_columns(const ExecContext& ctx, const SelectColumnsArgs& args);
void join_parts(const ExecContext& ctx, const JoinPartsArgs& args);
void join_expert_parts(const ExecContext& ctx, const JoinExpertPartsArgs& args);
void row_magnitudes(const ExecContext& ctx, const RowMagnitudesArgs& args);
void sample(const ExecContext& ctx, const SampleArgs& args);
void take_tokens(const ExecContext& ctx, const TakeTokensArgs& args);
void place_following(const ExecContext& ctx, const PlaceFollowingArgs& args);
void gather_kv_blocks(const ExecContext& ctx, const KvBlocksArgs& args);
void scatter_kv_blocks(const ExecContext& ctx, const KvBlocksArgs& args);

}  // namespace sluice::kernels::cpu
