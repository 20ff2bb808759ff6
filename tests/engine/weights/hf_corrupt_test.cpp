// SPDX-License-Identifier: Apache-2.0
// Directories in Hugging Face's layout with one thing wrong at a time: the Error names the file,
// the field, what was found and what was expected.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "engine/weights/hf_config.h"
#include "engine/weights/safetensors.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/engine/weights/hf_directory.h"
#include "tests/support/captured_log.h"

namespace sluice {
namespace {

struct Case {
  std::string what;
  std::string text;
  const char* message;
};

std::string ones_64() {
  std::string text;
  for (int i = 0; i < 64; ++i) text += "1,";
  return text;
}

std::vector<Case> corrupt_headers() {
  const auto one = [](const std::string& fields) { return "{" + tensor("a", fields) + "}"; };
  std::vector<Case> cases = {
      {"nothing", "", "found no JSON"},
      {"a cut object", "{", "header: found no JSON at byte"},
      {"a number", "7", "header: found a number"},
      {"an array", "[]", "header: found an array"},
      {"a string", "\"a\"", "header: found a string"},
      {"null", "null", "header: found null"},
      {"garbage after", one(kGood) + "x", "header: found no JSON"},
      {"tensor as number", R"({"a":3})", "found a number at tensor \"a\""},
      {"tensor as string", R"({"a":"b"})", "found a string"},
      {"tensor as array", R"({"a":[1]})", "found an array"},
      {"tensor as null", R"({"a":null})", "found null"},
      {"empty tensor", R"({"a":{}})", "without dtype, shape and data_offsets"},
      {"no offsets", one(R"("dtype":"F32","shape":[1])"), "without dtype"},
      {"no shape", one(R"("dtype":"F32","data_offsets":[0,4])"), "without dtype"},
      {"no dtype", one(R"("shape":[1],"data_offsets":[0,4])"), "without dtype"},
      {"unknown field", one(kGood + R"(,"stride":[1])"), "field \"stride\""},
      {"field twice", one(kGood + R"(,"dtype":"F16")"), "field \"dtype\""},
      {"nested object", one(R"("dtype":{})"), "a nested object"},
      {"shape of strings", one(R"("shape":["2"])"), "found a string"},
      {"shape nested", one(R"("shape":[[2]])"), "found an array"},
      {"shape negative", one(R"("shape":[-2])"), "a negative number"},
      {"shape fraction", one(R"("shape":[2.5])"), "a fraction"},
      {"shape boolean", one(R"("shape":[true])"), "a boolean"},
      {"dtype number", one(R"("dtype":3)"), "a number"},
      {"many dimensions", one("\"shape\":[" + ones_64() + "1]"), "more than 64 dimensions"},
      {"overflowing shape",
       one(R"("dtype":"F32","shape":[4294967296,4294967296,2],"data_offsets":[0,16])"),
       "too many elements"},
      {"offsets reversed",
       one(R"("dtype":"F32","shape":[2,2],"data_offsets":[16,0])"),
       "data_offsets: found 16 to 0"},
      {"offsets past the end",
       one(R"("dtype":"F32","shape":[2,2],"data_offsets":[8,24])"),
       "within the 16 bytes of data"},
      {"offsets huge",
       one(R"("dtype":"F32","shape":[2,2],"data_offsets":[0,18446744073709551615])"),
       "within the 16 bytes"},
      {"one offset",
       one(R"("dtype":"F32","shape":[2,2],"data_offsets":[0])"),
       "data_offsets: found 1 numbers"},
      {"three offsets",
       one(R"("dtype":"F32","shape":[2,2],"data_offsets":[0,8,16])"),
       "data_offsets: found 3 numbers"},
      {"too few bytes",
       one(R"("dtype":"F32","shape":[2,2],"data_offsets":[0,12])"),
       "found 12 bytes, expected 16"},
      {"too many bytes",
       one(R"("dtype":"F16","shape":[2,2],"data_offsets":[0,16])"),
       "found 16 bytes, expected 8"},
      {"name twice",
       "{" + tensor("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4])") + "," +
           tensor("a", R"("dtype":"F32","shape":[1],"data_offsets":[4,8])") + "}",
       "the name twice"},
      {"overlap",
       "{" + tensor("a", R"("dtype":"F32","shape":[2],"data_offsets":[0,8])") + "," +
           tensor("b", R"("dtype":"F32","shape":[2],"data_offsets":[4,12])") + "}",
       "expected bytes of its own"},
      {"a hole",
       "{" + tensor("a", R"("dtype":"F32","shape":[1],"data_offsets":[0,4])") + "," +
           tensor("b", R"("dtype":"F32","shape":[2],"data_offsets":[8,16])") + "}",
       "\"b\": data_offsets: found 4 bytes of no tensor before, expected none"},
      {"a hole at the beginning",
       one(R"("dtype":"F32","shape":[2],"data_offsets":[8,16])"),
       "found 8 bytes of no tensor before"},
      {"bytes behind",
       one(R"("dtype":"F32","shape":[3],"data_offsets":[0,12])"),
       "data: found 4 bytes after the last tensor, expected none"},
      {"bytes of no tensor at all", "{}", "found 16 bytes after the last tensor"},
      {"same bytes",
       "{" + tensor("a", kGood) + "," + tensor("b", kGood) + "}",
       "expected bytes of its own"},
      {"metadata of numbers", R"({"__metadata__":{"a":1}})", "found a number"},
      {"metadata nested", R"({"__metadata__":{"a":{}}})", "a nested object"},
      {"invalid UTF-8 in a name", "{\"\xff\":{}}", "no JSON"},
      {"control byte in a name", std::string("{\"a\nb\":{}}"), "no JSON"},
  };
  return cases;
}

TEST(Safetensors, EveryCorruptHeaderGetsItsLine) {
  ASSERT_TRUE(parse_safetensors(bytes_of(safetensors("{" + tensor("a", kGood) + "}", 16)), "f"));
  for (const Case& c : corrupt_headers()) {
    const std::string file = safetensors(c.text, 16);
    CorruptFile corrupt("safetensors " + c.what, file.size());
    const auto parsed = parse_safetensors(bytes_of(file), "m.safetensors");
    ASSERT_FALSE(parsed.has_value()) << c.what;
    corrupt.refused(parsed.error(), "m.safetensors", c.message);
    const std::string& message = parsed.error().message;
    EXPECT_NE(message.find(", expected "), std::string::npos) << c.what << ": " << message;
  }
  const std::string good = "{" + tensor("a", kGood) + "}";
  for (size_t length = 1; length < good.size(); ++length) {
    const std::string file = safetensors(good.substr(0, length), 16);
    const auto parsed = parse_safetensors(bytes_of(file), "m.safetensors");
    ASSERT_FALSE(parsed.has_value()) << "cut at " << length;
    EXPECT_NE(parsed.error().message.find("found no JSON"), std::string::npos);
  }
}

TEST(Safetensors, LengthsOfTheHeaderAreChecked) {
  std::string file = safetensors("{}", 0);
  EXPECT_TRUE(parse_safetensors(bytes_of(file), "f"));
  for (size_t cut = 0; cut < 8; ++cut) {
    EXPECT_FALSE(parse_safetensors(bytes_of(file.substr(0, cut)), "f")) << cut;
  }
  for (const uint64_t length : {uint64_t{3}, uint64_t{1} << 32, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
    CorruptFile corrupt("safetensors length " + std::to_string(length), file.size());
    const auto parsed = parse_safetensors(bytes_of(file), "f");
    ASSERT_FALSE(parsed.has_value());
    corrupt.refused(parsed.error(), "f", "header length: found");
  }
}

TEST(SafetensorsIndex, EveryCorruptIndexGetsItsLine) {
  ASSERT_TRUE(parse_safetensors_index(
      bytes_of(R"({"metadata":{"total_size":4},"weight_map":{"a":"m.safetensors"}})"), "i"));
  const std::vector<Case> cases = {
      {"nothing", "", "no JSON"},
      {"cut", R"({"weight_map":{"a":)", "no JSON"},
      {"array", "[]", "an array"},
      {"no map", "{}", "weight_map: found nothing"},
      {"empty map", R"({"weight_map":{}})", "weight_map: found nothing"},
      {"map is a string", R"({"weight_map":"a"})", "weight_map: found nothing"},
      {"number as file", R"({"weight_map":{"a":3}})", "a number"},
      {"list of files", R"({"weight_map":{"a":["b"]}})", "an array"},
      {"object as file", R"({"weight_map":{"a":{}}})", "a nested object"},
      {"path upwards", R"({"weight_map":{"a":"../b"}})", "file name \"../b\""},
      {"absolute path", R"({"weight_map":{"a":"/etc/passwd"}})", "file name \"/etc/passwd\""},
      {"hidden file", R"({"weight_map":{"a":".b"}})", "file name \".b\""},
      {"empty file name", R"({"weight_map":{"a":""}})", "file name \"\""},
      {"tensor twice", R"({"weight_map":{"a":"b","a":"c"}})", "tensor \"a\" twice"},
      {"deep", R"({"a":[[[[[[[[[[[1]]]]]]]]]]]})", "an array"},
  };
  for (const Case& c : cases) {
    CorruptFile corrupt("index " + c.what, c.text.size());
    const auto parsed = parse_safetensors_index(bytes_of(c.text), "i.json");
    ASSERT_FALSE(parsed.has_value()) << c.what;
    corrupt.refused(parsed.error(), "i.json", c.message);
  }
}

TEST(HfConfig, ReadsOldAndNewSpellingsAlike) {
  const char* texts[] = {
      R"({"model_type":"llama","hidden_size":64,"max_position_embeddings":512,"rope_theta":5000.0,
          "rope_scaling":{"type":"linear","factor":4.0},"torch_dtype":"float16"})",
      R"({"model_type":"llama","hidden_size":64,"max_position_embeddings":512,"dtype":"float16",
          "rope_parameters":{"rope_type":"linear","factor":4.0,"rope_theta":5000.0}})",
      R"({"model_type":"wrapper","text_config":{"model_type":"llama","hidden_size":64,
          "max_position_embeddings":512,"rope_theta":5000,
          "rope_scaling":{"rope_type":"linear","factor":4}}})"};
  for (const char* text : texts) {
    const auto config = parse_hf_config(bytes_of(std::string(text)), "config.json");
    ASSERT_TRUE(config.has_value()) << config.error().message;
    EXPECT_EQ(config->model_type, "llama");
    EXPECT_EQ(*config->metadata.get_uint("embedding_length"), 64U);
    EXPECT_EQ(*config->metadata.get_float("rope.freq_base"), 5000.0);
    EXPECT_EQ(*config->metadata.get_string("rope.scaling.type"), "linear");
    EXPECT_EQ(*config->metadata.get_float("rope.scaling.factor"), 4.0);
  }
}

// Defaults are those of transformers' classes; null means "none".
TEST(HfConfig, LeavesOutWhatEveryoneKnows) {
  const auto read = [](const std::string& text) {
    auto config = parse_hf_config(bytes_of(text), "config.json");
    EXPECT_TRUE(config.has_value()) << config.error().message;
    return std::move(*config);
  };
  const HfConfig gemma = read(R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text",
      "hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":34,"sliding_window":1024,
      "rope_scaling":{"factor":8.0,"rope_type":"linear"}}})");
  EXPECT_EQ(*gemma.metadata.get_uint("attention.head_count"), 8U);
  EXPECT_EQ(*gemma.metadata.get_uint("attention.head_count_kv"), 4U);
  EXPECT_EQ(*gemma.metadata.get_uint("attention.key_length"), 256U);
  EXPECT_EQ(*gemma.metadata.get_uint("context_length"), 131072U);
  EXPECT_EQ(*gemma.metadata.get_uint("attention.sliding_window"), 1024U);
  EXPECT_EQ(*gemma.metadata.get_float("rope.freq_base"), 1e6);
  EXPECT_EQ(*gemma.metadata.get_float("rope.scaling.factor"), 8.0);
  EXPECT_EQ(*gemma.metadata.get_float("attention.layer_norm_rms_epsilon"), 1e-6);
  EXPECT_TRUE(gemma.tied_embeddings);

  const HfConfig capped = read(R"({"model_type":"gemma2","final_logit_softcapping":null})");
  EXPECT_EQ(*capped.metadata.get_float("attn_logit_softcapping"), 50.0);
  EXPECT_FALSE(capped.metadata.has("final_logit_softcapping"));
  EXPECT_FALSE(read(R"({"model_type":"mistral","sliding_window":null})")
                   .metadata.has("attention.sliding_window"));
  EXPECT_FALSE(read(R"({"model_type":"llama"})").tied_embeddings);
  EXPECT_FALSE(read(R"({"model_type":"gemma2","tie_word_embeddings":false})").tied_embeddings);

  EXPECT_EQ(*read(R"({"model_type":"gpt_oss"})").metadata.get_string("rope.scaling.type"), "yarn");
  EXPECT_FALSE(
      read(R"({"model_type":"gpt_oss","rope_scaling":null})").metadata.has("rope.scaling.type"));
  const HfConfig qwen = read(R"({"model_type":"qwen2","num_hidden_layers":30})");
  const auto windows = qwen.metadata.get_numbers("attention.sliding_layers");
  ASSERT_TRUE(windows.has_value()) << windows.error().message;
  EXPECT_EQ(std::count(windows->begin(), windows->end(), 1.0), 2);
  EXPECT_EQ(windows->at(27), 0);
  for (const char* early : {"su", "yarn"}) {
    const HfConfig phi =
        read(R"({"model_type":"phi3","rope_scaling":{"type":")" + std::string(early) + R"("}})");
    EXPECT_EQ(*phi.metadata.get_string("rope.scaling.type"), "longrope");
  }
}

TEST(HfConfig, EveryCorruptConfigGetsItsLine) {
  std::string deep = R"({"model_type":"llama","a":)";
  for (int i = 0; i < 30; ++i) deep += "[";
  const std::vector<Case> cases = {
      {"nothing", "", "no JSON object"},
      {"cut", R"({"model_type":)", "no JSON object"},
      {"array", "[]", "no JSON object"},
      {"no type", "{}", "model_type: found nothing"},
      {"type a number", R"({"model_type":3})", "model_type"},
      {"deep", deep, "nested deeper"},
      {"large", std::string(2 << 20, ' '), "at most 1 MiB"},
      {"quantized", R"({"model_type":"llama","quantization_config":{}})", "quantization_config"},
      {"rotary part above 1",
       R"({"model_type":"phi3","hidden_size":64,"num_attention_heads":4,"partial_rotary_factor":2})",
       "partial_rotary_factor: found 2.0"},
      {"rotary part of no width",
       R"({"model_type":"phi3","partial_rotary_factor":0.5})",
       "embedding_length: found nothing"},
      {"both directions",
       R"({"model_type":"gemma3_text","use_bidirectional_attention":true})",
       "use_bidirectional_attention: found true, expected false"},
      {"both directions, nested",
       R"({"model_type":"x","text_config":{"model_type":"gemma3_text",
           "use_bidirectional_attention":"all"}})",
       "use_bidirectional_attention: found \"all\", expected false"},
      {"dense layers",
       R"({"model_type":"qwen3_moe","mlp_only_layers":[0,3]})",
       "mlp_only_layers: found [0,3], expected no layers"},
      {"other clamp",
       R"({"model_type":"gpt_oss","swiglu_limit":5.5})",
       "swiglu_limit: found 5.5, expected 7"},
      {"rotation as a list",
       R"({"model_type":"llama","rope_parameters":[1]})",
       "rope_parameters: found [1], expected an object"},
      {"scaling as a name",
       R"({"model_type":"llama","rope_scaling":"yarn"})",
       "rope_scaling: found \"yarn\", expected an object"},
      {"tied perhaps",
       R"({"model_type":"llama","tie_word_embeddings":"yes"})",
       "tie_word_embeddings: found \"yes\", expected true or false"},
      {"other slope of the clamp",
       R"({"model_type":"gpt_oss","swiglu_alpha":1.5})",
       "swiglu_alpha: found 1.5, expected 1.702"},
      {"a part of the rotation where none is",
       R"({"model_type":"llama","partial_rotary_factor":0.5})",
       "partial_rotary_factor: found 0.500000, expected 1 in a model of type llama"},
      {"windows where none are",
       R"({"model_type":"llama","layer_types":["full_attention","sliding_attention"]})",
       "layer_types: found [\"full_attention\",\"sliding_attention\"], expected full_attention for "
       "each"},
      {"layers without the window of all",
       R"({"model_type":"mistral","layer_types":["full_attention","sliding_attention"]})",
       "expected sliding_attention for each layer of mistral"},
      {"unknown layer type",
       R"({"model_type":"llama","layer_types":["full_attention","chunked_attention\u001b\u007f"]})",
       R"(layer_types: found ["full_attention","chunked_attention\u001b\u007f"], expected full_attention)"},
      {"layer types no list",
       R"({"model_type":"llama","layer_types":{"0":"full_attention"}})",
       "layer_types: found {\"0\":\"full_attention\"}, expected full_attention"},
      {"long layer types",
       R"({"model_type":"llama","layer_types":")" + std::string(500, 'x') + "\"}",
       "xxx..., expected full_attention"},
      {"scaled local rope",
       R"({"model_type":"gemma3_text","rope_parameters":{"sliding_attention":
           {"rope_type":"linear","factor":2,"rope_theta":10000}}})",
       "rope_parameters.sliding_attention.rope_type: found \"linear\", expected default"},
  };
  for (const Case& c : cases) {
    CorruptFile corrupt("config " + c.what, c.text.size());
    const auto parsed = parse_hf_config(bytes_of(c.text), "config.json");
    ASSERT_FALSE(parsed.has_value()) << c.what;
    corrupt.refused(parsed.error(), "config.json", c.message);
  }
}

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
       R"("kv_cache_scheme":{"num_bits":4,"type":"float","strategy":"tensor"})",
       "kv_cache_scheme.num_bits: found 4"},
      {R"("version":"0.8")",
       R"("sparsity_config":{"format":"sparse-bitmask"})",
       "sparsity_config: found"},
      {R"("version":"0.8")", R"("transform_config":{"r":1})", "transform_config: found"},
      {R"("version":"0.8")", R"("rotation":1)", "found field \"rotation\""},
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

TEST_F(HfDirectory, NamesWhatIsMissingOrDisagrees) {
  EXPECT_EQ(error(), "");
  remove("config.json");
  EXPECT_NE(error().find("config.json: open: found"), std::string::npos);
  write("config.json", R"({"model_type":"llama"})");
  remove("model.safetensors");
  EXPECT_NE(error().find("model.safetensors: open: found"), std::string::npos);
  const std::string index = "model.safetensors.index.json";
  write(index, R"({"weight_map":{"lm_head.weight":"one.safetensors","b":"one.safetensors"}})");
  EXPECT_NE(error().find("one.safetensors: open: found"), std::string::npos);
  write("one.safetensors", safetensors("{" + tensor("lm_head.weight", kGood) + "}", 16));
  EXPECT_NE(error().find("weight_map: tensor \"b\": found nothing in one.safetensors"),
            std::string::npos)
      << error();
  write("one.safetensors", "");
  EXPECT_NE(error().find("found 0 bytes"), std::string::npos) << error();
}

TEST_F(HfDirectory, TranslatesNamesAndSkipsWhatIsNotText) {
  write("config.json", R"({"model_type":"gemma3","tie_word_embeddings":true})");
  const auto four = [](int at) {
    return R"("dtype":"F32","shape":[1],"data_offsets":[)" + std::to_string(4 * at) + "," +
           std::to_string(4 * at + 4) + "]";
  };
  write("model.safetensors",
        safetensors(
            "{" + tensor("language_model.model.layers.3.self_attn.q_proj.weight", four(0)) + "," +
                tensor("model.language_model.layers.0.mlp.experts.7.up_proj.weight", four(1)) +
                "," + tensor("vision_tower.a", four(2)) + "," + tensor("lm_head.weight", four(3)) +
                "," + tensor("unheard.of", four(4)) + "}",
            20));
  const auto opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ((*opened)->tensors().size(), 3U);
  EXPECT_TRUE((*opened)->has("blk.3.attn_q.weight"));
  EXPECT_TRUE((*opened)->has("blk.0.ffn_up_exps.7.weight"));
  EXPECT_TRUE((*opened)->has("unheard.of"));
}

TEST_F(HfDirectory, WhatTheIndexDoesNotListIsLeftOut) {
  const std::string norm = "model.norm.weight";
  write("config.json", R"({"model_type":"llama","tie_word_embeddings":true})");
  remove("model.safetensors");
  write("model.safetensors.index.json",
        R"({"weight_map":{"model.norm.weight":"a.safetensors","lm_head.weight":"b.safetensors",
            "model.embed_tokens.weight":"b.safetensors"}})");
  write("a.safetensors", shard_of({norm, "lm_head.weight", "unheard.of"}));
  // A copy of another file's tensor is ignored; a tied head may be missing.
  write("b.safetensors", shard_of({"model.embed_tokens.weight", norm}));
  const std::string log = logged_by([&] {
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    EXPECT_EQ((*opened)->tensors().size(), 2U);
    EXPECT_TRUE((*opened)->has("output_norm.weight"));
    EXPECT_TRUE((*opened)->has("token_embd.weight"));
  });
  EXPECT_NE(log.find("a.safetensors key=lm_head.weight found=\"2 tensors"), std::string::npos);
  EXPECT_NE(log.find("b.safetensors key=model.norm.weight found=\"1 tensors"), std::string::npos);
  EXPECT_NE(log.find("index.json key=lm_head.weight found=\"nothing in b.safetensors\""),
            std::string::npos)
      << log;
  write("config.json", R"({"model_type":"llama","tie_word_embeddings":false})");
  write("a.safetensors", shard_of({norm, "unheard.of"}));
  EXPECT_NE(error().find("tensor \"lm_head.weight\": found nothing in b.safetensors"),
            std::string::npos)
      << error();
}

TEST_F(HfDirectory, AStaleIndexGivesWayToAWholeFile) {
  const char* const stale[] = {
      R"({"weight_map":{"model.norm.weight":"model-00001-of-00002.safetensors"}})",
      R"({"weight_map":{"model.norm.weight":"a.safetensors","gone":"a.safetensors"}})",
      R"({"weight_map":{"gone":"model.safetensors"}})",
      R"({"weight_map":{)"};
  write("a.safetensors", shard_of({"model.norm.weight"}));
  for (const char* index : stale) {
    write("model.safetensors", shard_of({"model.embed_tokens.weight", "lm_head.weight"}));
    write("model.safetensors.index.json", index);
    const std::string log = logged_by([&] {
      const auto opened = Checkpoint::open(folder_);
      ASSERT_TRUE(opened.has_value()) << opened.error().message;
      EXPECT_EQ((*opened)->tensors().size(), 2U) << index;
      EXPECT_TRUE((*opened)->has("output.weight")) << index;
    });
    EXPECT_NE(log.find("index.json key=weight_map found="), std::string::npos) << log;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
    remove("model.safetensors");
    EXPECT_NE(error(), "") << index;
    write("model.safetensors", "");
    logged_by([&] { EXPECT_NE(error().find("found 0 bytes"), std::string::npos) << error(); });
  }
}

TEST_F(HfDirectory, LayersBehindTheModelsAreLeftOut) {
  write("config.json", R"({"model_type":"llama","num_hidden_layers":2})");
  const std::vector<std::string> names = {"model.layers.1.input_layernorm.weight",
                                          "model.layers.2.input_layernorm.weight",
                                          "model.layers.61.eh_proj.weight",
                                          "mtp.norm.weight",
                                          "model.mtp_layers.0.input_proj.weight",
                                          "model.mtp_block.0.mlp.up_proj.weight",
                                          "model.layers.1.self_attn.rotary_emb.inv_freq"};
  write("model.safetensors", shard_of(names));
  const std::string log = logged_by([&] {
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    ASSERT_EQ((*opened)->tensors().size(), 1U);
    EXPECT_EQ((*opened)->tensors().front().name, "blk.1.attn_norm.weight");
  });
  EXPECT_NE(log.find("key=model.layers.2.input_layernorm.weight found=\"5 tensors of modules"),
            std::string::npos)
      << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

// Each family's names of the first module and its layer are read; copies of the model's tensors,
// further modules and the model's own tensors are left out.
TEST_F(HfDirectory, AModuleBehindTheLayersIsAModelOfOneLayer) {
  write("config.json", R"({"model_type":"llama","num_hidden_layers":2})");
  const std::vector<std::string> spellings[] = {{"model.layers.2.enorm.weight",
                                                 "model.layers.2.hnorm.weight",
                                                 "model.layers.2.eh_proj.weight",
                                                 "model.layers.2.shared_head.norm.weight",
                                                 "model.layers.2.self_attn.q_proj.weight",
                                                 "model.layers.2.shared_head.head.weight",
                                                 "model.layers.2.embed_tokens.weight",
                                                 "model.layers.3.enorm.weight"},
                                                {"model.mtp_layers.0.token_layernorm.weight",
                                                 "model.mtp_layers.0.hidden_layernorm.weight",
                                                 "model.mtp_layers.0.input_proj.weight",
                                                 "model.mtp_layers.0.final_layernorm.weight",
                                                 "model.mtp_layers.0.self_attn.q_proj.weight",
                                                 "model.mtp_layers.1.input_proj.weight"},
                                                {"mtp.pre_fc_norm_embedding.weight",
                                                 "mtp.pre_fc_norm_hidden.weight",
                                                 "mtp.fc.weight",
                                                 "mtp.norm.weight",
                                                 "mtp.layers.0.self_attn.q_proj.weight",
                                                 "mtp.layers.1.self_attn.q_proj.weight"}};
  const std::vector<std::string> places[] = {
      {"enorm", "hnorm", "eh_proj", "shared_head_norm", "blk.0.attn_q"},
      {"enorm", "hnorm", "he_proj", "output_norm", "blk.0.attn_q"},
      {"enorm", "hnorm", "eh_proj", "output_norm", "blk.0.attn_q"}};
  for (size_t i = 0; i < std::size(spellings); ++i) {
    std::vector<std::string> names = spellings[i];
    names.emplace_back("model.layers.1.input_layernorm.weight");
    names.emplace_back("model.norm.weight");
    write("model.safetensors", shard_of(names));
    const std::string log = logged_by([&] {
      const auto opened = Checkpoint::open(folder_, LoadFormat::kAuto, CheckpointPart::kNextToken);
      ASSERT_TRUE(opened.has_value()) << opened.error().message;
      EXPECT_EQ((*opened)->tensors().size(), places[i].size());
      for (const std::string& place : places[i]) {
        EXPECT_TRUE((*opened)->has(place + ".weight")) << place;
      }
    });
    EXPECT_EQ(log, "");
  }
}

TEST_F(HfDirectory, OneTensorHasOneName) {
  const std::string other = R"("dtype":"F32","shape":[2,2],"data_offsets":[16,32])";
  const std::string file = safetensors("{" + tensor("model.norm.weight", kGood) + "," +
                                           tensor("language_model.model.norm.weight", other) + "}",
                                       32);
  write("model.safetensors", file);
  CorruptFile corrupt("a tensor under two names", file.size());
  const auto opened = Checkpoint::open(folder_);
  ASSERT_FALSE(opened.has_value());
  corrupt.refused(opened.error(), folder_, "output_norm.weight\": found under two names");
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
