// SPDX-License-Identifier: Apache-2.0
#include "engine/models/eagle.h"

#include "engine/models/draft_head.h"

namespace sluice {
namespace {

class EagleHead final : public DraftHead {
 public:
  using DraftHead::DraftHead;

  Expected<void> load(const ModelOptions& options, WeightStore& weights);
  void forward(const ForwardContext& context) override;
  void logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) override;
};

Expected<void> EagleHead::load(const ModelOptions& options, WeightStore& weights) {
  SLUICE_TRY_VOID(load_ends(options, weights));
  const Projection::Part fc = {.stem = "fc", .n = config_.hidden, .bias = weights.has("fc.bias")};
  SLUICE_TRY(fc_, load_matrix(fc, width_of_both(), options, weights));
  return load_layer(options, weights);
}

void EagleHead::forward(const ForwardContext& context) {
  const auto num_tokens = static_cast<int32_t>(context.batch.token_ids.size());
  take_embedding(context, buffers_.both);
  take_state(context, buffers_.both + config_.hidden);
  buffers_.fc_in.set_num_rows(num_tokens);
  buffers_.fc_in.quantize(context.exec, fc_, buffers_.both, width_of_both());
  const ProjectionOutput stream = {buffers_.x, config_.hidden};
  project(context.exec, fc_, buffers_.fc_in, {&stream, 1}, kernels::Epilogue::kStore);
  buffers_.attention_in.set_num_rows(num_tokens);
  buffers_.attention_in.quantize(context.exec, attention_input(), buffers_.x, config_.hidden);
  run_layer(context, {});
}

void EagleHead::logits(const ForwardContext& context, std::span<const int32_t> rows, float* out) {
  take_last(context, buffers_.x, rows);
  buffers_.logits_in.quantize(context.exec, *output_, buffers_.last, config_.hidden);
  write_logits(context, rows.size(), out);
}

}  // namespace

const ModelSpec kEagleSpec = {
    .configure = configure_head, .build = build_head<EagleHead>, .is_head = true};

}  // namespace sluice
