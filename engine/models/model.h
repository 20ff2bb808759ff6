// SPDX-License-Identifier: Apache-2.0
// A family of models: what its files say, and how a batch of tokens runs through it. A new one is a
// file in this folder and a row in registry.cpp.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/weights/file_spec.h"
#include "kernels/attention.h"
#include "kernels/device.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/moe.h"
#include "kernels/rope.h"
#include "kernels/sampling.h"
#include "kvcache/kv_group.h"
#include "kvcache/store/kv_plane_view.h"

namespace sluice {

class Checkpoint;
class Communicator;
class KvStorage;
class Projection;
class WeightStore;

// The places where a layer normalizes.
enum class NormPlacement : uint8_t {
  kBefore,  // the input of each half: Llama
  kAfter,   // the output of each half: OLMo 2
  kAround,  // both: Gemma
  kSum,     // the stream itself, behind each half: BERT
};

// Norms of q and k.
enum class QkNorm : uint8_t {
  kNone,
  kHead,         // of each head
  kRow,          // of all heads as one
  kRotatedHead,  // of each head, after its rotation instead of before
  kEachHead,     // of each head, which has weights of its own; subtracting the mean as others do
};

// The half of a layer that reads other tokens.
enum class MixerKind : uint8_t {
  kAttention,
  kDelta,      // the gated delta rule (kernels/recurrent.h)
  kShortConv,  // a short convolution between two gates
  kMamba2,     // Mamba-2 (kernels/recurrent.h)
  kAttentionBesideMamba2,  // both read the same rows, and their outputs are added
  kLatent,     // attention on one compressed vector a token (kernels/latent_attention.h)
  kNone,       // the layer is a feed-forward half alone
};

// The feed-forward half of a layer.
enum class FfnKind : uint8_t {
  kDense,
  kExperts,
  kBoth,  // side by side, each normed on its own; the dense half is what else are shared experts
  kNone,  // the layer is a mixer alone
};

// LongRoPE's factors: the long ones apply if the served context exceeds the original one.
struct LongRope {
  int32_t original_context = 0;
  std::vector<float> short_factors;
  std::vector<float> long_factors;
  // RopeParams::attention_factor for either, where they differ; 0: they do not.
  float short_scale = 0;
  float long_scale = 0;
};

// Frequencies that depend on the served context if it exceeds the trained one.
struct DynamicRope {
  int32_t trained_context = 0;  // 0: off
  double factor = 1;
};

// One rank's part of `whole` things; all of them if `whole` is 0.
struct Portion {
  int32_t first = 0;
  int32_t count = 0;
  int32_t whole = 0;
};

// Configuration of a draft head on the hidden states of a target model (eagle.h, eagle3.h).
struct HeadConfig {
  int32_t target_hidden = 0;   // 0: the model is not a head
  int32_t target_vocab = 0;    // rows of the embedding
  bool has_embedding = false;  // false: it uses the target's
  bool norm_before_residual = false;
  // The next row's state is what the output layer reads. Of a target: of its module.
  bool hands_on_normed = false;
  bool reads_unnormed = false;  // of a target: its module's first state is the last layer's output
  // The target's layers whose inputs the head reads, ascending; num_layers stands for the last
  // layer's output, num_layers + 1 for the input of the target's output layer.
  std::vector<int32_t> taps;
};

// Which keys a layer of latent attention reads.
enum class KeyChoice : uint8_t {
  kAll,
  kOwn,      // what its indexer chooses
  kEarlier,  // what the last layer with an indexer has chosen
};

// One rank's share of a layer; all of it if nothing is set.
struct LayerShare {
  Portion heads;     // of attention or Mamba-2, value heads of delta layers, channels of short
                     // convolutions
  Portion kv_heads;  // those that they read: also key heads, or groups of Mamba-2
  Portion ffn;     // columns of the dense half, or of each expert
  Portion shared;  // columns of the shared experts
};

// A layer's numbers of xIELU as files have them: those of kernels::Xielu before softplus, which
// `below` follows with the slope added.
struct XieluConfig {
  float above = 0;
  float below = 0;
  float slope = 0;
};

// One layer: a row of the table that a model is.
struct LayerConfig {
  // With several ranks this rank's, as are the widths.
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;     // of queries and keys
  int32_t value_dim = 0;    // of values; 0: head_dim
  int32_t window = 0;       // tokens seen, including the own one; 0: all
  bool is_chunked = false;  // those from the last multiple of `window` on
  int32_t rope = 0;    // index of ModelConfig::ropes; -1: no positions
  MixerKind mixer = MixerKind::kAttention;
  FfnKind ffn = FfnKind::kDense;
  int32_t ffn_hidden = 0;     // of the dense half, or of each expert
  int32_t shared_hidden = 0;  // of the experts that every token takes, as one; 0: none
  int32_t kv_from = -1;       // the earlier layer whose K and V it reads; -1: it has its own
  bool values_are_keys = false;  // V is K's product, normed on its own and not rotated
  bool norms_qk = true;          // if the model has norms of q and k
  bool has_sinks = true;         // if the model has attention sinks
  bool norms_outputs = false;    // as NormPlacement::kAfter in a model of kBefore
  // GateMulArgs::limit of its experts, and of its dense half or shared experts; 0: none.
  float expert_limit = 0;
  float dense_limit = 0;
  XieluConfig xielu;  // of a dense half whose function it is
  KeyChoice key_choice = KeyChoice::kAll;
  LayerShare share;

  [[nodiscard]] int32_t value_width() const { return value_dim > 0 ? value_dim : head_dim; }
};

// How experts are chosen, equal in all layers that have some.
struct MoeConfig {
  int32_t num_experts = 0;  // 0: no layer has experts
  int32_t top_k = 0;
  int32_t ffn_hidden = 0;     // per expert
  int32_t shared_hidden = 0;  // of the shared experts, as one; 0: none
  // Width of what experts read and write, between two matrices that all of a layer share; 0: the
  // model's own.
  int32_t latent = 0;
  kernels::Router router;
  bool bias = false;          // router and experts have biases
  bool choice_bias = false;   // a tensor of terms that change the choice, not the weights
  bool gated_shared = false;  // the shared experts' output is scaled by the sigmoid of a product
  bool expert_scales = false;  // a tensor of factors of the experts' weights
  bool scales_inputs = false;  // weights multiply an expert's input instead; top_k is 1
  bool sum_bias = false;       // one bias is added to the sum of the experts' outputs
};

// Layers of the gated delta rule, equal in a model.
struct DeltaConfig {
  int32_t num_key_heads = 0;
  int32_t num_value_heads = 0;  // a multiple of the key heads
  int32_t key_dim = 0;
  int32_t value_dim = 0;
  // Value head h belongs to key head h % num_key_heads, as in llama.cpp's order; else to
  // h / (value heads of a key head).
  bool has_tiled_heads = false;
  bool has_parts_apart = false;  // q, k and v have matrices and convolutions of their own
  float beta_scale = 1;          // DeltaRuleArgs::beta_scale
  float norm_eps = 0;            // of the norm of the output; 0: the model's
  kernels::GateFunction gate_function = kernels::GateFunction::kSilu;
  // Width of what two small matrices give, of which two others make the output's gates and the
  // decay of each channel of a key; 0: gates are a product of the input, a decay is a head's.
  int32_t gate_rank = 0;

  [[nodiscard]] bool decays_channels() const { return gate_rank > 0; }
};

// Layers of Mamba-2, equal in a model.
struct MambaConfig {
  int32_t num_heads = 0;   // a multiple of the groups
  int32_t num_groups = 0;  // of heads with one B and C, and of the output's norm
  int32_t head_dim = 0;
  int32_t state_dim = 0;
  // Limits of the steps.
  float min_step = 0;
  float max_step = std::numeric_limits<float>::infinity();
  bool has_norm = true;  // false: the output is gated only
  // Factors of what the first matrix gives, in its order: gates, x, B, C and steps.
  std::array<float, 5> scales = {1, 1, 1, 1, 1};
  float output_scale = 1;
};

// Layers of latent attention, equal in a model.
struct LatentConfig {
  int32_t q_rank = 0;  // width of compressed queries; 0: queries are projected at once
  int32_t kv_rank = 0;
  int32_t nope_dim = 0;  // of a head's query and key: what does not rotate, and what does
  int32_t rope_dim = 0;
  int32_t value_dim = 0;
  float norm_eps = 1e-6F;  // of the norms of both latents
  // The indexer that chooses the keys of a query (kernels/latent_index.h).
  int32_t index_heads = 0;  // 0: none, all keys are read
  int32_t index_dim = 0;
  int32_t index_top_k = 0;
  kernels::RopeStyle index_style = kernels::RopeStyle::kHalves;
};

// One rank's share of what is not in layers (rank_share.h).
struct RankShare {
  int32_t rank = 0;
  int32_t size = 1;
  kernels::Segments segments;  // input columns of matrices that write the residual stream
  Portion vocab;               // rows of the output layer
};

// One stage's layers, of all; with one stage nothing is set. The first stage also has the embedding
// and all that is behind the layers: the rows that choose tokens come back to it.
struct StageShare {
  int32_t stage = 0;
  int32_t count = 1;
  int32_t first_layer = 0;
  int32_t end_layer = 0;

  [[nodiscard]] bool is_first() const { return stage == 0; }
  [[nodiscard]] bool is_last() const { return stage == count - 1; }
};

// Shape and constants of a decoder-only transformer, read from the checkpoint and checked. Values
// that an architecture does not set stay as in Llama.
struct ModelConfig {
  std::string architecture;
  int32_t num_layers = 0;
  int32_t hidden = 0;
  int32_t ffn_hidden = 0;  // of dense halves
  int32_t vocab_size = 0;
  int32_t context_len = 0;
  float norm_eps = 1e-5F;
  float norm_offset = 0;  // added to every stored norm weight
  std::vector<kernels::RopeParams> ropes;
  LongRope long_rope;
  DynamicRope dynamic_rope;
  std::vector<LayerConfig> layers;
  NormPlacement norm_placement = NormPlacement::kBefore;
  bool parallel_halves = false;  // both halves read the stream before either adds; kBefore only
  bool embedding_norm = false;   // a norm of the embedding's rows
  bool parallel_norms = false;   // each of such halves has its own norm, otherwise one for both
  bool norms_subtract_mean = false;
  bool norm_bias = false;
  QkNorm qk_norm = QkNorm::kNone;
  bool qk_norm_weights = true;  // false: norms of q and k are without
  bool value_norm = false;      // of each head of V, without weights
  float value_scale = 1;        // factor of V
  float qkv_limit = 0;          // q, k and v lie within +-this before their rotation; 0: anywhere
  kernels::GateFunction gate_function = kernels::GateFunction::kSilu;
  MoeConfig moe;
  DeltaConfig delta;
  MambaConfig mamba;
  LatentConfig latent;
  int32_t conv_taps = 0;        // of delta layers, Mamba-2 and short convolutions
  bool tied_embeddings = true;  // the output layer is the embedding
  bool qkv_bias = false;
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool output_bias = false;     // of the output layer
  bool only_down_bias = false;  // of a dense half with biases, the last matrix alone has one
  bool fused_qkv = false;
  bool fused_gate_up = false;
  bool has_up_first = false;  // a fused matrix has up's rows before gate's
  bool attention_sinks = false;
  bool attention_gate = false;  // attention's output is scaled by the sigmoid of a matrix's product
  bool gates_with_queries = false;  // whose rows follow each head's queries in one matrix
  bool gates_heads = false;         // the gate is one number for each head
  float attention_scale = 0;    // factor of scores; 0: 1 / sqrt(head_dim)
  float attention_soft_cap = 0;
  // Scores fall with distance, by slopes from 2^(-this / heads) on (ALiBi); 0: they do not.
  float max_alibi_bias = 0;
  // Rows of a table of what each head's scores gain by a key's place (T5's); 0: nothing. Of an
  // encoder, whose ranks share nothing.
  int32_t place_buckets = 0;
  float embedding_scale = 1;
  float residual_scale = 1;  // factor of each half's output
  float gate_scale = 1;      // of a dense half's gate, before its function
  float dense_scale = 1;     // of a dense half's output
  float logit_scale = 1;
  float logit_soft_cap = 0;
  HeadConfig head;           // if used, vocab_size counts the tokens it chooses from
  // Layer of the module after the layers; none: as the last one that attends to every token.
  std::optional<LayerConfig> module_layer;
  int32_t attention_in = 0;  // input width of q, k and v; 0: hidden
  // Width of what each layer adds from a table of its own (layer_inputs.h); 0: nothing.
  int32_t layer_input_width = 0;
  int32_t layer_input_vocab = 0;  // rows of that table, at least those of the embedding
  bool layer_scales = false;  // each layer's output is multiplied by a stored number
  // The file says that the embedding is not the output layer, and has none: of a model of vectors.
  bool lacks_output = false;
  // A token sees those behind it too: a text is computed whole, and no token follows it.
  bool is_encoder = false;
  int32_t num_labels = 0;      // of an encoder's layer that scores; 0: it has none
  int32_t num_segments = 0;    // kinds of texts that an encoder tells apart; 0: no encoder.h
  int32_t num_positions = 0;   // rows of a learned table of positions; 0: there is none
  int32_t first_position = 0;  // that of a text's first token
  int32_t most_drafts = 0;     // rows of a request in a step that its states can take back
  // Has the place before the first one wherever it stands, and counts for none; -1: no token does.
  TokenId padding_token = -1;
  // Tokens that are never chosen, ascending: their logits are kSuppressedLogit (output_layer.h).
  std::vector<TokenId> suppressed;
  RankShare share;
  StageShare stage;

  // The layers that this stage has: [first_layer(), end_layer()).
  [[nodiscard]] int32_t first_layer() const { return stage.first_layer; }

  [[nodiscard]] int32_t end_layer() const { return stage.count > 1 ? stage.end_layer : num_layers; }

  [[nodiscard]] bool has_layer(int32_t layer) const {
    return layer >= first_layer() && layer < end_layer();
  }

  [[nodiscard]] bool has(FfnKind kind) const {
    return std::ranges::find(layers, kind, &LayerConfig::ffn) != layers.end();
  }

  [[nodiscard]] bool has_experts() const { return has(FfnKind::kExperts) || has(FfnKind::kBoth); }

  // Width of what Model::embed() gives.
  [[nodiscard]] int32_t embedded_width() const { return num_labels > 0 ? num_labels : hidden; }

  // Whether a layer keeps a state instead of every token.
  [[nodiscard]] bool is_recurrent() const {
    return std::ranges::any_of(layers, [](const LayerConfig& layer) {
      return layer.mixer == MixerKind::kDelta || layer.mixer == MixerKind::kShortConv ||
             layer.mixer == MixerKind::kMamba2 ||
             layer.mixer == MixerKind::kAttentionBesideMamba2;
    });
  }

  [[nodiscard]] bool has_latents() const { return latent.kv_rank > 0; }

  [[nodiscard]] int64_t rope_bytes(int64_t max_position) const {
    int64_t total = 0;
    for (const kernels::RopeParams& rope : ropes) {
      total += kernels::RopeTable::bytes(rope, max_position);
    }
    return total;
  }
};

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

struct ModelOptions {
  int32_t activation_bits = 8;
  int32_t max_model_len = 0;  // rows of the rope table
  // Operators' memory; a device's has a copy of the rope table.
  kernels::DeviceMemory* memory = &kernels::host_memory();
  std::vector<int32_t> taps = {};           // HeadConfig::taps of the head that reads them
  const PackedWeight* embedding = nullptr;  // the target's, for a head without one
  const Projection* output = nullptr;       // the target's, for a head without one
};

// One family: all that bears its name. `configure` sets what goes beyond the common keys; `build`
// takes its tensors from the store, which remembers what was taken.
struct ModelSpec {
  FileSpec files = {};
  Expected<void> (*configure)(const Checkpoint& checkpoint, ModelConfig& config) = nullptr;
  Expected<std::unique_ptr<Model>> (*build)(ModelConfig config,
                                            const ModelOptions& options,
                                            WeightStore& weights) = nullptr;
  // Whether a GGUF model of `files.gguf` with this configuration becomes a directory of this family
  // although another one reads the file; null: never.
  bool (*takes_gguf)(const ModelConfig& config) = nullptr;
  // Keys that a written config.json (engine/quantize/hf_keys.cpp) and GGUF file (gguf_keys.cpp) of
  // this family have beside those of all families.
  std::span<const std::string_view> hf_keys = {};
  std::span<const std::string_view> gguf_keys = {};
  bool is_head = false;  // may use another model's embedding
};

// All families.
std::span<const ModelSpec* const> model_specs();

// kUnsupported names the architecture found and those supported.
Expected<const ModelSpec*> find_model_spec(const Checkpoint& checkpoint);

// Reads the common keys, then the architecture's own.
Expected<ModelConfig> read_model_config(const ModelSpec& spec, const Checkpoint& checkpoint);

}  // namespace sluice
