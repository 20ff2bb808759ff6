// SPDX-License-Identifier: Apache-2.0
// An OfflineModel whose logits are returned, over one sequence in one step or several.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/run/offline_model.h"

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
                             const std::vector<int32_t>& wanted = {});

  // Runs all tokens from the first, `piece` at a time. Returns [tokens.size()][vocab].
  std::vector<float> forward_in_pieces(const std::vector<TokenId>& tokens, int32_t piece);

  [[nodiscard]] const ModelConfig& config() const { return model_->model().config(); }

  [[nodiscard]] std::vector<LayerGroup> layer_groups() const {
    return model_->model().layer_groups(DType::kF32);
  }

  [[nodiscard]] int64_t vocab_size() const { return model_->vocab_size(); }

 private:
  explicit ModelHarness(std::unique_ptr<OfflineModel> model) : model_(std::move(model)) {}

  std::unique_ptr<OfflineModel> model_;
};

}  // namespace sluice::testing
