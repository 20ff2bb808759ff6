// SPDX-License-Identifier: Apache-2.0
#include "engine/models/state_rows.h"

namespace sluice {

kernels::StateTable state_table(const ForwardBatch& batch, const LayerCache& cache, size_t plane) {
  const auto group = static_cast<size_t>(cache.group);
  const KvPlaneView& view = cache.planes[plane];
  DCHECK(view.shape.dtype == DType::kF32 && view.shape.per == KvPlane::Per::kEntry);
  return {.states = reinterpret_cast<float*>(view.data),
          .block_floats = int64_t{view.shape.num_heads} * view.shape.width,
          .query_start_loc = batch.query_start_loc,
          .seq_lens = batch.seq_lens,
          .block_table = batch.block_tables[group].data(),
          .block_table_stride = batch.block_table_strides[group],
          .tokens_per_entry = view.block_size};
}

Expected<std::vector<float>> load_conv(WeightStore& weights,
                                       const std::string& name,
                                       int32_t channels,
                                       int32_t taps) {
  std::vector<float> by_tap;
  for (int32_t channel = 0; channel < channels; ++channel) {
    SLUICE_TRY(const std::vector<float> row, weights.vector(name, taps, {channel, channels}));
    // The first row has shown that the tensor is as large.
    by_tap.resize(static_cast<size_t>(channels) * static_cast<size_t>(taps));
    for (int32_t tap = 0; tap < taps; ++tap) {
      by_tap[static_cast<size_t>(tap * channels + channel)] = row[static_cast<size_t>(tap)];
    }
  }
  return by_tap;
}

Expected<void> check_lanes(const WeightStore& weights, const std::string& what, int32_t found) {
  constexpr int32_t kLanes = 16;
  if (found > 0 && found % kLanes == 0) return {};
  return make_error(ErrorCode::kUnsupported,
                    weights.path() + ": " + what + ": found " + std::to_string(found) +
                        ", expected a multiple of " + std::to_string(kLanes));
}

}  // namespace sluice
