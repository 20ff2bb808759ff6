// SPDX-License-Identifier: Apache-2.0
// INT8 weights and activations in compressed-tensors' form: its fields, and weights with scales.
#include <gtest/gtest.h>

#include <cstddef>
#include <string>

#include "engine/weights/checkpoint.h"
#include "engine/weights/hf_config.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/engine/weights/hf_directory.h"

namespace sluice {
namespace {

const char* const kW8A8 =
    R"({"quant_method":"compressed-tensors","format":"int-quantized",
        "quantization_status":"compressed","ignore":["lm_head"],"kv_cache_scheme":null,
        "global_compression_ratio":1.2,"version":"0.8",
        "config_groups":{"group_0":{"targets":["Linear"],"output_activations":null,
          "weights":{"num_bits":8,"type":"int","strategy":"channel","symmetric":true,
                     "dynamic":false,"group_size":null,"observer":"minmax","observer_kwargs":{}},
          "input_activations":{"num_bits":8,"type":"int","strategy":"token","symmetric":true,
                     "dynamic":true,"group_size":null,"observer":null}}}})";

std::string with_quantization(const std::string& key, const std::string& value) {
  return R"({"model_type":"llama",")" + key + "\":" + value + "}";
}

TEST(HfConfig, TakesInt8W8A8UnderBothOfItsKeysAndRefusesByField) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto config = parse_hf_config(bytes_of(with_quantization(key, kW8A8)), "config.json");
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(config->quantization.usual_format(), WeightFormat::kInt8Channel);
  }

  struct Change {
    const char* from;
    const char* to;
    const char* message;
  };

  const std::string group = "quantization_config.config_groups.\"group_0\".";
  const Change changes[] = {
      {"compressed-tensors", "aqlm", "quant_method: found \"aqlm\", expected compressed-tensors"},
      {"int-quantized", "marlin-24", "format: found \"marlin-24\""},
      {R"("format":"int-quantized",)", "", "format: found nothing, expected \"int-quantized\", "},
      {R"("compressed",)", R"("calibration",)", "quantization_status: found \"calibration\""},
      {R"(["lm_head"])", R"("lm_head")", "ignore: found \"lm_head\", expected a list of names"},
      {R"(["lm_head"])", "[3]", "ignore: found [3]"},
      {R"("kv_cache_scheme":null)",
       R"("kv_cache_scheme":{"num_bits":8})",
       "kv_cache_scheme.type: found nothing"},
      {R"("kv_cache_scheme":null)",
       R"("kv_cache_scheme":{"num_bits":2,"type":"float","strategy":"tensor"})",
       "kv_cache_scheme.num_bits: found 2"},
      {R"("version":"0.8")",
       R"("sparsity_config":{"format":"sparse-bitmask"})",
       "sparsity_config: found"},
      {R"("version":"0.8")", R"("transform_config":{"r":1})", "transform_config: found"},
      {R"("version":"0.8")", R"("rotation":1)", "rotation: found 1"},
      {R"("version":"0.8")", R"("speed":1)", "found field \"speed\""},
      {R"("targets":["Linear"],)", R"("targets":"Linear",)", "targets: found \"Linear\""},
      {R"("output_activations":null)",
       R"("output_activations":{})",
       "output_activations: found {}"},
      {R"({"num_bits":8,"type":"int","strategy":"channel")",
       R"({"num_bits":2,"type":"int","strategy":"channel")",
       "weights.num_bits: found 2, expected 4 or 8"},
      {R"("type":"int","strategy":"channel")",
       R"("type":"float","strategy":"channel")",
       "weights.type: found \"float\", expected \"int\""},
      {R"("strategy":"channel")", R"("strategy":"group")", "weights.group_size: found null"},
      {R"("strategy":"channel")", R"("strategy":"token")", "weights.strategy: found \"token\""},
      {R"("strategy":"channel")", R"("strategy":"block")", "block_structure: found nothing"},
      {R"("symmetric":true,
                     "dynamic":false)",
       R"("symmetric":1,"dynamic":false)",
       "weights.symmetric: found 1"},
      {R"("group_size":null,"observer":"minmax")",
       R"("group_size":128)",
       "weights.group_size: found 128"},
      {R"("observer_kwargs":{})", R"("bits":8)", "weights: found field \"bits\""},
      {R"("strategy":"token")",
       R"("strategy":"tensor")",
       "input_activations.strategy: found \"tensor\""},
      {R"("dynamic":true)",
       R"("dynamic":false)",
       "input_activations.dynamic: found false, expected true"},
      {R"("strategy":"token","symmetric":true)",
       R"("strategy":"token","symmetric":false)",
       "input_activations.symmetric: found false"},
      {R"("input_activations":{)", R"("input_activations":null,"x":{)", "found field \"x\""},
      {R"({"group_0":{)", R"({"group_0":3,"b":{)", "config_groups.\"group_0\": found 3"},
  };
  for (const Change& change : changes) {
    std::string text = kW8A8;
    const size_t at = text.find(change.from);
    ASSERT_NE(at, std::string::npos) << change.from;
    text.replace(at, std::string(change.from).size(), change.to);
    const std::string file = with_quantization("quantization_config", text);
    CorruptFile corrupt(std::string("w8a8 ") + change.message, file.size());
    const auto parsed = parse_hf_config(bytes_of(file), "config.json");
    ASSERT_FALSE(parsed.has_value()) << change.from;
    EXPECT_EQ(parsed.error().code, ErrorCode::kUnsupported);
    corrupt.refused(parsed.error(), "config.json", change.message);
    EXPECT_NE(parsed.error().message.find("expected"), std::string::npos);
  }
}

TEST_F(HfDirectory, Int8WeightsAreJoinedWithTheirScales) {
  const std::string q = "model.layers.0.self_attn.q_proj.weight";
  const std::string codes = R"("dtype":"I8","shape":[4,2],"data_offsets":[0,8])";
  const auto scales = [](const std::string& shape, int bytes) {
    return R"("dtype":"BF16","shape":)" + shape + R"(,"data_offsets":[8,)" +
           std::to_string(8 + bytes) + "]";
  };
  const auto write_pair = [&](const std::string& first, const std::string& second) {
    const std::string comma = first.empty() || second.empty() ? "" : ",";
    const std::string all = first + comma + second;
    const auto end = static_cast<size_t>(std::stoi(all.substr(all.rfind(',') + 1)));
    write("model.safetensors", safetensors("{" + all + "}", end));
  };
  write_pair(tensor(q, codes), tensor(q + "_scale", scales("[4,1]", 8)));
  EXPECT_NE(error().find("dtype: found \"I8\", expected F32, F16 or BF16"), std::string::npos);
  write("config.json", with_quantization("quantization_config", kW8A8));
  for (const char* shape : {"[4,1]", "[4]"}) {
    write_pair(tensor(q, codes), tensor(q + "_scale", scales(shape, 8)));
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    const CheckpointTensor* weight = (*opened)->find("blk.0.attn_q.weight");
    ASSERT_NE(weight, nullptr);
    EXPECT_EQ((*opened)->tensors().size(), 1U);
    EXPECT_EQ(weight->format, WeightFormat::kInt8Channel);
    ASSERT_NE(weight->coded, nullptr);
    const Companion* found = weight->coded->companion(CompanionRole::kScales);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->type, ElementType::kBF16);
    EXPECT_EQ(found->bytes.size(), 8U);
  }
  const std::string wide = R"("dtype":"I8","shape":[1,131073],"data_offsets":[0,131073])";

  struct Wrong {
    std::string codes, scales;
    const char* message;
  };

  const Wrong wrongs[] = {
      {tensor(q, codes), "", "found no tensor \"model.layers.0.self_attn.q_proj.weight_scale\""},
      {"",
       tensor(q + "_scale", R"("dtype":"BF16","shape":[4,1],"data_offsets":[0,8])"),
       "found no codes beside it, expected \"model.layers.0.self_attn.q_proj.weight\""},
      {tensor(q, codes), tensor(q + "_scale", scales("[1,4]", 8)), "expected [4, 1]"},
      {tensor(q, codes), tensor(q + "_scale", scales("[2,2]", 8)), "expected [4, 1]"},
      {tensor(q, codes), tensor(q + "_scale", scales("[1]", 2)), "expected [4, 1]"},
      {tensor(q, R"("dtype":"I8","shape":[8],"data_offsets":[0,8])"),
       tensor(q + "_scale", scales("[4,1]", 8)),
       "found shape [8], expected a matrix"},
      {tensor(q, R"("dtype":"F8_E4M3","shape":[4,2],"data_offsets":[0,8])"),
       tensor(q + "_scale", scales("[4,1]", 8)),
       "found type F8_E4M3, expected I8 for INT8"},
      {tensor("model.layers.0.self_attn.q_proj.bias", codes), "", "dtype: found \"I8\""},
      {tensor(q, codes),
       tensor(q + "_scale", R"("dtype":"I8","shape":[4,1],"data_offsets":[8,12])"),
       "found type I8, expected F32, F16 or BF16"},
  };
  for (const Wrong& wrong : wrongs) {
    write_pair(wrong.codes, wrong.scales);
    CorruptFile corrupt("w8a8 tensors " + wrong.codes + wrong.scales, 24);
    const auto opened = Checkpoint::open(folder_);
    ASSERT_FALSE(opened.has_value()) << wrong.message;
    corrupt.refused(opened.error(), folder_ + "/model.safetensors", wrong.message);
  }
  const std::string one = R"("dtype":"F32","shape":[1],"data_offsets":[131073,131077])";
  write("model.safetensors",
        safetensors("{" + tensor(q, wide) + "," + tensor(q + "_scale", one) + "}", 131077));
  EXPECT_NE(error().find("found 131073 columns, expected at most 131072"), std::string::npos);
}

}  // namespace
}  // namespace sluice
