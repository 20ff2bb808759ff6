// SPDX-License-Identifier: Apache-2.0
// Sums of products of inputs, which GPTQ needs: the only part of a calibration whose time matters.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/weights/input_tap.h"

namespace sluice {

// products[i][j] += sum over rows of x_i x_j, for j >= i. [k][k].
void add_products(const TappedRows& rows, float* products);

// Times `scale`, and the other half from this one. Nothing where `products` is empty.
void mirror_products(int64_t k, float scale, std::vector<float>& products);

}  // namespace sluice
