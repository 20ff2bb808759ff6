// SPDX-License-Identifier: Apache-2.0
// The path of K and V to the tensor cores of attention_mma.h: element types, the block's shared
// memory, and the ring of slots through which tiles of 64 keys go by cp.async.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_rows.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/ptx.h"

namespace sluice::kernels::cuda {

inline constexpr int kPieceBytes = 16;  // bytes of a copy and of a row of ldmatrix
inline constexpr int kStep = 16;        // d or keys of an mma
inline constexpr int kTileSteps = kAttentionTile / kStep;
inline constexpr int kKeyRowBytes = kAttentionTile * 2;  // bytes of a d in K's tile
inline constexpr uint32_t kEvenBytes = 0x00FF00FFU;

// Returns the offset of a row's piece. Pieces are permuted so that neither a piece of 8
// neighbouring rows nor 4 rows of 2 neighbouring pieces (K in blocks of 16 keys) meet in a bank.
template <int kRowBytes>
constexpr int offset_of(int row, int piece) {
  return row * kRowBytes + (piece ^ (row % 4 * 2 + row / 4 % 2)) * kPieceBytes;
}

// Whether 8 lanes that access 16 bytes each at once have different banks, for any 8 / kPieces
// neighbouring rows and kPieces neighbouring pieces.
template <int kRowBytes, int kPieces>
constexpr bool has_no_bank_conflict() {
  constexpr int kRows = 8 / kPieces;
  for (int row = 0; row < 64; row += kRows) {
    for (int piece = 0; piece < kRowBytes / kPieceBytes; piece += kPieces) {
      uint32_t banks = 0;
      for (int lane = 0; lane < 8; ++lane) {
        const int offset = offset_of<kRowBytes>(row + lane / kPieces, piece + lane % kPieces);
        banks |= 1U << offset / kPieceBytes % 8;
      }
      if (banks != 0xFF) return false;
    }
  }
  return true;
}

// Checks ldmatrix, then copies of K in blocks of 16 keys, then copies of V.
static_assert(has_no_bank_conflict<128, 1>() && has_no_bank_conflict<256, 1>() &&
              has_no_bank_conflict<512, 1>() && has_no_bank_conflict<1024, 1>());
static_assert(has_no_bank_conflict<kKeyRowBytes, 2>());
static_assert(has_no_bank_conflict<128, 8>() && has_no_bank_conflict<256, 8>() &&
              has_no_bank_conflict<512, 8>());

struct alignas(kPieceBytes) Words {
  uint32_t word[4];
};

// The differences between caches: their elements, what these become, and how to multiply.
struct Bf16Cache {
  static constexpr DType kType = DType::kBF16;
  static constexpr int kBytes = 2;
  using Element = uint16_t;

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    return gpu::ptx::pack_bf16(low, high);
  }

  __device__ __forceinline__ static void multiply(float* d,
                                                  const uint32_t (&a)[4],
                                                  uint32_t b0,
                                                  uint32_t b1) {
    gpu::ptx::mma_bf16(d, a, b0, b1);
  }
};

struct F16Cache {
  static constexpr DType kType = DType::kF16;
  static constexpr int kBytes = 2;
  using Element = uint16_t;

  __device__ __forceinline__ static uint32_t pack(float low, float high) {
    return gpu::ptx::pack_f16(low, high);
  }

  __device__ __forceinline__ static void multiply(float* d,
                                                  const uint32_t (&a)[4],
                                                  uint32_t b0,
                                                  uint32_t b1) {
    gpu::ptx::mma_f16(d, a, b0, b1);
  }
};

struct Int8Cache : Bf16Cache {
  static constexpr DType kType = DType::kI8;
  static constexpr int kBytes = 1;
  static constexpr float kScaleUnit = 1.0F;
  using Element = uint8_t;

  // Widens two codes in the low bytes of 16 bits each: 128 plus the low 7 bits, less 128 or 256.
  __device__ __forceinline__ static uint32_t widen(uint32_t codes) {
    const uint32_t low = (codes & 0x007F007FU) | 0x43004300U;
    const uint32_t sign = (codes & 0x00800080U) | 0x43004300U;
    return gpu::ptx::fma_bf16x2(sign, 0xBF80BF80U, low);
  }
};

struct Fp8Cache : Bf16Cache {
  static constexpr DType kType = DType::kF8E4M3;
  static constexpr int kBytes = 1;
  static constexpr float kScaleUnit = 256.0F;
  using Element = uint8_t;

  // Widens two codes: sign, exponent and mantissa go to their places, times 2^112, which with
  // bfloat16's bias is the code's value / 256.
  __device__ __forceinline__ static uint32_t widen(uint32_t codes) {
    const uint32_t bits = (codes & 0x00800080U) << 8 | (codes & 0x007F007FU) << 4;
    return gpu::ptx::fma_bf16x2(bits, 0x77807780U, 0x80008000U);
  }
};

// Shared memory of a block.
template <typename Cache, int kDim, int kRows>
struct TileMemory {
  static constexpr bool kCodes = Cache::kBytes == 1;
  static constexpr bool kTogether = kRows == kFewAttentionRows;  // the warps share the rows
  static constexpr bool kIsWide = kDim > kWideHead;
  static constexpr int kSlots = kDim > 128 ? 2 : 3;              // slots of the ring
  static constexpr int kTileBytes = kDim * kAttentionTile * 2;

  // A slot has K or V of a tile: 16-bit floats where they are multiplied, or codes as they came,
  // each piece for the thread that copied it. The last slot has q first.
  alignas(1024) std::byte ring[kSlots][kTileBytes * Cache::kBytes / 2];
  alignas(1024) std::byte tile[kCodes ? kTileBytes : kPieceBytes];
  alignas(1024) std::byte weights[kTogether ? kRows * kKeyRowBytes : kPieceBytes];
  alignas(kPieceBytes) float scales[kCodes ? kSlots : 1][2][kAttentionTile];  // K's and V's
  alignas(
      kPieceBytes) float sums[kTogether ? kRows * 4 : 1][kAttentionWarps];  // by row and lane % 4
  alignas(kPieceBytes) float tops[kTogether ? kRows : 1][kAttentionWarps];
  // Earlier partitions' outputs, of which each thread has its own; in wide heads q, rounded.
  alignas(kPieceBytes) float
      total[kDim * kRows / kAttentionThreads / (kIsWide ? 2 : 1)][kAttentionThreads];
};

// K and V of a block's tiles on their way through the ring, by all threads: a slot's copies are
// issued kSlots - 1 slots before its use. Keys that no row sees are zeros.
template <typename Cache, int kDim, int kRows>
class TileRing {
  using Shared = TileMemory<Cache, kDim, kRows>;
  static constexpr int kSlots = Shared::kSlots;
  static constexpr bool kCodes = Shared::kCodes;
  static constexpr int kPieceShift = Cache::kBytes == 2 ? 3 : 4;
  static constexpr int kPieceElements = 1 << kPieceShift;
  static constexpr int kKeyPieces = kAttentionTile / kPieceElements;           // pieces of a d
  static constexpr int kValuePieces = kDim / kPieceElements;                   // pieces of a key
  static constexpr int kThreadPieces = kDim * kKeyPieces / kAttentionThreads;  // per thread, K or V

 public:
  // Takes tiles [begin, end). No thread may read the ring except its last slot.
  __device__ __forceinline__ TileRing(
      Shared& shared, const AttentionWork& work, const RowBlock& block, int32_t begin, int32_t end)
      : shared_(shared),
        kv_(work.args.kv),
        table_(work.args.block_table + int64_t{block.request} * work.args.block_table_stride),
        keys_(visible_to_any(work, block)),
        kv_head_(block.kv_head),
        width_(static_cast<int32_t>(cached_head_dim(kv_.head_dim))),
        value_width_(static_cast<int32_t>(cached_head_dim(kv_.value_width()))),
        block_shift_(work.block_shift),
        run_shift_(work.block_shift > kPieceShift ? work.block_shift - kPieceShift : 0),
        copied_(2 * begin),
        end_(2 * end),
        used_(2 * begin) {
    for (int slot = 0; slot < kSlots - 1; ++slot) copy(slot);
  }

  // Waits for the next of K, V, K, ... and returns its place; the one before it is gone.
  __device__ __forceinline__ const std::byte* next() {
    gpu::ptx::cp_async_wait<kSlots - 2>();
    __syncthreads();  // all copies are there, and no thread reads the previous one
    if constexpr (kCodes) widen();
    copy(slot_ == 0 ? kSlots - 1 : slot_ - 1);
    if constexpr (kCodes) __syncthreads();
    const std::byte* const at = kCodes ? shared_.tile : shared_.ring[slot_];
    slot_ = slot_ + 1 == kSlots ? 0 : slot_ + 1;
    ++used_;
    return at;
  }

  // Scales of the K that next() returned last, and of the V that it returns next.
  __device__ __forceinline__ const float (&scales() const)[2][kAttentionTile] {
    return shared_.scales[slot_ == 0 ? kSlots - 1 : slot_ - 1];
  }

 private:
  // Piece i of K's rows: keys of one d that lie together in a block. Neighbouring pieces are
  // neighbours in the cache.
  struct KeyPiece {
    int32_t d;
    int32_t key;  // in the tile
  };

  __device__ __forceinline__ KeyPiece key_piece(int32_t i) const {
    const int32_t in_run = i & ((1 << run_shift_) - 1);
    const int32_t run = i >> run_shift_;
    return {run % kDim, ((run / kDim << run_shift_) | in_run) * kPieceElements};
  }

  __device__ __forceinline__ bool sees(int32_t key) const {
    return key >= keys_.begin && key < keys_.end;
  }

  // Returns the offset in bytes from the start of K or V, whose heads have `width` elements.
  __device__ __forceinline__ int64_t head_of(int32_t key, int32_t width) const {
    const int64_t head_bytes = kv_head_bytes(Cache::kType, width, kv_.block_size);
    return (int64_t{table_[key >> block_shift_]} * kv_.num_kv_heads + kv_head_) * head_bytes;
  }

  __device__ __forceinline__ int32_t slot_of(int32_t key) const {
    return key & (kv_.block_size - 1);
  }

  __device__ __forceinline__ int64_t element_of_k(int32_t key, int32_t d) const {
    return head_of(key, width_) + (int64_t{d} * kv_.block_size + slot_of(key)) * Cache::kBytes;
  }

  __device__ __forceinline__ int64_t element_of_v(int32_t key, int32_t d) const {
    return head_of(key, value_width_) +
           (int64_t{slot_of(key)} * value_width_ + d) * Cache::kBytes;
  }

  __device__ __forceinline__ int64_t scale_of(int32_t key, int32_t width) const {
    return head_of(key, width) + int64_t{width} * kv_.block_size +
           slot_of(key) * int64_t{sizeof(float)};
  }

  // Issues a group of copies, empty past the last tile, so that groups count slots.
  __device__ __forceinline__ void copy(int slot) {
    if (copied_ < end_) {
      const int32_t first_key = copied_ / 2 * kAttentionTile;
      const bool together = kv_.block_size >= kPieceElements;
      if (copied_ % 2 == 0) {
        copy_keys(slot, first_key, together);
        if constexpr (kCodes) copy_scales(slot, first_key, together);
      } else {
        copy_values(slot, first_key, together);
      }
      ++copied_;
    }
    gpu::ptx::cp_async_commit();
  }

  // `together`: the keys of a piece are in one block, and pieces are aligned.
  __device__ __forceinline__ void copy_keys(int slot, int32_t first_key, bool together) {
#pragma unroll 2
    for (int n = 0; n < kThreadPieces; ++n) {
      const int32_t i = n * kAttentionThreads + static_cast<int32_t>(threadIdx.x);
      const KeyPiece piece = key_piece(i);
      if (piece.d >= width_) continue;
      const int32_t key = first_key + piece.key;
      std::byte* const to =
          shared_.ring[slot] +
          (kCodes ? i * kPieceBytes : offset_of<kKeyRowBytes>(piece.d, piece.key / kPieceElements));
      if (together) {
        const bool some = key < keys_.end && key + kPieceElements > keys_.begin;
        gpu::ptx::cp_async_16(
            to, kv_.k + (some ? element_of_k(key, piece.d) : 0), some ? kPieceBytes : 0);
      } else {
        for (int32_t j = 0; j < kPieceElements; ++j) {
          put(to, j, kv_.k, sees(key + j) ? element_of_k(key + j, piece.d) : kNowhere);
        }
      }
    }
  }

  __device__ __forceinline__ void copy_values(int slot, int32_t first_key, bool together) {
#pragma unroll 2
    for (int n = 0; n < kThreadPieces; ++n) {
      const int32_t i = n * kAttentionThreads + static_cast<int32_t>(threadIdx.x);
      const int32_t row = i / kValuePieces;
      const int32_t d = i % kValuePieces * kPieceElements;
      if (d >= value_width_) continue;
      const bool seen = sees(first_key + row);
      const int64_t at = seen ? element_of_v(first_key + row, d) : kNowhere;
      std::byte* const to = shared_.ring[slot] +
                            (kCodes ? i * kPieceBytes : offset_of<2 * kDim>(row, i % kValuePieces));
      if (together) {
        gpu::ptx::cp_async_16(to, kv_.v + (seen ? at : 0), seen ? kPieceBytes : 0);
      } else {
        for (int32_t j = 0; j < kPieceElements; ++j) {
          put(to, j, kv_.v, seen ? at + j * Cache::kBytes : kNowhere);
        }
      }
    }
  }

  __device__ __forceinline__ void copy_scales(int slot, int32_t first_key, bool together) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    if (together) {
      constexpr int32_t kScales = kPieceBytes / int32_t{sizeof(float)};
      constexpr int32_t kPieces = kAttentionTile / kScales;
      if (thread >= 2 * kPieces) return;
      const std::byte* const from = thread < kPieces ? kv_.k : kv_.v;
      const int32_t width = thread < kPieces ? width_ : value_width_;
      const int32_t in_tile = thread % kPieces * kScales;
      const int32_t key = first_key + in_tile;
      const bool some = key < keys_.end && key + kScales > keys_.begin;
      gpu::ptx::cp_async_16(&shared_.scales[slot][thread / kPieces][in_tile],
                            from + (some ? scale_of(key, width) : 0),
                            some ? kPieceBytes : 0);
    } else {
      const std::byte* const from = thread < kAttentionTile ? kv_.k : kv_.v;
      const int32_t width = thread < kAttentionTile ? width_ : value_width_;
      const int32_t key = first_key + thread % kAttentionTile;
      shared_.scales[slot][thread / kAttentionTile][thread % kAttentionTile] =
          sees(key) ? *reinterpret_cast<const float*>(from + scale_of(key, width)) : 0.0F;
    }
  }

  static constexpr int64_t kNowhere = -1;

  __device__ __forceinline__ static void put(std::byte* to,
                                             int32_t index,
                                             const std::byte* from,
                                             int64_t at) {
    using Element = typename Cache::Element;
    reinterpret_cast<Element*>(to)[index] =
        at == kNowhere ? Element{0} : *reinterpret_cast<const Element*>(from + at);
  }

  // Widens the codes that this thread copied to the tile.
  __device__ __forceinline__ void widen() {
    const bool values = used_ % 2 != 0;
#pragma unroll 2
    for (int n = 0; n < kThreadPieces; ++n) {
      const int32_t i = n * kAttentionThreads + static_cast<int32_t>(threadIdx.x);
      const KeyPiece key = key_piece(i);
      const int32_t piece = i % kValuePieces;
      if (values ? piece * kPieceElements >= value_width_ : key.d >= width_) continue;
      const Words codes = *reinterpret_cast<const Words*>(shared_.ring[slot_] + i * kPieceBytes);
      if (values) {
        // 4 of 8 lanes begin with the other piece, so that together they use all banks.
        const int32_t turn = i / 4 % 2;
        store<2 * kDim>(codes, i / kValuePieces, 2 * piece, turn);
        store<2 * kDim>(codes, i / kValuePieces, 2 * piece, 1 - turn);
      } else {
        store<kKeyRowBytes>(codes, key.d, key.key / 8, 0);
        store<kKeyRowBytes>(codes, key.d, key.key / 8, 1);
      }
    }
  }

  // Stores half of a piece of codes, as a piece of 8 floats.
  template <int kRowBytes>
  __device__ __forceinline__ void store(const Words& codes,
                                        int32_t row,
                                        int32_t piece,
                                        int32_t half) {
    Words floats;
#pragma unroll
    for (int w = 0; w < 2; ++w) {
      const uint32_t four = half == 0 ? codes.word[w] : codes.word[2 + w];
      const uint32_t even = Cache::widen(four & kEvenBytes);
      const uint32_t odd = Cache::widen(four >> 8 & kEvenBytes);
      floats.word[2 * w] = (even & 0xFFFFU) | odd << 16;
      floats.word[2 * w + 1] = even >> 16 | (odd & 0xFFFF0000U);
    }
    *reinterpret_cast<Words*>(shared_.tile + offset_of<kRowBytes>(row, piece + half)) = floats;
  }

  Shared& shared_;
  const KvLayerView& kv_;
  const int32_t* table_;
  KeyRange keys_;  // seen by some row
  int32_t kv_head_;
  int32_t width_;
  int32_t value_width_;
  int32_t block_shift_;
  int32_t run_shift_;  // log2 of the pieces of a d that lie together
  int32_t copied_;     // 2 * tile, and 1 for V: the next to copy
  int32_t end_;
  int32_t used_;  // 2 * tile, and 1 for V: returned by the next next()
  int slot_ = 0;  // slot of used_
};

// Loads two times 8 columns of B of 16 rows: the lane's words for two mma, from rows `row` on.
template <int kRowBytes>
__device__ __forceinline__ void load_columns(uint32_t (&b)[4],
                                             const std::byte* rows,
                                             int row,
                                             int piece) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int matrix = lane / 8;
  gpu::ptx::ldmatrix_x4_trans(
      b, rows + offset_of<kRowBytes>(row + matrix % 2 * 8 + lane % 8, piece + matrix / 2));
}

// Loads the lane's words of A: 16 rows from `row` on, 16 columns.
template <int kRowBytes>
__device__ __forceinline__ void load_rows(uint32_t (&a)[4],
                                          const std::byte* rows,
                                          int row,
                                          int piece) {
  const auto lane = static_cast<int>(threadIdx.x % 32);
  const int matrix = lane / 8;
  gpu::ptx::ldmatrix_x4(
      a, rows + offset_of<kRowBytes>(row + matrix % 2 * 8 + lane % 8, piece + matrix / 2));
}

}  // namespace sluice::kernels::cuda
