// SPDX-License-Identifier: Apache-2.0
// How large the KV cache is without --kv-cache-memory, and what the plan says about it.
#include "engine/plan/memory_plan.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kvcache/store/kv_storage.h"

namespace sluice {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kContext = 4096;
// What the host keeps for the process itself, found by AllThatIsFreeIsNotTaken.
constexpr int64_t kProcess = 32 * kMiB;

// 8 KiB a block of 16 tokens: 2 MiB for one request of the whole context.
KvGroupSpec attention() {
  KvGroupSpec group{.num_layers = 4};
  group.planes.assign(2, {.num_heads = 2, .width = 16, .dtype = DType::kBF16});
  return group;
}

// 1 MiB a state.
KvGroupSpec states() {
  KvGroupSpec group{.kind = KvGroupKind::kState, .interval = 64, .num_layers = 4};
  group.planes.assign(
      1,
      {.num_heads = 4, .width = 1 << 14, .dtype = DType::kF32, .per = KvPlane::Per::kEntry});
  return group;
}

constexpr int64_t kRequest = 2 * kMiB;

struct Case {
  int64_t free_bytes = 0;
  int32_t max_num_seqs = 8;
  int32_t max_model_len = 0;
  int64_t kv_cache_memory = 0;
  std::vector<KvGroupSpec> groups = {attention()};
  std::optional<DraftMemory> draft = {};
  std::optional<int64_t> device_free_bytes = {};
};

Expected<MemoryPlan> plan_of(const Case& given) {
  Config config;
  config.block_size = 16;
  config.max_num_seqs = given.max_num_seqs;
  config.max_model_len = given.max_model_len;
  config.kv_cache_memory = given.kv_cache_memory;
  config.max_body_bytes = 0;  // nothing for incomplete requests
  ModelConfig model;
  model.context_len = kContext;
  model.num_layers = 4;
  model.layers.resize(4);
  std::vector<LayerGroup> layouts;
  for (const KvGroupSpec& group : given.groups) layouts.push_back({.spec = group, .layers = {}});
  return plan_memory(config,
                     model,
                     layouts,
                     {.weight_bytes = 100 * kMiB,
                      .arena_bytes = 20 * kMiB,
                      .logits_bytes = 8 * kMiB,
                      .host_free_bytes = given.free_bytes,
                      .device_free_bytes = given.device_free_bytes,
                      .draft = given.draft});
}

// With weights, activations and the process itself.
int64_t beside(int64_t bytes) { return 128 * kMiB + kProcess + bytes; }

std::string bound_line(const MemoryPlan& plan) {
  const std::string text = plan.describe();
  const std::string name = "  KV cache bound by      ";
  const size_t at = text.find(name);
  if (at == std::string::npos) return text;
  return text.substr(at + name.size(), text.find('\n', at) - at - name.size());
}

TEST(MemoryPlan, NoMoreThanAllRequestsUse) {
  const auto plan = plan_of({.free_bytes = beside(1000 * kMiB)});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->kv_bytes, 8 * kRequest);
  EXPECT_EQ(plan->kv_tokens(), 8 * kContext);
  EXPECT_EQ(bound_line(*plan), "8 requests of 4096 tokens");
  const auto one = plan_of({.free_bytes = beside(1000 * kMiB), .max_num_seqs = 1});
  ASSERT_TRUE(one);
  EXPECT_EQ(one->kv_bytes, kRequest);
  EXPECT_EQ(bound_line(*one), "1 request of 4096 tokens");
  // More memory than 1 GiB is used where requests need it.
  const auto many = plan_of({.free_bytes = beside(9000 * kMiB), .max_num_seqs = 1024});
  ASSERT_TRUE(many);
  EXPECT_EQ(many->kv_bytes, 1024 * kRequest);
}

TEST(MemoryPlan, NoMoreThanHalfOfWhatIsFree) {
  const auto plan = plan_of({.free_bytes = beside(20 * kMiB)});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->kv_bytes, 10 * kMiB);
  EXPECT_EQ(bound_line(*plan), "half of what is free");
  EXPECT_EQ(plan->max_model_len, kContext);
  // Exactly what all use is bound by them.
  const auto all = plan_of({.free_bytes = beside(2 * 8 * kRequest)});
  ASSERT_TRUE(all);
  EXPECT_EQ(bound_line(*all), "8 requests of 4096 tokens");
  // A context that no flag asked for shrinks to what half holds.
  const auto shrunk = plan_of({.free_bytes = beside(2 * kMiB)});
  ASSERT_TRUE(shrunk);
  EXPECT_EQ(shrunk->kv_bytes, kMiB);
  EXPECT_EQ(shrunk->max_model_len, kContext / 2);
  EXPECT_EQ(bound_line(*shrunk), "half of what is free");
}

TEST(MemoryPlan, AtLeastOneRequestOfTheLengthAskedFor) {
  for (const int32_t max_num_seqs : {1, 8}) {
    const auto plan = plan_of({.free_bytes = beside(3 * kMiB),
                               .max_num_seqs = max_num_seqs,
                               .max_model_len = kContext});
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->kv_bytes, kRequest);
    EXPECT_EQ(bound_line(*plan), "one request of 4096 tokens, more than half of what is free");
  }
}

TEST(MemoryPlan, AllThatIsFreeIsNotTaken) {
  const Case whole = {.free_bytes = beside(kRequest), .max_model_len = kContext};
  ASSERT_TRUE(plan_of(whole));
  Case less = whole;
  less.free_bytes -= 8192;
  const auto refused = plan_of(less);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().message.find("at least 2.0 MiB for one request"), std::string::npos)
      << refused.error().message;
  EXPECT_NE(refused.error().message.find("--max-model-len 4080 would fit"), std::string::npos)
      << refused.error().message;
  less.max_model_len = 4080;
  EXPECT_TRUE(plan_of(less));
}

TEST(MemoryPlan, ASizeThatWasAskedForIsTaken) {
  const auto plan =
      plan_of({.free_bytes = beside(1000 * kMiB), .kv_cache_memory = 700 * kMiB});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->kv_bytes, 700 * kMiB);
  EXPECT_EQ(bound_line(*plan), "--kv-cache-memory");
  const auto refused =
      plan_of({.free_bytes = beside(600 * kMiB), .kv_cache_memory = 700 * kMiB});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("--kv-cache-memory 629145600 would fit"),
            std::string::npos)
      << refused.error().message;
}

// A request holds two states, and as many snapshots as may run are kept beside them.
TEST(MemoryPlan, StatesAreAPartOfTheCache) {
  ASSERT_EQ(kv_block_bytes(states(), 16), kMiB);
  Case given = {.free_bytes = beside(1000 * kMiB), .groups = {attention(), states()}};
  const auto plan = plan_of(given);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->num_states, 24);
  EXPECT_EQ(plan->kv_bytes, 24 * kMiB + 8 * kRequest);
  EXPECT_EQ(bound_line(*plan), "8 requests of 4096 tokens");
  // All requests would find room for their tokens, not for their states.
  given.free_bytes = beside(32 * kMiB);
  const auto few = plan_of(given);
  ASSERT_TRUE(few);
  EXPECT_EQ(few->num_states, 8);
  EXPECT_EQ(few->requests_with_states, 4);
  EXPECT_EQ(few->kv_bytes, 8 * kMiB + 4 * kRequest);
  EXPECT_EQ(bound_line(*few), "half of what is free");
}

TEST(MemoryPlan, TheDraftModelsBlocksAreCountedWithTheOthers) {
  DraftMemory draft{.weight_bytes = 30 * kMiB,
                    .max_model_len = kContext,
                    .num_own_blocks = 2,
                    .kv_groups = {attention()}};
  const auto plan = plan_of({.free_bytes = beside(1000 * kMiB), .draft = draft});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->kv_bytes, 8 * kRequest);
  EXPECT_EQ(plan->draft->kv_bytes, 8 * kRequest + 2 * 8192);
  const auto half = plan_of(
      {.free_bytes = beside(20 * kMiB + draft.weight_bytes + 2 * 8192), .draft = draft});
  ASSERT_TRUE(half);
  EXPECT_EQ(half->kv_bytes, 5 * kMiB);
  EXPECT_EQ(half->draft->kv_bytes, 5 * kMiB + 2 * 8192);
}

TEST(MemoryPlan, ADeviceGivesNineTenths) {
  const auto plan = plan_of({.free_bytes = 1000 * kMiB, .device_free_bytes = 396 * kMiB});
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_EQ(plan->kv_bytes / 8192, 12 * kMiB / 10 * 9 / 8192);
  EXPECT_EQ(bound_line(*plan), "nine tenths of what is free");
}

}  // namespace
}  // namespace sluice
