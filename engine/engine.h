// SPDX-License-Identifier: Apache-2.0
// The facade through which front ends see the engine: requests enter as ValidRequest, tokens come
// out through an OutputSink. Both front ends, `sluice chat` and `sluice bench` use exactly this.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/engine_state.h"
#include "engine/core/kv_event_batch.h"
#include "engine/core/kv_transfer_report.h"
#include "engine/core/pooling.h"
#include "engine/core/sampling_params.h"
#include "engine/core/stats.h"
#include "engine/core/status.h"
#include "engine/core/types.h"
#include "engine/handoff/kv_peer.h"
#include "engine/request.h"
#include "engine/weights/tokenizer_files.h"

namespace sluice {

struct Config;
class Tokenizer;
struct RankGroups;

// The model's properties for validating requests and describing it. Fixed after start.
struct ModelInfo {
  std::string architecture;        // "llama"
  std::string path;                // file or directory it was read from
  std::string chat_template;       // Jinja source; empty: none in the file
  int32_t vocab_size = 0;
  int32_t max_model_len = 0;       // prompt plus output tokens
  int64_t num_parameters = 0;
  std::string system_fingerprint;  // hash of the determinism key
  std::string backend;             // "cpu:avx512"
  std::string memory_plan;         // several lines, as printed at start
  SamplingParams sampling;         // the model's own defaults, for requests without values
  int32_t max_output_tokens = 0;   // limit for every request; 0: only the context limits
  std::optional<HandoffInfo> handoff;  // none: the engine exchanges KV with no other worker
  // Set: the model answers every request with vectors or scores; none: it generates tokens.
  std::optional<PoolingInfo> pooling;

  [[nodiscard]] bool is_on_gpu() const { return backend.starts_with("cuda:"); }
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Any thread. The sink must outlive the request. Every accepted request gets exactly one output
  // with a finish reason, whatever happens. kResourceExhausted: the queue is full, or the request
  // would wait in it longer than allowed; kUnavailable: draining or stopped.
  [[nodiscard]] virtual Expected<RequestId> submit(ValidRequest request, OutputSink& sink) = 0;

  // Any thread. Takes effect at the next step boundary: the blocks return and one output with
  // kAbort is published, unless the request has ended before. Unknown ids are ignored.
  virtual void abort(RequestId id) = 0;

  // Any thread, cheap, never waits for a step.
  [[nodiscard]] virtual EngineStats stats() const = 0;
  // Any thread. `done` runs once, on the engine thread at the next step boundary, and must return
  // quickly. After the engine has stopped it runs at once and receives only the counters.
  virtual void report_state(int32_t num_steps, std::function<void(EngineState)> done) = 0;
  [[nodiscard]] virtual const ModelInfo& model() const = 0;
  [[nodiscard]] virtual const Tokenizer& tokenizer() const = 0;
  // Any thread, cheap. Returns the engines that take new requests, the usual one first, if there
  // are others than this one: a router has one for each fingerprint of its workers. Each has a
  // model and a tokenizer of its own, and no request moves from one to another. A caller may keep
  // one as long as this engine lives.
  [[nodiscard]] virtual std::vector<std::shared_ptr<Engine>> versions() { return {}; }
  // Any thread, cheap. Returns the one of versions() that the next new request goes to; null: this
  // engine.
  [[nodiscard]] virtual std::shared_ptr<Engine> next_version() { return nullptr; }
  // Any thread; reads the disk and takes up to seconds. Returns the tokenizer in Hugging Face's
  // layout: the files of the model's directory, or for a GGUF file generated ones that give the
  // same ids.
  [[nodiscard]] virtual Expected<std::vector<NamedFile>> tokenizer_files() const = 0;

  // Any thread. Empties the prefix cache, but not the tiers below it, at the next step boundary and
  // reports true. Reports false, and empties nothing, while requests run or wait, and in engines
  // that have no cache of their own or have stopped. `done` runs once, on the engine thread or at
  // once.
  virtual void flush_prefix_cache(std::function<void(bool)> done) { done(false); }
  // Any thread. While `watcher` lives it gets the changes of the prefix cache from batch `first`
  // on, as far back as they are kept; 0: all if none is lost, else only new ones. False: this
  // engine publishes no events.
  [[nodiscard]] virtual bool watch_kv_events(std::weak_ptr<KvEventWatcher> /*watcher*/,
                                             int64_t /*first*/) {
    return false;
  }

  // Any thread. Sets the observer of KV transfers. Null removes it; no call to the previous
  // observer is running when this returns. Engines without peers report none.
  virtual void watch_kv_transfers(KvTransferWatcher* /*watcher*/) {}

  // Any thread, before stop(). Why the engine can serve no more although its process lives, such as
  // a lost rank of another process; empty: it can.
  [[nodiscard]] virtual std::string failure() const { return {}; }

  // Any thread. Refuses new requests; running ones continue. Returns at once.
  virtual void drain() = 0;
  // Any thread but the engine's. Ends all requests with kAbort and joins the engine thread.
  virtual void stop() = 0;
};

// Loads the model named in `config`, plans and allocates memory, starts the engine thread.
[[nodiscard]] Expected<std::unique_ptr<Engine>> create_engine(const Config& config);

// Creates an engine with other groups of ranks than make_local_ranks() and open_nccl()
// (parallel.h). After a rank has failed, the requests of each step end with kAbort and the reason.
[[nodiscard]] Expected<std::unique_ptr<Engine>> create_engine(const Config& config,
                                                              const RankGroups& groups);

// Creates an engine with the default groups that exchanges KV with other workers over channels
// opened by `open_peers`, if the configuration has --kv-listen.
[[nodiscard]] Expected<std::unique_ptr<Engine>> create_worker_engine(const Config& config,
                                                                     const OpenKvPeers& open_peers);

// Runs the part of a model that belongs to a node above 0 (--nnodes, --node-rank) on the calling
// thread, for the engine of node 0, until that ends. kUnavailable: a node is lost, the message says
// which and why.
[[nodiscard]] Expected<void> run_follower_node(const Config& config);
// Likewise with other groups than the default ones.
[[nodiscard]] Expected<void> run_follower_node(const Config& config, const RankGroups& groups);

// Must be called by the programs of nodes (--nnodes) before they have threads: sets what libraries
// read from the environment, unless the user has.
void prepare_node_process(const Config& config);

// Must be called first by programs that create engines: an engine runs its own program again for
// work that may have to be killed, such as compiling a grammar. Returns the exit code in such a
// helper process, and nothing in a normal one.
[[nodiscard]] std::optional<int> run_helper_process(int argc, const char* const* argv);

}  // namespace sluice
