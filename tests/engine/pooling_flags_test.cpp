// SPDX-License-Identifier: Apache-2.0
// What keys of config.json and --hf-overrides change in vectors and scores of decoders.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "tests/engine/pooled_answers.h"
#include "tests/support/same_bits.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

using testing::pooled::Json;
using testing::pooled::config_of;
using testing::pooled::edited;
using testing::pooled::expect_close;
using testing::pooled::golden;
using testing::pooled::request_of;
using testing::pooled::requests_of;
using testing::pooled::run;

// Classes for scores look past padding at the end of a text, and Gemma's have one where no key says
// it. A class without has the state of the last token, whatever it is.
TEST(ScoringDecoders, PaddingThatEndsATextIsNotPooled) {
  struct Case {
    const char* name;
    Json edits;
    TokenId padding;
    bool is_cut;
  };

  const Case cases[] = {{"gemma2-classify", Json::object(), 1, true},
                        {"gemma2-classify", {{"pad_token_id", nullptr}}, 0, true},
                        {"gemma2-classify", {{"pad_token_id", 7}}, 1, false},
                        {"llama-classify", Json::object(), 0, false}};
  for (const auto& [name, edits, padding, is_cut] : cases) {
    const testing::TemporaryFolder copy;
    const Config config = edited(copy, name, edits);
    const std::vector<TokenId> ids = {5, 9, 33};
    std::vector<TokenId> padded = ids;
    padded.insert(padded.end(), 2, padding);
    const auto scores = run(config, {request_of(ids), request_of(padded)});
    EXPECT_EQ(scores[0] == scores[1], is_cut) << name << " " << edits;
    if (!is_cut) continue;
    EXPECT_EQ(run(config, {request_of({padding, padding})})[0],
              run(config, {request_of({padding})})[0])
        << "a text of padding alone has the state of its first token";
  }
}

TEST(ScoringDecoders, LabelsAreTheFilesAndAnotherClassIsRefused) {
  const std::unique_ptr<Engine> engine = testing::start_engine(config_of("llama-classify"));
  ASSERT_NE(engine, nullptr);
  const PoolingInfo& info = *engine->model().pooling;
  EXPECT_TRUE(info.is_classifier);
  EXPECT_EQ(info.labels, (std::vector<std::string>{"bad", "fair", "good"}));
  const testing::TemporaryFolder copy;
  const auto refused =
      create_engine(edited(copy, "qwen3-scores", {{"architectures", {"Qwen3ForCausalLM"}}}));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("score.weight"), std::string::npos)
      << refused.error().message;
}

// Code beside the weights may let tokens see both ways, as that of gte-Qwen2 does.
TEST(CausalFlags, RemoteClassesOfDecodersNeedOne) {
  const testing::TemporaryFolder copy;
  const Json code = {{"AutoModel", "modeling_qwen.Qwen2Model"}};
  Config config = edited(copy, "qwen2-both-ways", {{"is_causal", nullptr}, {"auto_map", code}});
  const auto refused = create_engine(config);
  ASSERT_FALSE(refused);
  for (const char* part :
       {"auto_map.AutoModel", "modeling_qwen.Qwen2Model", "\"is_causal\": false"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  const Json expected = golden("qwen2-both-ways");
  config.hf_overrides = R"({"is_causal": false})";
  expect_close(run(config, requests_of(expected)), expected["vectors"]);
  config.hf_overrides = R"({"is_causal": true})";
  const std::vector<float> causal = run(config, requests_of(expected)).front();
  EXPECT_GT(std::abs(causal[0] - expected["vectors"][0][0].get<float>()), 1e-3);
}

TEST(CausalFlags, OtherValuesAndFamiliesAreRefused) {
  for (const auto& [name, flag, part] :
       {std::tuple("qwen2-both-ways", R"({"is_causal": 1})", "is_causal must be true or false"),
        std::tuple("bert-mean", R"({"is_causal": true})", "found true, expected false"),
        std::tuple("bert-mean", "[]", "must be a JSON object")}) {
    Config config = config_of(name);
    config.hf_overrides = flag;
    const auto refused = create_engine(config);
    ASSERT_FALSE(refused) << name << flag;
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
}

// The layer for scores of these encoders follows another, which the model has only as its class.
TEST(Encoders, ScoresThatTheirClassDoesNotHaveAreRefused) {
  for (const auto& [name, type] : {std::pair("bert-rerank", "BertModel"),
                                   std::pair("xlm-roberta-rerank", "XLMRobertaModel")}) {
    const testing::TemporaryFolder copy;
    Config config = edited(copy, name, {{"architectures", {type}}});
    config.hf_overrides = R"({"architectures":["AForSequenceClassification"]})";
    const auto refused = create_engine(config);
    ASSERT_FALSE(refused) << name;
    EXPECT_NE(refused.error().message.find("no layer for scores"), std::string::npos)
        << refused.error().message;
  }
}

// Models of vectors and of scores by NVIDIA, which pool as config.json says.
TEST(LlamaBidirec, VectorsAreTheMeansThatConfigAsksFor) {
  const Json expected = golden("llama-bidirec");
  const testing::TemporaryFolder copy;
  const Config config =
      edited(copy, "llama-bidirec", {{"architectures", {"LlamaBidirectionalModel"}}});
  expect_close(run(config, requests_of(expected)), expected["means"]);
  for (const auto& edits : {Json{{"pooling", "weighted_avg"}}, Json{{"temperature", 0.5}}}) {
    const testing::TemporaryFolder other;
    const auto refused = create_engine(edited(other, "llama-bidirec", edits));
    ASSERT_FALSE(refused) << edits;
    EXPECT_NE(refused.error().message.find(edits.begin().key()), std::string::npos)
        << refused.error().message;
  }
}

}  // namespace
}  // namespace sluice
