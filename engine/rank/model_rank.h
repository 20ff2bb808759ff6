// SPDX-License-Identifier: Apache-2.0
// One rank of a model: its part of its stage's layers and of their KV, and every buffer that steps
// need on its device, allocated before the first step. Used by one thread at a time, placed as the
// device says (Device::enter). Rank 0's thread also chooses tokens (model_runner.h); the others are
// Followers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/config.h"
#include "engine/core/numa.h"
#include "engine/core/status.h"
#include "engine/models/model.h"
#include "engine/parallel/parallel.h"
#include "engine/rank/decode_buckets.h"
#include "engine/rank/device_batch.h"
#include "engine/rank/input_batch.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "kernels/sampling.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/store/kv_storage.h"

namespace sluice {

// A job that all ranks run at the same time; valid until all have finished.
struct RankJob {
  enum class Kind : uint8_t { kLayers, kLogits, kStates };
  Kind kind = Kind::kLayers;

  // For kLayers: the step, in host memory and without padding, and the blocks to copy before it.
  const ForwardBatch* batch = nullptr;
  HiddenRows hidden = {};  // input of a draft head
  std::span<const KvBlockCopy> copies = {};
  std::optional<size_t> bucket = {};  // recorded step to replay instead, padded to its rows
  kernels::SampleRow* samples = nullptr;  // rows that the device samples, in its memory
  // Rank 0 records it before the first operator.
  kernels::DeviceEvent* begun = nullptr;

  // For kLogits and kStates: rows of the last step, in host memory; none: all rows that sample.
  std::optional<std::span<const int32_t>> rows = {};
};

// Parses --kv-cache-dtype.
Expected<DType> parse_kv_dtype(const std::string& name);
// Parses it for a model: auto is exact in an encoder, whose cache lives for one step.
Expected<DType> kv_dtype_of(const std::string& name, const ModelConfig& model);

// Parses --huge-pages. `transparent`: the buffer's own default.
AlignedBuffer::Pages pages_of(const Config& config, AlignedBuffer::Pages transparent);

// Binds memory to its node. If the system refuses, memory lies where it is first touched, which is
// slower but no error.
void place_memory(std::span<std::byte> bytes, const Placement& placement);

class ModelRank {
 public:
  struct Bounds {
    StepBounds step;
    InputBatch::Bounds batch;
    kernels::LargestMatrices largest;
    int32_t max_model_len = 0;  // longest planned sequence
  };

  // The planned KV cache. `groups` are those of all ranks, with num_blocks set; a rank has the
  // layers of its stage and the planes of its own heads.
  struct KvSizes {
    std::vector<KvGroupSpec> groups;
    DType dtype = DType::kBF16;
    int32_t block_size = 0;
  };

  // Device bytes that steps need beside the model's own. `part_bytes`: the largest part that ranks
  // exchange, 0 with one rank.
  static int64_t device_bytes(const Bounds& bounds, int64_t part_bytes, int32_t num_ranks);
  // Further ones, by which ranks of one process write each other's memory; 0 where they do not.
  static int64_t window_bytes(const Config& config);
  // Pinned host bytes.
  static int64_t pinned_bytes(const Bounds& bounds);

  // Takes the model and allocates the rest of the plan. `device` must outlive the rank; `placement`
  // is the rank's own.
  static Expected<std::unique_ptr<ModelRank>> create(const kernels::Device& device,
                                                     std::unique_ptr<Model> model,
                                                     const Bounds& bounds,
                                                     const KvSizes& kv,
                                                     const Placement& placement,
                                                     const Config& config);

  // Bytes of the largest part that a rank sends in steps within these bounds.
  static int64_t part_bytes(const Model& model, const StepBounds& step);

  // What it exchanges with other processes in such steps.
  static ExchangeSizes exchange_sizes(const Model& model, const StepBounds& step);

  // Called once before the first job, if several ranks share the stage's layers.
  void connect(std::unique_ptr<Communicator> communicator) {
    communicator_ = std::move(communicator);
  }

  // Likewise with several stages, on the first rank of each.
  void connect_stages(std::unique_ptr<Communicator> stages) { stages_ = std::move(stages); }

  // Describes this rank for a rank group, as device `number`.
  [[nodiscard]] DeviceRank device_rank(int32_t number) const {
    return {.device = number,
            .received = received_.span(),
            .stream = exec_.stream,
            .name = device_.name(),
            .memory = &device_.memory(),
            .window = window_.span()};
  }

  // Called on every rank before any of them is destroyed: others may write this one's memory.
  void disconnect() {
    communicator_.reset();
    stages_.reset();
  }

  // Ends the exchanges of all ranks, if there are others, which wait for what this one cannot do.
  void fail_exchanges() {
    if (communicator_ != nullptr) communicator_->fail();
  }

  // Sets where rank 0's device memory holds the tokens chosen in the previous step; other ranks
  // copy them.
  void use_chosen(TokenId* chosen) { chosen_ = chosen; }

  // Sets the input that recorded steps of a draft head read.
  void use_hidden(const HiddenRows& hidden) { hidden_ = hidden; }

  // Runs layers and logits once for each of these DecodeBuckets::sizes(), because first use loads
  // kernels and computes rotations; with several ranks also the layers of the largest step, for
  // which NCCL may connect anew and take memory. Every rank calls it concurrently; after all have
  // finished, record_steps() follows, in which no device waits for another.
  Expected<void> warm_up(const std::vector<int32_t>& sizes);
  // Records the steps of these sizes, which jobs then replay.
  Expected<void> record_steps(const std::vector<int32_t>& sizes);

  void drop_recorded() { recorded_.clear(); }

  // Runs the job, concurrently with every other rank.
  void run(const RankJob& job);

  // [max_rows][vocab] in operators' memory, on rank 0: logits of the last kLogits job or recorded
  // step.
  [[nodiscard]] float* logits() const { return reinterpret_cast<float*>(logits_.data()); }

  // [rows][hidden] of the last kStates job, in operators' memory; null before the first one.
  [[nodiscard]] const float* embedded() const { return embedded_; }

  // Whether any rank has failed: nothing computed since then is valid.
  [[nodiscard]] bool has_failed() const { return context().has_failed(); }

  [[nodiscard]] const kernels::Device& device() const { return device_; }

  [[nodiscard]] const kernels::ExecContext& exec() const { return exec_; }

  [[nodiscard]] const Model& model() const { return *model_; }

  [[nodiscard]] KvStorage& kv_storage() { return kv_storage_; }

 private:
  ModelRank(const kernels::Device& device,
            std::unique_ptr<Model> model,
            const Bounds& bounds,
            KvStorage storage)
      : device_(device),
        model_(std::move(model)),
        bounds_(bounds),
        kv_storage_(std::move(storage)) {}

  [[nodiscard]] bool is_first() const {
    return model_->config().share.rank == 0 && model_->config().stage.is_first();
  }

  Expected<void> allocate(const Placement& placement, const Config& config);
  void use_host_pages(const Placement& placement);
  Expected<void> allocate_exchange(kernels::DeviceMemory& memory, const Config& config);
  // Calls body() with each bucket's step.
  template <typename Body>
  Expected<void> for_buckets(const std::vector<int32_t>& sizes, const Body& body);
  void run_padding();
  void run_largest_padding();
  void run_job(const RankJob& job);
  void run_layers(const RankJob& job);
  void note_state();
  void run_logits(std::span<const int32_t> rows);
  void run_states(std::span<const int32_t> rows);
  void take_pending_tokens();
  void place_following(kernels::SampleRow* samples);

  [[nodiscard]] ForwardContext context() const {
    return {.exec = exec_,
            .batch = step_,
            .caches = caches_,
            .hidden = hidden_,
            .communicator = communicator_.get(),
            .stages = stages_.get()};
  }

  const kernels::Device& device_;
  std::unique_ptr<Model> model_;
  Bounds bounds_;
  KvStorage kv_storage_;
  std::vector<LayerCache> caches_;  // by layer
  kernels::DeviceBuffer arena_;
  kernels::DeviceBuffer logits_;  // on rank 0
  kernels::ExecContext exec_;
  kernels::DeviceBuffer workspace_;
  std::optional<DeviceBatch> device_batch_;
  // Only for a device with memory of its own.
  kernels::DeviceBuffer received_;  // from other ranks
  kernels::DeviceBuffer window_;    // which other ranks write
  kernels::DeviceBuffer copied_;    // copy of chosen_ on ranks above 0
  TokenId* chosen_ = nullptr;  // [max_logits]

  // Null with one rank, and with one stage; destroyed before their buffers.
  std::unique_ptr<Communicator> communicator_;
  std::unique_ptr<Communicator> stages_;
  std::vector<std::unique_ptr<kernels::RecordedWork>> recorded_;  // by bucket
  std::optional<DecodeBuckets> buckets_;                          // of recorded_
  ForwardBatch step_;                                             // the latest one
  HiddenRows hidden_;                                             // the latest ones
  const float* embedded_ = nullptr;
};

}  // namespace sluice
