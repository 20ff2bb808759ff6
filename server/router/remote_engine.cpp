// SPDX-License-Identifier: Apache-2.0
#include "server/router/remote_engine.h"

#include <algorithm>
#include <future>
#include <utility>

#include "engine/core/log.h"
#include "engine/core/times.h"

namespace sluice {
namespace {

constexpr std::chrono::milliseconds kTick{100};
constexpr std::chrono::seconds kLogInterval{5};
constexpr int32_t kRetryAfterS = 1;  // a breaker's first wait

// Tells whether the error is the worker's own, so that another may succeed.
bool is_workers_own(ErrorCode code) {
  return code == ErrorCode::kInternal || code == ErrorCode::kUnavailable ||
         code == ErrorCode::kDataLoss;
}

}  // namespace

Error RemoteEngine::unavailable(const char* message) {
  Error error{ErrorCode::kUnavailable, message, {}, {}};
  error.retry_after_s = kRetryAfterS;
  return error;
}

RemoteEngine::RemoteEngine(const Config& config,
                           RouteRule rule,
                           VersionSet::MakeTokenizer own_tokenizer)
    : config_(config),
      timer_(loop_->context()),
      workers_(config_, loop_),
      versions_(*this,
                [this](auto version, ValidRequest request, OutputSink& sink) {
                  return submit_to(std::move(version), std::move(request), sink);
                },
                std::move(rule),
                loop_,
                std::move(own_tokenizer),
                [this](Expected<void> status) { take_learned(std::move(status)); }),
      random_(std::random_device()()) {
  stats_.router.emplace();
  workers_.set_events({.lost = [this](Worker& worker) { reassign_all(worker); },
                       .changed =
                           [this](Worker& worker) {
                             versions_.learn(worker);
                             publish_stats();
                             dispatch_parked();
                           }});
}

Expected<std::unique_ptr<RemoteEngine>> RemoteEngine::create(
    const Config& config, VersionSet::MakeTokenizer own_tokenizer) {
  SLUICE_TRY(RouteRule rule, RouteRule::read(config));
  std::unique_ptr<RemoteEngine> engine(
      new RemoteEngine(config, std::move(rule), std::move(own_tokenizer)));
  RemoteEngine* const self = engine.get();
  std::promise<Expected<void>> learned;
  std::future<Expected<void>> result = learned.get_future();
  self->learned_ = [&learned](Expected<void> status) { learned.set_value(std::move(status)); };
  SLUICE_TRY(self->discovery_,
             Discovery::create(config.workers, [self](std::vector<std::string> addresses) {
               self->loop_->post([self, addresses = std::move(addresses)] {
                 self->workers_.set_addresses(addresses);
               });
             }));
  self->loop_->post([self] { self->schedule_tick(); });
  self->loop_->begin();
  self->discovery_->begin();
  SLUICE_TRY_VOID(result.get());
  return engine;
}

RemoteEngine::~RemoteEngine() { stop(); }

void RemoteEngine::stop() {
  {
    const std::scoped_lock lock(stats_mutex_);  // a submitted stream is posted before later calls
    if (stopped_.exchange(true)) return;
    draining_ = true;
  }
  if (discovery_ == nullptr) return loop_->end();  // create() has failed
  discovery_.reset();
  std::promise<void> ended;
  loop_->post([this, &ended] {
    const auto open = streams_;
    for (const auto& [id, stream] : open) end(*stream, FinishReason::kAbort);
    has_stopped_ = true;
    timer_.cancel();
    ended.set_value();
  });
  ended.get_future().wait();
  loop_->end();
}

void RemoteEngine::take_learned(Expected<void> status) {
  publish_stats();
  if (status && first_ == nullptr) first_ = versions_.all().front().engine;
  if (learned_) std::exchange(learned_, nullptr)(std::move(status));
  dispatch_parked();
}

void RemoteEngine::schedule_tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || has_stopped_) return;
    tick();
    schedule_tick();
  });
}

void RemoteEngine::tick() {
  const Time now = Clock::now();
  workers_.tick(now);
  if (learned_ && now - waiting_logged_at_ > kLogInterval) {
    waiting_logged_at_ = now;
    log_event(LogLevel::kInfo, "waiting_for_workers", "known", workers_.all().size());
  }
  dispatch_parked();
  expire_parked(now);
  expire_silent(now);
  publish_stats();
}

std::vector<std::shared_ptr<Engine>> RemoteEngine::versions() {
  const std::scoped_lock lock(stats_mutex_);
  std::vector<std::shared_ptr<Engine>> found{usual_};
  for (const Route& route : routes_) {
    if (route.share > 0 && route.version != usual_) found.push_back(route.version);
  }
  return found;
}

std::shared_ptr<RouterVersion> RemoteEngine::take_route() {
  const double point = point_of_request(num_routed_.fetch_add(1));
  const std::scoped_lock lock(stats_mutex_);
  std::vector<double> shares;
  for (const Route& route : routes_) shares.push_back(route.share);
  const size_t chosen = version_at(shares, point);
  return chosen < routes_.size() ? routes_[chosen].version : usual_;
}

std::shared_ptr<Engine> RemoteEngine::next_version() { return take_route(); }

Expected<RequestId> RemoteEngine::submit(ValidRequest request, OutputSink& sink) {
  return submit_to(take_route(), std::move(request), sink);
}

Expected<RequestId> RemoteEngine::submit_to(std::shared_ptr<const RouterVersion> version,
                                            ValidRequest request,
                                            OutputSink& sink) {
  const std::scoped_lock lock(stats_mutex_);
  if (draining_) {
    return make_error(ErrorCode::kUnavailable, "The router is draining and takes no new requests.");
  }
  const auto route = std::ranges::find(routes_, version, &Route::version);
  if (route == routes_.end() || route->num_usable == 0) {
    return tl::unexpected(unavailable("No worker is there."));
  }
  if (stats_.router->num_parked >= config_.max_num_queued_reqs) {
    ++stats_.num_refused;
    return make_error(ErrorCode::kResourceExhausted, "Too many requests wait for a worker.");
  }
  ++stats_.num_requests_waiting;
  const RequestId id(next_id_.fetch_add(1));
  auto stream = std::make_shared<Stream>(id, std::move(version), std::move(request), sink);
  loop_->post([this, stream = std::move(stream)] { begin(stream); });
  return id;
}

void RemoteEngine::begin(std::shared_ptr<Stream> stream) {
  Stream& begun = *stream;
  streams_.emplace(begun.id, std::move(stream));
  if (has_stopped_) return end(begun, FinishReason::kAbort);
  budget_.count_request();
  const ValidRequest& request = begun.ledger.request();
  {
    const std::scoped_lock lock(stats_mutex_);
    stats_.prompt_tokens += request.prompt.size();
    stats_.prompt_length.observe(kLengthBounds, static_cast<double>(request.prompt.size()));
  }
  const Worker* const any = workers_.any_of(begun.version->fingerprint());
  if (any != nullptr && config_.affinity_blocks > 0) {
    begun.chain = block_chain(request, any->description->block_size);
  }
  dispatch(begun);
}

RemoteEngine::Stream* RemoteEngine::find(RequestId id, uint32_t attempt) {
  const auto found = streams_.find(id);
  if (found == streams_.end() || !found->second->ledger.is_current(attempt)) return nullptr;
  return found->second.get();
}

void RemoteEngine::take_update(RequestId id, uint32_t attempt, CallUpdate update) {
  Stream* const stream = find(id, attempt);
  if (stream == nullptr) {
    const std::scoped_lock lock(stats_mutex_);
    stats_.router->num_late_outputs += update.outputs.size();
    return;
  }
  stream->heard_at = Clock::now();
  if (update.is_broken) {
    return fail_attempt(*stream, {ErrorCode::kInternal, "A worker's message is broken.", {}, {}});
  }
  if (update.refusal) return take_refusal(*stream, *update.refusal);
  if (update.accepted) {
    stream->ledger.accepted();
    stream->is_accepted = true;
    stream->full.clear();  // that was about the wait for this worker
    stream->waits_since = Time{};
    stream->worker->breaker.succeeded();
  }
  const std::shared_ptr<Stream> kept = streams_.at(id);  // the last output may erase it
  if (!update.outputs.empty()) leave_queue(*kept);
  int32_t position = update.position;
  for (TokenOutput& output : update.outputs) {
    if (!take_output(*kept, attempt, position, output)) return;
  }
}

bool RemoteEngine::take_output(Stream& stream,
                               uint32_t attempt,
                               int32_t& position,
                               TokenOutput& output) {
  // The router did not abort: the worker stops, or a rank of it has failed.
  if (output.finish_reason == FinishReason::kAbort) {
    stream.worker->health.drains();
    reassign(stream, output.error);
    return false;
  }
  if (output.finish_reason == FinishReason::kError && is_workers_own(output.error_code)) {
    fail_attempt(stream, error_of(output));
    return false;
  }
  const StreamLedger::Verdict verdict = stream.ledger.accept(attempt, position, output);
  if (verdict == StreamLedger::Verdict::kBroken) {
    fail_attempt(stream, {ErrorCode::kInternal, "A worker's tokens do not follow.", {}, {}});
    return false;
  }
  if (output.token != kInvalidToken) {
    ++position;
    note_token(stream, Clock::now());
  }
  if (verdict == StreamLedger::Verdict::kDrop) return true;
  const FinishReason reason = output.finish_reason;
  publish(stream, std::move(output));
  if (reason == FinishReason::kNone) return true;
  if (!stream.chain.empty() && stream.worker->description) {
    const int32_t block_size = stream.worker->description->block_size;
    stream.worker->prefixes.add(block_chain(stream.ledger.request(), block_size));
  }
  stream.call.reset();  // the call ends by itself
  leave_worker(stream);
  streams_.erase(stream.id);
  return false;
}

void RemoteEngine::note_token(Stream& stream, Time now) {
  const ValidRequest& request = stream.ledger.request();
  const bool is_first = stream.first_token_at == Time{};
  if (is_first) {
    stream.first_token_at = now;
    stream.worker->prefixes.add(stream.chain);
  }
  const std::scoped_lock lock(stats_mutex_);
  if (is_first) {
    stats_.time_to_first_token.observe(
        kFirstTokenBounds, seconds_between(request.arrival, now), request.trace);
  } else {
    stats_.inter_token_latency.observe(
        kInterTokenBounds, seconds_between(stream.latest_at, now), request.trace);
  }
  stream.latest_at = now;
  ++stats_.generation_tokens;
  stats_.last_progress_ns = to_ns(now);
}

// A request that was accepted before is not sent back for a full queue.
void RemoteEngine::take_refusal(Stream& stream, const Error& error) {
  const bool is_full =
      error.code == ErrorCode::kResourceExhausted || error.code == ErrorCode::kDeadlineExceeded;
  stream.worker->breaker.succeeded();  // it has answered
  if (is_full && stream.ledger.was_accepted()) {
    leave_worker(stream);
    return park(stream);
  }
  if (error.code == ErrorCode::kResourceExhausted) return take_no_room(stream, error);
  if (error.code == ErrorCode::kUnavailable) {
    stream.worker->health.drains();
    leave_worker(stream);
    dispatch(stream);
    if (stream.worker == nullptr && !stream.ledger.was_accepted()) {
      publish_stats();  // the request is read again for a version that has workers
      fail(stream, error);
    }
    return;
  }
  if (is_workers_own(error.code)) return fail_attempt(stream, error);
  fail(stream, error);
}

void RemoteEngine::take_end(RequestId id,
                            uint32_t attempt,
                            CallEnd end,
                            const std::string& reason) {
  Stream* const stream = find(id, attempt);
  if (stream == nullptr) return;  // its last output has arrived, or it was cancelled
  Worker& worker = *stream->worker;
  switch (end) {
    case CallEnd::kLost:
      worker.breaker.died(Clock::now());
      return reassign(*stream);
    case CallEnd::kOtherModel:
      worker.breaker.gave_up();
      workers_.describe(worker);
      return reassign(*stream);
    case CallEnd::kInvalid:
      worker.breaker.succeeded();
      return fail(*stream, {ErrorCode::kInvalidArgument, reason, {}, {}});
    case CallEnd::kDenied:
    case CallEnd::kFailed:
      return fail_attempt(*stream, {ErrorCode::kUnavailable, reason, {}, {}});
    case CallEnd::kComplete:
      return fail_attempt(*stream,
                          {ErrorCode::kInternal, "A worker ended before its answer.", {}, {}});
  }
}

void RemoteEngine::leave_queue(Stream& stream) {
  stream.worker->queued_tokens -= std::exchange(stream.queued_tokens, 0);
}

void RemoteEngine::leave_worker(Stream& stream) {
  stream.ledger.end_attempt();
  if (stream.worker == nullptr) return;
  leave_queue(stream);
  --stream.worker->num_streams;
  stream.worker = nullptr;
  if (stream.call != nullptr) stream.call->cancel();
  stream.call.reset();
  stream.prefill.reset();
}

void RemoteEngine::reassign(Stream& stream, const std::string& reason) {
  const std::string address = stream.worker->address;
  const Worker* const lost = stream.worker;
  leave_worker(stream);
  log_event(LogLevel::kInfo,
            "request_lost_worker",
            "worker",
            address,
            "request",
            stream.id.value,
            "tokens",
            stream.ledger.num_tokens(),
            "losses_before",
            stream.ledger.num_losses(),
            "reason",
            reason);
  if (!stream.ledger.count_loss(config_.max_worker_losses)) {
    return fail(stream, unavailable("The request has lost its worker too many times."));
  }
  {
    const std::scoped_lock lock(stats_mutex_);
    ++stats_.router->num_continuations;
  }
  dispatch(stream, lost);
}

void RemoteEngine::fail_attempt(Stream& stream, const Error& why) {
  const Worker* const failed = stream.worker;
  stream.worker->breaker.failed(Clock::now());
  leave_worker(stream);
  if (!stream.ledger.may_retry() || !budget_.take()) return fail(stream, why);
  stream.ledger.count_retry();
  {
    const std::scoped_lock lock(stats_mutex_);
    ++stats_.router->num_retries;
  }
  dispatch(stream, failed);
}

void RemoteEngine::reassign_all(Worker& worker) {
  worker.breaker.died(Clock::now());
  worker.prefixes.clear();
  std::vector<std::shared_ptr<Stream>> lost;
  for (const auto& [id, stream] : streams_) {
    if (stream->worker == &worker) lost.push_back(stream);
    if (stream->prefill != nullptr && stream->prefill->worker() == &worker) stream->prefill->end();
  }
  if (!lost.empty()) {
    log_event(LogLevel::kWarning, "worker_out", "worker", worker.address, "requests", lost.size());
  }
  for (const auto& stream : lost) reassign(*stream);
}

void RemoteEngine::fail(Stream& stream, const Error& error) {
  TokenOutput output;
  output.finish_reason = FinishReason::kError;
  output.error = error.message;
  output.error_code = error.code;
  output.error_param = error.param;
  output.retry_after_s = error.retry_after_s;
  const auto kept = streams_.at(stream.id);
  if (stream.parked_at != Time{}) --num_parked_;
  leave_worker(stream);
  publish(stream, std::move(output));
  streams_.erase(stream.id);
}

void RemoteEngine::end(Stream& stream, FinishReason reason) {
  TokenOutput output;
  output.finish_reason = reason;
  const auto kept = streams_.at(stream.id);
  if (stream.parked_at != Time{}) --num_parked_;
  if (stream.worker != nullptr) stream.worker->breaker.gave_up();
  leave_worker(stream);
  publish(stream, std::move(output));
  streams_.erase(stream.id);
}

void RemoteEngine::abort(RequestId id) {
  loop_->post([this, id] {
    const auto found = streams_.find(id);
    if (found != streams_.end()) end(*std::shared_ptr<Stream>(found->second), FinishReason::kAbort);
  });
}

void RemoteEngine::publish(Stream& stream, TokenOutput output) {
  output.request_id = stream.id;
  if (output.finish_reason != FinishReason::kNone) {
    const ValidRequest& request = stream.ledger.request();
    const double seconds = seconds_between(request.arrival, Clock::now());
    const std::scoped_lock lock(stats_mutex_);
    ++stats_.requests_finished[static_cast<size_t>(output.finish_reason)];
    stats_.e2e_latency.observe(kRequestBounds, seconds, request.trace);
    stats_.generation_length.observe(kLengthBounds, stream.ledger.num_tokens());
  }
  OutputBatch batch;
  batch.outputs.push_back(std::move(output));
  stream.sink->publish(std::move(batch));
}

std::vector<FingerprintStats> RemoteEngine::count_versions() {
  for (Version& version : versions_.all()) version.num_streams = 0;
  for (const auto& [id, stream] : streams_) {
    const auto own = std::ranges::find(versions_.all(), stream->version, &Version::engine);
    if (own != versions_.all().end()) ++own->num_streams;
  }
  versions_.update(workers_, Clock::now());
  std::vector<FingerprintStats> counts;
  for (const Version& version : versions_.all()) {
    counts.push_back({.fingerprint = version.engine->fingerprint(),
                      .num_ready = version.num_usable,
                      .num_requests = version.num_streams,
                      .share = version.share});
  }
  return counts;
}

void RemoteEngine::publish_stats() {
  const Time now = Clock::now();
  std::vector<FingerprintStats> fingerprints = count_versions();
  std::vector<Route> routes;
  int64_t usable = 0;
  for (const Version& version : versions_.all()) {
    routes.push_back({version.engine, version.num_usable, version.share});
    usable += version.num_usable;
  }
  std::vector<WorkerStats> workers = workers_.stats(
      [this](const std::string& fingerprint) { return versions_.is_known(fingerprint); }, now);
  int64_t total = 0;
  int64_t used = 0;
  int32_t block_size = 0;
  uint64_t num_steps = 0;
  for (const auto& worker : workers_.all()) {
    total += worker->health.load().num_blocks_total;
    used += worker->health.load().num_blocks_used;
    num_steps += worker->health.load().num_steps;
    if (worker->description) block_size = worker->description->block_size;
  }
  const std::scoped_lock lock(stats_mutex_);
  stats_.router->workers = std::move(workers);
  stats_.router->fingerprints = std::move(fingerprints);
  stats_.router->num_usable = usable;
  routes_ = std::move(routes);
  usual_ = versions_.usual();
  stats_.router->num_parked = num_parked_;
  stats_.num_requests_running = static_cast<int64_t>(streams_.size()) - num_parked_;
  stats_.num_requests_waiting = num_parked_;
  stats_.num_blocks_total = total;
  stats_.num_blocks_used = used;
  stats_.block_size = block_size;
  stats_.num_steps = num_steps;
  if (streams_.empty()) stats_.last_progress_ns = to_ns(now);
}

EngineStats RemoteEngine::stats() const {
  const std::scoped_lock lock(stats_mutex_);
  EngineStats copy = stats_;
  copy.draining = draining_;
  return copy;
}

void RemoteEngine::report_state(int32_t, std::function<void(EngineState)> done) {
  {
    const std::scoped_lock lock(stats_mutex_);
    if (!stopped_) return loop_->post([this, done = std::move(done)] { collect_state(done); });
  }
  EngineState state;
  state.stats = stats();
  done(std::move(state));
}

void RemoteEngine::collect_state(const std::function<void(EngineState)>& done) {
  publish_stats();
  EngineState state;
  state.stats = stats();
  const Time now = Clock::now();
  for (const auto& [id, stream] : streams_) {
    const ValidRequest& request = stream->ledger.request();
    RequestSummary& summary = state.requests.emplace_back();
    summary.id = id;
    summary.status = stream->worker != nullptr ? "running" : "waiting";
    summary.priority = request.priority;
    summary.age_ms = 1e3 * seconds_between(request.arrival, now);
    summary.num_prompt_tokens = static_cast<int32_t>(request.prompt.size());
    summary.num_generated = stream->ledger.num_tokens();
    summary.max_tokens = request.sampling.max_tokens;
  }
  std::ranges::sort(state.requests, {}, &RequestSummary::id);
  done(std::move(state));
}

}  // namespace sluice
