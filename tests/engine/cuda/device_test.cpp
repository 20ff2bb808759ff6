// SPDX-License-Identifier: Apache-2.0
// --device: the choices, the refusals and their messages. Caches of other types, and blocks that
// leave the device and return.
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/run/model_runner.h"
#include "engine/weights/device_upload.h"
#include "kernels/device.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::expect_same;
using testing::start_engine;
using testing::TinyModel;
using testing::TinyWeights;

std::string error_of(const Config& config) {
  const Expected<PlannedDevices> planned = plan_on_devices(config);
  return planned ? "" : planned.error().message;
}

std::string name_of(const Config& config) {
  const Expected<PlannedDevices> planned = plan_on_devices(config);
  return planned ? planned->devices[0]->name().substr(0, 4) : planned.error().message;
}

TEST(CudaDevice, AutoTakesTheGpuWhereThereIsOneAndItHasWhatTheModelNeeds) {
  const TinyModel int8(TinyWeights::kInt8);
  EXPECT_EQ(name_of(int8.config("auto")), "cuda");
  EXPECT_EQ(name_of(int8.config("cpu")), "cpu:");
  Config wide = int8.config("auto");
  wide.model = golden_folder() + "/tiny/tiny-llama.gguf";
  wide.activation_bits = 16;
  EXPECT_EQ(name_of(wide), "cuda");
  wide.activation_bits = 32;
  EXPECT_EQ(name_of(wide), "cpu:");
}

TEST(CudaDevice, CudaIsRefusedByNameOfWhatIsMissing) {
  Config config = TinyModel(TinyWeights::kInt8).config("cuda");
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.activation_bits = 32;
  EXPECT_NE(error_of(config).find("--device cpu runs it"), std::string::npos) << error_of(config);
}

// A decoder whose tokens see those behind them; with tokens that do not, vectors would be others.
TEST(CudaDevice, ADecoderThatReadsBehindIsRefused) {
  Config config = TinyModel(TinyWeights::kInt8).config("cuda");
  config.model = golden_folder() + "/embeddings/qwen2-both-ways";
  config.activation_bits = 16;
  EXPECT_NE(error_of(config).find("see those behind them"), std::string::npos) << error_of(config);
  config.device = "auto";
  EXPECT_EQ(name_of(config), "cpu:");
}

// Scores a request's prompt, of tokens below `vocab`, with steps of at most `budget` tokens.
std::vector<Collected> scored(Config config, int32_t budget, TokenId vocab = 437) {
  config.max_num_batched_tokens = budget;
  const std::unique_ptr<Engine> engine = start_engine(config);
  EXPECT_NE(engine, nullptr);
  ValidRequest request = testing::tiny_requests()[3];
  for (TokenId& token : request.prompt) token = 3 + (token - 3) % (vocab - 3);
  return testing::run_together(*engine, {request});
}

void expect_near(const std::vector<Collected>& a,
                 const std::vector<Collected>& b,
                 double limit = 0.15) {
  ASSERT_EQ(a[0].prompt_logprobs.size(), b[0].prompt_logprobs.size());
  ASSERT_GT(a[0].prompt_logprobs.size(), 10U);
  for (size_t i = 0; i < a[0].prompt_logprobs.size(); ++i) {
    EXPECT_NEAR(a[0].prompt_logprobs[i].logprob, b[0].prompt_logprobs[i].logprob, limit) << i;
  }
}

// Attention over quantized caches is defined differently: near the CPU's, but computed in floats.
TEST(CudaDevice, CachesOfEveryTypeAreNearTheCpusAndTheSameInAnySteps) {
  const TinyModel model(TinyWeights::kInt8);
  for (const std::string dtype : {"int8", "float32", "float16", "fp8"}) {
    SCOPED_TRACE(dtype);
    if (testing::is_short() && dtype != "int8") continue;
    Config config = model.config("cuda");
    config.kv_cache_dtype = dtype;
    const std::vector<Collected> whole = scored(config, 256);
    expect_same(whole, scored(config, 5), dtype);
    config.device = "cpu";
    const std::vector<Collected> on_cpu = scored(config, 256);
    if (dtype == "float32") expect_same(on_cpu, whole, dtype);
    expect_near(on_cpu, whole);
  }
}

// Two requests evict each other's blocks: the second run of each finds restored blocks.
TEST(CudaDevice, BlocksComeBackFromTheHostTier) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  const TinyModel model(TinyWeights::kInt8, "float32");
  std::vector<ValidRequest> requests = {testing::tiny_requests()[1], testing::tiny_requests()[2]};
  requests[1].prompt = testing::tiny_prompt(250, 9);
  const std::vector<ValidRequest> again = {requests[0], requests[1], requests[0]};
  const std::unique_ptr<Engine> cpu = start_engine(model.config("cpu"));
  ASSERT_NE(cpu, nullptr);
  const std::vector<Collected> expected = testing::run_alone(*cpu, again);
  Config config = model.config("cuda");
  config.kv_cache_memory = 256 * 512;  // one sequence
  config.kv_offloading_size = 1;
  config.preemption_mode = "swap";  // reads at any cost
  const std::unique_ptr<Engine> engine = start_engine(config);
  ASSERT_NE(engine, nullptr);
  expect_same(expected, testing::run_alone(*engine, again), "with a host tier");
  EXPECT_GT(engine->stats().kv_tier_hits, 0U);
}

// Latents; wide heads and inputs of layers; latents beside states; values narrower than keys;
// scores that fall with distance; xIELU; experts weighed one after the other.
TEST(CudaDevice, ScoresOfFamiliesAreNearTheCpusAndTheSameInAnySteps) {
  constexpr const char* kNames[] = {
      "deepseek-v3", "gemma4-all", "kimi-linear", "mimo-v2", "bloom", "apertus", "phimoe"};
  const size_t count = testing::sample_of(size_t{2}, std::size(kNames));
  for (const char* const name : std::span(kNames).first(count)) {
    SCOPED_TRACE(name);
    const testing::TinyGolden model(name, "bfloat16");
    const auto scored_by = [&](const char* device, int32_t budget) {
      return scored(model.config(device), budget, 71);
    };
    const std::vector<Collected> whole = scored_by("cuda", 256);
    expect_same(whole, scored_by("cuda", 5), "steps of 5");
    expect_near(scored_by("cpu", 256), whole, 0.06);
  }
}

// Layers of 16 bits are defined differently, and near.
void expect_near_scores(TinyWeights weights, double limit) {
  const TinyModel model(weights);
  expect_near(scored(model.config("cpu"), 256), scored(model.config("cuda"), 256), limit);
}

TEST(CudaDevice, ScoresOfHalfPrecisionAreNearTheCpus) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  expect_near_scores(TinyWeights::kBF16, 0.15);
  expect_near_scores(TinyWeights::kF16, 0.03);
}

// Covers tensors of every block type.
TEST(CudaDevice, CodesTimesRowsOf16BitsAreNearTheCpusAndTheSameInAnySteps) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  Config config = TinyModel(TinyWeights::kInt8).config("cuda");
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.activation_bits = 16;
  const std::vector<Collected> whole = scored(config, 256);
  expect_same(whole, scored(config, 5), "steps of 5");
  config.device = "cpu";
  expect_near(scored(config, 256), whole);
}

TEST(CudaDevice, MatricesLargerThanAPieceOfPinnedMemoryArriveWhole) {
  constexpr int64_t kRows = 100;
  constexpr int64_t kStride = 48;
  constexpr size_t kFloats = 700;
  const auto device = kernels::Device::create({.type = DeviceType::kCuda, .threads = 1});
  ASSERT_TRUE(device.has_value());
  kernels::DeviceMemory& memory = (*device)->memory();
  const auto buffer = kernels::DeviceBuffer::allocate(memory, kRows * kStride, "test");
  const auto floats = kernels::DeviceBuffer::allocate(memory, kFloats * sizeof(float), "test");
  auto upload = DeviceUpload::create(memory, 2000);  // room for two tiles of rows or 500 floats
  ASSERT_TRUE(buffer.has_value() && floats.has_value() && upload.has_value());
  std::vector<int64_t> begins;
  const auto fill = [&](int64_t first, int64_t count, std::byte* to) -> Expected<void> {
    begins.push_back(first);
    for (int64_t i = 0; i < count * kStride; ++i) {
      to[i] = static_cast<std::byte>((first * kStride + i) % 251);
    }
    return {};
  };
  ASSERT_TRUE(upload->rows("test", kRows, kStride, buffer->data(), fill).has_value());
  EXPECT_EQ(begins, (std::vector<int64_t>{0, 32, 64, 96}));
  std::vector<float> values(kFloats);
  std::iota(values.begin(), values.end(), 1.0F);
  upload->values(std::as_bytes(std::span(values)), floats->data());
  std::vector<std::byte> got(buffer->size());
  std::vector<float> got_values(kFloats);
  memory.download(got.data(), buffer->data(), kRows * kStride);
  memory.download(
      reinterpret_cast<std::byte*>(got_values.data()), floats->data(), kFloats * sizeof(float));
  memory.wait();
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], static_cast<std::byte>(i % 251)) << "byte " << i;
  }
  EXPECT_EQ(got_values, values);
  // Nothing is sent if a tile of rows does not fit a piece.
  const auto large = upload->rows("model: tensor blk", kRows, 128, buffer->data(), fill);
  ASSERT_FALSE(large.has_value());
  EXPECT_EQ(large.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(large.error().message.find("model: tensor blk: found rows of 128 bytes"), 0U)
      << large.error().message;
  // A failing piece ends the upload.
  const auto fail = [](int64_t, int64_t, std::byte*) -> Expected<void> {
    return make_error(ErrorCode::kDataLoss, "bad row");
  };
  EXPECT_FALSE(upload->rows("test", kRows, kStride, buffer->data(), fail).has_value());
}

}  // namespace
}  // namespace sluice
