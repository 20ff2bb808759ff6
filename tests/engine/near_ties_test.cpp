// SPDX-License-Identifier: Apache-2.0
// Experts whose scores differ by less than 16-bit numbers can tell: routers are float32 from the
// file to the choice. Where equal scores go to the lower id, a rounding would show in the order of
// a layer's experts, which otherwise changes nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/models/model_spec.h"
#include "engine/weights/checkpoint.h"
#include "tests/support/golden_folder.h"
#include "tests/support/golden_models.h"
#include "tests/support/model_harness.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

constexpr float kLittle = 1.0F / 8192;  // half of what float16 resolves, a sixteenth of bfloat16's
constexpr int32_t kTokens = 64;

// A golden GGUF file of which some bytes change.
class ExpertFile {
 public:
  explicit ExpertFile(const std::string& name)
      : path_(golden_folder() + "/models/" + name), bytes_(testing::read_whole_file(path_)) {
    auto checkpoint = Checkpoint::open(path_);
    EXPECT_TRUE(checkpoint.has_value()) << path_;
    checkpoint_ = std::move(*checkpoint);
    config_ = *read_model_config(**find_model_spec(*checkpoint_), *checkpoint_);
  }

  // Makes each second expert nearly equal to the one in front of it: by its row of the router, or
  // by its bias.
  void make_near_ties(float difference, bool by_bias) {
    for_layers([&](const std::string& prefix) {
      const std::span<float> rows = floats(prefix + "ffn_gate_inp.weight");
      const size_t width = rows.size() / num_experts();
      for (const auto& [even, odd] : pairs()) {
        for (size_t i = 0; i < width; ++i) {
          float& value = rows[even * width + i];
          value = rounded(value);
          rows[odd * width + i] = by_bias ? value : value * (1 + difference);
        }
      }
      const std::span<float> biases = floats(prefix + "exp_probs_b.bias");
      for (const auto& [even, odd] : pairs()) {
        if (biases.empty()) break;
        biases[even] = rounded(biases[even]);
        biases[odd] = biases[even] * (by_bias ? 1 + difference : 1);
      }
    });
  }

  // Exchanges the experts of each pair, which is to be seen nowhere.
  void exchange_pairs() {
    for_layers([&](const std::string& prefix) {
      for (const char* name : {"ffn_gate_inp.weight",
                               "exp_probs_b.bias",
                               "ffn_gate_exps.weight",
                               "ffn_up_exps.weight",
                               "ffn_gate_up_exps.weight",
                               "ffn_down_exps.weight",
                               "ffn_down_exps.scale"}) {
        const std::span<char> all = bytes(prefix + name);
        const size_t size = all.size() / num_experts();
        for (const auto& [even, odd] : pairs()) {
          if (all.empty()) break;
          std::ranges::swap_ranges(all.subspan(even * size, size), all.subspan(odd * size, size));
        }
      }
    });
  }

  [[nodiscard]] std::vector<float> logits() const {
    const testing::TemporaryFolder folder;
    const std::string path = folder.at("experts.gguf");
    std::ofstream(path, std::ios::binary) << bytes_;
    auto harness = testing::ModelHarness::create(path, 32, DType::kF32, kTokens);
    EXPECT_TRUE(harness.has_value()) << harness.error().message;
    if (!harness) return {};
    std::vector<TokenId> tokens;
    for (int32_t i = 0; i < kTokens; ++i) tokens.push_back(3 + i * 29 % 67);
    return (*harness)->forward(tokens);
  }

 private:
  std::string path_;
  std::string bytes_;
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;

  [[nodiscard]] size_t num_experts() const {
    return static_cast<size_t>(config_.moe.num_experts);
  }

  // Experts of one group, two and two.
  [[nodiscard]] std::vector<std::pair<size_t, size_t>> pairs() const {
    const size_t groups = std::max<size_t>(1, static_cast<size_t>(config_.moe.router.num_groups));
    const size_t size = num_experts() / groups;
    std::vector<std::pair<size_t, size_t>> pairs;
    for (size_t group = 0; group < groups; ++group) {
      for (size_t i = 0; i + 1 < size; i += 2) {
        pairs.emplace_back(group * size + i, group * size + i + 1);
      }
    }
    return pairs;
  }

  template <typename Each>
  void for_layers(const Each& each) {
    for (int32_t i = 0; i < config_.num_layers; ++i) {
      const std::string prefix = "blk." + std::to_string(i) + ".";
      if (checkpoint_->has(prefix + "ffn_gate_inp.weight")) each(prefix);
    }
  }

  // A tensor's bytes in the copy; none where there is no such tensor.
  std::span<char> bytes(const std::string& name) {
    const CheckpointTensor* const tensor = checkpoint_->find(name);
    if (tensor == nullptr) return {};
    const std::string original = testing::read_whole_file(path_);
    const std::string_view data(reinterpret_cast<const char*>(tensor->data.data()),
                                tensor->data.size());
    const size_t at = original.find(data);
    EXPECT_NE(at, std::string::npos) << name;
    EXPECT_EQ(original.rfind(data), at) << name;
    return {&bytes_[at], data.size()};
  }

  std::span<float> floats(const std::string& name) {
    const std::span<char> found = bytes(name);
    if (found.empty()) return {};
    EXPECT_EQ(checkpoint_->find(name)->format, WeightFormat::kF32) << name;
    return {reinterpret_cast<float*>(found.data()), found.size() / sizeof(float)};
  }

  // To what bfloat16 can hold.
  static float rounded(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    return std::bit_cast<float>((bits + 0x8000U) & 0xFFFF0000U);
  }
};

// The largest difference that an exchange makes, relative to the logits' range.
double difference_by_exchange(ExpertFile file) {
  const std::vector<float> before = file.logits();
  file.exchange_pairs();
  const std::vector<float> after = file.logits();
  double most = before.size() == after.size() && !before.empty() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(before.size(), after.size()); ++i) {
    most = std::max(most, std::fabs(double{before[i]} - double{after[i]}));
  }
  const auto [low, high] = std::minmax_element(before.begin(), before.end());
  return most / (double{*high} - double{*low});
}

void expect_near_ties_are_told_apart(const std::string& name, bool by_bias) {
  for (const float difference : {kLittle, 0.0F}) {
    ExpertFile file(name);
    file.make_near_ties(difference, by_bias);
    const double found = difference_by_exchange(std::move(file));
    if (difference == 0) {
      EXPECT_GT(found, 1e-2) << name << ": ties are not to be seen";
    } else {
      EXPECT_LT(found, 1e-4) << name;
    }
  }
}

}  // namespace

TEST(NearTies, OfLogitsAreToldApart) { expect_near_ties_are_told_apart("gemma4-all.gguf", false); }

TEST(NearTies, OfSigmoidsAreToldApart) {
  expect_near_ties_are_told_apart("deepseek-v32.gguf", false);
}

TEST(NearTies, OfBiasesAreToldApart) { expect_near_ties_are_told_apart("deepseek-v32.gguf", true); }

}  // namespace sluice
