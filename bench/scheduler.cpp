// SPDX-License-Identifier: Apache-2.0
// What a step's decision costs, without a model: 256 running requests, and the lookup of a prompt
// of 4,096 tokens that is cached.
#include "scheduler/scheduler.h"

#include <benchmark/benchmark.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/core/status.h"

namespace sluice {
namespace {

void ScheduleAndUpdateDecodes(benchmark::State& state, bool timed_update) {
  const auto num_seqs = static_cast<int32_t>(state.range(0));
  const int32_t max_model_len = 1 << 14;
  const KvManagerOptions kv_options{
      .block_size = 16, .max_num_seqs = num_seqs, .max_model_len = max_model_len};
  const int32_t blocks_each = max_model_len / 16;
  const SchedulerOptions options{.max_num_seqs = num_seqs,
                                 .max_num_batched_tokens = 8192,
                                 .step_target_ms = 0,
                                 .max_num_queued_reqs = num_seqs,
                                 .max_model_len = max_model_len};
  KvCacheManager kv(kv_options,
                    {{.kind = KvGroupKind::kFull, .num_blocks = num_seqs * blocks_each}});
  Scheduler scheduler(options, kv);
  uint64_t next_id = 1;
  int64_t now_ms = 0;
  std::vector<SampledToken> sampled;
  std::vector<RequestId> aborted;
  sampled.reserve(static_cast<size_t>(num_seqs));
  for (auto _ : state) {
    state.PauseTiming();
    while (scheduler.num_running() + scheduler.num_waiting() < num_seqs) {
      const std::vector<TokenId> prompt(64, static_cast<TokenId>(next_id));
      const auto added = scheduler.add({.id = RequestId{next_id++},
                                        .prompt = prompt,
                                        .max_tokens = max_model_len - 64,
                                        .priority = 0,
                                        .extras = {}});
      CHECK(added.has_value());
    }
    state.ResumeTiming();
    const SchedulerOutput& output = scheduler.schedule(now_ms++);
    if (!timed_update) state.PauseTiming();
    sampled.clear();
    for (const ScheduledRequest& row : output.scheduled) {
      if (row.samples) sampled.push_back({row.id, 1, false});
    }
    scheduler.update(output, sampled, 1.0, aborted);
    if (!timed_update) state.ResumeTiming();
  }
}

void Schedule(benchmark::State& state) { ScheduleAndUpdateDecodes(state, false); }

void ScheduleAndUpdate(benchmark::State& state) { ScheduleAndUpdateDecodes(state, true); }

// 256 run, 10,000 of 1,000 tenants wait, and four end in each step.
void ScheduleWithAQueue(benchmark::State& state) {
  const auto num_seqs = static_cast<int32_t>(state.range(0));
  const auto num_waiting = static_cast<int32_t>(state.range(1));
  constexpr int32_t kPrompt = 32;
  constexpr int32_t kOutput = 64;
  KvCacheManager kv({.block_size = 16, .max_num_seqs = num_seqs, .max_model_len = 128},
                    {{.kind = KvGroupKind::kFull, .num_blocks = num_seqs * 8}});
  Scheduler scheduler({.max_num_seqs = num_seqs,
                       .max_num_batched_tokens = 1024,
                       .step_target_ms = 50,
                       .max_num_queued_reqs = num_waiting + num_seqs,
                       .max_model_len = 128},
                      kv);
  uint64_t next_id = 1;
  int64_t now_ms = 0;
  std::vector<SampledToken> sampled;
  std::vector<RequestId> aborted;
  for (auto _ : state) {
    state.PauseTiming();
    while (scheduler.num_waiting() < num_waiting) {
      std::vector<TokenId> prompt(kPrompt, static_cast<TokenId>(next_id));
      const auto added = scheduler.add({.id = RequestId{next_id},
                                        .prompt = std::move(prompt),
                                        .max_tokens = kOutput,
                                        .priority = static_cast<int32_t>(next_id % 3),
                                        .extras = {},
                                        .tenant = TenantId(next_id % 1000),
                                        .arrival_ms = now_ms});
      CHECK(added.has_value());
      ++next_id;
    }
    state.ResumeTiming();
    const SchedulerOutput& output = scheduler.schedule(now_ms);
    state.PauseTiming();
    now_ms += 50;
    sampled.clear();
    for (const ScheduledRequest& row : output.scheduled) {
      if (row.samples) sampled.push_back({row.id, 1, false});
    }
    scheduler.update(output, sampled, 40.0, aborted);
    state.ResumeTiming();
  }
}

void PrefixLookup(benchmark::State& state) {
  const auto num_tokens = static_cast<int32_t>(state.range(0));
  KvCacheManager kv({.block_size = 16, .max_num_seqs = 4, .max_model_len = 2 * num_tokens},
                    {{.kind = KvGroupKind::kFull, .num_blocks = num_tokens}});
  std::vector<TokenId> prompt(static_cast<size_t>(num_tokens) + 1);
  std::iota(prompt.begin(), prompt.end(), 0);
  kv.acquire_prefix(RequestId{1}, prompt, {});
  CHECK(kv.allocate_slots(RequestId{1}, num_tokens));
  kv.cache_blocks(RequestId{1}, prompt, num_tokens);
  kv.free(RequestId{1});
  for (auto _ : state) {
    CHECK_EQ(kv.acquire_prefix(RequestId{2}, prompt, {}), num_tokens);
    kv.free(RequestId{2});
  }
}

BENCHMARK(Schedule)->Arg(256)->Iterations(16000);
BENCHMARK(ScheduleAndUpdate)->Arg(256)->Iterations(16000);
BENCHMARK(ScheduleWithAQueue)->Args({256, 10000})->Iterations(4000);
BENCHMARK(PrefixLookup)->Arg(4096);

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
