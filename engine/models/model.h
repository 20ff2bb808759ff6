// SPDX-License-Identifier: Apache-2.0
// A model architecture: what it reads from a file, and how a batch of tokens runs through it.
// Adding one: a file in this folder and a row in registry.cpp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"
#include "kvcache/kv_cache_manager.h"

namespace sluice {

class Checkpoint;
class Communicator;
class Projection;
class WeightStore;

// Where a layer normalizes.
enum class NormPlacement : uint8_t {
  kBefore,  // the input of each half: Llama
  kAfter,   // the output of each half: OLMo 2
  kAround,  // both: Gemma
};

// Norms of q and k before rotation.
enum class QkNorm : uint8_t { kNone, kHead, kRow };

// What differs between the layers of one model.
struct LayerConfig {
  int32_t window = 0;  // tokens seen, the own one included; 0: all
  int32_t rope = 0;    // index of ModelConfig::ropes; -1: no positions
};

struct MoeConfig {
  int32_t num_experts = 0;  // 0: dense
  int32_t top_k = 0;
  int32_t ffn_hidden = 0;  // of one expert
  bool normalize = true;   // router weights of the chosen experts sum to 1
  bool bias = false;       // router and experts have biases
};

// Factors of LongRoPE: the long ones where the served context exceeds the original one.
struct LongRope {
  int32_t original_context = 0;
  std::vector<float> short_factors;
  std::vector<float> long_factors;
};

// Frequencies that follow the served context where that exceeds the trained one.
struct DynamicRope {
  int32_t trained_context = 0;  // 0: off
  double factor = 1;
};

// Which of `whole` things one rank has; all of them where `whole` is 0.
struct Portion {
  int32_t first = 0;
  int32_t count = 0;
  int32_t whole = 0;
};

// Of a model that is a head on the hidden states of another one, its target (eagle.h, eagle3.h).
struct HeadConfig {
  int32_t target_hidden = 0;  // 0: the model is none
  int32_t target_vocab = 0;   // rows of the embedding
  bool has_embedding = false;  // of its own; else it is the target's
  bool norm_before_residual = false;
  // The target's layers whose inputs it reads, ascending; the number of layers: what the target's
  // output layer reads.
  std::vector<int32_t> taps;
};

// What one rank has of a model (rank_share.h).
struct RankShare {
  int32_t rank = 0;
  int32_t size = 1;
  kernels::Segments segments;  // of the input of matrices that write the residual stream
  Portion heads;
  Portion kv_heads;
  Portion ffn;
  Portion vocab;  // of the output layer
};

// Shape and constants of a decoder-only transformer, as read from the checkpoint and checked. What
// an architecture does not set stays as Llama has it.
struct ModelConfig {
  std::string architecture;
  int32_t num_layers = 0;
  int32_t hidden = 0;
  int32_t ffn_hidden = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocab_size = 0;
  int32_t context_len = 0;
  float norm_eps = 1e-5F;
  float norm_offset = 0;  // added to every stored norm weight
  std::vector<kernels::RopeParams> ropes;
  LongRope long_rope;
  DynamicRope dynamic_rope;
  std::vector<LayerConfig> layers;
  NormPlacement norm_placement = NormPlacement::kBefore;
  QkNorm qk_norm = QkNorm::kNone;
  kernels::GateFunction gate_function = kernels::GateFunction::kSilu;
  MoeConfig moe;
  bool tied_embeddings = true;  // the output layer is the embedding
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool fused_qkv = false;
  bool fused_gate_up = false;
  bool attention_sinks = false;
  float attention_scale = 0;  // of scores; 0: 1 / sqrt(head_dim)
  float attention_soft_cap = 0;
  float embedding_scale = 1;
  float residual_scale = 1;  // of each half's output
  float logit_scale = 1;
  float logit_soft_cap = 0;
  HeadConfig head;  // vocab_size is then how many tokens it chooses from
  int32_t attention_in = 0;  // width of what q, k and v are of; 0: hidden
  // Of more ranks than one num_heads, num_kv_heads and ffn_hidden are this rank's.
  RankShare share;

  [[nodiscard]] int64_t rope_bytes(int64_t num_positions) const {
    int64_t total = 0;
    for (const kernels::RopeParams& rope : ropes) {
      total += kernels::RopeTable::bytes(rope, num_positions);
    }
    return total;
  }
};

// One KV group: which layers share a block table, and the shape of its entries.
struct LayerGroup {
  KvGroupSpec spec;             // num_blocks is set by the memory plan
  std::vector<int32_t> layers;  // of this group, ascending; spec.num_layers of them
};

// A group without layers whose tokens have K and V of the model's heads, in a cache of type
// `dtype`; tokens see `window` of them, or all where it is 0.
inline KvGroupSpec attention_group(const ModelConfig& config, DType dtype, int32_t window = 0) {
  const KvPlane plane = {
      .num_heads = config.num_kv_heads, .width = config.head_dim, .dtype = dtype};
  return {.kind = window > 0 ? KvGroupKind::kWindow : KvGroupKind::kFull,
          .window = window,
          .planes = {plane, plane}};
}

// The rows of one step as kernels read them: what spans hold may be memory of a device, their sizes
// and the rest are the host's. Built by InputBatch; spans are valid for the step.
struct ForwardBatch {
  std::span<const TokenId> token_ids;        // [num_tokens]
  std::span<const int32_t> positions;        // [num_tokens]
  std::span<const int32_t> query_start_loc;  // [num_reqs + 1]
  std::span<const int32_t> seq_lens;         // [num_reqs]
  std::span<const int32_t> logits_indices;   // rows that a token is sampled from
  // Of token_ids, which whoever runs the step puts in before the layers.
  std::span<const kernels::OpenToken> open_tokens = {};
  // Rows behind drafts that the step before judges, which the same puts in their places; and those
  // drafts.
  std::span<const kernels::FollowingRow> following = {};
  std::span<const TokenId> judged_drafts = {};
  // Per KV group.
  std::span<const std::span<const int64_t>> slot_mapping;  // [group][num_tokens]
  std::span<const std::span<const int32_t>> block_tables;  // [group][num_reqs * its stride]
  std::span<const int32_t> block_table_strides;            // [group]; the host's
  int32_t max_seq_len = 0;  // the largest of seq_lens, one more than the largest position
};

// Where a layer's KV lives.
struct LayerCache {
  int32_t group = 0;
  kernels::KvLayerView view;
};

// What a head reads beside tokens: a row for each of them, where operators read.
struct HiddenRows {
  const float* data = nullptr;
  int64_t stride = 0;    // elements
  bool is_tapped = false;  // the target's layers' inputs, side by side; else the head's own states
};

struct ForwardContext {
  const kernels::ExecContext& exec;
  const ForwardBatch& batch;
  std::span<const LayerCache> caches;    // by layer
  HiddenRows hidden = {};                // of a head
  Communicator* communicator = nullptr;  // where there are more ranks than one
};

// The largest step a model must be ready for.
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
  // Of a cache whose type, where the model leaves a choice, is `dtype`.
  [[nodiscard]] virtual std::vector<LayerGroup> layer_groups(DType dtype) const = 0;
  // Bytes of scratch memory that steps within these bounds need.
  [[nodiscard]] virtual int64_t arena_bytes(const StepBounds& bounds) const = 0;
  // Bytes of the largest part that a rank gives the others in such steps.
  [[nodiscard]] virtual int64_t max_part_bytes(const StepBounds& bounds) const = 0;
  // Lays the scratch memory out, once, before the first forward().
  virtual void bind(const StepBounds& bounds, std::span<std::byte> arena) = 0;
  // By the thread that runs the steps. Runs the layers; then, until the next forward(), logits()
  // gives those of any rows of the step, at most max_logits at once: [rows.size(), vocab]. Every
  // rank calls both; `out` is rank 0's. What they leave after a rank has failed means nothing.
  virtual void forward(const ForwardContext& context) = 0;
  virtual void logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) = 0;

  // What the last norm leaves of some rows, at most max_logits: [rows.size()][hidden], where
  // operators write, until the next call of one of the three. Not of a head.
  virtual const float* embed(const ForwardContext&, std::span<const int32_t>) {
    SLUICE_UNREACHABLE("a head embeds nothing");
  }

  // Of the last forward(), where operators read and write, each [rows][width]: what layers leave
  // before the last norm, of width config().hidden; and what ModelOptions::taps names, side by
  // side.
  [[nodiscard]] virtual const float* states() const = 0;
  [[nodiscard]] virtual const float* taps() const = 0;

  [[nodiscard]] virtual const PackedWeight& embedding() const = 0;
  // Of several ranks this one's part of it.
  [[nodiscard]] virtual const Projection& output() const = 0;
};

struct ModelOptions {
  int32_t activation_bits = 8;
  int32_t max_model_len = 0;  // rows of the rope table
  // What operators read; a device's has a copy of that table.
  kernels::DeviceMemory* memory = &kernels::host_memory();
  std::vector<int32_t> taps = {};           // HeadConfig's of the head that reads them
  const PackedWeight* embedding = nullptr;  // of a head that has none: its target's
  const Projection* output = nullptr;       // the same
};

// One architecture: `configure` sets what it has beyond the keys that all share; `build` takes its
// tensors from the store, which remembers what was taken.
struct ModelSpec {
  std::string_view architecture;   // general.architecture of GGUF; empty: none
  std::string_view hf_model_type;  // model_type of config.json; empty: none
  Expected<void> (*configure)(const Checkpoint& checkpoint, ModelConfig& config);
  Expected<std::unique_ptr<Model>> (*build)(ModelConfig config,
                                            const ModelOptions& options,
                                            WeightStore& weights);
  bool is_head = false;  // its embedding may be another model's
};

// kUnsupported names the architecture found and those supported.
Expected<const ModelSpec*> find_model_spec(const Checkpoint& checkpoint);

// The keys that all architectures share, then the architecture's own.
Expected<ModelConfig> read_model_config(const ModelSpec& spec, const Checkpoint& checkpoint);

}  // namespace sluice
