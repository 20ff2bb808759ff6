// SPDX-License-Identifier: Apache-2.0
// A model over one sequence, without scheduler and sampler: the logits of its positions, for
// calibration and comparison of formats.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
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
  struct Options {
    int32_t activation_bits = 32;  // 8, 16 or 32: floats
    DType kv_dtype = DType::kF32;
    std::string isa = "auto";  // as Device::Options
    int32_t threads = 0;       // 0: default_num_threads()
    InputTap* tap = nullptr;   // null: nothing is tapped; else it must outlive the model
  };

  // For sequences of at most `window` tokens. Errors as in Checkpoint::open, and those of a model
  // with tensors that it does not read, or that does not fit in memory.
  static Expected<std::unique_ptr<OfflineModel>> open(const std::string& path,
                                                      int32_t window,
                                                      const Options& options);

  // Computes tokens of the sequence from position `begin` on; those in front of it were computed
  // by earlier calls. Writes the logits of the `wanted` ones, by their index among the tokens, or
  // of all if that is empty: [wanted.size(), vocab].
  void forward(std::span<const TokenId> tokens,
               std::vector<float>& logits,
               int32_t begin = 0,
               std::span<const int32_t> wanted = {});

  [[nodiscard]] int64_t vocab_size() const { return model_->config().vocab_size; }

  [[nodiscard]] const Model& model() const { return *model_; }

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
