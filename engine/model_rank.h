// SPDX-License-Identifier: Apache-2.0
// One rank of a model, or the only one: its part of the layers and of the KV cache, and every
// buffer that steps need on its device, sized and allocated before the first. One thread at a time,
// whose place on the machine is the device's (Device::enter). Rank 0's also chooses tokens
// (model_runner.h); the others' are Followers.
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
#include "engine/device_batch.h"
#include "engine/input_batch.h"
#include "engine/memory_plan.h"
#include "engine/models/model.h"
#include "engine/parallel.h"
#include "kernels/device.h"
#include "kernels/gemm.h"
#include "kernels/sampling.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/kv_storage.h"

namespace sluice {

// What every rank does at the same time; valid until all have.
struct RankJob {
  enum class Kind : uint8_t { kLayers, kLogits, kStates };
  Kind kind = Kind::kLayers;

  // kLayers. The step, in memory of the host, and blocks to copy before it.
  const ForwardBatch* batch = nullptr;
  HiddenRows hidden = {};  // of a head
  std::span<const KvBlockCopy> copies = {};
  std::optional<size_t> bucket = {};  // of the recorded step that runs in the layers' place
  kernels::SampleRow* samples = nullptr;  // its rows that the device samples, in its memory
  // Recorded by rank 0 before the first operator.
  kernels::DeviceEvent* begun = nullptr;

  // kLogits, kStates. Rows of the last step, in memory of the host; none: those that sample.
  std::optional<std::span<const int32_t>> rows = {};
};

// --huge-pages. `transparent`: what the buffer asks for itself.
AlignedBuffer::Pages pages_of(const Config& config, AlignedBuffer::Pages transparent);

// Where the system refuses, memory lies where it is first touched, which is slower and no error.
void place_memory(std::span<std::byte> bytes, const Placement& placement);

class ModelRank {
 public:
  struct Bounds {
    StepBounds step;
    InputBatch::Bounds batch;
    kernels::LargestMatrices largest;
    int32_t max_model_len = 0;  // as planned: of any sequence
  };

  // Bytes of a device, beside the model's own, that steps need there; `part_bytes`: of the largest
  // part that ranks exchange, 0 where there is one rank.
  static int64_t device_bytes(const Bounds& bounds, int64_t part_bytes, int32_t num_ranks);
  // Of the host, pinned.
  static int64_t pinned_bytes(const Bounds& bounds);

  // Takes the model and allocates the rest of the plan. `device` must outlive it; `placement`: the
  // rank's.
  static Expected<std::unique_ptr<ModelRank>> create(const kernels::Device& device,
                                                     std::unique_ptr<Model> model,
                                                     const Bounds& bounds,
                                                     const MemoryPlan& plan,
                                                     const Placement& placement,
                                                     const Config& config);

  // Where there are more ranks than one; once, before the first job.
  void connect(std::unique_ptr<Communicator> communicator) {
    communicator_ = std::move(communicator);
  }

  // Of a rank on device `number`.
  [[nodiscard]] DeviceRank device_rank(int32_t number) const {
    return {.device = number, .received = received_.span(), .stream = exec_.stream};
  }

  // The tokens that rank 0 chose in the step before, in memory of its device: rank 0's, which the
  // others then have a copy of.
  void use_chosen(TokenId* chosen) { chosen_ = chosen; }

  // Of a head: what recorded steps read.
  void use_hidden(const HiddenRows& hidden) { hidden_ = hidden; }

  // Runs the layers and logits of steps of these DecodeBuckets::sizes(), as kernels are loaded and
  // rotations computed by their first use; with other ranks, the layers of the largest step as
  // well, for whose parts NCCL may have to connect otherwise, and take memory. Every rank side by
  // side, and when all have, record_steps(), in which no device waits for another.
  Expected<void> warm_up(const std::vector<int32_t>& sizes);
  // The same, which jobs then replay.
  Expected<void> record_steps(const std::vector<int32_t>& sizes);

  void drop_recorded() { recorded_.clear(); }

  // Every rank the same, side by side.
  void run(const RankJob& job);

  // [max_rows][vocab], where operators read them: rank 0's, of the last job of logits or recorded
  // step.
  [[nodiscard]] float* logits() const { return reinterpret_cast<float*>(logits_.data()); }

  // [rows][hidden] of the last job of states, where operators read them; null: none has run.
  [[nodiscard]] const float* embedded() const { return embedded_; }

  // Whether one of the ranks has: then nothing that was computed since means anything.
  [[nodiscard]] bool has_failed() const {
    return communicator_ != nullptr && communicator_->has_failed();
  }

  [[nodiscard]] const kernels::Device& device() const { return device_; }

  [[nodiscard]] const kernels::ExecContext& exec() const { return exec_; }

  [[nodiscard]] const Model& model() const { return *model_; }

  [[nodiscard]] KvStorage& kv_storage() { return kv_storage_; }

  void wait_until_backed() const {
    if (prefault_) prefault_->wait();
  }

 private:
  ModelRank(const kernels::Device& device,
            std::unique_ptr<Model> model,
            const Bounds& bounds,
            KvStorage storage)
      : device_(device),
        model_(std::move(model)),
        bounds_(bounds),
        kv_storage_(std::move(storage)) {}

  [[nodiscard]] bool is_first() const { return model_->config().share.rank == 0; }

  Expected<void> allocate(const Placement& placement, const Config& config);
  void use_host_pages(const Placement& placement, const Config& config);
  Expected<void> allocate_exchange(kernels::DeviceMemory& memory);
  // body() with each bucket's step at hand.
  template <typename Body>
  Expected<void> for_buckets(const std::vector<int32_t>& sizes, const Body& body);
  void run_padding();
  void run_largest_padding();
  void run_layers(const RankJob& job);
  void run_logits(std::span<const int32_t> rows);
  void run_states(std::span<const int32_t> rows);
  void take_open_tokens();
  void place_following(kernels::SampleRow* samples);

  [[nodiscard]] ForwardContext context() const {
    return {.exec = exec_,
            .batch = step_,
            .caches = caches_,
            .hidden = hidden_,
            .communicator = communicator_.get()};
  }

  const kernels::Device& device_;
  std::unique_ptr<Model> model_;
  Bounds bounds_;
  KvStorage kv_storage_;
  std::unique_ptr<Prefault> prefault_;
  std::vector<LayerCache> caches_;  // by layer
  kernels::DeviceBuffer arena_;
  kernels::DeviceBuffer logits_;  // of rank 0
  kernels::ExecContext exec_;
  kernels::DeviceBuffer workspace_;
  std::optional<DeviceBatch> device_batch_;
  // Of a device with memory of its own.
  kernels::DeviceBuffer received_;  // from other ranks
  kernels::DeviceBuffer copied_;    // chosen_ of ranks above 0
  TokenId* chosen_ = nullptr;  // [max_logits]

  std::unique_ptr<Communicator> communicator_;  // of several ranks; gone before what it receives in
  std::vector<std::unique_ptr<kernels::RecordedWork>> recorded_;  // by bucket
  ForwardBatch step_;                                             // the last
  HiddenRows hidden_;                                             // the same
  const float* embedded_ = nullptr;
};

}  // namespace sluice
