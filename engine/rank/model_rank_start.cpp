// SPDX-License-Identifier: Apache-2.0
// What a rank has before its first step: its memory, and the steps that it records.
#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "engine/core/log.h"
#include "engine/models/rank_share.h"
#include "engine/rank/model_rank.h"
#include "kernels/gemm.h"
#include "kernels/peer_rows.h"

namespace sluice {
namespace {

using Pages = AlignedBuffer::Pages;
using kernels::DeviceBuffer;

// The KV groups of one rank, with its own layers and heads.
std::vector<KvGroupSpec> rank_groups(const ModelRank::KvSizes& kv,
                                     const std::vector<LayerGroup>& own) {
  std::vector<KvGroupSpec> groups = kv.groups;
  for (size_t i = 0; i < groups.size(); ++i) {
    groups[i].num_layers = own[i].spec.num_layers;
    groups[i].planes = own[i].spec.planes;
  }
  return groups;
}

int64_t chosen_bytes(const StepBounds& bounds) {
  return bounds.max_logits * static_cast<int64_t>(sizeof(TokenId));
}

// Bytes to receive every rank's part of the largest exchange.
int64_t received_bytes(const StepBounds& bounds, int64_t part_bytes, int32_t num_ranks) {
  if (num_ranks == 1) return 0;
  return num_ranks * align_up(std::max(part_bytes, chosen_bytes(bounds)), 64);
}

int64_t workspace_bytes_of(const ModelRank::Bounds& bounds) {
  return kernels::workspace_bytes(bounds.step.device, bounds.step.max_tokens, bounds.largest);
}

}  // namespace

Expected<DType> parse_kv_dtype(const std::string& name) {
  if (name == "auto" || name == "bfloat16") return DType::kBF16;
  if (name == "float16") return DType::kF16;
  if (name == "float32") return DType::kF32;
  if (name == "int8" || name == "int8_per_token_head") return DType::kI8;
  if (name == "fp8" || name == "fp8_e4m3") return DType::kF8E4M3;
  return make_error(ErrorCode::kInvalidArgument,
                    "--kv-cache-dtype: found " + name +
                        ", expected auto, bfloat16, float16, float32, int8 or fp8",
                    "kv-cache-dtype");
}

Expected<DType> kv_dtype_of(const std::string& name, const ModelConfig& model) {
  if (name == "auto" && model.is_encoder) return DType::kF32;
  return parse_kv_dtype(name);
}

Pages pages_of(const Config& config, Pages transparent) {
  if (config.huge_pages == "explicit") return Pages::kReserved;
  return config.huge_pages == "off" ? Pages::kSmall : transparent;
}

void place_memory(std::span<std::byte> bytes, const Placement& placement) {
  if (bind_memory(bytes, placement)) return;
  log_event(LogLevel::kWarning,
            "memory_not_placed",
            "reason",
            "mbind: " + std::generic_category().message(errno));
}

int64_t ModelRank::device_bytes(const Bounds& bounds, int64_t part_bytes, int32_t num_ranks) {
  return DeviceBatch::bytes(bounds.batch) + workspace_bytes_of(bounds) +
         received_bytes(bounds.step, part_bytes, num_ranks) +
         (num_ranks > 1 ? chosen_bytes(bounds.step) : 0);
}

int64_t ModelRank::window_bytes(const Config& config) {
  const bool is_shared = config.tensor_parallel_size > 1 && config.nnodes == 1;
  return is_shared && !config.disable_custom_all_reduce ? kernels::kPeerWindowBytes : 0;
}

int64_t ModelRank::part_bytes(const Model& model, const StepBounds& step) {
  return std::max(model.max_part_bytes(step), chosen_bytes(step));
}

ExchangeSizes ModelRank::exchange_sizes(const Model& model, const StepBounds& step) {
  const ModelConfig& config = model.config();
  const int64_t row = config.hidden * static_cast<int64_t>(sizeof(float));
  ExchangeSizes sizes = {.part_bytes = part_bytes(model, step), .num_stages = config.stage.count};
  if (sizes.num_stages == 1) return sizes;
  sizes.passed_bytes = max_stage_part_bytes(config, step);
  sizes.returned_bytes = step.max_logits * row;
  return sizes;
}

int64_t ModelRank::pinned_bytes(const Bounds& bounds) { return DeviceBatch::bytes(bounds.batch); }

Expected<std::unique_ptr<ModelRank>> ModelRank::create(const kernels::Device& device,
                                                       std::unique_ptr<Model> model,
                                                       const Bounds& bounds,
                                                       const KvSizes& kv,
                                                       const Placement& placement,
                                                       const Config& config) {
  const std::vector<LayerGroup> layouts = model->layer_groups(kv.dtype);
  SLUICE_TRY(KvStorage storage,
             KvStorage::create(rank_groups(kv, layouts),
                               kv.block_size,
                               pages_of(config, Pages::kHuge),
                               device.memory()));
  std::unique_ptr<ModelRank> rank(
      new ModelRank(device, std::move(model), bounds, std::move(storage)));
  SLUICE_TRY_VOID(rank->allocate(placement, config));
  rank->caches_ = layer_caches(layouts, rank->kv_storage_);
  return rank;
}

Expected<void> ModelRank::allocate(const Placement& placement, const Config& config) {
  kernels::DeviceMemory& memory = device_.memory();
  SLUICE_TRY(arena_,
             DeviceBuffer::allocate(memory,
                                    model_->arena_bytes(bounds_.step),
                                    "activations",
                                    pages_of(config, Pages::kHuge)));
  if (memory.is_host()) use_host_pages(placement);
  model_->bind(bounds_.step, arena_.span());
  if (is_first()) {
    const int64_t bytes = bounds_.step.max_logits * int64_t{model_->config().vocab_size} *
                          static_cast<int64_t>(sizeof(float));
    SLUICE_TRY(logits_, DeviceBuffer::allocate(memory, bytes, "logits"));
  }
  SLUICE_TRY(workspace_, DeviceBuffer::allocate(memory, workspace_bytes_of(bounds_), "workspace"));
  SLUICE_TRY(device_batch_, DeviceBatch::create(memory, bounds_.batch));
  exec_ = device_.context();
  exec_.workspace = workspace_.span();
  if (!memory.is_host()) SLUICE_TRY_VOID(allocate_exchange(memory, config));
  memory.wait();
  return {};
}

// Sets the placement of pages before they are first touched.
void ModelRank::use_host_pages(const Placement& placement) {
  place_memory(kv_storage_.bytes(), placement);
  place_memory(arena_.span(), placement);
}

// CPU ranks read each other's parts in place and need no buffer.
Expected<void> ModelRank::allocate_exchange(kernels::DeviceMemory& memory, const Config& config) {
  if (const int32_t size = model_->config().share.size; size > 1) {
    const int64_t part = model_->max_part_bytes(bounds_.step);
    SLUICE_TRY(received_,
               DeviceBuffer::allocate(
                   memory, received_bytes(bounds_.step, part, size), "parts of other ranks"));
    SLUICE_TRY(window_, DeviceBuffer::allocate(memory, window_bytes(config), "exchanges of ranks"));
  }
  if (!is_first()) {
    SLUICE_TRY(copied_,
               DeviceBuffer::allocate(memory, chosen_bytes(bounds_.step), "chosen tokens"));
    chosen_ = reinterpret_cast<TokenId*>(copied_.data());
  }
  return {};
}

// Runs body() on steps of padding rows. Only the longest context bounds a recorded step's reads.
template <typename Body>
Expected<void> ModelRank::for_buckets(const std::vector<int32_t>& sizes, const Body& body) {
  DecodeBuckets buckets(sizes, bounds_.batch.tables.size());
  const InputBatch empty(bounds_.batch);
  for (size_t i = 0; i < buckets.sizes().size(); ++i) {
    step_ = device_batch_->upload(buckets.pad(empty.view(), i));
    step_.max_seq_len = bounds_.max_model_len;
    device_.memory().wait();
    SLUICE_TRY_VOID(body());
  }
  device_.memory().wait();
  if (has_failed()) {
    return make_error(ErrorCode::kUnavailable, "a rank has failed before the first step");
  }
  return {};
}

void ModelRank::run_padding() {
  model_->forward(context());
  // A recording must fail with an error here: no launch can follow one that broke it.
  if (!has_failed()) model_->logits(context(), step_.logits_indices, logits());
}

// Runs one request without tokens with the most rows of a step.
void ModelRank::run_largest_padding() {
  DecodeBuckets largest({bounds_.step.max_tokens}, bounds_.batch.tables.size());
  const InputBatch empty(bounds_.batch);
  ForwardBatch step = largest.pad(empty.view(), 0);
  step.query_start_loc = step.query_start_loc.first(2);
  step.seq_lens = step.seq_lens.first(1);
  step.logits_indices = {};
  step.max_seq_len = bounds_.max_model_len;
  step_ = device_batch_->upload(step);
  model_->forward(context());
  device_.memory().wait();
}

Expected<void> ModelRank::warm_up(const std::vector<int32_t>& sizes) {
  if (communicator_ != nullptr) run_largest_padding();
  return for_buckets(sizes, [this]() -> Expected<void> {
    run_padding();
    return {};
  });
}

Expected<void> ModelRank::record_steps(const std::vector<int32_t>& sizes) {
  kernels::DeviceMemory& memory = device_.memory();
  buckets_.emplace(sizes, bounds_.batch.tables.size());
  return for_buckets(sizes, [&]() -> Expected<void> {
    memory.begin_recording();
    run_padding();
    SLUICE_TRY(recorded_.emplace_back(), memory.end_recording());
    return {};
  });
}

}  // namespace sluice
