// SPDX-License-Identifier: Apache-2.0
// The fixture Quantize: tiny models, their conversion and its report; and the schemes to test.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/quantize.h"
#include "quant/format.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_hf_model.h"

namespace sluice::testing {

namespace fs = std::filesystem;
using Json = nlohmann::json;

inline const std::string kData = golden_folder();
inline constexpr WeightFormat kHalf[] = {WeightFormat::kF16};

inline constexpr const char* kCodeSchemes[] = {
    "int8", "fp8", "fp8-tensor", "fp8-block", "nvfp4", "nvfp4-ct", "mxfp4", "int4", "int4-asym"};
inline constexpr const char* kGgufSchemes[] = {"Q2_K",
                                               "Q3_K_S",
                                               "Q3_K_M",
                                               "Q3_K_L",
                                               "Q4_0",
                                               "Q4_1",
                                               "Q4_K_S",
                                               "Q4_K_M",
                                               "Q5_0",
                                               "Q5_1",
                                               "Q5_K_S",
                                               "Q5_K_M",
                                               "Q6_K",
                                               "Q8_0",
                                               "IQ4_NL",
                                               "IQ4_XS",
                                               "mxfp4",
                                               "bf16"};

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void write_file(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class Quantize : public ::testing::Test {
 protected:
  void SetUp() override {
    gguf_ = at("model.gguf");
    ASSERT_TRUE(write_random_model(
        kData + "/tiny/tiny-llama.gguf", gguf_, kHalf, WeightFormat::kF16));
  }

  [[nodiscard]] std::string at(const std::string& name) const { return folder_.at(name); }

  std::string model(TinyWeights weights = TinyWeights::kBF16) {
    EXPECT_TRUE(write_tiny_hf_model(at("model"), weights));
    write_file(at("model/tokenizer_config.json"), R"({"model_max_length":512})");
    write_file(at("model/weights.bin"), "not taken over");
    return at("model");
  }

  // Returns the output's path; fails the test on an error.
  std::string quantize(QuantizeOptions options, const std::string& name) {
    options.output = at(name);
    const auto result = quantize_model(options);
    EXPECT_TRUE(result.has_value()) << options.to << ": " << result.error().message;
    if (result) json_ = Json::parse(result->json);
    return options.output;
  }

  std::string error(QuantizeOptions options) {
    options.output = at("refused");
    const auto result = quantize_model(options);
    EXPECT_FALSE(result.has_value());
    EXPECT_FALSE(fs::exists(options.output));
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      EXPECT_EQ(entry.path().string().find("unfinished"), std::string::npos) << entry.path();
    }
    if (result) return {};
    EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
    return result.error().message;
  }

  [[nodiscard]] const Json& tensor(const std::string& name) const {
    for (const Json& row : json_["tensors"]) {
      if (row["name"] == name) return row;
    }
    static const Json none;
    return none;
  }

  const TemporaryFolder folder_;
  std::string gguf_;  // all matrices F16, hidden size 256
  Json json_;         // the last report
};

inline std::map<std::string, std::string> contents(const std::string& path) {
  std::map<std::string, std::string> files;
  if (!fs::is_directory(path)) return {{"", read_file(path)}};
  for (const auto& entry : fs::directory_iterator(path)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

}  // namespace sluice::testing
