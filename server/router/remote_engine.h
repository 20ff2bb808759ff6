// SPDX-License-Identifier: Apache-2.0
// An engine without a model: requests go to workers (`sluice serve --worker-listen`), and their
// tokens are returned. The front end above it is unchanged, so all APIs work through a router, and
// one detokenizer makes the text of a stream however many workers took part.
//
// A stream whose worker is lost continues with another worker of the same fingerprint from prompt,
// seed and tokens so far, which gives the same tokens; without one it waits, then ends with an
// error; it is never cut short silently. Workers may have several fingerprints, as during an
// update: each is an engine of its own in versions(), and a stream stays with its own.
#pragma once

#include <algorithm>
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/core/config.h"
#include "engine/engine.h"
#include "server/router/chooser.h"
#include "server/router/discovery.h"
#include "server/router/prefill_leg.h"
#include "server/router/retry_budget.h"
#include "server/router/router_loop.h"
#include "server/router/router_version.h"
#include "server/router/stream_ledger.h"
#include "server/router/version_set.h"
#include "server/router/worker_set.h"

namespace sluice {

class RemoteEngine final : public Engine {
 public:
  // Looks for the workers of --workers and returns when the first has answered: its model is this
  // engine's. `own_tokenizer`: as VersionSet takes it. kInvalidArgument: --workers or a knob of
  // versions is empty or wrong; other errors concern the worker's tokenizer.
  static Expected<std::unique_ptr<RemoteEngine>> create(const Config& config,
                                                        VersionSet::MakeTokenizer own_tokenizer);
  ~RemoteEngine() override;

  // Submits to next_version().
  Expected<RequestId> submit(ValidRequest request, OutputSink& sink) override;
  void abort(RequestId id) override;
  [[nodiscard]] EngineStats stats() const override;
  void report_state(int32_t num_steps, std::function<void(EngineState)> done) override;

  // Return those of the version that was learned first.
  [[nodiscard]] const ModelInfo& model() const override { return first_->model(); }

  [[nodiscard]] const Tokenizer& tokenizer() const override { return first_->tokenizer(); }

  [[nodiscard]] Expected<std::vector<NamedFile>> tokenizer_files() const override {
    return first_->tokenizer_files();
  }

  [[nodiscard]] std::vector<std::shared_ptr<Engine>> versions() override;
  [[nodiscard]] std::shared_ptr<Engine> next_version() override;

  void drain() override { draining_ = true; }

  void stop() override;

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  // The router's thread owns this and all below, unless another is named.
  struct Stream {
    Stream(RequestId own_id,
           std::shared_ptr<const RouterVersion> its_version,
           ValidRequest request,
           OutputSink& its_sink)
        : id(own_id),
          version(std::move(its_version)),
          sink(&its_sink),
          ledger(std::move(request)) {}

    [[nodiscard]] bool was_refused_by(const Worker* one) const {
      return std::ranges::find(full, one) != full.end();
    }

    RequestId id;
    std::shared_ptr<const RouterVersion> version;
    OutputSink* sink;
    StreamLedger ledger;
    std::vector<uint64_t> chain;  // its prompt's blocks
    Worker* worker = nullptr;     // null: parked
    int64_t queued_tokens = 0;    // tokens to compute before its first output
    std::shared_ptr<WorkerCallHandle> call;
    std::shared_ptr<PrefillLeg> prefill;  // null: the worker computes its prompt
    Time parked_at{};       // while it has no worker
    Time waits_since{};     // time since which no worker has accepted it
    Time tried_at{};        // last try at a worker that had no room
    Time heard_at{};        // the worker's latest message about it, or when it was sent there
    bool is_accepted = false;  // by this worker
    std::vector<const Worker*> full;  // those that had no room for it; only compared
    Error refusal;                    // of them the one with the earliest time to try again
    Time first_token_at{};  // none yet: the clock's epoch
    Time latest_at{};       // time of the latest token
  };

  // A version as other threads see it.
  struct Route {
    std::shared_ptr<RouterVersion> version;
    int64_t num_usable = 0;
    double share = 0;
  };

  RemoteEngine(const Config& config, RouteRule rule, VersionSet::MakeTokenizer own_tokenizer);

  // Submits to workers of one version alone; it was validated for that one's model.
  Expected<RequestId> submit_to(std::shared_ptr<const RouterVersion> version,
                                ValidRequest request,
                                OutputSink& sink);

  // Ends create() with the first version, or with what keeps it from being made.
  void take_learned(Expected<void> status);
  [[nodiscard]] std::shared_ptr<RouterVersion> take_route();

  void tick();
  void schedule_tick();

  void begin(std::shared_ptr<Stream> stream);
  // Workers that a request may go to: those that answer, and those that compute prompts for them.
  struct Choice {
    std::vector<Worker*> answering;
    std::vector<Worker*> prefilling;
  };

  // `but`: a worker that is left out where there are others. Both empty: none is usable.
  [[nodiscard]] Choice choice_of(const Stream& stream, const Worker* but, Time now);
  void dispatch(Stream& stream, const Worker* but = nullptr);
  // Prefills at one of `workers`, if that is better than at the answering worker.
  void begin_prefill(Stream& stream,
                     const Candidate& answers,
                     const std::vector<Worker*>& workers);
  void dispatch_parked();
  void park(Stream& stream);
  bool has_left(const RouterVersion& version);
  void expire_parked(Time now);
  // Reassigns requests whose workers have been silent about them for too long.
  void expire_silent(Time now);
  Stream* find(RequestId id, uint32_t attempt);

  void take_update(RequestId id, uint32_t attempt, CallUpdate update);
  void take_end(RequestId id, uint32_t attempt, CallEnd end, const std::string& reason);
  // Returns false if the stream's attempt or the stream has ended.
  bool take_output(Stream& stream, uint32_t attempt, int32_t& position, TokenOutput& output);
  void take_refusal(Stream& stream, const Error& error);
  // Tries the least loaded worker that has not refused the request; ends the request after enough
  // refusals.
  void take_no_room(Stream& stream, const Error& error);
  void note_token(Stream& stream, Time now);

  static void leave_queue(Stream& stream);
  // The error carries the time after which a client may try again.
  static Error unavailable(const char* message);

  // Ends an attempt before the request's end.
  void leave_worker(Stream& stream);
  // Continue elsewhere: after the loss of a worker, and while retries are left.
  void reassign(Stream& stream, const std::string& reason = {});  // empty: the worker is gone
  void reassign_all(Worker& worker);
  void fail_attempt(Stream& stream, const Error& why);

  // End the request.
  void fail(Stream& stream, const Error& error);
  void end(Stream& stream, FinishReason reason);
  void publish(Stream& stream, TokenOutput output);
  void publish_stats();
  [[nodiscard]] std::vector<FingerprintStats> count_versions();
  void collect_state(const std::function<void(EngineState)>& done);

  const Config config_;
  std::shared_ptr<RouterLoop> loop_ = std::make_shared<RouterLoop>();
  boost::asio::steady_timer timer_;
  WorkerSet workers_;
  VersionSet versions_;
  std::unique_ptr<Discovery> discovery_;
  std::mt19937_64 random_;
  RetryBudget budget_;
  std::unordered_map<RequestId, std::shared_ptr<Stream>> streams_;
  int64_t num_parked_ = 0;
  Time waiting_logged_at_{};
  bool has_stopped_ = false;

  // Members written by the router's thread before create() returns.
  std::shared_ptr<RouterVersion> first_;
  std::function<void(Expected<void>)> learned_;  // empty: already called

  std::atomic<uint64_t> next_id_ = 1;
  std::atomic<uint64_t> num_routed_ = 0;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> stopped_ = false;
  mutable std::mutex stats_mutex_;
  EngineStats stats_;            // guarded by stats_mutex_, like the next two
  std::vector<Route> routes_;    // in the order in which they were learned
  std::shared_ptr<RouterVersion> usual_;
};

}  // namespace sluice
