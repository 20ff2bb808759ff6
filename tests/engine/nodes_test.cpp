// SPDX-License-Identifier: Apache-2.0
// A model over several nodes, played by threads of this process that have nothing in common but
// their connections: the bits and the key of one rank.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "engine/parallel/group_socket.h"
#include "engine/parallel/parallel.h"
#include "quant/format.h"
#include "tests/engine/nodes_rig.h"
#include "tests/engine/speculation_rig.h"
#include "tests/support/golden_folder.h"
#include "tests/support/random_model.h"
#include "tests/support/same_bits.h"
#include "tests/support/shared_model.h"

namespace sluice {
namespace {

using testing::base_config;
using testing::Collected;
using testing::free_port;
using testing::NodeGroup;
using testing::requests;
using testing::Run;
using testing::run_on_nodes;
using testing::run_on_one;
using testing::TemporaryFolder;
using testing::write_model;

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
    NodeGroup others(lead);
    auto engine = create_engine(
        lead, {.on_cpu = make_local_ranks, .on_devices = {}, .around_nodes = [&](auto own) {
                 return std::make_unique<ChangesAWord>(std::move(own), each.number);
               }});
    ASSERT_TRUE(engine.has_value()) << engine.error().message;
    const Collected cut = testing::run_alone(**engine, one).front();
    EXPECT_EQ(cut.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(cut.tokens.size(), static_cast<size_t>(each.number / kExchanges));
    const std::vector<TokenId>& wanted = whole.answers.back().tokens;
    EXPECT_TRUE(std::ranges::equal(cut.tokens, std::span(wanted).first(cut.tokens.size())));
    const std::string words = "rank " + std::to_string(each.named) + ": what it computed before";
    EXPECT_NE((*engine)->failure().find(words), std::string::npos) << (*engine)->failure();
    engine->reset();
    for (const Expected<void>& ended : others.ends()) {
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

// The nodes have met, loaded and connected, and only then does node 0 fail: no end in order.
TEST(Nodes, WhatKeepsNode0FromServingIsNamedOnTheOthers) {
  const auto taken = GroupListener::open("127.0.0.1", 0);
  ASSERT_TRUE(taken.has_value());
  const std::string events = "tcp://*:" + std::to_string((*taken)->port());  // bound, not connected
  Config lead = base_config(golden_folder() + "/tiny/tiny-llama.gguf");
  lead.kv_events_config =
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": ")" + events + "\"}";
  lead.master_port = free_port();
  lead.nnodes = lead.tensor_parallel_size = 2;
  NodeGroup others(lead);
  const auto engine = create_engine(lead);
  ASSERT_FALSE(engine.has_value());
  EXPECT_NE(engine.error().message.find(events), std::string::npos) << engine.error().message;
  for (const Expected<void>& ended : others.ends()) {
    ASSERT_FALSE(ended.has_value());
    EXPECT_NE(ended.error().message.find(events), std::string::npos) << ended.error().message;
  }
}

}  // namespace
}  // namespace sluice
