// SPDX-License-Identifier: Apache-2.0
// Latent attention's key and value matrices of each head, as kernels take them, made from the one
// matrix that directories and early GGUF files have: kv_b [heads * (n + v), c], each head's n rows
// of keys, then its v rows of values. k_b is [heads * c, n], the keys transposed; v_b [heads * v,
// c]. GGUF files have both since 2025, as they are.
//
// Rows of floats keep their type. Others, whose blocks may straddle heads, are decoded to fp32 and
// rounded once to bf16.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/checkpoint_tensor.h"
#include "engine/weights/metadata.h"
#include "quant/format.h"

namespace sluice {

struct LatentShape {
  int32_t num_heads = 0;
  int32_t kv_rank = 0;   // c
  int32_t nope_dim = 0;  // n
  int32_t rope_dim = 0;
  int32_t value_dim = 0;  // v
};

Expected<LatentShape> read_latent_shape(const Metadata& metadata);

// One of the two matrices; rows are made when they are read.
class LatentHalf {
 public:
  // `whole` has rows or codes.
  LatentHalf(std::shared_ptr<const CheckpointTensor> whole, const LatentShape& shape, bool is_key)
      : whole_(std::move(whole)), shape_(shape), is_key_(is_key) {}

  // Returns rows [first, first + count), all of one head, in the format.
  [[nodiscard]] std::vector<std::byte> rows(int64_t first, int64_t count) const;

  [[nodiscard]] WeightFormat format() const;

  // [heads][rows of a head][width], the last first.
  [[nodiscard]] std::array<uint64_t, 3> dims() const;

  [[nodiscard]] bool is_key() const { return is_key_; }

  // The matrix that both come from.
  [[nodiscard]] const CheckpointTensor& whole() const { return *whole_; }

 private:
  [[nodiscard]] std::vector<float> decode(int64_t first, int64_t count) const;

  std::shared_ptr<const CheckpointTensor> whole_;
  LatentShape shape_;
  bool is_key_;
};

}  // namespace sluice
