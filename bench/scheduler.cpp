// SPDX-License-Identifier: Apache-2.0
// The cost of a step's decision, without a model: 256 running requests, and the lookup of a cached
// prompt of 4,096 tokens.
#include "scheduler/scheduler.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "engine/core/status.h"
#include "tests/support/new_request.h"

namespace sluice {
namespace {

constexpr TokenId kToken = 1;  // every request's only token

// Times single pieces of work; the pauses of benchmark::State cost more than a step.
class Samples {
 public:
  explicit Samples(benchmark::State& state) : state_(state) {}

  void start() { start_ = Clock::now(); }

  void stop() {
    const std::chrono::duration<double> passed = Clock::now() - start_;
    state_.SetIterationTime(passed.count());
    us_.push_back(passed.count() * 1e6);
  }

  void report() {
    std::ranges::sort(us_);
    state_.counters["p50_us"] = at(0.5);
    state_.counters["p99_us"] = at(0.99);
  }

 private:
  using Clock = std::chrono::steady_clock;

  [[nodiscard]] double at(double share) const {
    return us_.at(static_cast<size_t>(share * static_cast<double>(us_.size())));
  }

  benchmark::State& state_;
  Clock::time_point start_;
  std::vector<double> us_;
};

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
  std::vector<StepResult> results;
  std::vector<RequestId> aborted;
  results.reserve(static_cast<size_t>(num_seqs));
  Samples samples(state);
  for (auto _ : state) {
    while (scheduler.num_running() + scheduler.num_waiting() < num_seqs) {
      std::vector<TokenId> prompt(64, static_cast<TokenId>(next_id));
      const auto added =
          scheduler.add(testing::new_request(next_id++, std::move(prompt), max_model_len - 64));
      CHECK(added.has_value());
    }
    samples.start();
    const SchedulerOutput& output = scheduler.schedule(now_ms++);
    if (!timed_update) samples.stop();
    results.clear();
    for (const ScheduledRequest& row : output.scheduled) {
      if (!row.chosen.empty()) results.push_back({row.id, {&kToken, 1}, false});
    }
    scheduler.update(output, results, 1.0, aborted);
    if (timed_update) samples.stop();
  }
  samples.report();
}

void Schedule(benchmark::State& state) { ScheduleAndUpdateDecodes(state, false); }

void ScheduleAndUpdate(benchmark::State& state) { ScheduleAndUpdateDecodes(state, true); }

// 256 requests run, 10,000 of 1,000 tenants wait, and four end in each step.
void ScheduleWithAQueue(benchmark::State& state) {
  const auto num_seqs = static_cast<int32_t>(state.range(0));
  const auto num_waiting = static_cast<int32_t>(state.range(1));
  constexpr int32_t kPrompt = 32;
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
  std::vector<StepResult> results;
  std::vector<RequestId> aborted;
  Samples samples(state);
  for (auto _ : state) {
    while (scheduler.num_waiting() < num_waiting) {
      std::vector<TokenId> prompt(kPrompt, static_cast<TokenId>(next_id));
      const int32_t max_tokens = 33 + static_cast<int32_t>(next_id * 37 % 63);
      Request request = testing::new_request(next_id, std::move(prompt), max_tokens);
      request.priority = static_cast<int32_t>(next_id % 3);
      request.tenant = TenantId(next_id % 1000);
      request.arrival_ms = now_ms;
      const auto added = scheduler.add(std::move(request));
      CHECK(added.has_value());
      ++next_id;
    }
    samples.start();
    const SchedulerOutput& output = scheduler.schedule(now_ms);
    samples.stop();
    now_ms += 50;
    results.clear();
    for (const ScheduledRequest& row : output.scheduled) {
      if (!row.chosen.empty()) results.push_back({row.id, {&kToken, 1}, false});
    }
    scheduler.update(output, results, 40.0, aborted);
  }
  samples.report();
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
  Samples samples(state);
  for (auto _ : state) {
    samples.start();
    CHECK_EQ(kv.acquire_prefix(RequestId{2}, prompt, {}), num_tokens);
    samples.stop();
    kv.free(RequestId{2});
  }
  samples.report();
}

BENCHMARK(Schedule)->Arg(256)->Iterations(16000)->UseManualTime();
BENCHMARK(ScheduleAndUpdate)->Arg(256)->Iterations(16000)->UseManualTime();
BENCHMARK(ScheduleWithAQueue)->Args({256, 10000})->Iterations(4000)->UseManualTime();
BENCHMARK(PrefixLookup)->Arg(4096)->UseManualTime();

}  // namespace
}  // namespace sluice

BENCHMARK_MAIN();
