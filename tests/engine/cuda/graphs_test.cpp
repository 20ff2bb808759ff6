// SPDX-License-Identifier: Apache-2.0
// Recorded and replayed steps give the bits of eager steps.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "kernels/cuda/launch.h"
#include "kernels/device.h"
#include "tests/engine/cuda/counters.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::start_engine;
using testing::TinyGguf;
using testing::TinyModel;
using testing::TinyQuantized;
using testing::TinyWeights;

// `count` requests whose decodes run together after all prompts; the last one ends first, so that
// smaller batches follow.
std::vector<ValidRequest> requests_of(size_t count) {
  std::vector<ValidRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    requests[i].prompt = testing::tiny_prompt(60 + 3 * i, i);  // goes past position 64
    SamplingParams& params = requests[i].sampling;
    params.max_tokens = static_cast<int32_t>(testing::is_short() ? 2 : 9 - i);
    params.ignore_eos = true;
    params.num_logprobs = 0;
    params.seed = 50 + i;
    params.temperature = i % 2 == 0 ? 0.0F : 0.9F;
  }
  return requests;
}

template <typename Model>
Config config_of(const Model& model) {
  Config config = model.config("cuda");
  config.cuda_graph_sizes = {2, 4};
  return config;
}

// `vocab`: of the model, whose first three tokens are left out.
template <typename Model>
void expect_bits_of_eager_steps(const Model& model, TokenId vocab = 437) {
  std::vector<ValidRequest> requests = requests_of(testing::is_short() ? 3 : 5);
  for (ValidRequest& request : requests) {
    for (TokenId& token : request.prompt) token = 3 + (token - 3) % (vocab - 3);
  }
  std::vector<Collected> expected;
  {
    Config config = config_of(model);
    config.enforce_eager = true;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    const testing::DeviceCounters counters;
    expected = testing::run_together(*engine, requests);
    counters.expect_replays(false);
  }
  const std::unique_ptr<Engine> engine = start_engine(config_of(model));
  ASSERT_NE(engine, nullptr);
  for (size_t count = 1; count <= requests.size(); ++count) {
    if (testing::is_short() && count != requests.size()) continue;
    const auto last = requests.begin() + static_cast<ptrdiff_t>(count);
    const testing::DeviceCounters counters;
    const std::vector<Collected> got = testing::run_together(*engine, {requests.begin(), last});
    expect_same({expected.begin(), expected.begin() + static_cast<ptrdiff_t>(count)},
                got,
                std::to_string(count) + " requests");
    if (::testing::Test::HasFatalFailure()) return;
    counters.expect_replays(true);
    counters.expect_nothing_allocated();
  }
}

TEST(CudaGraphs, Int8StepsHaveTheBitsOfEagerOnes) {
  if (testing::is_short()) {
    GTEST_SKIP() << "minutes under a sanitizer, where those with experts run";
  }
  expect_bits_of_eager_steps(TinyModel(TinyWeights::kInt8));
}

// The rows per expert are known only to the device, and change between runs.
TEST(CudaGraphs, StepsWithExpertsHaveTheBitsOfEagerOnes) {
  expect_bits_of_eager_steps(TinyModel(TinyWeights::kInt8Experts));
}

// Weights in blocks, whose kernels read activations as records.
TEST(CudaGraphs, GgufStepsHaveTheBitsOfEagerOnes) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  const std::string path = golden_folder() + "/tiny/tiny-llama.gguf";
  expect_bits_of_eager_steps(TinyGguf(path));
}

// Tokens of requests that are padding choose no keys.
TEST(CudaGraphs, StepsWithChosenLatentsHaveTheBitsOfEagerOnes) {
  if (!testing::is_full()) GTEST_SKIP() << "SLUICE_FULL=1 runs it";
  expect_bits_of_eager_steps(testing::TinyGolden("glm-moe-dsa", "bfloat16"), 71);
}

TEST(CudaGraphs, Bf16StepsHaveTheBitsOfEagerOnes) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  expect_bits_of_eager_steps(TinyModel(TinyWeights::kBF16));
}

class CudaGraphFormats : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaGraphFormats, StepsHaveTheBitsOfEagerOnes) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  expect_bits_of_eager_steps(TinyQuantized(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(All,
                         CudaGraphFormats,
                         ::testing::Values("fp8", "fp8-block", "nvfp4"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

// Block 0 belongs to the request that starts first: writes of padding rows would show in its later
// tokens, and in a request that finds its blocks. Drafts are rows that choose a token, like
// decodes: such steps are recorded too.
TEST(CudaGraphs, StepsWithDraftsHaveTheBitsOfStepsWithout) {
  const TinyModel model(TinyWeights::kInt8);
  std::vector<ValidRequest> requests = requests_of(2);
  if (testing::is_short()) requests.resize(1);
  for (ValidRequest& request : requests) request.sampling.max_tokens = 7;
  std::vector<Collected> expected;
  {
    Config config = config_of(model);
    config.enforce_eager = true;
    const std::unique_ptr<Engine> engine = start_engine(config);
    ASSERT_NE(engine, nullptr);
    expected = testing::run_together(*engine, requests);
  }
  for (size_t i = 0; i < requests.size(); ++i) requests[i].prediction = expected[i].tokens;
  Config config = config_of(model);
  config.cuda_graph_sizes = {4, 8};
  config.max_num_seqs = 8;
  config.speculative_config =
      R"({"method":"replay","replay_error_rate":0.3,"num_speculative_tokens":3,"adaptive":false})";
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  const testing::DeviceCounters counters;
  expect_same(expected, testing::run_together(*engine, requests), "drafts");
  counters.expect_replays(true);
  uint64_t num_accepted = 0;
  for (const uint64_t count : engine->stats().drafts.num_accepted_tokens) num_accepted += count;
  EXPECT_GT(num_accepted, 0U);
}

TEST(CudaGraphs, PaddingLeavesTheCacheAlone) {
  const TinyModel model(TinyWeights::kInt8, "float32");
  const std::vector<ValidRequest> requests = {requests_of(3)[0]};
  const std::unique_ptr<Engine> cpu = start_engine(model.config("cpu"));
  ASSERT_NE(cpu, nullptr);
  const std::vector<Collected> expected = testing::run_alone(*cpu, requests);
  Config config = model.config("cuda");
  config.cuda_graph_sizes = {7, 8};
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  expect_same(expected, testing::run_alone(*engine, requests), "first");
  expect_same(expected, testing::run_alone(*engine, requests), "from the prefix cache");
  EXPECT_GT(engine->stats().prefix_cache_hits, 0U);
}

// More rows than those steps and than a tile.
TEST(CudaGraphs, ALayerOfManyRowsHasTheBitsOfAnEagerOne) {
  constexpr int32_t kRows = 70;
  constexpr int32_t kN = 24;
  constexpr int32_t kK = 96;
  auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
  ASSERT_TRUE(device.has_value());
  kernels::DeviceMemory& memory = (*device)->memory();
  std::vector<uint16_t> codes((kRows + kN) * kK);  // x, then the weights
  for (size_t i = 0; i < codes.size(); ++i) {
    const auto value = static_cast<float>(i * 37 % 101) - 50;
    codes[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
  const auto bytes = static_cast<int64_t>(codes.size() * sizeof(uint16_t));
  constexpr int64_t kOutBytes = int64_t{kRows} * kN * int64_t{sizeof(float)};
  const auto in = kernels::DeviceBuffer::allocate(memory, bytes, "test");
  const auto out = kernels::DeviceBuffer::allocate(memory, kOutBytes, "test");
  ASSERT_TRUE(in.has_value() && out.has_value());
  memory.upload(in->data(), reinterpret_cast<const std::byte*>(codes.data()), bytes);
  const auto* const x = reinterpret_cast<const uint16_t*>(in->data());
  const auto launch = [&] {
    kernels::cuda::launch_linear_half((*device)->context().stream,
                                      {.x = x,
                                       .x_stride = kK,
                                       .weight = x + kRows * kK,
                                       .weight_stride = kK,
                                       .num_rows = kRows,
                                       .n = kN,
                                       .k = kK,
                                       .out = reinterpret_cast<float*>(out->data()),
                                       .out_stride = kN});
  };
  const auto got = [&] {
    std::vector<float> values(size_t{kRows} * kN);
    memory.download(reinterpret_cast<std::byte*>(values.data()), out->data(), kOutBytes);
    memory.wait();
    return values;
  };
  memory.begin_recording();
  launch();
  const auto recorded = memory.end_recording();
  ASSERT_TRUE(recorded.has_value());
  EXPECT_EQ(got(), std::vector<float>(size_t{kRows} * kN));
  (*recorded)->run();
  const std::vector<float> replayed = got();
  launch();
  EXPECT_EQ(replayed, got());
  EXPECT_GT(*std::max_element(replayed.begin(), replayed.end()), 0.0F);
}

}  // namespace
}  // namespace sluice
