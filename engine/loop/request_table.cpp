// SPDX-License-Identifier: Apache-2.0
#include "engine/loop/request_table.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/core/times.h"

namespace sluice {
namespace {

double elapsed_s(RequestTable::Clock::time_point from, RequestTable::Clock::time_point to) {
  return std::max(0.0, std::chrono::duration<double>(to - from).count());
}

}  // namespace

// The prompt's tokens become the log, which all share.
RequestState::RequestState(RequestId id,
                           ValidRequest&& valid,
                           OutputSink& output,
                           int32_t max_model_len)
    : record(std::make_shared<RequestRecord>()),
      grammar_spec(std::move(valid.grammar)),
      handoff(std::move(valid.handoff)),
      sink(&output),
      num_generated(static_cast<int32_t>(valid.generated.size())) {
  const auto num_prompt_tokens = static_cast<int32_t>(valid.prompt.size());
  const int32_t max_tokens = valid.pooling ? 1 : valid.sampling.max_tokens;
  const int64_t num_in_all = int64_t{num_prompt_tokens} + std::max(max_tokens, num_generated);
  const auto room = static_cast<size_t>(std::min<int64_t>(num_in_all, max_model_len));
  const size_t capacity = std::max(valid.prompt.size() + valid.generated.size(), room);
  std::vector<TokenId> tokens = std::move(valid.prompt);
  tokens.reserve(capacity);
  tokens.insert(tokens.end(), valid.generated.begin(), valid.generated.end());
  request = {.id = id,
             .log = TokenLog(std::move(tokens), capacity),
             .num_prompt_tokens = num_prompt_tokens,
             .max_tokens = max_tokens,
             .priority = valid.priority,
             .tenant = valid.tenant,
             .extras = {.tenant_salt = valid.tenant_salt, .adapter_id = valid.adapter_id},
             .scores_prompt = valid.sampling.num_prompt_logprobs >= 0,
             .keeps_prompt = valid.keeps_prompt,
             .arrival_ms = to_ms(valid.arrival)};
  record->id = id;
  record->log = request->log;
  record->num_prompt_tokens = num_prompt_tokens;
  record->num_given = num_generated;
  record->sampling = std::move(valid.sampling);
  record->pooling = valid.pooling;
  record->speculative = valid.speculative;
  record->prediction = std::move(valid.prediction);
  record->tenant_salt = valid.tenant_salt;
  record->arrival = valid.arrival;
  record->trace = std::move(valid.trace);
}

void RequestState::set_grammar(std::shared_ptr<const Grammar> grammar) {
  record->grammar = std::make_shared<const BoundGrammar>(
      BoundGrammar{.grammar = std::move(grammar), .begins_after = grammar_spec->begins_after});
  grammar_spec.reset();
}

RequestState& RequestTable::add(RequestState state) {
  const RequestId id = state.record->id;
  return states_.emplace(id, std::move(state)).first->second;
}

RequestState* RequestTable::find(RequestId id) {
  const auto it = states_.find(id);
  return it == states_.end() ? nullptr : &it->second;
}

const RequestState* RequestTable::find(RequestId id) const {
  const auto it = states_.find(id);
  return it == states_.end() ? nullptr : &it->second;
}

bool RequestTable::note_scheduled(RequestId id,
                                  int32_t num_cached_tokens,
                                  Clock::time_point now,
                                  EngineStats& stats) {
  RequestState& state = states_.at(id);
  if (state.scheduled) return false;
  state.scheduled = true;
  state.first_scheduled = now;
  state.num_cached_tokens = num_cached_tokens;
  stats.queue_time.observe(kRequestBounds, elapsed_s(state.record->arrival, now));
  stats.prompt_tokens += static_cast<uint64_t>(state.record->num_prompt_tokens);
  return true;
}

void RequestTable::add_tokens(RequestId id,
                              std::span<const SamplerResult> results,
                              size_t num_drafts,
                              bool are_predicted,
                              Clock::time_point now,
                              EngineStats& stats) {
  RequestState& state = states_.at(id);
  if (state.num_generated == state.record->num_given) {
    state.first_token = now;
    stats.time_to_first_token.observe(
        kFirstTokenBounds, elapsed_s(state.record->arrival, now), state.record->trace);
    stats.prefill_time.observe(kRequestBounds, elapsed_s(state.first_scheduled, now));
  } else {
    stats.inter_token_latency.observe(
        kInterTokenBounds, elapsed_s(state.last_token, now), state.record->trace);
  }
  state.last_token = now;
  stats.generation_tokens += results.size();
  state.num_draft_tokens += static_cast<int32_t>(num_drafts);
  state.num_accepted_tokens += static_cast<int32_t>(results.size()) - 1;
  const size_t num_predicted = are_predicted ? num_drafts : 0;
  for (const SamplerResult& result : results) {
    const bool is_last = &result == &results.back();
    ++state.num_generated;
    if (num_predicted > 0 && !is_last) ++state.num_accepted_predictions;
    if (num_predicted > 0 && is_last) {
      state.num_rejected_predictions += static_cast<int32_t>(num_predicted - results.size() + 1);
    }
    queue_token(id, state, result);
  }
  const FinishReason reason = results.back().finish_reason;
  if (reason != FinishReason::kNone) {
    count_end(state, reason, stats);
    remove(id);
  }
}

void RequestTable::queue_token(RequestId id,
                               const RequestState& state,
                               const SamplerResult& result) {
  TokenOutput output;
  output.request_id = id;
  output.token = result.token;
  output.logprob = result.logprob;
  output.top_logprobs.reserve(result.top_logprobs.size());
  for (const kernels::TokenScore& score : result.top_logprobs) {
    output.top_logprobs.push_back({.token = score.token, .logprob = score.logprob});
  }
  output.finish_reason = result.finish_reason;
  output.stop_token = result.stopped_by_token ? result.token : kInvalidToken;
  output.num_cached_tokens = state.num_cached_tokens;
  output.num_accepted_predictions = state.num_accepted_predictions;
  output.num_rejected_predictions = state.num_rejected_predictions;
  output.timings = timings(state);
  if (result.finish_reason != FinishReason::kNone) output.offer = state.offer;
  queue(state.sink, std::move(output));
}

void RequestTable::add_prompt_logprobs(RequestId id, std::vector<PromptLogprob> logprobs) {
  const RequestState& state = states_.at(id);
  TokenOutput output;
  output.request_id = id;
  output.num_cached_tokens = state.num_cached_tokens;
  output.prompt_logprobs = std::move(logprobs);
  queue(state.sink, std::move(output));
}

void RequestTable::add_pooled_row(RequestId id,
                                  const PoolingInfo& info,
                                  int32_t position,
                                  std::span<const float> row) {
  RequestState& state = states_.at(id);
  pool_row(info, *state.record->pooling, position, row, state.pooled);
}

void RequestTable::end_pooled(std::span<const RequestId> ids,
                              const PoolingInfo& info,
                              const PooledOperators& layers,
                              EngineStats& stats,
                              std::vector<RequestId>& failed) {
  std::vector<std::vector<float>*> texts;
  for (const RequestId id : ids) {
    RequestState& state = states_.at(id);
    end_rows(info, *state.record->pooling, state.record->num_prompt_tokens, state.pooled);
    texts.push_back(&state.pooled);
  }
  layers.apply(texts);
  for (const RequestId id : ids) {
    RequestState& state = states_.at(id);
    if (!finish_pooling(info, *state.record->pooling, state.pooled)) {
      failed.push_back(id);
      continue;
    }
    TokenOutput output;
    output.request_id = id;
    output.finish_reason = FinishReason::kStop;
    output.num_cached_tokens = state.num_cached_tokens;
    output.timings = timings(state);
    output.pooled = std::move(state.pooled);
    queue(state.sink, std::move(output));
    const double seconds = elapsed_s(state.first_scheduled, Clock::now());
    stats.prefill_time.observe(kRequestBounds, seconds);
    count_end(state, FinishReason::kStop, stats);
    remove(id);
  }
}

void RequestTable::end(RequestId id, const Ending& ending, EngineStats& stats) {
  const auto it = states_.find(id);
  if (it == states_.end()) return;
  TokenOutput output;
  output.request_id = id;
  output.finish_reason = ending.reason;
  output.error = ending.error;
  output.error_code = ending.code;
  output.retry_after_s = ending.retry_after_s;
  output.error_param = ending.param;
  output.num_cached_tokens = it->second.num_cached_tokens;
  output.timings = timings(it->second);
  queue(it->second.sink, std::move(output));
  count_end(it->second, ending.reason, stats);
  if (ending.code == ErrorCode::kDeadlineExceeded) ++stats.num_expired;
  remove(id);
}

void RequestTable::remove(RequestId id) {
  states_.erase(id);
  ++num_ended_;
}

RequestTimings RequestTable::timings(const RequestState& state) {
  RequestTimings timings;
  timings.num_preemptions = state.num_preemptions;
  const Clock::time_point now = Clock::now();
  const auto ms = [](Clock::time_point from, Clock::time_point to) {
    return 1e3 * elapsed_s(from, to);
  };
  timings.queued_ms = ms(state.record->arrival, state.scheduled ? state.first_scheduled : now);
  if (!state.scheduled) return timings;
  const bool has_token = state.num_generated > state.record->num_given;
  timings.prefill_ms = ms(state.first_scheduled, has_token ? state.first_token : now);
  if (has_token) timings.decode_ms = ms(state.first_token, state.last_token);
  return timings;
}

void RequestTable::flush() {
  for (Pending& pending : pending_) pending.sink->publish(std::move(pending.batch));
  pending_.clear();
}

void RequestTable::queue(OutputSink* sink, TokenOutput output) {
  const auto it = std::ranges::find(pending_, sink, &Pending::sink);
  Pending& pending = it != pending_.end() ? *it : pending_.emplace_back(Pending{sink, {}});
  pending.batch.outputs.push_back(std::move(output));
}

void RequestTable::count_end(const RequestState& state, FinishReason reason, EngineStats& stats) {
  const Clock::time_point now = Clock::now();
  ++stats.requests_finished[static_cast<size_t>(reason)];
  stats.e2e_latency.observe(
      kRequestBounds, elapsed_s(state.record->arrival, now), state.record->trace);
  stats.generation_length.observe(kLengthBounds, state.num_generated);
  if (state.num_generated > state.record->num_given) {
    stats.decode_time.observe(kRequestBounds, elapsed_s(state.first_token, now));
  }
}

}  // namespace sluice
