// SPDX-License-Identifier: Apache-2.0
// Vectors and scores of texts: against sentence-transformers, and the same bits whatever runs
// beside them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/weights/checkpoint.h"
#include "tests/engine/pooled_answers.h"
#include "tests/support/captured_log.h"
#include "tests/support/golden_folder.h"
#include "tests/support/respelled_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::pooled::Json;
using testing::pooled::config_of;
using testing::pooled::expect_close;
using testing::pooled::folder;
using testing::pooled::golden;
using testing::pooled::request_of;
using testing::pooled::requests_of;
using testing::pooled::run;
using testing::Collected;

class GoldenVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenVectors, AreThoseOfSentenceTransformers) {
  const Json expected = golden(GetParam());
  expect_close(run(config_of(GetParam()), requests_of(expected)), expected["vectors"]);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         GoldenVectors,
                         ::testing::Values("qwen3-embedding",
                                           "qwen3-mean",
                                           "bert-mean",
                                           "bert-cls",
                                           "xlm-roberta-cls",
                                           "bert-classify",
                                           "nomic-bert-mean",
                                           "gemma-dense",
                                           "bert-tanh",
                                           "qwen2-both-ways",
                                           "xlm-roberta-rerank",
                                           "xlm-roberta-flash",
                                           "modernbert-mean",
                                           "modernbert-classify",
                                           "modernbert-rerank",
                                           "new-cls",
                                           "nomic-moe-mean",
                                           "jina-bert-mean",
                                           "modernbert-bpe",
                                           "bert-colbert",
                                           "distilbert-mean",
                                           "distilbert-classify",
                                           "llama-bidirec",
                                           "mpnet-mean",
                                           "mpnet-scores",
                                           "gemma2-classify",
                                           "llama-classify",
                                           "mistral-scores",
                                           "qwen3-scores",
                                           "modernbert-modules",
                                           "qwen3-judge"));

// GGUF files of these models spell their vocabularies in another way.
class GoldenGgufVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenGgufVectors, AreThoseOfSentenceTransformers) {
  const std::string name = GetParam();
  const Json expected = golden(name);
  Config config = config_of(name);
  config.model += ".gguf";
  const char* const key = expected.contains("vectors_in_gguf") ? "vectors_in_gguf" : "vectors";
  expect_close(run(config, requests_of(expected)), expected[key]);
}

INSTANTIATE_TEST_SUITE_P(Models,
                         GoldenGgufVectors,
                         ::testing::Values("bert-mean",
                                           "bert-cls",
                                           "bert-classify",
                                           "gemma-dense",
                                           "nomic-bert-mean",
                                           "xlm-roberta-cls",
                                           "modernbert-mean",
                                           "modernbert-bpe",
                                           "jina-bert-mean",
                                           "nomic-moe-mean",
                                           "qwen3-rerank"));

// The labels' names are in the file too.
TEST(GgufClassifiers, LabelsHaveTheirNames) {
  Config config = config_of("bert-classify");
  config.model += ".gguf";
  const std::unique_ptr<Engine> engine = testing::start_engine(config);
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->model().pooling->labels, (std::vector<std::string>{"bad", "fair", "good"}));
}

// A padding token inside a text has the place of padding, and those behind it count on without it.
TEST(PooledEngine, PaddingInsideATextCountsForNoPosition) {
  const Json expected = golden("xlm-roberta-padding");
  expect_close(run(config_of("xlm-roberta-cls"), requests_of(expected)), expected["vectors"]);
}

TEST(PooledEngine, AClassifiersHeadOfAnotherKindIsRefused) {
  const testing::TemporaryFolder copy;
  std::filesystem::copy(folder("modernbert-rerank"), copy.path());
  Json json = Json::parse(std::ifstream(copy.at("config.json")));
  Config config = config_of("modernbert-rerank");
  config.model = copy.path();
  for (const char* key : {"classifier_pooling", "classifier_activation"}) {
    Json edited = json;
    edited[key] = "max";
    std::ofstream(copy.at("config.json")) << edited.dump();
    const auto engine = create_engine(config);
    ASSERT_FALSE(engine) << key;
    EXPECT_NE(engine.error().message.find(key), std::string::npos) << engine.error().message;
  }
}

// A golden GGUF file with the first `from` behind `key` spelled as `to`, of the same length.
Config edited_gguf(const testing::TemporaryFolder& folder,
                   const std::string& name,
                   const std::string& key,
                   const std::string& from,
                   const std::string& to) {
  Config config = config_of(name);
  std::ifstream file(config.model + ".gguf", std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const size_t place = bytes.find(from, bytes.find(key));
  if (place == std::string::npos || from.size() != to.size()) {
    ADD_FAILURE() << name << " has no " << key;
    return config;
  }
  bytes.replace(place, from.size(), to);
  config.model = folder.at(name + ".gguf");
  std::ofstream(config.model, std::ios::binary) << bytes;
  return config;
}

// The first files of bge-m3 do not say that texts begin with <s> and end with </s>.
TEST(GgufEncoders, TextsOfXlmRobertaAreEnclosedWhereNoKeySaysIt) {
  const testing::TemporaryFolder folder;
  for (const std::string key : {"tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_eos_token"}) {
    std::string unknown = key;
    unknown.back() = 'x';
    const Config config = edited_gguf(folder, "xlm-roberta-cls", key, key, unknown);
    const std::unique_ptr<Engine> engine = testing::start_engine(config);
    ASSERT_NE(engine, nullptr);
    EXPECT_EQ(engine->tokenizer().prefix_tokens(), (std::vector<TokenId>{0})) << key;
    EXPECT_EQ(engine->tokenizer().suffix_tokens(), (std::vector<TokenId>{2})) << key;
  }
}

// llama.cpp reads these two keys, of which accents follow the other; older files have neither.
TEST(GgufEncoders, KeysSayWhetherLettersAndAccentsCount) {
  const auto ids_of = [](const std::optional<bool>& lowercases,
                         const std::optional<bool>& strips_accents,
                         const std::string& text) {
    testing::RespelledGguf file("../embeddings/bert-mean");
    if (lowercases) file.set_bool("tokenizer.ggml.normalizer.lowercase", *lowercases);
    if (strips_accents) file.set_bool("tokenizer.ggml.normalizer.strip_accents", *strips_accents);
    std::vector<TokenId> ids;
    const auto checkpoint = Checkpoint::open(file.path());
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
    const auto content = (*checkpoint)->text();
    EXPECT_TRUE(content.has_value()) << content.error().message;
    EXPECT_TRUE(content->tokenizer->encode(text, SpecialText::kText, ids));
    return ids;
  };

  struct Case {
    std::optional<bool> lowercases;
    std::optional<bool> strips_accents;
    bool same_letters;
    bool same_accents;
  };

  for (const Case& c : {Case{{}, {}, true, true},
                        Case{true, {}, true, true},
                        Case{false, {}, false, false},
                        Case{true, false, true, false},
                        Case{false, true, false, true}}) {
    const auto lower = ids_of(c.lowercases, c.strips_accents, "word");
    EXPECT_EQ(ids_of(c.lowercases, c.strips_accents, "Word") == lower, c.same_letters);
    EXPECT_EQ(ids_of(c.lowercases, c.strips_accents, "w\u00f6rd") == lower, c.same_accents);
  }
}

TEST(GgufDecoders, ALayerForOtherScoresThanYesAndNoIsRefused) {
  const testing::TemporaryFolder folder;
  const auto engine =
      create_engine(edited_gguf(folder, "qwen3-rerank", "classifier.output_labels", "yes", "yea"));
  ASSERT_FALSE(engine);
  EXPECT_NE(engine.error().message.find("cls.output.weight"), std::string::npos)
      << engine.error().message;
}

TEST(GgufDecoders, TextsWithoutAnEndOfTheirOwnAreWarnedOf) {
  Config config = config_of("qwen3-rerank");
  config.model += ".gguf";
  config.convert = "embed";
  config.pooling = "last";
  const auto warned = [](const Config& asked) {
    const std::string log = logged_by([&] { testing::start_engine(asked); });
    return log.find("texts_have_no_end") != std::string::npos;
  };
  EXPECT_TRUE(warned(config));
  config.pooling = "mean";
  EXPECT_FALSE(warned(config));
  EXPECT_FALSE(warned(config_of("qwen3-embedding")));
}

// Without BERT's pooler its layer for scores is of no use, however many kinds of texts there are.
TEST(PooledEngine, ScoresOfBertNeedItsPooler) {
  const testing::TemporaryFolder copy;
  std::filesystem::copy(folder("bert-rerank"), copy.path());
  std::ifstream file(copy.at("model.safetensors"), std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const std::string pooler = "bert.pooler.dense.weight";
  ASSERT_NE(bytes.find(pooler), std::string::npos);
  bytes.replace(bytes.find(pooler), pooler.size(), "bert.no.pooler.attn.bias");  // not read
  std::filesystem::remove(copy.at("model.safetensors"));
  std::ofstream(copy.at("model.safetensors"), std::ios::binary) << bytes;
  Config config = config_of("bert-rerank");
  config.model = copy.path();
  const auto engine = create_engine(config);
  ASSERT_FALSE(engine);
  const std::string& error = engine.error().message;
  EXPECT_NE(error.find("pooler.dense"), std::string::npos) << error;
  config.convert = "embed";
  const std::unique_ptr<Engine> embedding = testing::start_engine(config);
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->model().pooling->width, 32);
}

class GgufTokenizers : public ::testing::TestWithParam<const char*> {};

// Texts become the ids that the directory's tokenizer gives, and stand between the same tokens.
TEST_P(GgufTokenizers, TextsBecomeTheSameIds) {
  const std::string name = GetParam();
  const Json expected = golden(name);
  Config config = config_of(name);
  config.model += ".gguf";
  const std::unique_ptr<Engine> engine = testing::start_engine(config);
  ASSERT_NE(engine, nullptr);
  const Tokenizer& tokenizer = engine->tokenizer();
  const bool are_pairs = expected.contains("pairs");
  const Json& texts = expected[are_pairs ? "pairs" : "texts"];
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<TokenId> ids = tokenizer.prefix_tokens();
    const auto append = [&ids](const std::vector<TokenId>& more) {
      ids.insert(ids.end(), more.begin(), more.end());
    };
    if (are_pairs) {
      tokenizer.encode(texts[i][0].get<std::string>(), SpecialText::kParse, ids);
      append(tokenizer.between_tokens());
      tokenizer.encode(texts[i][1].get<std::string>(), SpecialText::kParse, ids);
    } else {
      tokenizer.encode(texts[i].get<std::string>(), SpecialText::kParse, ids);
    }
    append(tokenizer.suffix_tokens());
    const auto wanted = expected["ids"][i].get<std::vector<TokenId>>();
    if (ids.size() > wanted.size()) continue;  // a text that the golden has cut
    EXPECT_EQ(ids, wanted) << texts[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         GgufTokenizers,
                         ::testing::Values("bert-mean",
                                           "bert-rerank",
                                           "xlm-roberta-cls",
                                           "modernbert-bpe"));

TEST(PooledEngine, TheLogitsOfYesAndNoAreAScore) {
  const Json expected = golden("qwen3-rerank");
  Config config = config_of("qwen3-rerank");
  config.convert = "classify";
  expect_close(run(config, requests_of(expected)), expected["vectors"]);
  PoolingParams raw;
  raw.activates = false;
  expect_close(run(config, requests_of(expected, raw)), expected["logits"]);
}

// Its conversation is used where files, or whoever starts the server, say that the model is it.
TEST(PooledEngine, Qwen3RerankerIsKnownByMoreThanItsFamily) {
  Config config = config_of("qwen3-rerank");
  config.convert = "classify";
  const auto is_known = [&config] {
    const std::unique_ptr<Engine> engine = testing::start_engine(config);
    return engine != nullptr && engine->model().pooling->is_qwen3_reranker;
  };
  EXPECT_FALSE(is_known());
  config.hf_overrides = R"({"is_original_qwen3_reranker":true})";
  EXPECT_TRUE(is_known());
  config.hf_overrides = R"({"is_original_qwen3_reranker":true,"classifier_from_token":["0","1"]})";
  EXPECT_FALSE(is_known());
  config.hf_overrides.clear();
  const testing::TemporaryFolder copy;
  config.model = copy.at("models--Qwen--Qwen3-Reranker-0.6B");
  std::filesystem::copy(folder("qwen3-rerank"), config.model);
  EXPECT_TRUE(is_known());
  config = config_of("qwen3-rerank");
  config.model += ".gguf";
  EXPECT_TRUE(is_known());
  config.hf_overrides = R"({"default_prompt_name":"sea"})";
  const auto refused = create_engine(config);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("the model has none"), std::string::npos)
      << refused.error().message;
}

TEST(PooledEngine, ThePromptOfACrossEncoderIsAnInstruction) {
  const std::unique_ptr<Engine> engine = testing::start_engine(config_of("qwen3-judge"));
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->model().pooling->default_prompt, "Is it of the sea?");
  EXPECT_FALSE(engine->model().pooling->is_qwen3_reranker);
}

// jina-embeddings-v3 has XLM-R's names, but other positions and an adapter for each task.
TEST(PooledEngine, JinasThirdModelIsRefusedByWhatItHas) {
  const testing::TemporaryFolder copy;
  std::filesystem::copy(folder("xlm-roberta-cls"), copy.path());
  Json json = Json::parse(std::ifstream(copy.at("config.json")));
  json["position_embedding_type"] = "rotary";
  json["lora_adaptations"] = {"retrieval.query", "retrieval.passage"};
  std::ofstream(copy.at("config.json")) << json.dump();
  Config config = config_of("xlm-roberta-cls");
  config.model = copy.path();
  const auto engine = create_engine(config);
  ASSERT_FALSE(engine);
  for (const char* part : {"position_embedding_type", "\"rotary\"", "jina-embeddings-v3"}) {
    EXPECT_NE(engine.error().message.find(part), std::string::npos) << engine.error().message;
  }
}

// transformers masks what follows a token where config.json says so.
TEST(PooledEngine, AnEncoderThatSeesNothingBehindATokenIsRefused) {
  for (const char* name : {"bert-mean", "xlm-roberta-cls"}) {
    const testing::TemporaryFolder copy;
    std::filesystem::copy(folder(name), copy.path(), std::filesystem::copy_options::recursive);
    Json json = Json::parse(std::ifstream(copy.at("config.json")));
    json["is_decoder"] = true;
    std::ofstream(copy.at("config.json")) << json.dump();
    Config config = config_of(name);
    config.model = copy.path();
    const auto engine = create_engine(config);
    ASSERT_FALSE(engine) << name;
    EXPECT_NE(engine.error().message.find("is_decoder"), std::string::npos)
        << engine.error().message;
  }
}

// Layers that give scores make a classifier, and nothing may follow them.
TEST(PooledEngine, ModulesOfScoresMakeAClassifier) {
  const testing::TemporaryFolder copy;
  std::filesystem::copy(
      folder("modernbert-modules"), copy.path(), std::filesystem::copy_options::recursive);
  Config config = config_of("modernbert-modules");
  config.model = copy.path();
  {
    const std::unique_ptr<Engine> engine = testing::start_engine(config);
    ASSERT_NE(engine, nullptr);
    EXPECT_TRUE(engine->model().pooling->is_classifier);
    EXPECT_EQ(engine->model().pooling->function, ScoreFunction::kIdentity);
  }
  config.convert = "embed";
  const auto vectors = create_engine(config);
  ASSERT_FALSE(vectors);
  EXPECT_NE(vectors.error().message.find("--convert classify"), std::string::npos);
  config.convert = "auto";
  Json modules = Json::parse(std::ifstream(copy.at("modules.json")));
  modules.push_back({{"type", "a.Normalize"}, {"path", "5_Normalize"}});
  std::ofstream(copy.at("modules.json")) << modules.dump();
  const auto behind = create_engine(config);
  ASSERT_FALSE(behind);
  EXPECT_NE(behind.error().message.find("behind the scores"), std::string::npos);
}

// modules.json may name the tokens of a score. An id that no token can have is no other token's.
TEST(PooledEngine, TokensOfAScoreAreTokens) {
  const testing::TemporaryFolder copy;
  std::filesystem::copy(folder("qwen3-mean"), copy.path());
  std::filesystem::create_directory(copy.at("1_LogitScore"));
  std::ofstream(copy.at("modules.json"))
      << R"([{"type":"a.Transformer","path":""},{"type":"a.LogitScore","path":"1_LogitScore"}])";
  const auto start = [&copy](const std::string& ids) {
    std::ofstream(copy.at("1_LogitScore/config.json")) << ids;
    Config config = config_of("qwen3-mean");
    config.model = copy.path();
    return create_engine(config);
  };
  const auto made = start(R"({"true_token_id":7,"false_token_id":9})");
  ASSERT_TRUE(made.has_value()) << made.error().message;
  EXPECT_EQ((*made)->model().pooling->label_tokens, (std::vector<TokenId>{9, 7}));
  for (const char* id : {"4294967303", "-1", "1.5", "\"7\"", "9223372036854775815"}) {
    const auto refused = start(R"({"false_token_id":9,"true_token_id":)" + std::string(id) + "}");
    ASSERT_FALSE(refused.has_value()) << id;
    EXPECT_NE(refused.error().message.find("true_token_id"), std::string::npos)
        << refused.error().message;
  }
}

// One text alone, then beside the others, in chunks, over threads, instruction sets and hits. An
// encoder's steps hold its longest text, even where steps of 7 tokens are asked for.
void expect_same_vectors(Config config, const std::vector<ValidRequest>& requests) {
  std::vector<std::vector<float>> alone;
  {
    Config single = config;
    single.threads = 1;
    single.isa = "scalar";
    single.enable_prefix_caching = false;
    const std::unique_ptr<Engine> engine = testing::start_engine(single);
    ASSERT_NE(engine, nullptr);
    for (const ValidRequest& request : requests) {
      alone.push_back(testing::run_together(*engine, {request}).front().pooled);
    }
  }
  for (const int32_t threads : {1, 2}) {
    for (const int32_t tokens : {7, 512}) {
      config.threads = threads;
      config.max_num_batched_tokens = tokens;
      config.debug_preempt_every = tokens == 7 ? 3 : 0;
      const std::unique_ptr<Engine> engine = testing::start_engine(config);
      ASSERT_NE(engine, nullptr);
      for (int round = 0; round < 2; ++round) {  // the second finds what the first has computed
        const std::vector<Collected> answers = testing::run_together(*engine, requests);
        for (size_t i = 0; i < answers.size(); ++i) {
          EXPECT_EQ(answers[i].pooled, alone[i])
              << "text " << i << ", " << threads << " threads, steps of " << tokens << ", round "
              << round;
        }
      }
    }
  }
}

class SameVectors : public ::testing::TestWithParam<const char*> {};

TEST_P(SameVectors, WhateverRunsBesideThem) {
  expect_same_vectors(config_of(GetParam()), requests_of(golden(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Models,
                         SameVectors,
                         ::testing::Values("qwen3-embedding",
                                           "qwen3-mean",
                                           "bert-mean",
                                           "nomic-bert-mean",
                                           "gemma-dense",
                                           "modernbert-mean",
                                           "nomic-moe-mean",
                                           "jina-bert-mean",
                                           "qwen3-scores",
                                           "distilbert-mean",
                                           "distilbert-classify",
                                           "mpnet-mean"));

// What 1_Pooling may say beside cls, mean and lasttoken, in the old spelling for the encoder and in
// the new one for the decoder, whose rows come in chunks.
class OtherPoolings : public ::testing::TestWithParam<const char*> {
 protected:
  // Returns the model of a golden that pools in this way.
  Config repooled(const std::string& name) {
    Config config = config_of(name);
    std::filesystem::copy(
        config.model, copy_.at(name), std::filesystem::copy_options::recursive);
    config.model = copy_.at(name);
    Json json = {{"word_embedding_dimension", 32}};
    if (name == "bert-mean") {
      const std::string type = GetParam();
      json["pooling_mode_" + type + (type.ends_with("_tokens") ? "" : "_tokens")] = true;
      json["pooling_mode_mean_tokens"] = false;
    } else {
      json["pooling_mode"] = GetParam();
    }
    std::ofstream(config.model + "/1_Pooling/config.json") << json.dump();
    return config;
  }

 private:
  const testing::TemporaryFolder copy_;
};

TEST_P(OtherPoolings, AreThoseOfSentenceTransformersWhateverRunsBeside) {
  const Json expected = golden("poolings");
  for (const char* name : {"bert-mean", "qwen3-mean"}) {
    SCOPED_TRACE(name);
    const Config config = repooled(name);
    const std::vector<ValidRequest> requests = requests_of(golden(name));
    expect_close(run(config, requests), expected[name][GetParam()]);
    expect_same_vectors(config, requests);
  }
}

INSTANTIATE_TEST_SUITE_P(Types,
                         OtherPoolings,
                         ::testing::Values("max", "mean_sqrt_len_tokens", "weightedmean"));

TEST(PooledEngine, LastTokensFindCachedPrefixesAndMeansDoNot) {
  const auto cached = [](const char* name) {
    Config config = config_of(name);
    const std::unique_ptr<Engine> engine = testing::start_engine(config);
    const std::vector<TokenId> ids(100, 5);
    testing::run_together(*engine, {request_of(ids)});
    return testing::run_together(*engine, {request_of(ids)}).front().num_cached_tokens;
  };
  EXPECT_GE(cached("qwen3-embedding"), 96);
  EXPECT_EQ(cached("qwen3-mean"), 0);
}

TEST(PooledEngine, FingerprintsDifferWhereVectorsDo) {
  const auto fingerprint = [](const Config& config) {
    const std::unique_ptr<Engine> engine = testing::start_engine(config);
    return engine == nullptr ? std::string() : engine->model().system_fingerprint;
  };
  Config config = config_of("qwen3-embedding");
  const std::string as_files_say = fingerprint(config);
  EXPECT_EQ(fingerprint(config), as_files_say);
  config.pooling = "mean";
  const std::string mean = fingerprint(config);
  EXPECT_NE(mean, as_files_say);
  config.pooling = "auto";
  config.runner = "generate";
  EXPECT_NE(fingerprint(config), as_files_say);
  EXPECT_NE(fingerprint(config), mean);
}

TEST(PooledEngine, CutsBeforeItNormalizes) {
  const Json texts = golden("qwen3-embedding");
  PoolingParams params;
  params.dimensions = 8;
  const auto vectors = run(config_of("qwen3-embedding"), requests_of(texts, params));
  for (size_t i = 0; i < vectors.size(); ++i) {
    const auto whole = texts["vectors"][i].get<std::vector<double>>();
    double square = 0;
    for (size_t k = 0; k < 8; ++k) square += whole[k] * whole[k];
    ASSERT_EQ(vectors[i].size(), 8U);
    for (size_t k = 0; k < 8; ++k) {
      EXPECT_NEAR(vectors[i][k], whole[k] / std::sqrt(square), 2e-5);
    }
  }
}

TEST(PooledEngine, EveryTokenHasAVectorAndTheLastOneIsTheTexts) {
  PoolingParams each;
  each.every_token = true;
  const std::vector<TokenId> ids = {5, 9, 33, 2, 71, 8};
  const auto vectors =
      run(config_of("qwen3-embedding"), {request_of(ids, each), request_of(ids)});
  ASSERT_EQ(vectors[0].size(), ids.size() * 32);
  EXPECT_EQ(std::vector<float>(vectors[0].end() - 32, vectors[0].end()), vectors[1]);
}

TEST(PooledEngine, AModelOfVectorsGeneratesNothingAndOneOfTokensMakesNone) {
  const std::unique_ptr<Engine> engine = testing::start_engine(config_of("qwen3-embedding"));
  ASSERT_NE(engine, nullptr);
  ASSERT_TRUE(engine->model().pooling);
  EXPECT_EQ(engine->model().pooling->width, 32);
  EXPECT_EQ(engine->model().pooling->max_tokens, 512);
  testing::CollectingSink sink;
  ValidRequest generates = request_of({1, 2});
  generates.pooling.reset();
  EXPECT_FALSE(engine->submit(generates, sink));
  Config tokens = config_of("qwen3-embedding");
  tokens.runner = "generate";
  const std::unique_ptr<Engine> other = testing::start_engine(tokens);
  ASSERT_NE(other, nullptr);
  EXPECT_FALSE(other->model().pooling);
  EXPECT_FALSE(other->submit(request_of({1, 2}), sink));
}

}  // namespace
}  // namespace sluice
