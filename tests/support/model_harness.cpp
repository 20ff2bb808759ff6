// SPDX-License-Identifier: Apache-2.0
#include "tests/support/model_harness.h"

#include <numeric>

namespace sluice::testing {
namespace {

constexpr int32_t kBlockSize = 16;

}  // namespace

Expected<std::unique_ptr<ModelHarness>> ModelHarness::create(const std::string& path,
                                                             int32_t activation_bits,
                                                             DType kv_dtype,
                                                             int32_t max_tokens) {
  SLUICE_TRY(auto device, kernels::Device::create({}));
  SLUICE_TRY(auto file, GgufFile::open(path));
  SLUICE_TRY(const std::string_view architecture, file->get_string("general.architecture"));
  SLUICE_TRY(const ModelSpec* spec, find_model_spec(architecture));
  SLUICE_TRY(ModelConfig config, spec->read_config(*file));
  SLUICE_TRY(KvStorage storage,
             KvStorage::create({{.num_layers = config.num_layers,
                                 .num_kv_heads = config.num_kv_heads,
                                 .head_dim = config.head_dim,
                                 .num_blocks = static_cast<int32_t>(
                                     ceil_div(max_tokens, kBlockSize))}},
                               kv_dtype, kBlockSize));
  std::unique_ptr<ModelHarness> harness(new ModelHarness(std::move(storage)));
  harness->weights_ = std::make_unique<WeightStore>(*file);
  SLUICE_TRY_VOID(harness->weights_->allocate());
  SLUICE_TRY(harness->model_,
             spec->build(std::move(config),
                         {.activation_bits = activation_bits, .max_model_len = max_tokens},
                         *harness->weights_));
  const StepBounds bounds = {.max_tokens = max_tokens,
                             .max_seqs = 1,
                             .max_logits = max_tokens,
                             .max_seq_len = max_tokens,
                             .num_threads = device->num_threads()};
  SLUICE_TRY(harness->arena_,
             AlignedBuffer::allocate(harness->model_->arena_bytes(bounds), "activations"));
  harness->model_->bind(bounds, harness->arena_.span());
  harness->device_ = std::move(device);
  harness->file_ = std::move(file);
  return harness;
}

std::vector<float> ModelHarness::forward(const std::vector<TokenId>& tokens) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int64_t> slots(positions.begin(), positions.end());
  std::vector<int32_t> blocks(static_cast<size_t>(ceil_div(num_tokens, kBlockSize)));
  std::iota(blocks.begin(), blocks.end(), 0);
  const std::vector<int32_t> query_start_loc = {0, num_tokens};
  const std::vector<int32_t> seq_lens = {num_tokens};
  const std::vector<std::span<const int64_t>> slot_mapping = {slots};
  const std::vector<std::span<const int32_t>> block_tables = {blocks};
  const ForwardBatch batch = {.token_ids = tokens,
                              .positions = positions,
                              .query_start_loc = query_start_loc,
                              .seq_lens = seq_lens,
                              .logits_indices = positions,
                              .slot_mapping = slot_mapping,
                              .block_tables = block_tables,
                              .block_table_stride = static_cast<int32_t>(blocks.size())};
  std::vector<LayerCache> caches;
  for (int32_t i = 0; i < model_->config().num_layers; ++i) {
    caches.push_back({.group = 0, .view = storage_.layer_view(0, i)});
  }
  std::vector<float> logits(tokens.size() * static_cast<size_t>(vocab_size()));
  model_->forward(ForwardContext{.exec = device_->context(),
                                 .batch = batch,
                                 .caches = caches,
                                 .logits = logits.data()});
  return logits;
}

}  // namespace sluice::testing
