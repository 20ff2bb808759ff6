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
          .tokens_per_entry = view.block_size,
          .replay_start_loc = batch.replay_start_loc,
          .num_drafts = batch.num_drafts};
}

int32_t num_state_rows(const ForwardBatch& batch) {
  return static_cast<int32_t>(batch.token_ids.size()) + batch.num_replayed;
}

int64_t most_state_rows(const StepBounds& bounds, const ModelConfig& config) {
  return bounds.max_tokens + int64_t{bounds.max_seqs} * config.most_drafts;
}

KvGroupSpec replayed_state_group(std::vector<KvPlane> planes,
                                 const ModelConfig& config,
                                 int32_t row_floats) {
  if (config.most_drafts > 0) {
    planes.push_back({.num_heads = static_cast<int32_t>(ceil_div(row_floats, kernels::kStateLanes)),
                      .width = config.most_drafts * kernels::kStateLanes,
                      .dtype = DType::kF32,
                      .per = KvPlane::Per::kEntry,
                      .is_copied = false});
  }
  return state_group(std::move(planes), config.most_drafts);
}

void replay_rows(const ForwardContext& context,
                 const LayerCache& cache,
                 float* rows,
                 int64_t row_stride,
                 const ReplayedColumns& columns) {
  const ForwardBatch& batch = context.batch;
  if (batch.num_drafts.empty()) return;
  kernels::replay_rows(context.exec,
                       {.rows = rows,
                        .row_stride = row_stride,
                        .columns = {columns[0], columns[1]},
                        .kept = state_table(batch, cache, cache.planes.size() - 1)});
}

KvPlane conv_plane(int32_t channels, int32_t taps) {
  return {.num_heads = channels / kernels::kStateLanes,
          .width = (taps - 1) * kernels::kStateLanes,
          .dtype = DType::kF32,
          .per = KvPlane::Per::kEntry};
}

std::vector<float> columns_of_rows(std::span<const float> rows,
                                   int32_t width,
                                   std::span<const std::pair<int32_t, Portion>> portions) {
  std::vector<float> own;
  for (size_t row = 0; row < rows.size(); row += static_cast<size_t>(width)) {
    for (const auto& [first, portion] : portions) {
      const auto begin = rows.begin() + static_cast<ptrdiff_t>(row) + first + portion.first;
      own.insert(own.end(), begin, begin + portion.count);
    }
  }
  return own;
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
  if (found > 0 && found % kernels::kStateLanes == 0) return {};
  return make_error(ErrorCode::kUnsupported,
                    weights.path() + ": " + what + ": found " + std::to_string(found) +
                        ", expected a multiple of " + std::to_string(kernels::kStateLanes));
}

}  // namespace sluice
