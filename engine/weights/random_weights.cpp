// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/random_weights.h"

#include <algorithm>
#include <cmath>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "quant/kv_code.h"

namespace sluice {
namespace {

CodeKind code_kind(WeightFormat format) {
  const std::optional<CodeKind> kind = plain_code(format);
  CHECK(kind);
  return *kind;
}

// Returns what code_of() gives for 1.
float most_of(CodeKind kind) {
  switch (kind) {
    case CodeKind::kInt8:
      return 127;
    case CodeKind::kE4M3:
      return 448;
    case CodeKind::kInt4:
      return 8;
    case CodeKind::kE2M1:
      return 6;
  }
  return 0;
}

uint8_t code_of(CodeKind kind, float value) {
  switch (kind) {
    case CodeKind::kInt8:
      return static_cast<uint8_t>(static_cast<int8_t>(127.0F * value));
    case CodeKind::kE4M3:
      return float_to_e4m3(448.0F * value);
    case CodeKind::kInt4:
      return static_cast<uint8_t>(8.0F * value + 8.0F);
    case CodeKind::kE2M1:
      break;
  }
  // Finds the largest code not above it.
  const float magnitude = 12.0F * std::abs(value);  // in doubled codes
  uint8_t code = 7;
  while (static_cast<float>(kE2M1Codebook[code]) > magnitude) --code;
  return static_cast<uint8_t>(value < 0 ? code | 8U : code);
}

}  // namespace

RandomTile::RandomTile(std::string_view name, const PackedWeight& weight, int64_t first_tile)
    : random_(name), format_(weight.format), first_tile_(first_tile), n_(weight.n), k_(weight.k) {
  const auto size = static_cast<size_t>(kRowTile * k_);
  if (format_ == WeightFormat::kBF16) {
    floats_.resize(size);
    return;
  }
  codes_.resize(size);
  const PackedLayout& layout = layout_of(format_);
  const int32_t group = layout.columns_per_scale();
  const int64_t per_row = group == 0 ? 1 : ceil_div(k_, group);
  float scale = limit(k_) / most_of(code_kind(format_));
  if (layout.scales == ScaleLayout::kSub16E4M3) {
    second_scales_.assign(kRowTile, scale);
    scale = 1;
  } else if (layout.scales == ScaleLayout::kExponent) {
    scale = std::exp2(std::floor(std::log2(scale)));
  }
  scales_.assign(static_cast<size_t>(kRowTile * per_row), scale);
}

float RandomTile::limit(int64_t k) { return std::sqrt(3.0F / static_cast<float>(k)); }

int64_t RandomTile::make(int64_t tile) {
  count_ = static_cast<int32_t>(std::min<int64_t>(kRowTile, n_ - tile * kRowTile));
  const int64_t first = (first_tile_ + tile) * kRowTile * k_;
  const auto size = static_cast<size_t>(count_ * k_);
  const float limit = RandomTile::limit(k_);
  const CodeKind kind = codes_.empty() ? CodeKind::kInt8 : code_kind(format_);
  for (size_t i = 0; i < size; ++i) {
    const float value = random_.at(first + static_cast<int64_t>(i));
    if (codes_.empty()) {
      floats_[i] = float_to_bf16(limit * value);
    } else {
      codes_[i] = code_of(kind, value);
    }
  }
  return count_;
}

PlainRows RandomTile::rows() const {
  return {.code = code_kind(format_),
          .rows = count_,
          .k = k_,
          .codes = codes_.data(),
          .group = layout_of(format_).columns_per_scale(),
          .scales = scales_.data(),
          .row_scales = second_scales_.empty() ? nullptr : second_scales_.data()};
}

void RandomTile::pack(std::byte* to) const {
  if (!codes_.empty()) return pack_plain(format_, rows(), to);
  pack_weight(format_, bytes(), count_, k_, 0, 1, to);
}

void RandomTile::copy_rows(std::byte* to) const {
  if (!codes_.empty()) return copy_plain_codes(format_, rows(), to);
  copy_matrix_rows(format_, bytes(), k_, 0, count_, to);
}

std::vector<float> RandomTile::row_scales(int64_t n) const {
  if (codes_.empty()) return {};
  return std::vector<float>(static_cast<size_t>(n * matrix_row_scales(format_, k_)),
                            scales_.front());
}

}  // namespace sluice
