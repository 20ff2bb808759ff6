// SPDX-License-Identifier: Apache-2.0
// Scores and weights of attention_list.cu: one warp has one tile, by the definition in launch.h.
// Codes become 16-bit floats, exactly, in registers: the halves of a word from ldmatrix are the
// even and the odd keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_list_memory.h"
#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/math.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {

template <typename Cache, int kDim, int kHalves>
class ListScores {
  using Memory = ListMemory<Cache, kDim, kHalves>;
  using Block = ListBlock<kHalves>;
  static constexpr bool kCodes = Memory::kCodes;
  static constexpr int kSteps = kDim / kStep;
  static constexpr int kCount = kAttentionTile / 2;  // a lane's scores

 public:
  __device__ __forceinline__ ListScores(Memory& memory, const AttentionWork& work)
      : memory_(memory), work_(work) {
    const int32_t size = work_.args.kv.block_size;
    key_step_ = static_cast<uint32_t>(kStep * size * Cache::kBytes);
    const int matrix = list_lane() / 8;
    const int row = list_lane() % 8;
    for (int i = 0; i < kKeyLoads; ++i) {
      const int32_t key =
          kCodes ? (2 * i + matrix / 2) * kStep : i * kStep + matrix / 2 * (kStep / 2);
      key_offsets_[i] = key_offset(key, matrix % 2 * 8 + row);
    }
  }

  __device__ __forceinline__ void begin(const Block& block) {
    const int32_t head_dim = work_.args.kv.head_dim;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int row = list_row(h);
      const bool is_row = row < block.rows.num_rows;
      const float* const q =
          work_.args.q + (is_row ? head_at(work_, block.rows, row, work_.args.q_stride) : 0);
#pragma unroll
      for (int i = 0; i < kDim / 8; ++i) {
        const int32_t d = 8 * i + list_quad() * 2;
        const float low = is_row && d < head_dim ? q[d] : 0;
        const float high = is_row && d + 1 < head_dim ? q[d + 1] : 0;
        q_[i / 2][i % 2 * kHalves + h] = Cache::pack(low, high);
      }
    }
  }

  // Computes the products of the tile in that stage, over the first `width` of d.
  __device__ __forceinline__ void multiply(int stage, int32_t width) {
    const std::byte* const k = memory_.keys[stage];
#pragma unroll
    for (int i = 0; i < kCount; ++i) s_[i] = 0;
    uint32_t along[1] = {0};
    gpu::ptx::fence_registers(along);  // else the compiler keeps all offsets from tile to tile
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if (step * kStep >= width) break;
      const uint32_t turn = along[0] >> 3 & 0x70U;  // the line's number modulo 8
#pragma unroll
      for (int i = 0; i < kKeyLoads; ++i) {
        uint32_t b[4];
        gpu::ptx::ldmatrix_x4_trans(b, k + ((key_offsets_[i] ^ turn) + along[0]));
        multiply_step(i, step, b);
      }
      along[0] += key_step_;
    }
  }

  // Turns products into scores of the tile whose first key is `begin`, their maxima to `tops`.
  __device__ __forceinline__ void finish(const Block& block,
                                         int stage,
                                         int32_t begin,
                                         typename Memory::ByTile& tops) {
    if constexpr (kCodes) scale<false>(memory_.scales[stage][0]);
    finish_scores(block, begin);
    for (int h = 0; h < kHalves; ++h) {
      const float top = top_of_row(h);
      if (list_quad() == 0) tops[list_row(h)][list_warp()] = top;
    }
  }

  // Turns scores into weights, given the maxima of all of the partition's tiles; writes the tile's
  // sum and its c, the factor of what precedes it, to the block's memory.
  __device__ __forceinline__ void weigh(const typename Memory::ByTile& tops) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float before = kLowest;
#pragma unroll
      for (int w = 0; w < kListWarps - 1; ++w) {
        if (w < list_warp()) before = top_of(before, tops[list_row(h)][w]);
      }
      const float m = top_of(before, tops[list_row(h)][list_warp()]);
      const float c = exp_of_difference(__fsub_rn(before, m));
#pragma unroll
      for (int i = 2 * h; i < kCount; i += 4) {
        s_[i] = exp_of_difference(__fsub_rn(s_[i], m));
        s_[i + 1] = exp_of_difference(__fsub_rn(s_[i + 1], m));
      }
      const float sum = sum_of(h);
      if (list_quad() == 0) {
        memory_.factors[list_row(h)][list_warp()] = c;
        memory_.sums[list_row(h)][list_warp()] = sum;
      }
    }
  }

  // Multiplies the weights by V's scales of the tile in that stage.
  __device__ __forceinline__ void scale_weights(int stage) {
    scale<true>(memory_.scales[stage][1]);
  }

  // Writes the tile's weights to the block's memory, where lanes read them as A.
  __device__ __forceinline__ void share() const {
#pragma unroll
    for (int group = 0; group < kTileSteps; ++group) {
      if constexpr (kCodes) {
        share_codes(group);
      } else if constexpr (kHalves == 1) {
        if (group % 2 == 0) share_words(group / 2, s_ + 8 * group, {0, 4, 8, 12});
      } else {
        share_words(group, s_ + 8 * group, {0, 2, 4, 6});
      }
    }
  }

 private:
  static constexpr int kKeyLoads = kCodes ? kTileSteps / 2 : kTileSteps;  // per step of d

  // Returns a key's offset. A block of K is lines of 128 bytes, in which keys of one d or of
  // several follow each other.
  [[nodiscard]] __device__ __forceinline__ uint32_t key_offset(int32_t key, int32_t d) const {
    const int32_t size = work_.args.kv.block_size;
    const int32_t in_block = (d * size + (key & (size - 1))) * Cache::kBytes;
    const int32_t line = in_block / kLineBytes;
    const int32_t piece = in_block / kPieceBytes % 8;
    const int32_t block = key >> work_.block_shift;
    return static_cast<uint32_t>(block * size * kDim * Cache::kBytes + line * kLineBytes +
                                 (piece ^ line % 8) * kPieceBytes);
  }

  // Returns the column in its tile of score i.
  __device__ __forceinline__ static int column_of(int i) {
    if constexpr (kCodes) return i / 8 * 16 + list_quad() * 4 + i % 2 * 2 + i / 4 % 2;
    return i / 4 * 8 + list_quad() * 2 + i % 2;
  }

  __device__ __forceinline__ void multiply_step(int load, int step, const uint32_t (&b)[4]) {
    if constexpr (kCodes) {
#pragma unroll
      for (int group = 0; group < 2; ++group) {
        const uint32_t first = b[2 * group];
        const uint32_t second = b[2 * group + 1];
        float* const to = s_ + 8 * (2 * load + group);
        list_multiply<Cache, kHalves>(to, q_[step], even_of<Cache>(first), even_of<Cache>(second));
        list_multiply<Cache, kHalves>(
            to + 4, q_[step], odd_of<Cache>(first), odd_of<Cache>(second));
      }
    } else {
      list_multiply<Cache, kHalves>(s_ + 8 * load, q_[step], b[0], b[1]);
      list_multiply<Cache, kHalves>(s_ + 8 * load + 4, q_[step], b[2], b[3]);
    }
  }

  // Multiplies by each key's scale; weights of 0 stay, since an unseen key's scale may be NaN.
  template <bool kWeights>
  __device__ __forceinline__ void scale(const std::byte* scales) {
    const int32_t size = work_.args.kv.block_size;
#pragma unroll
    for (int group = 0; group < kTileSteps; ++group) {
      const int32_t key = group * kStep + list_quad() * 4;  // and the next three, in one block
      const std::byte* const at = scales + (key >> work_.block_shift) * scale_stride(size) +
                                  (key & (size - 1)) * int32_t{sizeof(float)};
      const float4 of_keys = *reinterpret_cast<const float4*>(at);
      const float four[4] = {of_keys.x, of_keys.y, of_keys.z, of_keys.w};
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (j % 4 / 2 >= kHalves) continue;
        float& p = s_[8 * group + j];
        const float by = __fmul_rn(four[j % 2 * 2 + j / 4], Cache::kScaleUnit);
        p = kWeights && p == 0 ? 0 : __fmul_rn(p, by);
      }
    }
  }

  __device__ __forceinline__ void finish_scores(const Block& block, int32_t begin) {
    const float soft_cap = work_.args.soft_cap;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i % 4 / 2 < kHalves) s_[i] = __fmul_rn(s_[i], work_.args.scale);
    }
    if (soft_cap != 0) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (i % 4 / 2 < kHalves) s_[i] = __fmul_rn(soft_cap, tanh_of(__fdiv_rn(s_[i], soft_cap)));
      }
    }
    if (block.all.begin <= begin && block.all.end >= begin + kAttentionTile) return;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (i % 4 / 2 >= kHalves) continue;
      const int32_t key = begin + column_of(i);
      const KeyRange& visible = block.visible[i % 4 / 2];
      if (key < visible.begin || key >= visible.end) s_[i] = -__builtin_inff();
    }
  }

  [[nodiscard]] __device__ __forceinline__ float top_of_row(int h) const {
    float top = kLowest;
#pragma unroll
    for (int i = 2 * h; i < kCount; i += 4) top = top_of(top_of(top, s_[i]), s_[i + 1]);
    top = top_of(top, __shfl_xor_sync(kAllLanes, top, 1));
    return top_of(top, __shfl_xor_sync(kAllLanes, top, 2));
  }

  // Returns the sum of a row's weights in the order of launch.h, where lane q of 4 adds keys 2 q,
  // 2 q + 1, 2 q + 8 and 2 q + 9 of a group. With codes a lane has keys 4 q to 4 q + 3: it takes
  // two of them and two of another lane's.
  [[nodiscard]] __device__ __forceinline__ float sum_of(int h) const {
    float parts[kTileSteps];
#pragma unroll
    for (int group = 0; group < kTileSteps; ++group) {
      const float* const p = s_ + 8 * group + 2 * h;
      if constexpr (kCodes) {
        const bool low = list_quad() < 2;
        const float first = __shfl_xor_sync(kAllLanes, low ? p[1] : p[0], 2);
        const float second = __shfl_xor_sync(kAllLanes, low ? p[5] : p[4], 2);
        const float four[4] = {
            low ? p[0] : first, low ? p[4] : second, low ? first : p[1], low ? second : p[5]};
        parts[group] = __fadd_rn(__fadd_rn(__fadd_rn(four[0], four[1]), four[2]), four[3]);
      } else {
        parts[group] = __fadd_rn(__fadd_rn(__fadd_rn(p[0], p[1]), p[4]), p[5]);
      }
    }
    float sum = __fadd_rn(__fadd_rn(parts[0], parts[1]), __fadd_rn(parts[2], parts[3]));
    // With codes, lanes 0 to 3 are the definition's lanes 0, 2, 1 and 3.
    sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, kCodes ? 2 : 1));
    return __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, kCodes ? 1 : 2));
  }

  // Writes four words of the lane's own weights.
  __device__ __forceinline__ void share_words(int to, const float* p, const int (&at)[4]) const {
    const Words words = {{Cache::pack(p[at[0]], p[at[0] + 1]),
                          Cache::pack(p[at[1]], p[at[1] + 1]),
                          Cache::pack(p[at[2]], p[at[2] + 1]),
                          Cache::pack(p[at[3]], p[at[3] + 1])}};
    *reinterpret_cast<Words*>(memory_.weights[list_warp()][to][list_lane()]) = words;
  }

  // Writes words 2 q and 2 q + 1 of 8 of a group's keys, which other lanes of the row need.
  __device__ __forceinline__ void share_codes(int group) const {
    auto& to = memory_.weights[list_warp()];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int word = 0; word < 2; ++word) {
        const float* const two = s_ + 8 * group + 2 * h + word;
        const int lane = list_lane() / 4 * 4 + (2 * list_quad() + word) % 4;
        const int half = list_quad() / 2;
        const uint32_t packed = Cache::pack(two[0], two[4]);
        if constexpr (kHalves == 1) {
          to[group / 2][lane][group % 2 * 2 + half] = packed;
        } else {
          to[group][lane][half * 2 + h] = packed;
        }
      }
    }
  }

  Memory& memory_;
  const AttentionWork& work_;
  uint32_t key_step_;  // bytes of 16 d in a block
  uint32_t key_offsets_[kKeyLoads];
  uint32_t q_[kSteps][2 * kHalves];
  float s_[kCount];  // products, then scores, then weights; in RowPair's order (attention_pair.h)
};

}  // namespace sluice::kernels::cuda
