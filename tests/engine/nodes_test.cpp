// SPDX-License-Identifier: Apache-2.0
// A model over several nodes, played by threads of this process that have nothing in common but
// their connections: the bits and the key of one rank. And over stages.
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

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/models/rank_share.h"
#include "engine/parallel/group_socket.h"
#include "engine/parallel/parallel.h"
#include "engine/plan/model_plan.h"
#include "quant/format.h"
#include "tests/engine/speculation_rig.h"
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

Config base_config(const std::string& model) {
  Config config;
  config.model = model;
  config.max_model_len = 256;
  config.kv_cache_memory = int64_t{2} << 20;
  config.threads = 1;
  config.rank_init_timeout_s = 20;
  return config;
}

std::vector<ValidRequest> requests() {
  std::vector<ValidRequest> list = testing::seeded_requests(3);
  for (ValidRequest& request : list) {
    request.sampling.max_tokens = 6;
    request.sampling.num_logprobs = 4;
  }
  list.front().sampling.num_prompt_logprobs = 2;
  return list;
}

struct Run {
  std::vector<Collected> answers;
  std::string key;
};

Run run_on_one(const Config& config, const std::vector<ValidRequest>& list = requests()) {
  const std::unique_ptr<Engine> engine = testing::start_engine(config);
  if (engine == nullptr) return {};
  return {testing::run_together(*engine, list), engine->model().system_fingerprint};
}

int32_t free_port() {
  const auto listener = GroupListener::open("127.0.0.1", 0);
  CHECK(listener.has_value());
  return (*listener)->port();
}

// The other nodes of the group that has this node 0.
std::vector<std::future<Expected<void>>> follow(const Config& lead) {
  std::vector<std::future<Expected<void>>> followers;
  for (int32_t rank = 1; rank < lead.nnodes; ++rank) {
    Config own = lead;
    own.node_rank = rank;
    followers.push_back(std::async(std::launch::async, [own] { return run_follower_node(own); }));
  }
  return followers;
}

// Each node has one stage, or with one stage a rank of it.
Run run_spread(Config config,
               const std::string& transport,
               const std::vector<ValidRequest>& list = requests()) {
  const int32_t stages = config.pipeline_parallel_size;
  config.kv_transport = transport;
  config.master_port = free_port();
  config.nnodes = stages > 1 ? stages : config.tensor_parallel_size;
  std::vector<std::future<Expected<void>>> followers = follow(config);
  Run run = run_on_one(config, list);
  for (auto& follower : followers) {
    const Expected<void> ended = follower.get();
    EXPECT_TRUE(ended.has_value()) << ended.error().message;
  }
  return run;
}

Run run_on_nodes(Config config,
                 int32_t size,
                 const std::string& transport,
                 const std::vector<ValidRequest>& list = requests()) {
  config.tensor_parallel_size = size;
  return run_spread(config, transport, list);
}

// Checks stages of one process, then of several.
void expect_same_in_stages(Config config,
                           int32_t stages,
                           const std::string& what,
                           int32_t ranks_of_stage = 1,
                           const std::vector<ValidRequest>& list = requests()) {
  const Run expected = run_on_one(config, list);
  ASSERT_EQ(expected.answers.size(), list.size()) << what;
  config.pipeline_parallel_size = stages;
  config.tensor_parallel_size = ranks_of_stage;
  for (const char* const transport : {"", "shm", "tcp"}) {
    const Run actual =
        *transport == 0 ? run_on_one(config, list) : run_spread(config, transport, list);
    testing::expect_same(expected.answers,
                         actual.answers,
                         what + " in " + std::to_string(stages) + " stages by " + transport);
    EXPECT_EQ(actual.key, expected.key) << what;
    if (::testing::Test::HasFailure()) return;
  }
}

void expect_same_on(const std::vector<int32_t>& sizes,
                    const Config& config,
                    const std::string& what) {
  const Run expected = run_on_one(config);
  ASSERT_EQ(expected.answers.size(), requests().size()) << what;
  for (const int32_t size : sizes) {
    for (const char* const transport : {"shm", "tcp"}) {
      const Run actual = run_on_nodes(config, size, transport);
      testing::expect_same(expected.answers,
                           actual.answers,
                           what + " on " + std::to_string(size) + " nodes over " + transport);
      EXPECT_EQ(actual.key, expected.key) << what;
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// Variants: plain; windows and norms around; norms of all heads as one; experts; halves beside each
// other; latents; states.
TEST(Nodes, EveryKindOfLayerGivesTheBitsOfOneRank) {
  const std::pair<const char*, nlohmann::json> models[] = {
      {"models/llama", {}},
      {"models/gemma3", {}},
      {"models/olmo2", {}},
      {"models/qwen3-moe", {{"moe_intermediate_size", 288}}},
      {"models/cohere2", {}},
      {"models/deepseek-v3", {{"v_head_dim", 32}, {"moe_intermediate_size", 288}}},
      {"models/qwen3-5", {{"linear_num_key_heads", 4}, {"linear_num_value_heads", 8}}},
      {"models/bamba", {{"mamba_n_heads", 8}, {"mamba_expand", 2}, {"mamba_n_groups", 1}}},
      {"models/lfm2", {{"hidden_size", 128}, {"block_auto_adjust_ff_dim", false}}},
  };
  for (const auto& [name, changes] : models) {
    const TemporaryFolder folder;
    write_model(folder, name, changes);
    Config config = base_config(folder.path());
    config.kv_cache_memory = int64_t{16} << 20;
    config.load_format = "dummy";
    expect_same_on({2, 4}, config, name);
    if (HasFailure()) return;
  }
}

// States take accepted drafts in the next step, on each node from what it has kept.
TEST(Nodes, DraftsChangeNoStateOnAnyNode) {
  const TemporaryFolder folder;
  write_model(
      folder, "models/qwen3-5", {{"linear_num_key_heads", 4}, {"linear_num_value_heads", 8}});
  Config config = base_config(folder.path());
  config.load_format = "dummy";
  config.kv_cache_memory = int64_t{16} << 20;
  std::vector<ValidRequest> drafted = requests();
  for (ValidRequest& request : drafted) request.sampling.max_tokens = 40;
  const std::vector<Collected> expected = run_on_one(config, drafted).answers;
  ASSERT_EQ(expected.size(), drafted.size());
  for (size_t i = 0; i < drafted.size(); ++i) drafted[i].prediction = expected[i].tokens;
  config.speculative_config = testing::replay(0.3, 4);
  testing::expect_same(expected, run_on_nodes(config, 2, "shm", drafted).answers, "with drafts");
}

TEST(Nodes, EveryWeightFormatAndActivationWidthGivesTheBitsOfOneRank) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/formats.gguf";
  std::vector<WeightFormat> formats;
  for (const FormatInfo& info : format_table()) formats.push_back(info.format);
  ASSERT_TRUE(testing::write_random_model(
      golden_folder() + "/tiny/tiny-llama.gguf", path, formats, WeightFormat::kQ6_K));
  for (const int32_t bits : {8, 16, 32}) {
    Config config = base_config(path);
    config.activation_bits = bits;
    config.kv_cache_memory = int64_t{16} << 20;
    expect_same_on({2}, config, std::to_string(bits) + " bits");
    if (HasFailure()) return;
  }
}

// Chunks, preemption, overlap, KV types, drafts.
TEST(Nodes, SettingsOfAStepChangeNothing) {
  const TemporaryFolder folder;
  write_model(folder, "models/gemma3", {});
  Config plain = base_config(folder.path());
  plain.load_format = "dummy";
  std::vector<Config> settings(4, plain);
  settings[0].max_num_batched_tokens = 16;
  settings[1].overlap = true;
  settings[1].debug_preempt_every = 3;
  settings[2].speculative_config = R"({"method": "ngram", "num_speculative_tokens": 3})";
  settings[3].kv_cache_dtype = "int8";
  for (size_t i = 0; i < settings.size(); ++i) {
    expect_same_on({2}, settings[i], "setting " + std::to_string(i));
    if (HasFailure()) return;
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

// Ranks of one stage are threads of its process.
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
      R"({"method": "draft_model", "num_speculative_tokens": 3, "model": ")" + folder.path() + "\"}";
  settings[4].kv_cache_memory *= 4;
  for (size_t i = 0; i < settings.size(); ++i) {
    expect_same_in_stages(settings[i], 2, "setting " + std::to_string(i));
    if (HasFailure()) return;
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

// Hands one exchange's results on with a word that another rank did not send.
class ChangesAWord final : public Communicator {
 public:
  ChangesAWord(std::unique_ptr<Communicator> whole, int number)
      : whole_(std::move(whole)), left_(number) {}

  [[nodiscard]] int32_t rank() const override { return whole_->rank(); }

  [[nodiscard]] int32_t size() const override { return whole_->size(); }

  [[nodiscard]] uint64_t* state() override { return whole_->state(); }

  std::span<const std::byte* const> all_gather(std::span<const std::byte> part) override {
    const auto parts = whole_->all_gather(part);
    if (--left_ != 0 || parts.empty()) return parts;
    changed_.assign(parts.back(), parts.back() + part.size());
    changed_[changed_.size() / 2 + 3] ^= std::byte{0x3f};  // a float's exponent
    parts_.assign(parts.begin(), parts.end());
    parts_.back() = changed_.data();
    return parts_;
  }

  void fail() override { whole_->fail(); }

  [[nodiscard]] bool has_failed() const override { return whole_->has_failed(); }

 private:
  const std::unique_ptr<Communicator> whole_;
  int left_;
  std::vector<std::byte> changed_;
  std::vector<const std::byte*> parts_;
};

// Whatever changes a word behind its check, in the first exchange or the last one of a step: no
// token of that step is given out, and both ends say who differs.
TEST(Nodes, AWordThatChangesUnseenEndsTheGroupBeforeAnyToken) {
  const TemporaryFolder folder;
  write_model(folder, "models/llama", {});
  Config config = base_config(folder.path());
  config.load_format = "dummy";
  const std::vector<ValidRequest> one = {requests().back()};
  const auto whole = run_on_one(config);
  constexpr int kExchanges = 2 * 2 + 1;  // of a step: two of each layer, and the logits

  struct Case {
    int32_t size;
    const char* transport;
    int number;
    int named;
  };

  for (const Case& each : {Case{2, "tcp", 1, 1},
                           {2, "shm", 4, 1},
                           {2, "tcp", 3 * kExchanges + 4, 1},
                           {4, "shm", 2 * kExchanges + 1, 0}}) {
    Config lead = config;
    lead.kv_transport = each.transport;
    lead.master_port = free_port();
    lead.nnodes = lead.tensor_parallel_size = each.size;
    std::vector<std::future<Expected<void>>> followers = follow(lead);
    auto engine = create_engine(
        lead, {.on_cpu = make_local_ranks, .on_devices = {}, .around_nodes = [&](auto own) {
                 return std::make_unique<ChangesAWord>(std::move(own), each.number);
               }});
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    const Collected cut = testing::run_alone(**engine, one).front();
    EXPECT_EQ(cut.finish_reason, FinishReason::kError);
    EXPECT_EQ(cut.tokens.size(), static_cast<size_t>(each.number / kExchanges));
    const std::vector<TokenId>& wanted = whole.answers.back().tokens;
    EXPECT_TRUE(std::ranges::equal(cut.tokens, std::span(wanted).first(cut.tokens.size())));
    const std::string words = "rank " + std::to_string(each.named) + ": what it computed before";
    EXPECT_NE((*engine)->failure().find(words), std::string::npos) << (*engine)->failure();
    engine->reset();
    for (auto& follower : followers) {
      const Expected<void> ended = follower.get();
      ASSERT_FALSE(ended.has_value());
      EXPECT_NE(ended.error().message.find(words), std::string::npos) << ended.error().message;
    }
  }
}

// Both ends have the words of the one that cannot.
TEST(Nodes, ANodeThatCannotLoadIsNamedAtBothEnds) {
  const TemporaryFolder folder;
  const auto random = [&](const char* name, WeightFormat format) {
    const std::string path = folder.path() + name;
    const std::array formats = {format};
    EXPECT_TRUE(testing::write_random_model(
        golden_folder() + "/tiny/tiny-llama.gguf", path, formats, WeightFormat::kQ6_K));
    return path;
  };
  Config lead = base_config(random("/good.gguf", WeightFormat::kQ8_0));
  lead.kv_cache_memory = int64_t{16} << 20;
  lead.master_port = free_port();
  lead.nnodes = lead.tensor_parallel_size = 2;
  const auto ends = [&](const Config& follower) {
    auto followed =
        std::async(std::launch::async, [&follower] { return run_follower_node(follower); });
    auto engine = create_engine(lead);
    EXPECT_FALSE(engine.has_value());
    if (engine) engine->reset();  // the follower ends with it
    const Expected<void> ended = followed.get();
    EXPECT_FALSE(ended.has_value());
    return std::pair(engine ? "" : engine.error().message, ended ? "" : ended.error().message);
  };
  Config follower = lead;
  follower.node_rank = 1;
  follower.model = "/nowhere";
  const auto missing = ends(follower);
  EXPECT_NE(missing.first.find("/nowhere"), std::string::npos) << missing.first;
  EXPECT_NE(missing.second.find("/nowhere"), std::string::npos) << missing.second;
  follower.model = random("/other.gguf", WeightFormat::kQ4_0);
  const auto different = ends(follower);
  EXPECT_NE(different.first.find("rank 1 has another one"), std::string::npos) << different.first;
  EXPECT_NE(different.second.find("rank 1 has another one"), std::string::npos) << different.second;
}

}  // namespace
}  // namespace sluice
