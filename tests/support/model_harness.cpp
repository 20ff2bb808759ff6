// SPDX-License-Identifier: Apache-2.0
#include "tests/support/model_harness.h"

#include <algorithm>
#include <numeric>

namespace sluice::testing {
namespace {

constexpr int32_t kBlockSize = 16;

}  // namespace

Expected<std::unique_ptr<ModelHarness>> ModelHarness::create(const std::string& path,
                                                             int32_t activation_bits,
                                                             DType kv_dtype,
                                                             int32_t max_tokens,
                                                             const std::string& isa) {
  SLUICE_TRY(auto device, kernels::Device::create({.isa = isa}));
  SLUICE_TRY(auto checkpoint, Checkpoint::open(path));
  SLUICE_TRY(const ModelSpec* spec, find_model_spec(*checkpoint));
  SLUICE_TRY(ModelConfig config, read_model_config(*spec, *checkpoint));
  const ModelOptions options = {.activation_bits = activation_bits, .max_model_len = max_tokens};
  WeightStore sizes(*checkpoint);
  SLUICE_TRY(const std::unique_ptr<Model> shape, spec->build(config, options, sizes));
  if (shape->config().num_layers == 0) return make_error(ErrorCode::kDataLoss, "no layers");
  if (!sizes.unused().empty()) {
    return make_error(ErrorCode::kUnsupported, "unused tensor " + sizes.unused().front());
  }
  auto weights = std::make_unique<WeightStore>(*checkpoint);
  SLUICE_TRY_VOID(weights->allocate(sizes.packed_bytes()));
  SLUICE_TRY(auto model, spec->build(std::move(config), options, *weights));

  const std::vector<LayerGroup> layouts = model->layer_groups(kv_dtype);
  std::vector<KvGroupSpec> groups;
  for (const LayerGroup& layout : layouts) {
    groups.push_back(layout.spec);
    groups.back().num_blocks = static_cast<int32_t>(ceil_div(max_tokens, kBlockSize));
  }
  SLUICE_TRY(KvStorage storage, KvStorage::create(groups, kBlockSize));
  std::unique_ptr<ModelHarness> harness(new ModelHarness(std::move(storage)));
  harness->num_groups_ = static_cast<int32_t>(layouts.size());
  harness->caches_ = layer_caches(layouts, harness->storage_);
  const StepBounds bounds = {.max_tokens = max_tokens,
                             .max_seqs = 1,
                             .max_logits = max_tokens,
                             .max_seq_len = max_tokens,
                             .num_threads = device->num_threads()};
  SLUICE_TRY(harness->arena_, AlignedBuffer::allocate(model->arena_bytes(bounds), "activations"));
  model->bind(bounds, harness->arena_.span());
  harness->device_ = std::move(device);
  harness->checkpoint_ = std::move(checkpoint);
  harness->weights_ = std::move(weights);
  harness->model_ = std::move(model);
  return harness;
}

std::vector<float> ModelHarness::forward(const std::vector<TokenId>& tokens,
                                         int32_t begin,
                                         std::vector<int32_t> wanted) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  const int32_t end = begin + num_tokens;
  if (wanted.empty()) {
    wanted.resize(tokens.size());
    std::iota(wanted.begin(), wanted.end(), 0);
  }
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), begin);
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
  std::vector<float> logits(wanted.size() * static_cast<size_t>(vocab_size()));
  const kernels::ExecContext exec = device_->context();
  const ForwardContext context{.exec = exec, .batch = batch, .caches = caches_};
  model_->forward(context);
  model_->logits(context, wanted, logits.data());
  return logits;
}

std::vector<float> ModelHarness::forward_in_pieces(const std::vector<TokenId>& tokens,
                                                   int32_t piece) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  std::vector<float> logits;
  for (int32_t begin = 0; begin < num_tokens; begin += piece) {
    const int32_t end = std::min(num_tokens, begin + piece);
    const std::vector<float> some = forward({tokens.begin() + begin, tokens.begin() + end}, begin);
    logits.insert(logits.end(), some.begin(), some.end());
  }
  return logits;
}

}  // namespace sluice::testing
