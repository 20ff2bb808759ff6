// SPDX-License-Identifier: Apache-2.0
#include "tests/support/model_harness.h"

#include <algorithm>
#include <utility>

namespace sluice::testing {

Expected<std::unique_ptr<ModelHarness>> ModelHarness::create(const std::string& path,
                                                             int32_t activation_bits,
                                                             DType kv_dtype,
                                                             int32_t max_tokens,
                                                             const std::string& isa) {
  SLUICE_TRY(
      auto model,
      OfflineModel::open(path,
                         max_tokens,
                         {.activation_bits = activation_bits, .kv_dtype = kv_dtype, .isa = isa}));
  return std::unique_ptr<ModelHarness>(new ModelHarness(std::move(model)));
}

std::vector<float> ModelHarness::forward(const std::vector<TokenId>& tokens,
                                         int32_t begin,
                                         const std::vector<int32_t>& wanted) {
  std::vector<float> logits;
  model_->forward(tokens, logits, begin, wanted);
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
