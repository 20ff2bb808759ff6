// SPDX-License-Identifier: Apache-2.0
#include "engine/spec/spec_config.h"

#include <gtest/gtest.h>

#include <string>

namespace sluice {
namespace {

TEST(SpecConfig, NothingGivenDraftsOnlyPredictions) {
  const auto config = parse_spec_config("");
  ASSERT_TRUE(config.has_value());
  EXPECT_FALSE(config->has_method());
}

TEST(SpecConfig, KeysOfVllmMeanWhatTheyMeanThere) {
  const auto ngram = parse_spec_config(
      R"({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4})");
  ASSERT_TRUE(ngram.has_value()) << ngram.error().message;
  EXPECT_TRUE(ngram->ngram && !ngram->suffix);
  EXPECT_EQ(ngram->num_speculative_tokens, 5);
  EXPECT_EQ(ngram->prompt_lookup_max, 4);
  EXPECT_EQ(ngram->prompt_lookup_min, 4);  // a missing one takes the other's value

  const auto suffix = parse_spec_config(
      R"({"method": "suffix", "suffix_decoding_max_tree_depth": 32,
          "suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_spec_factor": 2,
          "suffix_decoding_min_token_prob": 0.25, "num_speculative_tokens": null})");
  ASSERT_TRUE(suffix.has_value()) << suffix.error().message;
  EXPECT_TRUE(suffix->suffix && !suffix->ngram);
  EXPECT_EQ(suffix->num_speculative_tokens, 32);  // the depth of the tree
  EXPECT_EQ(suffix->suffix_max_cached_requests, 0);
  EXPECT_EQ(suffix->suffix_max_spec_factor, 2);
  EXPECT_EQ(suffix->suffix_min_token_prob, 0.25);

  const auto model = parse_spec_config(R"({"model": "[ngram]", "prompt_lookup_min": 2})");
  ASSERT_TRUE(model.has_value()) << model.error().message;
  EXPECT_TRUE(model->ngram);
  EXPECT_EQ(model->prompt_lookup_max, 2);
}

TEST(SpecConfig, AModelDraftsByItsMethodOrByWhatItsPathSays) {
  using Kind = SpecConfig::ModelKind;
  const auto draft = parse_spec_config(
      R"({"method": "draft_model", "model": "a/draft", "num_speculative_tokens": 5,
          "max_model_len": 512, "kv_cache_dtype": "int8", "draft_tensor_parallel_size": 1})");
  ASSERT_TRUE(draft.has_value()) << draft.error().message;
  EXPECT_EQ(draft->model_kind, Kind::kDraftModel);
  EXPECT_EQ(draft->model, "a/draft");
  EXPECT_EQ(draft->draft_max_model_len, 512);
  EXPECT_EQ(draft->draft_kv_cache_dtype, "int8");
  EXPECT_EQ(draft->num_speculative_tokens, 5);

  const auto head = parse_spec_config(R"({"model": "an/eagle3-head"})");
  ASSERT_TRUE(head.has_value()) << head.error().message;
  EXPECT_EQ(head->model_kind, Kind::kEagle3);
  EXPECT_EQ(head->num_speculative_tokens, 3);
  EXPECT_EQ(parse_spec_config(R"({"model": "a/draft"})")->model_kind, Kind::kDraftModel);
  EXPECT_EQ(parse_spec_config(R"({"model": "an/EAGLE3-of-8B"})")->model_kind, Kind::kEagle3);
  EXPECT_EQ(parse_spec_config(R"({"model": "an/EAGLE-of-8B"})")->model_kind, Kind::kEagle);
  EXPECT_EQ(parse_spec_config(R"({"method": "eagle", "model": "x"})")->model_kind, Kind::kEagle);
  // A module in the target's own folder needs no path.
  for (const char* method : {"mtp", "deepseek_mtp", "mimo_mtp"}) {
    const auto own = parse_spec_config(R"({"method": ")" + std::string(method) + "\"}");
    ASSERT_TRUE(own.has_value()) << own.error().message;
    EXPECT_EQ(own->model_kind, Kind::kMtp);
    EXPECT_EQ(own->model, "");
    EXPECT_EQ(own->num_speculative_tokens, 3);
  }
  // A name may contain both kinds, and folder names, chosen by others, either.
  const auto kind_of = [](const std::string& path) {
    return parse_spec_config(R"({"model": ")" + path + "\"}")->model_kind;
  };
  EXPECT_EQ(kind_of("/heads/qwen3-eagle3-eagle-trained"), Kind::kEagle3);
  EXPECT_EQ(kind_of("/heads/eagle-3/EAGLE3-LLaMA3.1/"), Kind::kEagle3);
  EXPECT_EQ(kind_of("/home/eagle-eye/draft"), Kind::kDraftModel);
  EXPECT_EQ(kind_of("/mnt/eagle3/draft.gguf"), Kind::kDraftModel);
  EXPECT_EQ(kind_of("EAGLE-LLaMA3//"), Kind::kEagle);

  const auto both = parse_spec_config(R"({"method": "ngram,draft_model", "model": "a/draft"})");
  ASSERT_TRUE(both.has_value()) << both.error().message;
  EXPECT_TRUE(both->ngram && both->has_model());
}

TEST(SpecConfig, SeveralMethodsAndFixedDepth) {
  const auto config = parse_spec_config(R"({"method": "suffix,ngram", "adaptive": false})");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_TRUE(config->ngram && config->suffix && config->is_fixed);
}

TEST(SpecConfig, BoundByRunningRequestsKeepsItsValueOverAGap) {
  const auto config = parse_spec_config(
      R"({"method": "ngram", "num_speculative_tokens": 8,
          "num_speculative_tokens_per_batch_size": [[1, 4, 8], [8, 16, 2], [17, 64, 0]]})");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->max_tokens(1), 8);
  EXPECT_EQ(config->max_tokens(6), 8);
  EXPECT_EQ(config->max_tokens(8), 2);
  EXPECT_EQ(config->max_tokens(64), 0);
  EXPECT_EQ(config->max_tokens(1000), 0);
}

TEST(SpecConfig, KeysThatChangeNothingAreNamed) {
  const auto config = parse_spec_config(
      R"({"method": "ngram", "rejection_sample_method": "block", "draft_sample_method": "greedy"})");
  ASSERT_TRUE(config.has_value()) << config.error().message;
  EXPECT_EQ(config->without_meaning,
            (std::vector<std::string>{"rejection_sample_method", "draft_sample_method"}));
}

TEST(SpecConfig, WhatIsNotOfferedIsRefusedByName) {
  const struct {
    const char* json;
    const char* named;
  } kCases[] = {
      {"ngram", "JSON object"},
      {"[]", "JSON object"},
      {"{}", "needs a method"},
      {R"({"num_speculative_tokens": 4})", "needs a method"},
      {R"({"method": 3})", "method"},
      {R"({"method": ""})", "is not known"},
      {R"({"method": "ngram,"})", "is not known"},
      {R"({"method": "lookahead"})", "\"lookahead\" is not known"},
      {R"({"method": "medusa", "model": "x"})", "\"medusa\" is not supported"},
      {R"({"method": "eagle"})", "needs a model"},
      {R"({"method": "draft_model"})", "needs a model"},
      {R"({"method": "eagle3", "model": ""})", "model must be a path"},
      {R"({"method": "draft_model,eagle3", "model": "x"})", "one model at most"},
      {R"({"method": "eagle,eagle3", "model": "x"})", "one model at most"},
      {R"({"method": "suffix", "model": "x"})", "model needs method draft_model"},
      {R"({"method": "replay,draft_model", "model": "x"})", "replay"},
      {R"({"method": "draft_model", "model": "x", "draft_tensor_parallel_size": 2})",
       "draft_tensor_parallel_size"},
      {R"({"method": "draft_model", "model": "x", "max_model_len": 0})", "max_model_len"},
      {R"({"method": "medusa", "model": "x"})", "\"medusa\" is not supported"},
      {R"({"method": "mtp,eagle3", "model": "x"})", "one model at most"},
      {R"({"method": "ngram", "quantization": "fp8"})", "\"quantization\""},
      {R"({"method": "ngram", "tree": 1})", "\"tree\""},
      {R"({"method": "ngram", "num_speculative_tokens": 0})", "num_speculative_tokens"},
      {R"({"method": "ngram", "num_speculative_tokens": 65})", "num_speculative_tokens"},
      {R"({"method": "ngram", "num_speculative_tokens": 4.5})", "num_speculative_tokens"},
      {R"({"method": "ngram", "num_speculative_tokens": 18446744073709551615})",
       "num_speculative_tokens"},
      {R"({"method": "ngram", "prompt_lookup_min": 5, "prompt_lookup_max": 3})",
       "prompt_lookup_min"},
      {R"({"method": "suffix", "suffix_decoding_min_token_prob": 1.5})",
       "suffix_decoding_min_token_prob"},
      {R"({"method": "suffix", "suffix_decoding_max_tree_depth": 1})",
       "suffix_decoding_max_tree_depth"},
      {R"({"method": "ngram", "adaptive": 1})", "adaptive"},
      {R"({"method": "replay,ngram"})", "replay"},
      {R"({"method": "replay", "replay_seed": -1})", "replay_seed"},
      {R"({"method": "ngram", "num_speculative_tokens_per_batch_size": [[2, 4, 1]]})",
       "begins with one request"},
      {R"({"method": "ngram", "num_speculative_tokens_per_batch_size": [[1, 4, 1], [4, 8, 0]]})",
       "num_speculative_tokens_per_batch_size"},
  };

  for (const auto& one : kCases) {
    const auto config = parse_spec_config(one.json);
    ASSERT_FALSE(config.has_value()) << one.json;
    EXPECT_NE(config.error().message.find(one.named), std::string::npos)
        << one.json << ": " << config.error().message;
    EXPECT_TRUE(config.error().message.starts_with("speculative-config: "));
  }
}

}  // namespace
}  // namespace sluice
