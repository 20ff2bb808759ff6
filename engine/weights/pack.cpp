// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/pack.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <thread>

#include "engine/core/types.h"

namespace sluice {
namespace {

constexpr int64_t kMinParallelBytes = 4 << 20;
constexpr unsigned kMaxWorkers = 8;

struct BadRow {
  int64_t row;
  NonFinite value;
};

tl::unexpected<Error> non_finite_error(const std::string& where,
                                       WeightFormat format,
                                       const BadRow& bad) {
  const FormatInfo& info = format_info(format);
  const std::string value = std::isnan(bad.value.value) ? "nan"
                            : bad.value.value < 0       ? "-inf"
                                                        : "inf";
  const std::string place = "row " + std::to_string(bad.row) +
                            (info.is_integer ? " block " : " column ") +
                            std::to_string(bad.value.block);
  const std::string what = info.is_integer ? "scale" : "weight";
  return make_error(
      ErrorCode::kDataLoss,
      where + ": " + place + ": found " + what + " " + value + ", expected finite " + what + "s");
}

// What a thread found in its tiles.
struct PackedTiles {
  std::optional<BadRow> bad;
  uint64_t hash = 0;  // sum over the tiles: the same however they are shared out
};

// Tile by tile, so that what was checked and hashed is still in the cache when it is packed.
PackedTiles pack_tiles(WeightFormat format,
                       const std::byte* src,
                       int64_t n,
                       int64_t k,
                       int64_t tile_begin,
                       int64_t tile_end,
                       std::byte* dst,
                       std::span<const float> row_scales,
                       const MatrixPart& part) {
  const int64_t bytes = row_bytes(format, k);
  PackedTiles result;
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    const int64_t first = tile * kRowTile;
    const int64_t end = std::min(n, first + kRowTile);
    for (int64_t row = first; row < end && row_scales.empty(); ++row) {
      const auto bad = find_non_finite(format, src + row * bytes, k);
      if (!bad) continue;
      result.bad = BadRow{.row = part.first_row + row, .value = *bad};
      return result;
    }
    result.hash += XXH3_64bits_withSeed(src + first * bytes,
                                        static_cast<size_t>((end - first) * bytes),
                                        static_cast<uint64_t>(part.first_row / kRowTile + tile));
    if (part.layout == MatrixLayout::kNone) continue;
    if (part.layout == MatrixLayout::kRows) {
      copy_matrix_rows(format, src, k, first, end, dst);
    } else if (format == WeightFormat::kInt8Channel) {
      const auto* codes = reinterpret_cast<const int8_t*>(src);
      pack_int8_channel(codes, row_scales.data(), n, k, tile, tile + 1, dst);
    } else {
      pack_weight(format, src, n, k, tile, tile + 1, dst);
    }
  }
  return result;
}

}  // namespace

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
  std::vector<std::thread> workers;
  for (int64_t i = 1; i < num_workers; ++i) workers.emplace_back(share, i);
  share(0);
  for (std::thread& worker : workers) worker.join();
}

Expected<uint64_t> pack_checked(const std::string& where,
                                WeightFormat format,
                                const std::byte* src,
                                int64_t n,
                                int64_t k,
                                std::byte* dst,
                                std::span<const float> row_scales,
                                const MatrixPart& part) {
  CHECK_EQ(static_cast<int64_t>(row_scales.size()), format == WeightFormat::kInt8Channel ? n : 0);
  const int64_t num_workers = num_pack_workers(packed_bytes(format, n, k));
  std::vector<PackedTiles> parts(static_cast<size_t>(num_workers));
  share_out(ceil_div(n, kRowTile), num_workers, [&](int64_t i, int64_t begin, int64_t end) {
    parts[static_cast<size_t>(i)] =
        pack_tiles(format, src, n, k, begin, end, dst, row_scales, part);
  });
  uint64_t hash = 0;
  for (const PackedTiles& tiles : parts) {
    if (tiles.bad) return non_finite_error(where, format, *tiles.bad);
    hash += tiles.hash;
  }
  return hash;
}

Expected<DecodedRow> decode_checked(const std::string& where,
                                    WeightFormat format,
                                    const std::byte* row,
                                    int64_t k) {
  const auto bad = find_non_finite(format, row, k);
  if (bad) return non_finite_error(where, format, {.row = 0, .value = *bad});
  DecodedRow result;
  result.values.resize(static_cast<size_t>(k));
  dequantize_row(format, row, k, result.values.data());
  result.hash = XXH3_64bits(row, static_cast<size_t>(row_bytes(format, k)));
  return result;
}

}  // namespace sluice
