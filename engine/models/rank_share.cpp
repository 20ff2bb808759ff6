// SPDX-License-Identifier: Apache-2.0
#include "engine/models/rank_share.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>

#include "engine/parallel/parallel.h"
#include "kernels/partial_sums.h"
#include "kernels/peer_rows.h"
#include "kernels/recurrent.h"

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

// Heads, named by `what`, each of which gives `width` columns of the output projection's input.
struct Heads {
  const char* what;
  int32_t count;
  int32_t width;
};

// The heads that give the rank's columns.
Expected<Portion> share_heads(const Heads& whole, const kernels::Segments& segments, int32_t size) {
  const Portion columns = columns_of(segments, int64_t{whole.count} * whole.width);
  if (columns.count == 0 || columns.first % whole.width != 0 || columns.count % whole.width != 0) {
    return refused(size,
                   "found " + std::to_string(whole.count) + " " + whole.what + " of " +
                       std::to_string(whole.width) + ", expected whole heads on each rank");
  }
  return Portion{.first = columns.first / whole.width,
                 .count = columns.count / whole.width,
                 .whole = whole.count};
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

// What belongs to a group of heads, such as their keys: of `num_groups`, those that heads read.
Portion groups_of(const Portion& heads, int32_t num_groups) {
  const int32_t group = heads.whole / num_groups;
  const int32_t first = heads.first / group;
  return {.first = first,
          .count = (heads.first + heads.count - 1) / group - first + 1,
          .whole = num_groups};
}

// Kernels take whole groups, or heads of a single one.
Expected<void> check_groups(const MambaShare& share, int32_t size) {
  const int32_t group = share.heads.whole / share.groups.whole;
  const bool are_whole = share.heads.first % group == 0 && share.heads.count % group == 0;
  if (are_whole || share.groups.count == 1) return {};
  return refused(size,
                 "found " + std::to_string(share.heads.whole) + " heads of Mamba-2 layers in " +
                     std::to_string(share.groups.whole) +
                     " groups, expected whole groups or heads of one on each rank");
}

Expected<void> check_mamba(const MambaConfig& mamba,
                           const kernels::Segments& segments,
                           int32_t size) {
  SLUICE_TRY(const MambaShare share, mamba_share(mamba, segments));
  return check_groups(share, size);
}

// The key heads of a rank's value heads, which are a range unless their order is llama.cpp's.
Portion share_key_heads(const DeltaConfig& delta, const Portion& values) {
  if (!delta.has_tiled_heads) return groups_of(values, delta.num_key_heads);
  const int32_t first = values.first % delta.num_key_heads;
  if (first + values.count <= delta.num_key_heads) {
    return {.first = first, .count = values.count, .whole = delta.num_key_heads};
  }
  return {.first = 0, .count = delta.num_key_heads, .whole = delta.num_key_heads};
}

// The attention heads of a layer, and the KV heads that they read.
Expected<void> share_attention(const ModelConfig& model,
                               const kernels::Segments& segments,
                               int32_t size,
                               LayerConfig& layer) {
  const bool is_latent = layer.mixer == MixerKind::kLatent;
  const Heads heads = {.what = "attention heads",
                       .count = layer.num_heads,
                       .width = is_latent ? model.latent.value_dim : layer.value_width()};
  const LayerConfig whole = layer;
  SLUICE_TRY(layer.share.heads, share_heads(heads, segments, size));
  SLUICE_TRY_VOID(check_query_rows(whole, layer.share.heads, size));
  SLUICE_TRY(layer.share.kv_heads, share_kv_heads(whole, layer.share.heads, size));
  layer.num_heads = layer.share.heads.count;
  layer.num_kv_heads = layer.share.kv_heads.count;
  return {};
}

Expected<void> share_mixer(const ModelConfig& model,
                           const kernels::Segments& segments,
                           int32_t size,
                           LayerConfig& layer) {
  LayerShare& share = layer.share;
  switch (layer.mixer) {
    case MixerKind::kAttention:
    case MixerKind::kLatent:
      return share_attention(model, segments, size, layer);
    case MixerKind::kDelta: {
      const DeltaConfig& delta = model.delta;
      SLUICE_TRY(
          share.heads,
          share_heads({"value heads of delta layers", delta.num_value_heads, delta.value_dim},
                      segments,
                      size));
      share.kv_heads = share_key_heads(delta, share.heads);
      return {};
    }
    case MixerKind::kShortConv: {
      SLUICE_TRY(share.heads,
                 share_heads({"channels of short convolutions", model.hidden, 1}, segments, size));
      return {};
    }
    case MixerKind::kMamba2:
      return check_mamba(model.mamba, segments, size);
    case MixerKind::kAttentionBesideMamba2:
      SLUICE_TRY_VOID(check_mamba(model.mamba, segments, size));
      return share_attention(model, segments, size, layer);
    case MixerKind::kNone:
      return {};
  }
  SLUICE_UNREACHABLE("a kind of mixer");
}

Expected<void> share_layer(const ModelConfig& model,
                           const kernels::Segments& segments,
                           int32_t size,
                           LayerConfig& layer) {
  SLUICE_TRY_VOID(share_mixer(model, segments, size, layer));
  if (layer.ffn == FfnKind::kNone) return {};
  if (layer.ffn == FfnKind::kExperts && model.moe.latent > model.hidden) {
    return refused(size,
                   "found experts of " + std::to_string(model.moe.latent) +
                       " that are wider than the model, expected at most " +
                       std::to_string(model.hidden));
  }
  LayerShare& share = layer.share;
  SLUICE_TRY(share.ffn, share_columns(layer.ffn_hidden, segments, size));
  layer.ffn_hidden = share.ffn.count;
  if (layer.shared_hidden > 0) {
    SLUICE_TRY(share.shared, share_columns(layer.shared_hidden, segments, size));
    layer.shared_hidden = share.shared.count;
  }
  return {};
}

// Channels of a convolution, of which a rank has these, as heads of its plane of states.
KvPlaneShare conv_share(std::initializer_list<Portion> portions) {
  KvPlaneShare share;
  for (const Portion& portion : portions) {
    share.heads.push_back({.first = share.whole + portion.first / kernels::kStateLanes,
                           .count = portion.count / kernels::kStateLanes});
    share.whole += portion.whole / kernels::kStateLanes;
  }
  return share;
}

KvPlaneShare heads_share(const Portion& heads) {
  return {.heads = {{.first = heads.first, .count = heads.count}}, .whole = heads.whole};
}

}  // namespace

std::vector<KvPlaneShare> plane_shares(const ModelConfig& model, const LayerGroup& group) {
  const int32_t first = group.layers.front();
  const bool is_beside = first >= model.num_layers;
  const LayerConfig& layer =
      model.layers[static_cast<size_t>(is_beside ? first - model.num_layers : first)];
  const Portion& heads = layer.share.heads;
  const Portion& read = layer.share.kv_heads;
  if (group.spec.kind != KvGroupKind::kState) {
    const auto is_copied = [](const KvPlane& plane) { return plane.is_copied; };
    const auto count = std::ranges::count_if(group.spec.planes, is_copied);
    return std::vector<KvPlaneShare>(static_cast<size_t>(count), heads_share(read));
  }
  if (layer.mixer == MixerKind::kShortConv) return {conv_share({heads})};
  if (layer.mixer == MixerKind::kDelta) {
    const Portion keys = rows_of(read, model.delta.key_dim);
    return {conv_share({keys, keys, rows_of(heads, model.delta.value_dim)}), heads_share(heads)};
  }
  const auto mamba = mamba_share(model.mamba, model.share.segments);
  CHECK(mamba.has_value());  // share_of() has refused others
  const Portion states = rows_of(mamba->groups, model.mamba.state_dim);
  return {conv_share({rows_of(mamba->heads, model.mamba.head_dim), states, states}),
          heads_share(mamba->heads)};
}

Expected<MambaShare> mamba_share(const MambaConfig& mamba, const kernels::Segments& segments) {
  MambaShare share;
  SLUICE_TRY(share.heads,
             share_heads({"heads of Mamba-2 layers", mamba.num_heads, mamba.head_dim},
                         segments,
                         kernels::kSegments / segments.count));
  share.groups = groups_of(share.heads, mamba.num_groups);
  return share;
}

Expected<ModelConfig> share_of(const ModelConfig& whole, int32_t rank, int32_t size) {
  if (size == 1) return whole;
  if (size != 2 && size != 4 && size != kernels::kSegments) {
    return refused(size, "expected 1, 2, 4 or 8");
  }
  ModelConfig own = whole;
  RankShare& share = own.share;
  share.rank = rank;
  share.size = size;
  share.segments = {.first = rank * kernels::kSegments / size, .count = kernels::kSegments / size};
  for (LayerConfig& layer : own.layers) {
    SLUICE_TRY_VOID(share_layer(whole, share.segments, size, layer));
  }
  share.vocab = vocab_share(whole.vocab_size, rank, size);
  if (share.vocab.count == 0) {
    return refused(size,
                   "found a vocabulary of " + std::to_string(whole.vocab_size) + ", expected " +
                       std::to_string(kRowTile) + " for each rank");
  }
  return own;
}

namespace {

// About how many numbers of a layer's matrices a token is multiplied with.
int64_t size_of(const ModelConfig& model, const LayerConfig& layer) {
  const auto heads = int64_t{layer.num_heads} * (layer.head_dim + layer.value_width()) +
                     int64_t{layer.num_kv_heads} * (layer.head_dim + layer.value_width());
  const bool has_attention = layer.mixer == MixerKind::kAttention && heads > 0;
  const bool has_experts = layer.ffn == FfnKind::kExperts || layer.ffn == FfnKind::kBoth;
  const int64_t chosen = has_experts ? model.moe.top_k : 1;
  const int64_t columns = chosen * layer.ffn_hidden + layer.shared_hidden;
  return model.hidden * ((has_attention ? heads : int64_t{4} * model.hidden) + 3 * columns);
}

// The first layer of each stage, and the end of the last one's.
std::vector<int32_t> stage_borders(const ModelConfig& model, int32_t count) {
  std::vector<int64_t> ends = {int64_t{model.vocab_size} * model.hidden};
  for (const LayerConfig& layer : model.layers) {
    ends.push_back(ends.back() + std::max<int64_t>(size_of(model, layer), 1));
  }
  std::vector<int32_t> borders = {0};
  for (int32_t index = 1; index < count; ++index) {
    const auto misses = [&](int32_t first) {
      return std::abs(count * ends[static_cast<size_t>(first)] -
                      index * ends[static_cast<size_t>(model.num_layers)]);
    };
    int32_t first = borders.back() + 1;
    while (first < model.num_layers - count + index && misses(first + 1) < misses(first)) ++first;
    borders.push_back(first);
  }
  borders.push_back(model.num_layers);
  return borders;
}

}  // namespace

Expected<void> take_stage(ModelConfig& model, int32_t stage, int32_t count) {
  if (count == 1) return {};
  const auto refuse = [count](const std::string& why) {
    return make_error(ErrorCode::kUnsupported,
                      "--pipeline-parallel-size " + std::to_string(count) + ": " + why,
                      "pipeline-parallel-size");
  };
  if (model.is_encoder) return refuse("found an encoder, which has no stages");
  if (model.layer_input_width > 0) {
    return refuse("found layers with inputs of their own, which the first stage alone computes");
  }
  if (model.num_layers < count) {
    return refuse("found " + std::to_string(model.num_layers) + " layers, expected one for each");
  }
  const std::vector<int32_t> borders = stage_borders(model, count);
  const auto first_of = [&](int32_t index) { return borders[static_cast<size_t>(index)]; };
  for (int32_t border = 1; border < count; ++border) {
    for (int32_t i = first_of(border); i < first_of(border + 1); ++i) {
      const LayerConfig& layer = model.layers[static_cast<size_t>(i)];
      const bool reads_kv = layer.kv_from >= 0 && layer.kv_from < first_of(border);
      const bool reads_choice = i == first_of(border) && layer.key_choice == KeyChoice::kEarlier;
      if (!reads_kv && !reads_choice) continue;
      return refuse("found layer " + std::to_string(i) + ", which reads the " +
                    (reads_kv ? "keys and values" : "chosen keys") +
                    " of a layer of another stage");
    }
  }
  model.stage = {.stage = stage,
                 .count = count,
                 .first_layer = first_of(stage),
                 .end_layer = first_of(stage + 1)};
  return {};
}

int64_t max_stage_part_bytes(const ModelConfig& config, const StepBounds& bounds) {
  const int64_t rows = std::max(bounds.max_tokens, bounds.max_logits);
  return std::min(Communicator::kPassBytes,
                  rows * config.hidden * static_cast<int64_t>(sizeof(float)));
}

namespace {

// Compares what the ranks of a stage are about to hand on, of which only the first one's is read
// elsewhere.
bool agree_on_rows(const ForwardContext& context, std::span<const float> rows) {
  uint64_t* const state = context.communicator != nullptr ? context.communicator->state() : nullptr;
  if (state == nullptr) return true;
  *state = XXH3_64bits_withSeed(rows.data(), rows.size_bytes(), *state);
  return !context.communicator->all_gather({}).empty();
}

}  // namespace

bool hand_rows(const ForwardContext& context,
               const ModelConfig& config,
               int32_t from,
               int32_t to,
               std::span<float> rows) {
  if (config.stage.stage == from && !agree_on_rows(context, rows)) return false;
  if (context.stages != nullptr &&
      !pass_all(*context.stages, from, to, std::as_writable_bytes(rows))) {
    return false;
  }
  if (config.share.size == 1 || config.stage.stage != to) return true;
  const auto parts = context.communicator->all_gather(std::as_bytes(rows));
  if (parts.empty()) return false;
  if (config.share.rank > 0) std::memcpy(rows.data(), parts.front(), rows.size_bytes());
  return true;
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
  kernels::JoinPartsArgs join = {.parts = {},
                                 .weight = &weight,
                                 .x = x,
                                 .bias = projection.bias(0),
                                 .out = output.data,
                                 .out_stride = output.stride,
                                 .epilogue = epilogue,
                                 .then = &then};
  const auto part_bytes = static_cast<size_t>(x.num_rows) * static_cast<size_t>(weight.n) * 4;
  if (const auto* const peers = context.communicator->begin_exchange(part_bytes)) {
    const float* const own = parts.sums;
    join.parts = {&own, 1};
    kernels::join_peer_parts(context.exec, {.peers = peers, .join = join});
    return context.communicator->end_exchange();
  }
  const GatheredSums sums = gather_sums(context, parts.sums, x.num_rows, weight.n);
  if (sums.count == 0) return;
  join.parts = sums.all();
  kernels::join_parts(context.exec, join);
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
