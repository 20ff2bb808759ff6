// SPDX-License-Identifier: Apache-2.0
// quantization_config in all its spellings: schemes of layers, and refusals.
#include "engine/weights/quantization.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "engine/weights/quant_methods.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/support/thread_time.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

Expected<Quantization> read(const std::string& text) {
  const Json config = Json::parse(text, nullptr, false);
  EXPECT_FALSE(config.is_discarded()) << text;
  return read_quantization(config, "config.json: quantization_config");
}

std::string name_of(const Quantization& quantization, const std::string& layer) {
  const LayerScheme* scheme = quantization.scheme_of(layer);
  return scheme == nullptr ? "" : std::string(scheme->weights.name);
}

const std::string kInt8 = R"({"num_bits":8,"type":"int","strategy":"channel"})";
const std::string kFp8 = R"({"num_bits":8,"type":"float","strategy":"channel"})";
const std::string kInt4 = R"({"num_bits":4,"type":"int","strategy":"group","group_size":128})";

std::string mixed(const std::string& groups, const std::string& ignore) {
  return R"({"quant_method":"compressed-tensors","format":"mixed-precision",)"
         R"("quantization_status":"compressed","ignore":)" +
         ignore + R"(,"config_groups":{)" + groups + "}}";
}

std::string group(const std::string& name,
                  const std::string& format,
                  const std::string& weights,
                  const std::string& targets) {
  return "\"" + name + R"(":{"format":")" + format + R"(","weights":)" + weights +
         R"(,"targets":)" + targets + "}";
}

// Choosing between two schemes for one target would be a guess; an equal pair is accepted.
TEST(Quantization, OneTargetHasOneScheme) {
  for (const char* target : {"Linear", "re:.*q_proj", "*q_proj", "model.layers.0.mlp.up_proj"}) {
    const std::string targets = std::string("[\"") + target + "\"]";
    const std::string first = group("a", "int-quantized", kInt8, targets);
    const auto two = read(mixed(first + "," + group("b", "float-quantized", kFp8, targets), "[]"));
    ASSERT_FALSE(two.has_value()) << target;
    EXPECT_NE(two.error().message.find(target), std::string::npos) << two.error().message;
    EXPECT_NE(two.error().message.find("with another scheme"), std::string::npos);
    EXPECT_TRUE(read(mixed(first + "," + group("b", "int-quantized", kInt8, targets), "[]")));
  }
}

// Layers that an expression names have their own bits and groups; those that stay floats have no
// codes, which tells.
TEST(Quantization, ExceptionsOfGptqAndAutoRoundDecide) {
  const auto found = read(
      R"({"quant_method":"gptq","bits":4,"group_size":128,"desc_act":true,"dynamic":{
          "+:.*\\.0\\..*down.*":{"bits":8,"group_size":32,"desc_act":false},
          ".*k_proj":{"group_size":-1},"-:.*up.*":{}}})");
  ASSERT_TRUE(found.has_value()) << found.error().message;
  const auto of = [&](const char* layer) { return found->scheme_of(layer)->weights; };
  EXPECT_EQ(of("model.layers.0.mlp.down_proj").code, CodeKind::kInt8);
  EXPECT_EQ(of("model.layers.0.mlp.down_proj").group, 32);
  EXPECT_FALSE(of("model.layers.0.mlp.down_proj").has_group_index);
  EXPECT_EQ(of("model.layers.1.mlp.down_proj").code, CodeKind::kInt4);
  EXPECT_TRUE(of("model.layers.1.mlp.down_proj").has_group_index);
  EXPECT_EQ(of("model.layers.1.self_attn.k_proj").place, ScalePlace::kRow);
  EXPECT_EQ(of("lm_head").group, 128);
  EXPECT_TRUE(found->check_exceptions("model.layers.0.mlp.down_proj").has_value());
  const auto rounded = read(
      R"({"quant_method":"auto-round","bits":4,"group_size":128,"sym":false,"data_type":"int",
          "packing_format":"auto_round:gptqmodel","extra_config":{
          "model.layers.0.mlp.down_proj":{"bits":8},"lm_head":{"bits":16,"data_type":"fp"}}})");
  ASSERT_TRUE(rounded.has_value()) << rounded.error().message;
  EXPECT_EQ(rounded->scheme_of("model.layers.0.mlp.down_proj")->weights.code, CodeKind::kInt8);
  EXPECT_EQ(rounded->scheme_of("model.layers.1.mlp.down_proj")->weights.zeros,
            ZeroPoints::kGptqV2);
}

// A layer's whole name decides before auto-round's expressions, which are found anywhere in names.
TEST(Quantization, NamesOfAutoRoundDecideBeforeItsExpressions) {
  const auto found = read(
      R"({"quant_method":"auto-round","bits":4,"group_size":128,"sym":true,"data_type":"int",
          "packing_format":"auto_round:auto_gptq","extra_config":{
          "model.layers.0.mlp.down_proj":{"bits":4,"group_size":32},
          "model.layers.0.mlp.up_pro.":{"bits":8,"group_size":64},
          "mlp.*down":{"bits":8},"^layers":{"bits":8}}})");
  ASSERT_TRUE(found.has_value()) << found.error().message;
  const auto of = [&](const char* layer) { return found->scheme_of(layer)->weights; };
  EXPECT_EQ(of("model.layers.0.mlp.down_proj").group, 32);
  EXPECT_EQ(of("model.layers.0.mlp.down_proj").code, CodeKind::kInt4);
  EXPECT_EQ(of("language_model.model.layers.0.mlp.down_proj").group, 32);
  EXPECT_TRUE(found->check_exceptions("model.layers.0.mlp.down_proj").has_value());
  EXPECT_EQ(of("model.layers.1.mlp.down_proj").code, CodeKind::kInt8);
  EXPECT_EQ(of("model.layers.0.mlp.down_proj_2").code, CodeKind::kInt8);
  EXPECT_EQ(of("model.layers.0.mlp.up_proj").group, 128);
  EXPECT_EQ(of("model.layers.0.mlp.gate_proj").code, CodeKind::kInt4);
}

// The order of two expressions for one layer is lost, so that they must agree.
TEST(Quantization, TwoExceptionsOfOneLayerAreRefused) {
  const auto found = read(
      R"({"quant_method":"gptq","bits":4,"group_size":128,
          "dynamic":{".*mlp.*":{"bits":8},".*down.*":{"bits":4,"group_size":32},
                     ".*up.*":{"bits":8}}})");
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_TRUE(found->check_exceptions("model.layers.0.mlp.up_proj").has_value());
  const auto two = found->check_exceptions("model.layers.0.mlp.down_proj");
  ASSERT_FALSE(two.has_value());
  EXPECT_NE(two.error().message.find("\"model.layers.0.mlp.down_proj\": found another scheme"),
            std::string::npos)
      << two.error().message;
}

// The cache's format is the run's: what a file says of it binds nothing.
TEST(Quantization, FormatsOfTheCacheAreRead) {
  const std::string group_0 = group("group_0", "int-quantized", kInt8, R"(["Linear"])");
  std::string config = mixed(group_0, "[]");
  const std::string cache =
      R"("kv_cache_scheme":{"num_bits":8,"type":"float","strategy":"attn_head","dynamic":false},)";
  config.insert(1, cache);
  EXPECT_TRUE(read(config).has_value()) << read(config).error().message;
  std::string only = mixed("", "[]");
  EXPECT_FALSE(read(only).has_value());
  only.insert(1, cache);
  ASSERT_TRUE(read(only).has_value()) << read(only).error().message;
  EXPECT_TRUE(read(only)->empty());
  for (const char* algorithm : {"NVFP4", "NVFP4_AFFINE", "FP8", "INT8"}) {
    for (const char* weights : {"null", "\"FP8\""}) {
      const std::string text =
          R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":)" +
          std::string(weights) + R"(,"kv_cache_quant_algo":")" + algorithm + "\"}}";
      const auto file =
          read_quantization(Json::parse(text), "hf_quant_config.json", "modelopt");
      ASSERT_TRUE(file.has_value()) << file.error().message;
      EXPECT_EQ(file->empty(), std::string(weights) == "null");
    }
    const auto flat = read(
        std::string(R"({"quant_method":"modelopt","quant_algo":"FP8","kv_cache_scheme":")") +
        algorithm + "\"}");
    EXPECT_TRUE(flat.has_value()) << algorithm;
  }
  // Weights have no heads.
  EXPECT_FALSE(read(mixed(group("g",
                                "int-quantized",
                                R"({"num_bits":8,"type":"int","strategy":"attn_head"})",
                                R"(["Linear"])"),
                          "[]"))
                   .has_value());
}

// The presets of 4-bit weights and FP8 inputs: floats are finer than what the file asks for.
TEST(Quantization, FloatsOfEightBitsBesideIntegersStayFloats) {
  const auto found = read(
      R"({"quant_method":"compressed-tensors","format":"pack-quantized",)"
      R"("quantization_status":"compressed","config_groups":{"a":{"targets":["Linear"],)"
      R"("input_activations":{"num_bits":8,"type":"float","strategy":"token","dynamic":true},)"
      R"("weights":)" + kInt4 + "}}}");
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(found->scheme_of("lm_head")->weights.code, CodeKind::kInt4);
  EXPECT_EQ(found->scheme_of("lm_head")->weights.inputs, SchemeInputs::kFloats);
}

// A file that only the cache's or the attention's formats are of has no codes.
TEST(Quantization, GroupsWithoutWeightsAddNothing) {
  const std::string start =
      R"({"quant_method":"compressed-tensors","quantization_status":"compressed","format":")";
  const auto cache = read(
      start + R"(dense","config_groups":{},"kv_cache_scheme":{"num_bits":8,"type":"float",)"
              R"("strategy":"tensor","dynamic":false}})");
  ASSERT_TRUE(cache.has_value()) << cache.error().message;
  EXPECT_TRUE(cache->empty());
  const auto with_attention = [&](const std::string& bits) {
    return read(start + R"(float-quantized","config_groups":{"a":{"targets":["Linear"],"weights":)" +
                kFp8 + R"(},"b":{"targets":["LlamaAttention"],"weights":null,"format":null,)"
                       R"("input_activations":{"type":"float","strategy":"attn_head","num_bits":)" +
                bits + "}}}}");
  };
  const auto found = with_attention("8");
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(name_of(*found, "lm_head"), "FP8");
  const auto wrong = with_attention("3");
  ASSERT_FALSE(wrong.has_value());
  EXPECT_NE(wrong.error().message.find("input_activations.num_bits: found 3, expected 4 or 8"),
            std::string::npos)
      << wrong.error().message;
}

TEST(Quantization, FieldsOfMxfp4AreKnown) {
  EXPECT_TRUE(read(R"({"quant_method":"mxfp4","dequantize":false})"));
  const auto unknown = read(R"({"quant_method":"mxfp4","rotation":"hadamard"})");
  ASSERT_FALSE(unknown.has_value());
  EXPECT_NE(unknown.error().message.find("rotation: found \"hadamard\""), std::string::npos);
}

TEST(Quantization, TheMostExactTargetDecides) {
  const std::string groups =
      group("group_0", "int-quantized", kInt8, R"(["Linear"])") + "," +
      group("group_1", "float-quantized", kFp8, R"(["re:.*self_attn.*"])") + "," +
      group("group_2", "pack-quantized", kInt4, R"(["model.layers.1.self_attn.q_proj"])");
  const auto found = read(mixed(groups, R"(["lm_head","re:.*layers\\.2\\."])"));
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(name_of(*found, "model.layers.0.mlp.up_proj"), "INT8");
  EXPECT_EQ(name_of(*found, "model.layers.0.self_attn.q_proj"), "FP8");
  EXPECT_EQ(name_of(*found, "model.layers.1.self_attn.q_proj"), "packed integers");
  EXPECT_EQ(name_of(*found, "model.language_model.layers.1.self_attn.q_proj"), "packed integers");
  EXPECT_EQ(name_of(*found, "language_model.model.layers.1.self_attn.q_proj"), "packed integers");
  EXPECT_EQ(name_of(*found, "lm_head"), "");
  EXPECT_EQ(name_of(*found, "model.layers.2.mlp.up_proj"), "");
}

TEST(Quantization, ExpressionsMatchFromTheBeginning) {
  const auto found = read(
      mixed(group("g", "int-quantized", kInt8, R"(["re:layers\\.0|model\\.layers\\.1"])"), "[]"));
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(name_of(*found, "model.layers.0.mlp.up_proj"), "");
  EXPECT_EQ(name_of(*found, "layers.0.mlp.up_proj"), "INT8");
  EXPECT_EQ(name_of(*found, "model.layers.1.mlp.up_proj"), "INT8");
  EXPECT_EQ(name_of(*found, "other.model.layers.1.mlp.up_proj"), "");
}

TEST(Quantization, ModeloptHasTwoPlacesAndSchemesByLayer) {
  const Json nested = Json::parse(
      R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"MIXED_PRECISION",
          "kv_cache_quant_algo":"FP8","exclude_modules":["lm_head","*.router*"],
          "quantized_layers":{"model.layers.0.mlp.up_proj":{"quant_algo":"NVFP4","group_size":16},
                              "model.layers.*.self_attn.*":{"quant_algo":"fp8"}}}})");
  const auto mixed_layers = read_quantization(nested, "hf_quant_config.json", "modelopt");
  ASSERT_TRUE(mixed_layers.has_value()) << mixed_layers.error().message;
  EXPECT_EQ(name_of(*mixed_layers, "model.layers.0.mlp.up_proj"), "NVFP4");
  EXPECT_EQ(name_of(*mixed_layers, "model.layers.3.self_attn.q_proj"), "FP8");
  EXPECT_EQ(name_of(*mixed_layers, "model.layers.0.mlp.router.x"), "");
  EXPECT_EQ(name_of(*mixed_layers, "model.layers.1.mlp.up_proj"), "");
  const auto flat = read(R"({"quant_method":"modelopt","quant_algo":"fp8","ignore":["lm_head"]})");
  ASSERT_TRUE(flat.has_value()) << flat.error().message;
  const LayerScheme* scheme = flat->scheme_of("model.layers.0.mlp.up_proj");
  ASSERT_NE(scheme, nullptr);
  EXPECT_TRUE(scheme->weights.static_inputs);
  EXPECT_EQ(scheme->weights.place, ScalePlace::kMatrix);
  EXPECT_EQ(flat->scheme_of("lm_head"), nullptr);
}

TEST(Quantization, ModeloptsOwnFilesNameTheMethodByWhatWroteThem) {
  const auto found = read(
      R"({"quant_algo":"FP8","kv_cache_scheme":"FP8","ignore":["lm_head"],
          "producer":{"name":"modelopt","version":"0.31.0"}})");
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(name_of(*found, "lm_head"), "");
  EXPECT_NE(name_of(*found, "model.layers.0.mlp.up_proj"), "");
  EXPECT_FALSE(read(R"({"quant_algo":"FP8","producer":{"name":"other"}})").has_value());
  EXPECT_FALSE(read(R"({"quant_algo":"FP8","producer":"modelopt"})").has_value());
}

TEST(Quantization, NamesThatAreLeftOutAreParts) {
  const auto found = read(
      R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128],
          "modules_to_not_convert":["lm_head","mlp.gate","model.layers.3"]})");
  ASSERT_TRUE(found.has_value()) << found.error().message;
  EXPECT_EQ(name_of(*found, "model.layers.0.mlp.gate"), "");
  EXPECT_EQ(name_of(*found, "model.layers.0.mlp.gate_proj"), "FP8 in blocks");
  EXPECT_EQ(name_of(*found, "model.layers.3.mlp.up_proj"), "");
  EXPECT_EQ(name_of(*found, "model.layers.30.mlp.up_proj"), "FP8 in blocks");
}

// A name is that of whole parts, at the layer's beginning, inside it or at its end, in any spelling
// of the layer; expressions beside it keep their meaning.
TEST(Quantization, NamesAndExpressionsThatAreLeftOutStandTogether) {
  const auto found = read(
      R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128],
          "modules_to_not_convert":["self_attn","model.layers.1","up_proj","*.layers.2.*",
                                    "model.layers.4*gate","","."]})");
  ASSERT_TRUE(found.has_value()) << found.error().message;
  const auto is_kept = [&](const std::string& layer) { return name_of(*found, layer).empty(); };
  for (const char* layer : {"model.layers.0.self_attn.q_proj",
                            "self_attn.q_proj",
                            "model.layers.0.mlp.up_proj",
                            "model.layers.1.mlp.down_proj",
                            "model.language_model.layers.1.mlp.down_proj",
                            "language_model.model.layers.1.mlp.down_proj",
                            "model.layers.2.mlp.down_proj",
                            "model.layers.4.mlp.gate"}) {
    EXPECT_TRUE(is_kept(layer)) << layer;
  }
  for (const char* layer : {"model.layers.0.self_attn2.q_proj",
                            "model.layers.11.mlp.down_proj",
                            "other.layers.1.mlp.down_proj",
                            "model.layers.0.mlp.up_proj2",
                            "model.layers.5.mlp.gate"}) {
    EXPECT_FALSE(is_kept(layer)) << layer;
  }
}

// Files name every norm and router of every layer, and a layer with experts has hundreds of
// matrices; likewise files that name every matrix with its scheme.
TEST(Quantization, ManyNamesForManyLayersTakeNoTime) {
  Json kept = Json::array();
  Json layers = Json::object();
  for (int i = 0; i < 1000; ++i) {
    kept.push_back("model.layers." + std::to_string(i) + ".mlp.gate");
    layers["model.layers." + std::to_string(i) + ".*_proj"] = {{"quant_algo", "FP8"}};
  }
  const Json fp8 = {{"quant_method", "fp8"},
                    {"activation_scheme", "dynamic"},
                    {"weight_block_size", {128, 128}},
                    {"modules_to_not_convert", kept}};
  const Json by_layer = {
      {"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}, {"quantized_layers", layers}};
  for (const Json& config : {fp8, by_layer}) {
    const int num_found = testing::in_time([&] {
      const auto found = read_quantization(config, "config.json: quantization_config");
      EXPECT_TRUE(found.has_value());
      int count = 0;
      for (int i = 0; i < 10'000; ++i) {
        const std::string layer = "model.language_model.layers." + std::to_string(i % 1000) +
                                  ".mlp.experts." + std::to_string(i) + ".down_proj";
        count += found->scheme_of(layer) != nullptr ? 1 : 0;
      }
      return count;
    });
    EXPECT_EQ(num_found, 10'000);
  }
}

TEST(Quantization, AutoRoundMayNameEveryLayer) {
  constexpr int kLayers = 20'000;
  const auto name = [](int i) {
    return "model.layers.0.mlp.experts." + std::to_string(i) + ".down_proj";
  };
  Json layers = {{"self_attn.*", {{"bits", 8}}}};
  for (int i = 0; i < kLayers; ++i) layers[name(i)] = {{"bits", i % 2 == 0 ? 4 : 8}};
  const Json config = {{"quant_method", "auto-round"},
                       {"packing_format", "auto_round:auto_gptq"},
                       {"bits", 4},
                       {"group_size", 128},
                       {"extra_config", layers}};
  const int num_found = testing::in_time([&] {
    const auto found = read_quantization(config, "config.json: quantization_config");
    EXPECT_TRUE(found.has_value()) << found.error().message;
    int count = 0;
    for (int i = 0; i < kLayers; ++i) {
      const CodeKind code = i % 2 == 0 ? CodeKind::kInt4 : CodeKind::kInt8;
      const bool is_right = found->scheme_of(name(i))->weights.code == code &&
                            found->check_exceptions(name(i)).has_value();
      count += is_right ? 1 : 0;
    }
    return count;
  });
  EXPECT_EQ(num_found, kLayers);
}

TEST(Quantization, GptOssHasNoLayersHere) {
  const auto found = read(R"({"quant_method":"mxfp4","modules_to_not_convert":["lm_head"]})");
  ASSERT_TRUE(found.has_value());
  EXPECT_TRUE(found->empty());
  EXPECT_EQ(found->usual_format(), WeightFormat::kBF16);
}

TEST(Quantization, DummyLayersHaveTheFormatOfTheScheme) {
  const struct {
    const char* config;
    WeightFormat format;
  } rows[] = {
      {R"({"quant_method":"fp8","activation_scheme":"dynamic"})", WeightFormat::kE4M3Channel},
      {R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[128,128]})",
       WeightFormat::kE4M3Block},
      {R"({"quant_method":"modelopt","quant_algo":"NVFP4"})", WeightFormat::kNVFP4},
      {R"({"quant_method":"gptq","bits":4,"group_size":128})", WeightFormat::kInt4Group128},
      {R"({"quant_method":"gptq","bits":8,"group_size":-1})", WeightFormat::kInt8Group32},
      {R"({"quant_method":"awq","bits":4,"group_size":32,"version":"GEMM"})",
       WeightFormat::kInt4Group32},
      {R"({"quant_method":"awq","w_bit":4,"q_group_size":64,"version":"GEMM"})",
       WeightFormat::kInt4Group32},
  };

  for (const auto& [config, format] : rows) {
    const auto found = read(config);
    ASSERT_TRUE(found.has_value()) << config << found.error().message;
    EXPECT_EQ(found->usual_format(), format) << config;
  }
}

TEST(Quantization, WhatNoKernelDoesIsRefusedByName) {
  const struct {
    std::string config;
    const char* message;
  } rows[] = {
      {"{}", "quant_method: found nothing"},
      {"3", "quant_method: found nothing"},
      {R"({"quant_method":"bitsandbytes"})", "quant_method: found \"bitsandbytes\""},
      {R"({"quant_method":"fp8"})", "activation_scheme: found nothing"},
      {R"({"quant_method":"fp8","bits":8,"weight_scale_semantics":"inverse"})",
       "weight_scale_semantics: found \"inverse\", expected none: scales that multiply"},
      {R"({"quant_method":"fp8","activation_scheme":"dynamic","fmt":"e5m2"})",
       "fmt: found \"e5m2\""},
      {R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_block_size":[64,128]})",
       "weight_block_size: found [64,128]"},
      {R"({"quant_method":"fp8","activation_scheme":"static","weight_block_size":[128,128]})",
       "activation_scheme: found \"static\""},
      {R"({"quant_method":"fp8","activation_scheme":"dynamic","weight_per_tensor":true})",
       "weight_per_tensor: found true, expected null"},
      {R"({"quant_method":"gptq","bits":3,"group_size":128})", "bits: found 3"},
      {R"({"quant_method":"gptq","bits":5,"group_size":128})", "bits: found 5, expected 4 or 8"},
      {R"({"quant_method":"gptq","bits":4,"group_size":0})", "group_size: found 0"},
      {R"({"quant_method":"gptq","bits":4})", "group_size: found nothing"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"checkpoint_format":"marlin"})",
       "checkpoint_format: found \"marlin\""},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{".*mlp":{"bits":2}}})",
       "dynamic.\".*mlp\".bits: found 2, expected 4 or 8"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"(":{"bits":8}}})",
       "dynamic.\"(\": found \"re:(\", expected a regular expression"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"dynamic":{"a":{"speed":8}}})",
       "dynamic.\"a\": found field \"speed\""},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"pack_dtype":"int8"})",
       "pack_dtype: found \"int8\""},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"rotation":"hadamard"})",
       "rotation: found \"hadamard\", expected null"},
      {R"({"quant_method":"gptq","bits":4,"group_size":128,"speed":{}})",
       "found field \"speed\""},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"version":"gemv"})",
       "version: found \"gemv\""},
      {R"({"quant_method":"awq","bits":8,"group_size":128,"version":"gemm"})", "bits: found 8"},
      {R"({"quant_method":"awq","bits":4,"group_size":128})", "version: found nothing"},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"version":"gemm","desc_act":true})",
       "desc_act: found true"},
      {R"({"quant_method":"awq","bits":4,"group_size":128,"format":"llm-awq"})",
       "format: found \"llm-awq\""},
      {R"({"quant_method":"auto-round","bits":4,"group_size":128})", "backend: found nothing"},
      {R"({"quant_method":"auto-round","bits":4,"group_size":128,"packing_format":"auto_round:mlx"})",
       "packing_format: found \"auto_round:mlx\""},
      {R"({"quant_method":"auto-round","bits":4,"group_size":128,"act_bits":8,
           "packing_format":"auto_round:gptqmodel"})",
       "act_bits: found 8, expected 16 or 32"},
      {R"({"quant_method":"modelopt","quant_algo":"MXFP8"})", "quant_algo: found \"MXFP8\""},
      {R"({"quant_method":"modelopt","quant_algo":"FP8_PB_WO"})",
       "quant_algo: found \"FP8_PB_WO\""},
      {R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":32})",
       "group_size: found 32, expected 16"},
      {R"({"quant_method":"modelopt","quant_algo":"MIXED_PRECISION"})",
       "quantized_layers: found nothing"},
      {R"({"quant_method":"modelopt","quant_algo":"FP8","kv_cache_quant_algo":"INT2"})",
       "kv_cache_quant_algo: found \"INT2\""},
      {R"({"quant_method":"modelopt","quant_algo":"FP8","pre_quant_scale":true})",
       "pre_quant_scale: found true"},
      {mixed(group("g", "mixed-precision", kInt8, R"(["Linear"])"), "[]"),
       "format: found \"mixed-precision\""},
      {mixed(group("g", "int-quantized", kInt8, R"(["re:("])"), "[]"),
       "targets: found \"re:(\", expected a regular expression"},
      {mixed(group("g", "int-quantized", kInt8, R"(["Linear"])"), R"(["re:["])"),
       "ignore: found \"re:[\""},
      {mixed(group("g",
                   "pack-quantized",
                   R"({"num_bits":2,"type":"int","strategy":"channel"})",
                   R"(["Linear"])"),
             "[]"),
       "weights.num_bits: found 2, expected 4 or 8"},
      {mixed(group("g",
                   "float-quantized",
                   R"({"num_bits":8,"type":"float","strategy":"group","group_size":64})",
                   R"(["Linear"])"),
             "[]"),
       "weights.group_size: found 64, expected 128"},
      {mixed(group("g",
                   "nvfp4-pack-quantized",
                   R"({"num_bits":4,"type":"float","strategy":"tensor_group","group_size":32})",
                   R"(["Linear"])"),
             "[]"),
       "weights.group_size: found 32, expected 16"},
      {mixed(group("g",
                   "float-quantized",
                   R"({"num_bits":8,"type":"float","strategy":"block","block_structure":[64,64]})",
                   R"(["Linear"])"),
             "[]"),
       "weights.block_structure: found [64,64], expected [128,128]"},
  };

  for (const auto& [config, message] : rows) {
    CorruptFile corrupt("quantization " + config, config.size());
    const auto found = read(config);
    ASSERT_FALSE(found.has_value()) << config;
    EXPECT_EQ(found.error().code, ErrorCode::kUnsupported) << config;
    corrupt.refused(found.error(), "config.json", message);
  }
}

}  // namespace
}  // namespace sluice
