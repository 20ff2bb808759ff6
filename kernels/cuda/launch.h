// SPDX-License-Identifier: Apache-2.0
// The CUDA backend's kernels as functions that put work on a stream. Pointers in the arguments are
// device memory, but for PackedWeight and Activations, which are structs of the host over device
// memory; a PackedWeight's matrix is in rows, or in tiles where its format has blocks
// (quant/repack.h). Definitions are those of kernels/*.h; bits equal the CPU's where no comment
// says less. NaN results are NaN, of whatever payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/device_memory.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/kv_blocks.h"
#include "kernels/moe.h"
#include "kernels/norm.h"
#include "kernels/parts.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"

struct CUstream_st;

namespace sluice::kernels::cuda {

using Stream = CUstream_st*;  // cudaStream_t, for callers that include no CUDA

void launch_rms_norm(Stream stream, const RmsNormArgs& args);
void launch_head_norm(Stream stream, const HeadNormArgs& args);
// The array of `args.magnitudes` is the host's.
void launch_quantize_activations(Stream stream, const QuantizeArgs& args);
void launch_gate_mul(Stream stream, const GateMulArgs& args);
void launch_add_rows(Stream stream, const AddRowsArgs& args);
void launch_scale_rows(Stream stream, const ScaleRowsArgs& args);
void launch_gather_rows(Stream stream, const GatherRowsArgs& args);
void launch_select_columns(Stream stream, const SelectColumnsArgs& args);

// Tables of every format.
void launch_embedding(Stream stream, const EmbeddingArgs& args);

// The rows of a RopeTable in device memory, [positions][num_pairs] each.
struct RopeRows {
  const float* cos = nullptr;  // null: no rotation
  const float* sin = nullptr;
  int32_t num_pairs = 0;
  RopeStyle style = RopeStyle::kInterleaved;
};

// `rows` takes the place of args.table, which is not read.
void launch_rope_write_kv(Stream stream, const RopeWriteKvArgs& args, const RopeRows& rows);

// Attention over a cache of floats has the CPU's bits. Over caches of 16 and 8 bits tensor cores
// multiply, and a row is kernels/attention.h but for this, with T = half precision for kF16 and
// bfloat16 for the others, in which all codes are exact:
// - q is rounded to T. A score starts as the tensor core's chain over d in order, from 0, in steps
//   of 16, or of 8 on sm_8x (what a step is: tests/support/simt/tensorcore.h).
// - A tile's sum: lane q of 4 adds, of each group g of 16 keys, keys 2 q, 2 q + 1, 2 q + 8 and
//   2 q + 9 in order; groups fold as (g0 + g1) + (g2 + g3), then lanes as (q0 + q1) + (q2 + q3).
// - A weight is rounded to T, in caches of codes after V's scale. o[d], multiplied with c, goes on
//   as the chain over the tile's keys in steps; keys that do not take part weigh 0 there, and
//   products of 0 are left out by the tensor core. A zero that a partition ends with is +0.
// So a tile without a visible key changes nothing: m stays, c = exp(0) = 1, the sum is 0 and no
// product takes part. Which rows share a tile, a block or a launch, where partitions run, and on
// Hopper whether mma.sync or wgmma multiplies, have no say in a row's bits. One thing has: where V
// holds an infinity or a NaN, which codes cannot, rows that share the tile with one that sees it
// get NaN. That all this holds on a GPU follows from the model of its tensor cores, and an H200
// has shown it (bench/gpu_probes, P4).
inline constexpr int32_t kMaxAttentionHeadDim = 256;

// Bytes of the workspace with which the partitions of the keys run side by side, where there are
// few rows over long contexts; 0 where it is of no use. The bits are the same with and without.
// num_threads is not read.
int64_t attention_workspace_bytes(const AttentionLimits& limits, int32_t window);

// Bytes of the workspace with which the partitions of few rows a request run side by side in every
// step within `limits`, whatever their windows: beside prompts too, and with several tokens a
// request. 0 where no such step has blocks of 16 rows that share a list of work.
int64_t mixed_attention_workspace_bytes(const AttentionLimits& limits);

// `limits` are what the host knows of the call, whose lengths are in device memory: its heads, and
// bounds from above for the rest, so that a captured launch serves every step that fits. What
// args.workspace does not hold is not split. args.then must be null; requests without tokens
// are allowed.
void launch_attention(Stream stream, const AttentionArgs& args, const AttentionLimits& limits);

// Three launches: rows in pieces, a block each, then one block a row. The rows are in device
// memory, like what they point to (top_logprobs too) and the workspace
// (cuda::sampling_workspace_bytes of ops.h for as many rows or more), and get their results there.
// At most kMaxVocabSize tokens.
void launch_sample(Stream stream, const SampleArgs& args);
void launch_take_tokens(Stream stream, const TakeTokensArgs& args);
void launch_place_following(Stream stream, const PlaceFollowingArgs& args);

// Copies by threads, between memory that the device reaches, its own or pinned; both sides aligned
// to 16 bytes.
void launch_copy(Stream stream, std::byte* to, const std::byte* from, int64_t bytes);
// Copies parts of a block of memory to the same places of another, all in one launch.
inline constexpr size_t kMostCopyParts = 16;
void launch_copy_parts(Stream stream,
                       std::byte* to,
                       const std::byte* from,
                       std::span<const DeviceMemory::Part> parts);

// No GPU has run these. Up to 512 blocks of the cache a launch.
void launch_gather_kv_blocks(Stream stream, const KvBlocksArgs& args);
void launch_scatter_kv_blocks(Stream stream, const KvBlocksArgs& args);

void launch_moe_route(Stream stream, const MoeRouteArgs& args);
// One block. All of args is in device memory, so that no host sees who was chosen.
void launch_place_rows(Stream stream, const PlaceRowsArgs& args);
void launch_moe_combine(Stream stream, const MoeCombineArgs& args);

// Which experts' rows, and how far from what is one expert's (matrix, scales, bias) the next one's
// is: in bytes, a multiple of 16. A launch with experts is linear_experts of kernels/moe.h, one
// matrix of each: matrix and bias of its arguments are the first expert's, a row has the bits that
// it has alone, and rows of no expert are left as they are. num_rows bounds the rows of all experts
// from above, as max_expert_rows() does, so that a captured launch serves every step that fits.
struct ExpertMatrices {
  ExpertRows rows;
  int64_t stride;
};

// Where column 0 of the first row or tile is, or would be if the matrix had all of K: launches read
// only columns of their segments, which it has.
const std::byte* first_of_k(const PackedWeight& weight);

// One matrix as the operators of kernels/gemm.h have it.
struct LinearMatrixArgs {
  Activations x;
  const PackedWeight* weight;
  const float* bias = nullptr;  // [n]
  Epilogue epilogue = Epilogue::kStore;
  float* out;  // [x.num_rows, n]
  int64_t out_stride;
  Segments segments = {};
};

// Float weights times kFloat, with the CPU's bits. `experts`: null, or as above.
void launch_linear_float(Stream stream,
                         const LinearMatrixArgs& args,
                         const ExpertMatrices* experts = nullptr);

// Weights in blocks (packed tiles) times kInt8, with the CPU's bits. `experts`: null, or as above.
void launch_linear_blocks(Stream stream,
                          const LinearMatrixArgs& args,
                          const ExpertMatrices* experts = nullptr);

// The same weights times kBF16 on tensor cores, for rows of any number with the same bits; K, its
// segments, their fold, shares and scales of rows are those of kernels/gemm.h. c of a code is the
// integer that kernels/gemm.h multiplies (zero point taken off, codebook looked up), which BF16
// has, d_w and m_w the scale and the minimum there, and a chain over numbers is the tensor core's
// over their products with x in order of k, in steps of 16 (what a step is:
// tests/support/simt/tensorcore.h). In a segment, for its groups of 32 in order, or for their
// halves of 16 where these have scales of their own:
//   acc = fma(p, d_w, acc), p the chain over c of the group from 0;
//   where the format has a minimum: acc = fma(m_w, t, acc), t the chain over ones from 0.
// Weights w = c * d_w of MXFP4 (from 2^128 on an infinity) and of NVFP4 are numbers of BF16: their
// segment is one chain over w from 0, of NVFP4 256 times that over w / 256. So MXFP4 has the bits
// of launch_linear_half for the matrix of its w. On sm_8x, whose steps are of 8, a step of 16 is
// one of the even k, then one of the odd ones. `experts`: null, or as above.
void launch_linear_blocks_half(Stream stream,
                               const LinearMatrixArgs& args,
                               const ExpertMatrices* experts = nullptr);

// Layers in a launch at most.
inline constexpr size_t kMostTogether = 4;

// Bytes of the workspace with which a launch of layers of `n` outputs in all is faster: few rows
// run segments of K side by side, and many rows of INT8, of `int8_k` columns, are copied faster; 0
// where it is of no use. The bits are the same with and without. Its first kArrivalBytes are 0
// before the first launch that gets it, and launches leave them so; one launch at a time has it.
inline constexpr int64_t kArrivalBytes = 16384;
int64_t linear_workspace_bytes(int32_t num_rows, int32_t n, int32_t int8_k = 0);

// y = x W^T on tensor cores, for rows of any number with the same bits. Segments, their fold and
// shares of them are those of kernels/gemm.h. A segment is the tensor core's chain over its groups
// in order, from 0, in steps of 16, or of 8 on sm_8x (what a step is:
// tests/support/simt/tensorcore.h); past k are zeros. So devices of one step give the same bits,
// which are not the CPU's: its chain is one fma a k. That a step gives the same bits in tiles of 8
// and of 64 tokens follows from the model of it, and an H200 has shown it (bench/gpu_probes, P1).
// Matrices of BF16 or of F16, both the same.
struct LinearHalfArgs {
  WeightFormat format = WeightFormat::kBF16;
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

// Layers that differ in what is theirs alone: weight and its stride, n, bias, out and its stride.
// From Hopper on they are one launch, which x is read for once. The workspace is of all of them.
void launch_linear_half(Stream stream, std::span<const LinearHalfArgs> layers);

inline void launch_linear_half(Stream stream, const LinearHalfArgs& args) {
  launch_linear_half(stream, {&args, 1});
}

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

// Layers that differ as those of launch_linear_half may, and in their scales.
void launch_linear_int8(Stream stream, std::span<const LinearInt8Args> layers);

inline void launch_linear_int8(Stream stream, const LinearInt8Args& args) {
  launch_linear_int8(stream, {&args, 1});
}

// FP8 layers, kE4M3Channel times kE4M3Token and kE4M3Block times kE4M3Group, on Hopper alone: by
// wgmma, as mma.sync of FP8 is another function there. Segments, their fold and shares of them are
// those of kernels/gemm.h; the value of a segment is not the CPU's:
// - Its groups of 32 are cut into runs of at most four: of kE4M3Token counted from its first group,
//   of kE4M3Group at the multiples of 128 along absolute k, so that a run has one pair of scales.
// - p, a run's sum, is the tensor core's chain from 0 over its groups in order, a step each (what a
//   step is: wgmma_float8_step of tests/support/simt/tensorcore.h); past k are zeros.
// - Runs are promoted in order, from acc = 0 on: of kE4M3Token acc = acc + p, of kE4M3Group
//   acc = fma(p, s_w * s_a, acc), with the scales of the run's 128 columns and their product
//   rounded to fp32.
// Of kE4M3Token the folded sum y then becomes (y * s_a) * s_w. All that is fp32, to nearest, with
// subnormals. Rows of x, tiles, runs of blocks and ranks have no say in a row's bits. No GPU has
// run these kernels; that a step gives what its model says was recorded on an H200.
struct LinearFp8Args {
  Activations x;  // kE4M3Token, or kE4M3Group, of which a share begins at a multiple of 128 columns
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

// Whether this device has the layers below: Hopper has.
bool device_has_fp8();

// Layers that differ as those of launch_linear_int8 may.
void launch_linear_fp8(Stream stream, std::span<const LinearFp8Args> layers);

inline void launch_linear_fp8(Stream stream, const LinearFp8Args& args) {
  launch_linear_fp8(stream, {&args, 1});
}

// With experts, see there. The workspace is not used.
void launch_experts_half(Stream stream, const LinearHalfArgs& args, const ExpertMatrices& experts);
void launch_experts_int8(Stream stream, const LinearInt8Args& args, const ExpertMatrices& experts);
void launch_experts_fp8(Stream stream, const LinearFp8Args& args, const ExpertMatrices& experts);

// `args.then` is not read. The array of `args.parts` is the host's. `experts`: null, or as above,
// of whose rows there are at most x.num_rows.
void launch_join_parts(Stream stream,
                       const JoinPartsArgs& args,
                       const ExpertMatrices* experts = nullptr);
void launch_row_magnitudes(Stream stream, const RowMagnitudesArgs& args);

}  // namespace sluice::kernels::cuda
