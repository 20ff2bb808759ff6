// SPDX-License-Identifier: Apache-2.0
// A model that runs: a batch of tokens, what its layers cache, and what they give.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/models/model_config.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/sampling.h"
#include "kvcache/kv_group.h"
#include "kvcache/store/kv_plane_view.h"

namespace sluice {

class Communicator;
class KvStorage;
class Projection;

// One KV group: the layers that share a block table, and the shape of its entries.
struct LayerGroup {
  KvGroupSpec spec;  // num_blocks is set by the memory plan
  // Ascending; spec.num_layers of them. What a layer caches for a second mixer is that of layer
  // i + ModelConfig::num_layers.
  // With several stages only this one's.
  std::vector<int32_t> layers;
  // Layers that read the planes of one of those, and which.
  std::vector<std::pair<int32_t, int32_t>> readers = {};
};

// Returns a group without layers for K and V of such a layer, with cache type `dtype`.
inline KvGroupSpec attention_group(const LayerConfig& layer, DType dtype) {
  const KvPlane keys = {.num_heads = layer.num_kv_heads, .width = layer.head_dim, .dtype = dtype};
  KvPlane values = keys;
  values.width = layer.value_width();
  return {.kind = layer.window > 0 ? KvGroupKind::kWindow : KvGroupKind::kFull,
          .window = layer.window,
          .planes = {keys, values}};
}

// Tokens between the states that a prefix cache keeps beside those at the ends of prompts.
inline constexpr int32_t kSnapshotTokens = 4096;

// Returns a group without layers for states of these planes, which can take back so many drafts.
inline KvGroupSpec state_group(std::vector<KvPlane> planes, int32_t most_drafts) {
  return {.kind = KvGroupKind::kState,
          .snapshot_every = kSnapshotTokens,
          .most_drafts = most_drafts,
          .planes = std::move(planes)};
}

// The rows of one step as kernels read them: the contents of spans may be device memory; their
// sizes and all other fields are in host memory. Built by InputBatch; spans are valid for the step.
struct ForwardBatch {
  std::span<const TokenId> token_ids;        // [num_tokens]
  std::span<const int32_t> positions;        // [num_tokens]
  std::span<const int32_t> query_start_loc;  // [num_reqs + 1]
  std::span<const int32_t> seq_lens;         // [num_reqs]
  std::span<const int32_t> logits_indices;   // rows that a token is sampled from
  // Rows of each request that states take again, as offsets among all of those, and its drafts, the
  // last rows. With either both are there.
  std::span<const int32_t> replay_start_loc = {};  // [num_reqs + 1]; empty: none
  std::span<const int32_t> num_drafts = {};        // [num_reqs]; empty: none
  int32_t num_replayed = 0;                        // rows of all requests
  // Places in token_ids that the thread which runs the step fills before the layers.
  std::span<const kernels::PendingToken> pending_tokens = {};
  // Rows behind drafts that the previous step judges, corrected by the same thread, and those
  // drafts.
  std::span<const kernels::FollowingRow> following = {};
  std::span<const TokenId> judged_drafts = {};
  // These have one entry per KV group.
  std::span<const std::span<const int64_t>> slot_mapping;  // [group][num_tokens]
  std::span<const std::span<const int32_t>> block_tables;  // [group][num_reqs * its stride]
  std::span<const int32_t> block_table_strides;            // [group]; host memory
  int32_t max_seq_len = 0;  // the largest of seq_lens, one more than the largest position
  std::span<const int32_t> num_seen = {};  // [num_reqs] as AttentionArgs::num_seen
};

// The place of what a layer caches: K and V, for attention.
struct LayerCache {
  int32_t group = 0;
  std::vector<KvPlaneView> planes;
};

// Returns where the layers of these groups, which a model has, have their planes; by layer, those
// of second mixers behind all others.
std::vector<LayerCache> layer_caches(std::span<const LayerGroup> groups, const KvStorage& storage);

// A draft head's input beside tokens: one row per token, in operators' memory.
struct HiddenRows {
  const float* data = nullptr;
  int64_t stride = 0;      // elements
  bool is_tapped = false;  // the target's layer inputs, side by side; else the head's own states
};

struct ForwardContext {
  const kernels::ExecContext& exec;
  const ForwardBatch& batch;
  std::span<const LayerCache> caches;    // of layer_caches()
  HiddenRows hidden = {};                // for a head
  Communicator* communicator = nullptr;  // of the ranks that share layers; null with one
  // Between stages, one rank of each; null with one stage, and on ranks that get rows from it.
  Communicator* stages = nullptr;

  // Whether any rank has failed.
  [[nodiscard]] bool has_failed() const;
};

// The largest step that a model must support.
struct StepBounds {
  int32_t max_tokens = 0;
  int32_t max_seqs = 0;
  int32_t max_logits = 0;  // rows whose logits are computed at once
  int32_t max_seq_len = 0;
  int32_t num_threads = 1;
  DeviceType device = DeviceType::kCpu;
};

class Model {
 public:
  virtual ~Model() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  // Layer groups of a cache whose type is `dtype` where the model leaves a choice.
  [[nodiscard]] virtual std::vector<LayerGroup> layer_groups(DType dtype) const = 0;
  // Bytes of scratch memory that steps within these bounds need.
  [[nodiscard]] virtual int64_t arena_bytes(const StepBounds& bounds) const = 0;
  // Bytes of the largest part that a rank sends in such steps.
  [[nodiscard]] virtual int64_t max_part_bytes(const StepBounds& bounds) const = 0;
  // Lays out the scratch memory; called once, before the first forward().
  virtual void bind(const StepBounds& bounds, std::span<std::byte> arena) = 0;
  // On the thread that runs the steps. forward() runs the layers; until the next forward(),
  // logits() computes those of any rows of the step, at most max_logits at once: [rows.size(),
  // vocab]. Every rank of every stage calls both; `out` is used on rank 0 of the first stage.
  // Results after a rank has failed are invalid.
  virtual void forward(const ForwardContext& context) = 0;
  virtual void logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) = 0;

  // Returns the last norm's output for some rows, at most max_logits: [rows.size()][hidden] in
  // operators' memory, valid until the next forward(), logits() or embed(). Every rank calls it; of
  // several stages the first has a result. Not for a head.
  virtual const float* embed(const ForwardContext&, std::span<const int32_t>) {
    SLUICE_UNREACHABLE("a head embeds nothing");
  }

  // Results of the last forward() in operators' memory, each [rows][width]: states() is the layers'
  // output before the last norm, of width config().hidden; taps() has the states named by
  // ModelOptions::taps, side by side.
  [[nodiscard]] virtual const float* states() const = 0;
  [[nodiscard]] virtual const float* taps() const = 0;

  [[nodiscard]] virtual const PackedWeight& embedding() const = 0;
  // The output layer, or this rank's part of it.
  [[nodiscard]] virtual const Projection& output() const = 0;
};

}  // namespace sluice
