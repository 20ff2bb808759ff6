// SPDX-License-Identifier: Apache-2.0
// Sums of products of inputs for GPTQ, the dominant cost of a calibration.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/weights/input_tap.h"

namespace sluice {

// Adds the sum over rows of x_i x_j to products[i][j], for j >= i. [k][k].
void add_products(const TappedRows& rows, float* products);

// Multiplies by `scale` and fills the lower half from the upper. Does nothing if `products` is
// empty.
void mirror_products(int64_t k, float scale, std::vector<float>& products);

}  // namespace sluice
