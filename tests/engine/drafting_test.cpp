// SPDX-License-Identifier: Apache-2.0
// The cost of guessing is counted wherever it occurs.
#include "engine/draft/drafting.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/new_request.h"

namespace sluice {
namespace {

TEST(Drafting, TheTimeOfAskingWhetherToWaitIsTheStepsToo) {
  const ByteTokenizer tokenizer;
  KvCacheManager kv({.block_size = 16, .max_num_seqs = 2, .max_model_len = 128},
                    {{.num_blocks = 32}});
  Scheduler scheduler({.max_num_seqs = 2, .max_model_len = 128}, kv);
  SpecConfig config;
  config.ngram = true;
  Drafting drafting(config, ByteTokenizer::kVocabSize, tokenizer, kv, nullptr);
  const RequestId id(1);
  ASSERT_TRUE(scheduler.add(testing::new_request(1, {5, 6, 7, 5, 6, 7}, 8)).has_value());
  drafting.begin(std::make_shared<const RequestRecord>(RequestRecord{
      .id = id, .log = scheduler.find(id)->log, .num_prompt_tokens = 6, .sampling = {}}));
  DraftStats stats;
  drafting.offer(scheduler, stats);
  const SchedulerOutput& prompt = scheduler.schedule(0);
  ASSERT_EQ(prompt.scheduled.size(), 1U);
  const std::vector<TokenId> chosen = {5};
  const std::vector<StepResult> results = {{.id = id, .tokens = chosen}};
  std::vector<RequestId> aborted;
  scheduler.update(prompt, results, 1, aborted);

  const uint64_t before = stats.proposer_ns;
  drafting.should_wait(scheduler, stats);
  EXPECT_GT(stats.proposer_ns, before);
  const uint64_t asked = stats.proposer_ns - before;
  const SchedulerOutput& step = scheduler.schedule(0);
  EXPECT_DOUBLE_EQ(step.draft_ms, 1e-6 * static_cast<double>(asked));
}

// Such a request gets no drafts, and Drafting is not called at its end.
TEST(Drafting, KeepsNoRequestForAVector) {
  const ByteTokenizer tokenizer;
  const KvCacheManager kv({.block_size = 16, .max_num_seqs = 2, .max_model_len = 128},
                          {{.num_blocks = 32}});
  SpecConfig config;
  config.ngram = true;
  Drafting drafting(config, ByteTokenizer::kVocabSize, tokenizer, kv, nullptr);
  const auto of_text = std::make_shared<const RequestRecord>(
      RequestRecord{.id = RequestId(1), .log = {}, .sampling = {}});
  const auto of_vector = std::make_shared<const RequestRecord>(RequestRecord{
      .id = RequestId(2), .log = {}, .sampling = {}, .pooling = PoolingParams()});
  drafting.begin(of_text);
  drafting.begin(of_vector);
  EXPECT_EQ(of_text.use_count(), 2);
  EXPECT_EQ(of_vector.use_count(), 1);
}

}  // namespace
}  // namespace sluice
