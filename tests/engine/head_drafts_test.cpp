// SPDX-License-Identifier: Apache-2.0
// Drafts of a head step by step, beside a target with chunked prompts and accepted and rejected
// drafts, equal its drafts from all of the target's states at once.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/aligned_buffer.h"
#include "engine/draft/draft_model.h"
#include "engine/models/model_spec.h"
#include "engine/plan/model_plan.h"
#include "engine/weights/weight_store.h"
#include "kvcache/store/kv_storage.h"
#include "tests/support/golden_folder.h"

namespace sluice {
namespace {

constexpr int32_t kLongest = 128;
constexpr int32_t kMost = 3;  // drafted tokens

Config config_with(const std::string& head) {
  Config config;
  config.model = golden_folder() + "/tiny/tiny-llama.gguf";
  config.threads = 2;
  config.max_num_seqs = 4;
  config.max_model_len = kLongest;
  config.max_num_batched_tokens = kLongest;
  config.kv_cache_memory = int64_t{4} << 20;
  config.speculative_config = R"({"method": "eagle3", "num_speculative_tokens": 3, "model": ")" +
                              golden_folder() + "/eagle/" + head + "\"}";
  return config;
}

// The tiny target, which keeps heads' inputs, and a head on it.
class Rig {
 public:
  explicit Rig(const std::string& head) : config_(config_with(head)) {
    params_.temperature = 0;
    params_.max_tokens = 1000;
    device_ = std::move(*kernels::Device::create({.threads = config_.threads}));
    PlannedModel planned = std::move(*plan_model(config_, {.num_threads = config_.threads}));
    bounds_ = planned.bounds;
    checkpoint_ = std::move(planned.checkpoint);
    weights_ = std::make_unique<WeightStore>(*checkpoint_);
    EXPECT_TRUE(weights_->allocate(planned.plan.weight_bytes).has_value());
    const ModelOptions options = {.max_model_len = kLongest,
                                  .taps = planned.draft->model.head.taps};
    target_ = std::move(*planned.spec->build(planned.model, options, *weights_));
    arena_ = std::move(*AlignedBuffer::allocate(target_->arena_bytes(bounds_), "activations"));
    target_->bind(bounds_, arena_.span());
    storage_ = std::move(*KvStorage::create(planned.plan.kv_groups, 16));
    for (int32_t i = 0; i < target_->config().num_layers; ++i) {
      caches_.push_back({.group = 0, .planes = storage_.planes(0, i)});
    }
    head_ = std::move(*DraftModel::create(*device_,
                                          target_.get(),
                                          std::move(*planned.draft),
                                          *planned.plan.draft,
                                          placement_of(config_),
                                          config_));
  }

  // Runs a step of the target over tokens [begin, end) of a sequence in these blocks.
  void step(const std::vector<TokenId>& all,
            const std::vector<BlockId>& blocks,
            int32_t begin,
            int32_t end) {
    const std::vector<TokenId> tokens(all.begin() + begin, all.begin() + end);
    std::vector<int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), begin);
    std::vector<int32_t> table;
    for (const BlockId block : blocks) table.push_back(block.value);
    std::vector<int64_t> slots;
    for (const int32_t position : positions) {
      slots.push_back(int64_t{16} * table[static_cast<size_t>(position / 16)] + position % 16);
    }
    const std::vector<int32_t> starts = {0, end - begin};
    const std::vector<int32_t> lengths = {end};
    const std::vector<std::span<const int64_t>> slot_mapping = {slots};
    const std::vector<std::span<const int32_t>> tables = {table};
    const std::vector<int32_t> strides = {static_cast<int32_t>(table.size())};
    const ForwardBatch batch = {.token_ids = tokens,
                                .positions = positions,
                                .query_start_loc = starts,
                                .seq_lens = lengths,
                                .logits_indices = {},
                                .slot_mapping = slot_mapping,
                                .block_tables = tables,
                                .block_table_strides = strides,
                                .max_seq_len = end};
    const kernels::ExecContext exec = device_->context();
    target_->forward({.exec = exec, .batch = batch, .caches = caches_});
  }

  // Drafts behind the first `num_known` tokens; their last `num_rows` rows are the first rows of
  // the target's last step.
  Draft draft(RequestId id,
              const std::vector<TokenId>& all,
              const std::vector<BlockId>& blocks,
              int32_t num_known,
              int32_t num_rows,
              int32_t max = kMost) {
    head_->begin(id, params_);
    const DraftTask task = {.id = id,
                            .known = std::span(all).first(static_cast<size_t>(num_known)),
                            .blocks = blocks,
                            .num_prompt_tokens = 1,
                            .max = max,
                            .num_rows = num_rows};
    Draft draft;
    head_->propose({&task, 1}, {&draft, 1});
    return draft;
  }

  SamplingParams& params() { return params_; }

 private:
  Config config_;
  std::unique_ptr<kernels::Device> device_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<WeightStore> weights_;
  StepBounds bounds_;
  std::unique_ptr<Model> target_;
  AlignedBuffer arena_;
  KvStorage storage_ = *KvStorage::create({}, 16);
  std::vector<LayerCache> caches_;
  std::unique_ptr<DraftModel> head_;
  SamplingParams params_;
};

std::vector<TokenId> sequence(int32_t seed = 0) {
  std::vector<TokenId> tokens;
  for (TokenId i = 0; i < kLongest; ++i) tokens.push_back((i * i * 31 + i * 7 + seed) % 480);
  return tokens;
}

// Blocks for all but the last of `num_known` tokens.
std::vector<BlockId> blocks_for(int32_t num_known, int32_t first = 0) {
  std::vector<BlockId> blocks;
  for (int32_t i = 0; i < ceil_div(num_known - 1, 16); ++i) blocks.emplace_back(first + i);
  return blocks;
}

std::vector<TokenId> tokens_of(const Draft& draft) {
  return {draft.guessed().begin(), draft.guessed().end()};
}

// Drafts from all states at once, in a separate rig.
std::vector<TokenId> from_all_states(const std::string& head,
                                     const std::vector<TokenId>& all,
                                     int32_t num_known) {
  Rig rig(head);
  const std::vector<BlockId> blocks = blocks_for(num_known);
  rig.step(all, blocks, 0, num_known - 1);
  return tokens_of(rig.draft(RequestId(1), all, blocks, num_known, num_known - 1));
}

TEST(HeadDrafts, StepByStepTheyAreThoseOfAllStatesAtOnce) {
  for (const char* head : {"layers", "mapped", "whole"}) {
    const std::vector<TokenId> all = sequence();
    Rig rig(head);
    int32_t computed = 0;
    std::vector<std::vector<TokenId>> seen;

    // The pieces of a prompt up to 40, then steps with a token and accepted drafts; rejected rows
    // are the tokens behind.
    const struct {
      int32_t rows;
      int32_t accepted;
      int32_t max;
    } kSteps[] = {{20, 20, 0},
                  {13, 13, 0},
                  {7, 7, kMost},
                  {1, 1, kMost},
                  {4, 2, kMost},
                  {4, 1, 0},
                  {4, 4, kMost},
                  {1, 1, kMost},
                  {3, 3, 1},
                  {4, 3, kMost}};

    for (const auto& step : kSteps) {
      const std::vector<BlockId> blocks = blocks_for(computed + step.rows + 1);
      rig.step(all, blocks, computed, computed + step.rows);
      computed += step.accepted;
      const Draft draft = rig.draft(
          RequestId(1), all, blocks_for(computed + 1), computed + 1, step.accepted, step.max);
      ASSERT_EQ(draft.size, step.max) << head << " at " << computed;
      ASSERT_EQ(draft.source, DraftSource::kEagle);
      if (step.max != kMost) continue;
      seen.push_back(tokens_of(draft));
      EXPECT_EQ(seen.back(), from_all_states(head, all, computed + 1))
          << head << " at " << computed;
    }
    std::ranges::sort(seen);
    EXPECT_GT(std::ranges::unique(seen).begin() - seen.begin(), 3);  // the drafts do differ
  }
}

TEST(HeadDrafts, OfTheMappedHeadAreIdsThatItHas) {
  const auto checkpoint = Checkpoint::open(golden_folder() + "/eagle/mapped");
  ASSERT_TRUE(checkpoint.has_value());
  std::vector<TokenId> ids;
  const std::span<const int64_t> offsets = (*checkpoint)->id_offsets();
  for (size_t i = 0; i < offsets.size(); ++i) {
    ids.push_back(static_cast<TokenId>(static_cast<int64_t>(i) + offsets[i]));
  }
  Rig rig("mapped");
  rig.params().temperature = 2;
  std::vector<TokenId> drafted;
  for (int32_t i = 0; i < 20; ++i) {
    const std::vector<TokenId> all = sequence(i);
    rig.params().seed = static_cast<uint64_t>(i);
    rig.step(all, blocks_for(30), 0, 29);
    const Draft draft = rig.draft(RequestId(static_cast<uint64_t>(i)), all, blocks_for(30), 30, 29);
    for (const TokenId token : draft.guessed()) drafted.push_back(token);
  }
  EXPECT_EQ(drafted.size(), 60U);
  for (const TokenId token : drafted) EXPECT_TRUE(std::ranges::binary_search(ids, token)) << token;
  EXPECT_GT(*std::ranges::max_element(drafted), 100);  // not the head's own ids
}

// Another request with the first one's blocks finds the head's KV for them.
TEST(HeadDrafts, BehindAHitTheyUseWhatTheHeadHasOfThePrefix) {
  const std::vector<TokenId> all = sequence();
  Rig rig("layers");
  rig.step(all, blocks_for(50), 0, 49);
  EXPECT_EQ(rig.draft(RequestId(1), all, blocks_for(50), 50, 49).size, kMost);
  std::vector<BlockId> shared = blocks_for(33);
  shared.emplace_back(10);
  shared.emplace_back(11);
  // Position 32 is the end of the hit: its row, computed from a state before the hit, is in the
  // third block, which is not shared.
  rig.step(all, shared, 32, 49);
  const Draft second = rig.draft(RequestId(2), all, shared, 50, 17);
  EXPECT_EQ(second.size, kMost);
  // Without draft KV in the shared blocks, the head's sequence begins at the end of the hit.
  Rig cold("layers");
  cold.step(all, blocks_for(33), 0, 32);
  cold.step(all, shared, 32, 49);
  const Draft later = cold.draft(RequestId(2), all, shared, 50, 17);
  EXPECT_EQ(later.size, kMost);
  EXPECT_NE(tokens_of(second), tokens_of(later));
}

// A preempted request returns in other blocks and is recomputed, including its answer.
TEST(HeadDrafts, BehindAPreemptionTheyAreThoseOfAllStatesAtOnce) {
  for (const char* head : {"layers", "mapped", "whole"}) {
    const std::vector<TokenId> all = sequence();
    Rig rig(head);
    rig.step(all, blocks_for(50), 0, 49);
    EXPECT_EQ(rig.draft(RequestId(1), all, blocks_for(50), 50, 49).size, kMost);
    rig.step(all, blocks_for(54), 49, 53);
    EXPECT_EQ(rig.draft(RequestId(1), all, blocks_for(52), 52, 2).size, kMost);
    std::vector<TokenId> last;
    for (int32_t begin = 0; begin < 51; begin += 17) {
      const int32_t end = begin + 17;
      const std::vector<BlockId> others = blocks_for(end + 1, 20);
      rig.step(all, others, begin, end);
      last = tokens_of(rig.draft(RequestId(1), all, others, end + 1, 17, end == 51 ? kMost : 0));
    }
    EXPECT_EQ(last, from_all_states(head, all, 52)) << head;
    // It also continues from there.
    rig.step(all, blocks_for(56, 20), 51, 55);
    EXPECT_EQ(tokens_of(rig.draft(RequestId(1), all, blocks_for(56, 20), 56, 4)),
              from_all_states(head, all, 56))
        << head;
  }
}

TEST(HeadDrafts, WithoutAStateThereIsNoDraftAndBehindAGapThereIsAgain) {
  const std::vector<TokenId> all = sequence();
  Rig rig("layers");
  EXPECT_EQ(rig.draft(RequestId(1), all, blocks_for(20), 20, 0).size, 0);
  rig.step(all, blocks_for(21), 0, 20);
  EXPECT_EQ(rig.draft(RequestId(1), all, blocks_for(21), 21, 20).size, kMost);
  // A repeated call without another step still has the state that it needs.
  const Draft again = rig.draft(RequestId(1), all, blocks_for(21), 21, 0);
  EXPECT_EQ(tokens_of(again), from_all_states("layers", all, 21));
  rig.step(all, blocks_for(60), 20, 59);  // no draft is requested behind this one
  rig.step(all, blocks_for(61), 59, 60);
  EXPECT_EQ(rig.draft(RequestId(1), all, blocks_for(61), 61, 1).size, kMost);
}

TEST(HeadDrafts, PlanHasRowsForTheHead) {
  const auto planned = plan_model(config_with("mapped"), {.num_threads = 2});
  ASSERT_TRUE(planned.has_value());
  Config off = config_with("mapped");
  off.speculative_config.clear();
  const auto plain = plan_model(off, {.num_threads = 2});
  ASSERT_TRUE(plain.has_value());
  const DraftPlan& draft = *planned->plan.draft;
  EXPECT_EQ(draft.max_model_len, kLongest);
  EXPECT_LT(planned->plan.kv_groups[0].num_blocks, plain->plan.kv_groups[0].num_blocks);
  // The target keeps three inputs per token of a step.
  EXPECT_GE(planned->plan.arena_bytes - plain->plan.arena_bytes, int64_t{kLongest} * 3 * 64 * 4);
  EXPECT_GE(draft.arena_bytes, int64_t{kLongest} * 3 * 64 * 4);
}

}  // namespace
}  // namespace sluice
