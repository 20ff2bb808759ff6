// SPDX-License-Identifier: Apache-2.0
#include "tests/scheduler/load_sim.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <queue>
#include <random>
#include <utility>

namespace sluice {

namespace {

struct Arrival {
  double at_ms = 0;
  size_t client = 0;
  uint64_t id = 0;
  bool again = false;

  friend bool operator>(const Arrival& a, const Arrival& b) {
    return std::pair(a.at_ms, a.id) > std::pair(b.at_ms, b.id);
  }
};

struct Running {
  size_t client = 0;
  double arrived_ms = 0;
  QueuedWork queued;
  bool started = false;
  int32_t num_answer = 0;  // tokens that it will get
  int32_t num_generated = 0;
  int32_t num_computed = 0;
};

class LoadSim {
 public:
  LoadSim(const LoadOptions& options, const std::vector<LoadClient>& clients)
      : options_(options),
        clients_(clients),
        kv_({.block_size = 16,
             .max_num_seqs = options.scheduler.max_num_seqs,
             .max_model_len = options.scheduler.max_model_len},
            {{.kind = KvGroupKind::kFull,
              .num_blocks = options.num_blocks > 0 ? options.num_blocks
                                                   : options.scheduler.max_num_seqs *
                                                         options.scheduler.max_model_len / 16}}),
        scheduler_(options.scheduler, kv_),
        admission_(options.admission),
        results_(clients.size()) {
    for (size_t i = 0; i < clients.size(); ++i) draw_arrivals(i);
  }

  std::vector<LoadResult> run() {
    const double end_ms = 1000 * options_.seconds;
    while (now_ms_ < end_ms) {
      while (!arrivals_.empty() && arrivals_.top().at_ms <= now_ms_) {
        const Arrival next = arrivals_.top();
        arrivals_.pop();
        arrive(next);
      }
      if (!scheduler_.has_work()) {
        if (arrivals_.empty()) break;
        now_ms_ = arrivals_.top().at_ms;
        continue;
      }
      step();
    }
    return std::move(results_);
  }

 private:
  // Each client has its own random stream, so that its load does not change another's.
  void draw_arrivals(size_t client) {
    std::mt19937_64 random(options_.seed * 1000 + client);
    double at_ms = 0;
    for (uint64_t i = 0;; ++i) {
      const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
      at_ms -= std::log(uniform) * 1000 / clients_[client].requests_per_s;
      if (at_ms > 1000 * options_.seconds) return;
      arrivals_.push({at_ms, client, ((client + 1) << 32) + i, false});
    }
  }

  void arrive(const Arrival& arrival) {
    const LoadClient& client = clients_[arrival.client];
    LoadResult& result = results_[arrival.client];
    // No two prompts share a block.
    std::vector<TokenId> prompt(static_cast<size_t>(client.num_prompt),
                                static_cast<TokenId>(arrival.id & 0xFFFFFF));
    prompt[0] = static_cast<TokenId>(arrival.client);
    const auto entered = admission_.enter({.tenant = client.tenant,
                                           .prompt = prompt,
                                           .max_tokens = client.num_output,
                                           .max_wait_ms = 0},
                                          speed_.work_per_s(),
                                          speed_.mean_output(),
                                          static_cast<int64_t>(arrival.at_ms));
    if (!arrival.again) ++result.num_arrived;
    if (!entered) {
      ++result.num_refused;
      result.num_broken += arrival.again;
      const int32_t seconds = entered.error().retry_after_s;
      result.num_without_time += seconds == 0;
      if (client.comes_back) {
        arrivals_.push(
            {arrival.at_ms + 1000 * std::max(seconds, 1), arrival.client, arrival.id, seconds > 0});
      }
      return;
    }
    result.num_returned += arrival.again;
    running_[arrival.id] = {.client = arrival.client,
                            .arrived_ms = arrival.at_ms,
                            .queued = *entered,
                            .num_answer = answer_of(client, arrival.id)};
    const auto added = scheduler_.add({.id = RequestId(arrival.id),
                                       .tokens = std::move(prompt),
                                       .max_tokens = client.num_output,
                                       .priority = 0,
                                       .extras = {},
                                       .tenant = client.tenant,
                                       .arrival_ms = static_cast<int64_t>(arrival.at_ms)});
    CHECK(added.has_value());
  }

  static int32_t answer_of(const LoadClient& client, uint64_t id) {
    if (client.mean_answer <= 0) return client.num_output;
    const double uniform = (static_cast<double>(std::mt19937_64(id)() >> 11) + 0.5) * 0x1p-53;
    const auto drawn = static_cast<int32_t>(-std::log(uniform) * client.mean_answer);
    return std::clamp(drawn, 1, client.num_output);
  }

  void step() {
    const bool anybody_waited = scheduler_.num_unstarted() > 0;
    const SchedulerOutput& output = scheduler_.schedule(static_cast<int64_t>(now_ms_));
    const double ms = options_.step_ms + options_.prompt_token_ms * output.num_prefill_tokens +
                      options_.decode_ms * (output.total_tokens - output.num_prefill_tokens);
    now_ms_ += ms;
    for (const RequestId id : output.preempted) {
      Running& request = running_.at(id.value);
      ++results_[request.client].num_preempted;
      results_[request.client].num_lost_tokens += std::exchange(request.num_computed, 0);
    }
    int64_t work_started = 0;
    results_of_step_.clear();
    for (const ScheduledRequest& row : output.scheduled) {
      Running& request = running_.at(row.id.value);
      if (!request.started) {
        request.started = true;
        work_started += request.queued.work;
        admission_.leave(request.queued);
      }
      request.num_computed = row.num_computed_tokens + row.num_scheduled_tokens;
      if (!row.chosen.empty()) {
        results_of_step_.push_back(
            {row.id, {&kToken, 1}, request.num_generated + 1 == request.num_answer});
      }
    }
    scheduler_.update(output, results_of_step_, ms, aborted_);
    if (anybody_waited) speed_.observe(work_started, ms / 1000);
    for (const StepResult& result : results_of_step_) note_token(result.id);
  }

  void note_token(RequestId id) {
    const auto it = running_.find(id.value);
    Running& request = it->second;
    LoadResult& result = results_[request.client];
    if (request.num_generated++ == 0) {
      result.first_token_ms.push_back(now_ms_ - request.arrived_ms);
    }
    ++result.num_generated;
    if (request.num_generated < request.num_answer) return;
    speed_.observe_output(request.num_generated);
    ++result.num_finished;
    running_.erase(it);
  }

  const LoadOptions options_;
  const std::vector<LoadClient> clients_;
  KvCacheManager kv_;
  Scheduler scheduler_;
  Admission admission_;
  QueueSpeed speed_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::map<uint64_t, Running> running_;
  static constexpr TokenId kToken = 1;
  std::vector<StepResult> results_of_step_;
  std::vector<RequestId> aborted_;
  double now_ms_ = 0;
  std::vector<LoadResult> results_;
};

}  // namespace

double LoadResult::percentile_ms(double share) const {
  std::vector<double> sorted = first_token_ms;
  std::ranges::sort(sorted);
  const auto index = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted.at(std::min(index, sorted.size() - 1));
}

std::vector<LoadResult> run_load(const LoadOptions& options,
                                 const std::vector<LoadClient>& clients) {
  return LoadSim(options, clients).run();
}

}  // namespace sluice
