// SPDX-License-Identifier: Apache-2.0
// What the inputs of a model's matrices are like on a text: how much an error in each column
// counts.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/input_tap.h"

namespace sluice {

// Of the inputs x[k] of one matrix, over all rows seen.
struct InputStatistics {
  int64_t num_rows = 0;
  std::vector<float> mean_squares;  // [k], E[x_i^2]
  std::vector<float> products;      // [k][k], E[x_i x_j]; empty where they were not asked for
};

// By stem: "blk.0.attn_q".
using Calibration = std::map<std::string, std::shared_ptr<const InputStatistics>, std::less<>>;

struct CalibrationOptions {
  bool products = false;
  int64_t max_product_bytes = int64_t{4} << 30;  // kResourceExhausted beyond
  int32_t threads = 0;
};

// Runs the model on the text, in float activations but for INT8 matrices, which only know inputs of
// int8. Matrices that share an input share what is said of it; experts, whose rows differ, and INT8
// matrices have none: the result may be empty. Errors as OfflineModel::open and text_windows().
Expected<Calibration> calibrate(const std::string& path,
                                const std::string& text,
                                const CalibrationOptions& options);

}  // namespace sluice
