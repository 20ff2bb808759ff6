// SPDX-License-Identifier: Apache-2.0
// The fixture QuantizedFolder: a hand-made layer in each scheme, in a directory of its own.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "engine/weights/weight_store.h"
#include "tests/engine/weights/hf_directory.h"

namespace sluice {

inline const std::string kLayer = "model.layers.0.self_attn.q_proj";
inline const std::string kName = "blk.0.attn_q.weight";

struct Part {
  std::string suffix;
  std::string dtype;
  std::string shape;
  std::string bytes;
};

// A layer of n = 32 rows, k = 64 columns in one scheme.
struct Scheme {
  std::string name;
  std::string config;  // quantization_config
  std::vector<Part> parts;
  WeightFormat format;
};

inline std::string repeated(size_t count, uint8_t byte) {
  return std::string(count, static_cast<char>(byte));
}

inline std::string floats(size_t count, float value) {
  return raw_bytes(std::vector<float>(count, value));
}

inline std::string halves(size_t count, uint16_t bits) {
  return raw_bytes(std::vector<uint16_t>(count, bits));
}

inline constexpr uint16_t kBf16Hundredth = 0x3C24;  // 0.01
inline constexpr uint16_t kF16Hundredth = 0x211F;

inline std::string group_of(const std::string& format,
                     const std::string& weights,
                     const std::string& inputs) {
  return R"({"quant_method":"compressed-tensors","format":")" + format +
         R"(","quantization_status":"compressed","ignore":["lm_head"],)"
         R"("config_groups":{"group_0":{"targets":["Linear"],"weights":{)" +
         weights + R"(},"input_activations":)" + inputs + "}}}";
}

inline const std::string kInt8Token = R"({"num_bits":8,"type":"int","strategy":"token","dynamic":true})";

inline std::vector<Scheme> schemes() {
  const std::string codes = repeated(32 * 64, 0x31);
  const std::string nibbles = repeated(32 * 32, 0x21);
  const std::string words = repeated(32 * 32, 0x9A);
  return {
      {"int8",
       group_of("int-quantized", R"("num_bits":8,"type":"int","strategy":"channel")", kInt8Token),
       {{"weight", "I8", "[32,64]", codes},
        {"weight_scale", "BF16", "[32,1]", halves(32, kBf16Hundredth)}},
       WeightFormat::kInt8Channel},
      {"fp8 static",
       group_of("float-quantized",
                R"("num_bits":8,"type":"float","strategy":"tensor")",
                R"({"num_bits":8,"type":"float","strategy":"tensor","dynamic":false})"),
       {{"weight", "F8_E4M3", "[32,64]", codes},
        {"weight_scale", "F32", "[1]", floats(1, 0.01F)},
        {"input_scale", "F32", "[]", floats(1, 0.5F)}},
       WeightFormat::kE4M3Channel},
      {"fp8 of transformers",
       R"({"quant_method":"fp8","activation_scheme":"static","weight_block_size":null,)"
       R"("dequantize":false,"modules_to_not_convert":["lm_head","model.vision_tower"]})",
       {{"weight", "F8_E4M3", "[32,64]", codes},
        {"weight_scale_inv", "BF16", "[]", halves(1, kBf16Hundredth)},
        {"activation_scale", "BF16", "[]", halves(1, 0x3F00)}},
       WeightFormat::kE4M3Channel},
      {"fp8 blocks",
       R"({"quant_method":"fp8","fmt":"e4m3","activation_scheme":"dynamic",)"
       R"("weight_block_size":[128,128]})",
       {{"weight", "F8_E4M3", "[32,64]", codes},
        {"weight_scale_inv", "F32", "[1,1]", floats(1, 0.01F)}},
       WeightFormat::kE4M3Block},
      {"packed int4",
       group_of("pack-quantized",
                R"("num_bits":4,"type":"int","strategy":"group","group_size":32,"symmetric":false)",
                "null"),
       {{"weight_packed", "I32", "[32,8]", words},
        {"weight_scale", "BF16", "[32,2]", halves(64, kBf16Hundredth)},
        {"weight_zero_point", "I32", "[4,2]", repeated(32, 0x77)},
        {"weight_shape", "I64", "[2]", raw_bytes(std::vector<int64_t>{32, 64})}},
       WeightFormat::kInt4Group32},
      {"nvfp4",
       group_of("nvfp4-pack-quantized",
                R"("num_bits":4,"type":"float","strategy":"tensor_group","group_size":16)",
                "null"),
       {{"weight_packed", "U8", "[32,32]", nibbles},
        {"weight_scale", "F8_E4M3", "[32,4]", repeated(128, 0x38)},
        {"weight_global_scale", "F32", "[1]", floats(1, 100.0F)}},
       WeightFormat::kNVFP4},
      {"mxfp4",
       group_of("mxfp4-pack-quantized",
                R"("num_bits":4,"type":"float","strategy":"group","group_size":32)",
                "null"),
       {{"weight_packed", "U8", "[32,32]", nibbles},
        {"weight_scale", "U8", "[32,2]", repeated(64, 120)}},
       WeightFormat::kMXFP4},
      {"modelopt nvfp4",
       R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":16,"ignore":["lm_head"]})",
       {{"weight", "U8", "[32,32]", nibbles},
        {"weight_scale", "F8_E4M3", "[32,4]", repeated(128, 0x38)},
        {"weight_scale_2", "F32", "[]", floats(1, 0.01F)},
        {"input_scale", "F32", "[]", floats(1, 0.01F)}},
       WeightFormat::kNVFP4},
      {"gptq",
       R"({"quant_method":"gptq","bits":4,"group_size":32,"sym":true,"desc_act":false})",
       {{"qweight", "I32", "[8,32]", words},
        {"scales", "F16", "[2,32]", halves(64, kF16Hundredth)},
        {"qzeros", "I32", "[2,4]", repeated(32, 0x77)},
        {"g_idx", "I32", "[64]", std::string()}},
       WeightFormat::kInt4Group32},
      {"awq",
       R"({"quant_method":"awq","bits":4,"group_size":32,"zero_point":true,"version":"gemm"})",
       {{"qweight", "I32", "[64,4]", words},
        {"scales", "F16", "[2,32]", halves(64, kF16Hundredth)},
        {"qzeros", "I32", "[2,4]", repeated(32, 0x57)}},
       WeightFormat::kInt4Group32},
  };
}

inline std::string in_order(int32_t columns, int32_t group) {
  std::vector<int32_t> index;
  for (int32_t i = 0; i < columns; ++i) index.push_back(i / group);
  return raw_bytes(index);
}

class QuantizedFolder : public HfDirectory {
 protected:
  void write_scheme(const Scheme& scheme) const {
    write("config.json", R"({"model_type":"llama","quantization_config":)" + scheme.config + "}");
    SafetensorsBuilder builder;
    for (const Part& part : scheme.parts) {
      const bool is_index = part.suffix == "g_idx" && part.bytes.empty();
      builder.add(kLayer + "." + part.suffix,
                  part.dtype,
                  part.shape,
                  is_index ? in_order(64, 32) : part.bytes);
    }
    write("model.safetensors", builder.file());
  }

  // Returns the error of opening the folder and packing the layer.
  [[nodiscard]] std::string load_error() const {
    const auto opened = Checkpoint::open(folder_);
    if (!opened) return opened.error().message;
    WeightStore store(**opened);
    EXPECT_TRUE(store.allocate(1 << 20).has_value());
    const auto matrix = store.matrix(kName, 32, 64);
    return matrix ? "" : matrix.error().message;
  }
};

inline Scheme scheme_named(const std::string& name) {
  for (Scheme& scheme : schemes()) {
    if (scheme.name == name) return scheme;
  }
  ADD_FAILURE() << name;
  return {};
}

inline Part& part_of(Scheme& scheme, const std::string& suffix) {
  for (Part& part : scheme.parts) {
    if (part.suffix == suffix) return part;
  }
  ADD_FAILURE() << suffix;
  return scheme.parts.front();
}

}  // namespace sluice
