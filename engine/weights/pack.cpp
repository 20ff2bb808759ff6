// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/pack.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <thread>

#include "engine/core/log.h"
#include "engine/core/types.h"

namespace sluice {
namespace {

constexpr int64_t kMinParallelBytes = 4 << 20;
constexpr unsigned kMaxWorkers = 8;

struct BadRow {
  int64_t row;
  NonFinite value;
};

Error non_finite_error(const std::string& where, WeightFormat format, const BadRow& bad) {
  const bool in_blocks = layout_of(format).is_integer();
  const std::string value = std::isnan(bad.value.value) ? "nan"
                            : bad.value.value < 0       ? "-inf"
                                                        : "inf";
  const std::string place = "row " + std::to_string(bad.row) +
                            (in_blocks ? " block " : " column ") +
                            std::to_string(bad.value.block);
  const std::string what = in_blocks ? "scale" : "weight";
  return {.code = ErrorCode::kDataLoss,
          .message = where + ": " + place + ": found " + what + " " + value + ", expected finite " +
                     what + "s",
          .param = {}};
}

// One thread's result on its tiles.
struct PackedTiles {
  std::optional<Error> bad;
  uint64_t hash = 0;  // sum over tiles: independent of sharing
  Magnitude magnitude;
};

// Works tile by tile, so that checked and hashed data is still in the cache when packed.
PackedTiles pack_tiles(const std::string& where,
                       WeightFormat format,
                       const std::byte* src,
                       int64_t n,
                       int64_t k,
                       int64_t tile_begin,
                       int64_t tile_end,
                       std::byte* dst,
                       const MatrixPart& part) {
  const int64_t bytes = row_bytes(format, k);
  PackedTiles result;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t first = tile * kRowTile;
    const int64_t end = std::min(n, first + kRowTile);
    for (int64_t row = first; row < end; ++row) {
      const auto bad = find_non_finite(format, src + row * bytes, k);
      if (!bad) continue;
      result.bad = non_finite_error(where, format, {.row = part.first_row + row, .value = *bad});
      return result;
    }
    result.hash += XXH3_64bits_withSeed(src + first * bytes,
                                        static_cast<size_t>((end - first) * bytes),
                                        static_cast<uint64_t>(part.first_row / kRowTile + tile));
    if (part.layout == MatrixLayout::kNone) continue;
    if (part.layout == MatrixLayout::kRows) {
      copy_matrix_rows(format, src, k, first, end, dst);
    } else {
      pack_weight(format, src, n, k, tile, tile + 1, dst);
    }
  }
  return result;
}

uint64_t hash_of(const PlainRows& rows, uint64_t seed) {
  const auto scales = static_cast<size_t>(rows.rows * rows.scales_per_row());
  uint64_t hash = XXH3_64bits_withSeed(rows.codes, static_cast<size_t>(rows.rows * rows.k), seed);
  hash = XXH3_64bits_withSeed(rows.scales, scales * sizeof(float), hash);
  if (rows.zeros != nullptr) hash = XXH3_64bits_withSeed(rows.zeros, scales, hash);
  if (rows.row_scales == nullptr) return hash;
  return XXH3_64bits_withSeed(
      rows.row_scales, static_cast<size_t>(rows.rows) * sizeof(float), hash);
}

// Rounds each weight once; 16-bit scales give exact values.
std::vector<float> floats_of(const PlainRows& rows) {
  std::vector<float> values(static_cast<size_t>(rows.rows * rows.k));
  for (int64_t r = 0; r < rows.rows; ++r) {
    for (int64_t i = 0; i < rows.k; ++i) {
      values[static_cast<size_t>(r * rows.k + i)] = static_cast<float>(plain_value(rows, r, i));
    }
  }
  return values;
}

// `dst`: the tile, or the first of its rows.
void write_rows(WeightFormat format, MatrixLayout layout, const PlainRows& rows, std::byte* dst) {
  if (format != WeightFormat::kF32) {
    if (layout == MatrixLayout::kRows) return copy_plain_codes(format, rows, dst);
    return pack_plain(format, rows, dst);
  }
  const std::vector<float> values = floats_of(rows);
  const auto* const bytes = reinterpret_cast<const std::byte*>(values.data());
  if (layout == MatrixLayout::kRows) {
    return copy_matrix_rows(format, bytes, rows.k, 0, rows.rows, dst);
  }
  pack_weight(format, bytes, rows.rows, rows.k, 0, 1, dst);
}

PackedTiles pack_coded_tiles(const std::string& where,
                             const CodedMatrix& matrix,
                             int64_t first_row,
                             int64_t n,
                             int64_t tile_begin,
                             int64_t tile_end,
                             std::byte* dst,
                             const MatrixPart& part) {
  const WeightFormat format = matrix.format();
  const int64_t row_stride =
      part.layout == MatrixLayout::kRows ? matrix_row_stride(format, matrix.k()) : 0;
  PlainReader reader(matrix);
  PackedTiles result;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t first = tile * kRowTile;
    const auto count = static_cast<int32_t>(std::min<int64_t>(kRowTile, n - first));
    const PlainRows& rows = reader.read(first_row + first, count);
    if (const auto bad = find_non_finite(rows)) {
      const std::string what = bad->is_scale ? "scale" : "code";
      result.bad =
          Error{.code = ErrorCode::kDataLoss,
                .message = where + ": row " + std::to_string(part.first_row + first + bad->row) +
                           " column " + std::to_string(bad->column) + ": found a " + what +
                           " that is no number, expected finite " + what + "s",
                .param = {}};
      return result;
    }
    result.magnitude.squares += sum_of_squares(rows, 0);
    result.magnitude.num_weights += rows.k;
    result.hash += hash_of(rows, static_cast<uint64_t>(part.first_row / kRowTile + tile));
    if (part.layout == MatrixLayout::kNone) continue;
    write_rows(
        format,
        part.layout,
        rows,
        dst + (row_stride > 0 ? first * row_stride : tile * packed_tile_bytes(format, rows.k)));
  }
  return result;
}

Expected<uint64_t> sum_up(const std::string& where,
                          std::vector<PackedTiles> parts,
                          Magnitude* of_whole) {
  uint64_t hash = 0;
  Magnitude sum;
  for (PackedTiles& tiles : parts) {
    if (tiles.bad) return tl::unexpected(std::move(*tiles.bad));
    hash += tiles.hash;
    sum.squares += tiles.magnitude.squares;
    sum.num_weights += tiles.magnitude.num_weights;
  }
  if (of_whole == nullptr) {
    warn_of_magnitude(where, sum);
  } else {
    of_whole->squares += sum.squares;
    of_whole->num_weights += sum.num_weights;
  }
  return hash;
}

}  // namespace

bool warn_of_magnitude(const std::string& where, const Magnitude& magnitude) {
  constexpr double kLeast = 1e-5;
  constexpr double kMost = 10;
  if (magnitude.squares == 0) return false;
  const double root = std::sqrt(magnitude.squares / static_cast<double>(magnitude.num_weights));
  if (root >= kLeast && root <= kMost) return false;
  char text[96];
  std::snprintf(text, sizeof(text), "weights with a root mean square of %.3g", root);
  warn_of_file(where, "scales", text, "what they are, although trained ones have 1e-05 to 10");
  return true;
}

int64_t num_pack_workers(int64_t bytes) {
  if (bytes < kMinParallelBytes) return 1;
  return std::clamp(std::thread::hardware_concurrency(), 1U, kMaxWorkers);
}

void share_out(int64_t count,
               int64_t num_workers,
               const std::function<void(int64_t, int64_t, int64_t)>& work) {
  const auto share = [&](int64_t i) {
    work(i, count * i / num_workers, count * (i + 1) / num_workers);
  };
  std::vector<std::jthread> workers;
  for (int64_t i = 1; i < num_workers; ++i) workers.emplace_back(share, i);
  share(0);
}

Expected<uint64_t> pack_checked(const std::string& where,
                                WeightFormat format,
                                const std::byte* src,
                                int64_t n,
                                int64_t k,
                                std::byte* dst,
                                const MatrixPart& part) {
  const int64_t num_workers = num_pack_workers(packed_bytes(format, n, k));
  std::vector<PackedTiles> parts(static_cast<size_t>(num_workers));
  share_out(ceil_div(n, kRowTile), num_workers, [&](int64_t i, int64_t begin, int64_t end) {
    parts[static_cast<size_t>(i)] = pack_tiles(where, format, src, n, k, begin, end, dst, part);
  });
  return sum_up(where, std::move(parts), part.magnitude);
}

Expected<uint64_t> pack_checked(const std::string& where,
                                const CodedMatrix& matrix,
                                int64_t first_row,
                                int64_t n,
                                std::byte* dst,
                                const MatrixPart& part) {
  CHECK_LE(first_row + n, matrix.n());
  const int64_t num_workers = num_pack_workers(packed_bytes(matrix.format(), n, matrix.k()));
  std::vector<PackedTiles> parts(static_cast<size_t>(num_workers));
  share_out(ceil_div(n, kRowTile), num_workers, [&](int64_t i, int64_t begin, int64_t end) {
    parts[static_cast<size_t>(i)] =
        pack_coded_tiles(where, matrix, first_row, n, begin, end, dst, part);
  });
  return sum_up(where, std::move(parts), part.magnitude);
}

std::vector<float> plain_row_scales(const CodedMatrix& matrix, int64_t first_row, int64_t n) {
  const WeightFormat format = matrix.format();
  const int64_t per_row = matrix_row_scales(format, matrix.k());
  std::vector<float> scales(static_cast<size_t>(n * per_row));
  PlainReader reader(matrix);
  for (int64_t first = 0; first < n && per_row > 0; first += kRowTile) {
    const auto count = static_cast<int32_t>(std::min<int64_t>(kRowTile, n - first));
    copy_plain_scales(
        format, reader.read(first_row + first, count), scales.data() + first * per_row);
  }
  return scales;
}

Expected<DecodedRow> decode_checked(const std::string& where,
                                    WeightFormat format,
                                    const std::byte* row,
                                    int64_t k) {
  const auto bad = find_non_finite(format, row, k);
  if (bad) {
    return tl::unexpected(non_finite_error(where, format, {.row = 0, .value = *bad}));
  }
  DecodedRow result;
  result.values.resize(static_cast<size_t>(k));
  dequantize_row(format, row, k, result.values.data());
  result.hash = XXH3_64bits(row, static_cast<size_t>(row_bytes(format, k)));
  return result;
}

}  // namespace sluice
