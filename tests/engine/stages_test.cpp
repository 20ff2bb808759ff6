// SPDX-License-Identifier: Apache-2.0
// A model over stages of one process and of several, played by threads of this process: the bits
// and the key of one, with one step in flight or several.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/models/rank_share.h"
#include "engine/plan/model_plan.h"
#include "quant/format.h"
#include "tests/engine/nodes_rig.h"
#include "tests/engine/speculation_rig.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/shared_model.h"

namespace sluice {
namespace {

using testing::base_config;
using testing::Collected;
using testing::free_port;
using testing::NodeGroup;
using testing::requests;
using testing::Run;
using testing::run_on_one;
using testing::run_spread;
using testing::TemporaryFolder;
using testing::write_model;

// Checks stages of one process, then of several, then ranks of stages as processes.
void expect_same_in_stages(Config config,
                           int32_t stages,
                           const std::string& what,
                           int32_t ranks_of_stage = 1,
                           const std::vector<ValidRequest>& list = requests()) {
  const Run expected = run_on_one(config, list);
  ASSERT_EQ(expected.answers.size(), list.size()) << what;
  config.pipeline_parallel_size = stages;
  config.tensor_parallel_size = ranks_of_stage;
  for (const char* const name : {"one", "shm", "tcp", "shm by rank", "tcp by rank"}) {
    const std::string way = name;
    const bool by_rank = way.ends_with("by rank");
    if (by_rank && ranks_of_stage == 1) continue;
    const Run actual = way == "one" ? run_on_one(config, list)
                                    : run_spread(config, way.substr(0, 3), list, {}, by_rank);
    testing::expect_same(expected.answers,
                         actual.answers,
                         what + " in " + std::to_string(stages) + " stages by " + way);
    EXPECT_EQ(actual.key, expected.key) << what;
    if (::testing::Test::HasFailure()) return;
  }
}

// Tied and separate embeddings; windows; norms; sums; parallel halves; experts; latents; states of
// all kinds, also of layers of one half and with two mixers; prompts of several pieces. Some stages
// have no layer of one group.
TEST(Stages, EveryKindOfLayerGivesTheBitsOfOneStage) {
  const std::tuple<const char*, int32_t, nlohmann::json> models[] = {
      {"llama", 2, {}},
      {"qwen3", 2, {}},
      {"gemma3", 3, {}},
      {"gemma4-moe", 3, {{"hidden_size_per_layer_input", 0}}},
      {"olmo2", 2, {}},
      {"cohere2", 4, {}},
      {"granite", 2, {}},
      {"phi3", 2, {{"partial_rotary_factor", 1.0}}},
      {"qwen3-moe", 2, {}},
      {"gpt-oss", 2, {}},
      {"deepseek-v3", 3, {}},
      {"qwen3-5", 4, {}},
      {"bamba", 2, {}},
      {"lfm2", 3, {}},
      {"falcon-h1", 2, {}},
      {"nemotron-h", 5, {}},
  };
  for (const auto& [name, stages, changes] : models) {
    const TemporaryFolder folder;
    write_model(folder, std::string("models/") + name, changes);
    Config config = base_config(folder.path());
    config.kv_cache_memory = int64_t{16} << 20;
    config.load_format = "dummy";
    expect_same_in_stages(config, stages, name);
    if (HasFailure()) return;
  }
}

// Ranks of one stage are threads of its process, or processes.
TEST(Stages, RanksShareTheLayersOfEachStage) {
  const std::pair<const char*, nlohmann::json> models[] = {
      {"gemma3", {}},
      {"qwen3-moe", {{"moe_intermediate_size", 288}}},
      {"qwen3-5", {{"linear_num_key_heads", 4}, {"linear_num_value_heads", 8}}},
  };
  for (const auto& [name, changes] : models) {
    const TemporaryFolder folder;
    write_model(folder, std::string("models/") + name, changes);
    Config config = base_config(folder.path());
    config.kv_cache_memory = int64_t{16} << 20;
    config.load_format = "dummy";
    expect_same_in_stages(config, 2, name, 2);
    if (HasFailure()) return;
  }
}

// A file's fingerprint is that of all stages' tensors; every format of weights.
TEST(Stages, EveryWeightFormatGivesTheBitsAndTheKeyOfOneStage) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/formats.gguf";
  std::vector<WeightFormat> formats;
  for (const FormatInfo& info : format_table()) formats.push_back(info.format);
  ASSERT_TRUE(testing::write_random_model(
      golden_folder() + "/tiny/tiny-llama.gguf", path, formats, WeightFormat::kQ6_K));
  Config config = base_config(path);
  config.kv_cache_memory = int64_t{16} << 20;
  expect_same_in_stages(config, 2, "all formats");
  if (HasFailure()) return;
  config.activation_bits = 32;
  expect_same_in_stages(config, 2, "all formats on two ranks", 2);
}

// Chunks, preemption, overlap, KV types, drafts by the host and by a model.
TEST(Stages, SettingsOfAStepChangeNothing) {
  const TemporaryFolder folder;
  write_model(folder, "models/gemma3", {});
  Config plain = base_config(folder.path());
  plain.load_format = "dummy";
  std::vector<Config> settings(5, plain);
  settings[0].max_num_batched_tokens = 16;
  settings[1].overlap = true;
  settings[1].debug_preempt_every = 3;
  settings[2].speculative_config = R"({"method": "ngram", "num_speculative_tokens": 3})";
  settings[3].kv_cache_dtype = "int8";
  settings[4].speculative_config =
      R"({"method": "draft_model", "num_speculative_tokens": 3, "model": ")" + folder.path() +
      "\"}";
  settings[4].kv_cache_memory *= 4;
  for (size_t i = 0; i < settings.size(); ++i) {
    expect_same_in_stages(settings[i], 2, "setting " + std::to_string(i));
    if (HasFailure()) return;
  }
}

// Requests that share a prefix, end at different times and are more than one part of a step.
std::vector<ValidRequest> many_requests() {
  const std::vector<ValidRequest> kinds = testing::seeded_requests(4);
  std::vector<ValidRequest> list;
  for (size_t i = 0; i < 9; ++i) {
    list.push_back(kinds[i % kinds.size()]);
    list[i].sampling.seed = i;
    list[i].sampling.max_tokens = 6 + 3 * static_cast<int32_t>(i % 4);
    list[i].sampling.num_logprobs = 2;
    if (i % 2 == 1) list[i].prompt.insert(list[i].prompt.begin(), 70, 9);
    if (i % 3 == 1) list[i].sampling.presence_penalty = 0.5F;  // reads earlier tokens
  }
  list.front().sampling.num_prompt_logprobs = 2;
  return list;
}

// One to four steps at a time, over disjoint requests and chunks of a prompt.
TEST(Stages, StepsInFlightChangeNothing) {
  const TemporaryFolder folder;
  write_model(folder, "models/gemma3", {});
  Config plain = base_config(folder.path());
  plain.load_format = "dummy";
  std::vector<Config> settings(4, plain);
  settings[0].max_num_batched_tokens = 16;
  settings[1].debug_preempt_every = 3;
  settings[2].speculative_config =
      R"({"method": "ngram", "num_speculative_tokens": 3, "adaptive": false})";
  settings[3].speculative_config =
      R"({"method": "draft_model", "num_speculative_tokens": 3, "model": ")" + folder.path() +
      "\"}";
  settings[3].kv_cache_memory *= 4;
  const std::vector<ValidRequest> list = many_requests();
  for (size_t i = 0; i < settings.size(); ++i) {
    const auto expected = run_on_one(settings[i], list);
    ASSERT_EQ(expected.answers.size(), list.size());
    const std::tuple<int32_t, int32_t, const char*, int32_t> ways[] = {{2, 1, "shm", 1},
                                                                       {2, 2, "shm", 1},
                                                                       {2, 4, "tcp", 1},
                                                                       {3, 3, "tcp", 1},
                                                                       {3, 4, "shm", 1},
                                                                       {2, 2, "shm", 2},
                                                                       {3, 4, "tcp", 2}};
    for (const auto& [stages, steps, transport, ranks] : ways) {
      Config config = settings[i];
      config.pipeline_parallel_size = stages;
      config.tensor_parallel_size = ranks;
      const auto actual = run_spread(config, transport, list, steps, /*by_rank=*/true);
      testing::expect_same(expected.answers,
                           actual.answers,
                           "setting " + std::to_string(i) + ", " + std::to_string(stages) +
                               " stages, " + std::to_string(steps) + " steps, " + transport);
      if (HasFailure()) return;
    }
  }
}

// While one stage has a step, the other one has the next; and states that take accepted drafts.
TEST(Stages, AStepBeginsBeforeTheOneBeforeItHasEnded) {
  const TemporaryFolder folder;
  write_model(
      folder, "models/qwen3-5", {{"linear_num_key_heads", 4}, {"linear_num_value_heads", 8}});
  Config config = base_config(folder.path());
  config.load_format = "dummy";
  config.kv_cache_memory = int64_t{16} << 20;
  std::vector<ValidRequest> list = many_requests();
  const auto expected = run_on_one(config, list);
  for (size_t i = 0; i < list.size(); ++i) list[i].prediction = expected.answers[i].tokens;
  config.speculative_config = testing::replay(0.3, 4);
  config.nnodes = config.pipeline_parallel_size = 2;
  config.master_port = free_port();
  NodeGroup others(config);
  std::unique_ptr<Engine> engine = testing::start_node_0(config, {});
  ASSERT_NE(engine, nullptr);
  testing::expect_same(expected.answers, testing::run_together(*engine, list), "with drafts");
  std::promise<EngineState> told;
  engine->report_state(100, [&](EngineState state) { told.set_value(std::move(state)); });
  const EngineState state = told.get_future().get();
  const auto followed =
      std::ranges::count_if(state.steps, [](const auto& step) { return step.num_in_flight == 1; });
  EXPECT_GT(followed, 10);
  EXPECT_GT(testing::sum(state.stats.drafts.num_accepted_tokens), 20U);
  engine.reset();
  others.expect_in_order();
}

// Fails the group at one of its calls.
class FailsAtACall final : public Communicator {
 public:
  FailsAtACall(std::unique_ptr<Communicator> whole, int number)
      : whole_(std::move(whole)), left_(number) {}

  [[nodiscard]] int32_t rank() const override { return whole_->rank(); }

  [[nodiscard]] int32_t size() const override { return whole_->size(); }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    return whole_->all_gather(part);
  }

  bool pass(int32_t from, int32_t to, std::span<std::byte> bytes) override {
    if (--left_ == 0) whole_->fail();
    return whole_->pass(from, to, bytes);
  }

  void fail() override { whole_->fail(); }

  [[nodiscard]] bool has_failed() const override { return whole_->has_failed(); }

 private:
  const std::unique_ptr<Communicator> whole_;
  int left_;
};

// Whichever of the calls of a step it is: every request of every step ends, with the tokens that it
// has had, and both ends know why.
TEST(Stages, AFailureWithStepsInFlightEndsEveryRequest) {
  const TemporaryFolder folder;
  write_model(folder, "models/llama", {});
  Config config = base_config(folder.path());
  config.load_format = "dummy";
  const std::vector<ValidRequest> list = many_requests();
  const std::vector<Collected> whole = run_on_one(config, list).answers;
  ASSERT_EQ(whole.size(), list.size());
  for (const int number : {1, 2, 9, 10, 23}) {
    Config lead = config;
    lead.kv_transport = number % 2 == 0 ? "tcp" : "shm";
    lead.master_port = free_port();
    lead.nnodes = lead.pipeline_parallel_size = 2;
    NodeGroup others(lead);
    auto engine = create_engine(
        lead, {.on_cpu = make_local_ranks, .on_devices = {}, .around_nodes = [&](auto own) {
                 return std::make_unique<FailsAtACall>(std::move(own), number);
               }});
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    testing::CollectingSink sink;
    std::vector<RequestId> ids;
    for (const ValidRequest& request : list) {
      if (const auto id = (*engine)->submit(request, sink)) ids.push_back(*id);
    }
    ASSERT_FALSE(ids.empty());  // after the failure none is taken
    int num_cut = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Collected cut = sink.wait(ids[i]);
      const std::vector<TokenId>& wanted = whole[i].tokens;
      ASSERT_LE(cut.tokens.size(), wanted.size());
      EXPECT_EQ(cut.finish_reason == FinishReason::kAbort, cut.tokens.size() < wanted.size());
      num_cut += cut.finish_reason == FinishReason::kAbort;
      EXPECT_TRUE(std::ranges::equal(cut.tokens, std::span(wanted).first(cut.tokens.size())));
    }
    EXPECT_GT(num_cut, 0);
    EXPECT_EQ((*engine)->failure(), "this rank failed");
    engine->reset();
    for (const Expected<void>& ended : others.ends()) {
      ASSERT_FALSE(ended.has_value());
      EXPECT_NE(ended.error().message.find("this rank failed"), std::string::npos)
          << ended.error().message;
    }
  }
}

// Rows of a long prompt take several pieces.
TEST(Stages, ManyRowsCrossABorderInPieces) {
  const TemporaryFolder folder;
  write_model(folder, "models/llama", {{"max_position_embeddings", 2048}, {"hidden_size", 256}});
  Config config = base_config(folder.path());
  config.load_format = "dummy";
  config.max_model_len = 2048;
  config.max_num_batched_tokens = 2048;
  config.kv_cache_memory = int64_t{64} << 20;
  std::vector<ValidRequest> list = {requests().front()};
  list.front().prompt.resize(1500, 7);
  list.front().sampling.num_prompt_logprobs = 1;
  expect_same_in_stages(config, 2, "a long prompt", 1, list);
}

// A plan is one stage's: its weights, and the KV of its layers.
TEST(Stages, ThePlanIsOfOneStage) {
  const TemporaryFolder folder;
  write_model(folder, "models/gemma3", {});
  Config config = base_config(folder.path());
  config.load_format = "dummy";
  const auto plan_of = [&](int32_t node) {
    config.node_rank = node;
    const auto planned = plan_model(config, {});
    EXPECT_TRUE(planned.has_value()) << planned.error().message;
    return planned ? planned->plan : MemoryPlan{};
  };
  const MemoryPlan whole = plan_of(0);
  config.nnodes = config.pipeline_parallel_size = 2;
  const MemoryPlan first = plan_of(0);
  const MemoryPlan last = plan_of(1);
  EXPECT_EQ(first.weight_bytes + last.weight_bytes, whole.weight_bytes);
  EXPECT_LT(last.weight_bytes, whole.weight_bytes);
  EXPECT_EQ(first.logits_bytes, whole.logits_bytes);
  EXPECT_EQ(last.logits_bytes, 0);
  ASSERT_EQ(first.kv_groups.size(), 2U);
  ASSERT_EQ(last.kv_groups.size(), 2U);
  // A window, then full attention and a window.
  EXPECT_EQ(first.kv_groups[0].num_layers, 1);
  EXPECT_EQ(first.kv_groups[1].num_layers, 0);
  EXPECT_EQ(last.kv_groups[0].num_layers, 1);
  EXPECT_EQ(last.kv_groups[1].num_layers, 1);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(first.kv_groups[i].num_blocks, last.kv_groups[i].num_blocks);
  }
  EXPECT_LT(first.kv_bytes, last.kv_bytes);
  EXPECT_NE(last.describe().find("1 to 2 of 3, stage 1 of 2 stages"), std::string::npos)
      << last.describe();
  // Two processes share each stage: the third one has half of the second stage.
  config.nnodes = 4;
  config.tensor_parallel_size = 2;
  const MemoryPlan rank = plan_of(2);
  EXPECT_NE(rank.describe().find("1 to 2 of 3, stage 1 of 2 stages"), std::string::npos)
      << rank.describe();
  // One has a block of 32 columns more.
  const MemoryPlan other = plan_of(3);
  EXPECT_LT(std::max(rank.weight_bytes, other.weight_bytes), last.weight_bytes);
  EXPECT_EQ(rank.weight_bytes + other.weight_bytes, last.weight_bytes);
  EXPECT_EQ(rank.kv_groups[0].num_blocks, 2 * last.kv_groups[0].num_blocks);
  EXPECT_EQ(rank.logits_bytes, 0);
}

// A rank of a stage that compares what the ranks are about to hand on.
class ComparesStates final : public Communicator {
 public:
  explicit ComparesStates(bool are_equal) : are_equal_(are_equal) {}

  [[nodiscard]] int32_t rank() const override { return 0; }

  [[nodiscard]] int32_t size() const override { return 2; }

  [[nodiscard]] uint64_t* state() override { return &state_; }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    EXPECT_TRUE(part.empty());
    EXPECT_NE(state_, 0U);
    return std::span<const std::byte* const>(parts_).first(are_equal_ ? parts_.size() : 0);
  }

  bool pass(int32_t, int32_t, std::span<std::byte>) override {
    ++num_passed;
    return true;
  }

  void fail() override {}

  [[nodiscard]] bool has_failed() const override { return false; }

  int num_passed = 0;

 private:
  const bool are_equal_;
  uint64_t state_ = 0;
  std::array<const std::byte*, 2> parts_{};
};

// No stage, and no choice of a token, goes on with rows that the ranks of one do not have equal.
TEST(Stages, RanksCompareTheRowsThatOneOfThemHandsOn) {
  ModelConfig config;
  config.hidden = 4;
  config.share.size = 2;
  config.stage = {.stage = 1, .count = 2};
  std::vector<float> rows(8, 1.0F);
  const kernels::ExecContext exec{};
  for (const bool are_equal : {false, true}) {
    ComparesStates ranks(are_equal);
    ComparesStates stages(true);
    const ForwardBatch batch{};
    const ForwardContext context = {.exec = exec,
                                    .batch = batch,
                                    .caches = {},
                                    .hidden = {},
                                    .communicator = &ranks,
                                    .stages = &stages};
    EXPECT_EQ(hand_rows(context, config, 1, 0, rows), are_equal);
    EXPECT_EQ(stages.num_passed, are_equal ? 1 : 0);
  }
}

// Layers that read the KV of others stay with them.
TEST(Stages, ABorderBetweenALayerAndItsKvIsRefusedByName) {
  ModelConfig model;
  model.num_layers = 5;
  model.layers.resize(5);
  model.layers[4].kv_from = 2;
  ModelConfig last = model;
  ASSERT_TRUE(take_stage(last, 1, 2).has_value());
  EXPECT_EQ(last.first_layer(), 2);
  EXPECT_EQ(last.end_layer(), 5);
  model.layers[4].kv_from = 1;
  const auto refused = take_stage(model, 0, 2);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message,
            "--pipeline-parallel-size 2: found layer 4, which reads the keys and values of a layer "
            "of another stage");
}

TEST(Stages, WhatStagesDoNotHaveIsRefusedByName) {
  const struct {
    const char* model;
    int32_t stages;
    void (*change)(Config&);
    const char* expected;
    nlohmann::json changes = {};
  } cases[] = {
      {"models/llama", 3, [](Config&) {}, "--pipeline-parallel-size 3: found 2 layers"},
      {"models/gemma4-all",
       2,
       [](Config&) {},
       "layers with inputs of their own",
       {{"vocab_size_per_layer_input", 451}}},
      {"models/glm-moe-dsa",
       2,
       [](Config&) {},
       "which reads the chosen keys of a layer of another stage"},
      {"models/llama",
       2,
       [](Config& config) { config.kv_offloading_size = 1; },
       "--pipeline-parallel-size: found 2 with --kv-offloading-size"},
      {"models/llama",
       2,
       [](Config& config) { config.kv_listen = "127.0.0.1:0"; },
       "--pipeline-parallel-size: found more than 1 with --kv-listen"},
      {"models/llama",
       2,
       [](Config& config) { config.nnodes = 4; },
       "--pipeline-parallel-size: found 2, expected --nnodes, 4: each node has one stage"},
      {"models/llama",
       2,
       [](Config& config) {
         config.tensor_parallel_size = 2;
         config.nnodes = 3;
       },
       "found 2, expected --nnodes, 3: each node has one stage; or --nnodes 4: each has one of the "
       "2 ranks of a stage"},
      {"models/llama",
       2,
       [](Config& config) {
         config.speculative_config = R"({"method": "mtp", "num_speculative_tokens": 1})";
       },
       "which several stages have: found --pipeline-parallel-size 2"},
  };

  for (const auto& [model, stages, change, expected, changes] : cases) {
    const TemporaryFolder folder;
    write_model(folder, model, changes);
    Config config = base_config(folder.path());
    config.load_format = "dummy";
    config.pipeline_parallel_size = stages;
    change(config);
    const auto planned = plan_model(config, {});
    ASSERT_FALSE(planned.has_value()) << model;
    EXPECT_NE(planned.error().message.find(expected), std::string::npos) << planned.error().message;
  }
}

}  // namespace
}  // namespace sluice
