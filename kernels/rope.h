// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding from absolute positions, by one table.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/attention.h"
#include "kernels/device.h"

namespace sluice::kernels {

enum class RopeStyle : uint8_t {
  kInterleaved,  // pairs (2i, 2i + 1): GGUF's "llama", whose q and k rows are permuted for it
  kHalves,       // pairs (i, i + rotary_dim / 2): NeoX
};

// A factor of queries that grows with their position p: 1 + beta * ln(1 + floor((p + shift) /
// context)).
struct QueryScale {
  double beta = 0;  // 0: none
  int32_t context = 1;
  int32_t shift = 0;
};

struct RopeParams {
  int32_t rotary_dim = 0;  // even, <= head_dim; the rest passes through
  float freq_base = 10000.0F;
  float freq_scale = 1.0F;               // linear scaling: angle = position * freq_scale * freq
  std::vector<float> freq_factors = {};  // divides each frequency (rope_scaling.h); or empty
  float attention_factor = 1.0F;         // multiplies cos and sin
  RopeStyle style = RopeStyle::kInterleaved;
  QueryScale query_scale = {};
};

// cos and sin of every (position, pair), computed in double by fixed polynomials
// (kernels/cpu/rows/math64.h, no libm) and rounded once: angle = position * f_i,
// f_i = freq_base^(-2 i / rotary_dim) * freq_scale / freq_factors[i]; both are multiplied by
// attention_factor before rounding. Angles up to 1e6 rad. Factors of queries likewise.
//
// Rows are computed when a position is first used, so that a long context costs memory only then.
class RopeTable {
 public:
  // Reserves room for all positions and computes no rows.
  RopeTable(const RopeParams& params, int32_t num_positions);

  // Takes bytes() of a device's memory, which must outlive the table, for a second copy of the
  // rows; takes nothing of the host's. Call it before the first prepare().
  Expected<void> place_on(DeviceMemory& memory);

  // Computes the rows below `end`. Call it before they are read, on one thread at a time. Operators
  // called afterwards find the rows on the device, too.
  void prepare(int32_t end);

  [[nodiscard]] const float* cos_row(int64_t position) const {
    return cos_.get() + position * num_pairs_;
  }

  [[nodiscard]] const float* sin_row(int64_t position) const {
    return sin_.get() + position * num_pairs_;
  }

  // Factors of queries by position; null: none.
  [[nodiscard]] const float* query_scales() const { return query_scales_.get(); }

  // Row 0 in the device's memory; null without place_on() or on the host.
  [[nodiscard]] const float* device_cos() const {
    return reinterpret_cast<const float*>(device_rows_.data());
  }

  [[nodiscard]] const float* device_sin() const;
  [[nodiscard]] const float* device_query_scales() const;

  [[nodiscard]] int32_t num_pairs() const { return num_pairs_; }

  [[nodiscard]] RopeStyle style() const { return style_; }

  static int64_t bytes(const RopeParams& params, int64_t num_positions);

  [[nodiscard]] int64_t bytes() const {
    const int64_t per_position = 2 * num_pairs_ + (query_scales_ == nullptr ? 0 : 1);
    return int64_t{num_positions_} * per_position * static_cast<int64_t>(sizeof(float));
  }

 private:
  void upload(const float* first, const float* rows, int64_t offset, int64_t count);

  int32_t num_pairs_;
  int32_t num_positions_;
  int32_t num_ready_ = 0;  // positions with rows
  RopeStyle style_;
  double attention_factor_;
  QueryScale query_scale_;
  std::vector<double> step_;  // radians per position, by pair
  // Uninitialized past num_ready_: pages come with use.
  std::unique_ptr<float[]> cos_, sin_, query_scales_;
  DeviceBuffer device_rows_;  // cos, sin, factors of queries, in the layout of the host's
};

// Rotates q and k in place (x' = x*cos - y*sin, y' = x*sin + y*cos, each fma(x, cos, -(y*sin)) and
// fma(x, sin, y*cos)), norms their heads by head_norm() if there are weights for it, multiplies q
// by the table's factor of its position, then writes k and v to the cache slots of their tokens.
struct RopeWriteKvArgs {
  float* q;  // [num_tokens, num_heads * head_dim]
  int64_t q_stride;
  float* k;  // [num_tokens, num_kv_heads * head_dim]
  int64_t k_stride;
  const float* v;
  int64_t v_stride;
  int32_t num_heads;
  const RopeTable* table;              // null: no rotation
  std::span<const int32_t> positions;  // [num_tokens]
  // [num_tokens]: block * block_size + offset; below 0: q, k and the cache stay as they are
  std::span<const int64_t> slot_mapping;
  KvLayerView kv;
  const float* q_norm = nullptr;  // [head_dim] or null
  const float* k_norm = nullptr;  // where q_norm is
  float norm_eps = 0;
};

void rope_write_kv(const ExecContext& ctx, const RopeWriteKvArgs& args);

}  // namespace sluice::kernels
