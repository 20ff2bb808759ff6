// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/source_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/weights/gguf_parse.h"
#include "engine/weights/latent_halves.h"
#include "quant/format.h"
#include "quant/plain_rows.h"

namespace sluice {

TensorRows SourceTensor::shape() const {
  TensorRows shape{.rows = 1, .width = static_cast<int64_t>(dims[0])};
  for (uint32_t d = 1; d < num_dims; ++d) shape.rows *= static_cast<int64_t>(dims[d]);
  return shape;
}

bool SourceTensor::is_coded() const {
  return std::ranges::any_of(pieces, [](const RowPiece& p) { return p.tensor->coded != nullptr; });
}

std::optional<WeightFormat> SourceTensor::format() const {
  if (pieces.empty() || is_coded() || offset != 0) return std::nullopt;
  const WeightFormat first = pieces.front().tensor->format;
  const bool is_one =
      std::ranges::all_of(pieces, [&](const RowPiece& p) { return p.tensor->format == first; });
  return is_one ? std::optional(first) : std::nullopt;
}

int64_t SourceTensor::bytes() const {
  int64_t bytes = 0;
  for (const RowPiece& piece : pieces) {
    const auto all = static_cast<int64_t>(piece.tensor->data.size());
    int64_t rows = 1;
    for (uint32_t d = 1; d < piece.tensor->num_dims; ++d) {
      rows *= static_cast<int64_t>(piece.tensor->dims[d]);
    }
    bytes += rows == 0 ? 0 : all / rows * piece.count;
  }
  return bytes;
}

int64_t row_behind(RowOrder order, int64_t rows, int32_t heads, int64_t row) {
  if (order != RowOrder::kToPairs && order != RowOrder::kToHalves) return row;
  const int64_t width = rows / heads;
  const int64_t first = row / width * width;
  const int64_t at = row % width;
  const int64_t half = width / 2;
  return first + (order == RowOrder::kToPairs ? at % 2 * half + at / 2 : at % half * 2 + at / half);
}

SourceTensor source_of(const CheckpointTensor& tensor) {
  SourceTensor source{.name = tensor.name, .stored_name = tensor.stored_name};
  source.input_name = tensor.stored_name.empty() ? tensor.name : tensor.stored_name;
  source.num_dims = tensor.num_dims;
  std::copy(std::begin(tensor.dims), std::end(tensor.dims), std::begin(source.dims));
  source.pieces = {{.tensor = &tensor, .first = 0, .count = source.shape().rows}};
  source.read_names = {tensor.name};
  return source;
}

SourceRows::SourceRows(const std::string& file, const SourceTensor& tensor)
    : file_(file), tensor_(tensor) {
  for (const RowPiece& piece : tensor.pieces) {
    readers_.emplace_back();
    if (piece.tensor->coded != nullptr) readers_.back().emplace(*piece.tensor->coded);
  }
}

SourceRows::Place SourceRows::place_of(int64_t row) const {
  const std::vector<RowPiece>& pieces = tensor_.pieces;
  if (tensor_.order == RowOrder::kAlternating) {
    const auto step = static_cast<int64_t>(pieces.size());
    const auto piece = static_cast<size_t>(row % step);
    return {piece, pieces[piece].first + row / step};
  }
  row = row_behind(tensor_.order, tensor_.shape().rows, tensor_.heads, row);
  size_t piece = 0;
  while (row >= pieces[piece].count) row -= pieces[piece++].count;
  return {piece, pieces[piece].first + row};
}

const std::byte* SourceRows::stored_row(const Place& place) {
  const CheckpointTensor& tensor = *tensor_.pieces[place.piece].tensor;
  const int64_t bytes = row_bytes(tensor.format, tensor_.shape().width);
  if (!tensor.latent) return tensor.data.data() + place.row * bytes;
  const auto per_head = static_cast<int64_t>(tensor.dims[1]);
  const int64_t first = place.row / per_head * per_head;
  if (head_.piece != place.piece || head_.row != first) {
    head_rows_ = tensor.latent->rows(first, per_head);
    head_ = {.piece = place.piece, .row = first};
  }
  return head_rows_.data() + (place.row - first) * bytes;
}

Expected<void> SourceRows::read(int64_t first_row, int64_t num_rows, float* out) {
  const int64_t width = tensor_.shape().width;
  std::vector<double> values(static_cast<size_t>(width));
  for (int64_t r = 0; r < num_rows; ++r) {
    float* row = out + r * width;
    if (tensor_.pieces.empty()) {
      std::copy_n(tensor_.values.data() + (first_row + r) * width, width, row);
    } else {
      const Place place = place_of(first_row + r);
      const CheckpointTensor& tensor = *tensor_.pieces[place.piece].tensor;
      if (readers_[place.piece]) {
        read_f64(first_row + r, 1, values.data());
        std::transform(values.begin(), values.end(), row, [](double x) { return float(x); });
      } else {
        dequantize_row(tensor.format, stored_row(place), width, row);
        for (int64_t i = 0; i < width && tensor_.offset != 0; ++i) row[i] += tensor_.offset;
      }
    }
    for (int64_t i = 0; i < width; ++i) {
      if (std::isfinite(row[i])) continue;
      return make_error(ErrorCode::kDataLoss,
                        file_ + ": tensor " + sluice::in_quotes(tensor_.name) + ": row " +
                            std::to_string(first_row + r) + ": found " +
                            number_text(double{row[i]}) + " at column " + std::to_string(i) +
                            ", expected a finite weight");
    }
  }
  return {};
}

void SourceRows::read_f64(int64_t first_row, int64_t num_rows, double* out) {
  const int64_t width = tensor_.shape().width;
  for (int64_t r = 0; r < num_rows; ++r) {
    double* row = out + r * width;
    if (tensor_.pieces.empty()) {
      std::copy_n(tensor_.values.data() + (first_row + r) * width, width, row);
      continue;
    }
    const Place place = place_of(first_row + r);
    const CheckpointTensor& tensor = *tensor_.pieces[place.piece].tensor;
    if (readers_[place.piece]) {
      const PlainRows& rows = readers_[place.piece]->read(place.row, 1);
      for (int64_t i = 0; i < width; ++i) row[i] = plain_value(rows, 0, i);
    } else {
      dequantize_row_f64(tensor.format, stored_row(place), width, row);
    }
    for (int64_t i = 0; i < width && tensor_.offset != 0; ++i) row[i] += double{tensor_.offset};
  }
}

void SourceRows::copy(int64_t first_row, int64_t num_rows, std::byte* out) {
  const int64_t bytes = row_bytes(*tensor_.format(), tensor_.shape().width);
  for (int64_t r = 0; r < num_rows; ++r) {
    const std::byte* const row = stored_row(place_of(first_row + r));
    std::memcpy(out + r * bytes, row, static_cast<size_t>(bytes));
  }
}

}  // namespace sluice
