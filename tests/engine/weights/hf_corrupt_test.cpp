// SPDX-License-Identifier: Apache-2.0
// Directories in Hugging Face's layout with one thing wrong at a time: the Error names the file,
// the field, what was found and what was expected.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "engine/weights/safetensors.h"
#include "tests/engine/weights/corrupt_ledger.h"
#include "tests/engine/weights/hf_directory.h"
#include "tests/support/captured_log.h"

namespace sluice {
namespace {

std::string ones_64() {
  std::string text;
  for (int i = 0; i < 64; ++i) text += "1,";
  return text;
}

std::vector<CorruptText> corrupt_headers() {
  const auto one = [](const std::string& fields) { return "{" + tensor("a", fields) + "}"; };
  std::vector<CorruptText> cases = {
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
  for (const CorruptText& c : corrupt_headers()) {
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
  const std::vector<CorruptText> cases = {
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
  for (const CorruptText& c : cases) {
    CorruptFile corrupt("index " + c.what, c.text.size());
    const auto parsed = parse_safetensors_index(bytes_of(c.text), "i.json");
    ASSERT_FALSE(parsed.has_value()) << c.what;
    corrupt.refused(parsed.error(), "i.json", c.message);
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

}  // namespace
}  // namespace sluice
