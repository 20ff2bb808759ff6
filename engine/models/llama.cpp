// SPDX-License-Identifier: Apache-2.0
// Llama: RMS norm before each half of a layer, rotary grouped-query attention, SwiGLU. GGUF permutes
// the rows of q and k, so rotation pairs neighbours. Key names as in the GGUF specification.
#include <array>
#include <cmath>

#include "engine/models/blocks.h"
#include "engine/models/model.h"
#include "engine/weights/gguf.h"
#include "engine/weights/weight_store.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {
namespace {

struct LlamaLayer {
  std::vector<float> attention_norm;
  std::vector<float> ffn_norm;
  Projection qkv;
  Projection attention_out;
  Projection gate_up;
  Projection down;
};

// Pieces of the arena, laid out once for the largest step.
struct LlamaBuffers {
  float* x = nullptr;          // [tokens, hidden] residual stream
  float* qkv = nullptr;        // [tokens, (heads + 2 kv_heads) * head_dim]
  float* attention = nullptr;  // [tokens, heads * head_dim]
  float* gate_up = nullptr;    // [tokens, 2 * ffn]
  float* last = nullptr;       // [logits rows, hidden]
  LinearInput hidden_in;
  LinearInput attention_in;
  LinearInput ffn_in;
  LinearInput logits_in;
  std::span<std::byte> attention_workspace;
};

class LlamaModel final : public Model {
 public:
  static Expected<std::unique_ptr<Model>> build(ModelConfig config,
                                                const ModelOptions& options,
                                                WeightStore& weights);

  [[nodiscard]] const ModelConfig& config() const override { return config_; }
  [[nodiscard]] std::vector<KvLayout> kv_layouts() const override;
  [[nodiscard]] int64_t arena_bytes(const StepBounds& bounds) const override {
    Arena arena;
    layout(bounds, arena);
    return arena.used();
  }
  void bind(const StepBounds& bounds, std::span<std::byte> buffer) override {
    Arena arena(buffer);
    buffers_ = layout(bounds, arena);
  }
  void forward(const ForwardContext& context) override;

 private:
  LlamaModel(ModelConfig config, int32_t max_model_len)
      : config_(std::move(config)),
        rope_(config_.rope, max_model_len),
        q_rows_(int64_t{config_.num_heads} * config_.head_dim),
        kv_rows_(int64_t{config_.num_kv_heads} * config_.head_dim),
        attention_scale_(1.0F / std::sqrt(static_cast<float>(config_.head_dim))) {}

  Expected<void> load_layer(int32_t index, int32_t activation_bits, WeightStore& weights);
  LlamaBuffers layout(const StepBounds& bounds, Arena& arena) const;
  void norm(const kernels::ExecContext& exec,
            const float* x,
            const std::vector<float>& weight,
            const Projection& next,
            const LinearInput& out) const;
  void attention_half(const ForwardContext& context, size_t index);
  void ffn_half(const ForwardContext& context, size_t index);

  ModelConfig config_;
  kernels::RopeTable rope_;
  int64_t q_rows_;
  int64_t kv_rows_;
  float attention_scale_;
  Projection embedding_;
  Projection head_;  // the embedding itself where the file has no output.weight
  std::vector<float> output_norm_;
  std::vector<LlamaLayer> layers_;
  LlamaBuffers buffers_;
};

Expected<std::unique_ptr<Model>> LlamaModel::build(ModelConfig config,
                                                   const ModelOptions& options,
                                                   WeightStore& weights) {
  const int64_t hidden = config.hidden;
  const int64_t vocab = config.vocab_size;
  const int32_t bits = options.activation_bits;
  if (weights.has("rope_freqs.weight")) {
    SLUICE_TRY(config.rope.freq_factors,
               weights.vector("rope_freqs.weight", config.rope.rotary_dim / 2));
  }
  std::unique_ptr<LlamaModel> model(new LlamaModel(std::move(config), options.max_model_len));
  SLUICE_TRY(model->embedding_,
             Projection::load(weights, {{"token_embd.weight", vocab}}, hidden, bits));
  model->head_ = model->embedding_;
  if (weights.has("output.weight")) {
    SLUICE_TRY(model->head_, Projection::load(weights, {{"output.weight", vocab}}, hidden, bits));
  }
  SLUICE_TRY(model->output_norm_, weights.vector("output_norm.weight", hidden));
  for (int32_t i = 0; i < model->config_.num_layers; ++i) {
    SLUICE_TRY_VOID(model->load_layer(i, bits, weights));
  }
  return model;
}

Expected<void> LlamaModel::load_layer(int32_t index, int32_t activation_bits, WeightStore& weights) {
  const std::string prefix = "blk." + std::to_string(index) + ".";
  const int64_t hidden = config_.hidden;
  const int64_t ffn = config_.ffn_hidden;
  const auto load = [&](std::initializer_list<Projection::Part> parts, int64_t k) {
    return Projection::load(weights, parts, k, activation_bits);
  };
  LlamaLayer layer;
  SLUICE_TRY(layer.attention_norm, weights.vector(prefix + "attn_norm.weight", hidden));
  SLUICE_TRY(layer.ffn_norm, weights.vector(prefix + "ffn_norm.weight", hidden));
  SLUICE_TRY(layer.qkv, load({{prefix + "attn_q.weight", q_rows_},
                              {prefix + "attn_k.weight", kv_rows_},
                              {prefix + "attn_v.weight", kv_rows_}},
                             hidden));
  SLUICE_TRY(layer.attention_out, load({{prefix + "attn_output.weight", hidden}}, q_rows_));
  SLUICE_TRY(layer.gate_up,
             load({{prefix + "ffn_gate.weight", ffn}, {prefix + "ffn_up.weight", ffn}}, hidden));
  SLUICE_TRY(layer.down, load({{prefix + "ffn_down.weight", hidden}}, ffn));
  layers_.push_back(std::move(layer));
  return {};
}

std::vector<KvLayout> LlamaModel::kv_layouts() const {
  KvLayout layout;
  layout.spec.kind = KvGroupKind::kFull;
  for (int32_t i = 0; i < config_.num_layers; ++i) layout.layers.push_back(i);
  return {layout};
}

LlamaBuffers LlamaModel::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  std::vector<const Projection*> from_hidden;
  std::vector<const Projection*> from_attention;
  std::vector<const Projection*> from_ffn;
  for (const LlamaLayer& layer : layers_) {
    from_hidden.insert(from_hidden.end(), {&layer.qkv, &layer.gate_up});
    from_attention.push_back(&layer.attention_out);
    from_ffn.push_back(&layer.down);
  }
  const std::array<const Projection*, 1> from_last = {&head_};
  LlamaBuffers buffers;
  buffers.x = arena.take_floats(tokens * config_.hidden);
  buffers.qkv = arena.take_floats(tokens * (q_rows_ + 2 * kv_rows_));
  buffers.attention = arena.take_floats(tokens * q_rows_);
  buffers.gate_up = arena.take_floats(tokens * 2 * config_.ffn_hidden);
  buffers.last = arena.take_floats(int64_t{bounds.max_logits} * config_.hidden);
  buffers.hidden_in = LinearInput(from_hidden, bounds.max_tokens, arena);
  buffers.attention_in = LinearInput(from_attention, bounds.max_tokens, arena);
  buffers.ffn_in = LinearInput(from_ffn, bounds.max_tokens, arena);
  buffers.logits_in = LinearInput(from_last, bounds.max_logits, arena);
  const int64_t workspace_bytes =
      kernels::attention_workspace_bytes({.num_reqs = bounds.max_seqs,
                                          .seq_len = bounds.max_seq_len,
                                          .num_heads = config_.num_heads,
                                          .num_kv_heads = config_.num_kv_heads,
                                          .head_dim = config_.head_dim,
                                          .num_threads = bounds.num_threads});
  buffers.attention_workspace = {arena.take_bytes(workspace_bytes),
                                 static_cast<size_t>(workspace_bytes)};
  return buffers;
}

void LlamaModel::norm(const kernels::ExecContext& exec,
                      const float* x,
                      const std::vector<float>& weight,
                      const Projection& next,
                      const LinearInput& out) const {
  out.fill_for(next, [&](const kernels::Activations& rows) {
    kernels::rms_norm(exec, {.x = x,
                             .x_stride = config_.hidden,
                             .weight = weight.data(),
                             .eps = config_.norm_eps,
                             .out = rows});
  });
}

void LlamaModel::attention_half(const ForwardContext& context, size_t index) {
  const LlamaLayer& layer = layers_[index];
  const LayerCache& cache = context.caches[index];
  const ForwardBatch& batch = context.batch;
  const int64_t stride = q_rows_ + 2 * kv_rows_;
  float* q = buffers_.qkv;
  float* k = q + q_rows_;
  float* v = k + kv_rows_;
  norm(context.exec, buffers_.x, layer.attention_norm, layer.qkv, buffers_.hidden_in);
  const std::array<ProjectionOutput, 3> qkv_out = {{{q, stride}, {k, stride}, {v, stride}}};
  project(context.exec, layer.qkv, buffers_.hidden_in, qkv_out, kernels::Epilogue::kStore);
  const auto group = static_cast<size_t>(cache.group);
  kernels::rope_write_kv(context.exec, {.q = q,
                                        .q_stride = stride,
                                        .k = k,
                                        .k_stride = stride,
                                        .v = v,
                                        .v_stride = stride,
                                        .num_heads = config_.num_heads,
                                        .table = &rope_,
                                        .positions = batch.positions,
                                        .slot_mapping = batch.slot_mapping[group],
                                        .kv = cache.view});
  kernels::attention(context.exec, {.q = q,
                                    .q_stride = stride,
                                    .num_heads = config_.num_heads,
                                    .kv = cache.view,
                                    .query_start_loc = batch.query_start_loc,
                                    .seq_lens = batch.seq_lens,
                                    .block_table = batch.block_tables[group].data(),
                                    .block_table_stride = batch.block_table_stride,
                                    .scale = attention_scale_,
                                    .out = buffers_.attention,
                                    .out_stride = q_rows_,
                                    .workspace = buffers_.attention_workspace});
  buffers_.attention_in.fill_for(layer.attention_out, [&](const kernels::Activations& rows) {
    kernels::quantize_activations(context.exec,
                                  {.x = buffers_.attention, .x_stride = q_rows_, .out = rows});
  });
  const std::array<ProjectionOutput, 1> residual = {{{buffers_.x, config_.hidden}}};
  project(context.exec, layer.attention_out, buffers_.attention_in, residual,
          kernels::Epilogue::kAdd);
}

void LlamaModel::ffn_half(const ForwardContext& context, size_t index) {
  const LlamaLayer& layer = layers_[index];
  const int64_t ffn = config_.ffn_hidden;
  float* gate = buffers_.gate_up;
  float* up = gate + ffn;
  norm(context.exec, buffers_.x, layer.ffn_norm, layer.gate_up, buffers_.hidden_in);
  const std::array<ProjectionOutput, 2> gate_up_out = {{{gate, 2 * ffn}, {up, 2 * ffn}}};
  project(context.exec, layer.gate_up, buffers_.hidden_in, gate_up_out, kernels::Epilogue::kStore);
  buffers_.ffn_in.fill_for(layer.down, [&](const kernels::Activations& rows) {
    kernels::silu_mul(context.exec, {.gate = gate, .up = up, .stride = 2 * ffn, .out = rows});
  });
  const std::array<ProjectionOutput, 1> residual = {{{buffers_.x, config_.hidden}}};
  project(context.exec, layer.down, buffers_.ffn_in, residual, kernels::Epilogue::kAdd);
}

void LlamaModel::forward(const ForwardContext& context) {
  const ForwardBatch& batch = context.batch;
  const auto num_tokens = static_cast<int32_t>(batch.token_ids.size());
  const auto num_logits = static_cast<int32_t>(batch.logits_indices.size());
  buffers_.hidden_in.set_num_rows(num_tokens);
  buffers_.attention_in.set_num_rows(num_tokens);
  buffers_.ffn_in.set_num_rows(num_tokens);
  buffers_.logits_in.set_num_rows(num_logits);
  kernels::embedding(context.exec, {.table = &embedding_.weight(0),
                                    .token_ids = batch.token_ids,
                                    .out = buffers_.x,
                                    .out_stride = config_.hidden});
  for (size_t i = 0; i < layers_.size(); ++i) {
    attention_half(context, i);
    ffn_half(context, i);
  }
  if (num_logits == 0) return;
  kernels::gather_rows(context.exec, {.x = buffers_.x,
                                      .x_stride = config_.hidden,
                                      .n = config_.hidden,
                                      .indices = batch.logits_indices,
                                      .out = buffers_.last,
                                      .out_stride = config_.hidden});
  norm(context.exec, buffers_.last, output_norm_, head_, buffers_.logits_in);
  const std::array<ProjectionOutput, 1> logits = {{{context.logits, config_.vocab_size}}};
  project(context.exec, head_, buffers_.logits_in, logits, kernels::Epilogue::kStore);
}

// A positive metadata count that fits 31 bits.
Expected<int32_t> get_count(const GgufFile& file, const std::string& key, uint64_t max) {
  SLUICE_TRY(const uint64_t value, file.get_uint(key));
  if (value == 0 || value > max) {
    return make_error(ErrorCode::kDataLoss,
                      file.path() + ": " + key + ": found " + std::to_string(value) +
                          ", expected 1 to " + std::to_string(max));
  }
  return static_cast<int32_t>(value);
}

Expected<void> read_rope(const GgufFile& file, ModelConfig& config) {
  SLUICE_TRY(const uint64_t rotary_dim,
             file.get_uint_or("llama.rope.dimension_count",
                              static_cast<uint64_t>(config.head_dim)));
  if (rotary_dim == 0 || rotary_dim % 2 != 0 ||
      rotary_dim > static_cast<uint64_t>(config.head_dim)) {
    return make_error(ErrorCode::kDataLoss,
                      file.path() + ": llama.rope.dimension_count: found " +
                          std::to_string(rotary_dim) + ", expected an even number up to " +
                          std::to_string(config.head_dim));
  }
  SLUICE_TRY(const double freq_base, file.get_float_or("llama.rope.freq_base", 10000.0));
  if (!(freq_base > 0) || !std::isfinite(freq_base)) {
    return make_error(ErrorCode::kDataLoss,
                      file.path() + ": llama.rope.freq_base: found " + std::to_string(freq_base) +
                          ", expected a positive number");
  }
  config.rope.rotary_dim = static_cast<int32_t>(rotary_dim);
  config.rope.freq_base = static_cast<float>(freq_base);
  config.rope.style = kernels::RopeStyle::kInterleaved;
  if (file.find("llama.rope.scaling.type") != nullptr) {
    SLUICE_TRY(const std::string_view type, file.get_string("llama.rope.scaling.type"));
    if (type == "linear") {
      SLUICE_TRY(const double factor, file.get_float_or("llama.rope.scaling.factor", 1.0));
      if (!(factor > 0) || !std::isfinite(factor)) {
        return make_error(ErrorCode::kDataLoss,
                          file.path() + ": llama.rope.scaling.factor: found " +
                              std::to_string(factor) + ", expected a positive number");
      }
      config.rope.freq_scale = static_cast<float>(1.0 / factor);
    } else if (type != "none") {
      return make_error(ErrorCode::kUnsupported,
                        file.path() + ": llama.rope.scaling.type: " + std::string(type) +
                            " is not supported; supported: none, linear");
    }
  }
  return {};
}

Expected<ModelConfig> read_config(const GgufFile& file) {
  constexpr uint64_t kMaxWidth = 1 << 20;
  constexpr uint64_t kMaxHeads = 1024;
  ModelConfig config;
  config.architecture = "llama";
  SLUICE_TRY(config.num_layers, get_count(file, "llama.block_count", 1024));
  SLUICE_TRY(config.hidden, get_count(file, "llama.embedding_length", kMaxWidth));
  SLUICE_TRY(config.ffn_hidden, get_count(file, "llama.feed_forward_length", kMaxWidth));
  SLUICE_TRY(config.num_heads, get_count(file, "llama.attention.head_count", kMaxHeads));
  config.num_kv_heads = config.num_heads;
  if (file.find("llama.attention.head_count_kv") != nullptr) {
    SLUICE_TRY(config.num_kv_heads, get_count(file, "llama.attention.head_count_kv", kMaxHeads));
  }
  config.head_dim = config.hidden / config.num_heads;
  if (file.find("llama.attention.key_length") != nullptr) {
    SLUICE_TRY(config.head_dim, get_count(file, "llama.attention.key_length", 1024));
  }
  SLUICE_TRY(config.context_len, get_count(file, "llama.context_length", 1 << 27));
  if (config.num_heads % config.num_kv_heads != 0) {
    return make_error(ErrorCode::kDataLoss,
                      file.path() + ": llama.attention.head_count: found " +
                          std::to_string(config.num_heads) + ", expected a multiple of " +
                          "head_count_kv " + std::to_string(config.num_kv_heads));
  }
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->num_dims != 2 || embedding->dims[1] > (1U << 24)) {
    return make_error(ErrorCode::kDataLoss,
                      file.path() + ": tensor token_embd.weight is missing or not [vocab, hidden]");
  }
  config.vocab_size = static_cast<int32_t>(embedding->dims[1]);
  SLUICE_TRY(const double eps,
             file.get_float_or("llama.attention.layer_norm_rms_epsilon", 1e-5));
  config.norm_eps = static_cast<float>(eps);
  if (file.find("llama.expert_count") != nullptr) {
    return make_error(ErrorCode::kUnsupported,
                      file.path() + ": mixture-of-experts models are not supported");
  }
  SLUICE_TRY_VOID(read_rope(file, config));
  return config;
}

}  // namespace

extern const ModelSpec kLlamaSpec;
const ModelSpec kLlamaSpec = {
    .architecture = "llama", .read_config = read_config, .build = LlamaModel::build};

}  // namespace sluice
