// SPDX-License-Identifier: Apache-2.0
// Directories in Hugging Face's layout with an oddity that changes no answer: each opens.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/weights/checkpoint.h"
#include "engine/weights/file_spec.h"
#include "engine/weights/hf_names.h"
#include "engine/weights/safetensors.h"
#include "tests/engine/weights/hf_directory.h"
#include "tests/support/captured_log.h"

namespace sluice {
namespace {

struct Unread {
  const char* fields;  // dtype and shape
  size_t bytes;
  const char* message;  // expected when the tensor is used
};

constexpr Unread kUnread[] = {
    {R"("dtype":"I64","shape":[2])", 16, "dtype: found \"I64\", expected F32, F16 or BF16"},
    {R"("dtype":"BOOL","shape":[3])", 3, "dtype: found \"BOOL\""},
    {R"("dtype":"F8_E4M3","shape":[4])", 4, "dtype: found \"F8_E4M3\""},
    {R"("dtype":"F64","shape":[1,2])", 16, "dtype: found \"F64\""},
    {R"("dtype":"I32","shape":[])", 4, "dtype: found \"I32\""},
    {R"("dtype":"F32","shape":[])", 4, "shape: found 0 dimensions, expected 1 to 4"},
    {R"("dtype":"F32","shape":[0,2])", 0, "shape: found 0 elements, expected 1 or more"},
    {R"("dtype":"F16","shape":[1,1,1,1,2])", 4, "shape: found 5 dimensions, expected 1 to 4"},
};

// A norm, the unread tensor under `name`, and another norm behind it.
std::string file_with(const Unread& unread, const std::string& name) {
  const auto offsets = [](size_t begin, size_t end) {
    return R"(,"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]";
  };
  const std::string norm = R"("dtype":"F32","shape":[4])";
  const size_t end = 16 + unread.bytes;
  const std::string header =
      tensor("model.norm.weight", norm + offsets(0, 16)) + "," +
      tensor(name, unread.fields + offsets(16, end)) + "," +
      tensor("model.layers.0.input_layernorm.weight", norm + offsets(end, end + 16));
  return safetensors("{" + header + "}", end + 16);
}

TEST_F(HfDirectory, ATensorThatIsLeftOutMayHaveAnyTypeAndShape) {
  write("config.json", R"({"model_type":"llama","num_hidden_layers":1})");
  for (const Unread& unread : kUnread) {
    for (const char* name : {"vision_tower.embeddings.position_ids",
                             "mtp.counter",
                             "model.layers.1.mlp.gate.weight",
                             "model.layers.0.self_attn.rotary_emb.inv_freq"}) {
      write("model.safetensors", file_with(unread, name));
      logged_by([&] {
        const auto opened = Checkpoint::open(folder_);
        ASSERT_TRUE(opened.has_value()) << name << unread.fields << opened.error().message;
        EXPECT_EQ((*opened)->tensors().size(), 2U) << name << unread.fields;
        EXPECT_TRUE((*opened)->has("blk.0.attn_norm.weight"));
      });
    }
    write("model.safetensors", file_with(unread, "lm_head.weight"));
    EXPECT_NE(error().find(std::string("tensor \"lm_head.weight\": ") + unread.message),
              std::string::npos)
        << error();
    // An index drops tensors that it does not list.
    write("model.safetensors.index.json",
          R"({"weight_map":{"model.norm.weight":"model.safetensors"}})");
    logged_by([&] { EXPECT_EQ(error(), "") << unread.fields; });
    remove("model.safetensors.index.json");
  }
}

// Baichuan 2, which its number of tokens tells from Baichuan 1, has directions; q, k and v are one.
TEST_F(HfDirectory, BaichuanHasDirectionsOfTokensAndJoinedQueries) {
  for (const size_t vocab : {size_t{125696}, size_t{125695}}) {
    write("config.json", R"({"model_type":"baichuan","num_hidden_layers":1})");
    std::vector<float> rows(2 * vocab);
    rows[0] = 3;
    rows[1] = -4;
    rows[2 * vocab - 1] = 0.5F;
    SafetensorsBuilder file;
    file.add("lm_head.weight", "F32", "[" + std::to_string(vocab) + ",2]", raw_bytes(rows));
    file.add("model.layers.0.self_attn.W_pack.weight",
             "F32",
             "[6,2]",
             raw_bytes<float>({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}));
    write("model.safetensors", file.file());
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    const auto at = [&](const char* name, size_t i) {
      return reinterpret_cast<const float*>((*opened)->find(name)->data.data())[i];
    };
    const bool is_second = vocab == 125696;
    EXPECT_EQ(at("output.weight", 0), is_second ? 0.6F : 3.0F);
    EXPECT_EQ(at("output.weight", 1), is_second ? -0.8F : -4.0F);
    EXPECT_EQ(at("output.weight", 2), 0.0F);
    EXPECT_EQ(at("output.weight", 2 * vocab - 1), is_second ? 1.0F : 0.5F);
    EXPECT_EQ(at("blk.0.attn_q.weight", 0), 1.0F);
    EXPECT_EQ(at("blk.0.attn_k.weight", 3), 8.0F);
    EXPECT_EQ(at("blk.0.attn_v.weight", 3), 12.0F);
    EXPECT_EQ((*opened)->find("blk.0.attn_v.weight")->dims[1], 2U);
  }
}

TEST_F(HfDirectory, PlacesOfUnreadTensorsAreChecked) {
  for (const char* fields : {R"("dtype":"I64","shape":[2],"data_offsets":[0,32])",
                             R"("dtype":"I64","shape":[2],"data_offsets":[16,8])",
                             R"("dtype":"F32","shape":[0],"data_offsets":[0,16])",
                             R"("dtype":"F32","shape":[0],"data_offsets":[8,8])",
                             R"("dtype":"I64","shape":[1],"data_offsets":[8,16])"}) {
    const std::string header = tensor("model.norm.weight", kGood) + "," + tensor("mtp.a", fields);
    write("model.safetensors", safetensors("{" + header + "}", 16));
    EXPECT_NE(error().find("\"mtp.a\": data_offsets: found"), std::string::npos)
        << fields << error();
  }
}

TEST_F(HfDirectory, TablesOfTheRotationAreNotRead) {
  std::vector<std::string> names = {"model.norm.weight"};
  for (const char* table : {"inv_freq", "cos_cached", "sin_cached"}) {
    names.push_back(std::string("model.layers.0.self_attn.rotary_emb.") + table);
    names.push_back(std::string("model.rotary_emb.") + table);
  }
  write("model.safetensors", shard_of(names));
  const auto opened = Checkpoint::open(folder_);
  ASSERT_TRUE(opened.has_value()) << opened.error().message;
  EXPECT_EQ((*opened)->tensors().size(), 1U);
}

// One line for each part, not one for each of hundreds of tensors.
TEST_F(HfDirectory, PartsBesideTheTextModelAreCounted) {
  write("model.safetensors",
        shard_of({"lm_head.weight",
                  "model.vision_tower.a",
                  "model.visual.b",
                  "audio_tower.c",
                  "model.multi_modal_projector.d",
                  "vit_large_projector.e"}));
  const std::string log = logged_by([&] { EXPECT_EQ(error(), ""); });
  EXPECT_NE(log.find("part=\"the vision tower\" tensors_not_read=2"), std::string::npos) << log;
  EXPECT_NE(log.find("part=\"the audio tower\" tensors_not_read=1"), std::string::npos) << log;
  EXPECT_NE(log.find("part=\"the projector of images\" tensors_not_read=2"), std::string::npos)
      << log;
}

// Files that say so may have the matrix twice, or an output layer of its own, which counts.
TEST_F(HfDirectory, AHeadThatIsNotTheEmbeddingIsNotTied) {
  const std::string zeros(16, '\0');
  std::string other = zeros;
  other.back() = 1;
  const struct {
    const char* prefix;
    const char* shape;
    const std::string& head;
    bool is_tied;
  } rows[] = {{"", "[2,2]", zeros, true},
              {"", "[2,2]", other, false},
              {"language_model.", "[2,2]", other, false},
              {"", "[4]", other, true},  // is no output layer
              {"", "[1,4]", other, true}};

  write("config.json", R"({"model_type":"llama","tie_word_embeddings":true})");
  for (const auto& [prefix, shape, head, is_tied] : rows) {
    SafetensorsBuilder builder;  // the head stands first
    builder.add(std::string(prefix) + "lm_head.weight", "F32", shape, head);
    builder.add(std::string(prefix) + "model.embed_tokens.weight", "F32", "[2,2]", zeros);
    write("model.safetensors", builder.file());
    std::unique_ptr<Checkpoint> opened;
    const std::string log = logged_by([&] { opened = *Checkpoint::open(folder_); });
    EXPECT_EQ(opened->has("output.weight"), !is_tied) << shape;
    EXPECT_EQ(log.find("key=" + std::string(prefix) + "lm_head.weight") != log.npos, !is_tied)
        << log;
    if (is_tied) continue;
    EXPECT_EQ(opened->find("output.weight")->data.back(), std::byte{1});
  }
}

// Names of published wrappers' parts, none of which the text model reads.
TEST_F(HfDirectory, PartsOfEveryWrapperAreLeftOut) {
  write("config.json", R"({"model_type":"wrapper","text_config":{"model_type":"llama"}})");
  for (const char* part : {"mm_projector.proj.0.weight",
                           "model.mm_projector.0.weight",
                           "image_newline",
                           "model.image_newline",
                           "sound_encoder.encoder.layers.0.norm_out.weight",
                           "sound_projection.linear1.weight",
                           "encoder.layers.0.attn.to_q.weight",
                           "projector.linear.weight",
                           "visual_tokenizer.vit.a",
                           "vte.weight",
                           "model.vision_embedding.0.a",
                           "vit_downsampler2.weight",
                           "model.merger.mlp.0.linear_1.weight",
                           "model.vision_encoder.a",
                           "model.vision_projection.linear_1.weight",
                           "model.time_series.a"}) {
    write("model.safetensors", shard_of({"lm_head.weight", part}));
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << part << opened.error().message;
    EXPECT_EQ((*opened)->tensors().size(), 1U) << part;
    EXPECT_EQ((*opened)->left_out().size(), 1U) << part;
  }
}

// What jina-reranker-v3 scores with is no projector of sound.
TEST_F(HfDirectory, AModelThatIsNoWrapperKeepsItsProjector) {
  for (const char* part : {"projector.0.weight", "encoder.layers.0.a.weight", "merger.a.weight"}) {
    write("model.safetensors", shard_of({"lm_head.weight", part}));
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << part << opened.error().message;
    EXPECT_TRUE((*opened)->has(part)) << part;
    EXPECT_TRUE((*opened)->left_out().empty()) << part;
  }
}

TEST(HfNames, AnEncodersLayersAreItsOwnBesideATower) {
  FileSpec spec;
  spec.is_encoder = true;
  EXPECT_EQ(part_beside_text("encoder.layer.0.output.dense.weight", &spec, true), "");
  EXPECT_NE(part_beside_text("model.vision_model.embeddings.a", &spec, true), "");
  spec.is_encoder = false;
  EXPECT_NE(part_beside_text("encoder.layers.0.attn.to_q.weight", &spec, true), "");
}

TEST_F(HfDirectory, ATextModelMayHaveAPrefixInsideItsWrappers) {
  write("config.json", R"({"model_type":"wrapper","llm_config":{"model_type":"llama"}})");
  for (const char* prefix : {"language_model.backbone.", "llm.model.", "model.language_model."}) {
    write("model.safetensors",
          shard_of({std::string(prefix) + "layers.0.self_attn.q_proj.weight"}));
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    EXPECT_NE((*opened)->find("blk.0.attn_q.weight"), nullptr) << prefix;
  }
}

TEST_F(HfDirectory, WhatIsLeftOutMayBeListedAndAbsent) {
  remove("model.safetensors");
  write("config.json", R"({"model_type":"llama","num_hidden_layers":1})");
  write("a.safetensors", shard_of({"model.norm.weight"}));
  write("model.safetensors.index.json",
        R"({"weight_map":{"model.norm.weight":"a.safetensors","mtp.x":"a.safetensors",
            "model.layers.1.eh_proj.weight":"gone.safetensors",
            "vision_tower.a":"gone.safetensors"}})");
  const std::string log = logged_by([&] {
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    EXPECT_EQ((*opened)->tensors().size(), 1U);
  });
  EXPECT_NE(log.find("key=mtp.x found=\"nothing in a.safetensors\""), std::string::npos) << log;
  EXPECT_NE(log.find("key=vision_tower.a found=\"nothing in gone.safetensors\""), std::string::npos)
      << log;
  write("model.safetensors.index.json",
        R"({"weight_map":{"model.norm.weight":"a.safetensors",
            "model.layers.0.input_layernorm.weight":"gone.safetensors"}})");
  EXPECT_NE(error().find("gone.safetensors: open: found"), std::string::npos) << error();
}

TEST_F(HfDirectory, AListedTensorMayLieInOneOtherFile) {
  remove("model.safetensors");
  write("a.safetensors", shard_of({"model.norm.weight", "lm_head.weight"}));
  write("b.safetensors", shard_of({"model.embed_tokens.weight"}));
  write("model.safetensors.index.json",
        R"({"weight_map":{"model.norm.weight":"a.safetensors","lm_head.weight":"b.safetensors",
            "model.embed_tokens.weight":"b.safetensors"}})");
  const std::string log = logged_by([&] {
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    EXPECT_EQ((*opened)->tensors().size(), 3U);
  });
  EXPECT_NE(log.find("key=lm_head.weight found=\"nothing in b.safetensors\" "
                     "counts_as=\"in a.safetensors\""),
            std::string::npos)
      << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  // It is unknown which of two would be meant.
  write("c.safetensors", shard_of({"lm_head.weight", "model.layers.0.input_layernorm.weight"}));
  write("model.safetensors.index.json",
        R"({"weight_map":{"model.norm.weight":"a.safetensors","lm_head.weight":"b.safetensors",
            "model.embed_tokens.weight":"b.safetensors",
            "model.layers.0.input_layernorm.weight":"c.safetensors"}})");
  EXPECT_NE(error().find("found nothing in b.safetensors"), std::string::npos) << error();
}

TEST_F(HfDirectory, NumberedFilesNeedNoIndex) {
  write("model-00001-of-00002.safetensors", shard_of({"model.norm.weight"}));
  write("model-00002-of-00002.safetensors", shard_of({"model.embed_tokens.weight"}));
  write("model-00003-of-00002.safetensors", "no part of them");
  EXPECT_TRUE((*Checkpoint::open(folder_))->has("output.weight"));  // one file has the whole model
  remove("model.safetensors");
  const std::string log = logged_by([&] {
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    EXPECT_EQ((*opened)->tensors().size(), 2U);
  });
  EXPECT_NE(log.find("key=model.safetensors.index.json found=\"no file\""), std::string::npos)
      << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  remove("model-00001-of-00002.safetensors");
  EXPECT_NE(error().find("model-00001-of-00002.safetensors: open: found"), std::string::npos)
      << error();
}

TEST_F(HfDirectory, NumbersThatPythonAloneWritesAreNull) {
  write("config.json",
        R"({"model_type":"llama","hidden_size":64,"rope_theta":5000.0,"aux_loss":NaN,
            "limits":[-Infinity,Infinity],"NaN":"Infinity"})");
  const std::string log = logged_by([&] {
    const auto opened = Checkpoint::open(folder_);
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    EXPECT_EQ(*(*opened)->metadata().get_uint("embedding_length"), 64U);
    EXPECT_EQ(*(*opened)->metadata().get_float("rope.freq_base"), 5000.0);
  });
  EXPECT_NE(log.find("aux_loss"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  write("config.json", R"({"model_type":"llama","a":nan})");
  EXPECT_NE(error().find("found no JSON object"), std::string::npos) << error();
}

}  // namespace
}  // namespace sluice
