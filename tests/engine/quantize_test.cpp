// SPDX-License-Identifier: Apache-2.0
// Checkpoints in other number formats: the loader reads what was written, the bytes are equal for
// any number of threads, and errors leave nothing behind.
#include "engine/quantize.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <span>
#include <string>

#include "engine/quantize/expert_sources.h"
#include "engine/quantize/unfinished.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/safetensors.h"
#include "tests/engine/quantize_rig.h"
#include "tests/engine/weights/hf_directory.h"
#include "tests/support/captured_log.h"
#include "tests/support/thread_time.h"

namespace sluice::testing {
namespace {

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

TEST(ExpertSources, RowsThatAreNotOfSoManyExpertsAreRefused) {
  const std::vector<std::byte> data(6 * 32 * sizeof(float));
  CheckpointTensor stack;
  stack.name = "blk.0.ffn_gate_up_exps.weight";
  stack.num_dims = 2;
  stack.dims[0] = 32;
  stack.dims[1] = 6;
  stack.format = WeightFormat::kF32;
  stack.data = data;
  const auto refusal = [](const auto& source) {
    return source ? std::string() : source.error().message;
  };
  const std::string expected = "file: tensor \"blk.0.ffn_gate_up_exps.weight\": found 6 rows, ";
  for (const uint64_t count : {0U, 4U}) {  // 3 x 2 rows are halves of 3 experts, or 1
    const std::string parts = std::to_string(count);
    EXPECT_EQ(refusal(expert_of("file", stack, count, 0)),
              expected + "expected those of " + parts + " equal parts");
    EXPECT_EQ(refusal(joined("file", stack, stack, count)),
              expected + "expected those of " + parts + " equal parts");
    EXPECT_EQ(refusal(half_of("file", stack, 1, count)),
              expected + "expected those of " + std::to_string(2 * count) + " equal parts");
  }
  const auto half = half_of("file", stack, 1, 3);
  ASSERT_TRUE(half.has_value()) << half.error().message;
  ASSERT_EQ(half->pieces.size(), 3U);
  EXPECT_EQ(half->pieces[2].first, 5);
  EXPECT_EQ(half->pieces[2].count, 1);
  const auto expert = expert_of("file", stack, 3, 2);
  ASSERT_TRUE(expert.has_value()) << expert.error().message;
  EXPECT_EQ(expert->pieces[0].first, 4);
  EXPECT_EQ(expert->dims[1], 2U);
}

// Serving reads such a directory with and without the file beside it.
TEST_F(Quantize, ATiktokenVocabularyNeedsNoConfiguration) {
  const std::string input = model(TinyWeights::kBF16);
  fs::remove(input + "/tokenizer_config.json");
  fs::copy(kData + "/models/engine-heads-mtp/tiktoken.model", input);
  const std::string without =
      quantize({.input = input, .output = {}, .to = "Q8_0"}, "without.gguf");
  write_file(input + "/tokenizer_config.json", "{}");
  const std::string with = quantize({.input = input, .output = {}, .to = "Q8_0"}, "with.gguf");
  EXPECT_TRUE(contents(without) == contents(with));
  const auto checkpoint = Checkpoint::open(without);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto text = (*checkpoint)->text();
  ASSERT_TRUE(text.has_value()) << text.error().message;
  EXPECT_NE(text->tokenizer->find_token("th"), kInvalidToken);
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

// Training may part the two and leave the flag, which codes of the head would then follow.
TEST_F(Quantize, AHeadOfItsOwnIsNotSaidToBeTied) {
  const std::string input = model();
  fs::rename(input + "/model.safetensors", input + "/model-00001-of-00002.safetensors");
  SafetensorsBuilder head;
  head.add("lm_head.weight", "BF16", "[440,64]", std::string(440 * 64 * 2, '\x3C'));
  write_file(input + "/model-00002-of-00002.safetensors", head.file());
  const std::string output = quantize({.input = input, .output = {}, .to = "int8"}, "out");
  EXPECT_EQ(Json::parse(read_file(at("out/config.json")))["tie_word_embeddings"], false);
  const auto checkpoint = Checkpoint::open(output);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_TRUE((*checkpoint)->has("output.weight"));
}

// Other tensors keep their bytes, and text files are copied.
TEST_F(Quantize, OtherTensorsAndFilesAreTakenOver) {
  const std::string input = model();
  fs::create_directory(input + "/additional_chat_templates");
  std::ofstream(input + "/additional_chat_templates/tool_use.jinja") << "U";
  quantize({.input = input, .output = {}, .to = "fp8"}, "out");
  EXPECT_EQ(read_file(at("out/additional_chat_templates/tool_use.jinja")), "U");
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
  for (const FileTensor& tensor : *old_tensors) {
    for (const FileTensor& other : *new_tensors) {
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
      "--include: \"no_such\": found no matrix");
  has({.input = input, .output = {}, .to = "int8", .exclude = {"("}}, "--exclude: ");
  has({.input = input, .output = {}, .recipe = "[]"}, "--recipe: expected a JSON object");
  has({.input = input, .output = {}, .recipe = R"({"q_proj":4})"}, "\"q_proj\": expected the name");
  has({.input = input, .output = {}, .recipe = R"({"q_proj":"fp8-block","k_proj":"int8"})"},
      "expected one that a checkpoint can have beside the others");
  has({.input = input, .output = {}, .to = "int8", .exclude = {"."}}, "nothing to quantize");
  has({.input = at("nothing"), .output = {}, .to = "fp8"}, "nothing");
  has({.input = input, .output = {}, .to = "int8", .include = {"layernorm"}},
      "--include: \"layernorm\": found no matrix");
  has({.input = input, .output = {}, .recipe = R"({"q_proj":"int8"})", .include = {"q_proj"}},
      "--include: found no --to");
  has({.input = input, .output = {}, .recipe = R"({"q_proj":"int8","q_proj":"keep"})"},
      "--recipe: \"q_proj\": found twice");
  for (const double bits : {std::nan(""), 0.5, -1.0, double{INFINITY}}) {
    has({.input = input, .output = {}, .to = "int4", .target_bits = bits}, "--target-bits: found");
  }
  const auto file = quantize_model({.input = input, .output = at("x.gguf"), .to = "int4"});
  ASSERT_FALSE(file.has_value());
  EXPECT_NE(file.error().message.find("found the name of a GGUF file"), std::string::npos);
  fs::create_directory(at("there"));
  const auto result = quantize_model({.input = input, .output = at("there"), .to = "fp8"});
  ASSERT_FALSE(result.has_value());
  EXPECT_NE(result.error().message.find("expected a new name"), std::string::npos);
}

// A list of objects, and an object of too many pairs, are refused where that shows.
TEST_F(Quantize, LongRecipesThatAreNoneAreRefusedAtOnce) {
  const std::string input = model();
  std::string list = "[{}";
  std::string pairs = "{\"0\":\"int8\"";
  for (int i = 1; i < 300'000; ++i) {
    list += ",{}";
    pairs += ",\"" + std::to_string(i) + "\":" + (i < 1000 ? "\"int8\"" : "{}");
  }
  for (const std::string& recipe : {list + "]", pairs + "}"}) {
    const std::string message =
        in_time([&] { return error({.input = input, .output = {}, .recipe = recipe}); });
    EXPECT_NE(message.find("--recipe: expected a JSON object of 1 to 1000 pairs"),
              std::string::npos)
        << message;
  }
}

// A weight that is not a number ends the run with the tensor's name, in any format.
TEST_F(Quantize, WeightsThatAreNoNumbersAreRefused) {
  const std::string input = model();
  std::string file = read_file(input + "/model.safetensors");
  const auto tensors = parse_safetensors(std::as_bytes(std::span(file)), "model");
  ASSERT_TRUE(tensors.has_value());
  for (const FileTensor& tensor : *tensors) {
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
  for (const FileTensor& tensor : *tensors) {
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

// What killed runs left goes with the next one; what a living process has locked stays.
TEST_F(Quantize, OutputsOfRunsThatWereKilledAreRemoved) {
  const std::string dead = at("out.unfinished-" + std::string(32, '1'));
  const std::string living = at("out.unfinished-" + std::string(32, '2'));
  const std::string other = at("out2.unfinished-" + std::string(32, '1'));
  const std::string named = at("out.unfinished-business");
  for (const std::string& path : {dead, living, other, named}) {
    fs::create_directory(path);
    write_file(path + "/model.safetensors", "half");
  }
  const int lock = ::open(living.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);
  quantize({.input = model(), .output = {}, .to = "int8"}, "out");
  ::close(lock);
  EXPECT_FALSE(fs::exists(dead));
  EXPECT_TRUE(fs::exists(living));
  EXPECT_TRUE(fs::exists(other));
  EXPECT_TRUE(fs::exists(named));
}

// Processes of two containers may have one number, which two runs of one process have as well.
TEST_F(Quantize, RunsOfOneOutputTouchNothingOfEachOther) {
  for (const bool is_directory : {false, true}) {
    const std::string output = at(is_directory ? "folder" : "file");
    std::string told;
    auto first = Unfinished::create(output, is_directory, [&](const std::string& path) {
      EXPECT_FALSE(fs::exists(path));
      told = path;
    });
    ASSERT_TRUE(first.has_value()) << first.error().message;
    EXPECT_EQ(first->path(), told);
    const std::string of_first = is_directory ? first->path() + "/a" : first->path();
    write_file(of_first, "first");
    auto second = Unfinished::create(output, is_directory);
    ASSERT_TRUE(second.has_value()) << second.error().message;
    EXPECT_NE(second->path(), first->path());
    EXPECT_EQ(read_file(of_first), "first");
    EXPECT_TRUE(first->rename().has_value());
    const Expected<void> late = second->rename();
    ASSERT_FALSE(late.has_value());
    EXPECT_NE(late.error().message.find(output + ": rename: File exists"), std::string::npos)
        << late.error().message;
    EXPECT_EQ(read_file(is_directory ? output + "/a" : output), "first");
    remove_unfinished(second->path());
    EXPECT_FALSE(fs::exists(second->path()));
  }
}

// Floats of --to also replace codes that the scheme leaves alone.
TEST_F(Quantize, CodesOfTheHeadBecomeTheFloatsOfTheScheme) {
  const std::string coded = model(TinyWeights::kInt8);
  for (const char* scheme : {"f32", "f16", "bf16"}) {
    quantize({.input = coded, .output = {}, .to = scheme}, scheme);
    EXPECT_EQ(tensor("lm_head.weight")["scheme"], scheme);
  }
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
    for (const FileTensor& tensor : *tensors) {
      EXPECT_EQ(index["weight_map"][tensor.name], name);
      bytes += static_cast<int64_t>(tensor.data.size());
    }
  }
  EXPECT_GT(num_files, 3U);
  EXPECT_EQ(index["metadata"]["total_size"], bytes);
  EXPECT_EQ(json_["bytes"], bytes);
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

// What the input says of its codes, for the whole or for the text model in it, is not the output's.
TEST_F(Quantize, ConfigurationsOfWrappersLoseTheirQuantization) {
  const std::string input = model(TinyWeights::kInt8);
  const Json config = Json::parse(read_file(input + "/config.json"));
  for (const char* name : {"text_config", "llm_config"}) {
    const Json wrapper = {{"model_type", "internvl_chat"}, {name, config}};
    write_file(input + "/config.json", wrapper.dump());
    quantize({.input = input, .output = {}, .to = "fp8", .verify = true}, name);
    const Json written = Json::parse(read_file(at(name) + "/config.json"));
    EXPECT_TRUE(written.contains("quantization_config"));
    EXPECT_FALSE(written[name].contains("quantization_config")) << name;
  }
}

TEST_F(Quantize, OutputsMayEndWithASlashAndConfigurationsHaveNaN) {
  const std::string input = model();
  std::string config = read_file(input + "/config.json");
  config.insert(config.find('{') + 1, R"("attention_dropout":NaN,)");
  write_file(input + "/config.json", config);
  quantize({.input = input, .output = {}, .to = "int8", .verify = true}, "out//");
  EXPECT_TRUE(Json::parse(read_file(at("out/config.json")))["attention_dropout"].is_null());
}

}  // namespace
}  // namespace sluice::testing
