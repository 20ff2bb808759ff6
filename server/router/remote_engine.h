// SPDX-License-Identifier: Apache-2.0
// An engine without a model: requests go to workers (`sluice serve --worker-listen`), and their
// tokens come back. The front end above it is unchanged, so all APIs work through a router, and one
// detokenizer makes the text of a stream however many workers took part.
//
// A stream whose worker is lost goes on with another worker of the same fingerprint from prompt,
// seed and tokens so far, which gives the same tokens; without one it waits, and then ends with an
// error. It never ends short in silence.
#pragma once

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
#include "engine/tokenizer/tokenizer.h"
#include "server/router/chooser.h"
#include "server/router/discovery.h"
#include "server/router/prefill_leg.h"
#include "server/router/retry_budget.h"
#include "server/router/router_loop.h"
#include "server/router/stream_ledger.h"
#include "server/router/worker_set.h"

namespace sluice {

class RemoteEngine final : public Engine {
 public:
  // Looks for the workers of --workers and returns when the first has answered: its model and
  // fingerprint are this engine's. `tokenizer`: null: the worker's files make one.
  // kInvalidArgument: --workers is empty or wrong; other errors concern the worker's tokenizer.
  static Expected<std::unique_ptr<RemoteEngine>> create(const Config& config,
                                                        std::unique_ptr<Tokenizer> tokenizer);
  ~RemoteEngine() override;

  Expected<RequestId> submit(ValidRequest request, OutputSink& sink) override;
  void abort(RequestId id) override;
  [[nodiscard]] EngineStats stats() const override;
  void report_state(int32_t num_steps, std::function<void(EngineState)> done) override;

  [[nodiscard]] const ModelInfo& model() const override { return model_; }

  [[nodiscard]] const Tokenizer& tokenizer() const override { return *tokenizer_; }

  [[nodiscard]] Expected<std::vector<NamedFile>> tokenizer_files() const override { return files_; }

  void wait_until_backed() const override {}

  void drain() override { draining_ = true; }

  void stop() override;

 private:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  // The router's thread owns this and all below, unless another is named.
  struct Stream {
    Stream(RequestId own_id, ValidRequest request, OutputSink& its_sink)
        : id(own_id), sink(&its_sink), ledger(std::move(request)) {}

    RequestId id;
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
    Time first_token_at{};  // none yet: the clock's epoch
    Time latest_at{};       // time of the latest token
  };

  RemoteEngine(const Config& config, std::unique_ptr<Tokenizer> tokenizer);

  // Asks the first worker for its model.
  void learn_model(Worker& worker);
  void take_model(const WorkerDescription& description, Expected<std::vector<NamedFile>> files);

  void tick();
  void schedule_tick();

  void begin(std::shared_ptr<Stream> stream);
  void dispatch(Stream& stream, const Worker* but = nullptr);
  // Prefills at one of `workers`, if that is better than at the answering worker.
  void begin_prefill(Stream& stream,
                     const Candidate& answers,
                     const std::vector<Worker*>& workers);
  void dispatch_parked();
  void park(Stream& stream);
  void expire_parked(Time now);
  Stream* find(RequestId id, uint32_t attempt);

  void take_news(RequestId id, uint32_t attempt, CallNews news);
  void take_end(RequestId id, uint32_t attempt, CallEnd end, const std::string& reason);
  // Returns false if the stream's attempt or the stream has ended.
  bool take_output(Stream& stream, uint32_t attempt, int32_t& position, TokenOutput& output);
  void take_refusal(Stream& stream, const Error& error);
  void note_token(Stream& stream, Time now);

  static void leave_queue(Stream& stream);
  // The error carries the time after which a client may try again.
  static Error unavailable(const char* message);

  // Ends an attempt before the request's end.
  void leave_worker(Stream& stream);
  void lose_worker(Stream& stream);                     // continues elsewhere
  void fail_attempt(Stream& stream, const Error& why);  // continues elsewhere while retries are
                                                        // left
  void lose_all_of(Worker& worker);

  // End the request.
  void fail(Stream& stream, const Error& error);
  void end(Stream& stream, FinishReason reason);
  void publish(Stream& stream, TokenOutput output);
  void publish_stats();
  void tell_state(const std::function<void(EngineState)>& done);

  const Config config_;
  std::shared_ptr<RouterLoop> loop_ = std::make_shared<RouterLoop>();
  boost::asio::steady_timer timer_;
  WorkerSet workers_;
  std::unique_ptr<Discovery> discovery_;
  std::mt19937_64 random_;
  RetryBudget budget_;
  std::unordered_map<RequestId, std::shared_ptr<Stream>> streams_;
  int64_t num_parked_ = 0;
  bool is_learning_ = false;
  Time waiting_said_at_{};
  bool has_stopped_ = false;

  // Members written by the router's thread before create() returns.
  ModelInfo model_;
  std::vector<NamedFile> files_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::function<void(Expected<void>)> learned_;  // empty: already called

  std::atomic<uint64_t> next_id_ = 1;
  std::atomic<bool> draining_ = false;
  std::atomic<bool> stopped_ = false;
  mutable std::mutex stats_mutex_;
  EngineStats stats_;  // guarded by stats_mutex_
};

}  // namespace sluice
