// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/reordered.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "quant/format.h"

namespace sluice {

Expected<SplitQkv> split_grouped_qkv(const CheckpointTensor& whole, const Metadata& metadata) {
  constexpr uint64_t kMost = 1024;
  SLUICE_TRY(const int32_t hidden, metadata.get_count("embedding_length", 1 << 20));
  SLUICE_TRY(const int32_t heads, metadata.get_count("attention.head_count", kMost));
  SLUICE_TRY(const int32_t kv_heads, metadata.get_count_or("attention.head_count_kv", kMost, heads));
  SLUICE_TRY(const int32_t width,
             metadata.get_count_or("attention.key_length", kMost, hidden / heads));
  const auto fail = [&](ErrorCode code, const std::string& found, const std::string& expected) {
    return make_error(
        code, whole.file + ": tensor " + whole.stored_name + ": found " + found + ", expected " + expected);
  };
  if (whole.coded) {
    return fail(ErrorCode::kUnsupported, "codes", "floats: rows of q, k and v take turns");
  }
  const uint64_t rows = whole.num_dims == 1 ? whole.dims[0] : whole.dims[1];
  const auto all = static_cast<uint64_t>(heads + 2 * kv_heads) * static_cast<uint64_t>(width);
  if (whole.num_dims > 2 || rows != all || heads % kv_heads != 0) {
    return fail(ErrorCode::kDataLoss,
                std::to_string(rows) + " rows",
                std::to_string(all) + ", of " + std::to_string(heads) + " query heads and " +
                    std::to_string(kv_heads) + " KV heads");
  }
  const size_t row_size = whole.data.size() / rows;
  const auto groups = static_cast<size_t>(kv_heads);
  const auto queries = static_cast<size_t>(heads / kv_heads);
  SplitQkv result;
  size_t before = 0;  // heads of a group in front of the part's
  for (const auto& [name, count] : {std::pair("attn_q", queries), {"attn_k", 1}, {"attn_v", 1}}) {
    const size_t bytes = count * static_cast<size_t>(width) * row_size;
    const size_t group_bytes = (queries + 2) * static_cast<size_t>(width) * row_size;
    const size_t first = before * static_cast<size_t>(width) * row_size;
    std::vector<std::byte>& memory = result.memory.emplace_back(groups * bytes);
    for (size_t group = 0; group < groups; ++group) {
      std::memcpy(memory.data() + group * bytes,
                  whole.data.data() + group * group_bytes + first,
                  bytes);
    }
    before += count;
    CheckpointTensor part = whole;
    part.name.replace(part.name.find("attn_qkv"), std::string("attn_qkv").size(), name);
    part.dims[whole.num_dims - 1] = groups * count * static_cast<size_t>(width);
    part.data = memory;
    result.tensors.push_back(std::move(part));
  }
  return result;
}

Expected<std::array<CheckpointTensor, 3>> split_equal_qkv(const CheckpointTensor& whole) {
  const uint64_t rows = whole.dims[1];
  if (whole.coded || whole.num_dims != 2 || rows % 3 != 0) {
    return make_error(whole.coded ? ErrorCode::kUnsupported : ErrorCode::kDataLoss,
                      whole.file + ": tensor " + whole.stored_name + ": found " +
                          (whole.coded ? "codes" : std::to_string(rows) + " rows") +
                          ", expected floats, as many rows of q, of k and of v");
  }
  std::array<CheckpointTensor, 3> parts = {whole, whole, whole};
  const size_t bytes = whole.data.size() / 3;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string& name = parts[i].name;
    name.replace(name.find("qkv"), std::string_view("qkv").size(), 1, "qkv"[i]);
    parts[i].dims[1] = rows / 3;
    parts[i].data = whole.data.subspan(i * bytes, bytes);
  }
  return parts;
}

Expected<void> normalize_rows(CheckpointTensor& matrix,
                              std::vector<std::vector<std::byte>>& memory) {
  const WeightFormat format = matrix.format;
  if (matrix.coded || !layout_of(format).is_float()) {
    return make_error(ErrorCode::kUnsupported,
                      matrix.file + ": tensor " + matrix.stored_name +
                          ": found codes, expected floats: its rows are normalized");
  }
  const auto width = static_cast<int64_t>(matrix.dims[0]);
  const auto row_size = static_cast<size_t>(row_bytes(format, width));
  std::vector<std::byte>& out = memory.emplace_back(matrix.data.size());
  std::vector<float> row(matrix.dims[0]);
  for (size_t at = 0; at < out.size(); at += row_size) {
    dequantize_row(format, matrix.data.data() + at, width, row.data());
    double squares = 0;
    for (const float x : row) squares += double{x} * double{x};
    const double length = std::max(std::sqrt(squares), 1e-12);
    for (size_t i = 0; i < row.size(); ++i) {
      const auto value = static_cast<float>(double{row[i]} / length);
      if (format == WeightFormat::kF32) {
        std::memcpy(out.data() + at + 4 * i, &value, 4);
        continue;
      }
      const uint16_t bits =
          format == WeightFormat::kF16 ? float_to_half(value) : float_to_bf16(value);
      std::memcpy(out.data() + at + 2 * i, &bits, 2);
    }
  }
  matrix.data = out;
  return {};
}

Expected<void> transpose(CheckpointTensor& matrix, std::vector<std::vector<std::byte>>& memory) {
  if (matrix.coded) {
    return make_error(ErrorCode::kUnsupported,
                      matrix.file + ": tensor " + matrix.stored_name +
                          ": found codes, expected floats: its rows are those of inputs");
  }
  const size_t columns = matrix.dims[0];
  const size_t rows = matrix.dims[1];
  if (rows == 0 || columns == 0) return {};
  const size_t size = matrix.data.size() / (rows * columns);
  std::vector<std::byte>& turned = memory.emplace_back(matrix.data.size());
  for (size_t row = 0; row < rows; ++row) {
    for (size_t column = 0; column < columns; ++column) {
      std::memcpy(turned.data() + (column * rows + row) * size,
                  matrix.data.data() + (row * columns + column) * size,
                  size);
    }
  }
  std::swap(matrix.dims[0], matrix.dims[1]);
  matrix.data = turned;
  return {};
}

}  // namespace sluice
