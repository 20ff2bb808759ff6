// SPDX-License-Identifier: Apache-2.0
// Keys of --hf-overrides that say what a model is count like those in its config.json.
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/models/model_spec.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/override_keys.h"
#include "tests/engine/pooled_answers.h"
#include "tests/support/edited_model.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

using Json = nlohmann::json;

constexpr const char* kOriginal = "original_max_position_embeddings";
const Json kYarn = {
    {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}};

Expected<ModelConfig> read(const std::string& path, const Json& overrides) {
  SLUICE_TRY(const std::string keys, model_overrides(overrides.dump()));
  SLUICE_TRY(const auto checkpoint,
             Checkpoint::open(path, LoadFormat::kAuto, CheckpointPart::kModel, keys));
  SLUICE_TRY(const ModelSpec* spec, find_model_spec(*checkpoint));
  return read_model_config(*spec, *checkpoint);
}

std::string error_of(const std::string& name, const Json& overrides) {
  const auto config = read(golden_folder() + "/models/" + name, overrides);
  return config ? "" : config.error().message;
}

void expect_same_ropes(const ModelConfig& found, const ModelConfig& expected) {
  EXPECT_EQ(found.context_len, expected.context_len);
  ASSERT_EQ(found.ropes.size(), expected.ropes.size());
  for (size_t i = 0; i < found.ropes.size(); ++i) {
    EXPECT_EQ(found.ropes[i].freq_base, expected.ropes[i].freq_base);
    EXPECT_EQ(found.ropes[i].freq_scale, expected.ropes[i].freq_scale);
    EXPECT_EQ(found.ropes[i].freq_factors, expected.ropes[i].freq_factors);
    EXPECT_EQ(found.ropes[i].attention_factor, expected.ropes[i].attention_factor);
  }
}

struct Override {
  const char* model;
  Json flag;
  Json edits;  // of its config.json
};

TEST(Overrides, CountLikeKeysOfConfigJson) {
  Json with_base = kYarn;
  with_base["rope_theta"] = 10000.0;
  const std::vector<Override> cases = {
      {"llama", {{"rope_scaling", kYarn}}, {{"rope_parameters", with_base}}},
      {"llama", {{"rope_parameters", kYarn}}, {{"rope_parameters", with_base}}},
      {"llama", {{"rope_theta", 500}}, {{"rope_parameters", {{"rope_theta", 500}}}}},
      {"llama", {{"max_position_embeddings", 99}}, {{"max_position_embeddings", 99}}},
      {"qwen3-yarn",
       {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2}}}},
       {{"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}, {"attention_factor", nullptr}}}}},
      {"qwen3-yarn", {{"rope_scaling", nullptr}}, {{"rope_scaling", nullptr}}},
      {"gemma3",
       {{"rope_parameters", {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}}}}}},
       {{"rope_parameters", {{"full_attention", {{"factor", 8.0}}}}}}},
      {"dbrx", {{"rope_theta", 500}}, {{"attn_config", {{"rope_theta", 500}}}}},
      {"qwen3-vl",
       {{"text_config", {{"max_position_embeddings", 99}}}},
       {{"text_config", {{"max_position_embeddings", 99}}}}},
      {"qwen3-vl",
       {{"max_position_embeddings", 99}},
       {{"text_config", {{"max_position_embeddings", 99}}}}},
  };
  for (const Override& each : cases) {
    SCOPED_TRACE(each.model + each.flag.dump());
    testing::EditedModel edited(each.model);
    edited.json.merge_patch(each.edits);
    const auto expected = testing::read_model_config_at(edited.path());
    ASSERT_TRUE(expected.has_value()) << expected.error().message;
    const auto found = read(golden_folder() + "/models/" + each.model, each.flag);
    ASSERT_TRUE(found.has_value()) << found.error().message;
    expect_same_ropes(*found, *expected);
  }
}

// The whole way: the same bits as of the edited file, under a fingerprint of their own.
TEST(Overrides, GiveTheBitsOfTheFileAndAnotherFingerprint) {
  using testing::pooled::config_of;
  const std::string name = "qwen3-mean";
  const testing::TemporaryFolder copy;
  const auto requests = testing::pooled::requests_of(testing::pooled::golden(name));
  const Config edited = testing::pooled::edited(copy, name, {{"rope_parameters", kYarn}});
  Config config = config_of(name);
  const auto usual = testing::pooled::run(config, requests);
  const std::string usual_print = testing::start_engine(config)->model().system_fingerprint;
  config.hf_overrides = Json{{"rope_parameters", kYarn}}.dump();
  const auto found = testing::pooled::run(config, requests);
  EXPECT_EQ(found, testing::pooled::run(edited, requests));
  EXPECT_NE(found, usual);
  EXPECT_NE(testing::start_engine(config)->model().system_fingerprint, usual_print);
}

TEST(Overrides, ChangeRotationsOfGgufFiles) {
  const std::vector<Json> flags = {
      {{"rope_scaling", kYarn}},
      {{"rope_parameters", {{"rope_type", "linear"}, {"factor", 2.5}, {"rope_theta", 777}}}},
      {{"rope_theta", 500}, {"max_position_embeddings", 99}}};
  for (const Json& flag : flags) {
    SCOPED_TRACE(flag.dump());
    const auto expected = read(golden_folder() + "/models/qwen3", flag);
    const auto found = read(golden_folder() + "/models/qwen3.gguf", flag);
    ASSERT_TRUE(expected.has_value()) << expected.error().message;
    ASSERT_TRUE(found.has_value()) << found.error().message;
    expect_same_ropes(*found, *expected);
  }
  // The length of training is the file's own where none is stated, and so is the factor.
  const std::string qwen3 = golden_folder() + "/models/qwen3.gguf";
  const auto usual = read(qwen3, Json::object());
  ASSERT_TRUE(usual.has_value());
  Json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}};
  const auto unstated = read(qwen3, {{"rope_scaling", yarn}});
  yarn[kOriginal] = usual->context_len;
  const auto stated = read(qwen3, {{"rope_scaling", yarn}});
  ASSERT_TRUE(unstated.has_value() && stated.has_value());
  expect_same_ropes(*unstated, *stated);
  EXPECT_EQ(stated->context_len, 4 * usual->context_len);
  const std::string linear = golden_folder() + "/models/llama-linear-rope.gguf";
  const auto own = read(linear, Json::object());
  const auto alone = read(linear, {{"rope_scaling", {{"rope_type", "linear"}}}});
  ASSERT_TRUE(own.has_value() && alone.has_value());
  expect_same_ropes(*alone, *own);
  const auto plain = read(golden_folder() + "/models/llama.gguf", Json::object());
  const auto unscaled =
      read(golden_folder() + "/models/llama-linear-rope.gguf", {{"rope_scaling", nullptr}});
  ASSERT_TRUE(plain.has_value() && unscaled.has_value());
  EXPECT_EQ(unscaled->ropes[0].freq_scale, 1.0F);
}

TEST(Overrides, WhatNothingReadsIsRefused) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 2}};
  for (const auto& [model, flag, part] : std::vector<std::tuple<const char*, Json, const char*>>{
           {"qwen3", {{"hiden_size", 3}}, "\"hiden_size\" is not supported"},
           {"qwen3", {{"text_config", {{"is_matryoshka", true}}}}, "\"is_matryoshka\" is not"},
           {"qwen3", {{"rope_scaling", "yarn"}}, "rope_scaling must be an object or null"},
           {"qwen3",
            {{"rope_scaling", linear}, {"rope_parameters", linear}},
            "rope_parameters and rope_scaling are one object"},
           {"qwen3", {{"rope_scaling", {{"rope_type", "spiral"}}}}, "\"spiral\""},
           {"gemma3", {{"rope_theta", 3}}, "rope_theta: found kinds of layers"},
           {"gemma3", {{"rope_scaling", linear}}, "rope_scaling: found kinds of layers"},
           {"qwen3.gguf", {{"hidden_size", 3}}, "\"hidden_size\" is not supported of a GGUF file"},
           {"qwen3.gguf", {{"rope_scaling", {{"mscale", 3}}}}, "\"mscale\" is not supported of"},
           {"qwen3.gguf", {{"rope_scaling", {{"rope_type", "llama3"}}}}, "found \"llama3\" for a"},
           {"qwen3.gguf",
            {{"rope_scaling", linear}, {"rope_parameters", linear}},
            "rope_parameters and rope_scaling are one object"},
           {"qwen3.gguf", {{"rope_scaling", 3}}, "rope_scaling must be an object or null"},
           {"qwen3.gguf", {{"rope_theta", "3"}}, "rope_theta: found no number"},
           {"llama3-rope.gguf", {{"rope_scaling", linear}}, "with its scaling as tensors"}}) {
    const std::string error = error_of(model, flag);
    EXPECT_NE(error.find(part), std::string::npos) << model << flag << ": " << error;
  }
}

}  // namespace
}  // namespace sluice
