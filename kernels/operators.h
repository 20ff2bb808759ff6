// SPDX-License-Identifier: Apache-2.0
// The list of operators that every backend has; each one's own header says what it computes.
// SLUICE_OPERATORS(X) expands X(name, type of arguments) for each.
#pragma once

#include "kernels/attention.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/kv_blocks.h"
#include "kernels/latent_attention.h"
#include "kernels/latent_index.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/partial_sums.h"
#include "kernels/recurrent.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"

#define SLUICE_OPERATORS(X)                 \
  X(linear, LinearArgs)                     \
  X(quantize_activations, QuantizeArgs)     \
  X(rms_norm, RmsNormArgs)                  \
  X(head_norm, HeadNormArgs)                \
  X(head_squares, HeadSquaresArgs)          \
  X(joined_norm, JoinedNormArgs)            \
  X(attention, AttentionArgs)               \
  X(rope_write_kv, RopeWriteKvArgs)         \
  X(embedding, EmbeddingArgs)               \
  X(gate_mul, GateMulArgs)                  \
  X(add_rows, AddRowsArgs)                  \
  X(scale_rows, ScaleRowsArgs)              \
  X(gather_rows, GatherRowsArgs)            \
  X(select_columns, SelectColumnsArgs)      \
  X(moe_route, MoeRouteArgs)                \
  X(place_rows, PlaceRowsArgs)              \
  X(linear_experts, LinearExpertsArgs)      \
  X(moe_combine, MoeCombineArgs)            \
  X(join_parts, JoinPartsArgs)              \
  X(join_expert_parts, JoinExpertPartsArgs) \
  X(row_magnitudes, RowMagnitudesArgs)      \
  X(sample, SampleArgs)                     \
  X(take_tokens, TakeTokensArgs)            \
  X(place_following, PlaceFollowingArgs)    \
  X(gather_kv_blocks, KvBlocksArgs)         \
  X(scatter_kv_blocks, KvBlocksArgs)        \
  X(replay_rows, ReplayRowsArgs)            \
  X(short_conv, ShortConvArgs)              \
  X(delta_rule, DeltaRuleArgs)              \
  X(mamba2, Mamba2Args)                     \
  X(gated_squares, GatedSquaresArgs)        \
  X(group_norm, GroupNormArgs)              \
  X(latent_rows, LatentRowsArgs)            \
  X(index_rows, IndexRowsArgs)              \
  X(choose_keys, ChooseKeysArgs)            \
  X(latent_attention, LatentAttentionArgs)  \
  X(join_heads, JoinHeadsArgs)
