// SPDX-License-Identifier: Apache-2.0
// What conversions lose: exact pairs, bits spent where they count, calibration.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/quantize/allocation.h"
#include "tests/engine/quantize_rig.h"

namespace sluice::testing {
namespace {

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

// Codes of 4 bits are calibrated without being asked, where that is possible; the report says by
// what, or why not.
TEST_F(Quantize, FourBitsAreCalibratedByDefault) {
  const auto calibration = [this](const std::string& input, const char* scheme, bool by_default) {
    const std::string output = at("calibrated");
    fs::remove_all(output);
    quantize({.input = input,
              .output = {},
              .to = scheme,
              .calibrate_by_default = by_default},
             "calibrated");
    return std::string(json_["calibration"]);
  };
  EXPECT_TRUE(calibration(gguf_, "int4", true).starts_with("the shipped text of "));
  const std::string calibrated = read_file(at("calibrated/model.safetensors"));
  EXPECT_EQ(calibration(gguf_, "int4", false), "none");
  EXPECT_NE(calibrated, read_file(at("calibrated/model.safetensors")));
  EXPECT_EQ(calibration(gguf_, "fp8", true), "none");
  // Without a tokenizer there is no text.
  EXPECT_TRUE(calibration(model(), "int4", true).starts_with("none, as the shipped text"));
}

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
}  // namespace sluice::testing
