// SPDX-License-Identifier: Apache-2.0
// A model file's tensors in the form kernels read: matrices repacked once into one arena, norms as
// floats. Built at load, immutable afterwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/aligned_buffer.h"
#include "engine/weights/gguf.h"
#include "quant/repack.h"

namespace sluice {

class WeightStore {
 public:
  explicit WeightStore(const GgufFile& file);

  // Bytes that the packed matrices of the whole file will take; known before anything is allocated.
  [[nodiscard]] int64_t packed_total_bytes() const { return packed_total_bytes_; }
  // Allocates that much, before the first take. Without it, takes check names and shapes and give
  // weights without data: enough to plan memory.
  Expected<void> allocate();

  [[nodiscard]] bool has(std::string_view name) const;
  // W[n, k], repacked. kDataLoss: missing, or another shape; the message has both.
  Expected<PackedWeight> matrix(const std::string& name, int64_t n, int64_t k);
  // n floats, decoded.
  Expected<std::vector<float>> vector(const std::string& name, int64_t n);

  // Tensors of the file that nothing asked for: a sign of an unsupported variant.
  [[nodiscard]] std::vector<std::string> unused() const;
  [[nodiscard]] int64_t num_parameters() const;

 private:
  Expected<const GgufTensor*> take(const std::string& name);

  const GgufFile& file_;
  int64_t packed_total_bytes_ = 0;
  int64_t packed_used_bytes_ = 0;
  AlignedBuffer arena_;
  std::unordered_set<std::string_view> taken_;
};

}  // namespace sluice
