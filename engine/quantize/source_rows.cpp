// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/source_rows.h"

#include <algorithm>
#include <cmath>

#include "engine/weights/gguf_parse.h"
#include "quant/format.h"
#include "quant/plain_rows.h"

namespace sluice {

TensorRows rows_of(const CheckpointTensor& tensor) {
  TensorRows shape{.rows = 1, .width = static_cast<int64_t>(tensor.dims[0])};
  for (uint32_t d = 1; d < tensor.num_dims; ++d) {
    shape.rows *= static_cast<int64_t>(tensor.dims[d]);
  }
  return shape;
}

bool is_coded(const CheckpointTensor& tensor) { return tensor.coded != nullptr; }

SourceRows::SourceRows(const std::string& file, const CheckpointTensor& tensor)
    : file_(file), tensor_(tensor) {
  if (is_coded(tensor)) reader_.emplace(*tensor.coded);
}

Expected<void> SourceRows::read(int64_t first_row, int64_t num_rows, float* out) {
  const int64_t width = rows_of(tensor_).width;
  if (reader_) {
    std::vector<double> values(static_cast<size_t>(num_rows * width));
    read_f64(first_row, num_rows, values.data());
    std::transform(values.begin(), values.end(), out, [](double x) { return float(x); });
  }
  for (int64_t r = 0; r < num_rows; ++r) {
    float* row = out + r * width;
    if (!reader_) {
      const int64_t bytes = row_bytes(tensor_.format, width);
      dequantize_row(tensor_.format, tensor_.data.data() + (first_row + r) * bytes, width, row);
    }
    for (int64_t i = 0; i < width; ++i) {
      if (std::isfinite(row[i])) continue;
      return make_error(ErrorCode::kDataLoss,
                        file_ + ": tensor " + sluice::quoted(tensor_.name) + ": row " +
                            std::to_string(first_row + r) + ": found " +
                            number_text(double{row[i]}) + " at column " + std::to_string(i) +
                            ", expected a finite weight");
    }
  }
  return {};
}

void SourceRows::read_f64(int64_t first_row, int64_t num_rows, double* out) {
  const int64_t width = rows_of(tensor_).width;
  if (reader_) {
    const PlainRows& rows = reader_->read(first_row, static_cast<int32_t>(num_rows));
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t i = 0; i < width; ++i) out[r * width + i] = plain_value(rows, r, i);
    }
    return;
  }
  const int64_t bytes = row_bytes(tensor_.format, width);
  for (int64_t r = 0; r < num_rows; ++r) {
    dequantize_row_f64(
        tensor_.format, tensor_.data.data() + (first_row + r) * bytes, width, out + r * width);
  }
}

}  // namespace sluice
