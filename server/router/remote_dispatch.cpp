// SPDX-License-Identifier: Apache-2.0
// Chooses the worker for a request of the router, and bounds the wait for one.
#include <algorithm>
#include <utility>

#include "engine/core/log.h"
#include "server/router/chooser.h"
#include "server/router/remote_engine.h"

namespace sluice {
namespace {

// Workers that may refuse a request for want of room; those that are asked next are the least
// loaded, and under overload each request costs so many questions.
constexpr size_t kMostFull = 4;
constexpr std::chrono::milliseconds kBetweenTries{300};  // tries of a parked request
constexpr std::chrono::seconds kMostUnaccepted{30};      // a worker accepts or refuses in this time

Candidate candidate_of(const Worker& worker, const std::vector<uint64_t>& chain) {
  const WorkerLoad& load = worker.health.load();
  const auto known = static_cast<int64_t>(worker.prefixes.num_known(chain));
  return {.cached_tokens = known * worker.description->block_size,
          .queued_tokens = std::max(load.queued_tokens, worker.queued_tokens),
          .num_active = std::max(load.num_running, worker.num_streams)};
}

std::vector<Candidate> candidates_of(const std::vector<Worker*>& workers,
                                     const std::vector<uint64_t>& chain) {
  std::vector<Candidate> candidates;
  for (const Worker* worker : workers) candidates.push_back(candidate_of(*worker, chain));
  return candidates;
}

}  // namespace

// Workers that compute prompts for others get whole requests only if there are no other workers:
// each can compute them.
RemoteEngine::Choice RemoteEngine::choice_of(const Stream& stream, const Worker* but, Time now) {
  std::vector<Worker*> usable = workers_.usable(stream.version->fingerprint(), now);
  if (usable.size() > 1) std::erase(usable, but);
  const auto middle = std::ranges::stable_partition(
      usable, [](const Worker* worker) { return is_prefill_worker(*worker); });
  std::vector<Worker*> prefilling(usable.begin(), middle.begin());
  if (!middle.empty()) usable.erase(usable.begin(), middle.begin());
  return {std::move(usable), std::move(prefilling)};
}

void RemoteEngine::take_no_room(Stream& stream, const Error& error) {
  const int32_t known = stream.refusal.retry_after_s;
  const bool is_earlier = error.retry_after_s > 0 && (known == 0 || error.retry_after_s < known);
  if (stream.full.empty() || is_earlier) stream.refusal = error;
  stream.full.push_back(stream.worker);
  leave_worker(stream);
  const Choice choice = choice_of(stream, nullptr, Clock::now());
  const bool is_full_everywhere = std::ranges::all_of(
      choice.answering, [&](const Worker* worker) { return stream.was_refused_by(worker); });
  if (is_full_everywhere || stream.full.size() >= kMostFull) return fail(stream, stream.refusal);
  dispatch(stream);
}

void RemoteEngine::dispatch(Stream& stream, const Worker* but) {
  const Time now = Clock::now();
  auto [usable, prefilling] = choice_of(stream, but, now);
  if (usable.empty()) return park(stream);
  std::vector<Worker*> untried = usable;
  std::erase_if(untried, [&stream](const Worker* worker) { return stream.was_refused_by(worker); });
  if (!untried.empty()) usable = std::move(untried);
  const std::vector<Candidate> candidates = candidates_of(usable, stream.chain);
  const ValidRequest& request = stream.ledger.request();
  const auto num_tokens = static_cast<int64_t>(request.prompt.size() + request.generated.size());
  const size_t chosen =
      stream.full.empty()
          ? choose_worker(candidates, num_tokens, [this] { return random_(); })
          : least_loaded(candidates);
  Worker& worker = *usable[chosen];
  {
    const std::scoped_lock lock(stats_mutex_);
    stats_.router->prefix_queries += static_cast<uint64_t>(num_tokens);
    stats_.router->prefix_hits += static_cast<uint64_t>(candidates[chosen].cached_tokens);
  }
  if (is_decode_worker(worker)) begin_prefill(stream, candidates[chosen], prefilling);
  if (stream.parked_at != Time{}) --num_parked_;
  stream.parked_at = Time{};
  stream.tried_at = now;
  stream.heard_at = now;
  stream.is_accepted = false;
  stream.worker = &worker;
  ++worker.num_streams;
  stream.queued_tokens = std::max<int64_t>(num_tokens - candidates[chosen].cached_tokens, 0);
  // The worker computes them only if the prefill fails.
  if (stream.prefill != nullptr) stream.queued_tokens = 0;
  worker.queued_tokens += stream.queued_tokens;
  worker.breaker.sent(now);
  const uint32_t attempt = stream.ledger.begin_attempt();
  ValidRequest asked = stream.ledger.attempt_request();
  if (stream.prefill != nullptr) asked.handoff = stream.prefill->fetch();
  stream.call = worker.link.generate(
      asked,
      stream.version->fingerprint(),
      [this, id = stream.id, attempt](CallUpdate update) {
        take_update(id, attempt, std::move(update));
      },
      [this, id = stream.id, attempt](CallEnd end, const std::string& reason) {
        take_end(id, attempt, end, reason);
      });
}

// A prompt's log-probabilities need its computation; moved KV does not give them.
void RemoteEngine::begin_prefill(Stream& stream,
                                 const Candidate& answers,
                                 const std::vector<Worker*>& workers) {
  const ValidRequest& request = stream.ledger.request();
  const bool is_whole = request.generated.empty() && request.sampling.num_prompt_logprobs < 0 &&
                        !request.handoff.has_value();
  if (!is_whole || workers.empty()) return;
  const std::vector<Candidate> candidates = candidates_of(workers, stream.chain);
  const auto num_tokens = static_cast<int64_t>(request.prompt.size());
  const size_t chosen = choose_worker(candidates, num_tokens, [this] { return random_(); });
  const Candidate& prefills = candidates[chosen];
  if (!is_prompt_better_elsewhere(answers, prefills, num_tokens, config_.handoff_min_tokens)) {
    return;
  }
  const int64_t num_uncached = std::max<int64_t>(num_tokens - prefills.cached_tokens, 0);
  stream.prefill = PrefillLeg::begin(*workers[chosen], request, stream.chain, num_uncached);
  const std::scoped_lock lock(stats_mutex_);
  ++stats_.router->num_handoffs;
}

void RemoteEngine::park(Stream& stream) {
  if (stream.parked_at != Time{}) return;
  stream.parked_at = Clock::now();
  if (stream.waits_since == Time{}) stream.waits_since = stream.parked_at;
  ++num_parked_;
}

void RemoteEngine::dispatch_parked() {
  if (num_parked_ == 0 || has_stopped_) return;
  const Time now = Clock::now();
  std::vector<std::shared_ptr<Stream>> parked;
  for (const auto& [id, stream] : streams_) {
    if (stream->worker == nullptr && now - stream->tried_at >= kBetweenTries) {
      parked.push_back(stream);
    }
  }
  std::ranges::sort(parked, {}, [](const auto& stream) { return stream->parked_at; });
  for (const auto& stream : parked) {
    if (!workers_.usable(stream->version->fingerprint(), now).empty()) dispatch(*stream);
  }
}

// Tells whether new requests go to other versions, because this one has no workers.
bool RemoteEngine::has_left(const RouterVersion& version) {
  bool others = false;
  for (const Version& known : versions_.all()) {
    if (known.engine.get() == &version && (known.share > 0 || known.num_usable > 0)) return false;
    others = others || known.share > 0;
  }
  return others;
}

// A request without a token does not wait for a version that has left: its sender may read it
// again for another.
void RemoteEngine::expire_parked(Time now) {
  if (num_parked_ == 0) return;
  std::vector<std::shared_ptr<Stream>> expired;
  for (const auto& [id, stream] : streams_) {
    if (stream->worker != nullptr) continue;
    const bool is_late = now - stream->waits_since > std::chrono::seconds(config_.worker_wait_s);
    if (is_late || (stream->ledger.num_tokens() == 0 && has_left(*stream->version))) {
      expired.push_back(stream);
    }
  }
  for (const auto& stream : expired) {
    fail(*stream, unavailable("The request's worker is lost, and no other one has come in time."));
  }
}

// A worker that answers pings may still have lost a request, or never have taken it.
void RemoteEngine::expire_silent(Time now) {
  std::vector<std::shared_ptr<Stream>> silent;
  for (const auto& [id, stream] : streams_) {
    if (stream->worker == nullptr) continue;
    const std::chrono::seconds most =
        stream->is_accepted ? std::chrono::seconds(config_.worker_silence_s) : kMostUnaccepted;
    const bool is_forgotten =
        stream->is_accepted && stream->worker->health.has_forgotten_since(stream->heard_at);
    if (is_forgotten || now - stream->heard_at > most) silent.push_back(stream);
  }
  for (const auto& stream : silent) {
    log_event(LogLevel::kWarning,
              "worker_says_nothing",
              "worker",
              stream->worker->address,
              "request",
              stream->id.value,
              "tokens",
              stream->ledger.num_tokens());
    fail_attempt(*stream, unavailable("The request's worker says nothing about it."));
  }
}

}  // namespace sluice
