// SPDX-License-Identifier: Apache-2.0
// Prompts whose KV is sent to another worker during the computation.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"
#include "tests/support/new_request.h"

namespace sluice {
namespace {

using Chunks = std::vector<int32_t>;

constexpr int32_t kBlockSize = 16;

// Returns the chunks of a prompt that runs alone.
Chunks chunks_of(int32_t num_tokens, bool streams_kv, int32_t max_partial = 0) {
  constexpr int32_t kMaxLen = 8192;
  KvCacheManager kv({.block_size = kBlockSize, .max_num_seqs = 4, .max_model_len = kMaxLen},
                    {{.kind = KvGroupKind::kFull, .num_blocks = 1024}});
  Scheduler scheduler({.max_num_seqs = 4,
                       .max_num_batched_tokens = 2048,
                       .step_target_ms = 0,
                       .max_num_partial_prefills = max_partial,
                       .max_num_queued_reqs = 8,
                       .max_model_len = kMaxLen},
                      kv);
  Request request =
      testing::new_request(1, std::vector<TokenId>(static_cast<size_t>(num_tokens), 7), 1);
  request.streams_kv = streams_kv;
  EXPECT_TRUE(scheduler.add(std::move(request)));
  Chunks chunks;
  while (scheduler.has_work()) {
    const SchedulerOutput step = scheduler.schedule(0);
    chunks.push_back(step.total_tokens);
    if (step.scheduled.empty()) break;  // the scheduler is stuck
    constexpr TokenId kToken = 9;
    std::vector<StepResult> results;
    if (!step.scheduled[0].chosen.empty()) results.push_back({RequestId{1}, {&kToken, 1}, true});
    std::vector<RequestId> aborted;
    scheduler.update(step, results, 0, aborted);
  }
  return chunks;
}

// The receiving worker has all but a short chunk of the KV when the prompt ends.
TEST(StreamedPrompt, EndsWithAShortChunk) {
  EXPECT_EQ(chunks_of(1001, false), (Chunks{1001}));
  EXPECT_EQ(chunks_of(1001, true), (Chunks{752, 249}));  // behind a whole block
  EXPECT_EQ(chunks_of(4096, true), (Chunks{2048, 2048 - 256, 256}));
  EXPECT_EQ(chunks_of(320, true), (Chunks{64, 256}));
  EXPECT_EQ(chunks_of(1001, true, 1), (Chunks{752, 249}));
}

TEST(StreamedPrompt, IsNotCutWhereThatGainsNothing) {
  EXPECT_EQ(chunks_of(319, true), (Chunks{319}));        // too little in front
  EXPECT_EQ(chunks_of(2100, true), (Chunks{2048, 52}));  // short by itself
  EXPECT_EQ(chunks_of(2048 + 257, true), (Chunks{2048, 257}));
}

}  // namespace
}  // namespace sluice
