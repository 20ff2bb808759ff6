// SPDX-License-Identifier: Apache-2.0
// Counts calls of operator new and therefore has its own binary.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/support/allocation_meter.h"
#include "tests/support/new_request.h"

namespace sluice {
namespace {

// Covers prefills, decodes, preemptions, prefix hits and evictions, all after add().
TEST(SchedulerAllocation, SteadyStepsAllocateNothing) {
  KvCacheManager kv({.block_size = 4, .max_num_seqs = 16, .max_model_len = 256},
                    {{.kind = KvGroupKind::kFull, .num_blocks = 100},
                     {.kind = KvGroupKind::kWindow, .window = 32, .num_blocks = 100}});
  Scheduler scheduler({.max_num_seqs = 16,
                       .max_num_batched_tokens = 64,
                       .step_target_ms = 20,
                       .max_num_queued_reqs = 64,
                       .max_model_len = 256},
                      kv);
  for (uint64_t id = 1; id <= 40; ++id) {
    std::vector<TokenId> prompt(20 + id % 5 * 8, static_cast<TokenId>(id % 5));
    Request request = testing::new_request(id, std::move(prompt), 60);
    request.priority = static_cast<int32_t>(id % 2);
    request.tenant = TenantId(id % 3);
    if (id == 40) request.deadline_ms = 100;
    ASSERT_TRUE(scheduler.add(std::move(request)).has_value());
  }
  constexpr TokenId kToken = 1;
  std::vector<StepResult> results;
  std::vector<RequestId> aborted;
  results.reserve(16);
  uint64_t num_preempted = 0;
  int64_t now_ms = 0;
  reset_allocation_meter();
  while (scheduler.has_work()) {
    const SchedulerOutput& output = scheduler.schedule(now_ms += 7);
    num_preempted += output.preempted.size();
    results.clear();
    for (const ScheduledRequest& row : output.scheduled) {
      if (!row.chosen.empty()) results.push_back({row.id, {&kToken, 1}, false});
    }
    scheduler.update(output, results, 1.0 + 0.1 * output.total_tokens, aborted);
  }
  EXPECT_EQ(num_allocations(), 0U);
  EXPECT_GT(num_preempted, 0u);
  EXPECT_GT(kv.usage().prefix_hits, 0u);
}

}  // namespace
}  // namespace sluice
