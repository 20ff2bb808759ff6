// SPDX-License-Identifier: Apache-2.0
// Compares the engine's logits with double arithmetic on the same weights: always for the tiny
// model, and for SmolLM2-135M-Instruct if SLUICE_SMOLLM2 names the file (tests/run.sh sets it when
// available).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/inspect.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"
#include "tests/support/model_harness.h"
#include "tests/support/oracle_f64.h"
#include "tests/support/tier.h"

namespace sluice {
namespace {

using testing::ModelHarness;
using testing::OracleF64;

const std::string kData = golden_folder();

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

double mean_kl(const std::vector<double>& expected,
               const std::vector<float>& actual,
               int64_t vocab,
               size_t first_row) {
  const size_t rows = expected.size() / static_cast<size_t>(vocab);
  double total = 0;
  for (size_t row = first_row; row < rows; ++row) {
    const size_t offset = row * static_cast<size_t>(vocab);
    total += testing::kl_divergence(expected.data() + offset, actual.data() + offset, vocab);
  }
  return total / static_cast<double>(rows - first_row);
}

// Bounds for --activation-bits 8, 16, 32 with a float32 cache, and for exact-product caches.
struct Bound {
  int32_t bits;
  DType kv_dtype;
  double mean_kl;
};

constexpr Bound kBounds[] = {{8, DType::kF32, 6e-3},
                             {8, DType::kBF16, 6e-3},
                             {16, DType::kF32, 1e-5},
                             {32, DType::kF32, 1e-6},
                             {32, DType::kBF16, 2e-4},
                             {32, DType::kI8, 3e-3},
                             {32, DType::kF8E4M3, 5e-2}};

// Checks every `stride`-th position and those from `late`. `int8_cache_bound` 0: the usual one.
void expect_within_bounds(const std::string& path,
                          const std::vector<TokenId>& tokens,
                          size_t stride = 1,
                          size_t late = 0,
                          double int8_cache_bound = 0) {
  const auto file = GgufFile::open(path);
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const OracleF64 oracle(**file);
  const std::vector<double> expected = oracle.forward(tokens, stride);
  for (const Bound& bound : kBounds) {
    auto harness =
        ModelHarness::create(path, bound.bits, bound.kv_dtype, static_cast<int32_t>(tokens.size()));
    ASSERT_TRUE(harness.has_value()) << harness.error().message;
    std::vector<int32_t> wanted;
    for (size_t t = 0; t < tokens.size(); t += stride) wanted.push_back(static_cast<int32_t>(t));
    const std::vector<float> actual = (*harness)->forward(tokens, 0, wanted);
    const double kl = mean_kl(expected, actual, oracle.vocab_size(), 0);
    const double late_kl = mean_kl(expected, actual, oracle.vocab_size(), late / stride);
    const std::string cache(to_string(bound.kv_dtype));
    const bool is_own = bound.kv_dtype == DType::kI8 && int8_cache_bound > 0;
    EXPECT_LE(std::max(kl, late_kl), is_own ? int8_cache_bound : bound.mean_kl)
        << "activation bits " << bound.bits << ", cache " << cache;
    ::testing::Test::RecordProperty("mean_kl_" + std::to_string(bound.bits) + "_" + cache,
                                    std::to_string(kl));
    std::printf(
        "mean KL over %zu tokens, activation bits %d, %s cache: %.3g, from token %zu: %.3g\n",
        tokens.size(),
        bound.bits,
        cache.c_str(),
        kl,
        late,
        late_kl);
  }
}

nlohmann::json tiny_golden() {
  return nlohmann::json::parse(read_file(kData + "/tiny/logits.json"));
}

TEST(Accuracy, OracleEqualsNumpysDoubleForward) {
  const nlohmann::json golden = tiny_golden();
  const std::string raw = read_file(kData + "/tiny/logits.f32");
  const auto file = GgufFile::open(kData + "/tiny/tiny-llama.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const std::vector<double> logits =
      OracleF64(**file).forward(golden["prompt"].get<std::vector<TokenId>>());
  ASSERT_EQ(raw.size(), logits.size() * sizeof(float));
  for (size_t i = 0; i < logits.size(); ++i) {
    float expected = 0;
    std::memcpy(&expected, raw.data() + i * sizeof(float), sizeof(float));
    ASSERT_NEAR(logits[i], expected, 1e-5 + 1e-6 * std::fabs(expected)) << "logit " << i;
  }
}

TEST(Accuracy, TinyModelIsWithinBounds) {
  expect_within_bounds(kData + "/tiny/tiny-llama.gguf",
                       tiny_golden()["prompt"].get<std::vector<TokenId>>());
}

TEST(Accuracy, TinyModelContinuesGreedilyAsDoubleArithmeticDoes) {
  const nlohmann::json golden = tiny_golden();
  Config config;
  config.model = kData + "/tiny/tiny-llama.gguf";
  config.activation_bits = 32;
  config.kv_cache_dtype = "float32";
  auto engine = create_engine(config);
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  ValidRequest request;
  request.prompt = golden["prompt"].get<std::vector<TokenId>>();
  const auto expected = golden["greedy"].get<std::vector<TokenId>>();
  request.sampling.temperature = 0;
  request.sampling.ignore_eos = true;
  request.sampling.max_tokens = static_cast<int32_t>(expected.size());
  testing::CollectingSink sink;
  EXPECT_EQ(sink.wait(*(*engine)->submit(request, sink)).tokens, expected);
}

// Chunked, with more rows than fit the logits at once.
TEST(Accuracy, PromptLogprobsAreThoseOfDoubleArithmetic) {
  const auto prompt = tiny_golden()["prompt"].get<std::vector<TokenId>>();
  const auto file = GgufFile::open(kData + "/tiny/tiny-llama.gguf");
  ASSERT_TRUE(file.has_value()) << file.error().message;
  const OracleF64 oracle(**file);
  const std::vector<double> logits = oracle.forward(prompt);
  Config config;
  config.model = kData + "/tiny/tiny-llama.gguf";
  config.activation_bits = 32;
  config.kv_cache_dtype = "float32";
  config.max_num_seqs = 3;
  config.max_num_batched_tokens = 8;
  auto engine = create_engine(config);
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  ValidRequest request;
  request.prompt = prompt;
  request.sampling.max_tokens = 1;
  request.sampling.num_prompt_logprobs = 3;
  testing::CollectingSink sink;
  const testing::Collected scored = sink.wait(*(*engine)->submit(request, sink));
  ASSERT_EQ(scored.prompt_logprobs.size() + 1, prompt.size());
  const auto vocab = static_cast<size_t>(oracle.vocab_size());
  for (size_t i = 0; i + 1 < prompt.size(); ++i) {
    const double* row = logits.data() + i * vocab;
    double sum = 0;
    for (size_t k = 0; k < vocab; ++k) sum += std::exp(row[k]);
    const PromptLogprob& got = scored.prompt_logprobs[i];
    const double own = row[prompt[i + 1]];
    EXPECT_NEAR(got.logprob, own - std::log(sum), 1e-3) << "token " << i + 1;
    const auto above = std::count_if(row, row + vocab, [&](double x) { return x > own + 1e-3; });
    const auto near = std::count_if(row, row + vocab, [&](double x) { return x >= own - 1e-3; });
    EXPECT_GT(got.rank, above);
    EXPECT_LE(got.rank, near);
    ASSERT_EQ(got.top_logprobs.size(), 3U);
    EXPECT_NEAR(
        got.top_logprobs[0].logprob, *std::max_element(row, row + vocab) - std::log(sum), 1e-3);
  }
}

TEST(Accuracy, TinyGemmaIsWithinBoundsPastItsWindow) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < 120; ++i) tokens.push_back((i * 37 + i * i) % 259);
  expect_within_bounds(kData + "/models/engine-windows.gguf", tokens);
}

// Runs if SLUICE_GEMMA3 names the file: Gemma 3 270M, past its window of 512 tokens.
TEST(Gemma3, IsWithinBoundsOnRealText) {
  const char* path = std::getenv("SLUICE_GEMMA3");
  if (path == nullptr) GTEST_SKIP() << "SLUICE_GEMMA3 does not name the model file";
  const auto tokenizer = load_tokenizer(path);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  std::vector<TokenId> tokens = {(*tokenizer)->bos()};
  (*tokenizer)->encode(read_file(kData + "/text.txt"), SpecialText::kText, tokens);
  ASSERT_GE(tokens.size(), 800U);
  tokens.resize(800);
  // Its keys have a few large values among 256 with one scale: 5e-3 where SmolLM2 has 0.7e-3.
  expect_within_bounds(path, tokens, 8, 512, /*int8_cache_bound=*/6e-3);
}

class SmolLm2 : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* path = std::getenv("SLUICE_SMOLLM2");
    if (path == nullptr) GTEST_SKIP() << "SLUICE_SMOLLM2 does not name the model file";
    path_ = path;
  }

  std::string path_;
};

TEST_F(SmolLm2, IsWithinBoundsOnRealText) {
  const auto tokenizer = load_tokenizer(path_);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().message;
  std::vector<TokenId> tokens;
  (*tokenizer)->encode(read_file(kData + "/text.txt"), SpecialText::kText, tokens);
  ASSERT_GE(tokens.size(), 1000U);
  tokens.resize(testing::sample_of(200, 1000));
  expect_within_bounds(path_, tokens);
}

TEST_F(SmolLm2, ContinuesGreedilyAsTransformersDoes) {
  const nlohmann::json golden = nlohmann::json::parse(read_file(kData + "/smollm2/greedy.json"));
  Config config;
  config.model = path_;
  config.activation_bits = 32;
  config.kv_cache_dtype = "float32";
  config.max_model_len = 512;
  auto engine = create_engine(config);
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  testing::CollectingSink sink;
  std::vector<RequestId> ids;
  for (const nlohmann::json& row : golden["rows"]) {
    ValidRequest request;
    request.prompt = row["prompt"].get<std::vector<TokenId>>();
    request.sampling.temperature = 0;
    request.sampling.ignore_eos = true;
    request.sampling.max_tokens = static_cast<int32_t>(row["output"].size());
    ids.push_back(*(*engine)->submit(request, sink));
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(sink.wait(ids[i]).tokens, golden["rows"][i]["output"].get<std::vector<TokenId>>())
        << "prompt " << i;
  }
}

}  // namespace
}  // namespace sluice
