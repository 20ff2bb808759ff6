// SPDX-License-Identifier: Apache-2.0
// The pieces of which architectures are composed: arena layout, inputs in the formats that a
// layer's weights need, and projections that share one input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/models/model_config.h"
#include "engine/weights/weight_store.h"
#include "kernels/gemm.h"
#include "kernels/row_steps.h"
#include "quant/repack.h"

namespace sluice {

// Allocates 64-byte aligned pieces of a buffer. With a null base it only counts, so that one layout
// function serves both the memory plan and the step.
class Arena {
 public:
  Arena() = default;

  explicit Arena(std::span<std::byte> buffer)
      : base_(buffer.data()), capacity_(static_cast<int64_t>(buffer.size())) {}

  std::byte* take_bytes(int64_t bytes);

  float* take_floats(int64_t count) {
    return reinterpret_cast<float*>(take_bytes(count * static_cast<int64_t>(sizeof(float))));
  }

  [[nodiscard]] int64_t used() const { return used_; }

 private:
  std::byte* base_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
};

using kernels::kNumActivationFormats;

// Several weight matrices on the same input (q, k and v; gate and up), or a single one.
class Projection {
 public:
  struct Part {
    std::string stem;  // the tensors' names are stem.weight, stem.bias
    int64_t n;
    bool bias = false;
    RowSlice slice = {};  // within a tensor that holds several parts
    Portion rows = {};    // this rank's share of the n rows
    bool floats = false;  // float weights take float rows on every device: equal bits
    bool experts = false;  // read by linear_experts alone
  };

  // Takes the tensors from the store, only this rank's part of them where it keeps shares. With a
  // subset of the segments, only those columns of k are used.
  static Expected<Projection> load(WeightStore& weights,
                                   std::span<const Part> parts,
                                   int64_t k,
                                   int32_t activation_bits,
                                   kernels::Segments segments = {});

  [[nodiscard]] bool needs(kernels::ActivationFormat format) const {
    return needs_[static_cast<size_t>(format)];
  }

  [[nodiscard]] const PackedWeight& weight(size_t part) const { return weights_[part]; }

  // Columns in use: the width of the input.
  [[nodiscard]] int32_t k() const { return k_; }

  [[nodiscard]] const kernels::Segments& segments() const { return segments_; }

  // The checkpoint's static scale for input rows of the format, the largest over the parts; 0:
  // none.
  [[nodiscard]] float input_scale(kernels::ActivationFormat format) const {
    return input_scales_[static_cast<size_t>(format)];
  }

  // Merges the formats and input scales of a projection that takes the same rows, as experts do:
  // the largest scales. An empty projection becomes a reader of what the others read.
  // kUnsupported, after `place` (file and tensor): one has a scale and the other none.
  Expected<void> share_input_scales(const Projection& other, const std::string& place);

  // Returns the same matrices with only these rows of each part; on a device not for formats with
  // scales after their rows.
  [[nodiscard]] Projection with_rows(const Portion& rows) const;

  [[nodiscard]] std::span<const PackedWeight> weights() const { return weights_; }

  [[nodiscard]] kernels::ActivationFormat format(size_t part) const { return formats_[part]; }

  [[nodiscard]] const float* bias(size_t part) const { return biases_[part].data(); }

  // Shows the input to the store's tap, if there is one.
  void show(const kernels::Activations& input) const;

 private:
  std::vector<PackedWeight> weights_;
  std::vector<kernels::ActivationFormat> formats_;
  std::vector<DeviceFloats> biases_;  // by part; empty: none
  std::array<bool, kNumActivationFormats> needs_{};
  std::array<float, kNumActivationFormats> input_scales_{};
  int32_t k_ = 0;
  kernels::Segments segments_;
  DeviceType device_ = DeviceType::kCpu;
  InputTap* tap_ = nullptr;
  std::vector<std::string> stems_;  // only with a tap

  Expected<void> add_format(const WeightStore& weights, const Part& part, int32_t activation_bits);
  [[nodiscard]] Expected<void> check_borders(const WeightStore& weights,
                                             const Part& part,
                                             int64_t k) const;
};

// Writes 0, 1, 2, ... to `rows`, in the device's memory if it has its own.
void number_rows(kernels::DeviceMemory& memory, int32_t* rows, int32_t count);

// The input rows of a projection, once per activation format that a layer's weights need.
class LinearInput {
 public:
  LinearInput() = default;
  // Allocates `max_rows` rows in every format that one of `projections` needs.
  LinearInput(std::span<const Projection* const> projections, int32_t max_rows, Arena& arena);

  // Sets the number of rows of this step, at most max_rows.
  void set_num_rows(int32_t num_rows) {
    for (kernels::Activations& rows : by_format_) rows.num_rows = num_rows;
  }

  // Calls fill(activations) for each format that `projection` needs.
  template <typename Fill>
  void fill_for(const Projection& projection, Fill&& fill) const {
    for (int i = 0; i < kNumActivationFormats; ++i) {
      const auto format = static_cast<kernels::ActivationFormat>(i);
      if (!projection.needs(format)) continue;
      kernels::Activations rows = by_format_[static_cast<size_t>(i)];
      rows.static_scale = projection.input_scale(format);
      fill(rows);
    }
  }

  [[nodiscard]] const kernels::Activations& in(kernels::ActivationFormat format) const {
    return by_format_[static_cast<size_t>(format)];
  }

  // Quantizes rows of floats for `projection`, immediately or as steps.
  void quantize(const kernels::ExecContext& exec,
                const Projection& projection,
                const float* x,
                int64_t x_stride) const;
  void add_quantize_steps(const Projection& projection,
                          const float* x,
                          int64_t x_stride,
                          kernels::RowSteps& steps) const;

 private:
  std::array<kernels::Activations, kNumActivationFormats> by_format_{};
};

struct ProjectionOutput {
  float* data;
  int64_t stride;
};

// Computes out[i] (+)= x * W_i^T for each part of the projection, then runs `then` for each row.
void project(const kernels::ExecContext& exec,
             const Projection& projection,
             const LinearInput& input,
             std::span<const ProjectionOutput> outputs,
             kernels::Epilogue epilogue,
             const kernels::RowSteps* then = nullptr);

}  // namespace sluice
