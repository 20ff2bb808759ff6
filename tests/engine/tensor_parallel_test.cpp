// SPDX-License-Identifier: Apache-2.0
// Whole engines whose layers several ranks share: the bits of one rank, in each architecture,
// weight format and setting; and what cannot be shared is refused before anything is allocated.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/parallel/parallel.h"
#include "engine/run/model_runner.h"
#include "engine/weights/checkpoint.h"
#include "quant/format.h"
#include "tests/support/collecting_sink.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/shared_model.h"

namespace sluice {
namespace {

using testing::Collected;
using testing::TemporaryFolder;
using testing::write_model;

const std::string kData = golden_folder();

Config base_config(const std::string& model) {
  Config config;
  config.model = model;
  config.max_model_len = 256;
  config.kv_cache_memory = int64_t{2} << 20;
  config.threads = 2;
  return config;
}

Config dummy_config(const TemporaryFolder& folder) {
  Config config = base_config(folder.path());
  config.load_format = "dummy";
  return config;
}

// Greedy and sampled requests, with log-probabilities of alternatives and of a prompt.
std::vector<ValidRequest> requests() {
  std::vector<ValidRequest> list = testing::seeded_requests(3);
  for (ValidRequest& request : list) {
    request.sampling.max_tokens = 6;
    request.sampling.num_logprobs = 4;
  }
  list.front().sampling.num_prompt_logprobs = 2;
  return list;
}

std::vector<Collected> run(const Config& config, std::string* fingerprint) {
  const std::unique_ptr<Engine> engine = testing::start_engine(config);
  if (engine == nullptr) return {};
  *fingerprint = engine->model().system_fingerprint;
  return testing::run_together(*engine, requests());
}

// Checks that each number of ranks gives the bits and the key of one.
void expect_same_on(const std::vector<int32_t>& sizes, Config config, const std::string& what) {
  std::string expected_key;
  config.tensor_parallel_size = 1;
  const std::vector<Collected> expected = run(config, &expected_key);
  ASSERT_EQ(expected.size(), requests().size()) << what;
  for (const int32_t size : sizes) {
    config.tensor_parallel_size = size;
    std::string key;
    const std::vector<Collected> actual = run(config, &key);
    testing::expect_same(expected, actual, what + " on " + std::to_string(size) + " ranks");
    EXPECT_EQ(key, expected_key) << what;
    if (::testing::Test::HasFailure()) return;
  }
}

std::string refusal(const Config& config) {
  const int32_t threads = threads_per_rank(config, placement_of(config));
  const auto planned = plan_model(config, {.num_threads = threads});
  if (planned) return "";
  EXPECT_EQ(planned.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(planned.error().param, "tensor-parallel-size");
  return planned.error().message;
}

TEST(TensorParallel, EveryArchitectureGivesTheBitsOfOneRank) {
  // Variants: plain; norms of heads; windows and norms around; biases; fused matrices; soft caps;
  // no KV groups; further norms, gates and rotations.
  const std::pair<const char*, nlohmann::json> models[] = {
      {"llama", {}},
      {"qwen3", {}},
      {"gemma3", {}},
      {"qwen2", {}},
      {"phi3", {{"partial_rotary_factor", 1.0}}},
      {"gemma2", {}},
      {"llama-mqa-bias", {{"num_key_value_heads", 1}}},
      {"granite", {{"num_key_value_heads", 8}}},
      // Norms of all heads as one, with KV heads that ranks share and that they have apart.
      {"olmo2", {}},
      {"minimax-m2", {{"num_key_value_heads", 1}}},
      {"olmoe", {{"num_key_value_heads", 8}}},
      {"cohere2", {}},
      {"arcee", {}},
      {"nemotron", {}},
      {"afmoe", {{"moe_intermediate_size", 256}}},
      {"hunyuan-dense", {}},
      {"ministral3", {}},
      {"bailing-moe", {{"moe_intermediate_size", 256}}},
      // Heads of two sizes, fewer for full layers; K and V of other layers, inputs of layers, and
      // experts beside dense halves.
      {"gemma4", {{"global_head_dim", 64}}},
      {"gemma4-all",
       {{"per_layer_config", nullptr},
        {"global_head_dim", 64},
        {"num_global_key_value_heads", 1},
        {"vocab_size_per_layer_input", 451},
        {"moe_intermediate_size", 256}}},
      // Latents, which every rank has: compressed queries and whole ones, values wider and narrower
      // than keys.
      {"deepseek-v3", {{"v_head_dim", 32}, {"moe_intermediate_size", 288}}},
      {"deepseek-v2-lite", {{"v_head_dim", 64}, {"moe_intermediate_size", 288}}},
      {"glm4-moe-lite", {{"v_head_dim", 32}, {"moe_intermediate_size", 288}}},
      // Experts scaled at their inputs; narrow values and sinks; gates and numbers of heads.
      {"llama4", {{"intermediate_size_mlp", 320}}},
      {"mimo-v2", {{"v_head_dim", 64}, {"moe_intermediate_size", 256}}},
      {"step3p5",
       {{"moe_intermediate_size", 256},
        {"share_expert_dim", 320},
        {"attention_other_setting", {{"num_attention_heads", 16}, {"num_attention_groups", 4}}}}},
      // Choices of keys, which every rank makes.
      // Biases of all matrices and of the output layer; a norm for each of two halves; heads of one
      // key; rows of positions; scores that fall with distance.
      {"phi2", {}},
      {"starcoder2", {{"num_key_value_heads", 1}}},
      {"gpt-neox", {}},
      {"falcon", {{"num_key_value_heads", 1}}},
      {"gpt2", {}},
      {"gptj", {}},
      {"bloom", {}},
      {"apertus", {}},
      // A norm of each head's own; experts weighed one after the other.
      {"command-r-plus", {}},
      {"stablelm-12b", {}},
      {"phimoe", {{"intermediate_size", 256}, {"rope_parameters", nullptr}}},
      {"dbrx", {{"ffn_config", {{"ffn_hidden_size", 256}}}}},
      {"baichuan-13b", {{"num_key_value_heads", 8}, {"max_position_embeddings", nullptr}}},
      {"opt", {{"word_embed_proj_dim", nullptr}}},
      {"glm-moe-dsa", {{"v_head_dim", 32}, {"moe_intermediate_size", 288}, {"index_topk", 20}}},
  };
  for (const auto& [name, changes] : models) {
    const TemporaryFolder folder;
    write_model(folder, std::string("models/") + name, changes);
    expect_same_on({2, 4, 8}, dummy_config(folder), name);
    if (HasFailure()) return;
  }
}

// Delta layers whose ranks share key heads or cross their groups, with separate and with joined
// matrices; short convolutions; Mamba-2, also in layers of one half and beside attention; states in
// chunks and found again.
TEST(TensorParallel, RecurrentLayersGiveTheBitsOfOneRank) {
  const nlohmann::json wide = {{"moe_intermediate_size", 288},
                               {"shared_expert_intermediate_size", 320}};
  const auto heads = [&](int keys, int values, int value_dim) {
    nlohmann::json changes = wide;
    changes["linear_num_key_heads"] = keys;
    changes["linear_num_value_heads"] = values;
    changes["linear_value_head_dim"] = value_dim;
    return changes;
  };
  const auto mamba = [](int count, int head_dim, int groups) {
    return nlohmann::json{{"mamba_n_heads", count},
                          {"mamba_d_head", head_dim},
                          {"mamba_n_groups", groups},
                          {"mamba_expand", count * head_dim / 64},
                          {"shared_intermediate_size", 320}};
  };
  const auto halves = [](int count, int head_dim, int groups) {
    return nlohmann::json{{"mamba_num_heads", count},
                          {"mamba_head_dim", head_dim},
                          {"n_groups", groups},
                          {"expand", count * head_dim / 64},
                          {"moe_intermediate_size", 288},
                          {"moe_shared_expert_intermediate_size", 320}};
  };
  const auto beside = [&](int count, int head_dim, int groups) {
    nlohmann::json changes = mamba(count, head_dim, groups);
    changes["mamba_d_ssm"] = count * head_dim;
    return changes;
  };
  const std::pair<const char*, nlohmann::json> models[] = {
      {"qwen3-5", heads(4, 16, 16)},
      {"qwen3-5-equal-heads", heads(8, 8, 32)},
      {"qwen3-next", heads(6, 12, 32)},
      {"lfm2", {{"hidden_size", 256}, {"block_auto_adjust_ff_dim", false}}},
      {"lfm2-bias", {{"hidden_size", 256}}},
      // Groups that ranks share, whose norms they join; whole groups; sums of unequal shares.
      {"granite-hybrid", mamba(16, 16, 2)},
      {"granite-hybrid-dense", mamba(12, 32, 1)},
      {"bamba", mamba(8, 32, 8)},
      {"bamba-limits", mamba(8, 64, 4)},
      // Three matrices and convolutions, and norms of whole rows of q and k.
      {"olmo-hybrid", heads(4, 8, 32)},
      // Channels that decay apart, beside latents.
      {"kimi-linear",
       {{"linear_num_heads", 8},
        {"linear_head_dim", 32},
        {"v_head_dim", 32},
        {"moe_intermediate_size", 288}}},
      {"nemotron-h", halves(16, 16, 2)},
      {"nemotron-h-moe", halves(8, 32, 8)},
      {"nemotron-h-latent", halves(12, 32, 1)},
      {"falcon-h1", beside(16, 16, 2)},
      {"falcon-h1-norm", beside(8, 32, 4)},
  };
  for (const auto& [name, changes] : models) {
    const TemporaryFolder folder;
    write_model(folder, std::string("models/") + name, changes);
    Config config = dummy_config(folder);
    config.kv_cache_memory = int64_t{16} << 20;
    config.max_num_batched_tokens = 32;
    expect_same_on({2, 4, 8}, config, name);
    if (HasFailure()) return;
  }
}

// Six heads: two ranks have one each, two have two, and each rank needs part of a KV head.
TEST(TensorParallel, UnequalSharesGiveTheBitsOfOneRank) {
  const TemporaryFolder folder;
  write_model(folder, "models/qwen3", {{"num_attention_heads", 6}, {"intermediate_size", 300}});
  expect_same_on({2, 4}, dummy_config(folder), "six heads");
}

TEST(TensorParallel, EveryWeightFormatAndActivationWidthGivesTheBitsOfOneRank) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/formats.gguf";
  std::vector<WeightFormat> formats;
  for (const FormatInfo& info : format_table()) formats.push_back(info.format);
  ASSERT_TRUE(testing::write_random_model(
      kData + "/tiny/tiny-llama.gguf", path, formats, WeightFormat::kQ6_K));
  for (const int32_t bits : {8, 16, 32}) {
    Config config = base_config(path);
    config.activation_bits = bits;
    config.kv_cache_memory = int64_t{16} << 20;
    expect_same_on({2, 4}, config, std::to_string(bits) + " bits");
    if (HasFailure()) return;
  }
}

// Layers of each scheme, with scales that cross the borders of shares or end at them.
TEST(TensorParallel, EverySchemeGivesTheBitsOfOneRank) {
  const nlohmann::json fp8 = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}};
  const nlohmann::json schemes[] = {
      fp8,
      {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}},
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 32}},
      {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", -1}},
      {{"quant_method", "gptq"}, {"bits", 8}, {"group_size", 64}},
  };
  for (const nlohmann::json& scheme : schemes) {
    const TemporaryFolder folder;
    write_model(folder, "models/llama", {{"quantization_config", scheme}});
    expect_same_on({2, 4}, dummy_config(folder), scheme.dump());
    if (HasFailure()) return;
  }
  // FP8 inputs in blocks have a scale per 128 columns.
  const TemporaryFolder folder;
  nlohmann::json blocks = fp8;
  blocks["weight_block_size"] = {128, 128};
  const nlohmann::json wide = {{"quantization_config", blocks},
                               {"num_attention_heads", 8},
                               {"num_key_value_heads", 8},
                               {"head_dim", 32},
                               {"intermediate_size", 512}};
  write_model(folder, "models/llama", wide);
  expect_same_on({2}, dummy_config(folder), "FP8 in blocks");
  Config config = dummy_config(folder);
  config.tensor_parallel_size = 8;
  const std::string message = refusal(config);
  EXPECT_NE(message.find("self_attn.o_proj.weight\": found columns 0 to 32 on a rank"),
            std::string::npos)
      << message;
}

// Variants: normalized or not, with biases, beside shared experts with and without a gate, beside
// dense layers, with a scaled output, and in INT8.
TEST(TensorParallel, ExpertsGiveTheBitsOfOneRank) {
  const nlohmann::json wide = {{"moe_intermediate_size", 288},
                               {"shared_expert_intermediate_size", 320},
                               {"shared_intermediate_size", 320}};
  for (const char* name : {"models/qwen3-moe",
                           "models/mixtral",
                           "models/gpt-oss",
                           "models/qwen2-moe",
                           "models/glm4-moe",
                           "models/granite-moe-shared"}) {
    const TemporaryFolder folder;
    write_model(folder, name, wide);
    expect_same_on({2, 4, 8}, dummy_config(folder), name);
    if (HasFailure()) return;
  }
  const TemporaryFolder int8;
  write_model(int8, "w8a8/engine-experts-w8a8", wide);
  expect_same_on({2, 4, 8}, dummy_config(int8), "INT8 experts");
}

// Rows with one scale over all ranks' columns, and int32 sums.
TEST(TensorParallel, Int8WeightsAndActivationsGiveTheBitsOfOneRank) {
  const TemporaryFolder stored;
  std::filesystem::copy(kData + "/w8a8/engine-w8a8", stored.path());
  std::filesystem::copy_file(kData + "/tokenizer/json/qwen.json",
                             stored.path() + "/tokenizer.json");
  expect_same_on({2}, base_config(stored.path()), "W8A8 checkpoint");
  if (HasFailure()) return;
  const TemporaryFolder random;
  write_model(random, "w8a8/engine-w8a8", {});
  expect_same_on({2, 4, 8}, dummy_config(random), "random W8A8");
}

// Chunks, prefix hits with their copies, preemption, overlap, KV types, instruction sets, threads.
TEST(TensorParallel, SettingsOfAStepChangeNothing) {
  const TemporaryFolder folder;
  write_model(folder, "models/gemma3", {});
  const Config plain = dummy_config(folder);
  std::string key;
  const std::vector<Collected> expected = run(plain, &key);
  std::vector<Config> settings(4, plain);
  settings[0].max_num_batched_tokens = 16;
  settings[0].threads = 5;
  settings[1].overlap = true;
  settings[1].debug_preempt_every = 3;
  settings[2].isa = testing::usable_isas()[testing::usable_isas().size() / 2];
  settings[2].cpu_strict = true;
  settings[3].numa = "distribute";
  settings[3].threads = 1;
  for (size_t i = 0; i < settings.size(); ++i) {
    settings[i].tensor_parallel_size = i % 2 == 0 ? 4 : 2;
    const std::unique_ptr<Engine> engine = testing::start_engine(settings[i]);
    ASSERT_NE(engine, nullptr);
    for (const char* pass : {"cold", "cached"}) {
      testing::expect_same(expected,
                           testing::run_together(*engine, requests()),
                           "setting " + std::to_string(i) + ", " + pass);
      if (HasFatalFailure()) return;
    }
  }
  Config config = plain;
  for (const char* dtype : {"int8", "fp8", "float32"}) {
    config.kv_cache_dtype = dtype;
    expect_same_on({2}, config, dtype);
    if (HasFailure()) return;
  }
}

// The bad weight is in the last matrix: memory behind it is not mapped.
TEST(TensorParallel, ABadWeightIsAnErrorOnAnyNumberOfRanks) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/bad.gguf";
  const std::array formats = {WeightFormat::kQ6_K};
  ASSERT_TRUE(testing::write_random_model(
      kData + "/tiny/tiny-llama.gguf", path, formats, WeightFormat::kQ6_K));
  int64_t end = 0;
  {
    const auto checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint.has_value());
    for (int layer = 0;; ++layer) {
      const std::string name = "blk." + std::to_string(layer) + ".ffn_down.weight";
      const CheckpointTensor* const tensor = (*checkpoint)->find(name);
      if (tensor == nullptr) break;
      end = tensor->data.data() + tensor->data.size() - (*checkpoint)->files()[0].bytes.data();
    }
  }
  {
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(end - 2);
    file.write("\xff\xff", 2);  // a scale in half precision
  }
  for (const int32_t size : {1, 2, 4}) {
    Config config = base_config(path);
    config.tensor_parallel_size = size;
    const auto engine = create_engine(config);
    ASSERT_FALSE(engine.has_value()) << size;
    EXPECT_EQ(engine.error().code, ErrorCode::kDataLoss) << engine.error().message;
  }
}

// A local rank that fails in its `num_calls`-th gather.
class FailingRank final : public Communicator {
 public:
  FailingRank(std::unique_ptr<Communicator> rank, int num_calls)
      : inner_(std::move(rank)), calls_left_(num_calls) {}

  [[nodiscard]] int32_t rank() const override { return inner_->rank(); }

  [[nodiscard]] int32_t size() const override { return inner_->size(); }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    if (--calls_left_ == 0) inner_->fail();
    return inner_->all_gather(part);
  }

  void fail() override { inner_->fail(); }

  [[nodiscard]] bool has_failed() const override { return inner_->has_failed(); }

 private:
  const std::unique_ptr<Communicator> inner_;
  int calls_left_;
};

// Checks requests of an engine with a failing rank: each gets an error, perhaps behind tokens, and
// no other end; new requests are refused.
void expect_failure(const Config& config, int32_t failing, int num_calls) {
  const std::string what =
      "rank " + std::to_string(failing) + ", call " + std::to_string(num_calls);
  const auto with_one_failing = [&](int32_t size) {
    auto ranks = make_local_ranks(size);
    auto& rank = ranks[static_cast<size_t>(failing)];
    rank = std::make_unique<FailingRank>(std::move(rank), num_calls);
    return ranks;
  };
  const auto engine = create_engine(config, {.on_cpu = with_one_failing, .on_devices = {}});
  ASSERT_TRUE(engine.has_value()) << engine.error().message;
  testing::CollectingSink sink;
  std::vector<RequestId> accepted;
  for (ValidRequest request : requests()) {
    request.sampling.max_tokens = 100;
    const auto id = (*engine)->submit(std::move(request), sink);
    if (id) accepted.push_back(*id);
  }
  ASSERT_FALSE(accepted.empty()) << what;
  for (const RequestId id : accepted) {
    const Collected result = sink.wait(id);
    EXPECT_EQ(result.num_ends, 1) << what;
    EXPECT_EQ(result.finish_reason, FinishReason::kAbort) << what;
    EXPECT_EQ(result.error, "A rank that computes a part of the model has failed.") << what;
  }
  const auto refused = (*engine)->submit(requests().front(), sink);
  ASSERT_FALSE(refused.has_value()) << what;
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable) << what;
}

// Failures in a half layer, at the logits of a prompt or of a token, and in a later step, including
// one with a chunk without logits.
TEST(TensorParallel, AFailedRankEndsEveryRequestWithItsReason) {
  for (const char* model : {"models/llama", "w8a8/engine-w8a8", "models/qwen3-moe"}) {
    const TemporaryFolder folder;
    write_model(folder, model, {{"moe_intermediate_size", 288}});
    Config config = dummy_config(folder);
    config.tensor_parallel_size = 4;
    config.max_num_batched_tokens = 32;
    for (const bool overlap : {false, true}) {
      config.overlap = overlap;
      for (const int num_calls : {1, 2, 5, 6, 50}) {
        for (const int32_t rank : {0, 1, 3}) {
          expect_failure(config, rank, num_calls);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// The plan has all ranks' memory: KV heads needed by several ranks are counted repeatedly.
TEST(TensorParallel, ThePlanCountsEveryRank) {
  const TemporaryFolder folder;
  write_model(folder, "models/llama", {});
  Config config = dummy_config(folder);
  const auto one = plan_model(config, {.num_threads = 2});
  config.tensor_parallel_size = 8;
  const auto eight = plan_model(config, {.num_threads = 1});
  ASSERT_TRUE(one.has_value() && eight.has_value());
  EXPECT_EQ(one->plan.kv_groups[0].planes[0].num_heads, 2);
  EXPECT_EQ(eight->plan.kv_groups[0].planes[0].num_heads, 8);
  EXPECT_EQ(eight->plan.weight_bytes, one->plan.weight_bytes);
  EXPECT_EQ(eight->plan.rope_bytes, 8 * one->plan.rope_bytes);
  EXPECT_GT(eight->plan.arena_bytes, one->plan.arena_bytes);
}

// Every rank has all latents, once.
TEST(TensorParallel, ThePlanCountsLatentsOnceForEachRank) {
  const TemporaryFolder folder;
  write_model(folder,
              "models/deepseek-v3",
              {{"v_head_dim", 32}, {"moe_intermediate_size", 288}, {"kv_lora_rank", 64}});
  Config config = dummy_config(folder);
  config.tensor_parallel_size = 4;
  const auto four = plan_model(config, {.num_threads = 1});
  ASSERT_TRUE(four.has_value()) << four.error().message;
  const std::vector<KvPlane>& planes = four->plan.kv_groups[0].planes;
  ASSERT_EQ(planes.size(), 2U);
  EXPECT_EQ(planes[0].num_heads, 4);
  EXPECT_EQ(planes[0].width, 64);
  EXPECT_EQ(planes[1].num_heads, 4);
  EXPECT_EQ(planes[1].width, 8);
}

TEST(TensorParallel, WhatCannotBeSharedIsRefusedByName) {
  const struct {
    const char* model;
    nlohmann::json changes;
    int32_t size;
    const char* expected;
  } cases[] = {
      {"llama", {}, 3, "expected 1, 2, 4 or 8"},
      {"llama", {{"num_attention_heads", 6}, {"head_dim", 64}}, 4, "found 6 attention heads of 64"},
      {"llama", {{"num_attention_heads", 4}}, 8, "found 4 attention heads of 32"},
      {"llama", {{"num_attention_heads", 12}, {"num_key_value_heads", 3}}, 2, "found 3 KV heads"},
      {"llama", {{"intermediate_size", 96}}, 8, "found 96 feed-forward columns"},
      {"llama", {{"vocab_size", 40}}, 4, "found a vocabulary of 40"},
      {"qwen3-moe", {{"moe_intermediate_size", 96}}, 4, "found 96 feed-forward columns"},
      {"deepseek-v3", {{"v_head_dim", 20}}, 2, "found 8 attention heads of 20"},
      {"deepseek-v3",
       {{"num_attention_heads", 4},
        {"v_head_dim", 64},
        {"qk_rope_head_dim", 6},
        {"moe_intermediate_size", 288}},
       4,
       "found queries of 30"},
  };

  for (const auto& [model, changes, size, expected] : cases) {
    const TemporaryFolder folder;
    write_model(folder, std::string("models/") + model, changes);
    Config config = dummy_config(folder);
    config.tensor_parallel_size = size;
    const std::string why = refusal(config);
    EXPECT_NE(why.find(expected), std::string::npos) << model << ": " << why;
    EXPECT_NE(why.find("--tensor-parallel-size " + std::to_string(size)), std::string::npos) << why;
  }
  const TemporaryFolder folder;
  write_model(folder, "models/llama", {});
  Config config = dummy_config(folder);
  config.tensor_parallel_size = 2;
  config.kv_offloading_size = 1;
  EXPECT_NE(refusal(config).find("--kv-offloading-size"), std::string::npos);
}

}  // namespace
}  // namespace sluice
