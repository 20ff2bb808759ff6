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
