// SPDX-License-Identifier: Apache-2.0
#include "engine/quantize/offline_model.h"

#include <algorithm>
#include <numeric>

namespace sluice {
namespace {

constexpr int32_t kBlockSize = 16;
constexpr int32_t kActivationBits = 32;

}  // namespace

Expected<std::unique_ptr<OfflineModel>> OfflineModel::open(const std::string& path,
                                                           int32_t window,
                                                           int32_t threads,
                                                           InputTap* tap) {
  SLUICE_TRY(auto device, kernels::Device::create({.threads = threads}));
  SLUICE_TRY(auto checkpoint, Checkpoint::open(path));
  SLUICE_TRY(const ModelSpec* spec, find_model_spec(*checkpoint));
  SLUICE_TRY(ModelConfig config, read_model_config(*spec, *checkpoint));
  const ModelOptions options = {.activation_bits = kActivationBits, .max_model_len = window};
  WeightStore sizes(*checkpoint);
  SLUICE_TRY(const std::unique_ptr<Model> shape, spec->build(config, options, sizes));
  auto weights = std::make_unique<WeightStore>(*checkpoint);
  weights->set_tap(tap);
  SLUICE_TRY_VOID(weights->allocate(sizes.packed_bytes()));
  SLUICE_TRY(auto model, spec->build(std::move(config), options, *weights));
  const std::vector<LayerGroup> layouts = model->layer_groups(DType::kF32);
  std::vector<KvGroupSpec> groups;
  for (const LayerGroup& layout : layouts) {
    groups.push_back(layout.spec);
    groups.back().num_blocks = static_cast<int32_t>(ceil_div(window, kBlockSize));
  }
  SLUICE_TRY(KvStorage storage, KvStorage::create(groups, kBlockSize));
  std::unique_ptr<OfflineModel> result(new OfflineModel(std::move(storage)));
  result->num_groups_ = static_cast<int32_t>(layouts.size());
  result->caches_ = layer_caches(layouts, result->storage_);
  const StepBounds bounds = {.max_tokens = window,
                             .max_seqs = 1,
                             .max_logits = window,
                             .max_seq_len = window,
                             .num_threads = device->num_threads()};
  SLUICE_TRY(result->arena_, AlignedBuffer::allocate(model->arena_bytes(bounds), "activations"));
  model->bind(bounds, result->arena_.span());
  result->device_ = std::move(device);
  result->checkpoint_ = std::move(checkpoint);
  result->weights_ = std::move(weights);
  result->model_ = std::move(model);
  return result;
}

void OfflineModel::forward(std::span<const TokenId> tokens, std::vector<float>& logits) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const std::vector<int64_t> slots(positions.begin(), positions.end());
  std::vector<int32_t> blocks(static_cast<size_t>(ceil_div(num_tokens, kBlockSize)));
  std::iota(blocks.begin(), blocks.end(), 0);
  const std::vector<int32_t> query_start_loc = {0, num_tokens};
  const std::vector<int32_t> seq_lens = {num_tokens};
  const std::vector<std::span<const int64_t>> slot_mapping(static_cast<size_t>(num_groups_), slots);
  const std::vector<std::span<const int32_t>> block_tables(static_cast<size_t>(num_groups_),
                                                           blocks);
  const std::vector<int32_t> strides(static_cast<size_t>(num_groups_),
                                     static_cast<int32_t>(blocks.size()));
  const ForwardBatch batch = {.token_ids = tokens,
                              .positions = positions,
                              .query_start_loc = query_start_loc,
                              .seq_lens = seq_lens,
                              .logits_indices = {},
                              .slot_mapping = slot_mapping,
                              .block_tables = block_tables,
                              .block_table_strides = strides,
                              .max_seq_len = num_tokens};
  logits.resize(tokens.size() * static_cast<size_t>(vocab_size()));
  const kernels::ExecContext exec = device_->context();
  const ForwardContext context{.exec = exec, .batch = batch, .caches = caches_};
  model_->forward(context);
  model_->logits(context, positions, logits.data());
}

}  // namespace sluice
