// SPDX-License-Identifier: Apache-2.0
// The engine of one process, as other threads see it. Private to the files of engine_core.h, which
// has what only the engine thread sees, and engine_start.cpp (loading).
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/config.h"
#include "engine/core/queue.h"
#include "engine/core/times.h"
#include "engine/engine.h"
#include "engine/loop/pool_rows.h"
#include "engine/loop/queue_gate.h"
#include "engine/loop/request_table.h"
#include "engine/parallel/parallel.h"

namespace sluice {

class GrammarCompiler;
class KvEventPublisher;
class ModelRunner;
struct HandoffConfig;

using Clock = std::chrono::steady_clock;

struct AbortCommand {
  RequestId id;
};

struct StateCommand {
  int32_t num_steps;
  std::function<void(EngineState)> done;
};

struct FlushCommand {
  std::function<void(bool)> done;
};

struct StopCommand {};

struct WakeCommand {};  // a tier transfer has arrived or a grammar is ready

// A RequestState: a submitted request.
using Command =
    std::variant<RequestState, AbortCommand, StateCommand, FlushCommand, StopCommand, WakeCommand>;

class LocalEngine final : public Engine {
 public:
  // Starts the engine thread, which loads the model; returns when it is ready or has failed.
  static Expected<std::unique_ptr<Engine>> create(const Config& config,
                                                  const RankGroups& groups,
                                                  const OpenKvPeers& open_peers);
  ~LocalEngine() override;

  Expected<RequestId> submit(ValidRequest request, OutputSink& sink) override;

  void abort(RequestId id) override { inbox_.push_urgent(AbortCommand{id}); }

  [[nodiscard]] EngineStats stats() const override;
  void report_state(int32_t num_steps, std::function<void(EngineState)> done) override;
  void flush_prefix_cache(std::function<void(bool)> done) override;
  [[nodiscard]] bool watch_kv_events(std::weak_ptr<KvEventWatcher> watcher, int64_t first) override;
  void watch_kv_transfers(KvTransferWatcher* watcher) override;

  [[nodiscard]] const ModelInfo& model() const override { return info_; }

  [[nodiscard]] const Tokenizer& tokenizer() const override { return *tokenizer_; }

  [[nodiscard]] Expected<std::vector<NamedFile>> tokenizer_files() const override;
  [[nodiscard]] std::string failure() const override;

  void drain() override { draining_ = true; }

  void stop() override;

 private:
  // What only the engine thread sees (engine_core.h).
  struct Core;

  explicit LocalEngine(const Config& config);

  Expected<void> load(const RankGroups& groups, const OpenKvPeers& open_peers);
  // Takes the tokenizer, info_, and the model's own defaults of sampling.
  Expected<void> take_description(ModelRunner& runner);
  Expected<void> open_handoff(const HandoffConfig& part, const OpenKvPeers& open_peers);

  const Config config_;
  Inbox<Command> inbox_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ModelInfo info_;
  PooledOperators pooled_layers_;             // of a model of vectors
  TokenId pooled_padding_ = kInvalidToken;    // Pooling::padding
  std::unique_ptr<KvEventPublisher> events_;  // null: no events are published; outlives core_
  std::unique_ptr<Core> core_;                // made and destroyed on the engine thread
  std::atomic<uint64_t> next_id_ = 1;
  QueueGate gate_;  // submitted, not yet scheduled
  std::atomic<bool> draining_ = false;
  std::atomic<int64_t> step_started_ns_ = 0;
  std::atomic<int64_t> last_progress_ns_ = 0;
  mutable std::mutex stats_mutex_;  // held for a copy; the engine thread only tries it
  EngineStats published_;           // guarded by stats_mutex_
  std::mutex watcher_mutex_;        // held during a call of the watcher
  KvTransferWatcher* transfer_watcher_ = nullptr;  // guarded by watcher_mutex_; null: none
  std::mutex join_mutex_;
  std::thread thread_;
  std::unique_ptr<GrammarCompiler> grammars_;  // destroyed first: its threads use other members
};

inline int64_t now_ns() { return to_ns(Clock::now()); }

}  // namespace sluice
