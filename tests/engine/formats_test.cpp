// SPDX-License-Identifier: Apache-2.0
// Whole models of every tensor type: distance of logits from double arithmetic on the same weights,
// and independence of tokens from the way a request is run, for every type's kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "kernels/device.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/gguf_tensor.h"
#include "tests/support/golden_folder.h"
#include "tests/support/model_harness.h"
#include "tests/support/oracle_f64.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::CollectingSink;
using testing::ModelHarness;
using testing::OracleF64;
using testing::write_random_model;

// A model with every format among its matrices, or a single one.
class RandomModel {
 public:
  explicit RandomModel(std::vector<WeightFormat> formats, WeightFormat head) {
    const std::string tiny = golden_folder() + "/tiny/tiny-llama.gguf";
    EXPECT_TRUE(write_random_model(tiny, path_, formats, head));
  }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const testing::TemporaryFolder folder_;
  const std::string path_ = folder_.at("random.gguf");
};

std::vector<TokenId> random_tokens(size_t count, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<TokenId> tokens(count);
  for (TokenId& token : tokens) token = static_cast<TokenId>(rng() % 487);
  return tokens;
}

// Largest error of a logit relative to the logits' range.
double worst_error(const std::vector<double>& expected, const std::vector<float>& actual) {
  const auto [low, high] = std::minmax_element(expected.begin(), expected.end());
  double worst = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(expected[i] - static_cast<double>(actual[i])));
  }
  return worst / (*high - *low);
}

std::vector<WeightFormat> all_formats() {
  std::vector<WeightFormat> all;
  for (const FormatInfo& info : format_table()) all.push_back(info.format);
  return all;
}

class EveryFormat : public ::testing::TestWithParam<WeightFormat> {};

INSTANTIATE_TEST_SUITE_P(Formats,
                         EveryFormat,
                         ::testing::ValuesIn(all_formats()),
                         [](const auto& test) {
                           return std::string(format_info(test.param).name);
                         });

TEST_P(EveryFormat, LogitsAreCloseToDoubleArithmetic) {
  const RandomModel model({GetParam()}, GetParam());
  const auto file = GgufFile::open(model.path());
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const std::vector<TokenId> tokens = random_tokens(24, 3);
  const std::vector<double> expected = OracleF64(**file).forward(tokens);

  const struct {
    int32_t bits;
    double bound;
  } rows[] = {{8, 0.02}, {16, 1e-4}, {32, 1e-5}};

  for (const auto& [bits, bound] : rows) {
    auto harness = ModelHarness::create(model.path(), bits, DType::kF32, 24);
    ASSERT_TRUE(harness.has_value()) << harness.error().message;
    EXPECT_LE(worst_error(expected, (*harness)->forward(tokens)), bound) << "bits " << bits;
  }
}

std::vector<Collected> run(const Config& config, bool alone) {
  const auto engine = create_engine(config);
  EXPECT_TRUE(engine.has_value()) << engine.error().message;
  CollectingSink sink;
  std::vector<RequestId> ids;
  std::vector<Collected> results;
  for (uint32_t i = 0; i < 10; ++i) {
    ValidRequest request;
    request.prompt = random_tokens(3 + i * 7, i);
    request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.9F;
    request.sampling.seed = i;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = 12;
    request.sampling.num_logprobs = 3;
    request.arrival = std::chrono::steady_clock::now();
    ids.push_back(*(*engine)->submit(request, sink));
    if (alone) results.push_back(sink.wait(ids.back()));
  }
  for (const RequestId id : ids) {
    if (!alone) results.push_back(sink.wait(id));
  }
  return results;
}

// Runs the prompt at once, token by token and in chunks, by every instruction set.
TEST_P(EveryFormat, LogitsHaveTheSameBitsHoweverTheyAreComputed) {
  const RandomModel model({GetParam()}, GetParam());
  constexpr int32_t kTokens = 12;
  const std::vector<TokenId> tokens = random_tokens(kTokens, 4);
  for (const int32_t bits : {8, 16, 32}) {
    std::vector<float> expected;
    for (const char* isa : {"scalar", "avx2", "avx512", "amx"}) {
      if (!kernels::Device::create({.isa = isa, .threads = 1})) continue;
      for (const int32_t chunk : {kTokens, 1, 5}) {
        auto harness = ModelHarness::create(model.path(), bits, DType::kBF16, kTokens, isa);
        ASSERT_TRUE(harness.has_value()) << harness.error().message;
        std::vector<float> logits;
        for (int32_t begin = 0; begin < kTokens; begin += chunk) {
          const int32_t end = std::min(kTokens, begin + chunk);
          const auto part =
              (*harness)->forward({tokens.begin() + begin, tokens.begin() + end}, begin);
          logits.insert(logits.end(), part.begin(), part.end());
        }
        if (expected.empty()) expected = logits;
        ASSERT_EQ(logits.size(), expected.size());
        EXPECT_EQ(std::memcmp(logits.data(), expected.data(), logits.size() * sizeof(float)), 0)
            << isa << ", chunks of " << chunk << ", bits " << bits;
      }
    }
  }
}

TEST(FormatDeterminism, TokensAndLogprobsDoNotDependOnHowARequestIsRun) {
  const RandomModel model(all_formats(), WeightFormat::kQ6_K);
  for (const int32_t bits : {8, 16}) {
    Config config;
    config.model = model.path();
    config.activation_bits = bits;
    config.kv_cache_memory = int64_t{16} << 20;
    config.max_model_len = 256;
    config.threads = 1;
    const std::vector<Collected> expected = run(config, true);
    for (const char* isa : {"scalar", "avx2", "avx512", "amx"}) {
      if (!kernels::Device::create({.isa = isa, .threads = 1})) continue;
      for (const int32_t budget : {7, 256}) {
        config.isa = isa;
        config.threads = budget == 7 ? 1 : 2;
        config.max_num_batched_tokens = budget;
        config.max_num_seqs = std::min(budget, 10);
        const std::vector<Collected> actual = run(config, false);
        ASSERT_EQ(actual.size(), expected.size());
        for (size_t i = 0; i < actual.size(); ++i) {
          ASSERT_EQ(actual[i].tokens, expected[i].tokens) << isa << " request " << i;
          ASSERT_EQ(std::memcmp(actual[i].logprobs.data(),
                                expected[i].logprobs.data(),
                                expected[i].logprobs.size() * sizeof(float)),
                    0)
              << isa << " budget " << budget << " bits " << bits << " request " << i;
        }
      }
    }
  }
}

TEST(FormatRefusal, ANonFiniteScaleIsOneLineThatNamesFileTensorAndPlace) {
  const RandomModel model({WeightFormat::kQ4_K}, WeightFormat::kQ4_K);
  {
    const auto file = GgufFile::open(model.path());
    ASSERT_TRUE(file.has_value());
    const GgufTensor* tensor = find_tensor(**file, "blk.0.ffn_up.weight");
    const auto offset = tensor->data.data() - (*file)->bytes().data() + 5 * 144;
    std::fstream out(model.path(), std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(offset);
    out.write("\x00\x7c", 2);
  }
  Config config;
  config.model = model.path();
  const auto engine = create_engine(config);
  ASSERT_FALSE(engine.has_value());
  EXPECT_EQ(engine.error().message,
            model.path() +
                ": tensor blk.0.ffn_up.weight: row 5 block 0: found scale inf, expected "
                "finite scales");
}

}  // namespace
}  // namespace sluice
