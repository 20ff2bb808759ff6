// SPDX-License-Identifier: Apache-2.0
// Runs a model over one sequence, in one step or several, and returns the logits of every position:
// the engine's computation, without scheduler and sampler.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/models/model.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/weight_store.h"
#include "kernels/device.h"
#include "kvcache/store/kv_storage.h"

namespace sluice::testing {

class ModelHarness {
 public:
  static Expected<std::unique_ptr<ModelHarness>> create(const std::string& path,
                                                        int32_t activation_bits,
                                                        DType kv_dtype,
                                                        int32_t max_tokens,
                                                        const std::string& isa = "auto");

  // Returns [tokens.size()][vocab].
  std::vector<float> forward(const std::vector<TokenId>& tokens) { return forward(tokens, 0); }

  // Runs the tokens from position `begin` on, after calls for those before. Returns
  // [tokens.size()][vocab], or only the `wanted` rows if there are any.
  std::vector<float> forward(const std::vector<TokenId>& tokens,
                             int32_t begin,
                             std::vector<int32_t> wanted = {});

  // Runs all tokens from the first, `piece` at a time. Returns [tokens.size()][vocab].
  std::vector<float> forward_in_pieces(const std::vector<TokenId>& tokens, int32_t piece);

  [[nodiscard]] const ModelConfig& config() const { return model_->config(); }

  [[nodiscard]] std::vector<LayerGroup> layer_groups() const {
    return model_->layer_groups(DType::kF32);
  }

  [[nodiscard]] int64_t vocab_size() const { return model_->config().vocab_size; }

 private:
  explicit ModelHarness(KvStorage storage) : storage_(std::move(storage)) {}

  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<WeightStore> weights_;
  std::unique_ptr<Model> model_;
  KvStorage storage_;
  AlignedBuffer arena_;
  std::vector<LayerCache> caches_;  // by layer
  int32_t num_groups_ = 0;
};

}  // namespace sluice::testing
