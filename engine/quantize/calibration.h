// SPDX-License-Identifier: Apache-2.0
// Statistics of the inputs of a model's matrices on a text: the weight of an error in each column.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/weights/input_tap.h"

namespace sluice {

// Statistics of the inputs x[k] of one matrix over all rows seen.
struct InputStatistics {
  int64_t num_rows = 0;
  std::vector<float> mean_squares;  // [k], E[x_i^2]
  std::vector<float> products;      // [k][k], E[x_i x_j]; empty if not requested
};

// Keyed by stem: "blk.0.attn_q".
using Calibration = std::map<std::string, std::shared_ptr<const InputStatistics>, std::less<>>;

struct CalibrationOptions {
  bool products = false;
  int64_t max_product_bytes = int64_t{4} << 30;  // kResourceExhausted beyond
  int32_t threads = 0;
};

// Runs the model on the text, in float activations except for INT8 matrices, which require int8
// inputs. Matrices with a common input share its statistics; experts, whose rows differ, and INT8
// matrices have none, so the result may be empty. Errors as in OfflineModel::open and
// text_windows().
Expected<Calibration> calibrate(const std::string& path,
                                const std::string& text,
                                const CalibrationOptions& options);

}  // namespace sluice
