// SPDX-License-Identifier: Apache-2.0
#include "engine/models/draft_head.h"

#include <array>
#include <utility>

#include "engine/models/load_halves.h"
#include "engine/weights/checkpoint.h"
#include "kernels/elementwise.h"
#include "kernels/norm.h"

namespace sluice {

DraftHead::DraftHead(ModelConfig config, int32_t max_model_len) : config_(std::move(config)) {
  const int32_t rope = config_.layers.front().rope;
  if (rope < 0) return;
  ropes_.emplace_back(config_.ropes[static_cast<size_t>(rope)], max_model_len);
}

std::vector<LayerGroup> DraftHead::layer_groups(DType dtype) const {
  LayerGroup layout = {.spec = mixer_->group(dtype), .layers = {0}};
  layout.spec.num_layers = 1;
  return {layout};
}

int64_t DraftHead::arena_bytes(const StepBounds& bounds) const {
  Arena arena;
  layout(bounds, arena);
  return arena.used();
}

void DraftHead::bind(const StepBounds& bounds, std::span<std::byte> buffer) {
  Arena arena(buffer);
  buffers_ = layout(bounds, arena);
  mixer_->bind(bounds, buffers_.mixer);
  ffn_->bind(bounds, buffers_.ffn);
  number_rows(*memory_, buffers_.token_rows, bounds.max_tokens);
}

Expected<void> configure_head(const Checkpoint& checkpoint, ModelConfig& config) {
  const Metadata& metadata = checkpoint.metadata();
  if (config.num_layers != 1) {
    return metadata.wrong("block_count", std::to_string(config.num_layers), "1, of a head");
  }
  HeadConfig& head = config.head;
  head.has_embedding = checkpoint.has("token_embd.weight");
  head.target_vocab = config.vocab_size;
  head.target_hidden = config.hidden;
  config.tied_embeddings = false;
  return {};
}

// --- Loading ---------------------------------------------------------------------------------

Expected<Projection> load_matrix(const Projection::Part& part,
                                 int64_t k,
                                 const ModelOptions& options,
                                 WeightStore& weights) {
  return Projection::load(weights, {&part, 1}, k, options.activation_bits);
}

Expected<DeviceFloats> DraftHead::load_norm(const char* name, WeightStore& weights) const {
  SLUICE_TRY(std::vector<float> values, weights.vector(name, config_.hidden));
  for (float& value : values) value += config_.norm_offset;
  return weights.place(std::move(values));
}

Expected<void> DraftHead::load_ends(const ModelOptions& options, WeightStore& weights) {
  memory_ = options.memory;
  for (kernels::RopeTable& rope : ropes_) SLUICE_TRY_VOID(rope.place_on(*memory_));
  output_ = options.output;
  embedding_ = options.embedding;
  if (!config_.head.has_embedding) return {};
  const Projection::Part part = {.stem = "token_embd", .n = config_.head.target_vocab};
  SLUICE_TRY(own_embedding_, load_matrix(part, config_.hidden, options, weights));
  embedding_ = &own_embedding_.weight(0);
  return {};
}

Expected<void> DraftHead::load_layer(const ModelOptions& options, WeightStore& weights) {
  const int32_t bits = options.activation_bits;
  CHECK(output_ != nullptr);
  SLUICE_TRY(mlp_norm_, load_norm("blk.0.ffn_norm.weight", weights));
  SLUICE_TRY(mixer_, load_mixer(config_, 0, bits, weights));
  SLUICE_TRY(ffn_, load_ffn(config_, 0, bits, weights));
  return {};
}

HeadBuffers DraftHead::layout(const StepBounds& bounds, Arena& arena) const {
  const int64_t tokens = bounds.max_tokens;
  const auto input = [&](const Projection& next, int32_t rows) {
    const std::array<const Projection*, 1> readers = {&next};
    return LinearInput(readers, rows, arena);
  };
  HeadBuffers buffers;
  buffers.both = arena.take_floats(2 * tokens * config_.hidden);
  buffers.x = arena.take_floats(tokens * config_.hidden);
  buffers.last = arena.take_floats(int64_t{bounds.max_logits} * config_.hidden);
  buffers.token_rows =
      reinterpret_cast<int32_t*>(arena.take_bytes(tokens * static_cast<int64_t>(sizeof(int32_t))));
  buffers.fc_in = input(fc_, bounds.max_tokens);
  buffers.attention_in = input(attention_input(), bounds.max_tokens);
  if (ffn_->input() != nullptr) buffers.mlp_in = input(*ffn_->input(), bounds.max_tokens);
  if (ffn_->reads_plain()) buffers.plain = arena.take_floats(tokens * padded_hidden());
  buffers.logits_in = input(*output_, bounds.max_logits);
  const auto take = [&arena](int64_t bytes) {
    return std::span(arena.take_bytes(bytes), static_cast<size_t>(bytes));
  };
  buffers.mixer = take(mixer_->scratch_bytes(bounds));
  buffers.ffn = take(ffn_->scratch_bytes(bounds));
  return buffers;
}

// --- A step ----------------------------------------------------------------------------------

void DraftHead::take_embedding(const ForwardContext& context, float* half) {
  // In front of the embedding, whose launch does not overlap the copies of what a table grows by.
  for (kernels::RopeTable& rope : ropes_) rope.prepare(context.batch.max_seq_len);
  kernels::embedding(context.exec,
                     {.table = embedding_,
                      .token_ids = context.batch.token_ids,
                      .out = half,
                      .out_stride = width_of_both()});
}

// The target's states and the head's own have the same form.
void DraftHead::take_state(const ForwardContext& context, float* half) const {
  kernels::gather_rows(context.exec,
                       {.x = context.hidden.data,
                        .x_stride = context.hidden.stride,
                        .n = config_.hidden,
                        .indices = {buffers_.token_rows, context.batch.token_ids.size()},
                        .out = half,
                        .out_stride = width_of_both()});
}

void DraftHead::norm_half(const ForwardContext& context,
                          const DeviceFloats& norm,
                          float* half) const {
  kernels::head_norm(context.exec,
                     {.x = half,
                      .x_stride = width_of_both(),
                      .num_rows = static_cast<int32_t>(context.batch.token_ids.size()),
                      .num_heads = 1,
                      .n = config_.hidden,
                      .weight = norm.data(),
                      .eps = config_.norm_eps});
}

kernels::RmsNormArgs DraftHead::norm_of(const float* x,
                                        const DeviceFloats& norm,
                                        const kernels::Activations& out) const {
  return {.x = x,
          .x_stride = config_.hidden,
          .weight = norm.data(),
          .eps = config_.norm_eps,
          .out = out};
}

void DraftHead::add_norm_steps(const float* x,
                               const DeviceFloats& norm,
                               const Projection& next,
                               const LinearInput& out,
                               kernels::RowSteps& steps) const {
  out.fill_for(next, [&](const kernels::Activations& rows) { steps.add(norm_of(x, norm, rows)); });
}

void DraftHead::run_layer(const ForwardContext& context, const kernels::RowSteps& then) {
  const ProjectionOutput stream = {buffers_.x, config_.hidden};
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  buffers_.mlp_in.set_num_rows(num_tokens);
  kernels::RowSteps between;
  if (const Projection* const next = ffn_->input(); next != nullptr) {
    add_norm_steps(buffers_.x, mlp_norm_, *next, buffers_.mlp_in, between);
  }
  if (ffn_->reads_plain()) {
    between.add(norm_of(buffers_.x,
                        mlp_norm_,
                        {.format = kernels::ActivationFormat::kFloat,
                         .num_rows = num_tokens,
                         .k = config_.hidden,
                         .data = buffers_.plain}));
  }
  mixer_->forward(context,
                  context.caches[0],
                  ropes_.empty() ? nullptr : &ropes_.front(),
                  buffers_.attention_in,
                  {stream, kernels::Epilogue::kAdd, between});
  ffn_->forward(
      context,
      {.rows = buffers_.mlp_in, .plain = buffers_.plain, .stride = padded_hidden()},
      {stream, kernels::Epilogue::kAdd, then});
}

void DraftHead::take_last(const ForwardContext& context,
                          const float* x,
                          std::span<const int32_t> rows) {
  buffers_.logits_in.set_num_rows(static_cast<int32_t>(rows.size()));
  kernels::gather_rows(context.exec,
                       {.x = x,
                        .x_stride = config_.hidden,
                        .n = config_.hidden,
                        .indices = rows,
                        .out = buffers_.last,
                        .out_stride = config_.hidden});
}

void DraftHead::write_logits(const ForwardContext& context, size_t num_rows, float* out) const {
  const ProjectionOutput output = {out, config_.vocab_size};
  project(context.exec, *output_, buffers_.logits_in, {&output, 1}, kernels::Epilogue::kStore);
  if (config_.logit_scale == 1 && config_.logit_soft_cap == 0) return;
  kernels::scale_rows(context.exec,
                      {.x = out,
                       .x_stride = config_.vocab_size,
                       .num_rows = static_cast<int32_t>(num_rows),
                       .n = config_.vocab_size,
                       .scale = config_.logit_scale,
                       .soft_cap = config_.logit_soft_cap});
}

}  // namespace sluice
