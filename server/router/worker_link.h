// SPDX-License-Identifier: Apache-2.0
// The way to one worker: sluice.worker.v1 over one gRPC channel. The loop takes all replies to the
// router's thread; nothing here decides.
#pragma once

#include <grpcpp/channel.h>
#include <worker.grpc.pb.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/status.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "server/router/router_loop.h"
#include "server/router/worker_health.h"

namespace sluice {

struct Config;

struct WorkerDescription {
  ModelInfo model;
  uint64_t epoch = 0;
  std::vector<TokenId> end_tokens;
  int64_t created = 0;     // Unix time of its start in seconds; 0: unknown
  int32_t block_size = 0;  // at least 1
  int32_t max_logprobs = 0;
  std::string kv_events_endpoint;  // the worker's bound endpoint; empty: none
};

// One message of a request's call.
struct CallUpdate {
  bool accepted = false;
  std::optional<Error> refusal;  // the engine's, if it has not accepted
  int32_t position = 0;          // tokens of the answer in front of the outputs
  std::vector<TokenOutput> outputs;
  bool is_broken = false;  // the message cannot be read
};

// The end of a call.
enum class CallEnd : uint8_t {
  kComplete,
  kLost,        // the worker or the connection is gone
  kOtherModel,  // the worker has another fingerprint
  kDenied,      // the worker refuses this router
  kInvalid,     // the request breaks a rule of the worker
  kFailed,      // the worker failed with an error of its own
};

class WorkerCallHandle {
 public:
  virtual ~WorkerCallHandle() = default;
  // Cancels the call: the worker aborts the request; the end is reported as kLost. Any thread.
  virtual void cancel() = 0;
};

class WorkerLink {
 public:
  // `address`: host:port. Connects at the first use.
  WorkerLink(const Config& config, const std::string& address, std::shared_ptr<RouterLoop> loop);

  // Each calls `done` once, on the loop's thread, unless the loop has ended before.
  void describe(std::function<void(Expected<WorkerDescription>)> done);
  void ping(std::function<void(Expected<WorkerLoad>)> done);
  void fetch_tokenizer(std::function<void(Expected<std::vector<NamedFile>>)> done);

  // Calls `on_update` for each message and then `end` once, on the loop's thread.
  std::shared_ptr<WorkerCallHandle> generate(
      const ValidRequest& request,
      const std::string& fingerprint,
      std::function<void(CallUpdate)> on_update,
      std::function<void(CallEnd, const std::string& reason)> end);

 private:
  const std::string secret_;
  std::shared_ptr<RouterLoop> loop_;
  std::shared_ptr<grpc::Channel> channel_;
  std::shared_ptr<worker::v1::Worker::Stub> stub_;  // calls hold it too
};

}  // namespace sluice
