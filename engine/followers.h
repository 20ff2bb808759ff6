// SPDX-License-Identifier: Apache-2.0
// The ranks above 0 of a model that several share: each a thread with compute threads, activations
// and KV of its own. Rank 0 is whoever runs the steps; it tells them what to do, and they stay
// parked in between. Weights are shared: a rank reads its rows and columns of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/core/status.h"
#include "engine/models/model.h"
#include "engine/parallel.h"
#include "kernels/device.h"
#include "kvcache/kv_cache_manager.h"
#include "kvcache/kv_storage.h"

namespace sluice {

// One rank, ready to run. What it points to lies still.
struct ModelRank {
  ModelRank(std::unique_ptr<kernels::Device> own_device,
            std::unique_ptr<Model> own_model,
            KvStorage storage,
            AlignedBuffer buffer)
      : device(std::move(own_device)),
        model(std::move(own_model)),
        kv_storage(std::move(storage)),
        arena(std::move(buffer)) {}

  std::unique_ptr<kernels::Device> device;
  std::unique_ptr<Model> model;
  KvStorage kv_storage;
  AlignedBuffer arena;
  std::vector<LayerCache> caches;  // by layer
  std::unique_ptr<Prefault> prefault;
};

// Of one step, for every rank; valid until all are done.
struct RankJob {
  enum class Kind : uint8_t { kForward, kLogits };
  Kind kind = Kind::kForward;
  const ForwardBatch* batch = nullptr;
  std::span<const KvBlockCopy> copies = {};  // kForward: blocks, before the layers
  std::span<const int32_t> rows = {};        // kLogits
};

// start(), finish() and the destructor on the thread of rank 0, which runs the same job in between.
class Followers {
 public:
  // `communicators[i]` is the end of `ranks[i]`.
  Followers(std::vector<std::unique_ptr<ModelRank>> ranks,
            std::vector<std::unique_ptr<Communicator>> communicators);
  ~Followers();
  Followers(const Followers&) = delete;
  Followers& operator=(const Followers&) = delete;

  void start(const RankJob& job);
  void finish();  // returns when every rank has run it

  void wait_until_backed() const;  // any thread; as Engine has it

 private:
  void thread_main(ModelRank& rank, Communicator& communicator);

  const std::vector<std::unique_ptr<ModelRank>> ranks_;
  const std::vector<std::unique_ptr<Communicator>> communicators_;
  RankJob job_;                                        // written by rank 0 while no rank runs
  bool is_ending_ = false;                             // the same
  alignas(64) std::atomic<uint32_t> num_started_ = 0;  // jobs
  alignas(64) std::atomic<uint32_t> num_running_ = 0;  // ranks
  std::vector<std::thread> threads_;
};

}  // namespace sluice
