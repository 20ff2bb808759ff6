// SPDX-License-Identifier: Apache-2.0
// Makes the answer of a pooled request from its rows' states, in one fixed order of float32
// operations: what it gets does not depend on chunks, batch mates or threads. Engine thread only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/core/pooling.h"
#include "engine/weights/pooled_layers.h"
#include "scheduler/scheduled_request.h"

namespace sluice {

// Returns the rows that such a request needs.
[[nodiscard]] PooledRows rows_to_pool(const PoolingInfo& info, const PoolingParams& params);

// Adds the state of the request's next row to what it has; `pooled` is empty before the first.
void pool_row(const PoolingInfo& info,
              const PoolingParams& params,
              std::span<const float> state,
              std::vector<float>& pooled);

// Computes the answer from all rows of a prompt of `num_tokens`: takes the mean, applies the
// model's layers after the pooling, truncates, normalizes, scores. Returns false if a value is not
// finite.
[[nodiscard]] bool finish_pooling(const PoolingInfo& info,
                                  const PoolingParams& params,
                                  std::span<const PooledLayer> layers,
                                  int32_t num_tokens,
                                  std::vector<float>& pooled);

}  // namespace sluice
