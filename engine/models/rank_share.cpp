// SPDX-License-Identifier: Apache-2.0
#include "engine/models/rank_share.h"

#include <algorithm>
#include <array>

#include "engine/parallel/parallel.h"
#include "kernels/partial_sums.h"

namespace sluice {
namespace {

tl::unexpected<Error> refused(int32_t size, const std::string& why) {
  return make_error(ErrorCode::kUnsupported,
                    "--tensor-parallel-size " + std::to_string(size) + ": " + why,
                    "tensor-parallel-size");
}

Portion columns_of(const kernels::Segments& segments, int64_t k) {
  return {.first = static_cast<int32_t>(segments.first_column(k)),
          .count = static_cast<int32_t>(segments.num_columns(k)),
          .whole = static_cast<int32_t>(k)};
}

// The heads that give the rank's columns of the output projection's input, to which each gives
// `width`.
Expected<Portion> share_heads(const LayerConfig& whole,
                              int32_t width,
                              const kernels::Segments& segments,
                              int32_t size) {
  const Portion columns = columns_of(segments, int64_t{whole.num_heads} * width);
  if (columns.count == 0 || columns.first % width != 0 || columns.count % width != 0) {
    return refused(size,
                   "found " + std::to_string(whole.num_heads) + " attention heads of " +
                       std::to_string(width) + ", expected whole heads on each rank");
  }
  return Portion{
      .first = columns.first / width, .count = columns.count / width, .whole = whole.num_heads};
}

// Queries of latent attention may be wider than what heads give.
Expected<void> check_query_rows(const LayerConfig& whole, const Portion& heads, int32_t size) {
  if (int64_t{heads.first} * whole.head_dim % kRowTile == 0) return {};
  return refused(size,
                 "found queries of " + std::to_string(whole.head_dim) +
                     ", expected a rank's from a row that is a multiple of " +
                     std::to_string(kRowTile));
}

// The KV heads that these heads read: equally many queries for each, or a single KV head.
Expected<Portion> share_kv_heads(const LayerConfig& whole, const Portion& heads, int32_t size) {
  const int32_t queries = whole.num_heads / whole.num_kv_heads;
  const Portion kv = {
      .first = heads.first / queries,
      .count = (heads.first + heads.count - 1) / queries - heads.first / queries + 1,
      .whole = whole.num_kv_heads};
  const bool even = heads.first % queries == 0 && heads.count % queries == 0;
  // Kernels read rows in tiles.
  const bool at_tile = int64_t{kv.first} * whole.head_dim % kRowTile == 0 &&
                       int64_t{kv.first} * whole.value_width() % kRowTile == 0;
  if ((even || kv.count == 1) && at_tile) return kv;
  return refused(size,
                 "found " + std::to_string(whole.num_kv_heads) + " KV heads of " +
                     std::to_string(whole.head_dim) + " for " + std::to_string(whole.num_heads) +
                     " heads, expected whole groups of heads on each rank, from a row that is a "
                     "multiple of " +
                     std::to_string(kRowTile));
}

Expected<Portion> share_columns(int32_t width, const kernels::Segments& segments, int32_t size) {
  const Portion columns = columns_of(segments, width);
  if (columns.count > 0) return columns;
  return refused(size,
                 "found " + std::to_string(width) + " feed-forward columns, expected some of " +
                     std::to_string(kQuantGroup) + " on each rank");
}

Expected<LayerConfig> share_of_layer(const LayerConfig& whole,
                                     int32_t head_width,
                                     const kernels::Segments& segments,
                                     int32_t size) {
  LayerConfig own = whole;
  LayerShare& share = own.share;
  SLUICE_TRY(share.heads, share_heads(whole, head_width, segments, size));
  SLUICE_TRY_VOID(check_query_rows(whole, share.heads, size));
  SLUICE_TRY(share.kv_heads, share_kv_heads(whole, share.heads, size));
  SLUICE_TRY(share.ffn, share_columns(whole.ffn_hidden, segments, size));
  own.num_heads = share.heads.count;
  own.num_kv_heads = share.kv_heads.count;
  own.ffn_hidden = share.ffn.count;
  if (whole.shared_hidden > 0) {
    SLUICE_TRY(share.shared, share_columns(whole.shared_hidden, segments, size));
    own.shared_hidden = share.shared.count;
  }
  return own;
}

}  // namespace

Expected<ModelConfig> share_of(const ModelConfig& whole, int32_t rank, int32_t size) {
  if (size == 1) return whole;
  if (size != 2 && size != 4 && size != kernels::kSegments) {
    return refused(size, "expected 1, 2, 4 or 8");
  }
  if (whole.is_recurrent()) {
    return refused(size, "found recurrent layers, whose states have no shares: expected 1");
  }
  ModelConfig own = whole;
  RankShare& share = own.share;
  share.rank = rank;
  share.size = size;
  share.segments = {.first = rank * kernels::kSegments / size, .count = kernels::kSegments / size};
  for (LayerConfig& layer : own.layers) {
    const bool is_latent = layer.mixer == MixerKind::kLatent;
    const int32_t head_width = is_latent ? whole.latent.value_dim : layer.value_width();
    SLUICE_TRY(layer, share_of_layer(layer, head_width, share.segments, size));
  }
  share.vocab = vocab_share(whole.vocab_size, rank, size);
  if (share.vocab.count == 0) {
    return refused(size,
                   "found a vocabulary of " + std::to_string(whole.vocab_size) + ", expected " +
                       std::to_string(kRowTile) + " for each rank");
  }
  return own;
}

Portion vocab_share(int32_t vocab_size, int32_t rank, int32_t size) {
  const int64_t tiles = ceil_div(vocab_size, kRowTile);
  const auto border = [&](int64_t r) {
    return static_cast<int32_t>(std::min<int64_t>(vocab_size, tiles * r / size * kRowTile));
  };
  return {.first = border(rank), .count = border(rank + 1) - border(rank), .whole = vocab_size};
}

Portion rows_of(const Portion& portion, int32_t width) {
  return {.first = portion.first * width,
          .count = portion.count * width,
          .whole = portion.whole * width};
}

RankParts::RankParts(const ModelConfig& config, int64_t max_rows, Arena& arena) {
  if (config.share.size == 1) return;
  sums = arena.take_floats(max_rows * config.hidden);
  magnitudes = reinterpret_cast<int32_t*>(
      arena.take_bytes(max_rows * static_cast<int64_t>(sizeof(int32_t))));
}

GatheredSums gather_sums(const ForwardContext& context,
                         const float* own,
                         int64_t num_rows,
                         int64_t width) {
  const std::span<const float> rows(own, static_cast<size_t>(num_rows * width));
  const auto gathered = context.communicator->all_gather(std::as_bytes(rows));
  GatheredSums sums{.count = gathered.size()};
  std::ranges::transform(gathered, sums.parts.begin(), [](const std::byte* part) {
    return reinterpret_cast<const float*>(part);
  });
  return sums;
}

void project_to_stream(const ForwardContext& context,
                       const Projection& projection,
                       const LinearInput& input,
                       const RankParts& parts,
                       ProjectionOutput output,
                       kernels::Epilogue epilogue,
                       const kernels::RowSteps& then) {
  if (projection.segments().are_all()) {
    return project(context.exec, projection, input, {&output, 1}, epilogue, &then);
  }
  const PackedWeight& weight = projection.weight(0);
  const kernels::Activations& x = input.in(projection.format(0));
  const kernels::RowGroup group = {
      .weight = &weight, .out = parts.sums, .out_stride = weight.n, .bias = nullptr};
  kernels::linear(context.exec, {.x = x, .groups = {&group, 1}, .segments = projection.segments()});
  const GatheredSums sums = gather_sums(context, parts.sums, x.num_rows, weight.n);
  if (sums.count == 0) return;
  kernels::join_parts(context.exec,
                      {.parts = sums.all(),
                       .weight = &weight,
                       .x = x,
                       .bias = projection.bias(0),
                       .out = output.data,
                       .out_stride = output.stride,
                       .epilogue = epilogue,
                       .then = &then});
}

bool has_shared_scales(const Projection& projection) {
  return !projection.segments().are_all() &&
         (projection.needs(kernels::ActivationFormat::kInt8Token) ||
          projection.needs(kernels::ActivationFormat::kE4M3Token));
}

void quantize_with_shared_scales(const ForwardContext& context,
                                 const Projection& projection,
                                 const LinearInput& input,
                                 const RankParts& parts,
                                 const float* x,
                                 int64_t x_stride) {
  const kernels::ActivationFormat format = projection.format(0);
  kernels::Activations out = input.in(format);
  out.static_scale = projection.input_scale(format);
  kernels::row_magnitudes(context.exec,
                          {.x = x,
                           .x_stride = x_stride,
                           .num_rows = out.num_rows,
                           .n = projection.k(),
                           .out = parts.magnitudes});
  const std::span<const int32_t> own(parts.magnitudes, static_cast<size_t>(out.num_rows));
  const auto gathered = context.communicator->all_gather(std::as_bytes(own));
  if (gathered.empty()) return;
  std::array<const int32_t*, kernels::kSegments> magnitudes{};
  std::ranges::transform(gathered, magnitudes.begin(), [](const std::byte* part) {
    return reinterpret_cast<const int32_t*>(part);
  });
  kernels::quantize_activations(context.exec,
                                {.x = x,
                                 .x_stride = x_stride,
                                 .out = out,
                                 .magnitudes = std::span(magnitudes).first(gathered.size())});
}

}  // namespace sluice
