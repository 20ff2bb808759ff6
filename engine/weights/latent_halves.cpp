// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/latent_halves.h"

#include <algorithm>
#include <string>

#include "quant/plain_rows.h"

namespace sluice {
Expected<LatentShape> read_latent_shape(const Metadata& metadata) {
  constexpr uint64_t kMost = 1024;
  LatentShape shape;
  SLUICE_TRY(shape.num_heads, metadata.get_count("attention.head_count", kMost));
  SLUICE_TRY(shape.kv_rank, metadata.get_count("attention.kv_lora_rank", 1 << 14));
  SLUICE_TRY(shape.rope_dim, metadata.get_count("rope.dimension_count", kMost));
  // Early GGUF files give a head's sizes under the usual names.
  const bool has_own = metadata.has("attention.key_length_mla");
  const char* key = has_own ? "attention.key_length_mla" : "attention.key_length";
  const char* value = has_own || metadata.has("attention.value_length_mla")
                          ? "attention.value_length_mla"
                          : "attention.value_length";
  if (metadata.has("attention.nope_length")) {
    SLUICE_TRY(shape.nope_dim, metadata.get_count("attention.nope_length", kMost));
  } else {
    SLUICE_TRY(const int32_t both, metadata.get_count(key, kMost));
    shape.nope_dim = both - shape.rope_dim;
  }
  if (metadata.has(value)) {
    SLUICE_TRY(shape.value_dim, metadata.get_count(value, kMost));
  } else {  // MiniCPM 3's
    SLUICE_TRY(const int32_t hidden, metadata.get_count("embedding_length", 1 << 20));
    shape.value_dim = hidden / shape.num_heads;
  }
  if (shape.nope_dim > 0 && shape.rope_dim % 2 == 0 && shape.value_dim > 0) return shape;
  return metadata.wrong(key,
                        std::to_string(shape.nope_dim + shape.rope_dim),
                        "more than rope.dimension_count, an even number");
}

WeightFormat LatentHalf::format() const {
  const WeightFormat stored = whole_->format;
  const bool is_float = stored == WeightFormat::kF32 || stored == WeightFormat::kF16;
  return is_float && !whole_->coded ? stored : WeightFormat::kBF16;
}

std::array<uint64_t, 3> LatentHalf::dims() const {
  const int32_t width = is_key_ ? shape_.nope_dim : shape_.kv_rank;
  const int32_t rows = is_key_ ? shape_.kv_rank : shape_.value_dim;
  return {static_cast<uint64_t>(width),
          static_cast<uint64_t>(rows),
          static_cast<uint64_t>(shape_.num_heads)};
}

std::vector<float> LatentHalf::decode(int64_t first, int64_t count) const {
  const int64_t width = shape_.kv_rank;
  std::vector<float> values(static_cast<size_t>(count * width));
  if (!whole_->coded) {
    const int64_t bytes = row_bytes(whole_->format, width);
    for (int64_t i = 0; i < count; ++i) {
      dequantize_row(whole_->format,
                     whole_->data.data() + (first + i) * bytes,
                     width,
                     values.data() + i * width);
    }
    return values;
  }
  PlainReader reader(*whole_->coded);
  for (int64_t done = 0; done < count; done += kRowTile) {
    const auto some = static_cast<int32_t>(std::min<int64_t>(kRowTile, count - done));
    const PlainRows& rows = reader.read(first + done, some);
    for (int32_t i = 0; i < some; ++i) {
      for (int64_t d = 0; d < width; ++d) {
        values[static_cast<size_t>((done + i) * width + d)] =
            static_cast<float>(plain_value(rows, i, d));
      }
    }
  }
  return values;
}

std::vector<std::byte> LatentHalf::rows(int64_t first, int64_t count) const {
  const int64_t per_head = is_key_ ? shape_.kv_rank : shape_.value_dim;
  const int64_t head = first / per_head;
  const int64_t row = first % per_head;
  CHECK_LE(row + count, per_head);
  const int64_t at = head * (shape_.nope_dim + shape_.value_dim);
  std::vector<float> values;
  if (is_key_) {
    const std::vector<float> keys = decode(at, shape_.nope_dim);
    values.reserve(static_cast<size_t>(count * shape_.nope_dim));
    for (int64_t d = row; d < row + count; ++d) {
      for (int64_t i = 0; i < shape_.nope_dim; ++i) {
        values.push_back(keys[static_cast<size_t>(i * shape_.kv_rank + d)]);
      }
    }
  } else {
    values = decode(at + shape_.nope_dim + row, count);
  }
  const int64_t width = is_key_ ? shape_.nope_dim : shape_.kv_rank;
  const WeightFormat result = format();
  std::vector<std::byte> bytes(static_cast<size_t>(count * row_bytes(result, width)));
  for (int64_t i = 0; i < count; ++i) {
    quantize_row(
        result, values.data() + i * width, width, bytes.data() + i * row_bytes(result, width));
  }
  return bytes;
}

}  // namespace sluice
