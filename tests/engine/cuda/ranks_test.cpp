// SPDX-License-Identifier: Apache-2.0
// Models whose layers several shim devices share: each has its part of the weights, and the bits
// and the key equal those of one device, in each format, architecture and setting.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/run/model_runner.h"
#include "quant/format.h"
#include "tests/engine/cuda/shim_ranks.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/shared_model.h"
#include "tests/support/simt/memory.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::ShimDevices;
using testing::TemporaryFolder;
using testing::TinyModel;
using testing::TinyWeights;

struct Ran {
  std::vector<Collected> results;
  std::string key;
};

Ran run(Config config, int32_t ranks, const std::vector<ValidRequest>& requests) {
  config.tensor_parallel_size = ranks;
  const std::unique_ptr<Engine> engine = testing::start_ranks(config);
  if (engine == nullptr) return {};
  return {.results = testing::run_together(*engine, requests),
          .key = engine->model().system_fingerprint};
}

void expect_same_on(const std::vector<int32_t>& sizes,
                    const Config& config,
                    const std::vector<ValidRequest>& requests,
                    const std::string& what) {
  const ShimDevices devices(8);
  const Ran expected = run(config, 1, requests);
  ASSERT_EQ(expected.results.size(), requests.size()) << what;
  for (const int32_t size : sizes) {
    const Ran ran = run(config, size, requests);
    ASSERT_EQ(ran.results.size(), requests.size()) << what;
    expect_same(expected.results, ran.results, what + " on " + std::to_string(size));
    EXPECT_EQ(ran.key, expected.key) << what;
    if (::testing::Test::HasFailure()) return;
  }
}

// Greedy and sampled requests, with edits on the host, log-probabilities and a scored prompt.
std::vector<ValidRequest> requests_to_run() {
  std::vector<ValidRequest> requests = testing::tiny_requests();
  if (testing::is_short()) requests.resize(2);
  return requests;
}

Config dummy_config(const TemporaryFolder& folder) {
  Config config = testing::tiny_config("cuda", folder.path());
  config.load_format = "dummy";
  return config;
}

// A request with few tokens, and one whose prompt takes several steps.
std::vector<ValidRequest> two_requests() {
  std::vector<ValidRequest> requests = testing::tiny_requests();
  requests.erase(requests.begin(), requests.begin() + 2);
  requests.resize(2);
  for (ValidRequest& request : requests) request.sampling.max_tokens = 3;
  return requests;
}

// INT8 sums are exact in any order, so these are the CPU's bits too.
TEST(CudaRanks, Int8WeightsAndActivationsGiveTheBitsOfOneDeviceAndOfTheCpu) {
  const TinyModel model(TinyWeights::kInt8, "float32");
  expect_same_on({2}, model.config("cuda"), requests_to_run(), "INT8");
  if (HasFailure() || testing::is_short()) return;
  const ShimDevices devices(2);
  expect_same(run(model.config("cpu"), 1, requests_to_run()).results,
              run(model.config("cuda"), 2, requests_to_run()).results,
              "INT8 on the CPU and on 2");
}

TEST(CudaRanks, WeightsOf16BitsGiveTheBitsOfOneDevice) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  for (const TinyWeights weights : {TinyWeights::kBF16, TinyWeights::kF16}) {
    const TinyModel model(weights);
    expect_same_on({2}, model.config("cuda"), requests_to_run(), "16 bits");
  }
}

// Variants: plain; norms of heads; windows and norms around, scaled outputs; biases and no KV
// groups; fused matrices.
TEST(CudaRanks, EveryArchitectureGivesTheBitsOfOneDevice) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  const std::pair<const char*, nlohmann::json> models[] = {
      {"models/llama", {}},
      {"models/qwen3", {}},
      {"models/gemma3", {}},
      {"models/llama-mqa-bias", {{"num_key_value_heads", 1}}},
      {"models/phi3", {{"partial_rotary_factor", 1.0}}},
      {"w8a8/engine-w8a8", {}},
  };
  for (const auto& [name, changes] : models) {
    const TemporaryFolder folder;
    testing::write_model(folder, name, changes);
    expect_same_on({2, 4}, dummy_config(folder), two_requests(), name);
    if (HasFailure()) return;
  }
}

// Variants: normalized or not, with biases, and in INT8.
TEST(CudaRanks, ExpertsGiveTheBitsOfOneDevice) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  const nlohmann::json wide = {{"moe_intermediate_size", 288}};
  for (const char* name :
       {"models/qwen3-moe", "models/gpt-oss", "models/glm4-moe", "w8a8/engine-experts-w8a8"}) {
    const TemporaryFolder folder;
    testing::write_model(folder, name, wide);
    expect_same_on({2, 4}, dummy_config(folder), two_requests(), name);
    if (HasFailure()) return;
  }
}

// Mamba-2's norms join the ranks' sums.
TEST(CudaRanks, LayersWithStatesGiveTheBitsOfOneDevice) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  std::vector<ValidRequest> requests = two_requests();
  for (ValidRequest& request : requests) {
    for (TokenId& token : request.prompt) token %= 250;
    request.sampling.logit_bias.clear();
  }
  for (const std::string name : {"mamba", "delta", "conv"}) {
    Config config =
        testing::tiny_config("cuda", golden_folder() + "/models/engine-" + name + ".gguf");
    config.kv_cache_memory = int64_t{4} << 20;
    expect_same_on({2}, config, requests, name);
    if (HasFailure()) return;
  }
}

TEST(CudaRanks, EightDevicesGiveTheBitsOfOne) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  const TemporaryFolder folder;
  testing::write_model(folder, "models/qwen3", {});
  expect_same_on({8}, dummy_config(folder), two_requests(), "eight");
}

// Borders of shares lie inside blocks of 256 columns.
TEST(CudaRanks, EveryWeightFormatGivesTheBitsOfOneDevice) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  const TemporaryFolder folder;
  Config config = testing::tiny_config("cuda", folder.path() + "/formats.gguf");
  config.kv_cache_memory = int64_t{16} << 20;
  std::vector<WeightFormat> formats;
  for (const FormatInfo& info : format_table()) formats.push_back(info.format);
  ASSERT_TRUE(testing::write_random_model(
      golden_folder() + "/tiny/tiny-llama.gguf", config.model, formats, WeightFormat::kQ6_K));
  expect_same_on({2, 4}, config, two_requests(), "formats");
}

TEST(CudaRanks, SettingsOfAStepChangeNothing) {
  const TinyModel model(TinyWeights::kInt8);
  const ShimDevices devices(2);
  const std::vector<ValidRequest> requests = requests_to_run();
  const Ran expected = run(model.config("cuda"), 1, requests);
  std::vector<Config> settings(3, model.config("cuda"));
  settings[0].enforce_eager = true;
  settings[0].max_num_batched_tokens = 16;
  settings[1].debug_preempt_every = 3;
  settings[2].overlap = false;
  if (testing::is_short()) settings.resize(1);
  for (Config& config : settings) {
    config.tensor_parallel_size = 2;
    const std::unique_ptr<Engine> engine = testing::start_ranks(config);
    ASSERT_NE(engine, nullptr);
    for (const char* pass : {"cold", "cached"}) {
      expect_same(expected.results, testing::run_together(*engine, requests), pass);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(CudaRanks, EachDeviceHasItsPartOfTheWeightsAndIsPlannedByIt) {
  const TemporaryFolder folder;
  testing::write_model(folder, "models/llama", {{"intermediate_size", 4096}});
  const ShimDevices devices(4);
  Config config = dummy_config(folder);
  const auto one = plan_on_devices(config);
  config.tensor_parallel_size = 4;
  const auto four = plan_on_devices(config);
  ASSERT_TRUE(one.has_value() && four.has_value());
  EXPECT_EQ(four->devices.size(), 4U);
  EXPECT_LT(four->model.plan.weight_bytes, one->model.plan.weight_bytes * 0.3);
  EXPECT_NE(four->model.plan.describe().find("on each of 4 devices"), std::string::npos);
  // The plan reserves memory for the ranks' exchange.
  EXPECT_EQ(one->model.plan.available_bytes - four->model.plan.available_bytes, int64_t{1} << 30);
  const MemoryPlan plan = four->model.plan;
  const std::unique_ptr<Engine> engine = testing::start_ranks(config);
  ASSERT_NE(engine, nullptr);
  EXPECT_LE(simt::num_device_bytes(), 4 * (plan.total_bytes() + 20 * 4096));
}

std::string refusal(const Config& config) {
  const auto planned = plan_on_devices(config);
  return planned ? "" : planned.error().message;
}

TEST(CudaRanks, WhatIsMissingIsRefusedByNameAndAutoTakesTheCpu) {
  const TinyModel model(TinyWeights::kInt8);
  Config config = model.config("cuda");
  config.tensor_parallel_size = 2;
  EXPECT_EQ(refusal(config), "CUDA devices: found 1, expected 2");
  config.device = "auto";
  const auto on_cpu = plan_on_devices(config);
  ASSERT_TRUE(on_cpu.has_value()) << on_cpu.error().message;
  EXPECT_EQ(on_cpu->devices.size(), 2U);
  EXPECT_EQ(on_cpu->devices[0]->type(), DeviceType::kCpu);
}

// Rows with scales behind them belong to the whole table; a rank's part cannot be cut.
TEST(CudaRanks, ATiedEmbeddingWithScalesByRowIsRefusedByName) {
  const TinyModel model(TinyWeights::kInt8Tied);
  const ShimDevices devices(2);
  Config config = model.config("cuda");
  EXPECT_EQ(refusal(config), "");
  config.tensor_parallel_size = 2;
  EXPECT_NE(refusal(config).find("found a tied embedding of INT8"), std::string::npos)
      << refusal(config);
}

TEST(CudaRanks, WithoutNcclCudaIsRefusedAndAutoTakesTheCpu) {
  const TinyModel model(TinyWeights::kInt8);
  const ShimDevices devices(2);
  Config config = model.config("cuda");
  config.tensor_parallel_size = 2;
  RankGroups groups = testing::shim_groups();
  groups.on_devices = []() -> Expected<ConnectRanks> {
    return make_error(ErrorCode::kUnavailable, "NCCL: not here");
  };
  const auto refused = create_engine(config, groups);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "NCCL: not here");
  config.device = "auto";
  const auto engine = create_engine(config, groups);
  ASSERT_TRUE(engine.has_value());
  EXPECT_EQ((*engine)->model().backend.substr(0, 4), "cpu:");
}

// A rank fails before the first step; in the first one, behind which queued steps never begin; and
// in later ones, where the other ranks have invalid tokens.
TEST(CudaRanks, AFailedRankEndsTheStartOrTheRequests) {
  const TinyModel model(TinyWeights::kInt8);
  const ShimDevices devices(2);
  Config config = model.config("cuda");
  config.tensor_parallel_size = 2;
  const auto recorded = create_engine(config, testing::shim_groups(1, 5));
  ASSERT_FALSE(recorded.has_value());
  EXPECT_EQ(recorded.error().code, ErrorCode::kUnavailable);
  config.enforce_eager = true;
  for (const int num_calls : {10, 20}) {
    const auto engine = create_engine(config, testing::shim_groups(1, num_calls));
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    testing::CollectingSink sink;
    ValidRequest request = testing::tiny_requests()[0];
    request.sampling.max_tokens = 100;
    const auto id = (*engine)->submit(std::move(request), sink);
    ASSERT_TRUE(id.has_value());
    EXPECT_EQ(sink.wait(*id).finish_reason, FinishReason::kAbort);
  }
}

// The other ranks wait for the one that makes no more calls.
TEST(CudaRanks, ARecordingThatFailsOnOneDeviceEndsTheStart) {
  const TinyModel model(TinyWeights::kInt8);
  for (const int device : {0, 1}) {
    const ShimDevices devices(2, device);
    Config config = model.config("cuda");
    config.tensor_parallel_size = 2;
    const auto engine = create_engine(config, testing::shim_groups());
    ASSERT_FALSE(engine.has_value());
    EXPECT_EQ(engine.error().message, "the shim records nothing");
  }
}

}  // namespace
}  // namespace sluice
