// SPDX-License-Identifier: Apache-2.0
// Checkpoints of any bytes into other formats: what cannot be read ends with one line and leaves
// nothing behind, and what is written is read back as it was meant.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "engine/core/log.h"
#include "engine/quantize.h"
#include "tests/fuzz/target.h"

using namespace sluice;
namespace fs = std::filesystem;

namespace {

constexpr const char* kSchemes[] = {"int8",
                                    "fp8",
                                    "fp8-tensor",
                                    "fp8-block",
                                    "nvfp4",
                                    "nvfp4-ct",
                                    "mxfp4",
                                    "int4",
                                    "int4-asym",
                                    "bf16",
                                    "Q4_0",
                                    "Q4_K_M",
                                    "Q6_K",
                                    "IQ4_XS",
                                    "Q2_K"};

constexpr std::string_view kConfig =
    R"({"model_type":"llama","num_hidden_layers":1,"hidden_size":64,"intermediate_size":64,)"
    R"("num_attention_heads":4,"vocab_size":64,"rms_norm_eps":1e-5})";

// Quantizations of an input, whose codes are then the fuzzer's.
constexpr const char* kQuantizations[] = {
    "",
    R"({"quant_method":"compressed-tensors","format":"float-quantized",)"
    R"("quantization_status":"compressed","ignore":["lm_head"],"config_groups":{"a":{"targets":)"
    R"(["Linear"],"weights":{"num_bits":8,"type":"float","strategy":"channel"}}}})",
    R"({"quant_method":"compressed-tensors","format":"pack-quantized",)"
    R"("quantization_status":"compressed","ignore":["lm_head"],"config_groups":{"a":{"targets":)"
    R"(["Linear"],"weights":{"num_bits":4,"type":"int","strategy":"group","group_size":32}}}})",
    R"({"quant_method":"gptq","bits":4,"group_size":32,"sym":true,"desc_act":false})"};

std::string config_with(std::string_view quantization) {
  std::string config(kConfig);
  if (quantization.empty()) return config;
  config.pop_back();
  return config + ",\"quantization_config\":" + std::string(quantization) + "}";
}

void write(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

size_t count_files(const fs::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}

}  // namespace

// The first byte: the scheme, and whether every weight is asked for; the second: how the input is
// quantized, whether bits are spent, and whether floats become a file; the rest: a GGUF file or a
// recipe where it begins as one, else safetensors beside a configuration.
static int quantize_input(const uint8_t* data, size_t size) {
  static const fs::path folder = [] {
    init_log(LogLevel::kError, LogFormat::kText);
    return fs::temp_directory_path() / ("quantize_fuzz-" + std::to_string(getpid()));
  }();
  if (size < 3) return 0;
  fs::remove_all(folder);
  fs::create_directories(folder / "in");
  const std::string_view rest(reinterpret_cast<const char*>(data + 2), size - 2);
  QuantizeOptions options;
  options.to = kSchemes[(data[0] & 0x7F) % std::size(kSchemes)];
  options.output = folder / ((data[1] & 8) != 0 ? "out.gguf" : "out");
  options.threads = 1;
  options.verify = true;
  if ((data[0] & 0x80) != 0) options.include = {"weight"};
  const std::string config = config_with(kQuantizations[data[1] & 3]);
  if ((data[1] & 4) != 0) options.target_bits = 4 + (data[1] >> 4);
  if (rest.starts_with("GGUF")) {
    options.input = folder / "in/model.gguf";
    write(options.input, rest);
  } else if (rest.starts_with("{")) {
    options.input = folder / "in";
    options.recipe = rest;
    write(folder / "in/config.json", config);
    write(folder / "in/model.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10));
  } else {
    options.input = folder / "in";
    write(folder / "in/config.json", config);
    write(folder / "in/model.safetensors", rest);
  }
  const auto result = quantize_model(options);
  if (result) {
    CHECK(fs::exists(options.output));
    CHECK(!result->table.empty());
  } else {
    CHECK(result.error().code != ErrorCode::kInternal);
    CHECK(result.error().message.find('\n') == std::string::npos);
    CHECK_EQ(count_files(folder), size_t{1});
  }
  return 0;
}

const sluice::fuzz::Target quantize_target("quantize_fuzz", quantize_input);
