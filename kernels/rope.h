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

struct RopeParams {
  int32_t rotary_dim = 0;  // even, <= head_dim; the rest passes through
  float freq_base = 10000.0F;
  float freq_scale = 1.0F;               // linear scaling: angle = position * freq_scale * freq
  std::vector<float> freq_factors = {};  // divides each frequency (rope_scaling.h); or empty
  float attention_factor = 1.0F;         // multiplies cos and sin
  RopeStyle style = RopeStyle::kInterleaved;
};

// cos and sin of every (position, pair), computed in double by fixed polynomials
// (kernels/cpu/rows/math64.h, no libm) and rounded once: angle = position * f_i,
// f_i = freq_base^(-2 i / rotary_dim) * freq_scale / freq_factors[i]; both are multiplied by
// attention_factor before rounding. Angles up to 1e6 rad.
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

  // Row 0 in the device's memory; null without place_on() or on the host.
  [[nodiscard]] const float* device_cos() const {
    return reinterpret_cast<const float*>(device_rows_.data());
  }

  [[nodiscard]] const float* device_sin() const;

  [[nodiscard]] int32_t num_pairs() const { return num_pairs_; }

  [[nodiscard]] RopeStyle style() const { return style_; }

  static int64_t bytes(const RopeParams& params, int64_t num_positions);

  [[nodiscard]] int64_t bytes() const {
    return int64_t{num_positions_} * num_pairs_ * 2 * static_cast<int64_t>(sizeof(float));
  }

 private:
  int32_t num_pairs_;
  int32_t num_positions_;
  int32_t num_ready_ = 0;  // positions with rows
  RopeStyle style_;
  double attention_factor_;
  std::vector<double> step_;  // radians per position, by pair
  std::unique_ptr<float[]> cos_, sin_;  // uninitialized past num_ready_: pages come with use
  DeviceBuffer device_rows_;            // cos, then sin, in the layout of the host's
};

// Rotates q and k in place (x' = x*cos - y*sin, y' = x*sin + y*cos, each fma(x, cos, -(y*sin)) and
// fma(x, sin, y*cos)), then writes k and v to the cache slots of their tokens.
struct RopeWriteKvArgs {
  float* q;  // [num_tokens, num_heads * head_dim]
  int64_t q_stride;
  float* k;  // [num_tokens, num_kv_heads * head_dim]
  int64_t k_stride;
  const float* v;
  int64_t v_stride;
  int32_t num_heads;
  const RopeTable* table;                 // null: no rotation
  std::span<const int32_t> positions;     // [num_tokens]
  // [num_tokens]: block * block_size + offset; below 0: q, k and the cache stay as they are
  std::span<const int64_t> slot_mapping;
  KvLayerView kv;
};

void rope_write_kv(const ExecContext& ctx, const RopeWriteKvArgs& args);

}  // namespace sluice::kernels
