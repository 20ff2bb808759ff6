// SPDX-License-Identifier: Apache-2.0
#include "engine/run/offline_model.h"

#include <algorithm>
#include <numeric>

#include "engine/models/model_spec.h"

namespace sluice {
namespace {

constexpr int32_t kBlockSize = 16;

}  // namespace

Expected<std::unique_ptr<OfflineModel>> OfflineModel::open(const std::string& path,
                                                           int32_t window,
                                                           const Options& options) {
  SLUICE_TRY(auto device,
             kernels::Device::create({.isa = options.isa, .threads = options.threads}));
  SLUICE_TRY(auto checkpoint, Checkpoint::open(path));
  SLUICE_TRY(const ModelSpec* spec, find_model_spec(*checkpoint));
  SLUICE_TRY(ModelConfig config, read_model_config(*spec, *checkpoint));
  const ModelOptions how = {.activation_bits = options.activation_bits, .max_model_len = window};
  WeightStore sizes(*checkpoint);
  SLUICE_TRY(const std::unique_ptr<Model> shape, spec->build(config, how, sizes));
  if (const std::vector<std::string> unused = sizes.unused(); !unused.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      sizes.place_of(unused.front()) + ": found it, expected no such tensor");
  }
  auto weights = std::make_unique<WeightStore>(*checkpoint);
  weights->set_tap(options.tap);
  SLUICE_TRY_VOID(weights->allocate(sizes.packed_bytes()));
  SLUICE_TRY(auto model, spec->build(std::move(config), how, *weights));
  const std::vector<LayerGroup> layouts = model->layer_groups(options.kv_dtype);
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

void OfflineModel::forward(std::span<const TokenId> tokens,
                           std::vector<float>& logits,
                           int32_t begin,
                           std::span<const int32_t> wanted) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  const int32_t end = begin + num_tokens;
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), begin);
  std::vector<int32_t> rows(wanted.begin(), wanted.end());
  if (rows.empty()) {
    rows.resize(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
  }
  const std::vector<int64_t> slots(positions.begin(), positions.end());
  std::vector<int32_t> blocks(static_cast<size_t>(ceil_div(end, kBlockSize)));
  std::iota(blocks.begin(), blocks.end(), 0);
  const std::vector<int32_t> query_start_loc = {0, num_tokens};
  const std::vector<int32_t> seq_lens = {end};
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
                              .max_seq_len = end};
  logits.resize(rows.size() * static_cast<size_t>(vocab_size()));
  const kernels::ExecContext exec = device_->context();
  const ForwardContext context{.exec = exec, .batch = batch, .caches = caches_};
  model_->forward(context);
  model_->logits(context, rows, logits.data());
}

}  // namespace sluice
