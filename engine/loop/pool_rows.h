// SPDX-License-Identifier: Apache-2.0
// Makes the answer of a pooled request from its rows' states, in one fixed order of float32
// operations: what it gets does not depend on chunks, batch mates or threads. Engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/core/status.h"
#include "engine/weights/pooled_layers.h"
#include "kernels/device.h"
#include "scheduler/scheduled_request.h"

namespace sluice {

// Returns the rows that such a request needs.
[[nodiscard]] PooledRows rows_to_pool(const PoolingInfo& info, const PoolingParams& params);

// Removes the tokens `padding` that end a prompt, except its first token: no row before them sees
// them. kInvalidToken: none are.
void cut_padding(TokenId padding, std::vector<TokenId>& prompt);

// Adds the state of the request's next row to what it has, in float32 and without a fused product;
// `pooled` is empty before the first. `position`: of its token in the prompt, from 0.
void pool_row(const PoolingInfo& info,
              const PoolingParams& params,
              int32_t position,
              std::span<const float> state,
              std::vector<float>& pooled);

// Divides the sum of all rows of a prompt of `num_tokens` by what makes it the model's kind of
// mean, if it is one.
void end_rows(const PoolingInfo& info,
              const PoolingParams& params,
              int32_t num_tokens,
              std::vector<float>& pooled);

// The layers after a model's pooling, by the operators of linear layers on the calling thread.
class PooledOperators {
 public:
  // `isa`: as in Device::Options.
  static Expected<PooledOperators> create(std::vector<PooledLayer> layers, const std::string& isa);

  // Replaces the vectors of each text by what the layers make of them. All texts are computed
  // together; a vector's bits do not depend on the others.
  void apply(std::span<std::vector<float>* const> texts) const;

 private:
  struct alignas(64) Line {
    float values[16];
  };

  using Lines = std::vector<Line>;

  struct Layer {
    PooledLayer rest;  // without its matrices
    Lines weight;      // packed
    Lines residual;    // packed; empty: the identity, or none
  };

  static Lines pack(const PooledLayer& layer, const std::vector<float>& matrix);
  void run(const Layer& layer, int64_t num_rows, std::vector<float>& vectors) const;

  std::unique_ptr<kernels::Device> device_;  // null: there are no layers
  std::vector<Layer> layers_;
};

// Makes the answer of what the last layer gives: truncates, normalizes, scores. Returns false if a
// value is not finite.
[[nodiscard]] bool finish_pooling(const PoolingInfo& info,
                                  const PoolingParams& params,
                                  std::vector<float>& pooled);

}  // namespace sluice
