// SPDX-License-Identifier: Apache-2.0
#include "engine/models/eagle3.h"

#include "engine/models/config_reader.h"
#include "engine/models/draft_head.h"
#include "engine/weights/checkpoint.h"
#include "kernels/elementwise.h"

namespace sluice {
namespace {

constexpr int32_t kNumTaps = 3;

class Eagle3Head final : public DraftHead {
 public:
  using DraftHead::DraftHead;

  Expected<void> load(const ModelOptions& options, WeightStore& weights);
  void forward(const ForwardContext& context) override;
  void logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) override;

 private:
  void take_hidden(const ForwardContext& context, float* half);
  void copy_to_stream(const ForwardContext& context) const;

  Projection own_output_;
  DeviceFloats embedding_norm_, hidden_norm_, output_norm_;
};

Expected<void> Eagle3Head::load(const ModelOptions& options, WeightStore& weights) {
  SLUICE_TRY_VOID(load_ends(options, weights));
  const int64_t width_of_taps = int64_t{kNumTaps} * config_.head.target_hidden;
  SLUICE_TRY(fc_,
             load_matrix({.stem = "fc", .n = config_.hidden}, width_of_taps, options, weights));
  SLUICE_TRY(
      own_output_,
      load_matrix({.stem = "output", .n = config_.vocab_size}, config_.hidden, options, weights));
  output_ = &own_output_;
  SLUICE_TRY(output_norm_, load_norm("output_norm.weight", weights));
  SLUICE_TRY(embedding_norm_, load_norm("blk.0.attn_norm.weight", weights));
  SLUICE_TRY(hidden_norm_, load_norm("blk.0.hidden_norm.weight", weights));
  return load_layer(options, weights);
}

// Fills a half of each row from the target's states, or copies the head's own.
void Eagle3Head::take_hidden(const ForwardContext& context, float* half) {
  const HiddenRows& hidden = context.hidden;
  if (!hidden.is_tapped) return take_state(context, half);
  buffers_.fc_in.set_num_rows(static_cast<int32_t>(context.batch.token_ids.size()));
  buffers_.fc_in.quantize(context.exec, fc_, hidden.data, hidden.stride);
  const ProjectionOutput out = {half, width_of_both()};
  project(context.exec, fc_, buffers_.fc_in, {&out, 1}, kernels::Epilogue::kStore);
}

void Eagle3Head::copy_to_stream(const ForwardContext& context) const {
  kernels::gather_rows(context.exec,
                       {.x = buffers_.both + config_.hidden,
                        .x_stride = width_of_both(),
                        .n = config_.hidden,
                        .indices = {buffers_.token_rows, context.batch.token_ids.size()},
                        .out = buffers_.x,
                        .out_stride = config_.hidden});
}

void Eagle3Head::forward(const ForwardContext& context) {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  float* const of_token = buffers_.both;
  float* const of_state = buffers_.both + config_.hidden;
  take_hidden(context, of_state);
  take_embedding(context, of_token);
  if (!config_.head.norm_before_residual) copy_to_stream(context);
  norm_half(context, embedding_norm_, of_token);
  norm_half(context, hidden_norm_, of_state);
  if (config_.head.norm_before_residual) copy_to_stream(context);
  buffers_.attention_in.set_num_rows(num_tokens);
  buffers_.attention_in.quantize(context.exec, attention_input(), buffers_.both, width_of_both());
  run_layer(context, {});
}

void Eagle3Head::logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) {
  take_last(context, buffers_.x, rows);
  kernels::RowSteps norm;
  add_norm_steps(buffers_.last, output_norm_, *output_, buffers_.logits_in, norm);
  kernels::run_row_steps(context.exec, norm);
  write_logits(context, rows.size(), out);
}

Expected<void> read_taps(const Metadata& metadata, HeadConfig& head) {
  if (!metadata.has("head.layers")) return {};
  SLUICE_TRY(const std::vector<double> layers, metadata.get_numbers("head.layers"));
  for (const double layer : layers) {
    const bool is_next = head.taps.empty() || layer > head.taps.back();
    if (!(layer >= 0 && layer < 1024) || !is_next) {
      return metadata.wrong("head.layers", std::to_string(layer), "layers, ascending");
    }
    head.taps.push_back(static_cast<int32_t>(layer));
  }
  if (head.taps.size() == kNumTaps) return {};
  return metadata.wrong(
      "head.layers", std::to_string(layers.size()) + " elements", std::to_string(kNumTaps));
}

Expected<void> configure_eagle3(const Checkpoint& checkpoint, ModelConfig& config) {
  SLUICE_TRY_VOID(configure_head(checkpoint, config));
  const Metadata& metadata = checkpoint.metadata();
  HeadConfig& head = config.head;
  SLUICE_TRY(head.target_hidden,
             metadata.get_count_or("head.target_hidden_size", 1 << 20, config.hidden));
  SLUICE_TRY(head.norm_before_residual, metadata.get_bool_or("head.norm_before_residual", false));
  SLUICE_TRY_VOID(read_taps(metadata, head));
  SLUICE_TRY(const double scale, metadata.get_positive_or("logit_multiplier", 1));
  config.logit_scale = static_cast<float>(scale);
  SLUICE_TRY(config.vocab_size,
             metadata.get_count_or(
                 "head.vocab_size", static_cast<uint64_t>(head.target_vocab), head.target_vocab));
  config.attention_in = 2 * config.hidden;
  const std::span<const int64_t> offsets = checkpoint.id_offsets();
  const bool fits = offsets.empty() ? config.vocab_size == head.target_vocab
                                    : offsets.size() == static_cast<size_t>(config.vocab_size);
  if (!fits) {
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.path() + ": tensor d2t: found " + std::to_string(offsets.size()) +
                          " elements, expected " + std::to_string(config.vocab_size));
  }
  for (size_t i = 0; i < offsets.size(); ++i) {
    const int64_t most = head.target_vocab - static_cast<int64_t>(i) - 1;
    if (offsets[i] >= -static_cast<int64_t>(i) && offsets[i] <= most) continue;
    return make_error(ErrorCode::kDataLoss,
                      checkpoint.path() + ": tensor d2t: found " + std::to_string(offsets[i]) +
                          " at " + std::to_string(i) + ", expected an id of the " +
                          std::to_string(head.target_vocab) + " tokens");
  }
  return {};
}

}  // namespace

const ModelSpec kEagle3Spec = {
    .configure = configure_eagle3, .build = build_head<Eagle3Head>, .is_head = true};

Expected<std::vector<int32_t>> usual_taps(int32_t num_target_layers) {
  if (num_target_layers < 7) {
    return make_error(ErrorCode::kUnsupported,
                      "speculative-config: a head that names no layers needs a target of at least "
                      "7, found " +
                          std::to_string(num_target_layers),
                      "speculative-config");
  }
  return std::vector<int32_t>{2, num_target_layers / 2, num_target_layers - 3};
}

}  // namespace sluice
