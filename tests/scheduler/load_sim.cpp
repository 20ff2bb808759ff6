// SPDX-License-Identifier: Apache-2.0
#include "tests/scheduler/load_sim.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <queue>
#include <random>
#include <span>
#include <utility>

#include "tests/support/new_request.h"

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
        results_(clients.size()),
        random_(options.seed) {
    for (size_t i = 0; i < clients.size(); ++i) draw_arrivals(i);
  }

  const LoadSteps& steps() const { return steps_; }

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
    for (int32_t i = 0; i < clients_[client].num_streams; ++i) begin_next(client, 0);
    if (clients_[client].num_streams > 0) return;
    std::mt19937_64 random(options_.seed * 1000 + client);
    double at_ms = 0;
    for (uint64_t i = 0;; ++i) {
      const double uniform = (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53;
      at_ms -= std::log(uniform) * 1000 / clients_[client].requests_per_s;
      if (at_ms > 1000 * options_.seconds) return;
      arrivals_.push({at_ms, client, ((client + 1) << 32) + i, false});
    }
  }

  // A stream's next request. The streams of a client draw their pauses from one sequence.
  void begin_next(size_t client, double now_ms) {
    const double pause = clients_[client].pause_ms;
    const double at_ms =
        now_ms - (pause > 0 ? std::log(1 - chance(num_begun_, client)) * pause : 0);
    if (at_ms > 1000 * clients_[client].until_s) return;
    arrivals_.push({at_ms, client, ((client + 1) << 32) + num_begun_++, false});
  }

  // A number in [0, 1) that depends on the seed and on these two alone.
  [[nodiscard]] double chance(uint64_t a, uint64_t b) const {
    uint64_t x = options_.seed * 0x9E3779B97F4A7C15 + a * 0xBF58476D1CE4E5B9 + b;
    for (const int shift : {30, 27, 31}) x = (x ^ (x >> shift)) * 0x94D049BB133111EB;
    return static_cast<double>(x >> 11) * 0x1p-53;
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
    Request request = testing::new_request(arrival.id, std::move(prompt), client.num_output);
    request.tenant = client.tenant;
    request.arrival_ms = static_cast<int64_t>(arrival.at_ms);
    const auto added = scheduler_.add(std::move(request));
    CHECK(added.has_value());
  }

  static int32_t answer_of(const LoadClient& client, uint64_t id) {
    if (client.mean_answer <= 0) return client.num_output;
    const double uniform = (static_cast<double>(std::mt19937_64(id)() >> 11) + 0.5) * 0x1p-53;
    const auto drawn = static_cast<int32_t>(-std::log(uniform) * client.mean_answer);
    return std::clamp(drawn, 1, client.num_output);
  }

  // Offers drafts for the coming step and returns how long making them took.
  double offer_drafts() {
    const LoadDrafts& drafts = options_.drafts;
    if (drafts.num_tokens == 0 || !scheduler_.wants_drafts()) return 0;
    decoding_.clear();
    scheduler_.list_decoding(decoding_);
    if (decoding_.empty()) return 0;
    const auto num_requests = static_cast<double>(decoding_.size());
    double ms = drafts.propose_ms * num_requests;
    int32_t depth = drafts.num_tokens;
    if (is_of_model(drafts.source)) {
      depth = scheduler_.draft_depth(decoding_, depth);
      ms = drafts.propose_ms * (1 + 0.1 * num_requests) * depth;
      scheduler_.note_passes(static_cast<int32_t>(decoding_.size()), depth, ms);
    }
    Draft draft;
    draft.clear(drafts.source);
    for (int32_t i = 0; i < depth; ++i) draft.push(kToken, 0);
    for (const RequestId id : decoding_) {
      const auto stretch = static_cast<uint64_t>(running_.at(id.value).num_generated / 16);
      if (chance(id.value, ~stretch) < drafts.offered) scheduler_.offer_drafts(id, draft);
    }
    scheduler_.note_proposers(ms);
    return ms;
  }

  // The time of a step without noise.
  [[nodiscard]] double step_ms(int64_t num_prompt, int64_t num_decode, int64_t num_draft) const {
    const double prompt_ms = options_.prompt_token_ms * static_cast<double>(num_prompt);
    if (options_.rows_ms) return prompt_ms + options_.rows_ms(now_ms_, num_decode, num_draft);
    return prompt_ms + options_.step_ms + options_.decode_ms * static_cast<double>(num_decode);
  }

  // Draws a step's time, and counts it and that of its tokens without drafts.
  double take_time(const SchedulerOutput& output, double propose_ms) {
    int64_t num_draft = 0;
    int64_t num_decodes = 0;
    int64_t num_accepted = 0;
    for (const ScheduledRequest& row : output.scheduled) {
      num_draft += row.num_draft_tokens;
      if (row.num_scheduled_tokens - row.num_draft_tokens == 1) ++num_decodes;
      num_accepted += num_right(row);
    }
    const int64_t num_prompt = output.num_prefill_tokens;
    const int64_t num_decode = output.total_tokens - num_prompt;
    const auto uniform = [&] { return static_cast<double>(random_() >> 11) * 0x1p-53; };
    double mean = 1;
    double factor = 1;
    if (options_.noise > 0) factor += options_.noise * (uniform() - 0.5);
    if (options_.slow_share > 0) {
      mean += options_.slow_share * (options_.slowdown - 1);
      if (uniform() < options_.slow_share) factor *= options_.slowdown;
    }
    const double ms = step_ms(num_prompt, num_decode, num_draft) * factor;
    const double extra =
        num_decodes == 0 ? 0 : static_cast<double>(num_accepted) / static_cast<double>(num_decodes);
    steps_.ms += ms + propose_ms;
    // A step without drafts is its own measure, noise included.
    steps_.off_ms +=
        num_draft == 0
            ? ms
            : mean * (step_ms(num_prompt, num_decodes, 0) + extra * step_ms(0, num_decodes, 0));
    ++steps_.num_steps;
    steps_.num_drafted += num_draft;
    steps_.num_accepted += num_accepted;
    return ms;
  }

  // How many drafts of a row are right and still belong to the answer.
  [[nodiscard]] int32_t num_right(const ScheduledRequest& row) const {
    const Running& request = running_.at(row.id.value);
    const int32_t most =
        std::min(row.num_draft_tokens, request.num_answer - request.num_generated - 1);
    int32_t right = 0;
    while (right < most &&
           chance(row.id.value, static_cast<uint64_t>(request.num_generated + right)) <
               options_.drafts.acceptance(now_ms_, row.id.value)) {
      ++right;
    }
    return right;
  }

  void step() {
    const bool anybody_waited = scheduler_.num_unstarted() > 0;
    const double propose_ms = offer_drafts();
    const SchedulerOutput& output = scheduler_.schedule(static_cast<int64_t>(now_ms_));
    const double ms = take_time(output, propose_ms);
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
      const int32_t right = num_right(row);
      request.num_computed =
          row.num_computed_tokens + row.num_scheduled_tokens - row.num_draft_tokens + right;
      if (!row.chosen.empty()) {
        const auto num_tokens = static_cast<size_t>(1 + right);
        results_of_step_.push_back({row.id,
                                    std::span(kTokens).first(num_tokens),
                                    request.num_generated + 1 + right == request.num_answer});
      }
    }
    now_ms_ += ms + propose_ms;
    scheduler_.update(output, results_of_step_, ms, aborted_);
    if (anybody_waited) speed_.observe(work_started, ms / 1000);
    for (const StepResult& result : results_of_step_) {
      for (size_t i = 0; i < result.tokens.size(); ++i) note_token(result.id);
    }
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
    if (clients_[request.client].num_streams > 0) begin_next(request.client, now_ms_);
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
  static constexpr std::array<TokenId, kMaxDraftTokens + 1> kTokens{};
  std::vector<StepResult> results_of_step_;
  std::vector<RequestId> aborted_;
  std::vector<RequestId> decoding_;
  double now_ms_ = 0;
  uint64_t num_begun_ = 0;  // by streams
  std::vector<LoadResult> results_;
  LoadSteps steps_;
  std::mt19937_64 random_;
};

}  // namespace

double LoadResult::percentile_ms(double share) const {
  std::vector<double> sorted = first_token_ms;
  std::ranges::sort(sorted);
  const auto index = static_cast<size_t>(share * static_cast<double>(sorted.size()));
  return sorted.at(std::min(index, sorted.size() - 1));
}

std::vector<LoadResult> run_load(const LoadOptions& options,
                                 const std::vector<LoadClient>& clients,
                                 LoadSteps* steps) {
  LoadSim sim(options, clients);
  std::vector<LoadResult> results = sim.run();
  if (steps != nullptr) *steps = sim.steps();
  return results;
}

}  // namespace sluice
