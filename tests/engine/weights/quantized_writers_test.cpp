// SPDX-License-Identifier: Apache-2.0
// Layers as other writers leave them: configurations in files of their own, codes without zero
// points, weights of any magnitude, and the names in errors.
#include <algorithm>
#include <filesystem>

#include "quant/plain_rows.h"
#include "tests/engine/weights/quantized_layer_rig.h"
#include "tests/support/captured_log.h"

namespace sluice {
namespace {

// Older writers put the configuration into a file of its own: AutoGPTQ, AutoAWQ.
TEST_F(QuantizedFolder, ConfigurationsOfOlderWritersAreRead) {
  const struct {
    const char* scheme;
    const char* file;
    const char* config;
  } rows[] = {{"gptq",
               "quantize_config.json",
               R"({"bits":4,"group_size":32,"damp_percent":0.01,"desc_act":false,"sym":true,)"
               R"("true_sequential":true,"model_name_or_path":null,"model_file_base_name":null})"},
              {"awq",
               "quant_config.json",
               R"({"zero_point":true,"q_group_size":32,"w_bit":4,"version":"GEMM"})"},
              {"awq",
               "quantize_config.json",
               R"({"quant_method":"awq","bits":4,"group_size":32,"zero_point":true,)"
               R"("format":"gemm","checkpoint_format":"gemm","version":"gemm","desc_act":false,)"
               R"("dynamic":{},"pack_dtype":"int32","lm_head":false,"method":"awq","meta":{}})"}};

  for (const auto& [name, file, config] : rows) {
    const Scheme scheme = scheme_named(name);
    write_scheme(scheme);
    write("config.json", R"({"model_type":"llama"})");
    write(file, config);
    EXPECT_EQ(load_error(), "") << file;
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    EXPECT_EQ((*opened)->find(kName)->format, scheme.format);
    EXPECT_EQ((*opened)->files().size(), 3U);
    write(file, R"({"bits":3,"group_size":32,"w_bit":3,"q_group_size":32,"version":"gemm"})");
    EXPECT_NE(load_error().find(file), std::string::npos) << load_error();
    std::filesystem::remove(folder_ + "/" + file);
  }
}

// Symmetric codes of AWQ may come without zero points; those that are there count.
TEST_F(QuantizedFolder, SymmetricAwqNeedsNoZeroPoints) {
  Scheme scheme = scheme_named("awq");
  const std::string from = R"("zero_point":true)";
  scheme.config.replace(scheme.config.find(from),
                        from.size(),
                        R"("sym":true,"provider":"auto-round","zero_point":false)");
  const auto value = [&] {
    write_scheme(scheme);
    const auto opened = Checkpoint::open(folder_);
    EXPECT_TRUE(opened.has_value()) << opened.error().message;
    PlainReader reader(*(*opened)->find(kName)->coded);
    return plain_value(reader.read(0, 1), 0, 0);
  };
  const double scale = double{half_to_float(kF16Hundredth)};
  EXPECT_EQ(value(), (0xA - 7) * scale);  // the stored zero point of row 0
  std::erase_if(scheme.parts, [](const Part& part) { return part.suffix == "qzeros"; });
  EXPECT_EQ(value(), (0xA - 8) * scale);
}

// transformers calls the scale of a matrix that of its inverse, and that of inputs an activation's;
// both multiply. A checkpoint has one of the writers' names.
TEST_F(QuantizedFolder, Fp8WithAScaleAMatrixHasTheNamesOfTwoWriters) {
  for (const char* name : {"fp8 static", "fp8 of transformers"}) {
    const Scheme scheme = scheme_named(name);
    write_scheme(scheme);
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    const CodedMatrix& matrix = *(*opened)->find(kName)->coded;
    const float hundredth = scheme.parts[1].dtype == "BF16" ? bf16_to_float(kBf16Hundredth) : 0.01F;
    PlainReader reader(matrix);
    EXPECT_EQ(plain_value(reader.read(16, 16), 7, 63), 0.5625 * hundredth) << name;  // code 0x31
    EXPECT_EQ(matrix.input_scale(), 0.5F) << name;
  }
  Scheme twice = scheme_named("fp8 of transformers");
  twice.parts.push_back({"input_scale", "F32", "[]", floats(1, 0.25F)});
  write_scheme(twice);
  EXPECT_NE(load_error().find(kLayer + ".activation_scale\": found \"" + kLayer + ".input_scale"),
            std::string::npos)
      << load_error();
}

class Fp8Stacks : public QuantizedFolder {
 protected:
  // Writes two experts of a layer as Mistral Small 4 has them: codes of 1, 2, 3... for each half.
  void write_stacks(const std::string& scale_shape, size_t num_scales) const {
    write("config.json",
          R"({"model_type":"mistral4","n_routed_experts":2,"quantization_config":)" +
              scheme_named("fp8 of transformers").config + "}");
    constexpr uint16_t kScales[] = {0x3C24, 0x3D80, 0x3E00};  // 0.01, 1/16, 1/8
    const std::vector<uint16_t> scales(kScales, kScales + num_scales);
    SafetensorsBuilder builder;
    std::string codes;
    for (const uint8_t code : {0x38, 0x40, 0x44, 0x48}) codes += repeated(16 * 32, code);
    const std::string place = "language_model.model.layers.0.mlp.experts.";
    builder.add(place + "gate_up_proj", "F8_E4M3", "[2,32,32]", codes);
    builder.add(place + "gate_up_proj_scale_inv", "BF16", scale_shape, raw_bytes(scales));
    builder.add(place + "gate_up_proj_activation_scale", "F32", "[2]", floats(1, 2) + floats(1, 3));
    builder.add(place + "down_proj", "F8_E4M3", "[2,32,16]", codes.substr(0, 1024));
    builder.add(place + "down_proj_scale_inv", "BF16", scale_shape, raw_bytes(scales));
    builder.add(place + "down_proj_activation_scale", "F32", "[2]", floats(2, 5));
    write("model.safetensors", builder.file());
  }
};

// Experts of one tensor that have a scale each are matrices of their own.
TEST_F(Fp8Stacks, EachExpertHasItsScales) {
  write_stacks("[2,1,1]", 2);
  const auto opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ((*opened)->tensors().size(), 6U);
  const struct {
    const char* name;
    double code;
    uint16_t scale;
    float input_scale;
  } rows[] = {{"blk.0.ffn_gate_exps.0.weight", 1, 0x3C24, 2},
              {"blk.0.ffn_up_exps.0.weight", 2, 0x3C24, 2},
              {"blk.0.ffn_gate_exps.1.weight", 3, 0x3D80, 3},
              {"blk.0.ffn_up_exps.1.weight", 4, 0x3D80, 3},
              {"blk.0.ffn_down_exps.0.weight", 1, 0x3C24, 5},
              {"blk.0.ffn_down_exps.1.weight", 2, 0x3D80, 5}};

  for (const auto& [name, code, scale, input_scale] : rows) {
    const CheckpointTensor* const tensor = (*opened)->find(name);
    ASSERT_NE(tensor, nullptr) << name;
    const bool is_down = std::string(name).find("down") != std::string::npos;
    EXPECT_EQ(tensor->dims[0], is_down ? 16U : 32U) << name;
    EXPECT_EQ(tensor->dims[1], is_down ? 32U : 16U) << name;
    PlainReader reader(*tensor->coded);
    const PlainRows& plain = reader.read(0, 16);
    for (int32_t row = 0; row < 16; ++row) {
      EXPECT_EQ(plain_value(plain, row, 5), code * double{bf16_to_float(scale)}) << name;
    }
    EXPECT_EQ(tensor->coded->input_scale(), input_scale) << name;
  }
}

TEST_F(Fp8Stacks, AnotherNumberOfScalesIsRefusedByName) {
  for (const auto& [shape, count] : {std::pair("[3,1,1]", 3), std::pair("[1,1,1]", 1)}) {
    write_stacks(shape, static_cast<size_t>(count));
    EXPECT_NE(error().find("_proj_scale_in\"...: found another type or shape, expected a float"),
              std::string::npos)
        << error();
  }
}

// A line about a tensor has the names that are in the files, and a cause that a person can end.
TEST_F(QuantizedFolder, ErrorsHaveTheNamesOfTheFiles) {
  write_scheme(scheme_named("gptq"));
  write("config.json", R"({"model_type":"llama"})");
  EXPECT_NE(load_error().find(folder_ + "/model.safetensors: tensor \"" + kLayer),
            std::string::npos)
      << load_error();
  EXPECT_NE(load_error().find("or a quantization_config in config.json"), std::string::npos)
      << load_error();
  write_scheme(scheme_named("int8"));
  const auto opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value());
  EXPECT_EQ((*opened)->place_of(kName),
            folder_ + "/model.safetensors: tensor \"" + kLayer + ".weight\"");
  EXPECT_EQ((*opened)->place_of("blk.1.ffn_up.weight"),
            folder_ + ": tensor \"model.layers.1.mlp.up_proj.weight\"");
  Scheme scheme = scheme_named("fp8 blocks");
  part_of(scheme, "weight").dtype = "F8_E5M2";
  write_scheme(scheme);
  EXPECT_NE(load_error().find("found \"F8_E5M2\""), std::string::npos) << load_error();
  EXPECT_NE(load_error().find("F8_E4M3"), std::string::npos) << load_error();
}

// Scales that may be misread are a warning: a dead expert's are as small, and its model is served.
TEST_F(QuantizedFolder, WeightsOfAnyMagnitudeAreLoadedAndSaid) {
  const struct {
    const char* scheme;
    const char* part;
    std::string bytes;
  } rows[] = {{"nvfp4", "weight_global_scale", floats(1, 0.01F)},
              {"modelopt nvfp4", "weight_scale_2", floats(1, 100.0F)},
              {"fp8 static", "weight_scale", floats(1, 3e-8F)}};

  for (const auto& [name, part, bytes] : rows) {
    Scheme scheme = scheme_named(name);
    part_of(scheme, part).bytes = bytes;
    write_scheme(scheme);
    const std::string log = logged_by([&] { EXPECT_EQ(load_error(), "") << name; });
    EXPECT_NE(log.find("root mean square"), std::string::npos) << name << log;
  }
}

}  // namespace
}  // namespace sluice
