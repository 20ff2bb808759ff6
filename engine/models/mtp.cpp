// SPDX-License-Identifier: Apache-2.0
#include "engine/models/mtp.h"

#include <algorithm>

#include "engine/models/draft_head.h"
#include "engine/weights/checkpoint.h"

namespace sluice {
namespace {

class MtpHead final : public DraftHead {
 public:
  using DraftHead::DraftHead;

  Expected<void> load(const ModelOptions& options, WeightStore& weights);
  void forward(const ForwardContext& context) override;
  void logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) override;

  [[nodiscard]] const float* states() const override {
    return hands_on_normed_ ? buffers_.normed : buffers_.x;
  }

 private:
  HeadBuffers layout(const StepBounds& bounds, Arena& arena) const override;
  void take_inputs(const ForwardContext& context);

  bool state_first_ = false;      // order of fc_'s input
  bool hands_on_normed_ = false;  // selects the next row's state
  Projection own_output_;         // empty: the target's is used
  DeviceFloats embedding_norm_, hidden_norm_, attention_norm_, output_norm_;
};

Expected<void> MtpHead::load(const ModelOptions& options, WeightStore& weights) {
  SLUICE_TRY_VOID(load_ends(options, weights));
  if (weights.has("output.weight")) {
    SLUICE_TRY(
        own_output_,
        load_matrix({.stem = "output", .n = config_.vocab_size}, config_.hidden, options, weights));
    output_ = &own_output_;
  }
  state_first_ = weights.has("he_proj.weight");
  const char* const fc = state_first_ ? "he_proj" : "eh_proj";
  SLUICE_TRY(fc_,
             load_matrix({.stem = fc, .n = config_.hidden}, width_of_both(), options, weights));
  const bool has_models_name = !weights.has("shared_head_norm.weight");
  hands_on_normed_ = has_models_name || config_.head.hands_on_normed;
  SLUICE_TRY(
      output_norm_,
      load_norm(has_models_name ? "output_norm.weight" : "shared_head_norm.weight", weights));
  SLUICE_TRY(embedding_norm_, load_norm("enorm.weight", weights));
  SLUICE_TRY(hidden_norm_, load_norm("hnorm.weight", weights));
  SLUICE_TRY(attention_norm_, load_norm("blk.0.attn_norm.weight", weights));
  return load_layer(options, weights);
}

HeadBuffers MtpHead::layout(const StepBounds& bounds, Arena& arena) const {
  HeadBuffers buffers = DraftHead::layout(bounds, arena);
  buffers.normed = arena.take_floats(int64_t{bounds.max_tokens} * config_.hidden);
  return buffers;
}

// Fills each row with embedding and state, both normed.
void MtpHead::take_inputs(const ForwardContext& context) {
  float* const of_token = buffers_.both + (state_first_ ? config_.hidden : 0);
  float* const of_state = buffers_.both + (state_first_ ? 0 : config_.hidden);
  take_embedding(context, of_token);
  take_state(context, of_state);
  norm_half(context, embedding_norm_, of_token);
  norm_half(context, hidden_norm_, of_state);
}

void MtpHead::forward(const ForwardContext& context) {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  take_inputs(context);
  buffers_.fc_in.set_num_rows(num_tokens);
  buffers_.fc_in.quantize(context.exec, fc_, buffers_.both, width_of_both());
  const ProjectionOutput stream = {buffers_.x, config_.hidden};
  buffers_.attention_in.set_num_rows(num_tokens);
  kernels::RowSteps before;
  add_norm_steps(buffers_.x, attention_norm_, attention_input(), buffers_.attention_in, before);
  project(context.exec, fc_, buffers_.fc_in, {&stream, 1}, kernels::Epilogue::kStore, &before);
  kernels::RowSteps behind;
  behind.add(norm_of(buffers_.x,
                     output_norm_,
                     {.format = kernels::ActivationFormat::kFloat,
                      .num_rows = num_tokens,
                      .k = config_.hidden,
                      .data = buffers_.normed}));
  run_layer(context, behind);
}

void MtpHead::logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) {
  take_last(context, buffers_.normed, rows);
  buffers_.logits_in.quantize(context.exec, *output_, buffers_.last, config_.hidden);
  write_logits(context, rows.size(), out);
}

}  // namespace

const ModelSpec kMtpSpec = {.build = build_head<MtpHead>, .is_head = true};

Expected<ModelConfig> mtp_config(const ModelConfig& target, const Checkpoint& module) {
  const auto refuse = [&](const char* found) {
    return make_error(ErrorCode::kUnsupported,
                      "speculative-config: " + module.path() + ": a module behind a model with " +
                          found + " is not supported",
                      "speculative-config");
  };
  if (target.has(FfnKind::kBoth)) return refuse("experts beside dense halves");
  if (target.norm_placement != NormPlacement::kBefore || target.norms_subtract_mean ||
      target.parallel_halves) {
    return refuse("norms of this kind");
  }
  if (target.residual_scale != 1) return refuse("scaled halves");
  // Leading layers may be dense, the module has experts as the last ones.
  const auto last =
      std::find_if(target.layers.rbegin(), target.layers.rend(), [](const LayerConfig& each) {
        const bool attends =
            each.mixer == MixerKind::kAttention || each.mixer == MixerKind::kLatent;
        return attends && each.window == 0;
      });
  if (last == target.layers.rend()) return refuse("windows or states in all layers");
  ModelConfig config = target;
  config.num_layers = 1;
  config.module_layer.reset();
  config.layers = {target.module_layer.value_or(*last)};
  LayerConfig& layer = config.layers.front();
  if (layer.key_choice == KeyChoice::kEarlier) layer.key_choice = KeyChoice::kOwn;
  if (!module.is_dummy()) layer.has_sinks = module.has("blk.0.attn_sinks.weight");
  config.tied_embeddings = false;
  // What files of the module's kind have otherwise, whatever the target's: the order of q's and k's
  // rows, what norms lack, and the epsilon of latents' norms.
  const FileSpec* const spec = module.file_spec();
  const bool is_file = module.kind() == CheckpointKind::kGguf;
  const bool are_pairs = is_file && spec != nullptr && spec->pairs_rows_in_gguf;
  for (kernels::RopeParams& rope : config.ropes) {
    if (target.has_latents()) continue;
    rope.style = are_pairs ? kernels::RopeStyle::kInterleaved : kernels::RopeStyle::kHalves;
  }
  config.norm_offset = is_file || spec == nullptr ? 0 : spec->norm_offset;
  config.latent.norm_eps = is_file ? target.norm_eps : LatentConfig().norm_eps;
  config.head = {.target_hidden = target.hidden,
                 .target_vocab = target.vocab_size,
                 .hands_on_normed = target.head.hands_on_normed,
                 .taps = {target.num_layers + (target.head.reads_unnormed ? 0 : 1)}};
  return config;
}

}  // namespace sluice
