// SPDX-License-Identifier: Apache-2.0
// Computes logits of texts in float activations, one window of tokens at a time, without scheduler
// and sampler: for calibration and comparison of formats.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/models/model.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/input_tap.h"
#include "engine/weights/weight_store.h"
#include "kernels/device.h"
#include "kvcache/store/kv_storage.h"

namespace sluice {

class OfflineModel {
 public:
  // `tap` may be null; it must outlive the model. Errors as in Checkpoint::open, and those of a
  // model that does not fit in memory.
  static Expected<std::unique_ptr<OfflineModel>> open(const std::string& path,
                                                      int32_t window,
                                                      int32_t threads,
                                                      InputTap* tap);

  // Computes the logits of each position of at most `window` tokens without context:
  // [tokens.size(), vocab].
  void forward(std::span<const TokenId> tokens, std::vector<float>& logits);

  [[nodiscard]] int64_t vocab_size() const { return model_->config().vocab_size; }

  [[nodiscard]] const Checkpoint& checkpoint() const { return *checkpoint_; }

 private:
  explicit OfflineModel(KvStorage storage) : storage_(std::move(storage)) {}

  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<WeightStore> weights_;
  std::unique_ptr<Model> model_;
  KvStorage storage_;
  AlignedBuffer arena_;
  std::vector<LayerCache> caches_;  // by layer
  int32_t num_groups_ = 0;
};

}  // namespace sluice
