// SPDX-License-Identifier: Apache-2.0
// The fixture SchedulerTest: a scheduler over a KV manager of one group, driven step by step.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache/kv_cache_manager.h"
#include "scheduler/scheduler.h"
#include "tests/support/new_request.h"

namespace sluice {

// One full group; every sampled token is its step's number plus 1000.
class SchedulerTest : public ::testing::Test {
 protected:
  void build(int32_t num_blocks, const SchedulerOptions& options) {
    build({.kind = KvGroupKind::kFull, .num_blocks = num_blocks}, /*caches=*/true, options);
  }

  void build(const KvGroupSpec& group, bool caches, const SchedulerOptions& options) {
    kv_ = std::make_unique<KvCacheManager>(KvManagerOptions{.block_size = 4,
                                                            .enable_prefix_caching = caches,
                                                            .max_num_seqs = options.max_num_seqs,
                                                            .max_model_len = options.max_model_len},
                                           std::vector<KvGroupSpec>{group});
    scheduler_ = std::make_unique<Scheduler>(options, *kv_);
  }

  static SchedulerOptions options() {
    return {.max_num_seqs = 4,
            .max_num_batched_tokens = 64,
            .step_target_ms = 0,
            .max_num_queued_reqs = 8,
            .max_model_len = 256};
  }

  // Adds a request whose prompt shares no prefix with others.
  Expected<int32_t> add(uint64_t id, int32_t num_tokens, int32_t max_tokens, int32_t priority = 0) {
    std::vector<TokenId> prompt(static_cast<size_t>(num_tokens), static_cast<TokenId>(id));
    Request request = testing::new_request(id, std::move(prompt), max_tokens);
    request.priority = priority;
    return scheduler_->add(std::move(request));
  }

  // Returns a request's prompt and answer.
  std::vector<TokenId> tokens_of(RequestId id) {
    const std::span<const TokenId> tokens = scheduler_->find(id)->tokens();
    return {tokens.begin(), tokens.end()};
  }

  // Adds a request of a tenant at the current time.
  Expected<int32_t> add_of(uint64_t tenant,
                           uint64_t id,
                           int32_t num_tokens,
                           int32_t priority = 0,
                           int32_t max_tokens = 1) {
    std::vector<TokenId> prompt(static_cast<size_t>(num_tokens), static_cast<TokenId>(id));
    Request request = testing::new_request(id, std::move(prompt), max_tokens);
    request.priority = priority;
    request.tenant = TenantId{tenant};
    request.arrival_ms = now_ms_;
    return scheduler_->add(std::move(request));
  }

  // Steps until nothing is left and returns the order in which requests start.
  std::vector<uint64_t> starts() {
    std::vector<uint64_t> order;
    while (scheduler_->has_work()) {
      for (const ScheduledRequest& row : step().scheduled) {
        if (row.num_computed_tokens == 0) order.push_back(row.id.value);
      }
    }
    return order;
  }

  // Adds a prompt of forty equal tokens.
  Expected<int32_t> add_sevens(uint64_t id, bool scores_prompt = false) {
    Request request = testing::new_request(id, std::vector<TokenId>(40, 7), 4);
    request.scores_prompt = scores_prompt;
    return scheduler_->add(std::move(request));
  }

  SchedulerOutput schedule() {
    SchedulerOutput output = scheduler_->schedule(now_ms_);
    EXPECT_EQ(scheduler_->check_integrity(), "");
    EXPECT_EQ(kv_->check_integrity(), "");
    return output;
  }

  std::vector<RequestId> update(const SchedulerOutput& output, double measured_ms = 0) {
    const auto token = static_cast<TokenId>(1000 + output.step_id);
    std::vector<StepResult> results;
    for (const ScheduledRequest& row : output.scheduled) {
      if (!row.chosen.empty()) results.push_back({row.id, {&token, 1}, false});
    }
    std::vector<RequestId> aborted;
    scheduler_->update(output, results, measured_ms, aborted);
    EXPECT_EQ(scheduler_->check_integrity(), "");
    EXPECT_EQ(kv_->check_integrity(), "");
    return aborted;
  }

  SchedulerOutput step() {
    SchedulerOutput output = schedule();
    update(output);
    return output;
  }

  static int32_t tokens_of(const SchedulerOutput& output, uint64_t id) {
    for (const ScheduledRequest& row : output.scheduled) {
      if (row.id == RequestId{id}) return row.num_scheduled_tokens;
    }
    return 0;
  }

  int64_t now_ms_ = 0;
  std::unique_ptr<KvCacheManager> kv_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace sluice
