// SPDX-License-Identifier: Apache-2.0
// Checkpoints in other number formats: the loader reads what was written, the bytes are equal for
// any number of threads, and errors leave nothing behind.
#include "engine/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/quantize/allocation.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/safetensors.h"
#include "quant/format.h"
#include "tests/support/captured_log.h"
#include "tests/support/random_model.h"
#include "tests/support/tiny_hf_model.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::TinyWeights;

const std::string kData = SLUICE_TEST_DATA;
constexpr WeightFormat kHalf[] = {WeightFormat::kF16};

constexpr const char* kCodeSchemes[] = {
    "int8", "fp8", "fp8-tensor", "fp8-block", "nvfp4", "nvfp4-ct", "mxfp4", "int4", "int4-asym"};
constexpr const char* kGgufSchemes[] = {"Q2_K",
                                        "Q3_K_M",
                                        "Q4_0",
                                        "Q4_1",
                                        "Q4_K_S",
                                        "Q4_K_M",
                                        "Q5_0",
                                        "Q5_1",
                                        "Q5_K_M",
                                        "Q6_K",
                                        "Q8_0",
                                        "IQ4_NL",
                                        "IQ4_XS",
                                        "mxfp4",
                                        "bf16"};

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void write_file(const fs::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

class Quantize : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = ::testing::TempDir() + "quantize_" + test->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    gguf_ = at("model.gguf");
    ASSERT_TRUE(testing::write_random_model(
        kData + "/tiny/tiny-llama.gguf", gguf_, kHalf, WeightFormat::kF16));
  }

  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string at(const std::string& name) const { return folder_ + "/" + name; }

  std::string model(TinyWeights weights = TinyWeights::kBF16) {
    EXPECT_TRUE(testing::write_tiny_hf_model(at("model"), weights));
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
    for (const auto& entry : fs::directory_iterator(folder_)) {
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

  std::string folder_;
  std::string gguf_;  // all matrices F16, hidden size 256
  Json json_;         // the last report
};

std::map<std::string, std::string> contents(const std::string& path) {
  std::map<std::string, std::string> files;
  if (!fs::is_directory(path)) return {{"", read_file(path)}};
  for (const auto& entry : fs::directory_iterator(path)) {
    files[entry.path().filename().string()] = read_file(entry.path());
  }
  return files;
}

TEST_F(Quantize, BytesDoNotDependOnThreads) {
  const auto check = [this](const std::string& input, const std::string& scheme) {
    const std::string end = scheme + fs::path(input).extension().string();
    const std::string one =
        quantize({.input = input, .output = {}, .to = scheme, .threads = 1}, "one-" + end);
    const std::string three =
        quantize({.input = input, .output = {}, .to = scheme, .threads = 3}, "three-" + end);
    EXPECT_EQ(contents(one), contents(three)) << scheme;
  };
  const std::string input = model();
  for (const char* scheme : kCodeSchemes) check(input, scheme);
  for (const char* scheme : kGgufSchemes) check(gguf_, scheme);
}

// The loader's values equal the encoder's, bit for bit, and are near the model's.
TEST_F(Quantize, WhatIsWrittenIsReadBack) {
  const std::string input = model();
  for (const char* scheme : kCodeSchemes) {
    quantize({.input = input, .output = {}, .to = scheme, .verify = true}, scheme);
    EXPECT_EQ(json_["verified"], true) << scheme;
    const double error = json_["relative_error"];
    const bool is_four = std::string(scheme).find('4') != std::string::npos;
    EXPECT_GT(error, is_four ? 0.03 : 0.001) << scheme;
    EXPECT_LT(error, is_four ? 0.15 : 0.03) << scheme;
    std::printf("%-12s %.5f\n", scheme, error);
  }
  for (const char* scheme : kGgufSchemes) {
    quantize({.input = gguf_, .output = {}, .to = scheme, .verify = true},
             scheme + std::string(".gguf"));
    EXPECT_EQ(json_["verified"], true) << scheme;
    EXPECT_LT(json_["relative_error"], 0.2) << scheme;
  }
}

TEST_F(Quantize, ExpertsAreQuantizedAndRoutersAreNot) {
  const std::string input = model(TinyWeights::kBF16Experts);
  quantize({.input = input, .output = {}, .to = "int8", .verify = true}, "out");
  EXPECT_EQ(tensor("model.layers.0.mlp.experts.3.down_proj.weight")["scheme"], "int8");
  EXPECT_EQ(tensor("model.layers.0.mlp.gate.weight")["scheme"], "kept");
  const Json config = Json::parse(read_file(at("out/config.json")));
  const Json& ignored = config["quantization_config"]["ignore"];
  EXPECT_NE(std::find(ignored.begin(), ignored.end(), "model.layers.1.mlp.gate"), ignored.end());
  EXPECT_NE(std::find(ignored.begin(), ignored.end(), "lm_head"), ignored.end());
}

// Other tensors keep their bytes, and text files are copied.
TEST_F(Quantize, OtherTensorsAndFilesAreTakenOver) {
  const std::string input = model();
  quantize({.input = input, .output = {}, .to = "fp8"}, "out");
  EXPECT_EQ(tensor("model.embed_tokens.weight")["scheme"], "kept");
  EXPECT_EQ(tensor("model.layers.0.input_layernorm.weight")["scheme"], "kept");
  EXPECT_EQ(tensor("model.layers.0.input_layernorm.weight")["relative_error"], 0.0);
  EXPECT_EQ(read_file(at("out/tokenizer_config.json")), R"({"model_max_length":512})");
  EXPECT_FALSE(fs::exists(at("out/weights.bin")));
  const std::string before = read_file(at("model/model.safetensors"));
  const std::string after = read_file(at("out/model.safetensors"));
  const auto old_tensors = parse_safetensors(std::as_bytes(std::span(before)), "before");
  const auto new_tensors = parse_safetensors(std::as_bytes(std::span(after)), "after");
  ASSERT_TRUE(old_tensors.has_value() && new_tensors.has_value());
  size_t num_same = 0;
  for (const SafetensorsTensor& tensor : *old_tensors) {
    for (const SafetensorsTensor& other : *new_tensors) {
      if (other.name != tensor.name || other.shape != tensor.shape) continue;
      num_same += std::ranges::equal(tensor.data, other.data) ? 1 : 0;
    }
  }
  EXPECT_EQ(num_same, old_tensors->size() - 14);  // 7 linear layers in each of 2 layers
}

TEST_F(Quantize, ExpressionsAndRecipesChoose) {
  const std::string input = model();
  quantize({.input = input,
            .output = {},
            .to = "int4",
            .include = {"embed_tokens"},
            .exclude = {"layers\\.1\\..*proj", "norm"}},
           "chosen");
  EXPECT_EQ(tensor("model.embed_tokens.weight")["scheme"], "int4");
  EXPECT_EQ(tensor("model.layers.0.self_attn.q_proj.weight")["scheme"], "int4");
  EXPECT_EQ(tensor("model.layers.1.self_attn.q_proj.weight")["scheme"], "kept");
  EXPECT_TRUE(std::string(tensor("model.layers.0.mlp.down_proj.weight")["scheme"])
                  .starts_with("kept: 72 columns"));
  quantize({.input = input,
            .output = {},
            .to = "fp8",
            .recipe = R"({"q_proj":"int8","k_proj":"keep","layers\\.0.*o_proj":"nvfp4-ct"})"},
           "recipe");
  EXPECT_EQ(tensor("model.layers.0.self_attn.q_proj.weight")["scheme"], "int8");
  EXPECT_EQ(tensor("model.layers.0.self_attn.k_proj.weight")["scheme"], "kept");
  EXPECT_EQ(tensor("model.layers.0.self_attn.o_proj.weight")["scheme"], "nvfp4-ct");
  EXPECT_EQ(tensor("model.layers.1.self_attn.o_proj.weight")["scheme"], "fp8");
  const Json config = Json::parse(read_file(at("recipe/config.json")))["quantization_config"];
  EXPECT_EQ(config["format"], "mixed-precision");
  EXPECT_EQ(config["config_groups"].size(), 3U);
}

TEST_F(Quantize, WrongOptionsAreNamed) {
  const std::string input = model();
  const auto has = [this](const QuantizeOptions& options, const std::string& part) {
    const std::string message = error(options);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has({.input = input, .output = {}}, "--to");
  has({.input = input, .output = {}, .to = "int3"}, "\"int3\": expected keep or one of int8");
  has({.input = input, .output = {}, .to = "int8", .include = {"no_such"}},
      "--include: \"no_such\": found no tensor");
  has({.input = input, .output = {}, .to = "int8", .exclude = {"("}}, "--exclude: ");
  has({.input = input, .output = {}, .recipe = "[]"}, "--recipe: expected a JSON object");
  has({.input = input, .output = {}, .recipe = R"({"q_proj":4})"}, "\"q_proj\": expected the name");
  has({.input = input, .output = {}, .recipe = R"({"q_proj":"fp8-block","k_proj":"int8"})"},
      "expected one that a checkpoint can have beside the others");
  has({.input = input, .output = {}, .to = "int8", .exclude = {"."}}, "nothing to quantize");
  has({.input = at("nothing"), .output = {}, .to = "fp8"}, "nothing");
  fs::create_directory(at("there"));
  const auto result = quantize_model({.input = input, .output = at("there"), .to = "fp8"});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("expected a new name"), std::string::npos);
}

// A weight that is not a number ends the run with the tensor's name, in any format.
TEST_F(Quantize, WeightsThatAreNoNumbersAreRefused) {
  const std::string input = model();
  std::string file = read_file(input + "/model.safetensors");
  const auto tensors = parse_safetensors(std::as_bytes(std::span(file)), "model");
  ASSERT_TRUE(tensors.has_value());
  for (const SafetensorsTensor& tensor : *tensors) {
    if (tensor.name != "model.layers.1.mlp.up_proj.weight") continue;
    const auto offset = tensor.data.data() - reinterpret_cast<const std::byte*>(file.data());
    file[static_cast<size_t>(offset) + 2 * 100] = '\xC0';
    file[static_cast<size_t>(offset) + 2 * 100 + 1] = '\x7F';
  }
  write_file(input + "/model.safetensors", file);
  for (const char* scheme : kCodeSchemes) {
    const std::string message = error({.input = input, .output = {}, .to = scheme});
    EXPECT_NE(message.find("blk.1.ffn_up.weight"), std::string::npos) << message;
  }
}

TEST_F(Quantize, WeightsThatBecomeInfiniteAreRefused) {
  const std::string input = model();
  std::string file = read_file(input + "/model.safetensors");
  const auto tensors = parse_safetensors(std::as_bytes(std::span(file)), "model");
  ASSERT_TRUE(tensors.has_value());
  for (const SafetensorsTensor& tensor : *tensors) {
    if (tensor.name != "model.layers.1.mlp.up_proj.weight") continue;
    const auto offset = tensor.data.data() - reinterpret_cast<const std::byte*>(file.data());
    const size_t in_row_2 = 2 * 2 * tensor.shape[1];
    file[static_cast<size_t>(offset) + in_row_2] = '\xC3';  // 1e5 in half precision
    file[static_cast<size_t>(offset) + in_row_2 + 1] = '\x47';
  }
  write_file(input + "/model.safetensors", file);
  const std::string message = error({.input = input, .output = {}, .to = "f16", .verify = true});
  EXPECT_NE(message.find("blk.1.ffn_up.weight"), std::string::npos) << message;
  EXPECT_NE(message.find("row 2: found a weight that is inf as f16"), std::string::npos) << message;
  quantize({.input = input, .output = {}, .to = "bf16", .verify = true}, "bf16");
}

// Shards hold tensors with their companions, and the index names each one.
TEST_F(Quantize, LargeModelsAreSharded) {
  const std::string input = model();
  QuantizeOptions options{.input = input, .output = {}, .to = "int8", .verify = true};
  options.max_shard_bytes = 20'000;
  quantize(options, "shards");
  const Json index = Json::parse(read_file(at("shards/model.safetensors.index.json")));
  size_t num_files = 0;
  int64_t bytes = 0;
  for (const auto& [name, content] : contents(at("shards"))) {
    if (!name.ends_with(".safetensors")) continue;
    ++num_files;
    const auto tensors = parse_safetensors(std::as_bytes(std::span(content)), name);
    ASSERT_TRUE(tensors.has_value()) << tensors.error().message;
    for (const SafetensorsTensor& tensor : *tensors) {
      EXPECT_EQ(index["weight_map"][tensor.name], name);
      bytes += static_cast<int64_t>(tensor.data.size());
    }
  }
  EXPECT_GT(num_files, 3U);
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
  EXPECT_EQ(json_["bytes"], bytes);
}

// A format's exact values survive conversion to another spelling and back.
TEST_F(Quantize, RoundTripsOfExactPairsLoseNothing) {
  const std::string input = model();
  const std::string first = quantize({.input = input, .output = {}, .to = "int8"}, "int8");
  const std::string floats = quantize({.input = first, .output = {}, .to = "f32"}, "f32");
  const std::string second = quantize({.input = floats, .output = {}, .to = "int8"}, "again");
  EXPECT_LT(json_["relative_error"], 1e-6);
  // Converts to ModelOpt's spelling and back: one's multiplier is the other's divisor.
  quantize({.input = input, .output = {}, .to = "nvfp4-ct"}, "divisor");
  quantize({.input = at("divisor"), .output = {}, .to = "nvfp4", .exclude = {"down_proj"}},
           "multiplier");
  EXPECT_LT(json_["relative_error"], 1e-9);
  quantize({.input = at("multiplier"), .output = {}, .to = "nvfp4-ct", .exclude = {"down_proj"}},
           "back");
  EXPECT_LT(json_["relative_error"], 1e-9);
  EXPECT_EQ(tensor("model.layers.0.self_attn.q_proj.weight")["scheme"], "nvfp4-ct");
  const std::string kept = quantize(
      {.input = gguf_, .output = {}, .to = "mxfp4", .exclude = {"embd|^output"}}, "mxfp4.gguf");
  quantize({.input = kept, .output = {}, .to = "f32"}, "f32.gguf");
  EXPECT_EQ(json_["relative_error"], 0.0);
  quantize({.input = at("f32.gguf"), .output = {}, .to = "mxfp4", .exclude = {"embd|^output"}},
           "mxfp4-again.gguf");
  EXPECT_EQ(json_["relative_error"], 0.0);
}

// Floats hold every value of the first; products of two floats, to 24 bits, hold those of int8 and
// fp8, and the scale search finds the original scales. Blocks of 256 have two levels of scales, for
// which the search finds near ones.
TEST_F(Quantize, SchemesComeBackFromFloats) {
  const auto again = [this](const QuantizeOptions& options, const std::string& name) {
    QuantizeOptions floats = options;
    quantize(options, name);
    const double first = json_["relative_error"];
    floats.input = at(name);
    floats.to = "f32";
    quantize(floats, "f32-" + name);
    EXPECT_LE(json_["relative_error"], 1e-7) << options.to;
    QuantizeOptions back = options;
    back.input = at("f32-" + name);
    quantize(back, "again-" + name);
    return std::pair(first, json_["relative_error"].get<double>());
  };
  const std::string input = model();
  for (const char* scheme : kCodeSchemes) {
    const bool is_exact = std::string(scheme).find('4') != std::string::npos;
    const auto [first, second] = again({.input = input, .output = {}, .to = scheme}, scheme);
    EXPECT_LE(second, is_exact ? 0.0 : 1e-7) << scheme;
  }
  // A mix uses Q6_K for the head.
  const std::vector<std::string> left = {"embd|^output"};
  for (const char* scheme : {"Q8_0", "Q4_0", "Q5_0", "mxfp4", "bf16", "Q4_K_S", "Q6_K"}) {
    const bool is_exact = std::string(scheme).find("_K") == std::string::npos;
    const auto [first, second] =
        again({.input = gguf_, .output = {}, .to = scheme, .exclude = left},
              scheme + std::string(".gguf"));
    EXPECT_LE(second, is_exact ? 0.0 : 0.1 * first) << scheme;
  }
}

TEST_F(Quantize, BitsAreSpentWhereTheyCount) {
  const auto matrix_bits = [this](const std::string& prefix) {
    double bytes = 0;
    double weights = 0;
    for (const Json& row : json_["tensors"]) {
      const std::string name = row["name"];
      if (!name.starts_with(prefix) || name.find("norm") != std::string::npos) continue;
      bytes += row["bytes"].get<double>();
      weights += row["weights"].get<double>();
    }
    return 8 * bytes / weights;
  };
  const std::string input = model();
  quantize({.input = input, .output = {}, .to = "nvfp4-ct", .exclude = {"down_proj"}}, "least");
  const double most_error = json_["relative_error"];
  for (const double bits : {6.0, 9.0}) {
    QuantizeOptions options{.input = input, .output = {}, .to = "nvfp4-ct"};
    options.exclude = {"down_proj"};  // NVFP4 cannot have its columns
    options.target_bits = bits;
    options.verify = true;
    const std::string name = "bits" + std::to_string(static_cast<int>(bits));
    quantize(options, name);
    double bytes = 0;
    double weights = 0;
    for (const Json& row : json_["tensors"]) {
      const std::string tensor_name = row["name"];
      if (tensor_name.find("_proj") == std::string::npos) continue;
      if (tensor_name.find("down_proj") != std::string::npos) continue;
      bytes += row["bytes"].get<double>();
      weights += row["weights"].get<double>();
    }
    EXPECT_LE(8 * bytes / weights, bits);
    EXPECT_GT(8 * bytes / weights, bits - 1.5);
    EXPECT_LT(json_["relative_error"], most_error);
    for (const char* part : {"k_proj", "v_proj"}) {
      const std::string stem = "model.layers.0.self_attn.";
      EXPECT_EQ(tensor(stem + part + ".weight")["scheme"],
                tensor(stem + "q_proj.weight")["scheme"]);
    }
  }
  QuantizeOptions options{.input = gguf_, .output = {}, .to = "Q4_K_M"};
  options.target_bits = 5.5;
  options.verify = true;
  quantize(options, "five.gguf");
  EXPECT_LE(matrix_bits(""), 5.5);
  QuantizeOptions wrong{.input = input, .output = {}, .to = {}, .recipe = R"({"q_proj":"int8"})"};
  wrong.target_bits = 5;
  EXPECT_NE(error(wrong).find("--target-bits"), std::string::npos);
  wrong = {.input = input, .output = {}, .to = "bf16"};
  wrong.target_bits = 5;
  EXPECT_NE(error(wrong).find("expected one of codes"), std::string::npos);
  wrong = {.input = input, .output = {}, .to = "int8"};
  wrong.target_bits = 4;
  EXPECT_NE(error(wrong).find("found 4, expected 8."), std::string::npos) << error(wrong);
}

// A matrix of codes that a scheme skips becomes bf16, however the scheme was chosen.
TEST_F(Quantize, BitsAreSpentOnEveryQuantizedInput) {
  size_t num_inputs = 0;
  size_t num_without_codes = 0;
  for (const auto& entry : fs::directory_iterator(kData + "/formats")) {
    if (!entry.is_directory()) continue;
    ++num_inputs;
    const std::string name = entry.path().filename().string();
    for (const double bits : {6.0, 12.0, 40.0}) {
      QuantizeOptions options{.input = entry.path(), .output = {}, .to = "nvfp4-ct"};
      options.target_bits = bits;
      options.verify = true;
      quantize(options, name + std::to_string(static_cast<int>(bits)));
      EXPECT_EQ(json_["verified"], true) << name;
      size_t num_codes = 0;
      for (const Json& row : json_["tensors"]) {
        const std::string scheme = row["scheme"];
        num_codes += scheme == "nvfp4-ct" || scheme == "fp8" ? 1 : 0;
        const bool is_linear = row["name"].get<std::string>().find("_proj.") != std::string::npos;
        if (!is_linear) continue;
        EXPECT_LE(row["bytes"], row["weights"].get<int64_t>() * 4) << name;
      }
      EXPECT_TRUE(num_codes > 0 || bits > 16) << name << " " << bits;
      num_without_codes += num_codes == 0 ? 1 : 0;
    }
  }
  EXPECT_GT(num_inputs, 30U);
  EXPECT_GT(num_without_codes, 10U);
}

TEST_F(Quantize, ExpertsOfALayerHaveOneScheme) {
  QuantizeOptions options{.input = model(TinyWeights::kBF16Experts), .output = {}};
  options.to = "nvfp4-ct";
  for (const double bits : {7.0, 8.0, 9.5, 11.0}) {
    options.target_bits = bits;
    options.exclude = {"self_attn"};
    quantize(options, "bits" + std::to_string(bits));
    std::map<std::string, std::string> schemes;
    for (const Json& row : json_["tensors"]) {
      std::string name = row["name"];
      const size_t at = name.find(".experts.");
      if (at == std::string::npos) continue;
      const bool is_down = name.find("down_proj") != std::string::npos;
      name = name.substr(0, at) + (is_down ? " down" : " up");
      const std::string scheme = row["scheme"];
      EXPECT_EQ(schemes.emplace(name, scheme).first->second, scheme) << name;
    }
    EXPECT_EQ(schemes.size(), 4U);
  }
}

// Parts that the loader drops are not written: reported, or refused if no model remains.
TEST_F(Quantize, PartsThatAreLeftOutAreSaid) {
  const std::string input = model();
  const auto add_file = [&](const std::string& header, size_t bytes) {
    std::string file;
    for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i));
    fs::rename(input + "/model.safetensors", input + "/model-00001-of-00002.safetensors");
    write_file(input + "/model-00002-of-00002.safetensors", file + header + std::string(bytes, 0));
  };
  add_file(R"({"vision_tower.a.weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})", 16);
  const std::string log = logged_by(
      [&] { quantize({.input = input, .output = {}, .to = "int8", .verify = true}, "out"); });
  EXPECT_NE(log.find("1 tensors of other parts"), std::string::npos) << log;
  EXPECT_NE(log.find("vision_tower.a.weight"), std::string::npos) << log;
  fs::rename(input + "/model-00001-of-00002.safetensors", input + "/model.safetensors");
  add_file(R"({"d2t":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})", 16);
  EXPECT_NE(error({.input = input, .output = {}, .to = "int8"}).find("tensor \"d2t\""),
            std::string::npos);
}

TEST_F(Quantize, OutputsMayEndWithASlashAndConfigurationsHaveNaN) {
  const std::string input = model();
  std::string config = read_file(input + "/config.json");
  config.insert(config.find('{') + 1, R"("attention_dropout":NaN,)");
  write_file(input + "/config.json", config);
  quantize({.input = input, .output = {}, .to = "int8", .verify = true}, "out//");
  EXPECT_TRUE(Json::parse(read_file(at("out/config.json")))["attention_dropout"].is_null());
}

// Inputs of INT8 codes give no column statistics.
TEST_F(Quantize, CalibrationOfNothingIsRefused) {
  const std::string input = model();
  fs::copy_file(kData + "/tokenizer/json/qwen.json", input + "/tokenizer.json");
  const std::string codes = quantize({.input = input, .output = {}, .to = "int8"}, "int8");
  const std::string text = read_file(kData + "/text.txt");
  const std::string message =
      error({.input = codes, .output = {}, .to = "int4", .calibrate = text});
  EXPECT_NE(message.find("--calibrate: found inputs of no matrix"), std::string::npos) << message;
}

// Compares with exhaustive search.
TEST(Allocation, IsNearTheBestOfAll) {
  const std::vector<std::vector<Choice>> matrices = {{{10, 5.0}, {20, 1.0}, {40, 0.1}},
                                                     {{10, 2.0}, {20, 0.4}, {40, 0.0}},
                                                     {{30, 9.0}, {60, 3.0}, {120, 0.5}},
                                                     {{5, 0.2}, {10, 0.1}, {20, 0.0}}};
  for (const double budget : {20.0, 55.0, 80.0, 100.0, 150.0, 400.0}) {
    const std::vector<size_t> chosen = allocate_bytes(matrices, budget);
    double ours = 0;
    double bytes = 0;
    for (size_t m = 0; m < 4; ++m) {
      ours += matrices[m][chosen[m]].error;
      bytes += matrices[m][chosen[m]].bytes;
    }
    double best = 5.0 + 2.0 + 9.0 + 0.2;  // the smallest choices
    for (size_t way = 0; way < 81; ++way) {
      double error = 0;
      double size = 0;
      for (size_t m = 0, rest = way; m < 4; ++m, rest /= 3) {
        error += matrices[m][rest % 3].error;
        size += matrices[m][rest % 3].bytes;
      }
      if (size <= budget) best = std::min(best, error);
    }
    EXPECT_LE(ours, best * 1.35 + 1e-9) << budget;
    EXPECT_LE(bytes, std::max(budget, 55.0)) << budget;
  }
}

// In float activations the model equals itself where its weights do.
TEST_F(Quantize, ComparisonIsOfBothModels) {
  const std::string text = read_file(kData + "/text.txt");
  const std::string input = model();
  fs::copy_file(kData + "/tokenizer/json/qwen.json", input + "/tokenizer.json");
  quantize({.input = input, .output = {}, .to = "f32", .evaluate = text}, "same");
  EXPECT_GT(json_["evaluation"]["tokens"], 500);
  EXPECT_LT(json_["evaluation"]["kl_divergence"], 1e-9);
  EXPECT_EQ(json_["evaluation"]["same_top"], 1.0);
  double before = 0;
  for (const char* scheme : {"int8", "fp8", "int4"}) {
    quantize({.input = input, .output = {}, .to = scheme, .evaluate = text}, scheme);
    EXPECT_GT(json_["evaluation"]["kl_divergence"], before) << scheme;
    before = json_["evaluation"]["kl_divergence"];
  }
  quantize({.input = gguf_, .output = {}, .to = "Q8_0", .evaluate = text}, "q8.gguf");
  EXPECT_GT(json_["evaluation"]["tokens"], 500);
}

// An impossible comparison is reported before anything is written, and leaves nothing behind.
TEST_F(Quantize, TextsThatCannotBeComparedLeaveNothing) {
  const std::string text = read_file(kData + "/text.txt");
  const std::string input = model();
  const auto refused = [&](const std::string& evaluated) {
    size_t num_told = 0;
    QuantizeOptions options{.input = input, .output = {}, .to = "int8", .evaluate = evaluated};
    options.on_progress = [&](const QuantizeProgress&) { ++num_told; };
    const std::string message = error(options);
    EXPECT_EQ(num_told, 0U) << message;
    return message;
  };
  EXPECT_NE(refused(text).find("tokenizer"), std::string::npos);
  fs::copy_file(kData + "/tokenizer/json/qwen.json", input + "/tokenizer.json");
  EXPECT_NE(refused("a").find("expected 2 or more"), std::string::npos);
}

// With calibration few bits lose less; and the bytes still do not depend on threads.
TEST_F(Quantize, CalibrationLowersTheDivergence) {
  const std::string text = read_file(kData + "/text.txt");
  const std::string input = model();
  fs::copy_file(kData + "/tokenizer/json/qwen.json", input + "/tokenizer.json");
  for (const char* scheme : {"int4", "int4-asym", "nvfp4-ct", "mxfp4", "fp8", "fp8-block"}) {
    std::map<std::string, double> divergence;
    for (const char* how : {"plain", "weighed", "gptq"}) {
      QuantizeOptions options{.input = input, .output = {}, .to = scheme};
      options.calibrate = how == std::string("plain") ? "" : text;
      options.gptq = how == std::string("gptq");
      options.evaluate = text;
      options.verify = true;
      quantize(options, scheme + std::string(how));
      divergence[how] = json_["evaluation"]["kl_divergence"];
      std::printf("%-10s %-8s %.6f\n", scheme, how, divergence[how]);
    }
    EXPECT_LT(divergence["gptq"], divergence["plain"] * 0.9) << scheme;
    QuantizeOptions options{.input = input, .output = {}, .to = scheme};
    options.calibrate = text;
    options.threads = 3;
    EXPECT_EQ(contents(quantize(options, scheme + std::string("3"))),
              contents(at(scheme + std::string("gptq"))));
  }
}

// Covers GGUF's blocks as well.
TEST_F(Quantize, CalibrationLowersTheDivergenceOfBlocks) {
  const std::string text = read_file(kData + "/text.txt");
  for (const char* scheme : {"Q4_0", "Q4_K_S", "IQ4_XS", "Q3_K_S", "Q6_K", "mxfp4"}) {
    std::map<std::string, double> divergence;
    for (const char* how : {"plain", "weighed", "gptq"}) {
      QuantizeOptions options{.input = gguf_, .output = {}, .to = scheme};
      options.calibrate = how == std::string("plain") ? "" : text;
      options.gptq = how == std::string("gptq");
      options.evaluate = text;
      options.verify = true;
      quantize(options, scheme + std::string(how) + ".gguf");
      divergence[how] = json_["evaluation"]["kl_divergence"];
      std::printf("%-10s %-8s %.6f\n", scheme, how, divergence[how]);
    }
    EXPECT_LT(divergence["gptq"], divergence["plain"] * 0.9) << scheme;
  }
}

}  // namespace
}  // namespace sluice
