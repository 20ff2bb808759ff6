// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's kernels as functions that put work on a stream. Pointers in the arguments are
// device memory; PackedWeight and Activations are host structs over device memory. A PackedWeight's
// matrix is in rows, or in tiles where its format has blocks (quant/repack.h). Definitions are
// those of kernels/*.h; bits equal the CPU's unless a comment says otherwise, but for NaN payloads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/device_memory.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/kv_blocks.h"
#include "kernels/latent_attention.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/partial_sums.h"
#include "kernels/recurrent.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"

struct CUstream_st;

namespace sluice::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t, for callers that include no CUDA headers

void launch_rms_norm(Stream stream, const RmsNormArgs& args);
void launch_head_norm(Stream stream, const HeadNormArgs& args);
void launch_head_squares(Stream stream, const HeadSquaresArgs& args);
void launch_joined_norm(Stream stream, const JoinedNormArgs& args);
// The array of `args.magnitudes` is in host memory.
void launch_quantize_activations(Stream stream, const QuantizeArgs& args);
void launch_gate_mul(Stream stream, const GateMulArgs& args);
void launch_add_rows(Stream stream, const AddRowsArgs& args);
void launch_scale_rows(Stream stream, const ScaleRowsArgs& args);
void launch_gather_rows(Stream stream, const GatherRowsArgs& args);
void launch_select_columns(Stream stream, const SelectColumnsArgs& args);

// Supports tables of every format.
void launch_embedding(Stream stream, const EmbeddingArgs& args);

// The rows of a RopeTable in device memory, [positions][num_pairs] each.
struct RopeRows {
  const float* cos = nullptr;  // null: no rotation
  const float* sin = nullptr;
  int32_t num_pairs = 0;
  RopeStyle style = RopeStyle::kInterleaved;
  const float* query_scales = nullptr;  // [positions]; null: none
};

// `rows` replaces args.table, which is not read.
void launch_rope_write_kv(Stream stream, const RopeWriteKvArgs& args, const RopeRows& rows);

// Attention over a cache of floats has the CPU's bits. Over caches of 16 and 8 bits tensor cores
// multiply. A row is then kernels/attention.h with these differences; T is half precision for kF16
// and bfloat16 for the others, in which all codes are exact:
// - q is rounded to T. A score starts as the tensor core's chain over d in order, from 0, in steps
//   of 16, or of 8 on sm_8x (what a step is: tests/support/simt/tensorcore.h).
// - A tile's sum: lane q of 4 adds, of each group g of 16 keys, keys 2 q, 2 q + 1, 2 q + 8 and
//   2 q + 9 in order; groups fold as (g0 + g1) + (g2 + g3), then lanes as (q0 + q1) + (q2 + q3).
// - A weight is rounded to T, in caches of codes after V's scale. o[d], multiplied by c, continues
//   as the chain over the tile's keys in steps; keys that do not take part weigh 0 there, and the
//   tensor core leaves out products of 0. A zero that a partition ends with is +0.
// So a tile without a visible key changes nothing: m stays, c = exp(0) = 1, the sum is 0 and no
// product takes part. A row's bits do not depend on which rows share a tile, a block or a launch,
// on where partitions run, or, on Hopper, on mma.sync or wgmma. One exception: where V holds
// an infinity or a NaN, which caches of codes cannot, rows that share the tile with a row that sees
// it get a NaN.
// All this follows from the model of the tensor cores; an H200 has shown it (bench/gpu_probes, P4).
inline constexpr int32_t kMaxAttentionHeadDim = 512;

// Returns the largest head of the current device: 256 where a block has less than 160 KB of shared
// memory.
int32_t max_attention_head_dim();

// Bytes of the workspace with which partitions of the keys run side by side, for few rows over long
// contexts; 0 where it does not help. At most 512 MiB, for which a step within the limits may be
// too long: then some of its requests, or all, are not split. The bits are the same in all cases.
// `limits.num_threads` is not read.
int64_t attention_workspace_bytes(const AttentionLimits& limits, int32_t window);

// Bytes of the workspace with which partitions of requests of few rows run side by side in every
// step within `limits`, whatever their windows: beside prompts, too, and with several tokens a
// request. 0 where no such step has blocks of 16 rows that share a list of work; else steps that
// the list does not take make do with as many bytes.
int64_t mixed_attention_workspace_bytes(const AttentionLimits& limits);

// `limits` are what the host knows of the call, whose lengths are in device memory: its heads, and
// upper bounds for the rest, so that a captured launch serves every step that fits. Requests whose
// partials args.workspace has no room for are not split. args.then must be null; requests may be
// empty.
void launch_attention(Stream stream, const AttentionArgs& args, const AttentionLimits& limits);

// Latent attention (kernels/latent_attention.h): over caches of floats with the CPU's bits, over
// those of 16 bits by the definition above, keys being [latent | rotated | zeros to a multiple of
// 16] and values latents. The i-th key that a token has chosen stands where position i does. A
// latent has at most 512 elements, a rotated part 64.
inline constexpr int32_t kMaxLatentDim = 512;
inline constexpr int32_t kMaxLatentRope = 64;

// Bytes of the workspace with which partitions run side by side in steps of few rows.
int64_t latent_partials_bytes(const AttentionLimits& limits);
// args.num_tokens and args.max_seq_len are upper bounds.
void launch_latent_attention(Stream stream, const LatentAttentionArgs& args);

// `rows` replaces args.table, which is not read. A token without a slot is left out.
void launch_latent_rows(Stream stream, const LatentRowsArgs& args, const RopeRows& rows);
void launch_join_heads(Stream stream, const JoinHeadsArgs& args);

// The indexer of kernels/latent_index.h with the CPU's bits and choice.
inline constexpr int32_t kMaxIndexHeads = 64;
inline constexpr int32_t kMaxIndexDim = 128;

void launch_index_rows(Stream stream, const IndexRowsArgs& args, const RopeRows& rows);
// args.num_tokens and args.max_seq_len are upper bounds. The workspace has room for the scores of
// one token or more, whose number no bit depends on.
void launch_choose_keys(Stream stream, const ChooseKeysArgs& args);
int64_t index_scores_bytes(const ChooseKeysLimits& limits);

// Samples in three launches: two of rows in pieces, a block each, then one of one block a row.
// Rows, the memory they point to (top_logprobs too) and the workspace
// (cuda::sampling_workspace_bytes of cuda_operators.h for at least as many rows) are in device
// memory, and so are the results. At most kMaxVocabSize tokens.
void launch_sample(Stream stream, const SampleArgs& args);
void launch_take_tokens(Stream stream, const TakeTokensArgs& args);
void launch_place_following(Stream stream, const PlaceFollowingArgs& args);

// Whether launch_linear_float has these weights: floats, and with experts tiles whose rows have no
// scale.
bool takes_float_rows(WeightFormat format);

// Copies by threads between device memory and device or pinned memory, both aligned to 16 bytes.
void launch_copy(Stream stream, std::byte* to, const std::byte* from, int64_t bytes);
// Copies parts of a block of memory to the same offsets of another, in one launch.
inline constexpr size_t kMostCopyParts = 16;
void launch_copy_parts(Stream stream,
                       std::byte* to,
                       const std::byte* from,
                       std::span<const DeviceMemory::Part> parts);

// Copies blocks of the cache, up to 512 in a launch.
void launch_gather_kv_blocks(Stream stream, const KvBlocksArgs& args);
void launch_scatter_kv_blocks(Stream stream, const KvBlocksArgs& args);

void launch_moe_route(Stream stream, const MoeRouteArgs& args);
// Runs in one block. All of args is in device memory, so the host does not see the choice.
void launch_place_rows(Stream stream, const PlaceRowsArgs& args);
void launch_moe_combine(Stream stream, const MoeCombineArgs& args);

// The experts' rows, and the bytes, a multiple of 16, from one expert's data (matrix, scales, bias)
// to the next one's. A launch with experts is linear_experts of kernels/moe.h for one matrix of
// each: matrix and bias of its arguments are the first expert's, a row has the bits that it has
// alone, and rows of no expert are left unchanged. num_rows is an upper bound of the rows of all
// experts, like max_expert_rows(), so that a captured launch serves every step that fits.
struct ExpertMatrices {
  ExpertRows rows;
  int64_t stride;
};

// Returns where column 0 of the first row or tile is, or would be if the matrix had all of K:
// launches read only the columns of their segments, which the matrix has.
const std::byte* first_of_k(const PackedWeight& weight);

// One matrix, as in the operators of kernels/gemm.h.
struct LinearMatrixArgs {
  Activations x;
  const PackedWeight* weight;
  const float* bias = nullptr;  // [n]
  Epilogue epilogue = Epilogue::kStore;
  float* out;  // [x.num_rows, n]
  int64_t out_stride;
  Segments segments = {};
};

// Float weights times kFloat, with the CPU's bits. `experts`: null, or ExpertMatrices.
void launch_linear_float(Stream stream,
                         const LinearMatrixArgs& args,
                         const ExpertMatrices* experts = nullptr);

// Weights in blocks (packed tiles) times kInt8, with the CPU's bits. `experts`: likewise.
void launch_linear_blocks(Stream stream,
                          const LinearMatrixArgs& args,
                          const ExpertMatrices* experts = nullptr);

// Weights in blocks times kBF16 on tensor cores; a row's bits do not depend on the number of rows.
// K, its segments, their fold, shares and scales of rows are those of kernels/gemm.h. c of a code
// is the integer that kernels/gemm.h multiplies (zero point taken off, codebook looked up), exact
// in BF16; d_w and m_w are the scale and the minimum there. A chain over numbers is the tensor
// core's over their products with x in order of k, in steps of 16 (what a step is:
// tests/support/simt/tensorcore.h). In a segment, for its groups of 32 in order, or for their
// halves of 16 where these have scales of their own:
//   acc = fma(p, d_w, acc), p the chain over c of the group from 0;
//   where the format has a minimum: acc = fma(m_w, t, acc), t the chain over ones from 0.
// Weights w = c * d_w of MXFP4 (infinite from 2^128 on) and of NVFP4 are exact in BF16. Their
// segment is one chain over w from 0, for NVFP4 256 times that over w / 256. So MXFP4 has the bits
// of launch_linear_half for the matrix of its w. On sm_8x, whose steps are of 8, a step of 16 is
// one of the even k, then one of the odd ones. `experts`: null, or ExpertMatrices.
void launch_linear_blocks_half(Stream stream,
                               const LinearMatrixArgs& args,
                               const ExpertMatrices* experts = nullptr);

// The most layers in a launch.
inline constexpr size_t kMostTogether = 4;

// Bytes of the workspace that makes a launch of layers with `n` outputs in all faster: few rows run
// segments of K side by side, and many rows of INT8, of `int8_k` columns, are copied faster; 0
// where it does not help. It changes no bits. Its first kArrivalBytes must be 0 before the first
// launch that gets it, and launches leave them so. One launch at a time has it.
inline constexpr int64_t kArrivalBytes = 16384;
int64_t linear_workspace_bytes(int32_t num_rows, int32_t n, int32_t int8_k = 0);

// y = x W^T on tensor cores; a row's bits do not depend on the number of rows. Segments, their fold
// and shares of them are those of kernels/gemm.h. A segment is the tensor core's chain over its
// groups in order, from 0, in steps of 16, or of 8 on sm_8x (what a step is:
// tests/support/simt/tensorcore.h); past k are zeros. So devices of one step give the same bits,
// which are not the CPU's: its chain is one fma per k. That a step gives the same bits in tiles of
// 8 and of 64 tokens follows from its model, and an H200 has shown it (bench/gpu_probes, P1). Both
// matrices are BF16, or both F16.
struct LinearHalfArgs {
  ActivationFormat format = ActivationFormat::kBF16;
  const uint16_t* x;       // [num_rows, columns]; both matrices 16-byte aligned, rows too
  int64_t x_stride;        // elements, a multiple of 8
  const uint16_t* weight;  // [n, k]
  int64_t weight_stride;   // elements, a multiple of 8
  int32_t num_rows;
  int32_t n;
  int32_t k;
  const float* bias = nullptr;  // [n]
  Epilogue epilogue = Epilogue::kStore;
  float* out;  // [num_rows, n]
  int64_t out_stride;
  void* workspace = nullptr;  // linear_workspace_bytes, or null
  Segments segments = {};
};

// Layers that share x and may differ in weight, n, bias, out and their strides. From Hopper on they
// are one launch, which reads x once. They share the workspace.
void launch_linear_half(Stream stream, std::span<const LinearHalfArgs> layers);

inline void launch_linear_half(Stream stream, const LinearHalfArgs& args) {
  launch_linear_half(stream, {&args, 1});
}

// Two layers without a workspace and gate_mul() of their outputs, with its bits, as one launch. It
// writes the gate's outputs and not up's. Returns false, and launches nothing, where there is no
// such kernel or it would take longer (gemm_gated.cu).
bool launch_linear_gated(Stream stream,
                         std::span<const LinearHalfArgs> gate_and_up,
                         const GateMulArgs& gate);

// The INT8 layers of kernels/gemm.h (kInt8Channel times kInt8Token), with the CPU's bits.
struct LinearInt8Args {
  Activations x;              // kInt8Token
  const int8_t* weight;       // [n, k], 16-byte aligned, rows too: not the CPU's tiles
  int64_t weight_stride;      // bytes, a multiple of 16
  const float* weight_scale;  // [n]
  int32_t n;
  int32_t k;
  const float* bias = nullptr;  // [n]
  Epilogue epilogue = Epilogue::kStore;
  float* out;  // [x.num_rows, n]
  int64_t out_stride;
  void* workspace = nullptr;  // linear_workspace_bytes with x.k, or null
  Segments segments = {};
};

// INT8 layers that may differ like those of launch_linear_half, and in their scales.
void launch_linear_int8(Stream stream, std::span<const LinearInt8Args> layers);

inline void launch_linear_int8(Stream stream, const LinearInt8Args& args) {
  launch_linear_int8(stream, {&args, 1});
}

// FP8 layers, kE4M3Channel times kE4M3Token and kE4M3Block times kE4M3Group, on Hopper alone: by
// wgmma, because mma.sync of FP8 computes a different function there. Segments, their fold and
// shares of them are those of kernels/gemm.h; the value of a segment is not the CPU's:
// - Its groups of 32 are cut into runs of at most four: with kE4M3Token from its first group on,
//   with kE4M3Group at the multiples of 128 along absolute k, so that a run has one pair of scales.
// - p, a run's sum, is the tensor core's chain from 0 over its groups in order, a step each (what a
//   step is: wgmma_float8_step of tests/support/simt/tensorcore.h); past k are zeros.
// - Runs are promoted in order, from acc = 0 on: for kE4M3Token acc = acc + p, for kE4M3Group
//   acc = fma(p, s_w * s_a, acc), with the scales of the run's 128 columns and their product
//   rounded to fp32.
// For kE4M3Token the folded sum y then becomes (y * s_a) * s_w. All that is fp32, to nearest, with
// subnormals. A row's bits do not depend on other rows, tiles, runs of blocks or ranks. That a step
// gives what its model says was recorded on an H200.
struct LinearFp8Args {
  Activations x;  // kE4M3Token, or kE4M3Group, whose shares begin at multiples of 128 columns
  const uint8_t* weight;      // [n, k] codes of e4m3, 16-byte aligned, rows too
  int64_t weight_stride;      // bytes, a multiple of 16
  const float* weight_scale;  // [n], with kE4M3Group [n][ceil(k / 128)], both from column 0 on
  int64_t weight_scale_stride = 1;  // floats from output to output, with kE4M3Group
  int32_t n;
  int32_t k;
  const float* bias = nullptr;  // [n]
  Epilogue epilogue = Epilogue::kStore;
  float* out;  // [x.num_rows, n]
  int64_t out_stride;
  void* workspace = nullptr;  // linear_workspace_bytes, or null
  Segments segments = {};
};

// Whether this device has the layers below; Hopper has.
bool device_has_fp8();

// FP8 layers that may differ like those of launch_linear_int8.
void launch_linear_fp8(Stream stream, std::span<const LinearFp8Args> layers);

inline void launch_linear_fp8(Stream stream, const LinearFp8Args& args) {
  launch_linear_fp8(stream, {&args, 1});
}

// Layers with experts (ExpertMatrices). The workspace is not used.
void launch_experts_half(Stream stream, const LinearHalfArgs& args, const ExpertMatrices& experts);
void launch_experts_int8(Stream stream, const LinearInt8Args& args, const ExpertMatrices& experts);
void launch_experts_fp8(Stream stream, const LinearFp8Args& args, const ExpertMatrices& experts);

// `args.then` is not read. The array of `args.parts` is in host memory. `experts`: null, or
// ExpertMatrices with at most x.num_rows rows.
void launch_join_parts(Stream stream,
                       const JoinPartsArgs& args,
                       const ExpertMatrices* experts = nullptr);
void launch_row_magnitudes(Stream stream, const RowMagnitudesArgs& args);

// Blocks of states are aligned to 16 bytes.
void launch_replay_rows(Stream stream, const ReplayRowsArgs& args);
void launch_short_conv(Stream stream, const ShortConvArgs& args);
void launch_delta_rule(Stream stream, const DeltaRuleArgs& args);
void launch_mamba2(Stream stream, const Mamba2Args& args);
void launch_gated_squares(Stream stream, const GatedSquaresArgs& args);
// The array of `args.parts` is in host memory.
void launch_group_norm(Stream stream, const GroupNormArgs& args);

}  // namespace sluice::kernels::cuda
