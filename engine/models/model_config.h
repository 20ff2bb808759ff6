// SPDX-License-Identifier: Apache-2.0
// What a model's files say of it: a table of layers, and what all of them have in common.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/types.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/moe.h"
#include "kernels/rope.h"

namespace sluice {

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

}  // namespace sluice
