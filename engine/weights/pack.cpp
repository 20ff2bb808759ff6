// SPDX-License-Identifier: Apache-2.0
#include "engine/weights/pack.h"

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

// Tile by tile, so that what was checked is still in the cache when it is packed.
std::optional<BadRow> pack_tiles(WeightFormat format,
                                 const std::byte* src,
                                 int64_t n,
                                 int64_t k,
                                 int64_t tile_begin,
                                 int64_t tile_end,
                                 std::byte* dst) {
  const int64_t bytes = row_bytes(format, k);
  for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
    for (int64_t row = tile * kRowTile; row < std::min(n, (tile + 1) * kRowTile); ++row) {
      const auto bad = find_non_finite(format, src + row * bytes, k);
      if (bad) return BadRow{.row = row, .value = *bad};
    }
    pack_weight(format, src, n, k, tile, tile + 1, dst);
  }
  return std::nullopt;
}

}  // namespace

Expected<void> pack_checked(const std::string& where,
                            WeightFormat format,
                            const std::byte* src,
                            int64_t n,
                            int64_t k,
                            std::byte* dst) {
  const int64_t num_tiles = ceil_div(n, kRowTile);
  const bool parallel = packed_bytes(format, n, k) >= kMinParallelBytes;
  const auto num_workers = static_cast<int64_t>(
      parallel ? std::clamp(std::thread::hardware_concurrency(), 1U, kMaxWorkers) : 1U);
  std::vector<std::optional<BadRow>> bad(static_cast<size_t>(num_workers));
  const auto work = [&](int64_t i) {
    bad[static_cast<size_t>(i)] = pack_tiles(
        format, src, n, k, num_tiles * i / num_workers, num_tiles * (i + 1) / num_workers, dst);
  };
  std::vector<std::thread> workers;
  for (int64_t i = 1; i < num_workers; ++i) workers.emplace_back(work, i);
  work(0);
  for (std::thread& worker : workers) worker.join();
  for (const auto& found : bad) {
    if (found) return non_finite_error(where, format, *found);
  }
  return {};
}

Expected<std::vector<float>> decode_checked(const std::string& where,
                                            WeightFormat format,
                                            const std::byte* row,
                                            int64_t k) {
  const auto bad = find_non_finite(format, row, k);
  if (bad) return non_finite_error(where, format, {.row = 0, .value = *bad});
  std::vector<float> values(static_cast<size_t>(k));
  dequantize_row(format, row, k, values.data());
  return values;
}

}  // namespace sluice
