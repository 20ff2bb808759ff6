// SPDX-License-Identifier: Apache-2.0
// Tokens and bits of log-probabilities against files in golden/cuda that the shim wrote: a GPU must
// give the shim's bits, and the shim its earlier ones, however the kernels have changed.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/engine/cuda/tiny_model.h"
#include "tests/support/golden_folder.h"
#include "tests/support/same_bits.h"
#ifdef SLUICE_TESTS_ON_GPU
#include "tests/support/gpu/run.h"
#else
#include "tests/support/simt/simt.h"
#endif

namespace sluice {
namespace {

using testing::Collected;
using testing::TinyGguf;
using testing::TinyModel;
using testing::TinyQuantized;
using testing::TinyWeights;

constexpr int kHopper = 90;  // 16-bit sums have other steps on 8.x (kernels/cuda/launch.h)

void append(std::string& line, const char* what, TokenId token, float logprob) {
  char text[40];
  std::snprintf(text, sizeof text, " %s%d:%08x", what, token, std::bit_cast<uint32_t>(logprob));
  line += text;
}

// One line per request: its tokens, "t" the alternatives, "p" the prompt's, each with its bits.
std::string lines_of(const std::vector<Collected>& results) {
  std::string lines;
  for (const Collected& result : results) {
    EXPECT_EQ(result.tokens.size(), result.logprobs.size());
    std::string line = std::to_string(result.tokens.size());
    for (size_t i = 0; i < result.logprobs.size(); ++i) {
      append(line, "", result.tokens[i], result.logprobs[i]);
    }
    for (const TokenLogprob& top : result.top_logprobs) append(line, "t", top.token, top.logprob);
    for (const PromptLogprob& prompt : result.prompt_logprobs) {
      append(line, "p", prompt.token, prompt.logprob);
    }
    lines += line + "\n";
  }
  return lines;
}

// The head of a file, before the lines.
std::string head_of(const std::string& name) {
  return "# " + name +
         " of tests/engine/cuda/golden_test.cpp on the shim's 9.0: tokens and bits of "
         "log-probabilities.\n"
         "# SLUICE_WRITE_GOLDEN=1 cuda_engine_test --gtest_filter='CudaGolden.*' writes it.\n";
}

template <typename Model>
void expect_golden_bits(const std::string& name, const Model& model) {
  if (!simt::GivenDevice(kHopper).is_here()) GTEST_SKIP() << "the GPU is another";
  const std::unique_ptr<Engine> engine = testing::start_engine(model.config("cuda"));
  ASSERT_NE(engine, nullptr);
  std::vector<ValidRequest> requests = testing::tiny_requests();
  if (testing::is_short()) requests.resize(1);
  const std::string got = lines_of(testing::run_together(*engine, requests));
  const std::string path = golden_folder() + "/cuda/" + name + ".txt";
#ifndef SLUICE_TESTS_ON_GPU
  if (std::getenv("SLUICE_WRITE_GOLDEN") != nullptr && !testing::is_short()) {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path, std::ios::binary) << head_of(name) << got;
  }
#endif
  std::ifstream file(path, std::ios::binary);
  ASSERT_TRUE(file.is_open()) << path;
  const std::string want{std::istreambuf_iterator<char>(file), {}};
  ASSERT_TRUE(want.starts_with(head_of(name))) << path;
  const std::string lines = want.substr(head_of(name).size());
  // A short run has only the first line.
  ASSERT_EQ(got, testing::is_short() ? lines.substr(0, lines.find('\n') + 1) : lines);
}

TEST(CudaGolden, Int8ModelHasTheBitsOfTheFile) {
  expect_golden_bits("int8", TinyModel(TinyWeights::kInt8));
}

TEST(CudaGolden, Bf16ModelHasTheBitsOfTheFile) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  expect_golden_bits("bf16", TinyModel(TinyWeights::kBF16));
}

// Formats Q4_1, Q8_0, F32 and F16.
TEST(CudaGolden, GgufModelHasTheBitsOfTheFile) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  expect_golden_bits("gguf", TinyGguf(golden_folder() + "/tiny/tiny-llama.gguf"));
}

TEST(CudaGolden, Bf16ExpertsHaveTheBitsOfTheFile) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  expect_golden_bits("bf16_experts", TinyModel(TinyWeights::kBF16Experts));
}

class CudaGoldenFormats : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaGoldenFormats, HaveTheBitsOfTheFile) {
  if (testing::is_short()) GTEST_SKIP() << "minutes under a sanitizer";
  std::string file = GetParam();
  std::replace(file.begin(), file.end(), '-', '_');
  expect_golden_bits(file, TinyQuantized(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(All,
                         CudaGoldenFormats,
                         ::testing::Values("fp8", "fp8-block", "nvfp4", "mxfp4", "int4"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace sluice
